"""What screens ask of the reader beyond the core's own answers: see `hloscope.tui.far`. No Textual here."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.stack_frames import Frame
    from hloscope.core.views.copies import CopyRow
    from hloscope.core.views.data import SourceFrame
    from hloscope.core.views.run import Run


def source_line(run: Run, name: str, stage: int) -> tuple[str, int] | None:
    """Innermost source line of an instruction, where a stage has none by that name of the last that has; None where it
    carries none."""
    index = run.stage_index(stage)
    at = index.find(name)
    frames: Sequence[Frame | SourceFrame] = index.frames(at) if at is not None else ()
    if at is None:
        with suppress(HloscopeError):
            frames = run.why(name).source
    return (frames[0].file, frames[0].line) if frames else None


def first_reader(run: Run, producer: str) -> str:
    """Whoever uses an instruction first; itself where nobody does."""
    facts = run.why(producer)
    return facts.users[0] if facts.users else producer


def copied_shapes(run: Run, row: CopyRow) -> list[tuple[str, str]]:
    """A title and the shape of the copied array, before and after."""
    out: list[tuple[str, str]] = []
    for title, name in (("as it lies before", row.operand), ("as the copy lays it", row.copy)):
        index = run.stage_index(row.cause.stage)
        at = index.find(name)
        if at is None:
            continue
        text = index.shape_text(at)
        with suppress(HloscopeError, ValueError):
            # An asynchronous copy begins with a tuple: what it writes, what it reads, and a context.
            first = next((leaf for _, leaf in Shape.parse(text).leaves()), None)
            text = str(first) if first is not None else text
        out.append((title, text))
    return out


_KERNEL_TARGETS = ("tpu_custom_call", "__gpu$xla.gpu.triton", "triton_kernel_call", "mosaic_gpu")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel of the program's own in the last stage."""

    name: str
    target: str
    file: str | None
    line: int | None


def own_kernels(run: Run) -> list[KernelCall]:
    """Custom calls of the last stage that Pallas, or Triton, makes, with the Python line that each comes from."""
    index = run.stage_index(-1)
    found: list[KernelCall] = []
    for i in range(index.instruction_count):
        if index.opcode(i) != "custom-call":
            continue
        target = _TARGET.search(index.attributes_text(i))
        if target is not None and target[1].startswith(_KERNEL_TARGETS):
            frames = index.frames(i)
            # The innermost frame is the kernel's own caller, pallas_call being jax's.
            at = frames[0] if frames else None
            found.append(KernelCall(index.name(i), target[1], at.file if at else None, at.line if at else None))
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the order in which the module runs."""

    number: int
    name: str
    used: int | None
    """Bytes in use then; None where that is not known."""
    opcode: str = ""
    shape: str = ""
    computation: str = ""
    operands: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order, and what is known of it."""

    steps: tuple[Step, ...]
    thunks: tuple[str, ...] | None
    """Lines of the compiler's thunk sequence; None where it wrote none."""
    peak: int
    """Step at which most memory is in use."""
    origin: str
    """Who says so."""


def schedule(run: Run) -> Schedule:
    """The order of the last stage, with memory where that is known."""
    index = run.stage_index(-1)
    profile: Sequence[tuple[int, int]] = ()
    peak = 0
    try:
        found = run.buffers.map(largest=0)
        order, profile, peak = list(found.steps), found.profile, found.peak_step
        who = "hloscope" if run.source.by_core else "the compiler"
        origin = f"as {who} scheduled it" if index.is_scheduled else "scheduled by hloscope: the module was not"
    except HloscopeError as error:
        order, origin = [], f"memory is not known: {error.message}"
    if not order:
        entry = index.entry
        order = [index.name(i) for i in range(entry.begin, entry.end)] if entry is not None else []
        origin += "" if index.is_scheduled else "; the module is not scheduled, this is the order of its text"
    steps: list[Step] = []
    at, used = 0, None
    for number, name in enumerate(order):
        while at < len(profile) and profile[at][0] <= number:
            used = profile[at][1]
            at += 1
        i = index.find(name)
        if i is None:
            steps.append(Step(number, name, used))
            continue
        steps.append(
            Step(
                number,
                name,
                used,
                index.opcode(i),
                index.shape_text(i),
                index.computation(index.computation_of(i)).name,
                tuple(index.name(j) for j in index.operands(i)),
                tuple(index.name(j) for j in index.users(i)),
            )
        )
    text = run.report(FileKind.THUNKS)
    return Schedule(tuple(steps), tuple(text.splitlines()) if text else None, peak, origin)
