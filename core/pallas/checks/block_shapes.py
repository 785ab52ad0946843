"""Block shapes that a backend refuses, by the rules of its lowering, with the nearest shape that it takes.

Sources: ``jax-ml/jax:jax/_src/pallas/mosaic/lowering.py#_check_block_mappings``,
``jax/_src/pallas/triton/lowering.py`` (sizes that are powers of 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hloscope.core.pallas.call import Operand
from hloscope.core.pallas.checks.finding import Finding, Subject
from hloscope.core.pallas.chips import LANES, SUBLANES
from hloscope.core.pallas.jaxpr import itemsize_bits


def check_block_shapes(subject: Subject) -> Iterator[Finding]:
    """The rules of the call's backend."""
    if subject.backend == "tpu":
        for operand in subject.call.operands:
            yield from _tpu(subject, operand)
    elif subject.backend == "triton":
        yield from _triton(subject)
    elif subject.backend == "mosaic_gpu":
        for operand in subject.call.operands:
            yield from _mosaic_gpu(subject, operand)


def _tpu(subject: Subject, operand: Operand) -> Iterator[Finding]:
    space = operand.space
    if operand.array.dtype.startswith("key<"):
        yield subject.finding("unsupported", f"blocks of random keys ({operand.title}) are not checked", operand.place)
        return
    if space == "smem" and operand.is_trivial or space == "semaphore" or operand.array.is_semaphore:
        return
    block, array = operand.block_shape, operand.array.shape
    if not block:
        yield subject.finding("block-shape", f"{operand.title} is a scalar; a TPU block has at least one dimension"
                              " (put scalars into SMEM)", operand.spec_at, operand.place)  # fmt: skip
        return
    if space in ("any", "hbm") and not operand.is_trivial:
        yield subject.finding(
            "block-window",
            f"{operand.title} lies in {space.upper()} memory, where a block must be the whole array"
            f" {list(array)} with an index map of zeros, and its block is {list(block)}",
            operand.spec_at,
            operand.place,
        )
        return
    kinds = {dim.kind for dim in operand.dims}
    if "element" in kinds and not kinds <= {"element", "squeezed"}:
        yield subject.finding(
            "block-shape",
            f"the block ({', '.join(map(str, operand.dims))}) of {operand.title} has dimensions of pl.Element and"
            " others: a TPU takes it in every dimension or in none",
            operand.spec_at,
            operand.place,
            fix="write pl.Element(n) for the other dimensions too, with an index map in elements",
        )
        return
    if len(block) == 1:
        yield from _tpu_rank_one(subject, operand)
        return
    wrong: list[str] = []
    fixed = list(block)
    for dim, tile in ((-1, LANES), (-2, SUBLANES)):
        if block[dim] != array[dim] and block[dim] % tile:
            wrong.append(
                f"{block[dim]} in dimension {len(block) + dim} is neither {array[dim]} nor a multiple of {tile}"
            )
            up = -(-block[dim] // tile) * tile
            fixed[dim] = array[dim] if up >= array[dim] else up
    if wrong:
        yield subject.finding(
            "block-shape",
            f"the block {list(block)} of {operand.title} {list(array)} does not fit a TPU's tiles: {'; '.join(wrong)}",
            operand.spec_at,
            operand.place,
            fix=f"the nearest shape that is taken is {tuple(fixed)}",
        )


def _tpu_rank_one(subject: Subject, operand: Operand) -> Iterator[Finding]:
    lanes = subject.chip.lanes if subject.chip else LANES
    sublanes = subject.chip.sublanes if subject.chip else SUBLANES
    bits = 32 if operand.array.dtype == "bool" else itemsize_bits(operand.array.dtype)
    size, whole = operand.block_shape[0], operand.array.shape[0]
    chunk, least = sublanes * lanes, lanes * (32 // bits if bits <= 32 else 1)
    if size == whole or size % chunk == 0 or size >= least and size & (size - 1) == 0:
        return
    up = -(-size // chunk) * chunk
    yield subject.finding(
        "block-shape",
        f"the block [{size}] of {operand.title} [{whole}] is neither the whole array, nor a multiple of {chunk},"
        f" nor a power of 2 of at least {least}",
        operand.spec_at,
        operand.place,
        fix=f"the nearest shape that is taken is ({min(up, whole)},), or add a unit axis to the array",
    )


LONGEST_COPY = 256
"""Elements in one dimension of an asynchronous copy."""
WARPGROUP = 128
"""Threads that copy a block together; each takes whole bytes."""


def _mosaic_gpu(subject: Subject, operand: Operand) -> Iterator[Finding]:
    """Blocks in shared memory are copied by a warpgroup. Source: ``mosaic_gpu`` of jax, ``async_copy``."""
    if operand.space not in ("default", "smem"):
        return
    if max(operand.block_shape, default=1) > LONGEST_COPY:
        yield subject.finding(
            "block-shape",
            f"the block {list(operand.block_shape)} of {operand.title} has more than {LONGEST_COPY} elements in one"
            " dimension, and a copy into shared memory takes no more",
            operand.spec_at,
            operand.place,
            fix=f"a block of at most {LONGEST_COPY} in each dimension, or memory_space=plgpu.GMEM",
        )
        return
    if operand.block_bytes % WARPGROUP == 0:
        return
    yield subject.finding(
        "block-shape",
        f"the block {list(operand.block_shape)} of {operand.title} takes {operand.block_bytes:,} bytes, and a copy into"
        f" shared memory takes a multiple of {WARPGROUP}",
        operand.spec_at,
        operand.place,
        fix=f"a block whose bytes are a multiple of {WARPGROUP}, or memory_space=plgpu.GMEM",
    )


def _triton(subject: Subject) -> Iterator[Finding]:
    """Triton takes arrays whose number of elements is a power of 2; the first statement that breaks it is named."""
    if subject.facts is None:
        return
    told: set[object] = set()
    for equation, place in subject.facts.primitives:
        for aval in equation.out_avals:
            size = math.prod(aval.shape)
            if aval.kind == "array" and size & (size - 1) and place not in told:
                told.add(place)
                yield subject.finding(
                    "block-shape",
                    f"{equation.primitive} makes {aval}: Triton takes arrays whose size is a power of 2, not {size}",
                    place,
                    fix="round the block shape up to powers of 2 and mask what lies past the end",
                )
