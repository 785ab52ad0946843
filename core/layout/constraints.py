"""Constraints on layouts, and what happens when two of them meet.

There is one object for each buffer and one for each use. A first request is always accepted; later ones meet the rules
of `BufferConstraint.update` and `OperandConstraint.update`, which answer with a `Verdict` that carries its reason. Each
accepted request is a `Step` that knows the step it came from, so that the chain behind a layout can be told.
Source: ``openxla/xla:xla/service/layout_assignment.cc#UpdateLayout``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hloscope.core.hlo.layout import Layout
from hloscope.core.layout.orders import same_orders, show, show_shape

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape, ShapeIndex
    from hloscope.core.layout.points_to import Buffer

MAX_HISTORY = 2
"""Layouts that a buffer may have had before it refuses another optional one (``kMaxLayoutProp``)."""

DEFAULT_PRIORITY = -2
BEGINNING_PRIORITY = 0
GIVEN_PRIORITY = 3
"""Priority of a layout of the entry that the user gave."""

Place = Literal["buffer", "operand", "result"]


@dataclass(slots=True, eq=False)
class Step:
    """One accepted request for a layout and the request that led to it."""

    rule: str
    """Why it was made, a stable key such as ``transpose-to-operand``."""
    place: Place
    instruction: HloInstruction
    """Who defines the buffer, has the operand, or is the root."""
    operand: int | None
    index: ShapeIndex
    shape: Shape
    """The shape with the layouts asked for (of the leaf, the operand or the result)."""
    mandatory: bool
    depth_first: bool
    priority: int
    round: int
    parent: Step | None

    @property
    def layout_text(self) -> str:
        """The layout asked for, as text."""
        return show_shape(self.shape)

    @property
    def where(self) -> str:
        """``buffer of %a``, ``operand 1 of %b``, ``result of %c``."""
        if self.place == "operand":
            return f"operand {self.operand} of %{self.instruction.name}"
        at = "{" + ",".join(map(str, self.index)) + "}" if self.index else ""
        return f"{self.place}{at} of %{self.instruction.name}"

    def chain(self) -> list[Step]:
        """This step and what led to it, the origin last."""
        out: list[Step] = [self]
        while out[-1].parent is not None:
            out.append(out[-1].parent)
        return out


@dataclass(frozen=True, slots=True)
class Request:
    """What a propagation or a backend asks for."""

    mandatory: bool
    depth_first: bool
    priority: int
    rule: str
    source: Step | None = None


Outcome = Literal["set", "changed", "raised", "kept", "refused"]
"""First request; another layout put in its place; same layout with more weight; same layout; another one refused."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a request, with the reason and both priorities."""

    outcome: Outcome
    code: str
    """``first``, ``mandatory``, ``higher_priority``, ``same``, ``history_full``, ``not_an_array``,
    ``not_higher_priority``, ``operand_is_settled``, ``settled_with_higher_priority``."""
    old: Layout | Shape | None = None
    """What was there before."""
    old_priority: int | None = None

    @property
    def old_layout(self) -> str:
        """What was there before, as text; empty where nothing was."""
        if self.old is None:
            return ""
        return show(self.old) if isinstance(self.old, Layout) else show_shape(self.old)

    @property
    def accepted(self) -> bool:
        """Whether something changed."""
        return self.outcome in ("set", "changed", "raised")


FIRST = Verdict("set", "first")
KEPT = Verdict("kept", "same")


@dataclass(frozen=True, slots=True)
class Lost:
    """A request that did not get its way at a buffer or use, kept for the answer to "why"."""

    step: Step
    verdict: Verdict


class BufferConstraint:
    """The layout that a definition gets. A copy cannot mend it."""

    __slots__ = ("buffer", "depth_first", "layout", "lost", "mandatory", "past", "priority", "step")

    def __init__(self, buffer: Buffer, layout: Layout, request: Request, step: Step) -> None:
        self.buffer = buffer
        self.layout = layout
        self.mandatory = request.mandatory
        self.depth_first = request.depth_first
        self.priority = request.priority
        self.step = step
        self.past = 1
        """Layouts that it has had, this one included."""
        self.lost: list[Lost] = []
        """Requests that were refused or overwritten, where they are recorded."""

    def judge(self, layout: Layout, request: Request) -> Verdict:
        """What would become of a request; nothing is changed."""
        old = self.layout
        if old.minor_to_major == layout.minor_to_major:
            raised = (
                (request.mandatory and not self.mandatory)
                or (request.depth_first and not self.depth_first)
                or request.priority > self.priority
            )
            return Verdict("raised" if raised else "kept", "same", old, self.priority)

        def refused(code: str) -> Verdict:
            return Verdict("refused", code, old, self.priority)

        if not request.mandatory:
            if self.past > MAX_HISTORY:
                return refused("history_full")
            if not self.buffer.instruction.shape.is_array:
                return refused("not_an_array")
            if request.priority <= self.priority:
                return refused("not_higher_priority")
            return Verdict("changed", "higher_priority", old, self.priority)
        return Verdict("changed", "mandatory", old, self.priority)

    def apply(self, verdict: Verdict, layout: Layout, request: Request, step: Step) -> None:
        """Make the change that was judged."""
        if verdict.outcome == "raised":
            self.mandatory |= request.mandatory
            self.depth_first |= request.depth_first
            self.priority = max(self.priority, request.priority)
            return
        self.layout = layout
        self.mandatory = request.mandatory
        self.depth_first = request.depth_first
        self.priority = request.priority
        self.step = step
        self.past += 1


class OperandConstraint:
    """The layout that a use wants. Where the definition has another one, a copy goes in between."""

    __slots__ = ("depth_first", "instruction", "lost", "mandatory", "number", "priority", "shape", "step")

    def __init__(self, instruction: HloInstruction, number: int, shape: Shape, request: Request, step: Step) -> None:
        self.instruction = instruction
        self.number = number
        self.shape = shape
        """The operand's shape with the wanted layouts."""
        self.mandatory = request.mandatory
        self.depth_first = request.depth_first
        self.priority = request.priority
        self.step = step
        self.lost: list[Lost] = []

    def judge(self, shape: Shape, request: Request) -> Verdict:
        """What would become of a request; nothing is changed."""
        if same_orders(self.shape, shape):
            return KEPT
        if not request.mandatory:
            return Verdict("refused", "operand_is_settled", self.shape, self.priority)
        if self.priority > request.priority:
            return Verdict("refused", "settled_with_higher_priority", self.shape, self.priority)
        return Verdict("changed", "mandatory", self.shape, self.priority)

    def apply(self, shape: Shape, request: Request, step: Step) -> None:
        """Make the change that was judged."""
        self.shape = shape
        self.mandatory = request.mandatory
        self.depth_first = request.depth_first
        self.priority = request.priority
        self.step = step


class ComputationConstraint:
    """Layouts at the border of a computation: parameters and result."""

    __slots__ = ("computation", "parameters", "parameters_set", "priority", "result", "result_set", "step")

    depth_first = True
    mandatory = True

    def __init__(
        self, computation: HloComputation, parameters: list[Shape], result: Shape, *, given: bool, priority: int
    ) -> None:
        self.computation = computation
        self.parameters = parameters
        self.result = result
        self.parameters_set = given
        self.result_set = given
        self.priority = priority
        self.step: Step | None = None

    def reset(self, priority: int, *, parameters_set: bool = True, result_set: bool = True) -> None:
        """Note new layouts and who may see them."""
        self.priority = priority
        self.parameters_set |= parameters_set
        self.result_set |= result_set


Constraint = BufferConstraint | OperandConstraint | ComputationConstraint
