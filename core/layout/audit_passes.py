"""How far the passes behind layout assignment agree with a real dump: reshapes as bitcasts, copies moved, normal forms.

Each runs on the stage before the real one. An instruction agrees when its computation has one with the same opcode,
shape with layout, attributes and operands, whose operands agree in turn; names do not count.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hloscope.core.analysis.agreement import Agreement
from hloscope.core.analysis.real_compile import stages_around
from hloscope.core.errors import DumpError
from hloscope.core.hlo.hashing import IGNORED
from hloscope.core.layout.move_copy_to_users import MoveCopyToUsers
from hloscope.core.layout.normalization import LayoutNormalization
from hloscope.core.layout.reshape_decomposer import ReshapeDecomposer
from hloscope.core.passes.context import PassContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.core.analysis.real_compile import PassPair, RealCompile
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.interface import HloPass

PASSES: Mapping[str, tuple[HloPass, int]] = {
    "reshape_decomposer": (ReshapeDecomposer(), 1),
    "move_copy_to_users": (MoveCopyToUsers(), 25),
    "normalization": (LayoutNormalization(), 1),
}
"""Figure -> the pass and how often it is run at most (a fixed point in XLA)."""

_NOTES = ("sharding", "frontend_attributes")
"""Attributes that say something of a value for other passes; not compared."""

Key = tuple[str, int]
"""Computation, and what an instruction computes."""


def audit_passes(compile_: RealCompile) -> tuple[dict[str, Agreement], list[str]]:
    """Replay the passes wherever the dump shows one from both sides; notes say what could not be compared."""
    figures: dict[str, Agreement] = {}
    notes: list[str] = []
    for figure, (one, times) in PASSES.items():
        try:
            around = stages_around(compile_, one.name)
        except DumpError:
            continue
        shown = [pair for pair in around if _is_input(compile_, pair)]
        if len(shown) < len(around):
            notes.append(f"{len(around) - len(shown)} runs of {one.name} without the stage just before them")
        found = figures.setdefault(figure, Agreement())
        for pair in shown:
            ours, real = compile_.module(pair.before.index), compile_.module(pair.after.index)
            ctx = PassContext(target="gpu")
            for _ in range(times):
                if not one.run(ours, ctx):
                    break
            _compare(found, ours, real)
    return figures, notes


def _is_input(compile_: RealCompile, pair: PassPair) -> bool:
    """Whether the stage before is what the pass saw: its file says so, or the pipeline was dumped from its start."""
    before, after = pair.before, pair.after
    return before.next_pass == after.pass_name or any(
        stage.pipeline == after.pipeline and stage.pass_name == "pipeline-start"
        for stage in compile_.stages[: before.index + 1]
    )


def _compare(figure: Agreement, ours: HloModule, real: HloModule) -> None:
    mine, theirs = _keys(ours), _keys(real)
    left = Counter(mine.values())
    for instruction, key in theirs.items():
        found = left[key] > 0
        left[key] -= found
        said = f"{instruction.opcode} {instruction.shape} in %{instruction.parent.name}"
        figure.add(instruction.name, said if found else "none", said, equal=found)
    extra = Counter(mine.values()) - Counter(theirs.values())
    for instruction, key in mine.items():
        if extra[key] > 0:
            extra[key] -= 1
            figure.add(instruction.name, f"{instruction.opcode} {instruction.shape}", "none", equal=False)


def _keys(module: HloModule) -> dict[HloInstruction, Key]:
    keys: dict[HloInstruction, Key] = {}
    for computation in module.computations:
        for one in computation.post_order():
            attrs = sorted(
                f"{key}={text}"
                for key, text in one.raw_attrs.items()
                if text is not None and key not in IGNORED and key not in _NOTES
            )
            shape = one.shape.to_text(index_comments=False)
            operands = tuple(keys[operand] for operand in one.operands)
            keys[one] = (computation.name, hash((one.opcode, shape, one.payload, *attrs, operands)))
    return keys
