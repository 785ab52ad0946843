"""Reductions and windows of many elements in steps, and select-and-scatter as reduce-window and scatter.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/tree_reduction_rewriter.cc``, ``reduce_window_rewriter.cc``,
``reduce_window_resizer.cc``, ``xla/service/select_and_scatter_expander.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hloscope.core.hlo.attributes import PaddingDimension, Window, WindowDimension
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.engine import RulePass, run_rules
from hloscope.core.passes.expand.counted_loop import inline_reducer, reducer_is_elementwise
from hloscope.core.passes.expand.cpu_library import library_takes_reduction
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_all, is_static_array, rule
from hloscope.core.passes.rules.predicates import reducer_opcode

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_TREE = 32
"""Elements that one step of a reduction takes along a dimension."""
_BASE = 16
"""Elements of a scan that are done in one go."""


def window_of(one: HloInstruction) -> tuple[WindowDimension, ...]:
    """The dimensions of a window."""
    window: Any = one.attr("window")
    return () if window is None else tuple(window.dimensions)


def double_start(one: HloInstruction) -> Refusal | None:
    """Why the initial value of a sum or product may not be folded in twice; None where it changes nothing."""
    neutral = {"add": 0, "multiply": 1}.get(str(reducer_opcode(one.callee("to_apply"))))
    if neutral is None or is_all(one.operand(one.operand_count // 2), neutral):
        return None
    return Refusal("initial_value", f"it is not known to be {neutral}, and every step would take it in")


# ---------------------------------------------------------------- reductions in steps
@rule("tree-reduction", "reduce", "a reduction over more than 32 elements of a dimension → windows of 32, then reduce")
def tree_reduction(one: HloInstruction, options: RuleOptions) -> Answer:
    if not one.shape.is_array or one.operand_count != 2:
        return None
    x, initial = one.operands
    dims = one.dimensions
    if not is_static_array(x.shape) or all(x.shape.dimensions[d] <= _TREE for d in dims):
        return None
    if x.shape.element_type != one.shape.element_type:
        return Refusal("element_types", f"{x.shape.element_type} to {one.shape.element_type}")
    if (refusal := double_start(one)) is not None:
        return refusal

    def make(build: Builder) -> HloInstruction:
        window: list[WindowDimension] = []
        sizes: list[int] = []
        for d, size in enumerate(x.shape.dimensions):
            if d not in dims:
                window.append(WindowDimension(1))
                sizes.append(size)
                continue
            step = min(size, _TREE)
            count = -(-size // step)
            missing = count * step - size
            window.append(WindowDimension(step, step, missing // 2, missing - missing // 2))
            sizes.append(count)
        shape = build.shape(one.shape.element_type, sizes)
        reducer = one.callee("to_apply")
        attrs = {"window": Window(tuple(window))}
        partial = build.make("reduce-window", shape, [x, initial], attrs, called={"to_apply": reducer})
        return build.clone(one, [partial, initial])

    return make


@rule("tree-reduction", "reduce", "as above, but not where XLA:CPU's library computes the reduction")
def tree_reduction_without_library(one: HloInstruction, options: RuleOptions) -> Answer:
    answer = tree_reduction.match(one, options)
    if answer is not None and library_takes_reduction(one):
        return Refusal("library", f"{one.operand(0).shape.element_count} elements")
    return answer


@dataclass(frozen=True)
class TreeReductionRewriter:
    """Long reductions in steps."""

    name = "tree_reduction_rewriter"
    is_pipeline = False
    except_library: bool = False
    """Leave what XLA:CPU's library computes."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation."""
        chosen = tree_reduction_without_library if self.except_library else tree_reduction
        return run_rules((chosen,), RuleOptions(), module, ctx)


# ---------------------------------------------------------------- scans
@dataclass(frozen=True, slots=True)
class Scan:
    """A reduce-window whose windows all start (or end) at the edge."""

    dimension: int
    length: int
    forward: bool
    exclusive: bool


def scan_of(one: HloInstruction) -> Scan | None:
    """The scan that a reduce-window is; None where it is something else."""
    x, window = one.operand(0).shape, window_of(one)
    moving = [d for d, w in enumerate(window) if not w.trivial]
    if len(moving) != 1 or not is_static_array(x):
        return None
    (d,) = moving
    w, n = window[d], x.dimensions[d]
    if w.stride != 1 or w.size != n or w.window_reversal or w.base_dilation != 1 or w.window_dilation != 1:
        return None
    forward = w.padding_low in (n - 1, n) and w.padding_high == 0
    reverse = w.padding_high in (n - 1, n) and w.padding_low == 0
    if not forward and not reverse:
        return None
    return Scan(d, n, forward, (w.padding_low if forward else w.padding_high) == n)


