"""What a dump has, feature by feature, and the flag that adds what is not there.

The variable that takes the flags depends on the back end: XLA reads ``XLA_FLAGS``, a TPU's compiler (libtpu)
``LIBTPU_INIT_ARGS``. Source: ``openxla/xla:xla/debug_options_flags.cc``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.dumps.filenames import FileKind, Point

if TYPE_CHECKING:
    from hloscope.core.dumps.directory import Dump, Module


@dataclass(frozen=True, slots=True)
class Presence:
    """One feature that a dump serves, or does not."""

    name: str
    found: int
    """Modules of `of` that have what it takes."""
    of: int
    use: str
    """What it is for."""
    flags: str = ""
    """What makes XLA write it; empty where no flag does."""


def _kinds(*kinds: FileKind) -> Callable[[Module], bool]:
    return lambda module: any(module.files_of(kind) for kind in kinds)


_NEEDS: tuple[tuple[str, Callable[[Module], bool], str, str, frozenset[str]], ...] = (
    ("program", lambda m: m.has_point(Point.BEFORE), "the module before any pass: replay, bisect",
     "--xla_dump_hlo_as_text", frozenset()),
    ("passes", lambda m: m.has_point(Point.STEP), "a stage for each pass: passes, why, bisect, copies",
     "--xla_dump_hlo_pass_re=.*", frozenset()),
    ("result", lambda m: m.has_point(Point.AFTER), "the module that runs: fusion, buffers, copies",
     "--xla_dump_hlo_as_text", frozenset()),
    ("constants", _kinds(FileKind.STAGE_PROTO, FileKind.STAGE_RIEGELI),
     "large constants, which text leaves out: replay, bisect", "--xla_dump_hlo_as_proto", frozenset()),
    ("buffers", _kinds(FileKind.BUFFER_ASSIGNMENT), "the compiler's own places of values: buffers, copies",
     "--xla_dump_hlo_as_text", frozenset()),
    ("pass-times", _kinds(FileKind.METADATA), "how long each pass took: passes", "--xla_dump_module_metadata",
     frozenset(("cpu", "tpu"))),
    ("fusion-decisions", _kinds(FileKind.FUSION_DECISIONS), "why priority-fusion fused or did not: fusion",
     "--xla_dump_hlo_pass_re=.*", frozenset(("cpu", "tpu"))),
    ("code", _kinds(FileKind.LLVM_IR, FileKind.PTX, FileKind.TPU_TEXT), "what is below HLO: bisect", "",
     frozenset()),
    ("flags", _kinds(FileKind.DEBUG_OPTIONS, FileKind.FLAG_FILE), "the flags of the compile", "", frozenset()),
)  # fmt: skip
"""Name, whether a module has it, what for, the flag, and back ends that never write it."""


def presence(dump: Dump) -> list[Presence]:
    """The features, in the order of a compile. Several modules count each for itself."""
    rows: list[Presence] = []
    shared = {file.kind for file in dump.shared_files}
    for name, has, use, flags, never in _NEEDS:
        modules = [one for one in dump.modules if one.target not in never]
        if dump.modules and not modules:
            continue
        found = sum(map(has, modules))
        if name == "flags" and shared & {FileKind.FLAG_FILE, FileKind.DEBUG_OPTIONS, FileKind.CAPTURE}:
            found = len(modules)
        rows.append(Presence(name, found, len(modules), use, flags))
    return rows


def with_variable(dump: Dump, flags: str) -> str:
    """How flags reach the compiler that wrote a dump; both ways where no file tells which one it was."""
    targets = {one.target for one in dump.modules if one.target is not None}
    xla, tpu = f'XLA_FLAGS="{flags}"', f'LIBTPU_INIT_ARGS="{flags}"'
    if targets == {"tpu"}:
        return tpu
    return xla if targets else f"{xla} (on a TPU {tpu})"
