"""The module in memory: shapes and layouts as values, instructions as a graph that stays consistent."""

from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.layout import Layout
from hloscope.core.hlo.literal import Literal
from hloscope.core.hlo.module import HloModule
from hloscope.core.hlo.shape import Shape

__all__ = ["HloComputation", "HloInstruction", "HloModule", "Layout", "Literal", "Shape", "structural_hash"]
