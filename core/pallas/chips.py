"""Chips that a kernel can be checked for: which backend they mean, and the memory that a kernel may use.

TPU numbers are read from the installed jax's ``TpuInfo`` by the tracing child (``Trace.chips``), per core. For GPUs jax
has no table; theirs is the shared memory that one block may use at most, from the CUDA programming guide (compute
capabilities 8.0, 9.0 and 10.0), the same numbers that the compilers enforce.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hloscope.core.errors import UsageError

LANES = 128
SUBLANES = 8
"""Tile of 32-bit elements in a TPU's vector memory; equal on all chips that jax knows."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip."""

    name: str
    kind: str
    """``tpu`` or ``gpu``."""
    vmem: int | None = None
    """Bytes of vector memory of a TPU core."""
    smem: int | None = None
    """Bytes of scalar memory of a TPU core."""
    shared: int | None = None
    """Bytes of shared memory that one block of a GPU may use."""
    scoped: int | None = None
    """Bytes of vector memory that the TPU compiler gives a kernel's blocks where nothing else is said."""
    lanes: int = LANES
    sublanes: int = SUBLANES


GPUS: Mapping[str, Chip] = {
    "a100": Chip("a100", "gpu", shared=163 * 1024),
    "h100": Chip("h100", "gpu", shared=227 * 1024),
    "b200": Chip("b200", "gpu", shared=227 * 1024),
}
SCOPED: Mapping[str, int] = {"v4": 16 << 20, "v5e": 16 << 20, "v5p": 16 << 20, "v6e": 32 << 20, "v7x": 32 << 20}
"""What libtpu 0.0.42 refuses to exceed without ``vmem_limit_bytes``, measured by compiling; jax's table lacks it."""
TPUS = ("v4", "v5e", "v5p", "v6e", "v7x")
TARGETS = (*TPUS, *GPUS)
"""What ``--target`` takes."""


def find_chip(name: str, facts: Mapping[str, Mapping[str, int]] | None = None) -> Chip:
    """The chip of that name; a TPU's memory is known where ``facts`` (``Trace.chips``) has it.

    Raises ``UsageError`` for another name.
    """
    if name in GPUS:
        return GPUS[name]
    if name not in TPUS:
        raise UsageError(f"no target {name!r}", hint=f"targets: {', '.join(TARGETS)}")
    known = (facts or {}).get(name)
    if known is None:
        return Chip(name, "tpu", scoped=SCOPED[name])
    return Chip(
        name, "tpu", vmem=known["vmem_capacity_bytes"], smem=known["smem_capacity_bytes"],
        scoped=SCOPED[name],
        lanes=known["num_lanes"], sublanes=known["num_sublanes"],
    )  # fmt: skip
