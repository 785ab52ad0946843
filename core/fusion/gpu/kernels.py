"""Every kernel of a GPU module: what it moves and computes, which of both bounds it, and what fusion saved.

The place on the roofline is operations per byte; the ridge is where memory and arithmetic of the device balance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost_units import microseconds
from hloscope.core.fusion.gpu.can_fuse import is_fusible
from hloscope.core.fusion.gpu.model import GpuModel
from hloscope.core.fusion.gpu.priority_fusion import fusible_computations

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.fusion.cost_model.run_time import RunTime
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel."""

    kernel: str
    opcode: str
    """``fusion``, or the opcode of an instruction that stands alone."""
    emitter: str
    instructions: int
    """Instructions that it computes."""
    flops: int
    bytes_read: int
    bytes_written: int
    bytes_apart: int
    """What its instructions would read and write, each as a kernel of its own."""
    us: float
    bound_by: str
    """``compute``, ``read`` or ``write``."""
    intensity: float | None
    """Operations per byte moved."""
    ridge: float
    """Operations per byte at which the device's arithmetic and memory balance."""
    blocks: int
    threads: int

    @property
    def bytes_saved(self) -> int:
        """Traffic that fusing its instructions saved."""
        return self.bytes_apart - self.bytes_read - self.bytes_written


def kernels(module: HloModule, device: DeviceDescription) -> list[Kernel]:
    """The kernels of a module (those whose time the model estimates: no library calls), in post order."""
    model = GpuModel(device)
    ridge = device.clock_rate_ghz * 2e9 * device.core_count * device.fpus_per_core / device.memory_bandwidth
    found: list[Kernel] = []
    reached = _reached(module)
    for computation in fusible_computations(module):
        if computation not in reached:
            continue
        for one in computation.post_order():
            if one.opcode in ("parameter", "constant", "bitcast", "tuple", "get-tuple-element") or not is_fusible(one):
                continue
            found.append(_kernel(model, one, ridge))
    return found


def _reached(module: HloModule) -> set[HloComputation]:
    """Computations that the entry calls, directly or not; a stage may hold bodies that nothing calls any more."""
    found = {module.entry}
    queue = [module.entry]
    while queue:
        for one in queue.pop().instructions:
            for computation in one.called_computations:
                if computation not in found:
                    found.add(computation)
                    queue.append(computation)
    return found


def _kernel(model: GpuModel, one: HloInstruction, ridge: float) -> Kernel:
    time = model.run_time(one)
    inside = [one]
    if one.opcode == "fusion":
        inside = [each for each in one.callee().instructions if each.opcode not in ("parameter", "tuple")]
    moved = time.bytes_read + time.bytes_written
    return Kernel(
        kernel=one.name,
        opcode=one.opcode,
        emitter=model.analysis(one).kind,
        instructions=len(inside),
        flops=time.flops,
        bytes_read=time.bytes_read,
        bytes_written=time.bytes_written,
        bytes_apart=sum(_apart(model, each) for each in inside),
        us=microseconds(time.exec),
        bound_by=time.bound_by,
        intensity=time.flops / moved if moved else None,
        ridge=ridge,
        blocks=time.launch.blocks,
        threads=time.launch.threads,
    )


def _apart(model: GpuModel, one: HloInstruction) -> int:
    """Bytes that an instruction would move as a kernel of its own; constants and bitcasts are none."""
    if one.opcode in ("constant", "bitcast", "get-tuple-element"):
        return 0
    cost = model.costs.cost(one)
    return int(cost.output_bytes) + sum(int(size) for size in cost.operand_bytes)


def explain(time: RunTime) -> dict[str, object]:
    """A run time step by step as plain data: bytes, bandwidths, flops, terms in microseconds, the dominating one."""
    return {
        "us": microseconds(time.exec),
        "bound_by": time.bound_by,
        "blocks": time.launch.blocks,
        "threads": time.launch.threads,
        "flops": time.flops,
        "flops_per_ns": time.flops_per_ns,
        "compute_us": microseconds(time.compute),
        "read_us": microseconds(time.read),
        "write_us": microseconds(time.write),
        "bytes_read": time.bytes_read,
        "bytes_written": time.bytes_written,
        "uncoalesced": time.uncoalesced,
        "tile": None if time.tiles is None else list(time.tiles),
        "reads": [
            {
                "operand": one.operand,
                "bytes": one.bytes_total,
                "from_memory": one.bytes_net,
                "utilization": one.utilization,
                "bandwidth": one.dram_bandwidth,
                "cache": one.cache,
                "us": microseconds(one.ticks),
            }
            for one in time.reads
        ],
    }
