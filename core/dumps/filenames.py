"""The file-name grammar of XLA's dump directories, read and written, for the CPU, GPU and TPU compilers.

``[<timestamp_us>.]module_<id %04d>[.<module name>][.cl_<build>].<suffix>`` is the frame of nearly every file; module
names may hold dots (``jit_f.12``), so a name is read from its end: the extension first, then the dump point, then what
is left is the module. ``parse_name`` never fails: a name outside the grammar has the kind ``NOT_UNDERSTOOD``.
``DumpName.format`` writes the name back, and drops the module's name where the whole would pass 255 characters, as XLA
does. Source: ``openxla/xla:xla/service/dump.cc#FilenameFor``, ``xla/service/dump.cc#DumpHloModuleImpl``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

MAX_NAME = 255
"""Longest file name that XLA writes, in characters."""


class FileKind(Enum):
    """What a file of a dump holds; ``description`` says it in one line."""

    description: str

    def __new__(cls, key: str, description: str) -> FileKind:
        kind = object.__new__(cls)
        kind._value_ = key
        kind.description = description
        return kind

    STAGE = "stage", "HLO module as text"
    STAGE_PROTO = "stage_proto", "HLO module as HloProto"
    STAGE_RIEGELI = "stage_riegeli", "HLO module as a riegeli file of protos"
    STAGE_DOT = "stage_dot", "graph of the module for graphviz"
    STAGE_HTML = "stage_html", "graph of the module as a web page"
    STAGE_URL = "stage_url", "address of a rendered graph"
    BUFFER_ASSIGNMENT = "buffer_assignment", "buffer report: allocations and the values in them"
    BUFFER_VALUES = "buffer_values", "buffer report: values, positions and uses"
    LIVE_RANGE = "live_range", "buffer report: live ranges"
    MEMORY_USAGE = "memory_usage", "buffer report: memory usage"
    MEMORY_USAGE_PROTO = "memory_usage_proto", "buffer report: memory usage as a proto"
    DEBUG_OPTIONS = "debug_options", "XLA flags that differ from their defaults"
    METADATA = "metadata", "every pass run with its times (HloModuleMetadataProto as text)"
    CONFIG = "config", "module config"
    COMPILE_OPTIONS = "compile_options", "options of the PjRt compile call"
    TOPOLOGY = "topology", "device topology of the PjRt compile call"
    INPUT_MLIR = "input_mlir", "StableHLO that was handed to the compiler"
    SHARDY_MLIR = "shardy_mlir", "module around sharding propagation (Shardy), MLIR"
    LLVM_IR = "llvm_ir", "LLVM IR"
    PTX = "ptx", "PTX assembly"
    OBJECT = "object", "object code"
    GPU_BINARY = "gpu_binary", "GPU binary or its disassembly"
    TRITON = "triton", "Triton kernel in one of its forms"
    SNAPSHOT = "snapshot", "inputs and outputs of one execution (HloSnapshot)"
    UNOPTIMIZED_SNAPSHOT = "unoptimized_snapshot", "unoptimized module with the inputs of one execution"
    FUSION_VISUALIZATION = "fusion_visualization", "step-by-step picture of the fusions of one computation"
    FUSION_DECISIONS = "fusion_decisions", "decisions of the priority-fusion pass"
    AUTOTUNING = "autotuning", "autotuning results"
    AUTOTUNED_FUSION = "autotuned_fusion", "one fusion as the autotuner saw it"
    TARGET_CONFIG = "target_config", "description of the GPU compiled for"
    THUNKS = "thunks", "sequence of thunks that runs the module"
    FDO_PROFILE = "fdo_profile", "profile for feedback-directed optimization"
    FLAG_FILE = "flag_file", "every flag of the TPU compiler"
    TPU_TEXT = "tpu_text", "text report of the TPU compiler"
    EMITTER = "emitter", "module inside a kernel emitter"
    PASS_LOG = "pass_log", "log lines of the pass pipeline, captured by hloscope"
    CAPTURE = "capture", "how the dump was made (command, versions), written by hloscope"
    NOT_UNDERSTOOD = "not_understood", "outside the grammar of dump files"


class Point(Enum):
    """At which point of the compile a file was written."""

    BEFORE = "before_optimizations"
    NAMED = "named"
    """A bookend in between, such as ``after_spmd_partitioner``."""
    STEP = "step"
    """Between two passes of a pipeline."""
    INSIDE = "inside"
    """Inside a pass that writes steps of its own."""
    AFTER = "after_optimizations"


class DumpName(NamedTuple):
    """The parts of one dump file's path; ``format()`` gives the path again."""

    kind: FileKind
    timestamp_us: int | None = None
    """Microseconds since the epoch of the module's first dump."""
    module_id: int | None = None
    module_name: str | None = None
    """Name of the module without the build tag; None where the name has none."""
    build: str | None = None
    """Digits of the TPU compiler's ``cl_`` tag."""
    point: Point | None = None
    """None for files that belong to no point of the pass pipeline."""
    step: int | None = None
    """Number of the dump within its module."""
    pipeline: str | None = None
    """Pipeline, or for ``INSIDE`` the pass; as the file says it (spaces are underscores)."""
    after: str | None = None
    before: str | None = None
    bookend: str | None = None
    """Name of a numberless dump point, or of the step inside a pass."""
    suffix: str = ""
    """What follows the module's name where the grammar has no finer parts, without its extension."""
    extension: str = ""
    """From the first character after the dump point to the end (``-live-range.txt``)."""
    prefix: str | None = None
    """Computation in front of ``module_`` (fusion pictures), or the number in front of a Shardy file's name."""
    folder: str = ""
    """Folders in front of the name, with a slash at the end."""
    id_text: str | None = None
    """The module id as written, where it is not ``%04d``."""

    @property
    def is_stage(self) -> bool:
        """A snapshot of the module in any form that keeps the whole of it."""
        return self.kind in STAGE_KINDS

    @property
    def description(self) -> str:
        """What the file holds, in one line."""
        return self.kind.description

    @property
    def stem(self) -> str:
        """The dump point as the file spells it: ``0003.fusion.after_a.before_b``, ``cpu_after_optimizations``."""
        if self.point is Point.STEP:
            return f"{self.step:04d}.{self.pipeline}.after_{self.after}.before_{self.before}"
        if self.point is Point.INSIDE:
            return f"{self.step:04d}.{self.pipeline}.{self.bookend}"
        return self.bookend if self.bookend is not None else self.suffix

    @property
    def module_part(self) -> str:
        """``module_0001.jit_f.cl_1``, without timestamp."""
        text = f"module_{self.id_text or f'{self.module_id:04d}'}"
        if self.module_name is not None:
            text += f".{self.module_name}"
        return text + (f".cl_{self.build}" if self.build is not None else "")

    def format(self) -> str:
        """The path that these parts spell; the module's name is dropped where the file name passes 255 characters."""
        if self.module_id is None:
            return f"{self.folder}{self.suffix}{self.extension}"
        if self.kind in _FOLDER_KINDS and self.folder:
            return f"{self.folder}{self.suffix}{self.extension}"
        name = self._file_name()
        if len(name) > MAX_NAME and self.module_name is not None:
            name = self._replace(module_name=None, build=None)._file_name()
        return self.folder + name

    def _file_name(self) -> str:
        head = "".join(f"{part}." for part in (self.prefix, self.timestamp_us) if part is not None)
        stem = self.stem
        return f"{head}{self.module_part}{f'.{stem}' if stem else ''}{self.extension}"


