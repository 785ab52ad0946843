"""The run time of a Triton kernel: every instruction works on tiles, and the tiling that is fastest is looked for.

Source: ``openxla/xla:xla/service/gpu/model/gpu_indexing_performance_model.cc``,
``xla/service/gpu/model/triton_emitter_constraints.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from hloscope.core.analysis.cost import concatenate_flops_per_element, shape_bytes
from hloscope.core.analysis.cost_cycles import cycles_per_element
from hloscope.core.analysis.cost_units import seconds
from hloscope.core.analysis.elementwise import ELEMENTWISE, is_elementwise, minor_to_major
from hloscope.core.analysis.indexing import Tile, operand_tiles, root_tile, without_constant_strides
from hloscope.core.fusion.cost_model.run_time import (
    Read,
    RunTime,
    read_operand,
    total_time,
)
from hloscope.core.fusion.decision import Decision
from hloscope.core.fusion.gpu.launch import Launch

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.fusion.gpu.fusion_view import FusionView
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

MAX_TILE_ELEMENTS = 1_048_576
_REGISTER_SHARE = 0.4
_NO_FLOPS = frozenset(
    """bitcast broadcast constant dynamic-slice dynamic-update-slice gather iota pad parameter slice transpose tuple
    reshape""".split()
)
_WARPS = ((256, 1), (1024, 2), (4096, 4))


class TileNode:
    """What a search asks of one instruction again and again."""

    __slots__ = ("dims", "elementwise", "flops", "inside", "instruction", "operands", "shape", "size", "tight")

    def __init__(self, device: DeviceDescription, view: FusionView, instruction: HloInstruction, root: bool) -> None:
        self.instruction = instruction
        self.shape = _array(instruction.shape)
        self.dims = self.shape.dimensions
        self.size = self.shape.type.byte_size
        self.inside = view.contains(instruction)
        self.elementwise = self.inside and is_elementwise(instruction)
        self.flops = flops_per_element(device, instruction) if self.inside else 0
        self.tight = root or not self.inside or instruction.opcode == "iota"
        """Whether its tile must fit in registers as a whole."""
        self.operands: tuple[TileNode, ...] = ()


class _Visit(NamedTuple):
    """One tile of one instruction."""

    node: TileNode
    tile: Tile
    blocks: int


@dataclass(frozen=True, slots=True)
class TiledRunTime:
    """The best tiling of a fusion."""

    run_time: RunTime
    tiles: tuple[int, ...]
    warps: int


def best_tiling(device: DeviceDescription, view: FusionView) -> TiledRunTime | Decision:
    """The fastest tiling of a body, the first among equals, or why there is none."""
    from hloscope.core.fusion.cost_model.tile_search import NotTileableError, fastest

    root = _graph(device, view)
    limit = _REGISTER_SHARE * device.registers_per_block_limit
    candidates = _possible(root.dims, limit, device.block_dim_limit_x)
    try:
        chosen = fastest(device, root, candidates, _WARPS, (limit, MAX_TILE_ELEMENTS)) if candidates else None
    except NotTileableError as error:
        return Decision.forbid(
            f"Fusion can not be tiled with SymbolicTileAnalysis: {_why_not(error.node)}",
            "an instruction that maps tiles onto tiles in its place",
            instruction=error.node.instruction.name,
            opcode=error.node.instruction.opcode,
        )
    if chosen is None:
        return Decision.forbid(
            "Fusion can not be tiled with SymbolicTileAnalysis: No valid tilings found.",
            "shapes of which tiles fit in registers",
            candidates=len(candidates),
        )
    tiles = candidates[chosen]
    visits = _visits(root, tiles)
    assert visits is not None
    warps = _warps(visits)
    return TiledRunTime(_estimate(device, root, tiles, warps, visits), tiles, warps)


def _why_not(node: TileNode) -> str:
    name, opcode = node.instruction.name, node.instruction.opcode
    if opcode == "pad":
        return f"Bailing out on %{name}"
    if opcode in ("bitcast", "reshape"):
        return f"Bailing out on reshape %{name}"
    return f"Failed to compute symbolic tile for %{name}"


def _blocks(root: TileNode, tiles: tuple[int, ...]) -> int:
    return prod([-(-a // b) for a, b in zip(root.dims, tiles, strict=True)])


def tiled_run_time(device: DeviceDescription, view: FusionView, tiles: tuple[int, ...], warps: int) -> RunTime | None:
    """The run time with tiles and warps that a fusion carries; None where its body cannot be tiled so."""
    root = _graph(device, view)
    if len(tiles) != len(root.dims):
        return None
    visits = _visits(root, tiles)
    return None if visits is None else _estimate(device, root, tiles, warps, visits)


def _array(shape: Shape) -> Shape:
    return shape.tuple_shapes[0] if shape.is_tuple else shape


def _possible(dimensions: tuple[int, ...], limit: float, grid: int) -> list[tuple[int, ...]]:
    """Root tiles that are tried: in each dimension the powers of two below it, then all of it.

    The last dimension varies fastest. Tiles that would not fit in registers are left out, as are too large grids.
    """
    found: list[tuple[tuple[int, ...], int, int]] = [((), 1, 1)]
    for size in dimensions:
        choices = [*(1 << bit for bit in range((size - 1).bit_length())), size]
        found = [
            ((*tiles, one), padded * _power(one), blocks * -(-size // one))
            for tiles, padded, blocks in found
            for one in choices
            if padded * _power(one) <= limit
        ]
    return [tiles for tiles, _, blocks in found if blocks < grid]


def _power(size: int) -> int:
    """The power of two from `size` on."""
    return 1 << (size - 1).bit_length()


def _padded(tile: Tile) -> int:
    return prod([1 << (one[0] - 1).bit_length() for one in tile])


# ---------------------------------------------------------------- propagation
def _graph(device: DeviceDescription, view: FusionView) -> TileNode:
    """The body as nodes; the root is returned."""
    nodes: dict[HloInstruction, TileNode] = {}
    top = view.roots()[0]
    stack = [top]
    while stack:
        one = stack.pop()
        if one in nodes:
            continue
        node = nodes[one] = TileNode(device, view, one, one is top)
        if node.inside:
            stack.extend(view.operands(one))
    for one, node in nodes.items():
        if node.inside:
            node.operands = tuple(nodes[operand] for operand in view.operands(one))
    return nodes[top]


def _visits(root: TileNode, tiles: tuple[int, ...]) -> list[_Visit] | None:
    """All tiles of a body; None where these sizes do not pass an instruction."""
    blocks = _blocks(root, tiles)
    visits: dict[tuple[TileNode, Tile, int], None] = {}
    queue: list[tuple[TileNode, Tile, int]] = [(root, root_tile(root.dims, tiles), blocks)]
    while queue:
        key = queue.pop()
        if key in visits:
            continue
        visits[key] = None
        node, tile, count = key
        if not node.inside:
            continue
        below = without_constant_strides(tile, node.dims)
        if node.elementwise:
            queue.extend([(one, below if len(one.dims) == len(below) else (), count) for one in node.operands])
            continue
        instruction = node.instruction
        made = operand_tiles(instruction, below, False)
        if made is None:
            return None
        if instruction.opcode == "concatenate":
            if not _parts_fit(instruction, tile):
                return None
            dim = instruction.dimensions[0]
            for one, part in zip(node.operands, made, strict=True):
                queue.append((one, part, count * one.dims[dim] // node.dims[dim]))
            continue
        queue.extend([(one, part, count) for one, part in zip(node.operands, made, strict=True)])
    return [_Visit(*key) for key in visits]


def _parts_fit(concatenate: HloInstruction, tile: Tile) -> bool:
    dim = concatenate.dimensions[0]
    return all(one.shape.dimensions[dim] % tile[dim].size == 0 for one in concatenate.operands[:-1])


def _warps(visits: list[_Visit]) -> int:
    largest = max(_padded(visit.tile) for visit in visits)
    return next((warps for limit, warps in _WARPS if largest <= limit), 8)


# ---------------------------------------------------------------- cost
def flops_per_element(device: DeviceDescription, instruction: HloInstruction) -> int:
    """Operations of one element of the result."""
    opcode = instruction.opcode
    if opcode in _NO_FLOPS:
        return 0
    if opcode == "concatenate":
        return concatenate_flops_per_element(instruction)
    if opcode in ELEMENTWISE:
        return cycles_per_element(device, opcode, instruction.shape.element_type)
    if opcode == "reduce":
        each = sum(flops_per_element(device, one) for one in instruction.callee("to_apply").instructions)
        dims = instruction.operand(0).shape.dimensions
        return (prod(dims[dim] for dim in instruction.dimensions) - 1) * each
    if opcode == "dot":
        lhs = instruction.operand(0).shape
        return 2 * prod(lhs.dimensions[dim] for dim in instruction.attr("lhs_contracting_dims") or ())
    return 0


def _contiguous_share(device: DeviceDescription, node: TileNode, tile: Tile) -> float:
    """Share of whole memory transactions that the contiguous part of a tile fills."""
    count = 1
    for dim in minor_to_major(node.shape):
        size, stride, _ = tile[dim]
        if stride != 1:
            break
        whole = node.dims[dim]
        count *= min(size, whole)
        if size < whole:
            break
    used = count * node.size
    line = device.dram_transaction_bytes
    return used / (line * -(-used // line))


def _estimate(
    device: DeviceDescription, root: TileNode, tiles: tuple[int, ...], warps: int, visits: list[_Visit]
) -> RunTime:
    blocks = _blocks(root, tiles)
    launch = Launch(blocks, warps * device.threads_per_warp)
    limit = _REGISTER_SHARE * device.registers_per_block_limit
    flops = 0
    totals: dict[TileNode, tuple[int, float]] = {}
    rooted: Tile = ()
    for node, tile, count in visits:
        padded = _padded(tile)
        if node.tight and padded > limit:
            return RunTime(0, 0, 0, 0, 0, 0, 0, launch, tiles=tiles, infinite=True)
        if node.inside:
            flops += node.flops * padded * count
            if node is root:
                rooted = tile
            continue
        read = count * prod([min(one[0], size) for one, size in zip(tile, node.dims, strict=True)])
        share = _contiguous_share(device, node, tile)
        known, worst = totals.get(node, (0, 1.0))
        totals[node] = (known + read * node.size, min(worst, share))
    reads: list[Read] = []
    for node, (total, share) in totals.items():
        operand = node.instruction
        net = min(shape_bytes(operand.shape), total)
        reads.append(read_operand(device, operand.name, blocks, net, total, share))
    bandwidth = int(_contiguous_share(device, root, rooted) * device.memory_bandwidth)
    written = sum(shape_bytes(leaf) for _, leaf in root.instruction.shape.leaves())
    write = seconds(written / bandwidth)
    return total_time(device, flops, reads, written, write, launch, tiles=tiles)
