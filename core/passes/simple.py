"""Small passes: arrays without elements, needless sort operands, reshapes of scalars and vectors, equal bodies.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/zero_sized_hlo_elimination.cc``, ``sort_simplifier.cc``,
``dynamic_dimension_simplifier.cc``, ``hlo_computation_deduplicator.cc``, ``convert_mover.cc``, ``slice_sinker.cc``,
``simplify_fp_conversions.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.hashing import computation_hash
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.flatten_call_graph import clone_computation
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, literal_values, rule
from hloscope.core.passes.rules.slices import bounds_of
from hloscope.core.passes.rules.values import preserves_values

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_ANY = (
    "abs add and atan2 bitcast-convert broadcast ceil clamp compare complex concatenate convert copy cosine divide dot"
    " dynamic-slice dynamic-update-slice exponential exponential-minus-one fft floor gather get-tuple-element imag iota"
    " is-finite log log-plus-one logistic map maximum minimum multiply negate not or pad popcnt power real reduce"
    " reduce-precision reduce-window remainder reshape reverse round-nearest-afz round-nearest-even rsqrt scatter"
    " select select-and-scatter shift-left shift-right-arithmetic shift-right-logical sign sine slice sort sqrt"
    " subtract tan tanh transpose triangular-solve cholesky xor convolution cbrt erf"
)


# ---------------------------------------------------------------- zero_sized_hlo_elimination
@rule("zero-sized", _ANY, "a value without elements → an empty constant")
def zero_sized(one: HloInstruction, options: RuleOptions) -> Answer:
    if not is_static_array(one.shape) or one.shape.element_count or one.has_side_effect:
        return None
    if one.shape.layout is not None and (one.shape.layout.tiles or one.shape.layout.memory_space):
        return None
    return lambda build: build.constant(np.zeros(one.shape.dimensions), one.shape)


@dataclass(frozen=True)
class ZeroSizedHloElimination(RulePass):
    """Nothing is computed for values without elements."""

    name = "zero_sized_hlo_elimination"
    rules = (zero_sized,)


# ---------------------------------------------------------------- simplify-sorts
@dataclass(frozen=True)
class SortSimplifier:
    """Sort operands that neither the comparator reads nor anybody uses."""

    name = "simplify-sorts"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every sort."""
        changed = False
        for computation in module.post_order():
            for one in computation:
                if one.opcode == "sort" and one.operand_count > 1:
                    changed |= _without_operands(one, ctx)
        return changed


