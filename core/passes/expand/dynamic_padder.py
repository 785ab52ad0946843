"""Arrays of run-time size as arrays of their bound: what does not count is replaced where it would matter.

Each array keeps, beside its bound-sized data, a scalar for every dimension whose size is known at run time only. A
reduction first puts its initial value, a contraction zero, into the part that does not count; ``PadToStatic`` and
``SliceToDynamic`` stand at the border of the program. Source: ``openxla/xla:xla/service/dynamic_padder.cc``,
``dynamic_dimension_inference.cc``. A program in which a dynamic dimension meets an operation without a rule here is
left as it is, and the operation is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.rules.base import Builder

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

Sizes = dict[int, "HloInstruction"]
"""Dimension -> the scalar that holds its size."""
_RULE = "pad-dynamic-dimensions"


class _Padder:
    """One computation while it is rewritten."""

    def __init__(self, computation: HloComputation) -> None:
        self.computation = computation
        self.static: dict[HloInstruction, HloInstruction] = {}
        self.sizes: dict[HloInstruction, Sizes] = {}
        self.build: Builder

    def operands(self, one: HloInstruction) -> list[HloInstruction]:
        """Its operands with sizes fixed at their bounds."""
        return [self.static.get(x, x) for x in one.operands]

    def sizes_of(self, x: HloInstruction) -> Sizes:
        """Its dimensions of run-time size."""
        return self.sizes.get(x, {})

    def set(self, one: HloInstruction, value: HloInstruction, sizes: Sizes) -> None:
        """Note what stands for an instruction from now on."""
        self.static[one] = value
        if sizes:
            self.sizes[one] = sizes

    def cloned(self, one: HloInstruction, operands: list[HloInstruction], sizes: Sizes) -> None:
        """The same operation on static arrays."""
        self.set(one, self.build.clone(one, operands, one.shape.static()), sizes)

    def filled(self, x: HloInstruction, value: HloInstruction, dims: list[int]) -> HloInstruction:
        """The data of `x` with a scalar in what does not count along some dimensions."""
        build, data = self.build, self.static.get(x, x)
        for dim in dims:
            size = self.sizes_of(x).get(dim)
            if size is None:
                continue
            places = build.iota("s32", data.shape.dimensions, dim)
            counts = build.compare(places, build.broadcast_scalar(size, places.shape), "LT")
            data = build.select(counts, data, build.broadcast_scalar(value, data.shape))
        return data


# ---------------------------------------------------------------- rules
def _parameter(pad: _Padder, one: HloInstruction) -> None:
    build, shape = pad.build, one.shape.static()
    scalar = build.shape("s32", ())
    results = Shape.tuple_([shape, *[scalar] * shape.rank])
    whole = build.make("custom-call", results, [one], {"custom_call_target": '"PadToStatic"'})
    sizes = {d: build.element(whole, d + 1) for d in range(shape.rank) if one.shape.dimension_is_dynamic(d)}
    pad.set(one, build.element(whole, 0), sizes)


def _set_size(pad: _Padder, one: HloInstruction) -> None:
    x = one.operand(0)
    (dim,) = one.dimensions or (0,)
    pad.set(one, pad.static.get(x, x), {**pad.sizes_of(x), dim: pad.operands(one)[1]})


def _get_size(pad: _Padder, one: HloInstruction) -> None:
    x = one.operand(0)
    (dim,) = one.dimensions or (0,)
    size = pad.sizes_of(x).get(dim)
    pad.set(one, pad.build.scalar("s32", x.shape.dimensions[dim]) if size is None else size, {})


def _elementwise(pad: _Padder, one: HloInstruction) -> None:
    sizes: Sizes = {}
    for x in one.operands:
        if x.shape.rank == one.shape.rank:
            sizes.update(pad.sizes_of(x))
    pad.cloned(one, pad.operands(one), sizes)


def _broadcast(pad: _Padder, one: HloInstruction) -> None:
    sizes = {one.dimensions[d]: size for d, size in pad.sizes_of(one.operand(0)).items()}
    pad.cloned(one, pad.operands(one), sizes)


def _transpose(pad: _Padder, one: HloInstruction) -> None:
    sizes = pad.sizes_of(one.operand(0))
    pad.cloned(one, pad.operands(one), {i: sizes[d] for i, d in enumerate(one.dimensions) if d in sizes})


def _reduce(pad: _Padder, one: HloInstruction) -> None:
    dims = list(one.dimensions)
    half = one.operand_count // 2
    fixed = pad.operands(one)
    filled = [pad.filled(x, fixed[half + i], dims) for i, x in enumerate(one.operands[:half])]
    kept = [d for d in range(one.operand(0).shape.rank) if d not in dims]
    sizes = pad.sizes_of(one.operand(0))
    pad.cloned(one, [*filled, *fixed[half:]], {i: sizes[d] for i, d in enumerate(kept) if d in sizes})


def _dot(pad: _Padder, one: HloInstruction) -> None:
    sides: list[HloInstruction] = []
    sizes: Sizes = {}
    place = 0
    for number, side in enumerate(("lhs", "rhs")):
        x = one.operand(number)
        batch: list[int] = list(one.attr(f"{side}_batch_dims") or ())
        contracting: list[int] = list(one.attr(f"{side}_contracting_dims") or ())
        sides.append(pad.filled(x, pad.build.scalar(x.shape.element_type, 0), contracting))
        own = pad.sizes_of(x)
        sizes.update({i: own[d] for i, d in enumerate(batch) if d in own})
        free = [d for d in range(x.shape.rank) if d not in batch and d not in contracting]
        place = place or len(batch)
        sizes.update({place + i: own[d] for i, d in enumerate(free) if d in own})
        place += len(free)
    pad.cloned(one, sides, sizes)


def _tuple(pad: _Padder, one: HloInstruction) -> None:
    pad.set(one, one, {})  # only at the root, where `_leave` looks at its operands


_RULES: Mapping[str, Callable[[_Padder, HloInstruction], None]] = MappingProxyType(
    {
        "broadcast": _broadcast,
        "copy": _elementwise,
        "dot": _dot,
        "get-dimension-size": _get_size,
        "parameter": _parameter,
        "reduce": _reduce,
        "set-dimension-size": _set_size,
        "transpose": _transpose,
        "tuple": _tuple,
    }
)


def _is_dynamic(one: HloInstruction) -> bool:
    return one.shape.is_dynamic or any(x.shape.is_dynamic for x in one.operands)


def _unfit(one: HloInstruction) -> tuple[str, str] | None:
    """Why an instruction that has to do with dynamic dimensions has no rule; None where it has one."""
    shapes = [one.shape, *(x.shape for x in one.operands)]
    if any("?" in str(shape.without_layout()) for shape in shapes):
        return "unbounded", str(one.shape)
    if one.opcode == "parameter" and one.shape.is_tuple:
        return "tuple_parameter", str(one.shape)
    if one.opcode == "tuple" and not (one.is_root and all(not x.shape.is_tuple for x in one.operands)):
        return "tuple_inside", f"{one.user_count} users"
    if one.opcode == "reduce" and one.shape.is_tuple:
        return "several_results", str(one.shape)
    if one.opcode in _RULES:
        return None
    alike = all(not x.shape.is_dynamic or x.shape.rank == one.shape.rank for x in one.operands)
    if one.info.elementwise and one.opcode not in ("map", "fusion") and alike:
        return None
    return "opcode", one.opcode


def _leave(pad: _Padder, x: HloInstruction) -> HloInstruction:
    """A value as the program hands it out: with its sizes, where it has such."""
    data, sizes = pad.static.get(x, x), pad.sizes_of(x)
    if not sizes:
        return data
    build = pad.build
    each = [sizes.get(d) or build.scalar("s32", n) for d, n in enumerate(x.shape.dimensions)]
    return build.make("custom-call", x.shape, [data, *each], {"custom_call_target": '"SliceToDynamic"'})


@dataclass(frozen=True)
class DynamicPadder:
    """Bounded dynamic dimensions of the entry computation as static ones."""

    name = "dynamic_padder"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Rewrite the entry; False where nothing is dynamic or something has no rule."""
        entry = module.entry
        touched = [one for one in entry.post_order() if _is_dynamic(one) or one.opcode == "get-dimension-size"]
        if all(_settled(one) for one in touched):
            return False
        for computation in module.computations:
            inside = None if computation is entry else next((x for x in computation if _is_dynamic(x)), None)
            if inside is not None:
                ctx.refuse(_RULE, inside, "called_computation", computation.name)
                return False
        for one in touched:
            why = _unfit(one)
            if why is not None:
                ctx.refuse(_RULE, one, *why)
                return False
        step = ctx.gate(_RULE, touched[0])
        if not step:
            return False
        made = _rewrite(entry, touched)
        step.done(*made, detail=f"{len(touched)} instructions")
        return True


