"""The gate: the one place where an optional rewrite can be refused, and where it is numbered and recorded.

A pass that has found a rewrite asks once, at the moment when a yes makes it happen for certain:

    step = ctx.gate("add-zero", instruction)
    if step:
        step.done(new)

or, where an exception may come in between, ``with ctx.gate(…) as step: if step: … step.done(new)``. The decision gets
an *ordinal* (position among all questions of passes of this name in this compile: what fuel counts) and an *identity*
that stays the same when other decisions are refused: pass, occurrence, rule and the lineage of the instructions.
Handlers (fuel, the filters of a bisection, breakpoints) are asked in order; the first refusal counts, and it always
carries its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, Protocol, Self

from hloscope.core.errors import InternalError
from hloscope.core.ledger.events import RewriteDecision

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.passes.context import PassContext

Verdict = Literal["applied", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a rewrite may not happen."""

    code: str
    """Stable key, such as ``fuel_exhausted``."""
    detail: str = ""
    """The numbers behind it, in words."""


class Question:
    """One optional rewrite that a pass would make now."""

    __slots__ = (
        "_identity", "_lineage", "computation", "instruction", "occurrence", "ordinal", "others", "pass_id",
        "pass_name", "pipeline", "rule",
    )  # fmt: skip

    def __init__(
        self,
        lineage: Lineage,
        pass_name: str,
        pipeline: str,
        pass_id: int,
        occurrence: int,
        ordinal: int,
        rule: str,
        instruction: HloInstruction | None,
        others: tuple[HloInstruction, ...],
        computation: HloComputation | None,
    ) -> None:
        self._lineage = lineage
        self._identity: str | None = None
        self.pass_name = pass_name
        self.pipeline = pipeline
        """Name of the pipeline that holds the pass."""
        self.pass_id = pass_id
        """XLA's number of the pass run, 1-based."""
        self.occurrence = occurrence
        """0-based run of a pass of this name in the compile."""
        self.ordinal = ordinal
        """0-based position among all questions of this pass name in the compile."""
        self.rule = rule
        self.instruction = instruction
        """What would be rewritten; None for a rewrite of a computation or of the module."""
        self.others = others
        """Other instructions that tell this rewrite from its like."""
        self.computation = computation

    @property
    def identity(self) -> str:
        """16 hexadecimal digits that name this decision whatever happened to the decisions before it."""
        if self._identity is None:
            key = f"{self.pass_name}\x1f{self.occurrence}\x1f{self.rule}"
            if self.instruction is not None:
                key = self._lineage.extend(key, (self.instruction, *self.others))
            else:
                if self.computation is not None:
                    key = f"{key}\x1f{self.computation.name}"
                key = self._lineage.extend(key, self.others)
            data = key.encode() if key.isascii() else key.encode("utf-8", "surrogateescape")
            self._identity = blake2b(data, digest_size=8).hexdigest()
        return self._identity

    def __repr__(self) -> str:
        on = "" if self.instruction is None else f" on %{self.instruction.name}"
        return f"<{self.pass_name}#{self.occurrence} {self.ordinal}: {self.rule}{on}>"


class GateHandler(Protocol):
    """Something that may refuse rewrites, or only watch them (by never refusing)."""

    def decide(self, question: Question) -> Refusal | None:
        """None to let it pass. May block (a breakpoint) and may raise."""
        ...


class Lineage:
    """Where instructions come from: names for those that were read, the identity of their rewrite for those made."""

    def __init__(self) -> None:
        self._made: dict[HloInstruction, str] = {}

    def of(self, instruction: HloInstruction) -> str:
        """A text that does not depend on the numbers in generated names."""
        made = self._made.get(instruction)
        return instruction.name if made is None else made

    def extend(self, key: str, instructions: tuple[HloInstruction, ...]) -> str:
        """A text with those of instructions behind it."""
        made = self._made
        for one in instructions:
            key = f"{key}\x1f{made.get(one) or one.name}"
        return key

    def made(self, identity: str, instructions: tuple[HloInstruction, ...]) -> None:
        """Note the instructions that a rewrite made."""
        for number, instruction in enumerate(instructions):
            self._made.setdefault(instruction, f"{identity}/{number}")

    def derive(self, instruction: HloInstruction, origin: str) -> None:
        """Note an instruction that was made outside any decision, such as one clone among many."""
        self._made.setdefault(instruction, origin)


class Step:
    """The gate's answer: true where the rewrite may happen. Close it with `done` or by leaving its ``with`` block."""

    __slots__ = ("_context", "_open", "_subject", "allowed", "question", "refusal")

    def __init__(self, context: PassContext, question: Question | None, refusal: Refusal | None) -> None:
        self.allowed = refusal is None
        self.refusal = refusal
        """Why not, where it is refused."""
        self.question = question
        """None where nobody looks (no ledger, no handler)."""
        self._context = context
        self._open = question is not None
        # The rewrite may rename or remove the instruction, so what the event names is taken now.
        if question is None or question.instruction is None:
            self._subject: str | None = None
        else:
            self._subject = question.instruction.name
        if refusal is not None:
            self._close("refused", refusal.code, refusal.detail, ())

    def __bool__(self) -> bool:
        return self.allowed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._close("failed", "exception", f"{type(error).__name__}: {error}", ())
        else:
            self.done()

    def done(self, *made: HloInstruction, detail: str = "") -> None:
        """The rewrite has happened and made these instructions, the replacement first. Closing twice is harmless."""
        self._close("applied", None, detail, made)

    def _close(self, verdict: Verdict, code: str | None, detail: str, made: tuple[HloInstruction, ...]) -> None:
        question = self.question
        if not self._open or question is None:
            return
        self._open = False
        if made:
            self._context.lineage.made(question.identity, made)
        if self._context.ledger.enabled:
            computation = question.computation
            self._context.ledger.emit_values(
                RewriteDecision,
                verdict,
                code,
                (
                    self._subject, None if computation is None else computation.name, question.ordinal,
                    question.pass_name, question.rule, question.occurrence, tuple([one.name for one in made]),
                    question.identity, detail or None,
                ),
            )  # fmt: skip


@dataclass(frozen=True)
class DecisionFilter:
    """Refuses decisions of a pass by ordinal or by identity: what a bisection sets, one for each thing it tries.

    A decision *matches* when its pass is the named one, its ordinal is in `ordinals` and its identity in `identities`
    (each only where given). In mode ``refuse`` the matching ones are refused; in mode ``allow`` those of the named pass
    that do not match are.
    """

    mode: Literal["allow", "refuse"]
    pass_name: str | None = None
    """None means every pass."""
    ordinals: range | None = None
    identities: frozenset[str] | None = None
    occurrences: Mapping[str, range] | None = None
    """Runs of a pass by its name; a pass that is not named here matches with every run."""

    def __post_init__(self) -> None:
        if self.mode not in ("allow", "refuse"):
            raise InternalError(f"a decision filter allows or refuses; got {self.mode!r}")

    def decide(self, question: Question) -> Refusal | None:
        """The gate's question."""
        if self.pass_name is not None and question.pass_name != self.pass_name:
            return None
        if self._matches(question) == (self.mode == "allow"):
            return None
        return Refusal("filtered", f"{self.mode} filter")

    def _matches(self, question: Question) -> bool:
        if self.ordinals is not None and question.ordinal not in self.ordinals:
            return False
        if self.occurrences is not None:
            runs = self.occurrences.get(question.pass_name)
            if runs is not None and question.occurrence not in runs:
                return False
        return self.identities is None or question.identity in self.identities
