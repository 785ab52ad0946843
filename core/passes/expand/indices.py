"""Gathers, scatters and dynamic slices in their simple forms.

Source: ``openxla/xla:xla/service/batched_gather_scatter_normalizer.cc``, ``gather_expander.cc``,
``scatter_expander.cc``, ``gather_scatter_utils.cc``, ``scatter_simplifier.cc``,
``xla/hlo/transforms/simplifiers/gather_simplifier.cc``,
``xla/hlo/transforms/expanders/dynamic_index_splitter.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from hloscope.core.passes.engine import RulePass, run_rules
from hloscope.core.passes.expand.counted_loop import counted_loop, inline_reducer
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.passes.context import PassContext


def ints(one: HloInstruction, name: str) -> tuple[int, ...]:
    """A list attribute; empty where it is absent."""
    return tuple(one.attr(name) or ())


def scatter_parts(one: HloInstruction) -> tuple[tuple[HloInstruction, ...], HloInstruction, tuple[HloInstruction, ...]]:
    """Operands, indices and updates of a scatter."""
    count = one.operand_count // 2
    return one.operands[:count], one.operand(count), one.operands[count + 1 :]


# ---------------------------------------------------------------- batching dimensions
def _joined_indices(build: Builder, indices: HloInstruction, vector: int, batching: tuple[int, ...]) -> HloInstruction:
    """Indices with an iota for each batching dimension in front, along the index vector."""
    kind = indices.shape.type
    needed = max(indices.shape.dimensions[d] for d in batching)
    room = (1 << (kind.bits - (kind.kind == "int"))) - 1
    if needed > room:
        indices = build.convert(indices, "s32" if needed < 1 << 31 else "s64")
    if vector == indices.shape.rank:
        indices = build.reshape(indices, [*indices.shape.dimensions, 1])
    sizes = list(indices.shape.dimensions)
    sizes[vector] = 1
    iotas = [build.iota(indices.shape.element_type, sizes, d) for d in batching]
    return build.concatenate([*iotas, indices], vector)


@rule("batched-gather", "gather", "gather with batching dimensions → plain gather with iotas among its indices")
def batched_gather(one: HloInstruction, options: RuleOptions) -> Answer:
    batching = ints(one, "operand_batching_dims")
    if not batching:
        return None
    starts = ints(one, "start_index_map")
    if set(batching) & set(starts):
        return Refusal("batching_overlap", f"start_index_map {starts} holds a batching dimension of {batching}")
    along = ints(one, "start_indices_batching_dims")
    order = (*batching, *starts)

    def make(build: Builder) -> HloInstruction:
        indices = _joined_indices(build, one.operand(1), int(one.attr("index_vector_dim")), along)
        made = build.clone(one, [one.operand(0), indices])
        made.set_attr("collapsed_slice_dims", tuple(sorted((*ints(one, "collapsed_slice_dims"), *batching))))
        made.set_attr("start_index_map", order)
        made.set_attr("operand_batching_dims", None)
        made.set_attr("start_indices_batching_dims", None)
        if one.attr("indices_are_sorted") and not (_sorted(along) and _sorted(order)):
            made.set_attr("indices_are_sorted", None)
        return made

    return make


def _sorted(values: tuple[int, ...]) -> bool:
    return list(values) == sorted(values)


@rule("batched-scatter", "scatter", "scatter with batching dimensions → plain scatter with iotas among its indices")
def batched_scatter(one: HloInstruction, options: RuleOptions) -> Answer:
    batching = ints(one, "input_batching_dims")
    if not batching:
        return None
    operands, indices, updates = scatter_parts(one)
    along, starts = ints(one, "scatter_indices_batching_dims"), ints(one, "scatter_dims_to_operand_dims")
    order = (*batching, *starts)

    def make(build: Builder) -> HloInstruction:
        joined = _joined_indices(build, indices, int(one.attr("index_vector_dim")), along)
        made = build.clone(one, [*operands, joined, *updates])
        made.set_attr("inserted_window_dims", tuple(sorted((*ints(one, "inserted_window_dims"), *batching))))
        made.set_attr("scatter_dims_to_operand_dims", order)
        made.set_attr("input_batching_dims", None)
        made.set_attr("scatter_indices_batching_dims", None)
        if one.attr("indices_are_sorted") and not (_sorted(along) and _sorted(order)):
            made.set_attr("indices_are_sorted", None)
        return made

    return make


@dataclass(frozen=True)
class BatchedGatherScatterNormalizer(RulePass):
    """Batching dimensions written out."""

    name = "batched_gather_scatter_normalizer"
    rules = (batched_gather, batched_scatter)


# ---------------------------------------------------------------- one form
def matrix_of_indices(build: Builder, indices: HloInstruction, vector: int) -> HloInstruction:
    """Indices as a matrix whose rows are index vectors."""
    rank = indices.shape.rank
    if vector == rank:
        indices = build.reshape(indices, [*indices.shape.dimensions, 1])
    elif vector < rank - 1:
        indices = build.transpose(indices, [*(d for d in range(rank) if d != vector), vector])
    sizes = indices.shape.dimensions
    return build.reshape(indices, [prod(sizes[:-1]), sizes[-1]])


def index_sizes(one: HloInstruction, indices: HloInstruction) -> tuple[int, ...]:
    """Sizes of the indices without the index vector."""
    vector = int(one.attr("index_vector_dim"))
    return tuple(size for d, size in enumerate(indices.shape.dimensions) if d != vector)


@rule("gather-simple", "gather", "gather → gather of a matrix of indices without collapsed dimensions")
def gather_simple(one: HloInstruction, options: RuleOptions) -> Answer:
    x, indices = one.operands
    if ints(one, "operand_batching_dims") or not is_static_array(one.shape) or not is_static_array(indices.shape):
        return None
    if 0 in ints(one, "slice_sizes"):
        return lambda build: build.scalar_like(one.shape, 0)
    if not x.shape.rank:
        return lambda build: build.broadcast_scalar(x, one.shape)
    offset, collapsed, sizes = ints(one, "offset_dims"), ints(one, "collapsed_slice_dims"), ints(one, "slice_sizes")
    vector = int(one.attr("index_vector_dim"))
    simple = indices.shape.rank == 2 and vector == 1 and not collapsed
    if simple and offset and offset[0] == 1 and offset[-1] == len(offset):
        return None

    def make(build: Builder) -> HloInstruction:
        rows = matrix_of_indices(build, indices, vector)
        count = rows.shape.dimensions[0]
        shape = build.shape(one.shape.element_type, [count, *sizes])
        found = build.clone(one, [x, rows], shape)
        found.set_attr("offset_dims", tuple(range(1, x.shape.rank + 1)))
        found.set_attr("collapsed_slice_dims", ())
        found.set_attr("index_vector_dim", 1)
        kept = [size for d, size in enumerate(sizes) if d not in collapsed]
        found = build.reshape(found, [count, *kept])
        batch = index_sizes(one, indices)
        found = build.reshape(found, [*batch, *kept])
        order: list[int] = []
        window, row = len(batch), 0
        for d in range(one.shape.rank):
            if d in offset:
                order.append(window)
                window += 1
            else:
                order.append(row)
                row += 1
        return build.transpose(found, order)

    return make


@dataclass(frozen=True)
class GatherSimplifier(RulePass):
    """All gathers in one form."""

    name = "gather_simplifier"
    rules = (gather_simple,)


@rule("scatter-simple", "scatter", "scatter → scatter of a matrix of indices whose windows have the operand's rank")
def scatter_simple(one: HloInstruction, options: RuleOptions) -> Answer:
    operands, indices, updates = scatter_parts(one)
    if ints(one, "input_batching_dims") or any(not is_static_array(o.shape) for o in one.operands):
        return None
    window, inserted = ints(one, "update_window_dims"), ints(one, "inserted_window_dims")
    vector = int(one.attr("index_vector_dim"))
    rank = operands[0].shape.rank
    batch = updates[0].shape.rank - len(window)
    simple = vector + 1 == indices.shape.rank and batch <= 1 and 0 not in window and _sorted(window) and not inserted
    if rank == 0:
        return Refusal("scalar_operand", f"{len(operands)} operands of rank 0")
    if simple and batch == 1:
        return None

    def flat(build: Builder, update: HloInstruction) -> HloInstruction:
        order = [d for d in range(update.shape.rank) if d not in window]
        moved = build.transpose(update, [*order, *window])
        sizes = [*moved.shape.dimensions[batch:]]
        for d in inserted:
            sizes.insert(d, 1)
        return build.reshape(moved, [prod(moved.shape.dimensions[:batch]), *sizes])

    def make(build: Builder) -> HloInstruction:
        rows = matrix_of_indices(build, indices, vector)
        made = build.clone(one, [*operands, rows, *(flat(build, u) for u in updates)])
        made.set_attr("update_window_dims", tuple(range(1, rank + 1)))
        made.set_attr("inserted_window_dims", ())
        made.set_attr("index_vector_dim", 1)
        return made

    return make


@dataclass(frozen=True)
class ScatterSimplifier(RulePass):
    """All scatters in one form."""

    name = "scatter_simplifier"
    rules = (scatter_simple,)


# ---------------------------------------------------------------- expansion
def _trip_count(one: HloInstruction, indices: HloInstruction) -> int:
    return prod(index_sizes(one, indices))


def _operand_index(
    build: Builder, row: HloInstruction, rank: int, starts: tuple[int, ...]
) -> list[HloInstruction]:
    """The scalar starts of a slice for one index vector: 0 where the vector says nothing."""
    zero: HloInstruction | None = None
    found: list[HloInstruction] = []
    for d in range(rank):
        if d in starts:
            at = starts.index(d)
            found.append(build.reshape(build.slice(row, [at], [at + 1]), ()))
            continue
        if zero is None:
            zero = build.scalar(row.shape.element_type, 0)
        found.append(zero)
    return found


def _fits(
    build: Builder, row: HloInstruction, starts: tuple[int, ...], whole: Shape, window: Shape
) -> HloInstruction:
    """A pred: the window at an index vector lies inside. One that does not is left out, not moved."""
    if not whole.rank:
        return build.scalar("pred", True)
    kind, places = row.shape.type, [starts.index(d) if d in starts else None for d in range(whole.rank)]
    zero = build.shape(kind.name, [1])
    parts = [build.scalar_like(zero, 0) if at is None else build.slice(row, [at], [at + 1]) for at in places]
    index = build.concatenate(parts, 0)
    largest = (1 << kind.bits - (kind.kind == "int")) - 1
    last = [min(x - w, largest) for x, w in zip(whole.dimensions, window.dimensions, strict=True)]
    not_before = build.compare(build.scalar_like(index.shape, 0), index, "LE")
    not_behind = build.compare(build.constant(last, index.shape), index, "GE")
    inside = build.binary("and", not_before, not_behind)
    return build.reduce(inside, build.scalar("pred", True), [0], build.reducer("and", "pred"))


def _row(build: Builder, rows: HloInstruction, number: HloInstruction | None) -> HloInstruction:
    """An index vector of the matrix; the only one where no number is given."""
    width = rows.shape.dimensions[1]
    if number is None:
        return build.reshape(rows, (width,))
    zero = build.scalar(number.shape.element_type, 0)
    return build.reshape(build.dynamic_slice(rows, [number, zero], [1, width]), (width,))


@rule("expand-gather", "gather", "gather of one slice → dynamic-slice; of the whole operand → broadcast")
def expand_simple_gather(one: HloInstruction, options: RuleOptions) -> Answer:
    x, indices = one.operands
    sizes = ints(one, "slice_sizes")
    if not is_static_array(one.shape) or not one.shape.element_count or ints(one, "operand_batching_dims"):
        return None
    if sizes == x.shape.dimensions:
        kept = [size for d, size in enumerate(sizes) if d not in ints(one, "collapsed_slice_dims")]
        return lambda build: build.make(
            "broadcast", one.shape, [build.reshape(x, kept)], {"dimensions": ints(one, "offset_dims")}
        )
    if _trip_count(one, indices) != 1:
        return None
    return lambda build: _gathered(build, one, build.reshape(_slice_at(build, one, None), _kept(one)))


def _kept(one: HloInstruction) -> list[int]:
    return [s for d, s in enumerate(ints(one, "slice_sizes")) if d not in ints(one, "collapsed_slice_dims")]


def _slice_at(build: Builder, one: HloInstruction, number: HloInstruction | None) -> HloInstruction:
    rows = matrix_of_indices(build, one.operand(1), int(one.attr("index_vector_dim")))
    row = _row(build, rows, number)
    starts = _operand_index(build, row, one.operand(0).shape.rank, ints(one, "start_index_map"))
    return build.dynamic_slice(one.operand(0), starts, ints(one, "slice_sizes"))


def _gathered(build: Builder, one: HloInstruction, found: HloInstruction) -> HloInstruction:
    """Slices stacked along dimension 0 (or a single one) in the gather's own arrangement."""
    batch = index_sizes(one, one.operand(1))
    kept = _kept(one)
    found = build.reshape(found, [*batch, *kept])
    offset = ints(one, "offset_dims")
    order: list[int] = []
    window, row = len(batch), 0
    for d in range(one.shape.rank):
        order.append(window if d in offset else row)
        window, row = window + (d in offset), row + (d not in offset)
    return build.transpose(found, order)


