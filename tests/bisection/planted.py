"""Planted faults, as a plugin file that a user could write: each is an ordinary pass or rule that is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.passes.rules.base import rule

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext
    from hloscope.core.passes.registry import Registry
    from hloscope.core.passes.rules.base import Answer, RuleOptions


@dataclass(frozen=True)
class SwapSubtract:
    """Swaps the operands of subtractions: right for none of them."""

    name = "swap-subtract"
    is_pipeline = False
    only: int = -1
    """Swap only this one of the subtractions, in post order; -1 swaps all. The others are rewritten to themselves."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        changed = False
        found = [i for c in module.computations for i in c.post_order() if i.opcode == "subtract"]
        for number, node in enumerate(found):
            step = ctx.gate("swap-operands", node)
            if not step:
                continue
            left, right = node.operands
            if self.only in (-1, number):
                left, right = right, left
            new = node.parent.replace(node, HloInstruction("subtract", node.shape, (left, right)))
            step.done(new)
            changed = True
        return changed


@dataclass(frozen=True)
class Ungated:
    """Turns maxima into minima without asking the gate."""

    name = "ungated-minimum"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        found = [i for i in module.instructions() if i.opcode == "maximum"]
        for node in found:
            node.parent.replace(node, HloInstruction("minimum", node.shape, node.operands))
        return bool(found)


@dataclass(frozen=True)
class Silent:
    """Turns maxima into minima and says that it changed nothing."""

    name = "silent-minimum"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        Ungated().run(module, ctx)
        return False


@dataclass(frozen=True)
class Crashing:
    """Raises on the second exponential that it sees."""

    name = "crashing"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        found = [i for i in module.instructions() if i.opcode == "exponential"]
        for number, node in enumerate(found):
            step = ctx.gate("touch", node)
            if step and number == 1:
                raise ZeroDivisionError("no second exponential, please")
            step.done()
        return False


@rule("divide-is-multiply", "divide", "a / b → a * b")
def divide_is_multiply(node: HloInstruction, options: RuleOptions) -> Answer:
    """Wrong for every divisor but 1 and -1."""
    return lambda build: build.make("multiply", node.shape, node.operands)


def register(registry: Registry) -> None:
    """What ``--plugin`` calls."""
    registry.add_pass("swap-subtract", SwapSubtract, "planted")
    registry.add_pass("ungated-minimum", Ungated, "planted")
    registry.add_pass("silent-minimum", Silent, "planted")
    registry.add_pass("crashing", Crashing, "planted")


def register_rule(registry: Registry) -> None:
    """The wrong rule, which sits in algsimp."""
    registry.add_rule(divide_is_multiply)
