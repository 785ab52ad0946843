"""Custom calls whose kernel is in their backend config, as kernels of the evaluator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import HloscopeError
from hloscope.core.runtime.evaluator.values import Array, InstructionUnsupported, Kernel, Machine, Value, leaves, pack
from hloscope.core.runtime.kernels import mosaic, triton
from hloscope.core.runtime.kernels.ir import KernelUnsupported

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction

MOSAIC, TRITON = "tpu_custom_call", "__gpu$xla.gpu.triton"
TARGETS = frozenset({MOSAIC, TRITON})
"""Targets whose kernels can be read."""


def prepare(instruction: HloInstruction, machine: Machine) -> Kernel:
    """The call as a kernel. Raises InstructionUnsupported with what stands in the way."""
    read = machine.options.kernels
    if read is None:
        raise InstructionUnsupported(instruction, "of a kernel that nobody reads here")
    target = str(instruction.attr("custom_call_target"))
    shapes = [leaf for _, leaf in instruction.shape.leaves()]
    limit = machine.options.step_limit
    try:
        aliases = _aliases(instruction)
        if target == MOSAIC:
            run = mosaic.kernel(read("mosaic", mosaic.body_of(instruction)), len(shapes), aliases, limit)
        else:
            data = read("triton", triton.body_of(instruction))
            run = triton.kernel(data, triton.grid_of(instruction), aliases, limit)
    except KernelUnsupported as error:
        raise InstructionUnsupported(instruction, f"of {target!r}, whose kernel has {error.message}") from None
    except InstructionUnsupported:
        raise
    except HloscopeError as error:
        raise InstructionUnsupported(instruction, f"of {target!r}: {error.message}") from error

    def kernel(*operands: Value) -> Value:
        given: list[Array] = [np.asarray(x) for x in leaves(tuple(operands)) if isinstance(x, np.ndarray)]
        out = [np.zeros(shape.dimensions, shape.type.dtype) for shape in shapes]
        run(given, out)
        return pack(instruction.shape, iter(out))

    return kernel


def _aliases(instruction: HloInstruction) -> dict[int, int]:
    """Result -> the operand whose memory it has, from ``{{0}: (1, {})}``."""
    import re

    text = str(instruction.raw_attrs.get("output_to_operand_aliasing") or "")
    return {int(a or 0): int(b) for a, b in re.findall(r"\{(\d*)\}: \((\d+), \{\}", text)}
