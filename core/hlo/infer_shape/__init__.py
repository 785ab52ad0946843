"""Shape inference: the shape of every opcode's result from operands, attributes and called computations."""

from hloscope.core.hlo.infer_shape.base import InferenceError, ProgramShape, Request, compatible, program_of
from hloscope.core.hlo.infer_shape.table import (
    NEEDS_SHAPE,
    RULES,
    infer,
    infer_instruction_shape,
    infer_shape,
    request_of,
)

__all__ = [
    "NEEDS_SHAPE",
    "RULES",
    "InferenceError",
    "ProgramShape",
    "Request",
    "compatible",
    "infer",
    "infer_instruction_shape",
    "infer_shape",
    "program_of",
    "request_of",
]
