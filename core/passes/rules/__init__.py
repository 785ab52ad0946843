"""The rewrite rules of ``algsimp``, as data: `ALGSIMP_RULES` holds them in the order in which they are tried."""

from __future__ import annotations

from hloscope.core.passes.rules.arithmetic import RULES as _ARITHMETIC
from hloscope.core.passes.rules.base import Builder, Rule, RuleOptions
from hloscope.core.passes.rules.division import RULES as _DIVISION
from hloscope.core.passes.rules.indexing import RULES as _INDEXING
from hloscope.core.passes.rules.logic import RULES as _LOGIC
from hloscope.core.passes.rules.products import RULES as _PRODUCTS
from hloscope.core.passes.rules.reductions import RULES as _REDUCTIONS
from hloscope.core.passes.rules.shapes import RULES as _SHAPES
from hloscope.core.passes.rules.slices import RULES as _SLICES
from hloscope.core.passes.rules.values import RULES as _VALUES

ALGSIMP_RULES: tuple[Rule, ...] = (
    *_VALUES, *_ARITHMETIC, *_DIVISION, *_LOGIC, *_SHAPES, *_SLICES, *_REDUCTIONS, *_PRODUCTS, *_INDEXING,
)  # fmt: skip
"""All rules. Where two apply to one instruction, the earlier one is tried first."""

__all__ = ["ALGSIMP_RULES", "Builder", "Rule", "RuleOptions"]
