"""Shapes of collectives. Source: ``openxla/xla:xla/service/shape_inference.cc#InferAllGatherShape,
#InferAllToAllShape, #InferReduceScatterShape, #InferCollectivePermuteStartShape`` and their kin,
``xla/service/collective_ops_utils.cc#GetSubgroupSize, #GetCollectiveOpGroupMode``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from hloscope.core.hlo.infer_shape.base import InferenceError, expect_array, flags_of, human, invalid, make, scalar
from hloscope.core.hlo.shape import UNBOUNDED, Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.infer_shape.base import Request

GroupMode = Literal["cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_id"]
"""What the integers in replica groups are."""

_HAS_GLOBAL_IDS = frozenset({"all-gather", "all-gather-start", "all-reduce", "all-reduce-start", "reduce-scatter"})


def group_mode(request: Request) -> GroupMode:
    """What the ids of an instruction's groups mean. Raises InferenceError for global ids without a channel."""
    channel = request.attr("channel_id") is not None
    # These opcodes always say it, false where the text leaves it out; the others never do.
    given = bool(request.attr("use_global_device_ids", False)) if request.opcode in _HAS_GLOBAL_IDS else None
    if not channel:
        if given:
            invalid("Cannot have use_global_device_ids=true without channel_id")
        return "cross_replica"
    if given is None:
        return "cross_partition"
    return "flattened_id" if given else "cross_replica_and_partition"


def subgroup_size(request: Request, mode: GroupMode) -> int:
    """Members of a group."""
    groups: tuple[tuple[int, ...], ...] = tuple(request.attr("replica_groups", ()))
    if mode == "cross_partition":
        return len(groups[0]) if groups else request.partitions
    if mode == "flattened_id":
        if not groups:
            invalid("Replica groups must be specified in flattened-id mode")
        return len(groups[0])
    size = len(groups[0]) if groups else request.replicas
    return size * request.partitions if mode == "cross_replica_and_partition" else size


def _dimension(request: Request) -> int:
    dimensions = tuple(request.need("dimensions"))
    if len(dimensions) != 1:
        invalid(f"{request.opcode} needs one dimension, got {len(dimensions)}")
    return dimensions[0]


def _together(shapes: list[Shape]) -> Shape:
    return shapes[0] if len(shapes) == 1 else Shape.tuple_(shapes)


def outputs_of(request: Request) -> tuple[Shape, ...]:
    """The output shapes that the instruction says, one for each operand; empty where it says none that fit."""
    given = request.given
    if given is None:
        return ()
    if request.opcode == "all-gather-start":
        if not given.is_tuple or len(given.tuple_shapes) != 2:
            return ()
        given = given.tuple_shapes[1]
    if len(request.operands) == 1:
        return (given,)
    return given.tuple_shapes if len(given.tuple_shapes) == len(request.operands) else ()