@rule("tree-scan", "reduce-window",
      "a scan of more than 16 elements → scans of 16, a scan of their ends, a sum of both")  # fmt: skip
def tree_scan(one: HloInstruction, options: RuleOptions) -> Answer:
    scan = scan_of(one)
    if scan is None or scan.length <= _BASE:
        return None
    if one.shape.is_tuple and one.callee("to_apply").root.opcode != "tuple":
        return Refusal("reducer", "its root is no tuple")
    if not reducer_is_elementwise(one.callee("to_apply")):
        return Refusal("reducer", "not elementwise")
    kinds = [leaf.element_type for _, leaf in one.shape.leaves()]
    if [o.shape.element_type for o in one.operands] != [*kinds, *kinds]:
        return Refusal("element_types", "operands of other types than the results")
    if (refusal := double_start(one)) is not None:
        return refusal
    return lambda build: _scan_in_two_levels(build, one, scan)


def _reduced(
    build: Builder, one: HloInstruction, xs: list[HloInstruction], window: list[WindowDimension], sizes: list[int]
) -> list[HloInstruction]:
    """A reduce-window of the same reducer and initial values; its results."""
    count = len(xs)
    shapes = [build.shape(x.shape.element_type, sizes) for x in xs]
    made = build.make(
        "reduce-window",
        Shape.tuple_(shapes) if one.shape.is_tuple else shapes[0],
        [*xs, *one.operands[count:]],
        {"window": Window(tuple(window))},
        called={"to_apply": one.callee("to_apply")},
    )
    return [build.element(made, i) for i in range(count)] if one.shape.is_tuple else [made]


