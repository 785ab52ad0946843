"""Running our layout assignment where a real compile ran its own: the stage before it in, compared with the one after.

Real compilers keep instructions in the order in which they were added, which text loses; it is restored from the
stages before the pass as far as they tell it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.real_compile import stages_around
from hloscope.core.dumps.proto_order import instruction_places
from hloscope.core.errors import HloscopeError, UnsupportedError
from hloscope.core.layout.assignment import TPUS, assign_layouts, backend_of
from hloscope.core.layout.conditions import of_compile
from hloscope.core.layout.list_order import ListOrder
from hloscope.core.passes.context import PassContext

if TYPE_CHECKING:
    from hloscope.core.analysis.real_compile import PassPair, RealCompile
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.layout.assignment import Assignment
    from hloscope.core.layout.backend import Backend

PASS = "layout-assignment"

MAX_HISTORY_BYTES = 128 << 20
"""Text of earlier stages that is read for the list order; beyond, only the first and last stages are."""

FEW_STAGES = 3
"""Stages up to the pass, the one before it included, that leave out most of what happened."""

PIPELINES = {"layout assignment": "gpu", "HLO passes through layout assignment": "cpu"}
"""Pipeline that holds the pass -> backend."""


def backend_of_target(target: str | None) -> str:
    """``cpu`` or ``gpu``; any other name than those of the CPU and of TPUs names a GPU or a file that describes one.

    Raises UnsupportedError for a TPU and where no target is known.
    """
    if not target or target in TPUS:
        raise UnsupportedError(f"layout assignment for {target or 'an unknown target'} is not open source")
    return "cpu" if target in ("cpu", "core") else "gpu"


@dataclass(frozen=True, slots=True)
class Replay:
    """One run of the pass, ours beside the real one."""

    pair: PassPair
    ours: HloModule
    real: HloModule
    shapes_before: dict[str, Shape]
    """Shapes of the instructions in the stage before, by name."""
    assignment: Assignment
    notes: tuple[str, ...]


def replays(compile_: RealCompile, *, remember: bool = False) -> list[Replay]:
    """Every run of the pass that the dump shows from both sides.

    Raises DumpError where there is none, UnsupportedError for a target whose constraints are not known.
    """
    return [replay(compile_, pair, remember=remember) for pair in stages_around(compile_, PASS)]


def backend_name(compile_: RealCompile, pair: PassPair) -> str:
    """The backend whose constraints the pass used. Raises UnsupportedError where they are not known."""
    known = PIPELINES.get(pair.after.pipeline.replace("_", " "))
    if known is not None and compile_.target not in TPUS:
        # Our own pipelines have XLA's names, which tell the backend even where only the host's name was kept.
        return known
    try:
        return backend_of_target(compile_.target)
    except UnsupportedError as error:
        raise UnsupportedError(error.message, path=compile_.path) from None


def replay(compile_: RealCompile, pair: PassPair, *, remember: bool = False) -> Replay:
    """Run the pass on the stage before `pair`."""
    target = backend_name(compile_, pair)
    conditions = of_compile(compile_)
    backend = conditions.on(_named(compile_.target, target))
    ours = compile_.module(pair.before.index)
    notes = (*conditions.notes, *restore_list_order(compile_, pair, ours))
    before = {one.name: one.shape for one in ours.instructions()}
    ctx = PassContext(target=target)
    assignment = assign_layouts(ours, backend, ctx, remember=remember)
    return Replay(pair, ours, compile_.module(pair.after.index), before, assignment, notes)


def _named(target: str | None, backend: str) -> Backend:
    """The backend of the GPU that the target names, where it names one that is known."""
    if backend == "gpu" and target is not None:
        try:
            return backend_of(target)
        except HloscopeError:
            pass
    return backend_of(backend)


def restore_list_order(compile_: RealCompile, pair: PassPair, module: HloModule) -> tuple[str, ...]:
    """Put the module's instructions into the order in which they were made; notes say what could not be known."""
    last = pair.before.index
    first = next((one.index for one in compile_.stages if one.pass_name == "before_optimizations"), 0)
    earlier = list(range(first if first < last else 0, last + 1))
    late = compile_.stages[earlier[0]].pass_name != "before_optimizations"
    order = ListOrder(coarse=len(earlier) <= FEW_STAGES, late=late)
    read = 0
    seen: str | None = None
    for index in earlier:
        if read > MAX_HISTORY_BYTES and index != last:
            continue
        text = compile_.text(index)
        read += len(text)
        if text != seen:
            order.see(text)
        seen = text
    data = compile_.proto(last)
    order.restore(module, instruction_places(data) if data is not None else None)
    if len(earlier) == 1 and data is None:
        return ("no earlier stage was dumped, so the order in which instructions were made is not known",)
    return ()
