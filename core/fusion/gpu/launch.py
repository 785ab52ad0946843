"""How many blocks of how many threads each emitter starts.

Source: ``openxla/xla:xla/service/gpu/launch_dimensions.cc``, ``xla/service/gpu/gpu_fusible.cc``
(ComputeLoopFusionConfig, MaxUnrollFactor), ``xla/backends/gpu/codegen/emitters/{reduction,transpose,scatter}.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import elements, is_elementwise
from hloscope.core.fusion.gpu.fusion_analysis import backend_config
from hloscope.core.fusion.gpu.shapes import BANKS, element_bits, normalized_transpose, reduction_shape

if TYPE_CHECKING:
    from hloscope.core.fusion.gpu.fusion_analysis import FusionAnalysis
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

_WARP_SCHEDULERS = 4
_UNROLL = 4
_THREADS_TARGET = 256
_MANY_CONCATENATE_OPERANDS = 10
_LARGE_WINDOW = 8
_MAX_UNROLL_FLAG = 8
_SCATTER_WARPS = 4
_WIDEST = 1 << 30


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's grid."""

    blocks: int
    threads: int
    """Threads of one block."""


def launch_dimensions(analysis: FusionAnalysis) -> Launch:
    """The grid that the emitter of a fusion would use."""
    kind = analysis.kind
    if kind == "loop":
        return _loop(analysis)
    if kind == "reduction":
        return _reduction(analysis)
    if kind == "transpose":
        return _transpose(analysis)
    if kind == "concatenate":
        return _concatenate(analysis)
    if kind == "scatter":
        return _scatter(analysis)
    if kind == "triton":
        known = _triton(analysis)
        if known is not None:
            return known
    return Launch(ceil_div(elements(analysis.roots[0].shape), 128), 128)


