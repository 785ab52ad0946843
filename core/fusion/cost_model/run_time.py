"""The run time of one kernel, and of a producer fused into its consumer: bytes, flops, bandwidths, dominating term.

Source: ``openxla/xla:xla/service/gpu/model/gpu_performance_model.cc``, ``gpu_performance_model_base.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from hloscope.core.analysis.cost import CostAnalysis, shape_bytes
from hloscope.core.analysis.cost_units import TICKS_PER_US, f32, nanoseconds, scaled, seconds
from hloscope.core.fusion.cost_model.coalescing import uncoalesced_cause
from hloscope.core.fusion.gpu.launch import Launch, launch_dimensions

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.fusion.gpu.fusion_analysis import FusionAnalysis
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

LAUNCH_OVERHEAD = TICKS_PER_US
"""Ticks that starting a kernel takes."""
L2_SPEEDUP = 2.5
L1_SPEEDUP = 8.0
"""On top of the second cache's."""
OVERLAP = 0.95
"""Share of the shorter of computing and memory access that hides behind the longer."""


@dataclass(frozen=True, slots=True)
class Read:
    """One operand's part of a kernel's reading."""

    operand: str
    bytes_net: int
    """Bytes that come from memory."""
    bytes_total: int
    """Bytes read altogether; what exceeds `bytes_net` comes from a cache, where it fits one."""
    utilization: float
    """Share of the memory bandwidth that is reached; below 1 for scattered reads."""
    dram_bandwidth: float
    """Bytes a second, after scattering and occupancy."""
    cache_bandwidth: float
    """Bytes a second for what is read again."""
    cache: str
    """``l1``, ``l2`` or ``none``: where the operand fits."""
    ticks: int


@dataclass(frozen=True, slots=True)
class RunTime:
    """An estimate; times in ticks of a quarter nanosecond."""

    flops: int
    bytes_read: int
    bytes_written: int
    read: int
    write: int
    compute: int
    exec: int
    launch: Launch
    reads: tuple[Read, ...] = ()
    flops_per_ns: int = 0
    uncoalesced: str | None = None
    """Why reads are scattered."""
    tiles: tuple[int, ...] | None = None
    """Output tile of a Triton kernel."""
    infinite: bool = False
    """A tiling that would not fit in registers."""

    @property
    def memory(self) -> int:
        """Reading and writing."""
        return self.read + self.write

    @property
    def bound_by(self) -> str:
        """The term that decides: ``compute``, ``read`` or ``write``."""
        if self.compute > self.memory:
            return "compute"
        return "read" if self.read >= self.write else "write"


@cache
def _per_block(clock_rate_ghz: float, transaction_bytes: int) -> float:
    """Bytes a second that one core can ask for."""
    return f32(f32(f32(clock_rate_ghz) * f32(1e9)) * transaction_bytes)


class _Speeds(NamedTuple):
    """What of a device decides how fast operands are read."""

    memory: int
    l2: int
    l1: int
    clock_rate_ghz: float
    transaction_bytes: int


def read_operand(device: DeviceDescription, name: str, blocks: int, net: int, total: int, utilization: float) -> Read:
    """Time to read one operand: the first time from memory, again from a cache that holds it."""
    speeds = _Speeds(
        device.memory_bandwidth,
        device.l2_cache_size,
        device.l1_cache_per_core * device.core_count,
        device.clock_rate_ghz,
        device.memory_transactions_per_clock,
    )
    return Read(name, *_read(speeds, blocks, net, total, utilization))


@lru_cache(maxsize=1 << 16)
def _read(
    speeds: _Speeds, blocks: int, net: int, total: int, utilization: float
) -> tuple[int, int, float, float, float, str, int]:
    """The fields of a `Read` but for the name."""
    memory = f32(speeds.memory)
    dram = f32(speeds.memory * utilization)
    rest, cache = memory, "none"
    if net < speeds.l2:
        rest, cache = f32(rest * L2_SPEEDUP), "l2"
        if net < speeds.l1:
            rest, cache = f32(rest * L1_SPEEDUP), "l1"
    else:
        rest = f32(rest * utilization)
    most = f32(blocks * _per_block(speeds.clock_rate_ghz, speeds.transaction_bytes))
    dram, rest = min(dram, most), min(rest, most)  # each core issues one transaction a clock
    first = min(net, total)
    ticks = seconds(f32(f32(first) / dram)) + seconds(f32(f32(total - first) / rest)) if blocks else 0
    return first, total, utilization, dram, rest, cache, ticks


