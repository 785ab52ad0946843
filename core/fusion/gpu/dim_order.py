"""How the dimensions of a dot operand lie in the memory of an instruction that it is computed from.

A *dimension order* lists the fragments of which an array is made, fastest first; each carries the label of the dot's
dimension that it is a part of. Bitcasts cut and join fragments, transposes move them, slices narrow them. Where no such
description exists the Triton emitter could not address the array, and the instruction stays outside. Source:
``openxla/xla:xla/service/gpu/triton_tiling_propagation.cc``.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import is_effective_scalar, minor_to_major, reshape_is_bitcast
from hloscope.core.fusion.decision import ALLOWED, Decision
from hloscope.core.fusion.gpu.triton_gemm_support import dynamic_slice_support, gemm_elementwise

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

NO_SPLIT = 1
"""The major part of a dimension that nothing cuts."""
MIN_CONCAT_FRAGMENT = 64
"""Elements of which every part of a fused concatenate must be a multiple."""
_READ_WHOLE = frozenset(("concatenate", "dynamic-slice"))


@dataclass(slots=True, eq=False)
class Fragment:
    """A piece of one labelled dimension."""

    label: int
    count: int
    """Elements, those that a slice leaves out included."""
    start: int = 0
    used: int = -1
    """Elements that are read."""

    def __post_init__(self) -> None:
        if self.used < 0:
            self.used = self.count

    @property
    def is_sliced(self) -> bool:
        return self.count != self.used


@dataclass(slots=True)
class DimensionOrder:
    """The fragments of an array."""

    fragments: list[Fragment] = field(default_factory=list[Fragment])
    """In memory order, fastest first."""
    parts: dict[int, list[int]] = field(default_factory=dict[int, "list[int]"])
    """Places of the fragments of each label, in the order of the label's own indices, fastest first."""

    @staticmethod
    def of(shape: Shape) -> DimensionOrder:
        """Every dimension a fragment of itself: the order of a dot's operand or result."""
        order = DimensionOrder()
        for dim in minor_to_major(shape):
            order.parts[dim] = [len(order.fragments)]
            order.fragments.append(Fragment(dim, shape.dimensions[dim]))
        return order

    def first_stride(self, label: int) -> int | None:
        """Elements between neighbours in the fastest piece of a dimension that has more than one element."""
        stride = 1
        for one in self.fragments:
            if one.label == label and one.count > 1:
                return stride
            stride *= one.count
        return None

    def iteration(self) -> Hashable:
        """What distinguishes two ways to walk an array; equal ones share one read."""
        found: dict[int, list[list[int | tuple[int, ...]]]] = {}
        stride, last = 1, -1
        for one in self.fragments:
            spec = found.setdefault(one.label, [])
            if last == one.label:
                inner = spec[-1][4]
                assert isinstance(inner, tuple)
                if inner and inner[-1] == 1:
                    inner = inner[:-1]
                if one.count > 1:
                    count = spec[-1][1]
                    assert isinstance(count, int)
                    spec[-1][1:4] = [count * one.count, one.start * count, one.used * count]
                    inner = (*inner, one.used)
                spec[-1][4] = inner
            else:
                spec.append([stride, one.count, one.start, one.used, (one.used,)])
            stride *= one.count
            last = one.label
        return tuple(
            (label, tuple(tuple(one) for one in spec if len(spec) <= 1 or one[1] != 1))
            for label, spec in sorted(found.items())
            if any(len(spec) <= 1 or one[1] != 1 for one in spec)
        )


@dataclass(frozen=True, slots=True)
class DotProperties:
    """What of a dot limits what may be fused into it."""

    noncontracting: int
    """Label of the operand's free dimension; -1 for the result."""
    splittable: int
    """Label of the dimension that may lie in two places; -1 for none."""
    contracted: int
    """Elements of the contracted dimension."""


Orders = dict["HloInstruction", DimensionOrder]


def combine(a: int, b: int) -> int | Decision:
    """One split that satisfies two: sizes of the major part, 1 for none."""
    if a == b or b == NO_SPLIT:
        return a
    if a == NO_SPLIT:
        return b
    return Decision.forbid("Conflicting splits of splittable dimension", first=a, second=b)


def propagate(
    one: HloInstruction, order: DimensionOrder, properties: DotProperties, *, to_operands: bool
) -> tuple[Orders, int] | Decision:
    """Orders on the other side of an instruction, and the split that they ask for."""
    made = _propagate(one, order, properties, to_operands)
    if isinstance(made, Decision):
        return made
    split: int | Decision = NO_SPLIT
    for near in (*dict.fromkeys(one.operands), one):
        if near in made:
            asked = _split(made[near], properties)
            if isinstance(asked, Decision):
                return asked
            split = combine(split, asked)
            if isinstance(split, Decision):
                return split
    return made, split


