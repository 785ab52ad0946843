"""Bytes, flops and operand utilisation of every instruction, as XLA:GPU's cost analysis counts them.

Numbers are single precision where XLA keeps them so: they are rounded again at every step, and the printed times depend
on it. *Utilisation* of an operand is how many times each of its elements is read on average to compute the whole
result (2 for an operand broadcast to twice its size, 0.5 for one of which half is sliced). Source:
``openxla/xla:xla/service/hlo_cost_analysis.cc``, ``xla/service/gpu/model/gpu_hlo_cost_analysis.cc``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Literal

from hloscope.core.analysis.cost_cycles import cycles_per_element
from hloscope.core.analysis.cost_units import f32, llround
from hloscope.core.analysis.elementwise import (
    ELEMENTWISE,
    elements,
    is_elementwise,
    same_layout_and_dimensions,
    transpose_is_bitcast,
)
from hloscope.core.analysis.flop_counts import (
    TRANSCENDENTAL,
    cholesky_flops,
    convolution_flops,
    dot_flops,
    fft_flops,
    library_flops,
    ragged_dot_flops,
    triangular_solve_flops,
)
from hloscope.core.hlo.element_types import ELEMENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

Counted = Literal["cycles", "flops", "transcendentals", "products"]
"""What ``Cost.flops`` counts. ``cycles``: what XLA:GPU calls flops, with each element of an elementwise operation at
the cycles that were measured for it. ``flops``: one an element, and none for ``transcendentals``, which count by
themselves, as XLA's own report of a program has both. ``products``: the flops of dots and convolutions alone."""
MAX_IR_SIZE = 10_000
"""Instructions that a merged fusion may be emitted as."""
_POINTER_BYTES = 8
_TYPE_BYTES = {row.name: row.byte_size for row in ELEMENT_TYPES.values() if row.is_array_type}
_FREE_OPERANDS = frozenset(("parameter", "constant", "get-tuple-element", "bitcast", "after-all", "add-dependency"))


def shape_bytes(shape: Shape) -> int:
    """Bytes of an array; of a tuple, its table of pointers."""
    known = _TYPE_BYTES.get(shape.element_type)
    layout = shape.layout
    if known is not None and not shape.dynamic_dimensions and (layout is None or not layout.element_size_in_bits):
        return known * prod(shape.dimensions)
    if shape.is_tuple:
        return _POINTER_BYTES * len(shape.tuple_shapes)
    size = shape.byte_size
    return size + 4 * shape.rank if shape.is_dynamic else size


@dataclass(slots=True)
class Cost:
    """What one instruction costs on its own."""

    flops: float = 0.0
    output_bytes: float = 0.0
    operand_bytes: list[float] = field(default_factory=list[float])
    """Bytes read of each operand place."""
    operand_utilization: list[float] = field(default_factory=list[float])
    ir_size: float = 1.0
    """Instructions that it is emitted as."""


@dataclass(slots=True)
class Inner:
    """What the walk over a fusion's body notes of one instruction in it."""

    utilization: float = 0.0
    times_emitted: float = 0.0
    roots: dict[HloInstruction, None] = field(default_factory=dict["HloInstruction", None])
    """The instructions from which it is reached through elementwise steps only."""


