"""Applies rewrite rules: the engine of ``algsimp`` and of every pass that is made of rules.

Every computation that is no fusion body is worked off from a list: all instructions in post order first, then whatever
a rewrite touched (what it made, its operands, and the users of the replacement), until nothing is left. Each rewrite
costs what it touches, so a pass is linear in the module and the rewrites.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Builder, Rule, RuleOptions

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_VISITS = 50
"""Visits per instruction after which a computation is left as it is: rules that undo each other would never end."""


@dataclass(frozen=True)
class RulePass:
    """A pass that is nothing but rules; a subclass sets the two class variables."""

    name: ClassVar[str] = ""
    rules: ClassVar[tuple[Rule, ...]] = ()
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Apply the rules to every computation, callees first."""
        return run_rules(self.rules, RuleOptions(), module, ctx)


def run_rules(rules: tuple[Rule, ...], options: RuleOptions, module: HloModule, ctx: PassContext) -> bool:
    """Apply rules to every computation that is no fusion body, callees first; whether anything changed."""
    engine = RuleEngine(rules, options, ctx)
    changed = False
    for computation in module.post_order():
        if not computation.is_fusion:
            changed |= engine.run_on(computation)
    return changed


class RuleEngine:
    """Applies rules to computations; also what other passes made of rules use."""

    def __init__(self, rules: tuple[Rule, ...], options: RuleOptions, ctx: PassContext) -> None:
        self._options = options
        self._ctx = ctx
        self._table: dict[str, list[Rule]] = {}
        self._refused: set[tuple[str, HloInstruction]] = set()
        for one in rules:
            if one.layouts == "any" or not options.is_layout_sensitive:
                for opcode in one.opcodes:
                    self._table.setdefault(opcode, []).append(one)

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite until no rule applies; whether anything changed.

        A rewrite puts what it touched back on the list. A rule may have looked further than that, so the whole
        computation is looked at again after a sweep that changed something.
        """
        changed = False
        left = _VISITS * len(computation) + 1000
        while True:
            done, left = self._sweep(computation, left)
            changed |= done
            if not done or left <= 0:
                return changed

    def _sweep(self, computation: HloComputation, left: int) -> tuple[bool, int]:
        table = self._table
        work = deque(one for one in computation.post_order() if one.opcode in table)
        queued = set(work)
        changed = False
        while work:
            one = work.popleft()
            queued.discard(one)
            if not one.in_computation or (not one.user_count and not one.is_root):
                continue
            left -= 1
            if left <= 0:
                self._ctx.warnings.append(f"rules on %{computation.name} did not reach a fixed point")
                break
            touched = self._visit(one, table[one.opcode])
            if touched is None:
                continue
            changed = True
            for other in touched:
                if other.opcode in table and other.in_computation and other not in queued:
                    queued.add(other)
                    work.append(other)
        return changed, left

    def _visit(self, one: HloInstruction, rules: list[Rule]) -> list[HloInstruction] | None:
        """Apply the first rule that may be applied; what it touched, or None."""
        for rule in rules:
            answer = rule.match(one, self._options)
            if answer is None or answer is one:
                continue
            if not isinstance(answer, Refusal):
                answer = self._conflict(one, answer if isinstance(answer, HloInstruction) else None) or answer
            if isinstance(answer, Refusal):
                if (rule.name, one) not in self._refused:
                    self._refused.add((rule.name, one))
                    self._ctx.refuse(rule.name, one, answer.code, answer.detail)
                continue
            step = self._ctx.gate(rule.name, one)
            if not step:
                continue
            operands = one.operands
            made: list[HloInstruction] = []
            if isinstance(answer, HloInstruction):
                new, detail = answer, f"replaced by %{answer.name}"
            else:
                builder = Builder(one)
                new, made, detail = answer(builder), builder.made, ""
            if new in made:
                made.remove(new)
                _put_in_place(one, new)
                step.done(new, *made, detail=detail)
            else:
                one.parent.replace(one, new)
                step.done(*made, detail=detail)
            if one.in_computation and not one.user_count and not one.is_root:
                # Its effect, where it has one, is that of what replaced it.
                one.parent.remove(one)
            # Operands that stay lost a user, which some rules wait for.
            return [*(o for o in operands if o.in_computation), *made, new, *new.users]
        return None

    def _conflict(self, one: HloInstruction, other: HloInstruction | None) -> Refusal | None:
        """What stands against putting an existing instruction (None: a new one) in place of another."""
        if one.control_predecessors or one.control_successors:
            return Refusal("control_dependencies")
        if other is None:
            return None
        if not self._options.same_shape(one.shape, other.shape):
            return Refusal("shape", f"{one.shape} against {other.shape}")
        sharding, given = one.raw_attrs.get("sharding"), other.raw_attrs.get("sharding")
        if sharding is not None and sharding != given:
            return Refusal("sharding_conflict", f"{sharding} against {given}")
        return None


def _put_in_place(old: HloInstruction, new: HloInstruction) -> None:
    """Replace an instruction by one made for it, which takes its sharding, frontend attributes and, with the same
    opcode, its name."""
    for key in ("frontend_attributes", "sharding"):
        text = old.raw_attrs.get(key)
        if text is not None and new.raw_attrs.get(key) is None:
            new.set_attr(key, text)
    name = old.name
    old.parent.replace(old, new)
    if old.opcode == new.opcode and not old.in_computation:
        new.rename(name)
