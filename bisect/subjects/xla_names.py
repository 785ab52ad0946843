"""Names of passes of the real XLA: which a dump shows, and which exist at all.

XLA takes any name for a pass to switch off, so a misspelt one makes a probe say nothing. A name is known where the dump
of the compile shows it, where our own registry has it, or where the installed library holds it as a string.
"""

from __future__ import annotations

import mmap
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hloscope.bisect.running import FLAG_REFUSED
from hloscope.core.dumps.directory import open_dump
from hloscope.core.errors import DumpError, UsageError
from hloscope.core.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.dumps.directory import Stage

ALWAYS_THERE = frozenset({"pipeline-start", "pipeline-end", "before_optimizations", "after_optimizations"})
"""Rows of a timeline that are no passes."""
_DISABLE = re.compile(r"--xla_disable_hlo_passes=(\S+)")
_PLACE = re.compile(r"(?:.*/)?([^/:@]+)(?::\d+(?:-\d+)?)?$")
"""``pipeline/pass:occurrence``: what some XLAs take for one run of a pass."""


def disabled_in(flags: Sequence[str], inherited: str | None = None) -> list[str]:
    """Names of passes that flags switch off, and so does the text of an XLA_FLAGS that they are added to."""
    given = [*(inherited or "").split(), *flags]
    found = [match[1] for flag in given if (match := _DISABLE.match(flag)) is not None]
    return [name for part in found for name in part.strip("'\"").split(",") if name]


def check_flags(said: str, flags: Sequence[str]) -> None:
    """Raises UsageError where a compile failed because XLA does not take the flags: no fault of the compiler's."""
    found = next((match for one in FLAG_REFUSED if (match := one.search(said)) is not None), None)
    if found is not None and flags:
        raise UsageError(f"XLA does not take the flags {' '.join(flags)}: {found[0]}")


_DIVIDED = re.compile(r"\bsharding=\{[^}\n]*\bdevices=\[")
_SEVERAL = re.compile(r"\A\s*HloModule [^\n]*\bnum_partitions=(?:[2-9]|1\d)")


def unused_shardings(text: str) -> list[str]:
    """What to say of a module that shardings divide although its header names no number of devices, in one sentence."""
    if _DIVIDED.search(text) is None or _SEVERAL.search(text) is not None:
        return []
    return ["it ran on one device: its shardings were not used, since the header has no num_partitions"]


def pass_of(stage: Stage) -> str | None:
    """The pass that a snapshot follows; None for a bookend, and for a step inside a pass, which is no run."""
    inside = stage.next_pass is None or not stage.pipeline
    return None if inside or stage.pass_name in ALWAYS_THERE else stage.pass_name


def passes_of(folder: str, modules: int = 1) -> list[str]:
    """Passes that a dump's first modules show to have changed something, one entry a run."""
    try:
        with open_dump(folder) as dump:
            found = [pass_of(stage) for module in dump.modules[:modules] for stage in module.stages]
    except DumpError:
        return []
    return [name for name in found if name is not None]


def runs_of(folder: str, name: str) -> int:
    """How many runs of a pass changed something."""
    return passes_of(folder).count(name)


def last_stage(folder: str) -> tuple[str, str | None] | None:
    """The last pass that was dumped and the one that runs after it; None where nothing was dumped."""
    try:
        with open_dump(folder) as dump:
            stages = [stage for module in dump.modules[:1] for stage in module.stages if stage.pass_name]
    except DumpError:
        return None
    return (stages[-1].pass_name, stages[-1].next_pass) if stages else None


def check_name(entry: str, folder: str, python: str | None = None) -> None:
    """Raises UsageError for a pass that does not exist, with the nearest ones that do.

    The library is the installed one, or that of another environment's `python`.
    """
    place = _PLACE.match(entry)
    name = place[1] if place is not None else entry
    if entry.startswith("@"):
        return
    known: set[str] = set()
    try:
        with open_dump(folder) as dump:
            for module in dump.modules:
                for stage in module.stages:
                    known.update(one for one in (pass_of(stage), stage.next_pass, stage.pipeline) if one)
    except DumpError:
        pass
    known -= ALWAYS_THERE
    if name in known or _in_library(name, _package(python)) or name in _ours():
        return
    hint = did_you_mean(name, sorted(known | _ours())) or "hloscope passes on a dump lists them"
    raise UsageError(f"XLA has no pass {name!r}", hint=hint)


def _ours() -> set[str]:
    from hloscope.core.passes.registry import Registry

    return set(Registry().names())


def _package(python: str | None) -> Path | None:
    """The folder of jaxlib."""
    if python is not None:
        return next(Path(python).parent.parent.glob("lib/python*/site-packages/jaxlib"), None)
    spec = find_spec("jaxlib")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _in_library(name: str, package: Path | None) -> bool:
    """Whether XLA's library in a folder holds a name as a whole string."""
    if package is None or not name:
        return False
    wanted = b"\0" + name.encode("utf-8", "surrogateescape") + b"\0"
    libraries = sorted(package.glob("*.so"), key=lambda path: -path.stat().st_size)
    for path in libraries[:1]:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.find(wanted) >= 0:
                return True
    return False
