"""Across passes: the same instruction in the stages of a dump before and after the one that is open."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from lsprotocol import types

from hloscope.core.analysis.device import load_device, parse_device
from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.filenames import FileKind, parse_name
from hloscope.core.dumps.options import compile_facts
from hloscope.core.errors import HloscopeError
from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.views.dump_source import DumpSource
from hloscope.core.views.follow import alike, follow
from hloscope.core.views.run import find_definition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.dumps.directory import Module
    from hloscope.core.views.data import Place

_FOLLOW_SECONDS = 10.0
"""Time in which renames are looked for; a few hundredths for most dumps."""

Which = Literal["previous", "next", "first", "last"]


@dataclass(frozen=True, slots=True)
class PlaceInDump:
    """Where an open file stands in its dump."""

    number: int
    """1-based, among the stages."""
    count: int
    pass_name: str
    row: int | None
    """Of the timeline, as ``--stage`` takes it; None where it cannot be told."""


@dataclass(frozen=True, slots=True)
class DumpPlace:
    """The dump that an open file is in."""

    folder: str
    module: int
    """Index of the module, as ``--module`` takes it."""
    stage: int
    """Index of the file among the module's stages. Not what ``--stage`` takes: see `row_of`."""
    name: str
    """Of the file."""
    files: tuple[tuple[str, str], ...]
    """Path and pass of every stage that has text, in order; an empty pass for the first."""
    before: int
    """How many of `files` come before the open one."""
    bytes: int
    target: str | None
    """``cpu``, ``gpu`` or ``tpu``, as the dump's files tell."""
    device: DeviceDescription | None
    """The GPU compiled for: that of the dump's own description, else the usual one; None for another target."""

    def first_with(self, name: str, deadline: float) -> str | None:
        """In words, the first stage up to the open one that has an instruction; None where the time is over."""
        for number, (path, pass_name) in enumerate(self.files[: self.before + 1]):
            if time.monotonic() > deadline:
                return None
            try:
                with open(path, "rb") as opened:
                    found = find_definition(opened.read(), name, number)
            except OSError:
                continue
            if found is not None:
                if not number:
                    return "there since the first stage"
                if is_bookend(path):
                    which = "the last stage" if number == len(self.files) - 1 else pass_name
                    return f"first there in {which}: the dump does not show which pass made it"
                return f"made by {pass_name}" if pass_name else None
        return None


def is_bookend(path: str) -> bool:
    """Whether a stage stands for a part of the compile, not for one pass."""
    return bool(parse_name(os.path.basename(path)).bookend)


def dump_of(uri: str) -> DumpPlace | None:
    """The dump that a stage's file is in; None for other files."""
    path = local_path(uri)
    if path is None or not os.path.isfile(path):
        return None
    folder, name = os.path.split(os.path.abspath(path))
    if parse_name(name).kind is not FileKind.STAGE:
        return None
    return _dump_of(folder, name, os.stat(folder).st_mtime_ns)


def newest(folder: str) -> int:
    """When the latest change in a folder was, in nanoseconds; 0 where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return max((one.stat().st_mtime_ns for one in entries), default=0)
    except OSError:
        return 0


@lru_cache(maxsize=64)
def _dump_of(folder: str, name: str, changed: int) -> DumpPlace | None:
    """The same; kept until the folder changes."""
    del changed
    try:
        with open_dump(folder) as dump:
            for number, module in enumerate(dump.modules):
                stage = next((one for one in module.stages if one.path == name), None)
                if stage is None:
                    continue
                shown = [one for one in module.stages if one.has_text]
                files = tuple((os.path.join(folder, one.path), one.pass_name or "") for one in shown)
                before = next((k for k, one in enumerate(shown) if one.path == name), len(shown))
                size = sum(os.path.getsize(file) for file, _ in files)
                target = compile_facts(module).target
                device = _gpu(module) if target == "gpu" else None
                return DumpPlace(folder, number, stage.index, name, files, before, size, target, device)
    except (HloscopeError, OSError):
        return None
    return None


def row_of(place: DumpPlace) -> int | None:
    """The row of a stage in its module's timeline, which has rows for passes without a file too where the dump holds
    the compiler's log of them; None where it cannot be told."""
    try:
        return _row_of(place.folder, place.module, place.name, os.stat(place.folder).st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=64)
def _row_of(folder: str, module: int, name: str, changed: int) -> int | None:
    del changed
    try:
        source = DumpSource(folder, str(module))
    except (HloscopeError, OSError):
        return None
    try:
        return next((k for k, row in enumerate(source.outline()) if row.own_snapshot and row.file == name), None)
    finally:
        source.close()


def from_here(place: DumpPlace, folder: str) -> None:
    """Put the files of a dump's module into a folder of their own, without the stages before the open one."""
    with open_dump(place.folder) as dump:
        module = dump.modules[place.module]
        early = {form.path for stage in module.stages if stage.index < place.stage for form in stage.forms}
        for file in module.files:
            if file.path in early:
                continue
            source, target = os.path.join(place.folder, file.path), os.path.join(folder, os.path.basename(file.path))
            try:
                os.symlink(source, target)
            except OSError:
                shutil.copy(source, target)


def _gpu(module: Module) -> DeviceDescription:
    for file in module.text_files_of(FileKind.TARGET_CONFIG):
        try:
            return parse_device(module.dump.read_file(file).decode("utf-8", "replace"), path=file.path)
        except HloscopeError:
            continue
    return load_device()