@rule("expand-gather-loop", "gather", "gather → loop of dynamic-slices")
def expand_gather(one: HloInstruction, options: RuleOptions) -> Answer:
    if not is_static_array(one.shape) or not one.shape.element_count or ints(one, "operand_batching_dims"):
        return None
    count, kept = _trip_count(one, one.operand(1)), _kept(one)
    rank, sizes = one.operand(0).shape.rank, ints(one, "slice_sizes")

    def make(build: Builder) -> HloInstruction:
        rows = matrix_of_indices(build, one.operand(1), int(one.attr("index_vector_dim")))
        whole = build.scalar_like(build.shape(one.shape.element_type, [count, *kept]), 0)

        def body(inner: Builder, number: HloInstruction, state: list[HloInstruction]) -> list[HloInstruction]:
            x, index, found = state
            starts = _operand_index(inner, _row(inner, index, number), rank, ints(one, "start_index_map"))
            piece = inner.reshape(inner.dynamic_slice(x, starts, sizes), [1, *kept])
            zero = inner.scalar(number.shape.element_type, 0)
            return [x, index, inner.dynamic_update_slice(found, piece, [number, *[zero] * len(kept)])]

        results = counted_loop(build, count, [one.operand(0), rows, whole], body)
        return _gathered(build, one, results[2])

    return make


