"""The rules of the tree: where things may live and what may import what.

Within ``core`` a folder may import the levels above it in ``LEVELS`` and no others. An edge that breaks this needs a
reason, written beside it in ``EXCEPTIONS``.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("core", "lsp", "tui", "bisect")

LEVELS = (
    ("errors", "version", "memory", "spelling"),
    ("ledger",),
    ("hlo",),
    ("text",),
    ("runtime",),
    ("dumps",),
    ("xla",),
    ("passes",),
    ("analysis",),
    ("layout", "fusion", "buffers", "schedule", "spmd", "collectives", "stablehlo"),
    ("cpu", "gpu"),
    ("pjrt", "ifrt"),
    ("pallas",),
    ("views",),
    ("cli",),
)
"""Folders and top modules of core, lowest first; those of one level do not import each other."""

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("core/__init__.py", "views"): "the facade `from hloscope.core import load`, resolved on first use",
}
"""(file, what it imports) -> why it may."""

STDLIB_NAMES_ALLOWED = {"bisect"}
"""The part named bisect is a namespace package and never on sys.path by that name."""


def python_files(*folders: str) -> list[Path]:
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "__pycache__" not in path.parts
    ]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import statement, also those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield node.lineno, base
            if base in ("hloscope", "hloscope.core"):
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python in a child, started in the repository's root."""
    command, environment = [sys.executable, *arguments], {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_walk_sees_the_tree() -> None:
    for part in PARTS:
        assert python_files(part), f"no Python found under {part}/"


def test_bisect_stays_a_namespace_package() -> None:
    assert not (ROOT / "bisect/__init__.py").exists(), "it would shadow the standard library's bisect"
    assert not list((ROOT / "bisect").rglob("test_*.py")) + list((ROOT / "bisect").rglob("conftest.py"))


def test_the_standard_library_keeps_its_bisect() -> None:
    done = run("-c", "import bisect, random; print(bisect.bisect_left([1, 2, 3], 3), bisect.__file__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 ") and str(ROOT / "bisect") not in done.stdout


def test_pytest_from_the_root_keeps_it_too(tmp_path: Path) -> None:
    probe = tmp_path / "test_probe.py"
    probe.write_text("import bisect, random\n\n\ndef test_it() -> None:\n    assert bisect.bisect([1, 2], 1) == 1\n")
    plain = ("-c", os.devnull, "-p", "no:cacheprovider", "--import-mode=importlib")
    done = run("-m", "pytest", "-q", *plain, str(probe), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_are_absolute_and_go_down() -> None:
    rank = {name: index for index, names in enumerate(LEVELS) for name in names}
    faults: list[str] = []
    used: set[tuple[str, str]] = set()
    for path in python_files(*PARTS):
        file = path.relative_to(ROOT).as_posix()
        part, *inner = path.relative_to(ROOT).with_suffix("").parts
        for line, module in imported(path):
            if module.startswith("."):
                faults.append(f"{file}:{line}: relative import")
            words = module.split(".")
            if words[0] in ("core", "lsp", "tui"):
                faults.append(f"{file}:{line}: import hloscope.{module}; a bare {words[0]} is a second copy")
            if words[0] != "hloscope" or len(words) < 2:
                continue
            if words[1] not in (part, "core"):
                faults.append(f"{file}:{line}: {part} imports {words[1]}; the parts share only core")
            if part != "core" or words[1] != "core" or len(words) < 3 or inner[0] == words[2]:
                continue
            if words[2] not in rank:
                faults.append(f"{file}:{line}: {words[2]} has no level; add it to LEVELS")
            elif (file, words[2]) in EXCEPTIONS:
                used.add((file, words[2]))
            elif inner[0] not in rank:
                faults.append(f"{file}: {inner[0]} has no level; add it to LEVELS")
            elif rank[words[2]] >= rank[inner[0]]:
                faults.append(f"{file}:{line}: {inner[0]} imports {words[2]}, which is not below it")
    assert not faults, "\n".join(faults)
    assert used == set(EXCEPTIONS), f"exceptions that nothing needs: {set(EXCEPTIONS) - used}"


def test_no_module_is_named_like_the_standard_library() -> None:
    names = sys.stdlib_module_names - STDLIB_NAMES_ALLOWED
    clashes = [
        str(path.relative_to(ROOT))
        for path in python_files(*PARTS)
        if path.stem in names or path.parent.name in names and path.parent.parent != ROOT
    ]
    assert not clashes


def test_core_imports_no_reader_and_no_jax() -> None:
    """A ``child_….py`` is a program that a child process runs by file name; it may import jax and is never imported."""
    modules = [
        "hloscope." + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in python_files("core")
        if path.stem != "__main__" and not path.stem.startswith("child_")
    ]
    program = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "heavy = ('textual', 'pygls', 'jax', 'jaxlib', 'hloscope.lsp', 'hloscope.tui', 'hloscope.bisect')\n"
        "print(len(sys.modules), [name for name in heavy if name in sys.modules])\n"
    )
    done = run("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(" ", 1)[1].strip() == "[]"


def test_every_package_has_its_marker_files() -> None:
    for part in PARTS:
        assert (ROOT / part / "py.typed").exists()
    for path in python_files("core", "lsp", "tui"):
        assert (path.parent / "__init__.py").exists(), f"{path.parent.relative_to(ROOT)} has no __init__.py"


def test_tracked_files_name_no_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    pattern = re.compile(rb"/(?:" + b"|".join([b"wo" + b"rk", b"ro" + b"ot", b"ho" + b"me", b"fa" + b"rm"]) + rb")/\w")
    found: list[str] = []
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if not name or name.startswith("fixtures/") or not path.is_file():
            continue
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name}:{number}: {line[:120]!r}")
    assert not found, "\n".join(found)
