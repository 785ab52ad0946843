"""A dump directory (or an archive of one) as modules and stages; nothing is read before a question needs it.

``open_dump(path)`` scans names and sizes only. ``Dump.modules`` is ordered largest first, which is the order of
``hloscope ls`` and of ``--module INDEX``. A stage reads its file when its text is asked for.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from hloscope.core.dumps.filenames import (
    KERNEL_KINDS,
    MAX_NAME,
    REPORT_KINDS,
    DumpName,
    FileKind,
    Point,
    is_module_folder,
    parse_name,
    split_kernel,
    target_of,
)
from hloscope.core.dumps.lost import lost_before, lost_note
from hloscope.core.dumps.sources import Entry, FileSource, open_source
from hloscope.core.errors import DumpError, HloscopeError, UnsupportedError, UsageError

ProtoReader = Callable[[Sequence[bytes]], list[str]]
"""Turns serialized HloProtos into HLO text, all at once because each call starts a process."""

_SPMD_PIPELINES = frozenset(
    {
        "pre-spmd-partitioner", "sharding-removal", "spmd-partitioner", "spmd-cleanup", "spmd-simplify",
        "annotate-host-compute",
    }
)  # fmt: skip
"""Pipelines of which the last ends where XLA:GPU dumps ``after_spmd_partitioner``."""
_LATE_BOOKENDS = (
    "before_buffer_assignment",
    "after_optimizations_before_buffer_assignment",
    "after_optimizations_after_buffer_assignment",
    "after_optimizations",
    "after_buffer_assignment",
    "before_codegen",
    "after_codegen",
)
"""Numberless dump points after the last numbered one, in the order in which the compilers reach them."""


class DumpFile(NamedTuple):
    """One file of a dump."""

    path: str
    """Relative to the dump."""
    size: int
    """Bytes."""
    name: DumpName
    mtime_ns: int = 0

    @property
    def kind(self) -> FileKind:
        return self.name.kind


@dataclass(eq=False, slots=True)
class Stage:
    """One snapshot of a module: the files that XLA wrote at one dump point."""

    index: int
    """Position among the module's stages, from 0."""
    forms: tuple[DumpFile, ...]
    """The point's files: text first, then proto, then graphs."""
    module: Module = field(repr=False)

    @property
    def file(self) -> DumpFile:
        """The form that the stage is read from: text where there is text."""
        return self.forms[0]

    @property
    def name(self) -> DumpName:
        return self.forms[0].name

    @property
    def path(self) -> str:
        """The file's path, relative to the dump."""
        return self.forms[0].path

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.forms[0].size

    @property
    def label(self) -> str:
        """The dump point as the file spells it."""
        return self.name.stem

    @property
    def pipeline(self) -> str:
        """The pipeline, empty for a bookend; inside a pass, the pass."""
        return self.name.pipeline or ""

    @property
    def pass_name(self) -> str:
        """The pass that the snapshot follows; ``pipeline-start``; the step inside a pass; or the bookend."""
        name = self.name
        if name.point is Point.STEP:
            return name.after or ""
        bookend = name.bookend or ""
        if name.point is Point.AFTER:
            return "after_optimizations"
        return bookend

    @property
    def next_pass(self) -> str | None:
        """The pass that the file says follows; None where it does not say."""
        return self.name.before

    @property
    def has_text(self) -> bool:
        """Whether the stage is there as text, not as a proto alone."""
        return self.name.kind is FileKind.STAGE

    def read_bytes(self, limit: int | None = None) -> bytes:
        """The text as UTF-8 bytes, at most ``limit`` from its front.

        Raises ``DumpError`` where the file cannot be read, ``UnsupportedError`` where it is a proto and the dump was
        opened without a proto reader.
        """
        return self.module.dump.read_stage(self.file, limit)

    def read_text(self) -> str:
        """The whole text; bytes that are not UTF-8 become replacement characters."""
        return self.read_bytes().decode("utf-8", "replace")

    def proto(self) -> bytes | None:
        """The serialized HloProto of the stage, None where it was not dumped."""
        for form in self.forms:
            if form.kind is FileKind.STAGE_PROTO:
                return self.module.dump.read_file(form)
        return None