def _without_operands(one: HloInstruction, ctx: PassContext) -> bool:
    if one.is_root or any(user.opcode != "get-tuple-element" for user in one.users):
        return False
    comparator = one.callee("to_apply")
    used = {int(user.attr("index")) for user in one.users}
    for number, parameter in enumerate(comparator.parameters):
        if parameter.user_count or parameter.is_root:
            used.add(number // 2)
    kept = sorted(used)
    if len(kept) == one.operand_count or not kept:
        return False
    if one.control_predecessors or one.control_successors:
        ctx.refuse("unused-sort-operand", one, "control_dependencies")
        return False
    step = ctx.gate("unused-sort-operand", one)
    if not step:
        return False
    build = Builder(one)
    smaller = clone_computation(one.module, comparator)
    gone = [p for n, p in enumerate(smaller.parameters) if n // 2 not in used]
    for parameter in gone:
        smaller.remove(parameter)
    for number, parameter in enumerate(smaller.parameters):
        parameter.set_parameter_number(number)
        parameter.rename(f"p.{number // 2}.{'rhs' if number % 2 else 'lhs'}")
    shapes = [one.operand(i).shape for i in kept]
    made = build.clone(one, [one.operand(i) for i in kept], shapes[0] if len(kept) == 1 else Shape.tuple_(shapes))
    made.set_called("to_apply", smaller)
    for user in one.users:
        place = kept.index(int(user.attr("index")))
        if len(kept) == 1:
            user.replace_all_uses_with(made)
        else:
            user.replace_all_uses_with(build.element(made, place))
        one.parent.remove(user)
    before = one.operand_count
    one.parent.remove_with_dead_operands(one)
    step.done(*build.made, detail=f"{len(kept)} of {before} stay")
    return True


# ---------------------------------------------------------------- dynamic-dimension-simplifier
@rule("join-concatenates", "concatenate", "concatenate(concatenate(a, b), c) → one, along one dimension")
def join_concatenates(one: HloInstruction, options: RuleOptions) -> Answer:
    if not any(o.opcode == "concatenate" and o.dimensions == one.dimensions for o in one.operands):
        return None
    flat: list[HloInstruction] = []
    for operand in one.operands:
        inner = operand.opcode == "concatenate" and operand.dimensions == one.dimensions
        flat.extend(operand.operands if inner else (operand,))
    return lambda build: build.clone(one, flat)


@rule("slice-of-concatenate", "slice", "the slice of a vector that is one operand of a concatenate → it")
def slice_of_concatenate(one: HloInstruction, options: RuleOptions) -> Answer:
    joined = one.operand(0)
    if joined.opcode != "concatenate" or joined.shape.rank != 1:
        return None
    (bound,) = bounds_of(one)
    start = 0
    for part in joined.operands:
        end = start + part.shape.dimensions[0]
        if (bound.start, bound.limit, bound.stride) == (start, end, 1):
            return part
        start = end
    return None


@rule("reshape-of-broadcast", "reshape", "reshape(broadcast(scalar) to one element) → scalar")
def reshape_of_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if not one.shape.is_scalar or x.opcode != "broadcast" or not x.operand(0).shape.is_scalar:
        return None
    return x.operand(0)


@rule("reshape-and-back", "reshape", "reshape(reshape(x)) to x's shape → x")
def reshape_and_back(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if options.same_shape(x.shape, one.shape):
        return x
    if x.opcode == "reshape" and options.same_shape(x.operand(0).shape, one.shape):
        return x.operand(0)
    return None


@rule("convert-to-same", "convert", "a conversion to the type that it has → operand")
def convert_to_same(one: HloInstruction, options: RuleOptions) -> Answer:
    return one.operand(0) if options.same_shape(one.operand(0).shape, one.shape) else None


@dataclass(frozen=True)
class DynamicDimensionSimplifier(RulePass):
    """What computations of sizes leave behind."""

    name = "dynamic-dimension-simplifier"
    rules = (join_concatenates, slice_of_concatenate, reshape_of_broadcast, reshape_and_back, convert_to_same)


# ---------------------------------------------------------------- computation-deduplicator
@dataclass(frozen=True)
class ComputationDeduplicator:
    """Equal small computations are one."""

    name = "computation-deduplicator"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Callees first, so that callers of merged ones compare equal."""
        changed = False
        known: dict[bytes, HloComputation] = {}
        hashes: dict[HloComputation, bytes] = {}
        for computation in module.post_order():
            if computation.is_entry or len(computation) > 128 or computation.is_fusion:
                continue
            sizes = sum(n.shape.byte_size for n in computation if n.opcode == "constant" and n.shape.is_array)
            if sizes > 1024 or any(n.has_side_effect or n.info.collective for n in computation):
                continue
            first = known.setdefault(computation_hash(computation, hashes), computation)
            if first is computation or first.execution_thread != computation.execution_thread:
                continue
            for caller in computation.callers:
                step = ctx.gate("same-computation", caller, computation=computation)
                if not step:
                    continue
                for name, group in dict(caller.called).items():
                    if computation in group:
                        new = [first if one is computation else one for one in group]
                        caller.set_called(name, new if name in caller.calls_as_list else new[0])
                step.done(detail=f"{computation.name} is {first.name}")
                changed = True
            if not computation.callers:
                module.remove_computation(computation)
        return changed


# ---------------------------------------------------------------- convert-mover
_MOVED = "concatenate pad reshape slice transpose"


def _narrow_source(one: HloInstruction, narrow: str) -> HloInstruction | None:
    """What a widening conversion converts, or a constant that survives the narrow type; None for anything else."""
    if one.opcode == "convert" and one.user_count == 1 and one.operand(0).shape.element_type == narrow:
        return one.operand(0)
    return None


@rule("sink-widening", _MOVED, "op(widening convert(x)) → convert(op(x))", insensitive=True)
def sink_widening(one: HloInstruction, options: RuleOptions) -> Answer:
    sources = [o for o in one.operands if o.opcode == "convert"]
    if not sources or not one.shape.is_array:
        return None
    narrow, wide = sources[0].operand(0).shape.type, one.shape.type
    if narrow.bits >= wide.bits or narrow.bits < 8 or narrow.name == "pred" or not preserves_values(narrow, wide):
        return None
    if any(_narrow_source(o, narrow.name) is None and not _survives(o, narrow.name) for o in one.operands):
        return None

    def make(build: Builder) -> HloInstruction:
        inner = [
            _narrow_source(o, narrow.name) or build.constant(literal_values(o), o.shape.with_element_type(narrow.name))
            for o in one.operands
        ]
        small = build.clone(one, inner, one.shape.with_element_type(narrow.name))
        return build.make("convert", one.shape, [small])

    return make


def _survives(one: HloInstruction, narrow: str) -> bool:
    values = literal_values(one)
    if values is None:
        return False
    with np.errstate(all="ignore"):
        small = values.astype(one.shape.with_element_type(narrow).type.dtype).astype(values.dtype)
    return small.tobytes() == values.tobytes()


@rule("hoist-narrowing", "convert", "narrowing convert(op(x)) → op(convert(x))", insensitive=True)
def hoist_narrowing(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode not in _MOVED.split() or inner.user_count != 1:
        return None
    wide, narrow = inner.shape.type, one.shape.type
    if narrow.bits >= wide.bits or narrow.bits < 8 or narrow.name == "pred":
        return None

    def make(build: Builder) -> HloInstruction:
        return build.clone(inner, [build.convert(o, narrow.name) for o in inner.operands], one.shape)

    return make


@dataclass(frozen=True)
class ConvertMover(RulePass):
    """Data movement in the narrower type."""

    name = "convert-mover"
    rules = (sink_widening, hoist_narrowing)


# ---------------------------------------------------------------- simplify-fp-conversions
@rule("float-conversion-chain", "convert", "convert(convert(x)) between floats → one conversion or none")
def float_chain(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "convert" or any(o.shape.type.kind != "float" for o in (one, inner, inner.operand(0))):
        return None
    x = inner.operand(0)
    # A step that keeps every value of x adds nothing; a step that rounds is what the program asked for.
    if not preserves_values(x.shape.type, inner.shape.type):
        return None
    return x if options.same_shape(x.shape, one.shape) else lambda build: build.clone(one, [x])


@dataclass(frozen=True)
class SimplifyFpConversions(RulePass):
    """Chains of float conversions that lose nothing on the way."""

    name = "simplify-fp-conversions"
    rules = (float_chain,)


# ---------------------------------------------------------------- slice-sinker
_SINK = frozenset(
    "abs add and divide exponential log maximum minimum multiply negate not or power rsqrt select sqrt subtract tanh"
    .split()
)


@dataclass(frozen=True)
class SliceSinker:
    """One elementwise operation on whole values for several on equal slices of them."""

    name = "slice-sinker"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation."""
        changed = False
        for computation in module.post_order():
            if computation.is_fusion:
                continue
            groups: dict[tuple[object, ...], list[HloInstruction]] = {}
            for one in computation.post_order():
                if one.opcode in _SINK and one.operand_count and all(o.opcode == "slice" for o in one.operands):
                    bounds = {o.raw_attrs.get("slice") for o in one.operands}
                    sources = tuple(o.operand(0) for o in one.operands)
                    if len(bounds) == 1 and len({s.shape.dimensions for s in sources}) == 1:
                        groups.setdefault((one.opcode, one.shape.element_type, sources), []).append(one)
            for (opcode, kind, sources), members in groups.items():
                assert isinstance(sources, tuple) and isinstance(kind, str)
                whole = sources[0].shape
                if sum(one.shape.element_count for one in members) < whole.element_count:
                    ctx.refuse(
                        "sink-slices", members[0], "too_small",
                        f"{sum(o.shape.element_count for o in members)} of {whole.element_count} elements of {opcode}",
                    )  # fmt: skip
                    continue
                if any(one.control_predecessors or one.control_successors for one in members):
                    ctx.refuse("sink-slices", members[0], "control_dependencies")
                    continue
                step = ctx.gate("sink-slices", members[0], others=tuple(members[1:]))
                if not step:
                    continue
                build = Builder(members[0])
                large = build.clone(members[0], sources, build.shape(kind, whole.dimensions))
                for one in members:
                    cut = build.make("slice", one.shape, [large], {"slice": one.operand(0).raw_attrs["slice"]})
                    computation.replace(one, cut)
                step.done(*build.made)
                changed = True
        return changed