# ---------------------------------------------------------------- requirements
def _split(order: DimensionOrder, properties: DotProperties) -> int | Decision:
    fragments = order.fragments
    major = NO_SPLIT
    for label, places in order.parts.items():
        if any(fragments[place].is_sliced for place in places[:-1]):
            return Decision.forbid("Sliced non-major-most fragment.", "a slice of the slowest piece", label=label)
        groups, last, at = 0, -1, 0
        while at < len(places):
            size = fragments[places[at]].count
            while at + 1 < len(places) and places[at + 1] == places[at] + 1:
                at += 1
                size *= fragments[places[at]].count
            if size != 1:
                if last > places[at]:
                    return Decision.forbid("Transpose within a dimension.", label=label)
                groups += 1
                if groups > 1:
                    refused = _may_split(label, groups, size, major, properties)
                    if not refused:
                        return refused
                    major = size
                last = places[at]
            at += 1
    return major


def _may_split(label: int, groups: int, size: int, major: int, properties: DotProperties) -> Decision:
    if label != properties.splittable:
        return Decision.forbid("Unsupported split of a dimension.", "a dimension that lies in one piece", label=label)
    if groups > 2:
        return Decision.forbid("2nd split of a splittable dimension.", label=label)
    if major not in (NO_SPLIT, size):
        return Decision.forbid("Conflicting splits of splittable dimension", first=major, second=size)
    return ALLOWED


# ---------------------------------------------------------------- propagation
def _propagate(
    one: HloInstruction, order: DimensionOrder, properties: DotProperties, to_operands: bool
) -> Orders | Decision:
    opcode = one.opcode
    if opcode != "parameter" and to_operands and any(user.opcode in _READ_WHOLE for user in one.users):
        return Decision.forbid("No fusion into concatenations or dynamic slice.", "no such user")
    if opcode == "parameter" or (opcode == "constant" and one.shape.is_scalar):
        return {}
    if opcode in ("transpose", "copy"):
        return _altered(one, order, to_operands)
    if opcode in ("broadcast", "slice"):
        return _altered(one, order, True) if to_operands else Decision.forbid(f"Unsupported {opcode} direction.")
    if one.operand_count and gemm_elementwise(opcode, one.operand(0).shape.element_type):
        if not to_operands:
            return {one: order}
        return {operand: order for operand in one.operands}
    if opcode == "bitcast":
        return _bitcast(one, order, to_operands)
    if opcode == "reshape":
        if not reshape_is_bitcast(one.operand(0).shape, one.shape):
            return Decision.forbid("Non-bitcast reshape.", "a reshape that moves nothing in memory")
        return _bitcast(one, order, to_operands)
    if opcode == "dynamic-slice" and to_operands:
        supported = dynamic_slice_support(one)
        return _altered(one, order, True) if supported else supported
    if opcode == "concatenate" and to_operands:
        refused = _concatenate_refusal(one, order, properties)
        return _altered(one, order, True) if refused else refused
    return Decision.forbid("Unimplemented instruction.", opcode=opcode)


def _concatenate_refusal(one: HloInstruction, order: DimensionOrder, properties: DotProperties) -> Decision:
    label, dim = properties.noncontracting, one.dimensions[0]
    if len(order.parts.get(label, ())) > 1:
        return Decision.forbid("Concatenations on split non-contracting dimensions are unsupported.")
    if _labelled_dimension(one.shape, order, label) != dim:
        return Decision.forbid("Unsupported concatenation.", "parts joined along the free dimension", dimension=dim)
    sizes = [operand.shape.dimensions[dim] for operand in one.operands]
    if any(size % MIN_CONCAT_FRAGMENT for size in sizes):
        return Decision.forbid(
            "At least one operand of concatenation can not be perfectly tiled.",
            f"parts that are multiples of {MIN_CONCAT_FRAGMENT}",
            sizes=",".join(map(str, sizes)),
        )
    return ALLOWED


def _labelled_dimension(shape: Shape, order: DimensionOrder, label: int) -> int | None:
    fragments = iter(order.fragments)
    for dim in minor_to_major(shape):
        size = 1
        while size < shape.dimensions[dim]:
            one = next(fragments)
            size *= one.count
            if one.label == label:
                return dim
    return None


def _bitcast(one: HloInstruction, order: DimensionOrder, to_operands: bool) -> Orders | Decision:
    target = one.operand(0) if to_operands else one
    sizes = [target.shape.dimensions[dim] for dim in minor_to_major(target.shape)]
    made: list[Fragment] = []
    became: list[list[int]] = [[] for _ in order.fragments]
    at, rest = 0, 1  # next dimension of the target, and what of the current one is still open
    for source, fragment in enumerate(order.fragments):
        if rest >= fragment.count:
            if rest % fragment.count:
                return _unaligned(rest, fragment.count)
            became[source].append(len(made))
            made.append(replace(fragment))
            rest //= fragment.count
            continue
        if fragment.is_sliced:
            return Decision.forbid("Unsupported bitcast", "no slice of a dimension that is cut", label=fragment.label)
        left = fragment.count
        if rest > 1:
            if left % rest:
                return _unaligned(left, rest)
            became[source].append(len(made))
            made.append(Fragment(fragment.label, rest))
            left, rest = left // rest, 1
        while left > 1:
            size = sizes[at]
            at += 1
            if size > left:
                if size % left:
                    return _unaligned(size, left)
                size, rest = left, size // left
            became[source].append(len(made))
            made.append(Fragment(fragment.label, size))
            left //= size
    if rest != 1:
        return _unaligned(rest, 1)
    for size in sizes[at:]:
        if size != 1:
            return _unaligned(size, 1)
        if made:
            became[-1].append(len(made))
            made.append(Fragment(made[-1].label, 1))
    parts = {label: [new for old in places for new in became[old]] for label, places in order.parts.items()}
    return {target: DimensionOrder(made, parts)}


