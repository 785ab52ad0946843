"""Whether blocks and scratch fit into the chip's fast memory.

A TPU block takes whole tiles (8 by 128 elements of 32 bits, more rows for narrower ones) and is held ``buffers`` times,
2 where nothing is said, once where it is the whole array. What the compiler itself needs comes on top, so fitting here
does not prove that it compiles; not fitting is a certain refusal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hloscope.core.pallas.checks.finding import Finding, Subject
from hloscope.core.pallas.chips import LANES, SUBLANES
from hloscope.core.pallas.jaxpr import Aval, itemsize_bits


def check_budgets(subject: Subject) -> Iterator[Finding]:
    """The budgets of the target's memories."""
    if subject.chip is None or subject.backend is None:
        return
    if (subject.backend == "tpu") != (subject.chip.kind == "tpu"):
        yield subject.finding(
            "unsupported", f"the call asks for the {subject.backend} backend, which does not run on {subject.chip.name}"
        )
        return
    if subject.backend == "tpu":
        yield from _tpu(subject)
    elif subject.backend == "mosaic_gpu":
        yield from _shared(subject)
    else:
        yield subject.finding("unsupported", "Triton's compiler decides what it puts into shared memory: not checked")


def tiled_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of an array in a TPU's vector memory, tiles padded."""
    bits = itemsize_bits(dtype) if dtype != "bool" else 32
    packing = max(1, 32 // bits)
    dims = [1] * max(0, 2 - len(shape)) + list(shape)
    rows = SUBLANES * packing
    tiles = math.prod(dims[:-2]) * -(-dims[-2] // rows) * -(-dims[-1] // LANES)
    return tiles * rows * LANES * bits // 8


def _tpu(subject: Subject) -> Iterator[Finding]:
    assert subject.chip is not None
    call = subject.call
    blocks, vector, scalar = 0, 0, 0
    largest = (0, "", call.at)
    for operand in call.operands:
        shape = [dim.size for dim in operand.dims if dim.in_ref]
        if operand.space in ("default", "vmem"):
            count = 1 if operand.is_trivial else operand.buffers or 2
            needed = tiled_bytes(shape, operand.array.dtype) * count
            blocks, vector = blocks + needed, vector + needed
            if needed > largest[0]:
                largest = (needed, f"{operand.title} ({count} x {list(operand.block_shape)})", operand.spec_at)
        elif operand.space == "smem":
            scalar += operand.block_bytes
    first = call.slots.prefetch + len(call.operands)
    for number, aval in enumerate(call.scratch):
        if aval.space == "vmem":
            needed = tiled_bytes(aval.shape, aval.dtype)
            vector += needed
            if needed > largest[0]:
                largest = (needed, f"scratch {call.kernel.name_of(first + number)}", call.at)
        elif aval.space == "smem":
            scalar += _bytes(aval)
    scalar += sum(_bytes(call.kernel.avals[v]) for v in call.kernel.inputs[: call.slots.prefetch])
    limit = call.compiler.get("vmem_limit_bytes")
    capacity = min(one for one in (subject.chip.vmem, limit, 1 << 62) if isinstance(one, int))
    if vector > capacity:
        whose = "vmem_limit_bytes" if capacity == limit else f"{subject.chip.name}'s core"
        yield subject.finding(
            "vmem-budget",
            f"blocks and scratch take {vector:,} bytes of vector memory, and {whose} has {capacity:,};"
            f" the largest is {largest[1]} with {largest[0]:,}",
            largest[2],
        )
    elif limit is None and subject.chip.scoped is not None and blocks > subject.chip.scoped:
        yield subject.finding(
            "vmem-budget",
            f"blocks take {blocks:,} bytes of vector memory, and {subject.chip.name}'s compiler gives those of one"
            f" kernel {subject.chip.scoped:,} unless vmem_limit_bytes says more; the largest is {largest[1]} with"
            f" {largest[0]:,}",
            largest[2],
            fix="smaller blocks, or CompilerParams(vmem_limit_bytes=...)",
        )
    if subject.chip.smem is not None and scalar > subject.chip.smem:
        yield subject.finding(
            "smem-budget",
            f"scalar operands and scratch take {scalar:,} bytes of scalar memory, and {subject.chip.name}'s core has"
            f" {subject.chip.smem:,}",
        )
    if subject.chip.vmem is None:
        yield subject.finding("unsupported", f"the installed jax does not know the memory of {subject.chip.name}")


def _bytes(aval: Aval) -> int:
    return math.prod(aval.shape) * itemsize_bits(aval.dtype) // 8


SHARED_ALIGNMENT = 1024
"""Bytes to which Mosaic GPU rounds every allocation in shared memory."""
BARRIER = 8
REDUCTION_SCRATCH = 2048
"""Bytes that Mosaic GPU keeps for reductions where nothing else is said."""
REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})


def _shared(subject: Subject) -> Iterator[Finding]:
    """Source: ``jax-ml/jax:jax/_src/pallas/mosaic_gpu/lowering.py#Resources`` and its pipeline, a barrier a stage."""
    assert subject.chip is not None and subject.chip.shared is not None
    call = subject.call
    sequential = [bound for bound, word in zip(call.grid, call.semantics, strict=True) if word == "sequential"]
    rounds = math.prod(1 if bound is None else bound for bound in sequential)
    stages = max(1, min(int(call.compiler.get("max_concurrent_steps") or 1), rounds))
    sizes = [one.block_bytes * stages for one in call.operands if one.space in ("default", "smem")]
    blocks = len(sizes)
    sizes += [_bytes(aval) for aval in call.scratch if aval.space == "smem"]
    needed = sum(-(-size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT for size in sizes) + (
        BARRIER * stages if blocks else 0
    )
    primitives = subject.facts.primitives if subject.facts is not None else ()
    if any(equation.primitive in REDUCTIONS for equation, _ in primitives):
        needed += int(call.compiler.get("reduction_scratch_bytes") or REDUCTION_SCRATCH)
    if needed > subject.chip.shared:
        held = f", held {stages} times" if stages > 1 else ""
        yield subject.finding(
            "shared-memory-budget",
            f"blocks{held} and scratch take {needed:,} bytes of shared memory, and a block on {subject.chip.name} has"
            f" {subject.chip.shared:,}",
        )