STAGE_KINDS = frozenset(
    {FileKind.STAGE, FileKind.STAGE_PROTO, FileKind.STAGE_RIEGELI}
)  # the graph forms lose attributes
_FOLDER_KINDS = frozenset({FileKind.COMPILE_OPTIONS, FileKind.TOPOLOGY, FileKind.INPUT_MLIR, FileKind.SHARDY_MLIR})
REPORT_KINDS = frozenset(
    {
        FileKind.BUFFER_ASSIGNMENT, FileKind.BUFFER_VALUES, FileKind.LIVE_RANGE,
        FileKind.MEMORY_USAGE, FileKind.MEMORY_USAGE_PROTO,
    }
)  # fmt: skip

KEPT_REPORTS = (
    FileKind.BUFFER_ASSIGNMENT, FileKind.BUFFER_VALUES, FileKind.LIVE_RANGE, FileKind.MEMORY_USAGE,
    FileKind.TARGET_CONFIG, FileKind.FUSION_DECISIONS, FileKind.CONFIG, FileKind.DEBUG_OPTIONS,
    FileKind.THUNKS,
)  # fmt: skip
"""Reports that a ledger keeps as they stand, because later questions are answered from them."""

_POINT_EXTENSIONS: tuple[tuple[str, FileKind], ...] = (
    ("-buffer-assignment-values.txt", FileKind.BUFFER_VALUES),
    ("-buffer-assignment.txt", FileKind.BUFFER_ASSIGNMENT),
    ("-live-range.txt", FileKind.LIVE_RANGE),
    ("-memory-usage-report.txt", FileKind.MEMORY_USAGE),
    ("-memory-usage-report.pb.gz", FileKind.MEMORY_USAGE_PROTO),
    ("-memory-usage-report.pb", FileKind.MEMORY_USAGE_PROTO),
    (".top_level.html", FileKind.STAGE_HTML),
    (".hlo.pb.gz", FileKind.STAGE_PROTO),
    (".hlo.pb", FileKind.STAGE_PROTO),
    (".riegeli", FileKind.STAGE_RIEGELI),
    (".txt.gz", FileKind.STAGE),
    (".txt", FileKind.STAGE),
    (".dot", FileKind.STAGE_DOT),
    (".html", FileKind.STAGE_HTML),
    (".url", FileKind.STAGE_URL),
    (".fdo_profile", FileKind.FDO_PROFILE),
)
"""Extensions of one dump point, longest first. Source: ``openxla/xla:xla/service/dump.cc#DumpHloModuleImpl``."""

