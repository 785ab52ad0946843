"""When two kernels may become one with several results.

Source: ``openxla/xla:xla/service/gpu/gpu_fusible.cc`` (ShapesCompatibleForMultiOutputFusion and what it asks),
``xla/backends/gpu/transforms/multi_output_fusion.cc``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.alias_info import AliasInfo
from hloscope.core.analysis.cost import MAX_IR_SIZE
from hloscope.core.analysis.elementwise import (
    elements,
    is_elementwise,
    is_generally_fusible,
    keeps_bit_width,
    same_layout_and_dimensions,
    transpose_is_bitcast,
)
from hloscope.core.fusion.cost_model.coalescing import is_input_fusible_reduction
from hloscope.core.fusion.cost_model.run_time import LAUNCH_OVERHEAD, fused_run_time
from hloscope.core.fusion.decision import ALLOWED, Decision
from hloscope.core.fusion.gpu.can_fuse import budget_refusal
from hloscope.core.fusion.gpu.fusion_analysis import is_intermediate, non_trivial_hero
from hloscope.core.fusion.gpu.fusion_view import FusionView
from hloscope.core.fusion.gpu.shapes import (
    is_real_reduction,
    is_unnested_reduction,
    reduction_shape,
    tiled_transpose,
)

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.fusion.gpu.model import GpuModel
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

SMALL_PARAMETER = 1024
"""Bytes below which siblings may read disjoint slices of a parameter."""
_UNIVERSAL = frozenset(
    "broadcast concatenate dynamic-slice dynamic-update-slice gather pad reduce-window reshape reverse slice "
    "transpose".split()
)


def is_multi_output(instruction: HloInstruction) -> bool:
    """A fusion that gives several results out by a tuple."""
    return instruction.opcode == "fusion" and instruction.callee().root.opcode == "tuple"


def priority(instruction: HloInstruction) -> int:
    """Fusions with several results first, then other fusions."""
    return 2 if is_multi_output(instruction) else int(instruction.opcode == "fusion")


def _is_custom(instruction: HloInstruction) -> bool:
    return instruction.opcode == "fusion" and instruction.attr("kind") == "kCustom"


def _hero(root: HloInstruction, owner: HloInstruction) -> HloInstruction:
    return non_trivial_hero(root, FusionView(owner))


def is_input_fusible_transpose(instruction: HloInstruction) -> bool:
    """A transpose through shared memory, or a fusion with one at a root."""
    if instruction.opcode == "bitcast" or _is_custom(instruction):
        return False
    if instruction.opcode != "fusion":
        return tiled_transpose(instruction) is not None
    view = FusionView(instruction)
    return any(tiled_transpose(non_trivial_hero(root, view)) is not None for root in view.roots())


def is_root_candidate(instruction: HloInstruction, device: DeviceDescription) -> bool:
    """Whether an instruction can be one of several results (`IsFusibleAsMultiOutputFusionRoot`)."""
    if not is_generally_fusible(instruction) or _is_custom(instruction):
        return False
    return (
        is_input_fusible_reduction(instruction, device)
        or is_input_fusible_transpose(instruction)
        or (instruction.opcode == "fusion" and instruction.attr("kind") == "kLoop")
        or is_elementwise(instruction)
    )


def is_sibling_candidate(instruction: HloInstruction, device: DeviceDescription) -> bool:
    """Whether an instruction can be fused with another reader of its operand."""
    if not instruction.user_count or not is_root_candidate(instruction, device):
        return False
    if _is_nestable_variadic_reduction(instruction, device):
        return False
    return not is_multi_output(instruction) or all(user.opcode == "get-tuple-element" for user in instruction.users)


def _is_nestable_variadic_reduction(instruction: HloInstruction, device: DeviceDescription) -> bool:
    if not instruction.shape.is_tuple:
        return False
    if instruction.opcode == "reduce":
        return not is_unnested_reduction(instruction, device)
    return (
        instruction.opcode == "fusion"
        and instruction.attr("kind") == "kLoop"
        and instruction.callee().root.opcode == "reduce"
    )


# ---------------------------------------------------------------- shapes
def real_hero(instruction: HloInstruction, device: DeviceDescription) -> tuple[HloInstruction, HloInstruction]:
    """The instruction that decides a kernel's loop, and the fusion (or instruction) that it is in."""
    if instruction.opcode != "fusion":
        return instruction, instruction
    root = instruction.callee().root
    roots = list(root.operands) if root.opcode == "tuple" else [root]
    for one in roots:
        hero = _hero(one, instruction)
        if is_real_reduction(one, hero, device) or tiled_transpose(hero) is not None:
            return hero, instruction
    return roots[0], instruction