def write_ticks(device: DeviceDescription, written: int) -> int:
    """Time to write bytes at the full bandwidth."""
    return seconds(f32(f32(written) / f32(device.memory_bandwidth)))


def flops_per_ns(device: DeviceDescription, launch: Launch) -> int:
    """Operations a nanosecond of as many cores and lanes as the grid fills."""
    lanes = min(launch.threads, device.fpus_per_core)
    cores = min(launch.blocks, device.core_count)
    return int(f32(f32(device.clock_rate_ghz) * 2) * (cores * lanes))


def compute_ticks(device: DeviceDescription, flops: int, launch: Launch) -> int:
    """Time to compute."""
    speed = flops_per_ns(device, launch)
    return nanoseconds(f32(f32(flops) / f32(speed))) if speed else 0


def combine(compute: int, memory: int) -> int:
    """Both together: the shorter one hides behind the longer, but for a twentieth."""
    return compute + memory - scaled(min(compute, memory), OVERLAP)


def coalescing_rate(device: DeviceDescription, shape: Shape, coalesced: bool) -> float:
    """Share of each memory transaction that is used: all of it, or one element."""
    if coalesced:
        return 1.0
    size = shape.type.byte_size if shape.is_array else 4
    return size / device.dram_transaction_bytes


def instruction_run_time(costs: CostAnalysis, analysis: FusionAnalysis, instruction: HloInstruction) -> RunTime:
    """The run time of an instruction as a kernel of its own."""
    device = costs.device
    launch = launch_dimensions(analysis)
    cause = uncoalesced_cause(analysis.kind, device, instruction)
    reads: list[Read] = []
    for operand in instruction.operands:
        total = costs.operand_bytes(instruction, operand)
        net = min(shape_bytes(operand.shape), total)
        rate = coalescing_rate(device, operand.shape, cause is None)
        reads.append(read_operand(device, operand.name, launch.blocks, net, total, rate))
    flops = costs.flops(instruction)
    written = costs.output_bytes(instruction)
    return total_time(device, flops, reads, written, write_ticks(device, written), launch, cause)


def fused_run_time(
    costs: CostAnalysis,
    analysis: FusionAnalysis,
    producer: HloInstruction,
    consumer: HloInstruction,
    producer_time: RunTime,
    consumer_time: RunTime,
    *,
    side_output: bool = False,
) -> RunTime:
    """The run time of the pair as one kernel; with `side_output` it writes the producer's result too."""
    device = costs.device
    launch = launch_dimensions(analysis)
    if producer_time.infinite or consumer_time.infinite:
        return _infinite(launch)
    used = costs.total_utilization(consumer, producer)
    flops = int(f32(f32(f32(producer_time.flops) * used) + f32(consumer_time.flops)))
    cause = uncoalesced_cause(analysis.kind, device, producer, consumer)
    reads: list[Read] = []
    operands = analysis.view.parameters()
    for operand, total in zip(operands, costs.shared_bytes(producer, consumer, operands), strict=True):
        net = min(shape_bytes(operand.shape), total)
        rate = coalescing_rate(device, operand.shape, cause is None)
        reads.append(read_operand(device, operand.name, launch.blocks, net, total, rate))
    written, write = consumer_time.bytes_written, consumer_time.write
    if side_output:
        written += producer_time.bytes_written
        write += producer_time.write
    return total_time(device, flops, reads, written, write, launch, cause)


def total_time(
    device: DeviceDescription,
    flops: int,
    reads: list[Read],
    written: int,
    write: int,
    launch: Launch,
    cause: str | None = None,
    tiles: tuple[int, ...] | None = None,
) -> RunTime:
    """The run time of a kernel put together from its parts; `write` is in ticks, `cause` why reads do not coalesce."""
    read = sum(one.ticks for one in reads)
    compute = compute_ticks(device, flops, launch)
    return RunTime(
        flops=flops,
        bytes_read=sum(one.bytes_total for one in reads),
        bytes_written=written,
        read=read,
        write=write,
        compute=compute,
        exec=combine(compute, read + write),
        launch=launch,
        reads=tuple(reads),
        flops_per_ns=flops_per_ns(device, launch),
        uncoalesced=cause,
        tiles=tiles,
    )


def _infinite(launch: Launch) -> RunTime:
    return RunTime(0, 0, 0, 0, 0, 0, 0, launch, infinite=True)