_BY_LAST_PART: Mapping[str, tuple[tuple[str, FileKind], ...]] = MappingProxyType(
    {
        last: tuple(pair for pair in _POINT_EXTENSIONS if pair[0].endswith(last))
        for last in {extension[extension.rfind(".") :] for extension, _ in _POINT_EXTENSIONS}
    }
)

_BOOKEND = re.compile(
    r"(?:^|\.)((?:sm_[0-9]+(?:\.[0-9]+)?[a-z]?_|gfx[0-9a-z]+(?:_[a-z0-9_]+)?_)?(?:gpu_)?after_optimizations"
    r"|(?:[A-Za-z0-9-]+_)?after_optimizations(?:_(?:before|after)_buffer_assignment)?"
    r"|(?:[A-Za-z0-9-]+_)?before_optimizations"
    r"|(?:before|after)_optimization"
    r"|(?:before|after)_spmd_partitioner"
    r"|(?:before|after)_codegen"
    r"|(?:before|after)_buffer_assignment"
    r"|before_thunks|after_thunks)$"
)
_BOOKEND_ENDS = ("optimizations", "optimization", "partitioner", "codegen", "buffer_assignment", "thunks")
_STEP = re.compile(r"(?:^|\.)([0-9]{4,})\.([^/]+?)\.after_([^/]+?)\.before_([^/]+)$")
_INSIDE = re.compile(r"(?:^|\.)([0-9]{4,})\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)$")
_HEAD = re.compile(r"^(?:(?P<time>[0-9]+)\.)?module_(?P<id>[0-9]+)(?:\.(?P<name>.*?))?(?:\.cl_(?P<build>[0-9]+))?$")
_FUSION_PICTURE = re.compile(r"^(?P<prefix>.+?)\.(?P<head>module_[0-9]{4,}.*)\._fusion(?P<ext>\.(?:html|pyz))$")
_MODULE_FILES: tuple[tuple[re.Pattern[str], FileKind], ...] = tuple(
    (re.compile(rf"^(?P<head>.+?)\.(?P<suffix>{suffix})(?P<ext>{extension})$"), kind)
    for suffix, extension, kind in (
        ("priority_fusion_dump", r"\.(?:txt|pb)", FileKind.FUSION_DECISIONS),
        ("thunk_[a-z_]+|[a-z_]*_thunk_sequence", r"\.(?:txt|pb)", FileKind.THUNKS),
        ("autotune_results", r"\.(?:pbtxt|pb|txt)", FileKind.AUTOTUNING),
        ("gpu_target_config", r"\.(?:pbtxt|pb)", FileKind.TARGET_CONFIG),
        ("config", r"\.(?:pbtxt|pb)", FileKind.CONFIG),
        ("metadata", r"\.(?:textproto|pbtxt|pb)", FileKind.METADATA),
        ("debug_options", "", FileKind.DEBUG_OPTIONS),
        ("flagfile", "", FileKind.FLAG_FILE),
        ("hlo_module_config", r"\.txt", FileKind.CONFIG),
        ("basic_compiler_metadata|execution_options|target_arguments|tpu_comp_env|transfer_stats", r"\.txt",
         FileKind.TPU_TEXT),
        ("execution_[0-9]{4,}", r"\.hlo_unoptimized_snapshot\.(?:pb|txt)", FileKind.UNOPTIMIZED_SNAPSHOT),
        ("execution_[0-9]{4,}", r"\.hlo_snapshot\.pb", FileKind.SNAPSHOT),
        (r"snapshot\.-?[0-9]+", r"\.pb", FileKind.SNAPSHOT),
    )
)  # fmt: skip
"""Files of a module that belong to no dump point: suffix after the module's name, extension, kind; first match wins."""

