"""``hloscope ls``: the modules of a dump told apart, with duplicates and why a module was compiled again.

One file a module is read, the first snapshot; flags are read only where a name was compiled again, and a second look at
two texts is taken only where nothing simpler differs. ``tell_apart`` knows no dump: the modules of a ledger go
through it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hloscope.core.dumps.directory import Dump, Module, Stage
from hloscope.core.dumps.facts import TextFacts, broken, difference, opcode_counts, scan, source_difference
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.dumps.options import COMPILE_INPUTS, input_digests, module_flags
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
    order: int = 0
    """Position among the modules as they were compiled, process by process."""


def list_modules(dump: Dump, *, progress: Progress | None = None) -> list[ListingRow]:
    """The rows of ``hloscope ls``, in the order of ``dump.modules``."""
    facts: list[tuple[TextFacts | None, str | None]] = []
    for done, module in enumerate(dump.modules, 1):
        facts.append(_facts(module))
        if progress is not None:
            progress(done, len(dump.modules))
    parsed: dict[bytes, Mapping[str, str]] = {}
    compiles = [_DumpedModule(module, found, parsed) for module, (found, _) in zip(dump.modules, facts, strict=True)]
    same, differs = tell_apart(compiles)
    order = compile_order(compiles)
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
            order=order[module.index],
        )
        for module, (found, note) in zip(dump.modules, facts, strict=True)
    ]


def process_folder(folder: str, module: str) -> str:
    """What tells the processes of a dump apart, of the folder of a module's files.

    With ``--xla_dump_hlo_to_subfolder`` that folder is ``<module>/<host>_<process>/``.
    """
    parts = folder.split("/")
    return "/".join((*parts[:-3], *parts[-2:])) if len(parts) > 2 and parts[-3] == module else folder


def input_phrase(kind: FileKind) -> str:
    """One of ``COMPILE_INPUTS`` as what differs."""
    return kind.description.removesuffix(" of the PjRt compile call")


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


class Compiled(Protocol):
    """One compile, as far as telling it from others needs it."""

    @property
    def index(self) -> int:
        """Its number in the listing."""
        ...

    @property
    def group(self) -> str:
        """The process that compiled it: compiles of one name are compared within one."""
        ...

    @property
    def folder(self) -> str | None:
        """The folder that somebody put its dump in, which is compared with other such; None for one of XLA's making."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def when(self) -> tuple[int, int]:
        """What orders the compiles of a group in time."""
        ...

    @property
    def facts(self) -> TextFacts | None:
        """What its first snapshot says; None where there is none."""
        ...

    @property
    def text_bytes(self) -> int:
        """Size of that snapshot."""
        ...

    def text(self) -> bytes:
        """That snapshot, read again."""
        ...

    def flags(self) -> Mapping[str, str]:
        """Flags that differ from their defaults."""
        ...

    def other_difference(self, earlier: Compiled, /) -> str:
        """What else differs from an earlier compile of an equal program with equal flags; empty for nothing."""
        ...


def compile_order(compiles: Sequence[Compiled]) -> dict[int, int]:
    """index → position in time, one process after the other."""
    return {one.index: at for at, one in enumerate(_in_time(compiles))}


def _in_time(compiles: Sequence[Compiled]) -> list[Compiled]:
    return sorted(compiles, key=lambda one: (one.group, one.when))


def tell_apart(compiles: Sequence[Compiled]) -> tuple[dict[int, int], dict[int, tuple[int, str]]]:
    """(index → first compile of the same program, index → (compile of the name before, what differs)).

    The first compile of a name in a folder is compared with the last one in the folder before: people put two dumps of
    one program side by side. It is not where XLA made a folder for each process.
    """
    first_of: dict[str, Compiled] = {}
    before: dict[tuple[str, str], Compiled] = {}
    elsewhere: dict[str, Compiled] = {}
    same: dict[int, int] = {}
    differs: dict[int, tuple[int, str]] = {}
    for one in _in_time(compiles):
        if one.facts is None:
            continue
        twin = first_of.setdefault(one.facts.fingerprint, one)
        if twin is not one:
            same[one.index] = twin.index
        previous = before.get((one.group, one.name))
        if previous is None and one.folder is not None:
            previous = elsewhere.get(one.name)
        before[one.group, one.name] = one
        if one.folder is not None:
            elsewhere[one.name] = one
        if previous is not None and previous.facts is not None and (text := _why(previous, previous.facts, one)):
            apart = previous.group != one.group
            where = f"folder {previous.folder or './'} → {one.folder or './'}; " if apart else ""
            differs[one.index] = (previous.index, where + text)
    return same, differs


