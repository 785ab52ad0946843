"""``hloscope ls``: the modules of a dump told apart, with duplicates and why a module was compiled again.

One file a module is read, the first snapshot; flags are read only for modules whose programs are equal, and a second
look at two bodies is taken only where nothing simpler differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hloscope.core.dumps.directory import Dump, Module, Stage
from hloscope.core.dumps.facts import TextFacts, broken, difference, opcode_counts, scan
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.dumps.options import module_flags
from hloscope.core.errors import HloscopeError

SMALL_BODY_BYTES = 1 << 20
"""Largest text whose opcodes are counted to say how a body differs."""

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


@dataclass(frozen=True, slots=True)
class ListingRow:
    """One module of a dump; the fields are the columns of ``hloscope ls``."""

    index: int
    """What ``--module`` takes."""
    name: str
    id: int
    """XLA's module id."""
    instructions: int | None
    """Instructions of the first snapshot; None where no snapshot can be read as text."""
    stages: int
    files: int
    bytes: int
    same_as: int | None
    """Index of the first module with the same program; None where there is none."""
    differs_by: str | None
    """What differs from the compile of the same name before; None for the first of a name and for equal ones."""
    differs_from: int | None
    """Index of that compile."""
    folder: str
    target: str | None
    note: str | None
    """What is wrong with the snapshot that was read."""


def list_modules(dump: Dump, *, progress: Progress | None = None) -> list[ListingRow]:
    """The rows of ``hloscope ls``, in the order of ``dump.modules``."""
    facts: list[tuple[TextFacts | None, str | None]] = []
    for done, module in enumerate(dump.modules, 1):
        facts.append(_facts(module))
        if progress is not None:
            progress(done, len(dump.modules))
    same, differs = _compare(dump, [item for item, _ in facts])
    return [
        ListingRow(
            index=module.index,
            name=module.name,
            id=module.id,
            instructions=found.instructions if found is not None else None,
            stages=len(module.stages),
            files=len(module.files),
            bytes=module.bytes,
            same_as=same.get(module.index),
            differs_by=differs[module.index][1] if module.index in differs else None,
            differs_from=differs[module.index][0] if module.index in differs else None,
            folder=module.folder,
            target=module.target,
            note=note,
        )
        for module, (found, note) in zip(dump.modules, facts, strict=True)
    ]


def first_text_stage(module: Module) -> Stage | None:
    """The first snapshot that is there as text."""
    return next((stage for stage in module.stages if stage.has_text), None)


def _facts(module: Module) -> tuple[TextFacts | None, str | None]:
    stage = first_text_stage(module)
    if stage is None:
        return None, "no snapshot as text" if module.stages else "no snapshot"
    try:
        text = stage.read_bytes()
    except HloscopeError as error:
        return None, str(error)
    return scan(text), broken(text)


def _compare(dump: Dump, facts: list[TextFacts | None]) -> tuple[dict[int, int], dict[int, tuple[int, str]]]:
    """(module → first module with the same program, module → (compile before, what differs))."""
    in_time = sorted(dump.modules, key=lambda module: (module.folder, module.timestamp_us or 0, module.id))
    first_of: dict[str, Module] = {}
    before: dict[tuple[str, str], Module] = {}
    same: dict[int, int] = {}
    differs: dict[int, tuple[int, str]] = {}
    for module in in_time:
        found = facts[module.index]
        if found is None:
            continue
        twin = first_of.setdefault(found.fingerprint, module)
        if twin is not module:
            same[module.index] = twin.index
        previous = before.get((module.folder, module.name))
        before[module.folder, module.name] = module
        if previous is None:
            continue
        old = facts[previous.index]
        if old is not None and (text := _why(previous, old, module, found)):
            differs[module.index] = (previous.index, text)
    return same, differs


def _why(previous: Module, old: TextFacts, module: Module, new: TextFacts) -> str:
    """Why a module was compiled again, in one line; empty where the dump shows no difference."""
    if old.fingerprint == new.fingerprint:
        return _flag_difference(previous, module)
    text = difference(old, new)
    if not text.startswith("body"):
        return text
    a, b = first_text_stage(previous), first_text_stage(module)
    if a is None or b is None or max(a.size, b.size) > SMALL_BODY_BYTES:
        return text
    was, now = opcode_counts(a.read_bytes()), opcode_counts(b.read_bytes())
    changes = [f"{count:+d} {name}" for name in sorted(was | now) if (count := now[name] - was[name])]
    shown = ", ".join(changes[:6]) + ("…" if len(changes) > 6 else "")
    return f"{text} ({shown})" if shown else text


def _flag_difference(previous: Module, module: Module) -> str:
    was, now = module_flags(previous), module_flags(module)
    changed = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
    if changed:
        return "flags: " + ", ".join(f"{key} {was.get(key, 'unset')} → {now.get(key, 'unset')}" for key in changed[:4])
    for kind in (FileKind.COMPILE_OPTIONS, FileKind.TOPOLOGY):
        a, b = previous.files_of(kind), module.files_of(kind)
        if a and b and previous.dump.read_file(a[0]) != module.dump.read_file(b[0]):
            return kind.description.removesuffix(" of the PjRt compile call")
    return ""