class CostAnalysis:
    """Costs of the instructions of one module, worked out on demand and kept until `revisit`."""

    def __init__(self, device: DeviceDescription, counted: Counted = "cycles", *, at_most_once: bool = False) -> None:
        self.device = device
        self._at_most_once = at_most_once
        """Whether a kernel keeps what it has computed or read, as those that work on blocks do; one that is emitted
        element by element does it again for each use."""
        self.counted: Counted = counted
        self._costs: dict[HloInstruction, Cost] = {}
        self._inner: dict[HloInstruction, Inner] = {}
        self._root_utilization: dict[HloInstruction, float] = {}
        self._subcomputations: dict[HloComputation, tuple[int, float]] = {}
        self._alone: dict[HloInstruction, Cost] = {}
        """Costs of instructions in fusion bodies, which never change."""

    # ---------------------------------------------------------------- asking
    def cost(self, instruction: HloInstruction) -> Cost:
        """The cost of an instruction."""
        found = self._costs.get(instruction)
        if found is None:
            found = self._costs[instruction] = self._visit(instruction)
        return found

    def revisit(self, instruction: HloInstruction) -> None:
        """Forget an instruction that has changed."""
        self._costs.pop(instruction, None)

    def flops(self, instruction: HloInstruction) -> int:
        """What this analysis counts: floating point operations in units of the device's cycles table, where nothing
        else was asked for."""
        return int(self.cost(instruction).flops)

    def output_bytes(self, instruction: HloInstruction) -> int:
        """Bytes written."""
        return int(self.cost(instruction).output_bytes)

    def operand_bytes(self, instruction: HloInstruction, operand: HloInstruction) -> int:
        """Bytes read of an operand at its first place; 0 where it is none."""
        place = _place(instruction, operand)
        return 0 if place is None else int(self.cost(instruction).operand_bytes[place])

    def utilization(self, instruction: HloInstruction, operand: HloInstruction) -> float:
        """Utilisation of an operand at its first place; 0 where it is none."""
        place = _place(instruction, operand)
        return 0.0 if place is None else self.cost(instruction).operand_utilization[place]

    def total_utilization(self, instruction: HloInstruction, operand: HloInstruction) -> float:
        """Utilisation of an operand summed over all its places."""
        total = 0.0
        utilization = self.cost(instruction).operand_utilization
        for place, one in enumerate(instruction.operands):
            if one is operand or (one.opcode == "get-tuple-element" and one.operand(0) is operand):
                total = f32(total + utilization[place])
        return total

    def ir_size(self, instruction: HloInstruction) -> float:
        """Instructions that it is emitted as; for one inside a fusion, how many times it is emitted."""
        inner = self._inner.get(instruction)
        return inner.times_emitted if inner is not None else self.cost(instruction).ir_size

    def common_elementwise_utilization(self, a: HloInstruction, b: HloInstruction) -> float:
        """Utilisation of the roots that two instructions of one fusion body share."""
        total = 0.0
        others = self._inner[b].roots
        for root in self._inner[a].roots:
            if root in others:
                total = f32(total + self._root_utilization[root])
        return total

    def common_utilization(self, producer: HloInstruction, operand: HloInstruction, consumer: HloInstruction) -> float:
        """Share of an operand that producer and consumer read at the same time once they are one."""
        if operand not in consumer.operands:
            return 0.0
        if not is_elementwise(producer):
            if producer.opcode != "fusion":
                return 0.0
            self.cost(producer)
            body = producer.callee()
            parameter = body.parameters[producer.operands.index(operand)]
            if self.common_elementwise_utilization(parameter, body.root) != 1.0:
                return 0.0
        if consumer.opcode == "fusion":
            self.cost(consumer)
            parameters = consumer.callee().parameters
            shared = parameters[consumer.operands.index(operand)]
            total = 0.0
            for place in _producer_places(producer, consumer):
                total = f32(total + self.common_elementwise_utilization(shared, parameters[place]))
            return total
        return 1.0 if is_elementwise(consumer) else 0.0

    def shared_bytes(
        self, producer: HloInstruction, consumer: HloInstruction, operands: Iterable[HloInstruction]
    ) -> list[int]:
        """Bytes of each of these operands that the fused pair reads."""
        wanted = self.producer_utilization(consumer, producer)
        above, below = self.cost(producer).operand_bytes, self.cost(consumer).operand_bytes
        first, second = _places(producer), _places(consumer)
        found: list[int] = []
        for operand in operands:
            place, below_place = first.get(operand), second.get(operand)
            by_producer = 0 if place is None else int(above[place])
            by_consumer = 0 if below_place is None else int(below[below_place])
            both = 0
            if place is not None and below_place is not None:
                common = self.common_utilization(producer, operand, consumer)
                both = llround(f32(f32(shape_bytes(operand.shape)) * common))
            found.append(llround(f32(f32(by_producer) * wanted)) + by_consumer - both)
        return found

    def producer_utilization(self, consumer: HloInstruction, producer: HloInstruction) -> float:
        """Utilisation of a producer by a consumer; over all outputs that it reads, for a multi-output fusion."""
        if producer.opcode == "fusion" and producer.shape.is_tuple:
            return self.total_utilization(consumer, producer)
        return self.utilization(consumer, producer)

    def merged_ir_size(self, producer: HloInstruction, consumer: HloInstruction) -> int:
        """Instructions that the fused pair would be emitted as."""
        times = 1
        if consumer.opcode == "fusion":
            self.cost(consumer)
            times = int(self.ir_size(consumer.callee().parameters[consumer.operands.index(producer)]))
        return int(f32(f32(self.ir_size(producer) * times) + self.ir_size(consumer)))

    # ---------------------------------------------------------------- counting
    def _visit(self, instruction: HloInstruction) -> Cost:
        cost = Cost(
            output_bytes=f32(sum(shape_bytes(leaf) for _, leaf in instruction.shape.leaves() if leaf.is_array)),
            operand_bytes=[f32(shape_bytes(one.shape)) for one in instruction.operands],
            operand_utilization=[1.0] * instruction.operand_count,
        )
        opcode = instruction.opcode
        if opcode in ELEMENTWISE:
            if opcode != "copy":
                cost.flops = self.single(
                    self._each(opcode, instruction.shape.element_type) * elements(instruction.shape)
                )
        elif opcode in _FREE_OPERANDS or (opcode == "transpose" and _is_bitcast(instruction)):
            cost.output_bytes = 0.0
            cost.operand_bytes = [0.0] * instruction.operand_count
        else:
            handler = _HANDLERS.get(opcode)
            if handler is not None:
                handler(self, instruction, cost)
        return cost

    def _each(self, opcode: str, element_type: str) -> int:
        """What one element of an elementwise operation counts for."""
        if self.counted == "cycles":
            return cycles_per_element(self.device, opcode, element_type)
        if self.counted == "products":
            return 0
        return (opcode in TRANSCENDENTAL) == (self.counted == "transcendentals")

    def single(self, count: float) -> float:
        """A count as precise as XLA keeps it where decisions hang on it, and otherwise exact."""
        return f32(count) if self.counted == "cycles" else float(count)

    def reducer_flops(self, computation: HloComputation) -> float:
        """Flops of one application of a called computation."""
        known = self._subcomputations.get(computation)
        if known is None or known[0] != computation.version:
            total = 0.0
            for one in computation.post_order():
                total = self.single(total + self._visit(one).flops)
            known = self._subcomputations[computation] = (computation.version, total)
        return known[1]

    def fusion(self, fusion: HloInstruction, cost: Cost) -> None:
        """Bytes and flops of a fusion from the utilisation of what is inside."""
        body = fusion.callee()
        root = body.root
        order = body.post_order()
        outputs = list(root.operands) if root.opcode == "tuple" else [root]
        costs: dict[HloInstruction, Cost] = {}
        for one in order:
            found = self.cost(one) if one.opcode == "fusion" else self._alone.get(one)
            if found is None:
                found = self._alone[one] = self._visit(one)
            costs[one] = found
        written = 0.0
        for output in outputs:
            if output.opcode == "dynamic-update-slice":
                written = f32(written + shape_bytes(output.operand(1).shape))
                costs[output] = self._visit(output)
                costs[output].operand_utilization[0] = 0.0
                continue
            for _, leaf in output.shape.leaves():
                if leaf.is_array:
                    written = f32(written + shape_bytes(leaf))
        cost.output_bytes = written
        self._walk(root, order, costs, cost)
        for place, parameter in enumerate(body.parameters):
            inner = self._inner[parameter]
            cost.operand_utilization[place] = inner.utilization
            cost.operand_bytes[place] = float(llround(f32(f32(shape_bytes(parameter.shape)) * inner.utilization)))

    def _walk(
        self, root: HloInstruction, order: list[HloInstruction], costs: dict[HloInstruction, Cost], cost: Cost
    ) -> None:
        inner: dict[HloInstruction, Inner] = {one: Inner() for one in order}
        utilization = dict.fromkeys(order, 0.0)
        emitted = dict.fromkeys(order, 0)
        utilization[root] = 1.0
        emitted[root] = 1
        inner[root].roots[root] = None
        flops = total_emitted = 0.0
        for one in reversed(order):
            here = inner[one]
            for use in here.roots:
                here.utilization = f32(here.utilization + utilization[use])
                here.times_emitted = f32(here.times_emitted + emitted[use])
            if self._at_most_once:
                here.utilization = min(1.0, here.utilization)
            flops = self.single(flops + self.single(here.utilization * costs[one].flops))
            total_emitted = f32(total_emitted + here.times_emitted)
            through = _passes_through(one)
            for place, operand in enumerate(one.operands):
                if through:
                    inner[operand].roots.update(here.roots)
                    continue
                inner[operand].roots[operand] = None
                wanted = f32(here.utilization * costs[one].operand_utilization[place])
                count = elements(operand.shape)
                if count == 0:
                    wanted = 0.0
                else:
                    wanted = f32(math.ceil(f32(wanted * f32(count))) / f32(count))
                utilization[operand] = f32(utilization[operand] + wanted)
                if self._at_most_once:
                    utilization[operand] = min(1.0, utilization[operand])
                emitted[operand] += int(here.times_emitted)
        cost.flops = flops
        cost.ir_size = total_emitted
        self._inner.update(inner)
        self._root_utilization.update(utilization)


