"""What ``hloscope doctor`` shows: what is installed, what can be compiled for, and the command that adds the rest."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
from dataclasses import dataclass
from typing import Literal

from hloscope.core.errors import HloscopeError
from hloscope.core.text import highlight
from hloscope.core.version import version
from hloscope.core.xla.child import clean_environment, run_child
from hloscope.core.xla.targets import TARGETS, install_command, is_available, package_version

Status = Literal["ok", "missing", "broken"]
CHECK_SECONDS = 120.0
"""Longest time of the trial compile."""


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One thing that was looked for."""

    group: str
    """``python``, ``package``, ``engine``, ``target`` or ``tool``."""
    name: str
    status: Status
    detail: str
    """Version or path where it is there, what it is for where it is not."""
    remedy: str = ""
    """The one command that adds it, empty where nothing needs to be done."""


_PACKAGES: tuple[tuple[str, str], ...] = (
    ("jax", "traces programs"),
    ("jaxlib", "holds XLA:CPU"),
    ("numpy", "holds literals and evaluates"),
    ("ml_dtypes", "small float and integer types"),
    ("textual", "the dashboard"),
    ("pygls", "the language server"),
    ("tree-sitter", "colours HLO text by its grammar"),
    ("zstandard", "reads .tar.zst archives"),
)


def probe(*, compile_check: bool = True) -> list[ProbeRow]:
    """Looks at everything; with ``compile_check`` XLA:CPU compiles a tiny module in a child (a second or two)."""
    rows = [
        ProbeRow("python", "python", "ok", f"{platform.python_version()} ({sys.executable})"),
        ProbeRow("python", "hloscope", "ok", version()),
        ProbeRow("python", "sqlite", "ok", sqlite3.sqlite_version),
    ]
    for name, purpose in _PACKAGES:
        found = package_version(name)
        if found is None:
            rows.append(ProbeRow("package", name, "missing", purpose, f"pip install {name}"))
        else:
            rows.append(ProbeRow("package", name, "ok", found))
    rows.append(ProbeRow("engine", "core", "ok", "hloscope's own passes and evaluator"))
    rows.append(_xla_engine(compile_check))
    for target in TARGETS.values():
        if is_available(target):
            rows.append(ProbeRow("target", target.name, "ok", target.description))
        else:
            rows.append(ProbeRow("target", target.name, "missing", target.description, install_command(target)))
    rows.append(_highlighter())
    rows.append(_c_compiler())
    return rows


def _highlighter() -> ProbeRow:
    if highlight.grammar() is None:
        detail = "regular expressions colour HLO text; its grammar was not built"
        return ProbeRow("tool", "highlighting", "missing", detail, "pip install --force-reinstall --no-deps .")
    return ProbeRow("tool", "highlighting", "ok", "tree-sitter")


def _xla_engine(compile_check: bool) -> ProbeRow:
    found = package_version("jaxlib")
    if found is None:
        return ProbeRow("engine", "xla", "missing", "the real compiler", "pip install jax")
    if not compile_check:
        return ProbeRow("engine", "xla", "ok", f"jaxlib {found}, not tried")
    try:
        answer = run_child(
            "child_probe.py",
            {},
            env=clean_environment({"JAX_PLATFORMS": "cpu"}),
            timeout=CHECK_SECONDS,
            what="the trial compile",
        )
    except HloscopeError as error:
        return ProbeRow(
            "engine", "xla", "broken", f"jaxlib {found}: {error.message}", "pip install --force-reinstall jax"
        )
    return ProbeRow("engine", "xla", "ok", f"jaxlib {found} compiles for {answer.get('platform', 'cpu')}")


def _c_compiler() -> ProbeRow:
    asked = os.environ.get("CC", "").split()
    for name in (*asked[:1], "cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return ProbeRow("tool", "C compiler", "ok", path)
    purpose = "builds the grammar of the highlighter; without it regular expressions colour"
    return ProbeRow("tool", "C compiler", "missing", purpose, "apt-get install gcc")