def _shards(request: Request, dim: int, *, gathered: bool) -> int:
    """Number of shards: the ratio of the sizes that the instruction says, else the size of a group."""
    outputs = outputs_of(request)
    if outputs and dim < outputs[0].rank and dim < request.operand(0).rank:
        big, small = outputs[0].dimensions[dim], request.operand(0).dimensions[dim]
        if not gathered:
            big, small = small, big
        if small > 0 and big >= 0:
            return -(-big // small)
    return subgroup_size(request, group_mode(request))


def gathered(request: Request) -> list[Shape]:
    """Each operand with its dimension multiplied by the number of shards."""
    dim = _dimension(request)
    if dim < 0:
        invalid("ag->all_gather_dimension() >= 0 failed")
    if not request.operands:
        raise InferenceError(f"{request.opcode} needs an operand", kind="operand-count")
    shapes: list[Shape] = []
    for operand in request.operands:
        expect_array(operand, "operand of all-gather")
        if dim >= operand.rank:
            invalid(f"all_gather_dimension {dim} is out of bounds in shape {human(operand)}")
    shards = _shards(request, dim, gathered=True)
    for operand in request.operands:
        dims, flags = list(operand.dimensions), flags_of(operand)
        flags[dim] = dims[dim] == UNBOUNDED
        dims[dim] = UNBOUNDED if flags[dim] else dims[dim] * shards
        shapes.append(make(operand.element_type, dims, flags))
    return shapes


def all_gather(request: Request) -> Shape:
    """The gathered operands."""
    return _together(gathered(request))


def all_gather_start(request: Request) -> Shape:
    """Operands and results."""
    return Shape.tuple_([_together(list(request.operands)), _together(gathered(request))])


def second_of_start(request: Request) -> Shape:
    """The result inside a start's tuple."""
    shape = request.operand(0)
    if not shape.is_tuple or len(shape.tuple_shapes) < 2:
        invalid(f"{request.opcode} needs the tuple of a start, got {human(shape)}")
    return shape.tuple_shapes[1]


def all_reduce(request: Request) -> Shape:
    """The operands."""
    if not request.operands:
        return Shape.tuple_(())
    for operand in request.operands:
        expect_array(operand, "operand of cross replica sum")
    return _together(list(request.operands))


def done_of_same(request: Request) -> Shape:
    """All-reduce-done: the start's shape."""
    return request.operand(0)


def reduce_scatter(request: Request) -> Shape:
    """Each operand with its dimension divided by the number of shards."""
    dim = _dimension(request)
    if dim < 0:
        invalid("ars->scatter_dimension() >= 0 failed")
    if not request.operands:
        raise InferenceError("reduce-scatter needs an operand", kind="operand-count")
    for operand in request.operands:
        expect_array(operand, "operand of reduce-scatter")
        if dim >= operand.rank:
            invalid(f"scatter_dimension {dim} is out of bounds in shape {human(operand)}")
    shards = _shards(request, dim, gathered=False)
    shapes: list[Shape] = []
    for operand in request.operands:
        dims, flags = list(operand.dimensions), flags_of(operand)
        if dims[dim] % shards:
            invalid(
                f"ReduceScatter operand scatter dimension size {dims[dim]} must be dividable by shard_count {shards}."
            )
        dims[dim] = UNBOUNDED if flags[dim] else dims[dim] // shards
        shapes.append(make(operand.element_type, dims, flags))
    return _together(shapes)


def all_to_all(request: Request) -> Shape:
    """With a dimension: one operand that keeps its shape; without: as many equal operands as members."""
    dimensions = request.attr("dimensions")
    count = subgroup_size(request, group_mode(request))
    if dimensions is not None:
        dim = _dimension(request)
        if len(request.operands) != 1:
            raise InferenceError("hlo->operand_count() == 1 failed", kind="operand-count")
        shape = request.operand(0)
        expect_array(shape, "operand of all-to-all")
        if any(f and s != UNBOUNDED for f, s in zip(flags_of(shape), shape.dimensions, strict=True)):
            invalid("AllToAll does not support bounded dynamic shapes")
        if not 0 <= dim < shape.rank:
            invalid(f"AllToAll split_dimension {dim} is out-of-bounds in shape {human(shape)}.")
        size = shape.dimensions[dim]
        if size != UNBOUNDED and size % count:
            invalid(f"AllToAll split dimension size {size} must be dividable by split_count {count}.")
        return shape
    if len(request.operands) != count or not request.operands:
        raise InferenceError(
            f"hlo->operand_count() == split_count failed: {len(request.operands)} operands, {count} members",
            kind="operand-count",
        )
    first = request.operands[0]
    for i, other in enumerate(request.operands):
        if other.is_unbounded:
            invalid("AllToAllTuple does not support unbounded dynamic shapes")
        if other is not first and not _same_but_space(first, other):
            invalid(
                "HLO all-to-all has operands with different shapes: the 0th operand shape "
                f"{human(first)}, but the {i}th operand has shape {human(other)}."
            )
    return Shape.tuple_(request.operands)


def _same_but_space(a: Shape, b: Shape) -> bool:
    """Equal shapes, layouts included, in whatever memory space."""
    a, b = a.with_default_layout(), b.with_default_layout()
    if a.layout is not None and b.layout is not None:
        b = b.with_layout(replace(b.layout, memory_space=a.layout.memory_space))
    return a == b


def ragged_all_to_all(request: Request) -> Shape:
    """The output buffer's shape; offsets and sizes agree."""
    if len(request.operands) != 6:
        raise InferenceError("hlo->operand_count() == kNumRaggedOperands failed", kind="operand-count")
    for i in range(2, 5):
        here, after = request.operand(i), request.operand(i + 1)
        if here.rank not in (1, 2):
            invalid(f"RaggedAllToAll operand {i} must be rank 1 or 2: {human(here)}")
        if not _same_but_space(here, after):
            invalid(f"RaggedAllToAll operands have different shapes ({i}, {i + 1}): {human(here)}, {human(after)}")
    expect_array(request.operand(1), "operand 1 of ragged-all-to-all")
    return request.operand(1)


def collective_broadcast(request: Request) -> Shape:
    """The data operands; with a dynamic root the last operand holds the roots."""
    if request.attr("has_dynamic_root", False):
        if len(request.operands) < 2:
            raise InferenceError("operand_shapes.size() > 1 failed", kind="operand-count")
        root, data = request.operands[-1], request.operands[:-1]
        expect_array(root, "last operand of collective-broadcast with dynamic root")
        if root.element_type != "s32" or root.dimensions != (len(data),):
            invalid(
                "The last operand of collective-broadcast with dynamic root must be a 1-D array of S32 with the same "
                f"number of elements as the number of non-root operands, but got {human(root)}"
            )
        return _together(list(data))
    expect_array(request.operand(0), "operand of collective-broadcast")
    return request.operand(0)


def is_inplace(request: Request) -> bool:
    """A permute with slice sizes writes into its second operand."""
    return request.has("slice_sizes")


def collective_permute(request: Request) -> Shape:
    """The operands, or the buffer written to."""
    if is_inplace(request):
        return _inplace_operands(request)[1]
    if not request.operands:
        raise InferenceError("collective-permute needs an operand", kind="operand-count")
    for operand in request.operands:
        expect_array(operand, "operand of collective-permute")
    return _together(list(request.operands))


def _inplace_operands(request: Request) -> tuple[Shape, Shape]:
    if len(request.operands) != 4:
        raise InferenceError(f"Unexpected number of operands: {len(request.operands)}.", kind="operand-count")
    return request.operands[0], request.operands[1]


def collective_permute_start(request: Request) -> Shape:
    """Operands, results, and the contexts that the instruction says."""
    if is_inplace(request):
        first, second = _inplace_operands(request)
    else:
        if not request.operands:
            raise InferenceError("collective-permute-start needs an operand", kind="operand-count")
        if len(request.operands) == 1:
            expect_array(request.operand(0), "operand of collective-permute-start")
        first = second = _together(list(request.operands))
    given = request.given
    contexts = given.tuple_shapes[2:] if given is not None and given.is_tuple else ()
    return Shape.tuple_([first, second, *contexts])


def device_number(request: Request) -> Shape:
    """Partition-id and replica-id: a u32 scalar."""
    return scalar("u32")