def _passes_through(instruction: HloInstruction) -> bool:
    opcode = instruction.opcode
    if opcode in ("tuple", "get-tuple-element") or is_elementwise(instruction):
        return True
    return opcode == "bitcast" and same_layout_and_dimensions(instruction.operand(0).shape, instruction.shape)


def _place(instruction: HloInstruction, operand: HloInstruction) -> int | None:
    for place, one in enumerate(instruction.operands):
        if one is operand:
            return place
    return None


def _places(instruction: HloInstruction) -> dict[HloInstruction, int]:
    """The first place of every operand."""
    found: dict[HloInstruction, int] = {}
    for place, one in enumerate(instruction.operands):
        found.setdefault(one, place)
    return found


def _producer_places(producer: HloInstruction, consumer: HloInstruction) -> list[int]:
    if producer.opcode == "fusion" and producer.shape.is_tuple:
        return [
            place
            for place, one in enumerate(consumer.operands)
            if one.opcode == "get-tuple-element" and one.operand(0) is producer
        ]
    return [consumer.operands.index(producer)]


def _is_bitcast(instruction: HloInstruction) -> bool:
    return transpose_is_bitcast(instruction.operand(0).shape, instruction.shape, instruction.dimensions)


# ---------------------------------------------------------------- one function an opcode
def _slice(_: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    cost.operand_bytes[0] = cost.output_bytes
    cost.operand_utilization[0] = f32(elements(instruction.shape) / max(1, elements(instruction.operand(0).shape)))


def _dynamic_update_slice(_: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    update, whole = elements(instruction.operand(1).shape), elements(instruction.shape)
    cost.output_bytes = f32(shape_bytes(instruction.operand(1).shape))
    cost.operand_bytes[0] = 0.0
    cost.operand_utilization[0] = f32((whole - update) / max(1, whole))


def _broadcast(_: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    cost.operand_bytes[0] = f32(shape_bytes(instruction.shape))
    cost.operand_utilization[0] = f32(elements(instruction.shape) / max(1, elements(instruction.operand(0).shape)))


def _tuple(_: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    cost.output_bytes = f32(shape_bytes(instruction.shape))
    cost.operand_bytes = [0.0] * instruction.operand_count


def concatenate_flops_per_element(instruction: HloInstruction) -> int:
    """6, or 400 where operand 0 ends off a multiple of 32 along an inner dimension (a warp then runs both branches)."""
    dim = instruction.dimensions[0]
    return 400 if dim > 0 and instruction.operand(0).shape.dimensions[dim] & 31 else 6


def _concatenate(costs: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    if costs.counted == "cycles":
        cost.flops = f32(concatenate_flops_per_element(instruction) * elements(instruction.shape))


def _first_leaf(shape: Shape) -> Shape:
    return shape.tuple_shapes[0] if shape.is_tuple else shape


def _reduce(costs: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    result = _first_leaf(instruction.shape)
    count = elements(instruction.operand(0).shape) - elements(result)
    cost.flops = costs.single(costs.reducer_flops(instruction.callee("to_apply")) * count)
    for place in range(instruction.operand_count // 2, instruction.operand_count):
        cost.operand_bytes[place] = f32(elements(result) * shape_bytes(instruction.operand(place).shape))
        cost.operand_utilization[place] = f32(elements(result))


def _reduce_window(costs: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    window = instruction.attr("window").dimensions
    result = _first_leaf(instruction.shape)
    outputs, size = elements(result), prod(one.size for one in window)
    count = (size - 1) * outputs
    wide = [dim for dim, one in enumerate(window) if one.size != 1]
    padded = [dim for dim, one in enumerate(window) if one.padding_low or one.padding_high]
    if len(wide) == 1 and len(padded) == 1 and instruction.shape.is_array:
        dim, one = wide[0], window[wide[0]]
        whole = one.padding_low == one.padding_high != 0 and one.size == 2 * one.padding_low + 1
        if whole and one.padding_low == result.dimensions[dim] - 1:
            size = result.dimensions[dim]
            count = outputs // size + size - 1
    operand = instruction.operand(0).shape
    cost.operand_utilization[0] = f32(outputs * size / max(1, elements(operand)))
    cost.operand_bytes[0] = f32(outputs * size * operand.type.byte_size)
    cost.flops = costs.single(costs.reducer_flops(instruction.callee("to_apply")) * count)


def _select_and_scatter(costs: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    size = prod(one.size for one in instruction.attr("window").dimensions)
    select, scatter = (costs.reducer_flops(instruction.callee(role)) for role in ("select", "scatter"))
    cost.flops = costs.single((select * (size - 1) + scatter) * elements(instruction.operand(1).shape))


def _product(count: Callable[[HloInstruction], int]) -> Callable[[CostAnalysis, HloInstruction, Cost], None]:
    def handle(costs: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
        if costs.counted != "transcendentals":
            cost.flops = costs.single(count(instruction))

    return handle


def _plain(count: Callable[[HloInstruction], int]) -> Callable[[CostAnalysis, HloInstruction, Cost], None]:
    def handle(costs: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
        if costs.counted in ("cycles", "flops"):
            cost.flops = costs.single(count(instruction))

    return handle


def _custom_call(costs: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    flops = library_flops(instruction)
    if flops is None:
        return
    # The other results are scratch.
    cost.output_bytes = f32(shape_bytes(_first_leaf(instruction.shape)))
    if costs.counted != "transcendentals":
        cost.flops = costs.single(flops)


def _random(costs: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    if costs.counted == "transcendentals":
        cost.flops = float(_all_elements(instruction.shape))


def _all_reduce(costs: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    """As between two devices. On GPUs XLA takes the time from elsewhere."""
    if costs.counted == "flops":
        cost.flops = float(_all_elements(instruction.shape))


def _all_elements(shape: Shape) -> int:
    return sum(elements(leaf) for _, leaf in shape.leaves() if leaf.is_array)


def _gather(_: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    cost.operand_bytes[0] = cost.output_bytes
    cost.operand_utilization[0] = f32(elements(instruction.shape) / max(1, elements(instruction.operand(0).shape)))


def _scatter(costs: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    count = instruction.operand_count // 2
    updates = [shape_bytes(one.shape) for one in instruction.operands[count + 1 :]]
    for place, size in enumerate(updates):
        cost.operand_bytes[place] = cost.operand_bytes[count + 1 + place] = f32(size)
    cost.output_bytes = f32(sum(updates))
    each = costs.reducer_flops(instruction.callee("to_apply"))
    cost.flops = costs.single(each * elements(instruction.operand(count + 1).shape))


def _map(costs: CostAnalysis, instruction: HloInstruction, cost: Cost) -> None:
    cost.flops = costs.single(costs.reducer_flops(instruction.callee("to_apply")) * elements(instruction.shape))


def _sort_flops(instruction: HloInstruction) -> int:
    count = elements(instruction.operand(0).shape)
    return count * (max(0, count - 1)).bit_length()


_HANDLERS: dict[str, Callable[[CostAnalysis, HloInstruction, Cost], None]] = {
    "all-reduce": _all_reduce,
    "broadcast": _broadcast,
    "cholesky": _plain(cholesky_flops),
    "concatenate": _concatenate,
    "convolution": _product(convolution_flops),
    "custom-call": _custom_call,
    "dot": _product(dot_flops),
    "dynamic-slice": _slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "fft": _plain(fft_flops),
    "fusion": CostAnalysis.fusion,
    "gather": _gather,
    "map": _map,
    "ragged-dot": _product(ragged_dot_flops),
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "rng": _random,
    "rng-bit-generator": _random,
    "scaled-dot": _product(dot_flops),
    "scatter": _scatter,
    "select-and-scatter": _select_and_scatter,
    "slice": _slice,
    "sort": _plain(_sort_flops),
    "triangular-solve": _plain(triangular_solve_flops),
    "tuple": _tuple,
}