def _scan_in_two_levels(build: Builder, one: HloInstruction, scan: Scan) -> HloInstruction:
    count = one.operand_count // 2
    xs, initials = list(one.operands[:count]), one.operands[count:]
    rank = xs[0].shape.rank
    last = rank - 1
    order = list(range(rank))
    order[scan.dimension], order[last] = order[last], order[scan.dimension]
    xs = [build.transpose(x, order) for x in xs]
    columns = -(-scan.length // _BASE)
    missing = columns * _BASE - scan.length
    padding = [PaddingDimension(0, missing if d == last else 0) for d in range(rank)]
    xs = [build.pad(x, initial, padding) for x, initial in zip(xs, initials, strict=True)]
    flat = list(xs[0].shape.dimensions)
    tiled = [*flat[:last], columns, _BASE]
    tiles = [build.reshape(x, tiled) for x in xs]
    edge = _BASE - 1
    inner = WindowDimension(_BASE, 1, edge, 0) if scan.forward else WindowDimension(_BASE, 1, 0, edge)
    ones = [WindowDimension(1)]
    outer = _reduced(build, one, tiles, [*ones * rank, inner], tiled)
    starts, limits = [0] * (rank + 1), list(tiled)
    if scan.forward:
        starts[rank] = edge
    else:
        limits[rank] = 1
    ends = [build.reshape(build.slice(x, starts, limits), tiled[:rank]) for x in outer]
    across = WindowDimension(columns, 1, columns, 0) if scan.forward else WindowDimension(columns, 1, 0, columns)
    sums = _reduced(build, one, ends, [*ones * last, across], [*flat[:last], columns + 1])
    first = 0 if scan.forward else 1
    lows, highs = [*[0] * last, first], [*flat[:last], columns + first]
    carried = [build.broadcast(build.slice(x, lows, highs), range(rank), tiled) for x in sums]
    joined = inline_reducer(build, one.callee("to_apply"), [*outer, *carried])
    results: list[HloInstruction] = []
    for x, initial, source in zip(joined, initials, xs, strict=True):
        flatter = build.transpose(build.reshape(x, source.shape.dimensions), order)
        cut = build.slice(
            flatter,
            [0] * rank,
            [scan.length if d == scan.dimension else size for d, size in enumerate(flatter.shape.dimensions)],
        )
        if scan.exclusive:
            sides = (1, 0) if scan.forward else (0, 1)
            around = [PaddingDimension(*(sides if d == scan.dimension else (0, 0))) for d in range(rank)]
            cut = build.pad(cut, initial, around)
        results.append(cut)
    return build.make("tuple", one.shape, results) if one.shape.is_tuple else results[0]


@dataclass(frozen=True)
class ReduceWindowRewriter(RulePass):
    """Scans in two levels."""

    name = "reduce-window-rewriter"
    rules = (tree_scan,)


@rule("window-of-vector", "reduce-window", "a window over a vector → over a matrix of one column")
def window_of_vector(one: HloInstruction, options: RuleOptions) -> Answer:
    count = one.operand_count // 2
    if one.operand(0).shape.rank != 1 or not is_static_array(one.operand(0).shape):
        return None

    def make(build: Builder) -> HloInstruction:
        xs = [build.reshape(x, [*x.shape.dimensions, 1]) for x in one.operands[:count]]
        shapes = [leaf for _, leaf in one.shape.leaves()]
        sizes = [*shapes[0].dimensions, 1]
        found = _reduced(build, one, xs, [*window_of(one), WindowDimension(1)], sizes)
        flat = [build.reshape(x, shapes[0].dimensions) for x in found]
        return build.make("tuple", one.shape, flat) if one.shape.is_tuple else flat[0]

    return make


@dataclass(frozen=True)
class ReduceWindowResizer(RulePass):
    """Windows over vectors as windows over matrices."""

    name = "reduce-window-resizer"
    rules = (window_of_vector,)


# ---------------------------------------------------------------- select and scatter
@rule("expand-select-and-scatter", "select-and-scatter",
      "select-and-scatter → reduce-window of the picks, then scatter")  # fmt: skip
def expand_select_and_scatter(one: HloInstruction, options: RuleOptions) -> Answer:
    x, source, initial = one.operands
    if not is_static_array(x.shape) or not is_static_array(source.shape):
        return None
    select = one.callee("select")
    if not reducer_is_elementwise(select):
        return Refusal("selector", "not elementwise")

    def make(build: Builder) -> HloInstruction:
        rank = x.shape.rank
        iotas = [build.iota("s32", x.shape.dimensions, d) for d in range(rank)]
        reducer = _pick(build, select, x.shape, rank)
        minus = build.scalar("s32", -1)
        shapes = [source.shape.with_element_type(k) for k in (x.shape.element_type, *["s32"] * rank)]
        found = build.make(
            "reduce-window",
            Shape.tuple_(shapes),
            [x, *iotas, initial, *[minus] * rank],
            {"window": one.raw_attrs["window"]},
            called={"to_apply": reducer},
        )
        sizes = [*source.shape.dimensions, 1]
        places = build.concatenate([build.reshape(build.element(found, d + 1), sizes) for d in range(rank)], rank)
        every = tuple(range(rank))
        return build.make(
            "scatter",
            one.shape,
            [build.broadcast_scalar(initial, one.shape), places, source],
            {
                "update_window_dims": (),
                "inserted_window_dims": every,
                "scatter_dims_to_operand_dims": every,
                "index_vector_dim": rank,
            },
            called={"to_apply": one.callee("scatter")},
        )

    return make


def _pick(build: Builder, select: HloComputation, shape: Shape, rank: int) -> HloComputation:
    """A reducer of (value, place…) pairs that keeps the one that the selector takes; -1 marks no place."""
    made = build.computation.module.add_computation(HloComputation(f"{select.name}.reduce_window"), first=True)
    inner = build.inside(made)
    value, place = build.shape(shape.element_type, ()), build.shape("s32", ())
    groups: list[list[HloInstruction]] = []
    for side in range(2):
        kinds = [value, *[place] * rank]
        first = side * (rank + 1)
        groups.append(
            [
                made.add(HloInstruction("parameter", kind, name="pick", payload=str(first + i)))
                for i, kind in enumerate(kinds)
            ]
        )
    left, right = groups
    nowhere = inner.scalar("s32", -1)
    left_set, right_set = (inner.compare(side[1], nowhere, "NE") for side in groups)
    (chosen,) = inline_reducer(inner, select, [left[0], right[0]])
    keep = inner.binary("or", inner.binary("and", chosen, left_set), inner.unary("not", right_set))
    made.set_root(inner.tuple([inner.select(keep, a, b) for a, b in zip(left, right, strict=True)]))
    return made


@dataclass(frozen=True)
class SelectAndScatterExpander:
    """select-and-scatter written out."""

    name = "select_and_scatter_expander"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation."""
        return run_rules((expand_select_and_scatter,), RuleOptions(), module, ctx)