@rule("expand-scatter", "scatter", "scatter of one window → dynamic-update-slice where it fits")
def expand_simple_scatter(one: HloInstruction, options: RuleOptions) -> Answer:
    if _trip_count(one, scatter_parts(one)[1]) != 1:
        return None
    return _scatter_loop(one)


@rule("expand-scatter-loop", "scatter", "scatter → loop of dynamic-update-slices")
def expand_scatter(one: HloInstruction, options: RuleOptions) -> Answer:
    return _scatter_loop(one)


def _scatter_loop(one: HloInstruction) -> Answer:
    operands, indices, updates = scatter_parts(one)
    if ints(one, "input_batching_dims") or any(not is_static_array(o.shape) for o in one.operands):
        return None
    if not updates[0].shape.element_count:
        return operands[0] if len(operands) == 1 else lambda build: build.make("tuple", one.shape, operands)
    count = _trip_count(one, indices)
    window, inserted = ints(one, "update_window_dims"), ints(one, "inserted_window_dims")
    batch = updates[0].shape.rank - len(window)
    rank = operands[0].shape.rank
    many = len(operands)

    def flat(build: Builder, update: HloInstruction) -> HloInstruction:
        order = [d for d in range(update.shape.rank) if d not in window]
        moved = build.transpose(update, [*order, *window])
        sizes = [*moved.shape.dimensions[batch:]]
        for d in inserted:
            sizes.insert(d, 1)
        return build.reshape(moved, [count, *sizes])

    def step(inner: Builder, number: HloInstruction, state: list[HloInstruction]) -> list[HloInstruction]:
        row = _row(inner, state[many], number)
        along = ints(one, "scatter_dims_to_operand_dims")
        starts = _operand_index(inner, row, rank, along)
        zero = inner.scalar(number.shape.element_type, 0)
        pieces: list[HloInstruction] = []
        for update in state[many + 1 :]:
            sizes = update.shape.dimensions[1:]
            piece = inner.dynamic_slice(update, [number, *[zero] * rank], [1, *sizes])
            pieces.append(inner.reshape(piece, sizes))
        old = [inner.dynamic_slice(x, starts, pieces[0].shape.dimensions) for x in state[:many]]
        valid = _fits(inner, row, along, operands[0].shape, pieces[0].shape)
        news = inner_values(inner, [*old, *pieces])
        made = [
            inner.dynamic_update_slice(x, inner.select(valid, new, o), starts)
            for x, new, o in zip(state[:many], news, old, strict=True)
        ]
        return [*made, *state[many:]]

    def inner_values(inner: Builder, args: list[HloInstruction]) -> list[HloInstruction]:
        return inline_reducer(inner, one.callee("to_apply"), args)

    def make(build: Builder) -> HloInstruction:
        rows = matrix_of_indices(build, indices, int(one.attr("index_vector_dim")))
        state = [*operands, rows, *(flat(build, u) for u in updates)]
        results = counted_loop(build, count, state, step)[:many]
        return results[0] if many == 1 else build.make("tuple", one.shape, results)

    return make