class Module:
    """One module of a dump: its stages, reports and other files."""

    def __init__(self, dump: Dump, folder: str, module_id: int) -> None:
        self.dump = dump
        self.folder = folder
        """Folder of the files within the dump, with a slash at its end, or empty."""
        self.id = module_id
        self.name: str = ""
        """Name of the module; empty where every file name was too long to hold it."""
        self.build: str | None = None
        """Digits of the TPU compiler's ``cl_`` tag."""
        self.timestamp_us: int | None = None
        self.files: list[DumpFile] = []
        self.index = -1
        """Position in ``Dump.modules``."""

    @property
    def label(self) -> str:
        """``module_0001.jit_f`` with the folder in front."""
        return f"{self.folder}module_{self.id:04d}" + (f".{self.name}" if self.name else "")

    @cached_property
    def stages(self) -> list[Stage]:
        """The snapshots in the order in which the compiler wrote them."""
        points: dict[tuple[object, ...], list[DumpFile]] = defaultdict(list)
        for file in self.files:
            name = file.name
            if name.point is not None and file.kind in _FORM_ORDER:
                points[(name.timestamp_us if name.point is Point.STEP else None, name.stem)].append(file)
        groups = [sorted(files, key=_form_rank) for files in points.values()]
        groups = [files for files in groups if files[0].name.is_stage]
        ordered = _in_order(groups)
        return [Stage(index, tuple(files), self) for index, files in enumerate(ordered)]

    @cached_property
    def lost(self) -> dict[int, tuple[int, ...]]:
        """Index of a stage → the numbers of the stages that ought to stand right before it and are not there."""
        names = (stage.name for stage in self.stages)
        return lost_before([None if name.step is None else (name.module_id, name.step) for name in names])

    @property
    def lost_note(self) -> str | None:
        """What is said of the stages that are not there; None where there is none."""
        numbers = [number for found in self.lost.values() for number in found]
        return lost_note(numbers) if numbers else None

    @property
    def reports(self) -> list[DumpFile]:
        """The buffer reports."""
        return [file for file in self.files if file.kind in REPORT_KINDS]

    def files_of(self, kind: FileKind) -> list[DumpFile]:
        """The files of one kind."""
        return [file for file in self.files if file.kind is kind]

    def text_files_of(self, kind: FileKind) -> list[DumpFile]:
        """The files of one kind that hold text, not a proto."""
        return [file for file in self.files_of(kind) if file.path.removesuffix(".gz").endswith(_TEXT_EXTENSIONS)]

    def has_point(self, point: Point) -> bool:
        """Whether a snapshot of the module at such a point was dumped."""
        return any(file.name.point is point for file in self.files)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @cached_property
    def largest_stage_bytes(self) -> int:
        """Bytes of the largest stage, which orders the modules of a dump; 0 where there is none."""
        return max((file.size for file in self.files if file.name.is_stage and file.name.point is not None), default=0)

    @cached_property
    def target(self) -> str | None:
        """``cpu``, ``gpu`` or ``tpu``; None where no file name tells."""
        if self.build is not None:
            return "tpu"
        for file in self.files:
            if file.name.bookend and (target := target_of(file.name.bookend)) is not None:
                return target
            if file.kind in _KIND_TARGETS:
                return _KIND_TARGETS[file.kind]
        return None

    def __repr__(self) -> str:
        return f"Module({self.label!r}, {len(self.files)} files)"


_TEXT_EXTENSIONS = (".txt", ".textproto", ".pbtxt", ".debug_options")

_FORM_ORDER = {
    FileKind.STAGE: 0,
    FileKind.STAGE_PROTO: 1,
    FileKind.STAGE_RIEGELI: 2,
    FileKind.STAGE_DOT: 3,
    FileKind.STAGE_HTML: 4,
    FileKind.STAGE_URL: 5,
}
_KIND_TARGETS = {
    FileKind.THUNKS: "gpu",
    FileKind.TARGET_CONFIG: "gpu",
    FileKind.FUSION_DECISIONS: "gpu",
    FileKind.AUTOTUNING: "gpu",
    FileKind.PTX: "gpu",
    FileKind.FLAG_FILE: "tpu",
    FileKind.TPU_TEXT: "tpu",
    FileKind.OBJECT: "cpu",
}


def _form_rank(file: DumpFile) -> tuple[int, str]:
    return _FORM_ORDER[file.kind], file.path


