"""Inside a fusion that updates an operand in place: does it still read the operand where it has written already?

The elements of the update are made one after another while the operand's memory is being written. A read at the
position that is written is harmless; a read of another position that is written as well may see the new value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.analysis.alias_info import AliasInfo, InPlacePair
    from hloscope.core.hlo.instruction import HloInstruction


@dataclass(frozen=True, slots=True)
class MisplacedRead:
    """A read of what is written, elsewhere than it is written."""

    reader: str
    """The fused instruction that reads."""
    reason: str


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where a dimension of a value is read for element u of the update: at u[dim] plus the starts."""

    dim: int | None
    """Dimension of the update; None where the position does not depend on it."""
    starts: tuple[int | HloInstruction, ...] = ()
    """Added offsets: numbers, and scalar instructions that are not known."""


_WHOLE = frozenset(("reduce", "dot", "convolution", "sort", "cholesky", "fft", "triangular-solve", "reduce-window"))
"""Opcodes of which one element reads many elements of an operand."""


def misplaced_read(fusion: HloInstruction, pair: InPlacePair, info: AliasInfo) -> MisplacedRead | None:
    """The first read of the operand of an in-place pair that is certainly misplaced; None where none is certain."""
    body = fusion.callee("calls")
    root = body.root
    for number in pair.output_index:
        if root.opcode != "tuple":
            break
        root = root.operand(number)
    while root.opcode in info.no_ops:
        root = root.operand(0)
    if root.opcode != "dynamic-update-slice":
        return None
    parameter = body.parameters[pair.operand]
    target, update = root.operand(0), root.operand(1)
    if update.shape.element_count <= 1:
        return None
    through = _no_op_chain(parameter, info)
    if target not in through:
        return None
    starts = [_constant(root.operand(2 + number)) for number in range(target.shape.rank)]
    written = [_Axis(number, (start,)) for number, start in enumerate(starts)]
    if target.shape.rank != update.shape.rank:
        return None
    identity = [_Axis(number) for number in range(update.shape.rank)]
    for found in _reads(update, identity, through, set()):
        fault = _compare(found, written, update.shape.dimensions, target)
        if fault is not None:
            return fault
    return None


def _no_op_chain(parameter: HloInstruction, info: AliasInfo) -> set[HloInstruction]:
    """The parameter and what only renames its bytes."""
    found, work = {parameter}, [parameter]
    while work:
        for user in work.pop().users:
            if user.opcode in info.no_ops and user not in found:
                found.add(user)
                work.append(user)
    return found


@dataclass(frozen=True, slots=True)
class _Read:
    source: HloInstruction
    """The operand, or what renames it."""
    axes: tuple[_Axis, ...] | None
    """None: all of it, for every element."""
    reader: HloInstruction


def _reads(
    node: HloInstruction,
    axes: list[_Axis] | None,
    sources: set[HloInstruction],
    seen: set[tuple[int, str]],
    reader: HloInstruction | None = None,
) -> Iterator[_Read]:
    """Every way on which an element of the update depends on a source; unknown index arithmetic ends a way."""
    if node in sources:
        yield _Read(node, None if axes is None else tuple(axes), reader or node)
        return
    key = (id(node), repr(axes))
    if key in seen:
        return
    seen.add(key)
    opcode = node.opcode
    if opcode in _WHOLE:
        for operand in node.operands:
            if operand.shape.is_array and operand.shape.element_count > 1:
                yield from _reads(operand, None, sources, seen, node)
        return
    if axes is None:
        if node.info.elementwise or opcode in ("broadcast", "transpose", "reshape", "bitcast", "reverse"):
            for operand in node.operands:
                yield from _reads(operand, None, sources, seen, reader or node)
        return
    if node.info.elementwise:
        for operand in node.operands:
            if operand.shape.same_dimensions(node.shape):
                yield from _reads(operand, axes, sources, seen, reader)
    elif opcode == "slice":
        window = node.attr("slice")
        if all(one.stride == 1 for one in window):
            moved = [_Axis(axis.dim, (*axis.starts, one.start)) for axis, one in zip(axes, window, strict=True)]
            yield from _reads(node.operand(0), moved, sources, seen, node)
    elif opcode == "dynamic-slice":
        starts = [_constant(one) for one in node.operands[1:]]
        if len(starts) == len(axes):
            moved = [_Axis(axis.dim, (*axis.starts, start)) for axis, start in zip(axes, starts, strict=True)]
            yield from _reads(node.operand(0), moved, sources, seen, node)
    elif opcode == "transpose":
        order = node.dimensions
        moved = [axes[order.index(number)] for number in range(len(order))]
        yield from _reads(node.operand(0), moved, sources, seen, node)
    elif opcode in ("bitcast", "reshape"):
        moved = _past_unit_dimensions(node, axes)
        if moved is not None:
            yield from _reads(node.operand(0), moved, sources, seen, reader)


def _past_unit_dimensions(node: HloInstruction, axes: list[_Axis]) -> list[_Axis] | None:
    """Axes of the operand of a reshape that only adds or drops dimensions of size 1."""
    inner, outer = node.operand(0).shape, node.shape
    kept = [axis for axis, size in zip(axes, outer.dimensions, strict=True) if size != 1]
    if [size for size in inner.dimensions if size != 1] != [size for size in outer.dimensions if size != 1]:
        return None
    rest = iter(kept)
    return [_Axis(None, (0,)) if size == 1 else next(rest) for size in inner.dimensions]


def _compare(read: _Read, written: list[_Axis], sizes: tuple[int, ...], target: HloInstruction) -> MisplacedRead | None:
    name = read.reader.name
    if read.axes is None:
        return MisplacedRead(
            name, f"every element that it writes depends on many elements through {read.reader.opcode}"
        )
    # A bitcast between the operand and the update may add and drop dimensions of size 1.
    first_axes = [axis for axis, size in zip(read.axes, read.source.shape.dimensions, strict=True) if size != 1]
    own_axes = [axis for axis, size in zip(written, target.shape.dimensions, strict=True) if size != 1]
    extents = [[one for one in shape.dimensions if one != 1] for shape in (read.source.shape, target.shape)]
    if extents[0] != extents[1]:
        return None
    shifts: list[str] = []
    for axis, own in zip(first_axes, own_axes, strict=True):
        first, second = _total(axis.starts), _total(own.starts)
        size = sizes[own.dim or 0]
        aligned = axis.dim == own.dim or size == 1
        if aligned and first == second:
            continue
        if not isinstance(first, int) or not isinstance(second, int):
            return None  # a start that is known at run time only: nothing is certain
        extent = size if axis.dim is not None else 1
        if first >= second + size or second >= first + extent:
            return None  # what is read is never written
        shifts.append(f"dimension {own.dim}: reads from {first}, writes from {second}, {size} wide")
    return MisplacedRead(name, "; ".join(shifts)) if shifts else None


def _total(starts: tuple[int | HloInstruction, ...]) -> int | tuple[object, ...]:
    number = sum(one for one in starts if isinstance(one, int))
    unknown = tuple(one for one in starts if not isinstance(one, int))
    return (number, *unknown) if unknown else number


def _constant(node: HloInstruction) -> int | HloInstruction:
    """The value of a scalar constant, or the instruction behind conversions."""
    while node.opcode in ("convert", "bitcast", "copy") and node.operand_count == 1:
        node = node.operand(0)
    if node.opcode == "constant" and node.shape.is_scalar and node.literal.values is not None:
        return int(node.literal.values[()])
    return node
