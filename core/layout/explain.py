"""Causes of layouts and copies as plain data: which constraint won, which lost, by which priority, on which chain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from hloscope.core.layout.bitcast import relayout_is_bitcast
from hloscope.core.layout.orders import layout_of, show
from hloscope.core.layout.rules import because

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.layout.assignment import Assignment
    from hloscope.core.layout.constraints import BufferConstraint, Lost, OperandConstraint, Step
    from hloscope.core.layout.copies import CopyMade

MAX_LEAVES = 32
"""Elements of a tuple whose chains are told."""

MAX_LOST = 8
"""Requests that lost which are told for one place, the last ones."""


@dataclass(frozen=True, slots=True)
class Link:
    """One constraint of a chain, and why it was set; the next link is what it was derived from."""

    where: str
    """``buffer of %a``, ``operand 1 of %b``, ``result of %c``."""
    instruction: str
    layout: str
    """Dimension order, fastest first, as ``{1,0}``."""
    rule: str
    because: str
    priority: int
    mandatory: bool
    round: int
    """Round of propagation in which it was set."""


@dataclass(frozen=True, slots=True)
class LostRequest:
    """A request that did not get its way."""

    layout: str
    rule: str
    priority: int
    held: str
    """The layout that stayed or came instead."""
    held_priority: int | None
    code: str
    """``not_higher_priority``, ``operand_is_settled``, ``mandatory`` (overwritten) and so on."""
    because: str
    """Both priorities and what they mean, in words."""
    chain: tuple[Link, ...] = ()
    by: Literal["use", "definition"] = "use"
    """Whose layout was asked for and not given."""


@dataclass(frozen=True, slots=True)
class PlaceChain:
    """Where the layout of one definition or use comes from."""

    where: str
    layout: str
    links: tuple[Link, ...]
    """Nearest first, the origin last."""
    lost: tuple[LostRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class LayoutChain:
    """Where the layouts of an instruction come from."""

    name: str
    computation: str
    definitions: tuple[PlaceChain, ...]
    """One for each array that the instruction defines (or passes on)."""
    uses: tuple[PlaceChain, ...]
    """One for each operand whose layout is asked for."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """The two constraints between which a copy stands."""

    wanted: tuple[Link, ...]
    """Why the use has its layout, nearest first."""
    given: tuple[Link, ...]
    """Why the definition has its layout, nearest first."""
    lost: LostRequest | None
    """The attempt to spare the copy, and why it failed."""
    free: bool
    """The copy moves no bytes: the layouts differ only in dimensions of size 1."""


def link_of(step: Step) -> Link:
    """A step in words."""
    return Link(
        where=step.where,
        instruction=step.instruction.name,
        layout=step.layout_text,
        rule=step.rule,
        because=because(step.rule),
        priority=step.priority,
        mandatory=step.mandatory,
        round=step.round,
    )


def links_of(step: Step) -> tuple[Link, ...]:
    """A step and what it was derived from."""
    return tuple(link_of(one) for one in step.chain())


_CODES = {
    "not_higher_priority": "an optional request (priority {new}) does not displace a layout of priority {old}:"
    " the first one stays",
    "history_full": "the layout had been changed as often as it may be",
    "not_an_array": "optional requests do not change elements of tuples",
    "operand_is_settled": "an optional request (priority {new}) does not change a use that is settled (priority {old})",
    "settled_with_higher_priority": "the use is settled with priority {old}, the request has {new}",
    "mandatory": "a mandatory request (priority {new}) came later and replaced it (priority {old})",
    "higher_priority": "a request of priority {new} replaced it (priority {old})",
}


def lost_of(lost: Lost, held: str, held_priority: int) -> LostRequest:
    """A lost request in words; `held` is what its place has in the end."""
    verdict, step = lost.verdict, lost.step
    overwritten = verdict.outcome == "changed"
    old = verdict.old_priority if not overwritten else step.priority
    new = step.priority if not overwritten else held_priority
    return LostRequest(
        layout=step.layout_text,
        rule=step.rule,
        priority=step.priority,
        held=held,
        held_priority=held_priority,
        code=verdict.code,
        because=_CODES.get(verdict.code, verdict.code).format(new=new, old=old),
        chain=links_of(step),
    )


def explain_copy(made: CopyMade, assignment: Assignment) -> Conflict:
    """The two sides of a copy. `assignment` must have been made with `remember` for the lost attempt to be known."""
    given = made.given[0] if made.given else None
    before, after = made.copy.operand(0).shape, made.copy.shape
    return Conflict(
        wanted=links_of(made.wanted),
        given=() if given is None else links_of(given.step),
        lost=None if given is None else _lost_attempt(made, given) or _lost_offer(made, given, assignment),
        free=relayout_is_bitcast(after.dimensions, layout_of(before).minor_to_major, layout_of(after).minor_to_major),
    )


def _lost_offer(made: CopyMade, given: BufferConstraint, assignment: Assignment) -> LostRequest | None:
    """The definition's layout, offered to a use that is settled."""
    if made.user is None or made.number is None:
        return None
    use = assignment.state.operands.get((made.user, made.number))
    offers = [] if use is None else [one for one in use.lost if one.step.layout_text == show(given.layout)]
    if use is None or not offers:
        return None
    return replace(lost_of(offers[-1], use.step.layout_text, use.priority), by="definition")


