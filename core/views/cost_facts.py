"""What one instruction of a text costs: flops, bytes, and which of the two a device waits for.

The instruction is read alone, with parameters in place of its operands and with what it calls, so that the cost of a
line in a module of any size is known at once. Counts are those of the cost analysis of XLA:GPU; the times are those of
a perfect kernel at the device's peak rates, so a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import CostAnalysis
from hloscope.core.analysis.device import DeviceDescription, load_device
from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.text import parse_module

if TYPE_CHECKING:
    from hloscope.core.text.module_index import ModuleIndex

MOST_INSTRUCTIONS = 400
"""Called computations larger than this are not read for an answer."""
MOST_CHARACTERS = 200_000
_FREE = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"})
_NOT_ALONE = frozenset({"while", "call", "conditional", "custom-call", "send", "recv", "send-done", "recv-done"})


@dataclass(frozen=True, slots=True)
class CostFacts:
    """The cost of one instruction."""

    flops: int
    """As XLA's cost analysis for GPUs counts them: an operation that takes several cycles counts as that many."""
    bytes_read: int
    bytes_written: int
    device: str
    compute_ns: float
    """At the peak rate of the device's ordinary arithmetic."""
    memory_ns: float
    """At the bandwidth of its memory."""

    @property
    def bound_by(self) -> str:
        """``compute`` or ``memory``."""
        return "compute" if self.compute_ns > self.memory_ns else "memory"

    @property
    def intensity(self) -> float:
        """Flops a byte."""
        return self.flops / max(1, self.bytes_read + self.bytes_written)


def cost_facts(index: ModuleIndex, i: int, device: DeviceDescription | None = None) -> CostFacts | None:
    """The cost of an instruction; None where it moves nothing, or cannot be judged on its own."""
    opcode = index.opcode(i)
    if opcode in _FREE or opcode in _NOT_ALONE or "-start" in opcode or "-done" in opcode:
        return None
    text = _alone(index, i)
    if text is None:
        return None
    try:
        module, found = parse_module(text)
        if module is None or any(one.severity == "error" for one in found):
            return None
        device = device if device is not None else load_device()
        costs = CostAnalysis(device)
        root = module.entry.root
        assert root is not None
        flops, written = int(costs.flops(root)), int(costs.output_bytes(root))
        read = sum(int(costs.operand_bytes(root, one)) for one in dict.fromkeys(root.operands))
    except (HloscopeError, InternalError, ValueError, AssertionError, KeyError, TypeError):  # half-typed text
        return None
    rate = device.core_count * device.fpus_per_core * device.clock_rate_ghz * 2
    return CostFacts(flops, read, written, device.name, flops / rate, (read + written) / device.memory_bandwidth * 1e9)


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
