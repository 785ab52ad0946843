"""``algsimp``: the algebraic simplifier. Its rules are data (`hloscope.core.passes.rules`), `RuleEngine` applies them.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from hloscope.core.passes.engine import run_rules
from hloscope.core.passes.rules import ALGSIMP_RULES, Rule, RuleOptions

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class AlgebraicSimplifier:
    """The pass; its options are those of `RuleOptions`."""

    name = "algsimp"
    is_pipeline = False
    is_layout_sensitive: bool = False
    executing_on_cpu: bool = False
    enable_dot_strength_reduction: bool = True
    unconditionally_simplify_reduce_of_transpose_or_reshape: bool = False
    enable_unconditional_reduce_of_concat_replacement: bool = True
    enable_hoist_transpose_of_reshape: bool = False
    enable_fold_transpose_into_scatter: bool = False
    enable_conditional_simplification: bool = False
    enable_conv_add_multiply_reorder: bool = False
    enable_fast_math: bool = False
    enable_sink_broadcast: bool = True
    enable_remove_no_op_reduce_precision: bool = False
    rewrite_reshape_transpose_as_slice_concatenate: bool = True
    very_small_gather_size: int = 4
    rules: tuple[Rule, ...] = ALGSIMP_RULES
    """What it applies; not an option of the command line."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Simplify every computation, callees first."""
        options = RuleOptions(**{one.name: getattr(self, one.name) for one in fields(RuleOptions)})
        return run_rules(self.rules, options, module, ctx)