def _loop_shape(element: HloInstruction, owner: HloInstruction, device: DeviceDescription) -> Shape:
    hero = _hero(element, owner) if owner.opcode == "fusion" else element
    if is_unnested_reduction(element, device) or tiled_transpose(hero) is not None:
        return hero.operand(0).shape
    return element.shape


def shapes_refusal(a: HloInstruction, b: HloInstruction, device: DeviceDescription) -> Decision:
    """Whether two kernels can share one loop."""
    (hero1, owner1), (hero2, owner2) = real_hero(a, device), real_hero(b, device)
    heroes = _heroes_refusal(hero1, owner1, hero2, owner2, device)
    if not heroes:
        return heroes
    first, second = _loop_shape(hero1, owner1, device), _loop_shape(hero2, owner2, device)
    if same_layout_and_dimensions(first, second):
        return ALLOWED
    if first.is_array and second.is_array and elements(first) == elements(second) and _reshapes(first, second):
        return ALLOWED
    return Decision.forbid("different loop shapes", first=str(first), second=str(second))


def _reshapes(a: Shape, b: Shape) -> bool:
    """Equal elements in equal order: row-major both."""
    return all(
        shape.layout is None or list(shape.layout.minor_to_major) == list(range(shape.rank - 1, -1, -1))
        for shape in (a, b)
    )


def _heroes_refusal(
    hero1: HloInstruction,
    owner1: HloInstruction,
    hero2: HloInstruction,
    owner2: HloInstruction,
    device: DeviceDescription,
) -> Decision:
    reduce1, reduce2 = is_unnested_reduction(hero1, device), is_unnested_reduction(hero2, device)
    tiled1, tiled2 = tiled_transpose(hero1), tiled_transpose(hero2)
    nested1 = hero1.opcode == "transpose" and tiled1 is None
    nested2 = hero2.opcode == "transpose" and tiled2 is None
    if reduce1 and reduce2 and reduction_shape(hero1) != reduction_shape(hero2):
        return Decision.forbid("tiled reductions with different shapes")
    if tiled1 is not None and tiled2 is not None:
        if (tiled1.dims, tiled1.permutation) != (tiled2.dims, tiled2.permutation):
            return Decision.forbid("tiled transposes with different shapes")
    elif ((tiled1 is not None or reduce1) and nested2) or (nested1 and (tiled2 is not None or reduce2)):
        return Decision.forbid("multi-output fusion of a nested transpose with an unnested hero op")
    elif (tiled1 is not None and reduce2) or (reduce1 and tiled2 is not None):
        return Decision.forbid("multi-output fusion of a transpose and a reduction")
    if owner1.opcode == owner2.opcode == "fusion":
        for tiled, above, below in ((tiled1, owner1, owner2), (tiled2, owner2, owner1)):
            if tiled is not None and above in below.operands:
                parameter = below.callee().parameters[below.operands.index(above)]
                if not _only_intermediate(parameter):
                    return Decision.forbid("tiled transpose would become untiled")
    return ALLOWED


def _only_intermediate(parameter: HloInstruction) -> bool:
    if parameter.user_count != 1:
        return False
    one = parameter.users[0]
    while one.user_count:
        if one.user_count > 1 or not is_intermediate(one, 1):
            return False
        one = one.users[0]
    return True