def _settled(one: HloInstruction) -> bool:
    """Whether an instruction is part of the border that an earlier run has made."""
    target = str(one.attr("custom_call_target") or "").strip('"') if one.opcode == "custom-call" else ""
    if target in ("PadToStatic", "SliceToDynamic"):
        return True
    if one.opcode == "parameter":
        return all(user.opcode == "custom-call" and _settled(user) for user in one.users)
    return one.opcode == "tuple" and all(not x.shape.is_dynamic or _settled(x) for x in one.operands)


def _rewrite(entry: HloComputation, touched: list[HloInstruction]) -> list[HloInstruction]:
    pad = _Padder(entry)
    root = entry.root
    made: list[HloInstruction] = []
    for one in touched:
        pad.build = Builder(one)
        (_RULES.get(one.opcode) or _elementwise)(pad, one)
        made += pad.build.made
    pad.build = Builder(root)
    if root not in pad.static:
        fresh = root
    elif root.opcode == "tuple":
        fresh = pad.build.make("tuple", root.shape, [_leave(pad, x) for x in root.operands])
    else:
        fresh = _leave(pad, root)
    made += pad.build.made
    dynamic = set(touched)
    for one in touched:
        if one.opcode == "parameter":
            continue
        value = pad.static[one]
        for user in list(one.users):
            if user not in dynamic:
                for number, x in enumerate(user.operands):
                    if x is one:
                        user.replace_operand(number, value)
    if fresh is not root:
        entry.set_root(fresh)
    for one in reversed(touched):
        if one.opcode != "parameter" and one is not fresh and one.in_computation and not one.users:
            entry.remove(one)
    return made