def _unaligned(size: int, other: int) -> Decision:
    return Decision.forbid("Unsupported bitcast", "dimensions that split or join as a whole", size=size, other=other)


def _altered(one: HloInstruction, order: DimensionOrder, to_operands: bool) -> Orders | Decision:
    """Instructions that move, drop or narrow whole dimensions."""
    opcode = one.opcode
    if opcode == "slice" and is_effective_scalar(one.shape):
        return Decision.forbid("Slice to scalar is not implemented yet.")
    source = one if to_operands else one.operand(0)
    fragments = [replace(each) for each in order.fragments]
    logical = _by_dimension(source.shape, fragments)
    if logical is None:
        return Decision.forbid("Cannot propagate further from trivial sized tensor")
    made: Orders = {}
    joined = 0
    targets = one.operands if to_operands else (one,)
    for number, target in enumerate(targets):
        if opcode == "dynamic-slice" and number:
            continue
        if target in made and opcode != "concatenate":
            continue
        if opcode == "concatenate":
            moved = _part(one, target, logical, joined)
            joined += target.shape.dimensions[one.dimensions[0]]
        else:
            moved = _moved(one, target, logical, to_operands)
        if isinstance(moved, Decision):
            return moved
        placed = _placed(opcode, target.shape, moved, order, fragments)
        if isinstance(placed, Decision):
            return placed
        made.setdefault(target, placed)
    return made


def _by_dimension(shape: Shape, fragments: list[Fragment]) -> list[list[Fragment]] | None:
    """Fragments of each dimension, None where the array has lost some of its dimensions."""
    if len(fragments) < shape.rank:
        return None
    found: list[list[Fragment]] = [[] for _ in range(shape.rank)]
    at = 0
    for dim in minor_to_major(shape):
        size = 1
        while True:
            if at >= len(fragments):
                return None
            size *= fragments[at].count
            found[dim].append(fragments[at])
            at += 1
            if size >= shape.dimensions[dim]:
                break
        if size != shape.dimensions[dim]:
            return None
    return found


def _moved(
    one: HloInstruction, target: HloInstruction, logical: list[list[Fragment]], to_operands: bool
) -> list[list[Fragment]] | Decision:
    opcode = one.opcode
    if opcode == "transpose":
        found: list[list[Fragment]] = [[] for _ in logical]
        for dim, before in enumerate(one.dimensions):
            if to_operands:
                found[before] = logical[dim]
            else:
                found[dim] = logical[before]
        return found
    if opcode == "broadcast":
        return [logical[dim] for dim in one.dimensions]
    if opcode in ("slice", "dynamic-slice"):
        starts = [each.start for each in one.attr("slice")] if opcode == "slice" else None
        for dim, pieces in enumerate(logical):
            whole = target.shape.dimensions[dim]
            narrow = one.shape.dimensions[dim]
            if opcode == "slice":
                each = one.attr("slice")[dim]
                narrow = each.limit - each.start
            if narrow == whole:
                continue
            if len(pieces) > 1:
                return Decision.forbid("Slicing of fragmented dimension.", dimension=dim)
            piece = pieces[0]
            piece.count = whole
            if starts is None:
                piece.used = whole
            else:
                piece.start += starts[dim]
        return logical
    return logical  # copy


def _part(
    one: HloInstruction, target: HloInstruction, logical: list[list[Fragment]], joined: int
) -> list[list[Fragment]] | Decision:
    dim = one.dimensions[0]
    if len(logical[dim]) != 1 or logical[dim][0].is_sliced:
        return Decision.forbid("Unsupported concatenation.", "one whole fragment along the joined dimension")
    size = target.shape.dimensions[dim]
    found = list(logical)
    found[dim] = [Fragment(logical[dim][0].label, size, -joined, size)]
    return found


def _placed(
    opcode: str, shape: Shape, logical: list[list[Fragment]], order: DimensionOrder, fragments: list[Fragment]
) -> DimensionOrder | Decision:
    made = DimensionOrder()
    places: dict[int, int] = {}
    present: set[int] = set()
    for dim in minor_to_major(shape):
        for one in logical[dim]:
            places[id(one)] = len(made.fragments)
            made.fragments.append(replace(one))
            if one.count > 1:
                present.add(one.label)
    for label, sequence in order.parts.items():
        for number in sequence:
            place = places.get(id(fragments[number]))
            if place is not None:
                made.parts.setdefault(label, []).append(place)
            elif opcode == "broadcast" and fragments[number].count > 1 and label in present:
                return Decision.forbid("Unsupported broadcast", "a dimension that is new as a whole", label=label)
    return made