@dataclass(frozen=True)
class GatherExpander:
    """Gathers without a loop (or, with ``all``, every gather) written out."""

    name = "gather_expander"
    is_pipeline = False
    all: bool = False
    """Expand into loops as well."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation."""
        rules = (expand_simple_gather, expand_gather) if self.all else (expand_simple_gather,)
        return run_rules(rules, RuleOptions(), module, ctx)


@dataclass(frozen=True)
class ScatterExpander:
    """Scatters of one window (or, with ``all``, every scatter) written out."""

    name = "scatter_expander"
    is_pipeline = False
    all: bool = False
    """Expand into loops as well."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation."""
        return run_rules((expand_scatter if self.all else expand_simple_scatter,), RuleOptions(), module, ctx)


# ---------------------------------------------------------------- dynamic indices
@rule("split-index", "dynamic-slice dynamic-update-slice", "an index vector → one scalar for each dimension")
def split_index(one: HloInstruction, options: RuleOptions) -> Answer:
    first = 1 if one.opcode == "dynamic-slice" else 2
    rank = one.operand(0).shape.rank
    if not rank:
        return one.operand(first - 1)
    vector: Any = one.operand(first) if one.operand_count > first else None
    if vector is None or vector.shape.is_scalar:
        return None

    def make(build: Builder) -> HloInstruction:
        starts = [build.reshape(build.slice(vector, [d], [d + 1]), ()) for d in range(rank)]
        return build.clone(one, [*one.operands[:first], *starts])

    return make


@dataclass(frozen=True)
class DynamicIndexSplitter(RulePass):
    """Scalar starts for dynamic slices."""

    name = "dynamic-index-splitter"
    rules = (split_index,)