def local_path(uri: str) -> str | None:
    """The file behind an address; None for one that is on no disk."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else None


def place_in_dump(uri: str) -> PlaceInDump | None:
    """The place of a stage's file among its module's stages; None for other files."""
    found = _module_of(uri)
    if found is None:
        return None
    module, number = found
    stage = module.stages[number]
    place = dump_of(uri)
    row = None if place is None else row_of(place)
    return PlaceInDump(number + 1, len(module.stages), stage.pass_name, row)


def _module_of(uri: str) -> tuple[Module, int] | None:
    path = local_path(uri)
    if path is None or not os.path.isfile(path):
        return None
    folder, name = os.path.split(path)
    if parse_name(name).kind is not FileKind.STAGE:
        return None
    try:
        with open_dump(folder) as dump:
            for module in dump.modules:
                for stage in module.stages:
                    if stage.path == name:
                        return module, stage.index
    except HloscopeError:
        return None
    return None


def other_stages(uri: str) -> list[tuple[str, str]]:
    """Address and path of the other stages of the dump that a file is in, the nearest first."""
    found = _module_of(uri)
    path = local_path(uri)
    if found is None or path is None:
        return []
    module, here = found
    stages = sorted((one for one in module.stages if one.index != here), key=lambda one: abs(one.index - here))
    files = [os.path.join(os.path.dirname(os.path.abspath(path)), one.path) for one in stages if one.has_text]
    return [(Path(file).as_uri(), file) for file in files]


def in_stage(uri: str, name: str, which: Which) -> types.Location | None:
    """The instruction in another stage of the dump, by its name or, where a pass renamed it, by what it was paired
    with; without a name the stage's first line.

    ``previous`` and ``next`` go to the nearest stage that has it, ``first`` and ``last`` to the ends of its life. None
    where no other stage has it or the file is in no dump.
    """
    place, path = dump_of(uri), local_path(uri)
    if place is None or path is None:
        return None
    files = [file for file, _ in place.files]
    forth = which in ("next", "last")
    order = range(place.before + 1, len(files)) if forth else range(place.before - 1, -1, -1)
    if not name:
        ends = {"first": order[-1:], "last": order[-1:]}.get(which, order[:1])
        return next((_location(files[number], 0) for number in ends), None)
    found: Place | None = None
    texts = _Texts(files)
    try:
        for found in follow(texts, order, place.before, name, forth=forth, seconds=_FOLLOW_SECONDS):
            if which in ("previous", "next"):
                break
        if found is None:
            return None
        line = texts(found.stage).split(b"\n", found.line + 1)[found.line]
    except (OSError, IndexError):
        return None
    # Names are ASCII and so is what stands before them: a byte is a unit in every encoding.
    return _location(files[found.stage], found.line, max(0, line.find(found.name.encode())), len(found.name))


class _Texts:
    """Reads files by number, and remembers the last two."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files
        self._kept: dict[int, bytes] = {}

    def __call__(self, number: int) -> bytes:
        found = self._kept.get(number)
        if found is None:
            with open(self._files[number], "rb") as opened:
                found = self._kept[number] = opened.read()
            for old in list(self._kept)[:-2]:
                del self._kept[old]
        return found


def _location(file: str, line: int, column: int = 0, width: int = 0) -> types.Location:
    where = types.Range(types.Position(line, column), types.Position(line, column + width))
    return types.Location(Path(os.path.abspath(file)).as_uri(), where)


def fusions_of(uri: str, name: str) -> list[tuple[str, types.Location]]:
    """Names and places of the fusions of the last stage that the instruction ended up in: what calls the computation
    that holds it, or the instruction itself where that is the fusion.

    Where it cannot be followed to the last stage, by its name or through renames, those there with its opcode and
    op_name are meant (and with its dimensions and source, where some have them): clones of it may be in several.
    """
    place, path = dump_of(uri), local_path(uri)
    files = [file for file, _ in place.files] if place is not None else []
    if path is None or not (files or os.path.isfile(path)):
        return []
    try:
        here = _read_index(path)
        last = here
        found = here.find(name)
        among = [] if found is None else [found]
        if place is not None and place.before < len(files) - 1:
            last = _read_index(files[-1])
            rows = range(place.before + 1, len(files))
            steps = follow(_Texts(files), rows, place.before, name, forth=True, seconds=_FOLLOW_SECONDS)
            at = next((last.find(one.name) for one in steps if one.stage == len(files) - 1), None)
            among = [at] if at is not None else [] if found is None else alike(last, here, found)
    except OSError:
        return []
    fusions = dict.fromkeys(one for k in among if (one := _fusion(last, k)) is not None)
    out: list[tuple[str, types.Location]] = []
    for one in fusions:
        line, column = last.position(last.name_span(one)[0])
        out.append((last.name(one), _location(files[-1] if files else path, line, column, len(last.name(one)))))
    return out


def _fusion(index: ModuleIndex, i: int) -> int | None:
    callers = index.callers(index.computation_of(i))
    return next((one for one in callers if index.opcode(one) == "fusion"), i if index.opcode(i) == "fusion" else None)


def _read_index(file: str) -> ModuleIndex:
    with open(file, encoding="utf-8", errors="replace", newline="") as opened:
        return ModuleIndex.from_text(opened.read())


def nowhere(command: str, uri: str, name: str) -> str:
    """Why a jump shows nothing, in one line."""
    place = dump_of(uri)
    what = f"%{name}" if name else "text"
    if command == "hloscope.openFusion":
        where = "the last stage" if place is not None else "the text"
        return f"{what} is in no fusion of {where}" if name else "put the cursor on an instruction"
    if place is None:
        return f"{os.path.basename(local_path(uri) or uri)} is no stage of a dump"
    when = "earlier" if command in ("hloscope.previousStage", "hloscope.firstStage") else "later"
    return f"no {when} stage has {what}"