_KERNEL_FILES: tuple[tuple[re.Pattern[str], FileKind], ...] = tuple(
    (re.compile(rf"^(?P<head>module_[0-9]+)(?:\.(?P<rest>.+?))?(?P<ext>{extension})$"), kind)
    for extension, kind in (
        (r"\.ir-(?:no|with)-opt(?:-noconst)?\.(?:ll|bc)", FileKind.LLVM_IR),
        (r"\.ptx", FileKind.PTX),
        (r"\.(?:cubin|hsaco|sass|fatbin)", FileKind.GPU_BINARY),
        (r"\.(?:triton-passes\.log|(?:[a-z_-]+\.)?(?:ttir|ttgir|llir|tileir)(?:\.txt|\.mlir)?)", FileKind.TRITON),
        (r"(?<=[0-9])\.(?:optimized|priority)\.txt", FileKind.AUTOTUNED_FUSION),
        (r"\.(?:ll|bc)", FileKind.LLVM_IR),
        (r"\.o", FileKind.OBJECT),
        (r"\.mlir", FileKind.EMITTER),
    )
)
"""Files of one kernel, which has any name: where the module's name ends is told by the other files of the module."""
_AUTOTUNED = re.compile(r"^(?P<head>.+?)\.(?P<suffix>(?:gemm|cudnn|custom|triton)?_?fusion_[0-9]+\.[^/]+?)\.txt$")
KERNEL_KINDS = frozenset(kind for _, kind in _KERNEL_FILES)

_FOLDER_FILES: dict[str, FileKind] = {
    "compile_options.textproto": FileKind.COMPILE_OPTIONS,
    "compile_options.pb": FileKind.COMPILE_OPTIONS,
    "topology.textproto": FileKind.TOPOLOGY,
    "topology.pb": FileKind.TOPOLOGY,
    "module.mlir": FileKind.INPUT_MLIR,
    "module.mlirbc": FileKind.INPUT_MLIR,
}
"""Files of the folder that PjRt writes for a module."""