# ---------------------------------------------------------------- siblings
def siblings_refusal(
    a: HloInstruction, b: HloInstruction, parent: HloInstruction, connected: bool, device: DeviceDescription
) -> Decision:
    """Whether two readers of one value may become one kernel; `a` is a fusion."""
    if connected:
        return Decision.forbid(f"{a.name} and {b.name} are connected", "neither depends on the other")
    shapes = shapes_refusal(a, b, device)
    if not shapes:
        return shapes
    if parent.shape.is_array and parent.shape.byte_size >= SMALL_PARAMETER:
        first, second = _unique_slice(parent, a), _unique_slice(parent, b)
        if first is not None and second is not None:
            for x, y in zip(first.attr("slice"), second.attr("slice"), strict=True):
                if not (x.start < y.limit and y.start < x.limit):
                    return Decision.forbid("slices are non-overlapping", "slices that share elements")
    for one in (a, b):
        if one.opcode == "fusion" and one.callee().root.opcode == "dynamic-update-slice":
            return Decision.forbid("can't fuse multiple DUSs")
    return budget_refusal(a, b, device, consumes=False)


def _unique_slice(parent: HloInstruction, reader: HloInstruction) -> HloInstruction | None:
    if reader.opcode == "slice":
        return reader
    if reader.opcode != "fusion":
        return None
    found: HloInstruction | None = None
    for place, operand in enumerate(reader.operands):
        if operand is parent:
            parameter = reader.callee().parameters[place]
            if found is not None or parameter.user_count != 1:
                return None
            found = _unique_slice(parameter, parameter.users[0])
            if found is None:
                return None
    return found


# ---------------------------------------------------------------- producer and consumer
def producer_refusal(producer: HloInstruction) -> Decision:
    """Whether a producer may be computed in a consumer's kernel and written as well."""
    if is_multi_output(producer):
        return Decision.forbid("Producer is a multi-output fusion")
    if AliasInfo().in_place_pairs(producer):
        return Decision.forbid("In-place operations are present")
    if not _loop_fusible_producer(producer):
        return Decision.forbid("producer is not loop-fusible", opcode=producer.opcode)
    if _physically_transposes(producer):
        return Decision.forbid("producer is physically transposing")
    return ALLOWED


def _loop_fusible_producer(producer: HloInstruction) -> bool:
    if not is_generally_fusible(producer):
        return False
    opcode = producer.opcode
    if opcode in ("iota", "constant"):
        return True
    if opcode == "reduce":
        return not producer.shape.is_tuple
    if opcode == "copy":
        return True
    if is_elementwise(producer) and producer.operand_count:
        return True
    if opcode == "fusion":
        return producer.attr("kind") == "kLoop"
    return opcode in _UNIVERSAL or (opcode == "bitcast" and keeps_bit_width(producer))


def _physically_transposes(instruction: HloInstruction) -> bool:
    if instruction.opcode == "fusion":
        return any(_physically_transposes(one) for one in instruction.callee().instructions)
    if instruction.opcode == "copy":
        return True
    return instruction.opcode == "transpose" and not transpose_is_bitcast(
        instruction.operand(0).shape, instruction.shape, instruction.dimensions
    )


def consumer_refusal(producer: HloInstruction, consumer: HloInstruction, cycle: bool, model: GpuModel) -> Decision:
    """Whether a consumer may take a producer that stays a result of the kernel."""
    if not is_root_candidate(consumer, model.device):
        return Decision.forbid("consumer not eligible as multi-output fusion root.", opcode=consumer.opcode)
    shapes = shapes_refusal(consumer, producer, model.device)
    if not shapes:
        return shapes
    if cycle:
        return Decision.forbid(f"{producer.name} would introduce a cycle when fused")
    budget = budget_refusal(producer, consumer, model.device, consumes=False)
    if not budget:
        return budget
    size = model.costs.merged_ir_size(producer, consumer)
    if size > MAX_IR_SIZE:
        return Decision.forbid("will generate too large IR", ir_size=size, limit=MAX_IR_SIZE)
    above, below = model.run_time(producer), model.run_time(consumer)
    together = fused_run_time(
        model.costs, model.analysis(producer, consumer), producer, consumer, above, below, side_output=True
    )
    unfused, fused = 2 * LAUNCH_OVERHEAD + above.exec + below.exec, LAUNCH_OVERHEAD + together.exec
    if fused > unfused:
        return Decision.forbid("will execute slower if fused", ticks_fused=fused, ticks_unfused=unfused)
    return ALLOWED