def _why(previous: Compiled, old: TextFacts, one: Compiled) -> str:
    """Why a module was compiled again, in one line; empty where nothing is known to differ."""
    new = one.facts
    if new is None:
        return ""
    texts = "" if old.fingerprint == new.fingerprint else _text_difference(previous, old, one, new)
    found = [part for part in (texts, flag_difference(previous.flags(), one.flags())) if part]
    if not found and (other := one.other_difference(previous)):
        found.append(other)
    if not found and old.whole != new.whole:
        found.append(source_difference(previous.text(), one.text()))
    return "; ".join(found)


def _text_difference(previous: Compiled, old: TextFacts, one: Compiled, new: TextFacts) -> str:
    text = difference(old, new)
    if not text.startswith("body") or max(previous.text_bytes, one.text_bytes) > SMALL_BODY_BYTES:
        return text
    was, now = opcode_counts(previous.text()), opcode_counts(one.text())
    changes = [f"{count:+d} {name}" for name in sorted(was | now) if (count := now[name] - was[name])]
    shown = ", ".join(changes[:6]) + ("…" if len(changes) > 6 else "")
    return f"{text} ({shown})" if shown else text


_SHOWN_FLAGS = 4
_NO_MATTER = re.compile(r"(?:^|_)(?:dump|dumping|logging)(?:_|$)")
"""Flags that decide what a compile writes down of itself, not what it gives."""


def flag_difference(was: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The flags that two compiles differ in, but for those that change nothing in one; empty where there is none."""
    keys = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
    keys = [key for key in keys if not _NO_MATTER.search(key)]
    if not keys:
        return ""
    shown = ", ".join(f"{key} {was.get(key, 'unset')} → {now.get(key, 'unset')}" for key in keys[:_SHOWN_FLAGS])
    return f"flags: {shown}" + (f" and {len(keys) - _SHOWN_FLAGS} more" if len(keys) > _SHOWN_FLAGS else "")


@dataclass(slots=True)
class _DumpedModule:
    """A module of a dump as ``tell_apart`` sees it."""

    module: Module
    facts: TextFacts | None
    parsed: dict[bytes, Mapping[str, str]]
    """Flags by the text of their file, which most modules of a dump have alike."""
    known_inputs: Mapping[str, str] | None = None
    known_flags: Mapping[str, str] | None = None

    @property
    def index(self) -> int:
        return self.module.index

    @property
    def group(self) -> str:
        return process_folder(self.module.folder, self.module.name)

    @property
    def folder(self) -> str | None:
        return self.module.folder if self.group == self.module.folder else None

    @property
    def name(self) -> str:
        return self.module.name

    @property
    def when(self) -> tuple[int, int]:
        return self.module.timestamp_us or 0, self.module.id

    @property
    def text_bytes(self) -> int:
        stage = first_text_stage(self.module)
        return 0 if stage is None else stage.size

    def text(self) -> bytes:
        stage = first_text_stage(self.module)
        return b"" if stage is None else stage.read_bytes()

    def flags(self) -> Mapping[str, str]:
        if self.known_flags is None:
            self.known_flags = self._flags()
        return self.known_flags

    def _flags(self) -> Mapping[str, str]:
        files = self.module.files_of(FileKind.DEBUG_OPTIONS)
        try:
            text = self.module.dump.read_file(files[0]) if files else b""
        except HloscopeError:
            return module_flags(self.module)
        if text not in self.parsed:
            self.parsed[text] = module_flags(self.module)
        return self.parsed[text]

    def other_difference(self, earlier: Compiled, /) -> str:
        if not isinstance(earlier, _DumpedModule):
            return ""
        was, now = earlier.inputs(), self.inputs()
        for kind in COMPILE_INPUTS:
            if kind.value in was and kind.value in now and was[kind.value] != now[kind.value]:
                return input_phrase(kind)
        return ""

    def inputs(self) -> Mapping[str, str]:
        """What ``input_digests`` gives; a module is compared with the one before and the one after it."""
        if self.known_inputs is None:
            self.known_inputs = input_digests(self.module)
        return self.known_inputs