PASS_LOG_FILE = "hloscope_pass_log.txt"
CAPTURE_FILE = "hloscope_capture.json"
_BARE_FILES: dict[str, FileKind] = {PASS_LOG_FILE: FileKind.PASS_LOG, CAPTURE_FILE: FileKind.CAPTURE}
"""Files of a whole dump."""


def is_module_folder(name: str) -> bool:
    """Whether a folder of this name belongs to one module (``module_0001.jit_f``)."""
    return name.startswith("module_") and _HEAD.match(name) is not None


def parse_name(path: str) -> DumpName:
    """The parts of a dump file's path (relative to the dump, ``/`` between folders); never raises."""
    folder, _, name = path.rpartition("/")
    folder = f"{folder}/" if folder else ""
    if folder:
        owner = _in_module_folder(folder, name)
        if owner is not None:
            return owner
    if name in _BARE_FILES:
        stem, _, extension = name.rpartition(".")
        return DumpName(_BARE_FILES[name], suffix=stem, extension=f".{extension}", folder=folder)
    if "module_" not in name:
        return DumpName(FileKind.NOT_UNDERSTOOD, suffix=name, folder=folder)
    found = _at_point(name, folder) or _of_module(name, folder)
    return DumpName(FileKind.NOT_UNDERSTOOD, suffix=name, folder=folder) if found is None else found


def _in_module_folder(folder: str, name: str) -> DumpName | None:
    parts = folder.rstrip("/").split("/")
    head = _HEAD.match(parts[-1]) if parts[-1].startswith("module_") else None
    if head is None:
        return None
    if len(parts) > 1 and parts[-2] == "shardy" and name.endswith((".mlir", ".mlirbc")):
        stem, _, extension = name.rpartition(".")
        return _with_head(FileKind.SHARDY_MLIR, head, folder, suffix=stem, extension=f".{extension}")
    kind = _FOLDER_FILES.get(name)
    if kind is None:
        return None
    stem, _, extension = name.rpartition(".")
    return _with_head(kind, head, folder, suffix=stem, extension=f".{extension}")


def _at_point(name: str, folder: str) -> DumpName | None:
    """A file of a dump point: stage, graph or buffer report."""
    for extension, kind in _BY_LAST_PART.get(name[name.rfind(".") :], ()):
        if name.endswith(extension):
            stem = name[: -len(extension)]
            break
    else:
        return None
    if stem.endswith("._fusion"):
        return None
    match = _last_step(stem)
    if match is not None and (head := _HEAD.match(stem[: match.start()])) is not None:
        step, pipeline, after, before = match.groups()
        return _with_head(
            kind, head, folder, point=Point.STEP, step=int(step), pipeline=pipeline, after=after, before=before,
            extension=extension,
        )  # fmt: skip
    if stem.endswith(_BOOKEND_ENDS) and (match := _BOOKEND.search(stem)) is not None:
        bookend = match.group(1)
        head = _HEAD.match(stem[: match.start()])
        if head is None:
            return None
        return _with_head(kind, head, folder, bookend=bookend, point=bookend_point(bookend), extension=extension)
    match = _INSIDE.search(stem)
    if match is not None and (head := _HEAD.match(stem[: match.start()])) is not None:
        step, pipeline, bookend = match.groups()
        return _with_head(
            kind, head, folder, point=Point.INSIDE, step=int(step), pipeline=pipeline, bookend=bookend,
            extension=extension,
        )  # fmt: skip
    return None


def _last_step(stem: str) -> re.Match[str] | None:
    """The step part that starts furthest right: a module's own name may hold a number of four digits."""
    end = len(stem)
    while True:
        cut = stem.rfind(".after_", 0, end)
        if cut < 0:
            return None
        # The number is the last one before the pipeline's name, so walk the dots leftwards.
        dot = stem.rfind(".", 0, cut)
        while dot >= 0:
            part_start = stem.rfind(".", 0, dot) + 1
            if stem[part_start:dot].isdigit() and dot - part_start >= 4:
                return _STEP.match(stem, part_start - 1 if part_start else 0)
            dot = part_start - 1
        end = cut