def _in_order(groups: list[list[DumpFile]]) -> list[list[DumpFile]]:
    """The dump points of one module from the first to the last."""
    steps = sorted(
        (group for group in groups if group[0].name.step is not None),
        key=lambda group: (group[0].name.module_id or 0, group[0].name.step or 0, group[0].path),
    )
    first: list[list[DumpFile]] = []
    middle: list[list[DumpFile]] = []
    last: list[tuple[int, str, list[DumpFile]]] = []
    for group in groups:
        name = group[0].name
        if name.step is not None:
            continue
        bookend = name.bookend or ""
        if name.point is Point.BEFORE:
            first.append(group)
        elif bookend.endswith("spmd_partitioner"):
            middle.append(group)
        else:
            rank = next((i for i, late in enumerate(_LATE_BOOKENDS) if bookend == late), None)
            if rank is None:
                rank = _LATE_BOOKENDS.index("after_optimizations") if name.point is Point.AFTER else -1
            last.append((rank, bookend, group))
    cut = 0
    for position, group in enumerate(steps):
        if group[0].name.pipeline in _SPMD_PIPELINES:
            cut = position + 1
    first.sort(key=lambda group: group[0].path)
    middle.sort(key=lambda group: (group[0].name.bookend or "") != "before_spmd_partitioner")
    last.sort(key=lambda item: item[:2])
    return [*first, *steps[:cut], *middle, *steps[cut:], *(group for _, _, group in last)]


class Dump:
    """The modules of a dump directory or archive; close it, or use it in a ``with`` statement, to free an archive."""

    def __init__(self, source: FileSource, *, proto_reader: ProtoReader | None = None) -> None:
        self.path = source.label
        self.notes: list[str] = []
        """What could not be read, one sentence each."""
        self.not_understood: list[str] = []
        """Files outside the grammar, by path."""
        self.shared_files: list[DumpFile] = []
        """Files that belong to no single module."""
        self.file_count = 0
        self.bytes = 0
        self._source = source
        self._proto_reader = proto_reader
        self._prefix = ""
        self.modules: list[Module] = self._scan()

    def _scan(self) -> list[Module]:
        entries = list(self._source.entries())
        self.notes.extend(self._source.notes)
        self._prefix = _common_folder(entries)
        cut = len(self._prefix)
        files: list[DumpFile] = []
        for entry in entries:
            path = entry.path[cut:]
            name = parse_name(path)
            if name.kind is FileKind.NOT_UNDERSTOOD:
                name = self._sniffed(entry, path) or name
            files.append(DumpFile(path, entry.size, name, entry.mtime_ns))
        self.file_count = len(files)
        self.bytes = sum(file.size for file in files)
        self.not_understood = sorted(file.path for file in files if file.kind is FileKind.NOT_UNDERSTOOD)
        modules = _group(self, files)
        modules.sort(key=lambda module: (-module.largest_stage_bytes, module.id, module.folder, module.name))
        for index, module in enumerate(modules):
            module.index = index
        return modules

    def _sniffed(self, entry: Entry, path: str) -> DumpName | None:
        """A named snapshot that the grammar does not list: ``module_0001.f.<anything>.txt`` holding HLO text."""
        folder, _, base = path.rpartition("/")
        match = _ANY_TEXT.match(base)
        if match is None:
            return None
        try:
            head = self._source.read(entry.path, 10)
        except DumpError:
            return None
        if head != b"HloModule ":
            return None
        found = parse_name(f"{folder}/" * bool(folder) + f"{match['head']}.before_optimizations.txt")
        return found._replace(point=Point.NAMED, bookend=match["point"])

    def select(self, spec: str | None = None) -> tuple[Module, str | None]:
        """The module that ``--module`` names (an index of ``modules`` or a regular expression on the name).

        Without a spec the largest. The second value is a note for the user where there was a choice. Raises
        ``UsageError`` where nothing matches, ``DumpError`` where the dump has no module.
        """
        if spec is None:
            if not self.modules:
                raise DumpError("holds no module", path=self.path)
            chosen = self.modules[0]
            if len(self.modules) == 1:
                return chosen, None
            how_many = f"{len(self.modules)} modules"
            return chosen, f"{how_many}; took the largest, number 0, {chosen.label} (--module picks another)"
        found = self.matching(spec)
        note = f"{len(found)} modules match {spec!r}; took number {found[0].index}, {found[0].label}"
        return found[0], note if len(found) > 1 else None

    def matching(self, spec: str | None = None) -> list[Module]:
        """The modules that a spec names (all without one), in the order of ``modules``.

        Raises ``UsageError`` where none matches.
        """
        if spec is None:
            return self.modules
        if spec.isdigit() and int(spec) < len(self.modules):
            return [self.modules[int(spec)]]
        try:
            pattern = re.compile(spec)
        except re.error as error:
            raise UsageError(f"--module {spec!r} is not a regular expression: {error}") from None
        found = [module for module in self.modules if pattern.search(module.name) or pattern.search(module.label)]
        if not found:
            raise UsageError(
                f"no module matches {spec!r}", path=self.path, hint=f"hloscope ls {self.path} lists {len(self.modules)}"
            )
        return found

    def read_file(self, file: DumpFile, limit: int | None = None) -> bytes:
        """The bytes of a file, unpacked where its name says gzip."""
        if not file.path.endswith(".gz"):
            return self._source.read(self._prefix + file.path, limit)
        data = self._source.read(self._prefix + file.path)
        try:
            if limit is not None:
                return zlib.decompressobj(31).decompress(data, limit)
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DumpError(f"damaged gzip data: {error}", path=file.path) from None

    def read_stage(self, file: DumpFile, limit: int | None = None) -> bytes:
        """The text of a stage's file. Raises as ``Stage.read_bytes`` does."""
        if file.kind is FileKind.STAGE:
            return self.read_file(file, limit)
        text = self.read_each([file])[0]
        if isinstance(text, HloscopeError):
            raise text
        return text if limit is None else text[:limit]

    def read_each(self, files: Sequence[DumpFile]) -> list[bytes | HloscopeError]:
        """The text of each stage's file, or why it has none: one that cannot be read does not keep back the others.

        Protos are turned into text in one call of the reader; one that fails is halved until the culprit is known.
        """
        found: dict[int, bytes | HloscopeError] = {}
        protos: dict[int, bytes] = {}
        for number, file in enumerate(files):
            try:
                if file.kind is FileKind.STAGE:
                    found[number] = self.read_file(file)
                elif file.kind is FileKind.STAGE_PROTO and self._proto_reader is not None:
                    protos[number] = self.read_file(file)
                else:
                    raise UnsupportedError(f"{file.kind.description} cannot be read as text here", path=file.path)
            except HloscopeError as error:
                found[number] = error
        found.update(zip(protos, self._converted(list(protos.values())), strict=True))
        return [found[number] for number in range(len(files))]

    def _converted(self, protos: Sequence[bytes]) -> list[bytes | HloscopeError]:
        if not protos or self._proto_reader is None:
            return []
        try:
            return [text.encode("utf-8", "replace") for text in self._proto_reader(protos)]
        except HloscopeError as error:
            if len(protos) == 1:
                return [error]
        half = len(protos) // 2
        return self._converted(protos[:half]) + self._converted(protos[half:])

    def close(self) -> None:
        """Frees the archive; stages cannot be read afterwards."""
        self._source.close()

    def __enter__(self) -> Dump:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_ANY_TEXT = re.compile(r"^(?P<head>(?:[0-9]+\.)?module_[0-9]+\.[^/]+?)\.(?P<point>[^./]+)\.txt$")