def ceil_div(a: int, b: int) -> int:
    """Quotient, rounded up."""
    return -(-a // b)


def one_dimensional(analysis: FusionAnalysis, shape: Shape, unroll: int) -> Launch:
    """A grid with one thread for each `unroll` elements."""
    count = elements(shape)
    if count <= 1:
        return Launch(1, 1)
    count = ceil_div(count, unroll)
    threads = min(analysis.device.threads_per_warp * _WARP_SCHEDULERS, count)
    return Launch(ceil_div(count, threads), threads)


def unroll_factor(analysis: FusionAnalysis, shape: Shape) -> int:
    """Elements of the result that one thread of a loop computes."""
    device = analysis.device
    count = elements(shape)
    unroll = 1
    if count >= device.threads_per_core_limit * device.core_count and not analysis.view.any_of(_bad_to_unroll):
        unroll = gcd(count, _max_unroll(analysis))
    return max(unroll, ceil_div(8, analysis.smallest_output_bits or 8))


def _bad_to_unroll(node: HloInstruction) -> bool:
    if node.opcode in ("sort", "dot"):
        return True
    if node.opcode == "concatenate":
        return node.operand_count > _MANY_CONCATENATE_OPERANDS
    if node.opcode == "reduce":
        return node.shape.is_tuple and len(node.shape.tuple_shapes) > 1
    if node.opcode == "reduce-window":
        return prod(one.size for one in node.attr("window").dimensions) > _LARGE_WINDOW
    return False


def _max_unroll(analysis: FusionAnalysis) -> int:
    device = analysis.device
    if not device.is_blackwell:
        return _UNROLL
    vector_bits = 256 if device.toolkit_version >= (12, 9, 0) else 128
    view = analysis.view
    narrow = (analysis.smallest_output_bits or _WIDEST) < vector_bits // _UNROLL
    if (
        analysis.kind not in ("loop", "transpose", "concatenate")
        or not narrow
        or len(analysis.roots) > 1
        or view.any_of(lambda node: node.opcode == "reduce")
    ):
        return _UNROLL
    shapes = [one.shape for one in (*view.parameters(), *analysis.roots) if one.shape.is_array]
    widest = max([8, *(element_bits(shape) for shape in shapes)])
    unroll = min(_MAX_UNROLL_FLAG, vector_bits // widest)
    unroll = 1 << (max(1, unroll).bit_length() - 1)
    while unroll > _UNROLL and view.any_of(lambda node, most=unroll: _small_minor_transpose(node, most)):
        unroll //= 2
    return max(unroll, 8)


def _small_minor_transpose(node: HloInstruction, unroll: int) -> bool:
    if node.opcode != "transpose":
        return False
    normal = normalized_transpose(node)
    return (normal[0][-1] if normal and normal[0] else node.shape.dimensions[-1]) < unroll


# ---------------------------------------------------------------- loops
def _loop(analysis: FusionAnalysis) -> Launch:
    update = _in_place_update(analysis)
    shape = update if update is not None else _first_array(analysis.roots[0].shape)
    return one_dimensional(analysis, shape, unroll_factor(analysis, shape))


def _first_array(shape: Shape) -> Shape:
    while shape.is_tuple and shape.tuple_shapes:
        shape = shape.tuple_shapes[0]
    return shape


def _in_place_update(analysis: FusionAnalysis) -> Shape | None:
    """Shape of the update where every root is a dynamic-update-slice that is written in place; else None."""
    view = analysis.view
    updates: list[HloInstruction] = []
    for root in analysis.roots:
        one = root
        if one.opcode == "bitcast":
            one = view.resolve(one.operand(0))
        if one.opcode != "dynamic-update-slice":
            return None
        updates.append(one)
    first = view.resolve(updates[0].operand(1)).shape
    for update in updates:
        if update.operand(1).shape != first or not _written_in_place(analysis, update, first):
            return None
    return first


def _written_in_place(analysis: FusionAnalysis, update: HloInstruction, update_shape: Shape) -> bool:
    view = analysis.view
    users = view.users(update)
    while users:
        if len(users) > 1 or users[0].opcode != "bitcast":
            return False
        users = view.users(users[0])
    operand = view.resolve(update.operand(0))
    if view.contains(operand) and operand.opcode == "bitcast":
        operand = view.resolve(operand.operand(0))
    if view.contains(operand):
        return False
    fine = True

    def visit(node: HloInstruction) -> bool | None:
        nonlocal fine
        if node is update:
            return False
        if (
            node.opcode == "dynamic-slice"
            and view.resolve(node.operand(0)) is view.resolve(update.operand(0))
            and node.shape == update_shape
        ):
            if elements(update_shape) != 1 and node.operands[1:] != update.operands[2:]:
                fine = False
                return None
            return True
        if not is_elementwise(node) and node.opcode not in ("bitcast", "tuple"):
            fine = False
            return None
        return True

    view.walk(_outside_users(analysis, operand), visit, up=False)
    return fine


def _outside_users(analysis: FusionAnalysis, operand: HloInstruction) -> list[HloInstruction]:
    """Users inside of an instruction outside."""
    return analysis.view.users(operand)


def _concatenate(analysis: FusionAnalysis) -> Launch:
    hero = analysis.heroes[0]
    dim = hero.dimensions[0]
    largest = max((one.shape for one in hero.operands), key=lambda shape: shape.dimensions[dim])
    unroll = unroll_factor(analysis, largest)
    for operand in hero.operands:
        unroll = gcd(unroll, operand.shape.dimensions[dim])
    return one_dimensional(analysis, largest, unroll)


def _scatter(analysis: FusionAnalysis) -> Launch:
    scatter = analysis.heroes[0]
    count = scatter.operand_count // 2
    output, indices = scatter.operand(0).shape.dimensions, scatter.operand(count).shape
    update = scatter.operand(count + 1).shape
    piece = update.dimensions[1:]  # the scatter simplifier puts the number of slices first
    slices = indices.dimensions[0] if indices.dimensions else 1
    length = indices.dimensions[1] if indices.rank > 1 else 1
    active = _SCATTER_WARPS * analysis.device.core_count
    if scatter.attr("indices_are_sorted") and not scatter.attr("unique_indices") and slices > active:
        possible = prod(whole - size + 1 for whole, size in list(zip(output, piece, strict=False))[:length])
        each = ceil_div(slices, max(active, possible))
        vector = 128 // indices.type.bits
        if length == 1 and each > vector:
            each = ceil_div(each, vector) * vector
        return Launch(ceil_div(slices, each * _SCATTER_WARPS), _SCATTER_WARPS * analysis.device.threads_per_warp)
    launch = one_dimensional(analysis, update, gcd(prod(piece), unroll_factor(analysis, update)))
    warp = analysis.device.threads_per_warp
    return Launch(launch.blocks, ceil_div(launch.threads, warp) * warp)


# ---------------------------------------------------------------- transposes
def _transpose(analysis: FusionAnalysis) -> Launch:
    transpose = analysis.transpose
    assert transpose is not None
    if transpose.packed is not None:
        counts = (ceil_div(size, tile) for size, tile in zip(transpose.canonical, transpose.packed, strict=True))
        return Launch(prod(counts), 128)
    permutation = transpose.permutation
    rank = len(permutation)
    source = [0] * rank
    for place, dim in enumerate(permutation):
        source[dim] = transpose.dims[place]
    minor_kept = permutation[-1] == rank - 1
    heroes = [hero for hero in analysis.heroes if hero.opcode == "transpose"]
    size = max(hero.shape.type.byte_size for hero in heroes) * (source[-1] if minor_kept else 1)
    shared = BANKS * (BANKS + 1) * size * len(heroes)

    def blocks(vector: int) -> int:
        tiles = [1] * rank
        if minor_kept:
            tiles[-1] = vector
            tiles[-2] = tiles[permutation[rank - 2]] = BANKS
        else:
            tiles[-1] = tiles[permutation[-1]] = BANKS * vector
        return prod(ceil_div(a, b) for a, b in zip(source, tiles, strict=True))

    if minor_kept:
        return Launch(blocks(source[-1]), 128)
    device = analysis.device
    plain = blocks(1)
    vector = (8 if device.platform == "rocm" else 4) // max(1, size)
    while vector > 1:
        work = vector * vector
        if (
            plain * 128 >= work * device.core_count * device.threads_per_core_limit
            and shared * work <= device.shared_memory_per_block
            and source[-1] % vector == 0
            and source[permutation[-1]] % vector == 0
        ):
            return Launch(blocks(vector), 128)
        vector //= 2
    return Launch(plain, 128)


# ---------------------------------------------------------------- reductions
def vector_size(analysis: FusionAnalysis, minor: int, threads: int) -> int:
    """Elements that a thread of a reduction loads at once."""
    if minor % 2 or threads * 2 > minor:
        return 1
    view = analysis.view
    for hero in analysis.heroes:
        if any(one.shape.type.kind == "complex" for one in view.operands(hero)):
            return 1
    bits = analysis.smallest_input_bits or _WIDEST
    if bits >= 64:
        return 1
    if bits >= 32 or threads * 4 > minor:
        return 2
    return 4 if minor % 4 == 0 else 2


def _reduction(analysis: FusionAnalysis) -> Launch:
    hero = analysis.reduction_hero
    assert hero is not None
    shape = reduction_shape(hero)
    if shape.is_row:
        return _multi_row(analysis, shape.dims) or _row(analysis, shape.dims)
    warp = analysis.device.threads_per_warp
    return _small_column(analysis, shape.dims) if warp % shape.dims[2] == 0 else _column(analysis, shape.dims)


def _row_threads(kept: int, reduced_threads: int) -> int:
    """Rows that one block takes."""
    if kept * reduced_threads <= _THREADS_TARGET:
        return kept
    return _THREADS_TARGET // reduced_threads


def _multi_row(analysis: FusionAnalysis, dims: tuple[int, int, int]) -> Launch | None:
    """Several short rows in one warp; None where the row is no power of two or too long."""
    _, kept, reduced = dims
    if reduced & (reduced - 1):
        return None
    found = [bits for bits in (analysis.smallest_input_bits, analysis.smallest_output_bits) if bits is not None]
    vector = min(reduced, 64 // min(found))
    if max(found) >= 32:
        vector = min(128 // max(found), vector)
    vector = max(1, vector)
    warp = analysis.device.threads_per_warp
    if reduced > warp * vector:
        return None

    def blocks(size: int) -> int:
        return ceil_div(kept, max(1, _row_threads(kept, reduced // size)))

    while vector > 1 and blocks(vector) < analysis.device.core_count:
        vector //= 2
    if reduced > warp * vector:
        return None
    threads = reduced // vector
    return Launch(blocks(vector), max(1, _row_threads(kept, threads)) * threads)


def _row(analysis: FusionAnalysis, dims: tuple[int, int, int]) -> Launch:
    _, kept, reduced = dims
    warp = analysis.device.threads_per_warp
    threads = min(1024, ceil_div(ceil_div(reduced, 16), warp) * warp)
    rows = _row_threads(kept, threads) if threads * 2 <= _THREADS_TARGET else 1
    vector = vector_size(analysis, reduced, threads)
    columns = reduced // vector
    each = min(16 // vector, ceil_div(columns, threads))
    return Launch(ceil_div(kept, rows) * ceil_div(columns, each * threads), rows * threads)


def _column(analysis: FusionAnalysis, dims: tuple[int, int, int]) -> Launch:
    vector = vector_size(analysis, dims[2], 32)
    return Launch(dims[0] * ceil_div(dims[2], 32 * vector), 1024)


def _small_column(analysis: FusionAnalysis, dims: tuple[int, int, int]) -> Launch:
    vector = vector_size(analysis, dims[1] * dims[2], 32)
    threads = 128
    rows = vector * threads // dims[2]
    while rows > 32 and vector > 1:
        vector //= 2
        rows //= 2
    if rows > 32:
        threads //= rows // 32
    return Launch(dims[0], threads)


# ---------------------------------------------------------------- triton
def triton_tiles(instruction: HloInstruction) -> tuple[tuple[int, ...], int] | None:
    """Output tile sizes and warps that a Triton fusion's backend config carries, None where it does not."""
    fusion = backend_config(instruction).get("fusion_backend_config")
    block = fusion.get("block_level_fusion_config") if isinstance(fusion, dict) else None
    if not isinstance(block, dict):
        return None
    tiles = block.get("output_tiles")
    if not isinstance(tiles, list) or not tiles:
        return None
    sizes = tiles[0].get("sizes", [])
    return tuple(int(size) for size in sizes), int(block.get("num_warps", 1))


def _triton(analysis: FusionAnalysis) -> Launch | None:
    for part in reversed(analysis.view.parts):
        if part.opcode == "fusion" and (known := triton_tiles(part)) is not None:
            tiles, warps = known
            shape = _first_array(analysis.roots[0].shape)
            # a bitcast behind the fusion may change the rank: XLA takes the dimensions as far as both go
            blocks = prod(ceil_div(size, tile) for size, tile in zip(shape.dimensions, tiles, strict=False))
            return Launch(blocks, warps * analysis.device.threads_per_warp)
    return None