def _lost_attempt(made: CopyMade, given: BufferConstraint) -> LostRequest | None:
    """The request that this use made of the definition."""
    mine = [one for one in given.lost if made.wanted in one.step.chain()]
    if not mine:
        wanted = show(made.copy.shape.layout)
        mine = [one for one in given.lost if one.step.layout_text == wanted]
    return lost_of(mine[-1], show(given.layout), given.priority) if mine else None


def explain_instruction(instruction: HloInstruction, assignment: Assignment) -> LayoutChain:
    """Where the layouts at an instruction come from: of what it defines, and of what it reads."""
    state = assignment.state
    notes: list[str] = []
    definitions: list[PlaceChain] = []
    if state.points_to.knows(instruction):
        for index, leaf in instruction.shape.leaves():
            if not leaf.is_array:
                continue
            if len(definitions) == MAX_LEAVES:
                notes.append(f"only the first {MAX_LEAVES} elements are told")
                break
            for buffer in state.points_to.at(instruction, index)[:1]:
                constraint = state.buffers.get(buffer)
                if constraint is not None:
                    definitions.append(_definition(constraint))
    made = next((one for one in assignment.copies if one.copy is instruction), None)
    if made is not None:
        notes.append(f"layout assignment made this copy of %{made.operand.name}")
        definitions.append(_copy_place(made))
        definitions += [_definition(one) for one in made.given[:1]]
    uses = [
        _use(constraint)
        for number in range(instruction.operand_count)
        if (constraint := state.operands.get((instruction, number))) is not None
    ]
    return LayoutChain(
        instruction.name, instruction.parent.name, tuple(definitions), tuple(uses[:MAX_LEAVES]), tuple(notes)
    )


def _copy_place(made: CopyMade) -> PlaceChain:
    return PlaceChain(made.wanted.where, show(made.copy.shape.layout), links_of(made.wanted))


def _definition(constraint: BufferConstraint) -> PlaceChain:
    held = show(constraint.layout)
    lost = tuple(lost_of(one, held, constraint.priority) for one in _worth_telling(constraint.lost, held))
    return PlaceChain(constraint.step.where, held, links_of(constraint.step), lost)


def _use(constraint: OperandConstraint) -> PlaceChain:
    held = constraint.step.layout_text
    lost = tuple(lost_of(one, held, constraint.priority) for one in _worth_telling(constraint.lost, held))
    return PlaceChain(constraint.step.where, held, links_of(constraint.step), lost)


def _worth_telling(lost: list[Lost], held: str) -> list[Lost]:
    """The last requests for another layout, one for each layout and rule."""
    last = {(one.step.layout_text, one.step.rule): one for one in lost if one.step.layout_text != held}
    return list(last.values())[-MAX_LOST:]
