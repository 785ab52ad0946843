"""What one instruction of a text costs: flops, bytes, and which of the two a device waits for.

The instruction is read alone, with parameters in place of its operands and with what it calls, so that the cost of a
line in a module of any size is known at once. Operations are counted as XLA reports a program's (one an element,
transcendental ones apart), bytes as the cost analysis of XLA:GPU has them, but an operand at most once. The times are
those of a kernel that is limited by nothing else: products at the rate of the matrix units, other operations at the
cycles that XLA measured for each, bytes at the memory's bandwidth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import CostAnalysis, shape_bytes
from hloscope.core.analysis.device import DeviceDescription, load_device
from hloscope.core.analysis.flop_counts import CONVOLUTIONS, GEMMS
from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.text import parse_module

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.text.module_index import ModuleIndex

MOST_INSTRUCTIONS = 400
"""Called computations larger than this are not read for an answer."""
MOST_CHARACTERS = 200_000
_PRODUCTS = frozenset({"dot", "convolution", "ragged-dot", "scaled-dot", "custom-call"})
_FREE = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"})
_LIBRARY = re.compile(f'custom_call_target="(?:{"|".join(map(re.escape, (*GEMMS, *CONVOLUTIONS)))})"')
"""Calls whose operations are known."""
_NOT_ALONE = frozenset({"while", "call", "conditional", "send", "recv", "send-done", "recv-done"})


@dataclass(frozen=True, slots=True)
class CostFacts:
    """The cost of one instruction."""

    flops: int
    """A multiply-add counts as two, an element of any other operation that is not transcendental as one."""
    transcendentals: int
    """Elements of exponentials, roots, sines and the like."""
    bytes_read: int
    bytes_written: int
    device: str
    compute_ns: float
    """Of the products at the rate of the matrix units for their type, of all else at XLA's cycles for each opcode."""
    memory_ns: float
    """At the bandwidth of its memory."""

    @property
    def bound_by(self) -> str:
        """``compute`` or ``memory``."""
        return "compute" if self.compute_ns > self.memory_ns else "memory"

    @property
    def intensity(self) -> float:
        """Flops and transcendentals a byte."""
        return (self.flops + self.transcendentals) / max(1, self.bytes_read + self.bytes_written)


def cost_facts(index: ModuleIndex, i: int, device: DeviceDescription | None = None) -> CostFacts | None:
    """The cost of an instruction; None where it moves nothing, or cannot be judged on its own."""
    opcode = index.opcode(i)
    if opcode in _FREE or opcode in _NOT_ALONE or "-start" in opcode or "-done" in opcode:
        return None
    if opcode == "custom-call" and _LIBRARY.search(index.attributes_text(i)) is None:
        return None
    text = _alone(index, i)
    if text is None:
        return None
    try:
        module, found = parse_module(text)
        if module is None or any(one.severity == "error" for one in found):
            return None
        device = device if device is not None else load_device()
        root = module.entry.root
        assert root is not None
        costs, counts, transcendental, products = (
            CostAnalysis(device, counted, at_most_once=_on_blocks(root))
            for counted in ("cycles", "flops", "transcendentals", "products")
        )
        written = int(costs.output_bytes(root))
        # From memory an operand comes once; a kernel that reads it again for each use finds it in a cache.
        read = sum(
            min(int(costs.operand_bytes(root, one)), sum(shape_bytes(leaf) for _, leaf in one.shape.leaves()))
            for one in dict.fromkeys(root.operands)
        )
        flops = counts.flops(root)
        transcendentals = transcendental.flops(root)
        compute = _compute_ns(device, module, costs.flops(root), products.flops(root))
    except (HloscopeError, InternalError, ValueError, AssertionError, LookupError, TypeError, AttributeError):
        return None  # half-typed text
    moved = (read + written) / device.memory_bandwidth * 1e9
    return CostFacts(flops, transcendentals, read, written, device.name, compute, moved)


def _on_blocks(root: HloInstruction) -> bool:
    """Whether the kernel is Triton's, cuDNN's or another's that computes each value of a block once."""
    return root.opcode == "fusion" and root.attr("kind") == "kCustom"


def _compute_ns(device: DeviceDescription, module: HloModule, cycles: int, products: int) -> float:
    ordinary = device.core_count * device.fpus_per_core * device.clock_rate_ghz * 2
    kinds = [one for body in module.computations for one in body.instructions if one.opcode in _PRODUCTS]
    if not kinds:
        return cycles / ordinary
    widths = {max(1, operand.shape.type.bits // 8) for one in kinds for operand in one.operands[:2]}
    rate = device.matrix_rates.get(min(max(widths), 8))
    fast = ordinary if rate is None else device.core_count * rate.units_per_core * rate.ops_per_clock * 2
    clock = 1.0 if rate is None else rate.clock_rate_ghz
    return max(0, cycles - products) / ordinary + products / max(ordinary, fast * clock)


def _alone(index: ModuleIndex, i: int) -> str | None:
    """A module with that one instruction; None where it is too large or names what is not there."""
    operands = index.operands(i)
    if -1 in operands or len(index.text(i)) > MOST_CHARACTERS:
        return None
    needed, waiting, size = dict[int, None](), list(index.called(i)), 0
    while waiting:
        number = waiting.pop()
        if number in needed:
            continue
        if number < 0:
            return None
        needed[number] = None
        one = index.computation(number)
        size += len(one)
        if size > MOST_INSTRUCTIONS or one.span[1] - one.span[0] > MOST_CHARACTERS:
            return None
        for k in range(one.begin, one.end):
            waiting += index.called(k)
    bodies = [index.source[slice(*index.computation(number).span)] for number in sorted(needed)]
    given = list(dict.fromkeys(operands))
    lines = [f"  %{index.name(k)} = {index.shape_text(k)} parameter({n})" for n, k in enumerate(given)]
    line = index.text(i).removeprefix("ROOT ")
    if "control-predecessors" in line:
        return None
    return "\n".join(["HloModule alone", "", *bodies, "", "ENTRY %alone.entry {", *lines, f"  ROOT {line}", "}", ""])