def _common_folder(entries: Sequence[Entry]) -> str:
    """The folders that all files share and that are no part of a dump: an archive's top folder."""
    prefix = ""
    while entries:
        first = entries[0].path[len(prefix) :]
        folder, slash, _ = first.partition("/")
        if not slash or is_module_folder(folder) or folder == "shardy":
            break
        candidate = f"{prefix}{folder}/"
        if not all(entry.path.startswith(candidate) for entry in entries):
            break
        prefix = candidate
    return prefix


def _home(name: DumpName) -> str:
    """The folder of the dump that a file belongs to: its own, without the folders that XLA makes for one module."""
    folder = name.folder
    if not folder:
        return ""
    parts = folder.rstrip("/").split("/")
    if parts and is_module_folder(parts[-1]):
        parts.pop()
        if parts and parts[-1] == "shardy":
            parts.pop()
    return "/".join(parts) + "/" if parts else ""


def _specific(name: DumpName) -> int:
    return (name.module_name is not None) + (name.build is not None) + (name.timestamp_us is not None)


def _group(dump: Dump, files: Iterable[DumpFile]) -> list[Module]:
    """Modules by folder, id, name, build and time; a file that leaves some of them out joins one that fits."""
    homes: dict[tuple[str, int], list[DumpFile]] = defaultdict(list)
    for file in files:
        if file.kind is FileKind.NOT_UNDERSTOOD:
            continue
        if file.name.module_id is None:
            dump.shared_files.append(file)
            continue
        homes[_home(file.name), file.name.module_id].append(file)
    modules: list[Module] = []
    for (folder, module_id), members in homes.items():
        modules.extend(_split(dump, folder, module_id, members))
    return _joined(modules)


def _joined(modules: list[Module]) -> list[Module]:
    """Joins the halves of a compile whose module changed its id on the way.

    Where a pass swaps the module (seen on TPU), the first files carry one id and the rest a later one.
    """
    named: dict[tuple[str, str, str | None, int | None], list[Module]] = defaultdict(list)
    for module in modules:
        named[module.folder, module.name, module.build, module.timestamp_us].append(module)
    gone: set[Module] = set()
    for group in named.values():
        group.sort(key=lambda module: module.id)
        for first, second in zip(group, group[1:], strict=False):
            if (
                first.has_point(Point.BEFORE)
                and not (first.has_point(Point.AFTER) or second.has_point(Point.BEFORE))
                and second.has_point(Point.AFTER)
            ):
                first.files.extend(second.files)
                gone.add(second)
    gone.update(_strays([module for module in modules if module not in gone]))
    return [module for module in modules if module not in gone]