def _of_module(name: str, folder: str) -> DumpName | None:
    """A file of a module that belongs to no dump point."""
    picture = _FUSION_PICTURE.match(name)
    if picture is not None:
        head = _HEAD.match(picture["head"])
        if head is None:
            return None
        return _with_head(
            FileKind.FUSION_VISUALIZATION, head, folder, prefix=picture["prefix"], bookend="_fusion",
            extension=picture["ext"],
        )  # fmt: skip
    for pattern, kind in _MODULE_FILES:
        if (match := pattern.match(name)) is not None and (head := _HEAD.match(match["head"])) is not None:
            return _with_head(kind, head, folder, suffix=match["suffix"], extension=match["ext"])
    if (match := _AUTOTUNED.match(name)) is not None and (head := _HEAD.match(match["head"])) is not None:
        return _with_head(FileKind.AUTOTUNED_FUSION, head, folder, suffix=match["suffix"], extension=".txt")
    time = _TIMESTAMP.match(name)
    for pattern, kind in _KERNEL_FILES:
        match = pattern.match(name[time.end() :] if time else name)
        if match is None or (head := _HEAD.match(match["head"])) is None:
            continue
        found = _with_head(
            kind, head, folder, timestamp_us=int(time[1]) if time else None, suffix=match["rest"] or "",
            extension=match["ext"],
        )  # fmt: skip
        return split_kernel(found, found.suffix.split(".", 1)[0])
    return None


_TIMESTAMP = re.compile(r"^([0-9]+)\.")


def split_kernel(name: DumpName, module_name: str) -> DumpName:
    """A kernel's file name with its suffix cut after ``module_name``; unchanged where it does not start with it."""
    whole = ".".join(part for part in (name.module_name, name.build and f"cl_{name.build}", name.suffix) if part)
    if whole == module_name:
        return name._replace(module_name=module_name, build=None, suffix="")
    if not whole.startswith(f"{module_name}."):
        return name
    rest = whole[len(module_name) + 1 :]
    build, _, kernel = rest.partition(".")
    if _BUILD.fullmatch(build):
        return name._replace(module_name=module_name, build=build[3:], suffix=kernel)
    return name._replace(module_name=module_name, build=None, suffix=rest)


_BUILD = re.compile(r"cl_[0-9]+")


def _with_head(
    kind: FileKind,
    head: re.Match[str],
    folder: str,
    *,
    timestamp_us: int | None = None,
    point: Point | None = None,
    step: int | None = None,
    pipeline: str | None = None,
    after: str | None = None,
    before: str | None = None,
    bookend: str | None = None,
    suffix: str = "",
    extension: str = "",
    prefix: str | None = None,
) -> DumpName:
    time, number, name, build = head.group("time", "id", "name", "build")
    module_id = int(number)
    return DumpName(
        kind, int(time) if time else timestamp_us, module_id, name, build, point, step, pipeline, after, before,
        bookend, suffix, extension, prefix, folder, None if number == f"{module_id:04d}" else number,
    )  # fmt: skip


def bookend_point(bookend: str) -> Point:
    """Where in the compile a numberless dump point lies."""
    if bookend.endswith(("before_optimizations", "before_optimization")):
        return Point.BEFORE
    if bookend.endswith(("after_optimizations", "after_optimization")):
        return Point.AFTER
    return Point.NAMED


def target_of(bookend: str) -> str | None:
    """The backend that a bookend names: ``cpu``, ``gpu`` or ``tpu``; None where it names none."""
    if bookend.startswith("cpu_"):
        return "cpu"
    if "gpu_after" in bookend:
        return "gpu"
    if bookend in ("after_codegen", "after_optimizations_before_buffer_assignment"):
        return "tpu"
    return None
