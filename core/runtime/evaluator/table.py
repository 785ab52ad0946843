"""Opcode -> how to prepare its kernel. An opcode that is not here is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hloscope.core.runtime.evaluator import (
    collectives,
    contraction,
    control,
    conversion,
    convolution,
    custom_calls,
    elementwise,
    indexing,
    linear_algebra,
    random_bits,
    reduction,
    sorting,
    structural,
)
from hloscope.core.runtime.evaluator.values import Prepare

KERNELS: Mapping[str, Prepare] = MappingProxyType(
    {
        **elementwise.TABLE,
        **conversion.TABLE,
        **structural.TABLE,
        **contraction.TABLE,
        **convolution.TABLE,
        **reduction.TABLE,
        **indexing.TABLE,
        **sorting.TABLE,
        **random_bits.TABLE,
        **linear_algebra.TABLE,
        **control.TABLE,
        **collectives.TABLE,
        **custom_calls.TABLE,
    }
)

SHAPELESS = frozenset({*elementwise.TABLE, *conversion.TABLE, "tuple", "get-tuple-element", "copy", "opt-barrier"})
"""Opcodes whose kernels work on arrays of any (common) shape, so that a computation on scalars runs on whole arrays."""