def _strays(modules: list[Module]) -> set[Module]:
    """Moves files that PjRt writes at the top of a dump to the module whose snapshots lie in a folder below.

    With ``--xla_dump_hlo_to_subfolder`` only XLA's own files go to ``<module>/<host>_<process>``.
    """
    placed = [module for module in modules if module.folder and any(file.name.point for file in module.files)]
    if not placed:
        return set()
    below: dict[tuple[int, str], list[Module]] = defaultdict(list)
    for module in placed:
        below[module.id, module.name].append(module)
    gone: set[Module] = set()
    for module in modules:
        if any(file.name.point for file in module.files):
            continue
        for home in below.get((module.id, module.name), ()):
            if home.folder.startswith(module.folder) and home.folder != module.folder:
                home.files.extend(module.files)
                gone.add(module)
                break
    return gone


def _split(dump: Dump, folder: str, module_id: int, members: list[DumpFile]) -> list[Module]:
    """The modules among files of one folder and id."""
    found: dict[tuple[str | None, str | None, int | None], Module] = {}
    kernels: list[DumpFile] = []
    members.sort(key=lambda file: (-_specific(file.name), file.path))
    for file in members:
        name = file.name
        if name.kind in KERNEL_KINDS:
            kernels.append(file)
            continue
        key = (name.module_name, name.build, name.timestamp_us)
        module = found.get(key) or next((module for had, module in found.items() if _fits(key, had)), None)
        if module is None:
            module = found[key] = Module(dump, folder, module_id)
            module.name, module.build, module.timestamp_us = name.module_name or "", name.build, name.timestamp_us
        module.files.append(file)
    for file in kernels:
        _place_kernel(dump, file, found, folder, module_id)
    for module in found.values():
        module.files.sort(key=lambda file: file.path)
    return list(found.values())


def _fits(key: tuple[str | None, str | None, int | None], had: tuple[str | None, str | None, int | None]) -> bool:
    return all(mine is None or theirs is None or mine == theirs for mine, theirs in zip(key, had, strict=True))


def _place_kernel(
    dump: Dump,
    file: DumpFile,
    found: dict[tuple[str | None, str | None, int | None], Module],
    folder: str,
    module_id: int,
) -> None:
    """Puts a kernel's file to the module whose name is the longest start of the file's."""
    best: tuple[int, Module, DumpName] | None = None
    for module in found.values():
        name = split_kernel(file.name, module.name) if module.name else file.name
        fits = name.module_name == module.name or not module.name
        time_fits = file.name.timestamp_us in (None, module.timestamp_us)
        if fits and time_fits and (best is None or len(module.name) > best[0]):
            best = (len(module.name), module, name)
    if best is None and (home := next((one for one in found.values() if _left_out(one, file)), None)) is not None:
        whole = ".".join(part for part in (file.name.module_name, file.name.suffix) if part)
        best = (0, home, file.name._replace(module_name=None, build=None, suffix=whole))
    if best is None:
        module = Module(dump, folder, module_id)
        module.name, module.timestamp_us = file.name.module_name or "", file.name.timestamp_us
        found[(file.name.module_name, file.name.build, file.name.timestamp_us)] = module
        best = (0, module, file.name)
    best[1].files.append(file._replace(name=best[2]))


def _left_out(module: Module, file: DumpFile) -> bool:
    """Whether the name of a file would have been too long with the module's in it, so that XLA left that out."""
    tag = f".cl_{module.build}" if module.build is not None else ""
    return len(file.path.rpartition("/")[2]) + len(f".{module.name}{tag}") > MAX_NAME


def open_dump(path: str | os.PathLike[str], *, proto_reader: ProtoReader | None = None) -> Dump:
    """Opens a dump directory or an archive of one; reads names only.

    Raises ``DumpError`` where the path is missing, unreadable, empty or holds no file of a module.
    """
    source = open_source(path)
    try:
        dump = Dump(source, proto_reader=proto_reader)
    except BaseException:
        source.close()
        raise
    if not dump.modules:
        source.close()
        if dump.file_count == 0:
            raise DumpError("the dump is empty: no file in it", path=dump.path)
        raise DumpError(f"no HLO dump in it: none of its {dump.file_count} files belongs to a module", path=dump.path)
    return dump
