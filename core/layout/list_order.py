"""The order in which instructions were added to their computation, as far as a dump's earlier stages tell it.

Constraints of XLA:CPU are set in list order, and the last one wins a race. Text shows operands first, which loses that
order; but a new instruction goes to the end of the list, so what first appears in a later stage stands later. A cloned
computation keeps the order of its source.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from hloscope.core.layout.user_order import first_order, next_order, set_users

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.layout.user_order import Users

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = ((?:\([^=]*?\)|\S+) ([\w\-]+)\(.*)")
_HEADER = re.compile(r"(?:ENTRY )?%?([\w.\-]+) .*\{$|(?:ENTRY )?%?([\w.\-]+) \{$")
_CLONE = re.compile(r"\.clone(?:\.\d+)?$")
_NAMES = re.compile(r"%[\w.\-]+")
_BARE = re.compile(r"(?<![\w.\-])([A-Za-z_][\w.\-]*)")
_CALLEE = re.compile(r"to_apply=%?([\w.\-]+)")
_METADATA = re.compile(r",? ?metadata=\{.*")
_NOTES = re.compile(r", (?:metadata|sharding|frontend_attributes|backend_config|origin|control-predecessors)=\{.*")
"""From the first attribute on that passes add to an instruction."""
_SIMPLIFIED = {"gather": "collapsed_slice_dims", "scatter": "inserted_window_dims"}
_NUMBER = re.compile(r"\.\d+$")
_OP_NAME = re.compile(r'op_name="[^"]*?([^/"]*)"')

Key = tuple[int, int]
"""Stage of the first appearance, and place among what appeared there."""

CLONE_SHARE = 0.9
"""Share of a new computation's instructions that must look like those of vanished ones for it to be their clone."""

_MADE = 1 << 30
"""Places of instructions that a stage made anew, behind those that it moved in as copies of old ones."""

_LATER = 2 * _MADE
"""Places of what was there already in the first stage, but was made by a pass."""


@dataclass(slots=True)
class _Seen:
    """One computation over the stages."""

    keys: dict[str, Key] = field(default_factory=dict[str, Key])
    lines: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Instruction -> opcode and the rest of its line, as last printed."""
    operands: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    users: Users = field(default_factory=dict[str, list[str]])

    def parameters(self, numbers: list[int]) -> list[str]:
        """Names of the parameters with these numbers."""
        wanted = {f"parameter({number})" for number in numbers}
        return [
            name
            for name, (opcode, rest) in self.lines.items()
            if opcode == "parameter" and any(one in rest for one in wanted)
        ]

    @property
    def opcodes(self) -> list[str]:
        return [opcode for opcode, _ in self.lines.values()]


class ListOrder:
    """Remembers where instructions first appeared; show it the stages in order."""

    def __init__(self, stages: Iterable[str] = (), *, coarse: bool = False, late: bool = False) -> None:
        self._late = late
        """The first stage is not the program's own, so passes have added to it already."""
        self._coarse = coarse
        """Many passes lie between the stages: what is new is taken to be younger than what was replaced, users too."""
        self._computations: dict[str, _Seen] = {}
        self._everywhere: dict[str, Key] = {}
        self._stage = 0
        for text in stages:
            self.see(text)

    def see(self, text: str) -> None:
        """Take in the text of the next stage."""
        bodies = _bodies(text)
        gone = [seen for name, seen in self._computations.items() if name not in bodies]
        inlined = _Inlined(gone) if gone and self._stage else None
        known = dict(self._computations)
        for name, lines in bodies.items():
            self._take(name, lines, known, inlined)
        for name in [one for one in self._computations if one not in bodies]:
            del self._computations[name]
        self._stage += 1

    def _take(
        self, name: str, lines: dict[str, tuple[str, str]], known: dict[str, _Seen], inlined: _Inlined | None
    ) -> None:
        seen = self._computations.get(name)
        first, fresh = seen is None, set[str]()
        if seen is None:
            seen = self._computations[name] = _Seen()
            source = _source(name, [opcode for opcode, _ in lines.values()], known)
            if source is not None:
                for new, old in zip(lines, source.lines, strict=True):
                    seen.keys[new] = source.keys[old]
                names = dict(zip(source.lines, lines, strict=True))
                seen.operands = {new: _operands(rest) for new, (_, rest) in lines.items()}
                seen.users = {
                    names[value]: [names[user] for user in users if user in names]
                    for value, users in source.users.items()
                    if value in names
                }
                first = False
            elif inlined is not None and inlined.share(lines.values()) < CLONE_SHARE:
                inlined = None  # made anew in one go, in the order in which it is printed
        for place, (instruction, (opcode, rest)) in enumerate(lines.items()):
            before = seen.lines.get(instruction)
            if before is not None and before[1] != rest and _is_new(before, (opcode, rest), seen.lines, lines):
                # A replacement of the same opcode takes over the name.
                fresh.add(instruction)
                seen.keys[instruction] = (self._stage, place if self._coarse else _MADE + place)
            elif instruction not in seen.keys:
                # What was moved here from another computation (an inlined call) keeps its age.
                key = self._everywhere.get(instruction)
                if key is None and inlined is not None:
                    rank = inlined.take(opcode, rest)
                    key = None if rank is None else (self._stage, rank)
                made = _MADE if not self._late or self._stage or not _is_by_pass(instruction, opcode, rest) else _LATER
                seen.keys[instruction] = (self._stage, made + place) if key is None else key
                fresh.add(instruction)
            self._everywhere.setdefault(instruction, seen.keys[instruction])
        self._see_users(seen, lines, known, fresh, first=first)
        seen.lines = lines

    def _see_users(
        self, seen: _Seen, lines: dict[str, tuple[str, str]], known: dict[str, _Seen], fresh: set[str], *, first: bool
    ) -> None:
        if lines == seen.lines:
            return
        operands = {
            one: seen.operands[one] if seen.lines.get(one) == line and one in seen.operands else _operands(line[1])
            for one, line in lines.items()
        }
        age = seen.keys.__getitem__

        def inlined(call: str, value: str) -> int:
            opcode, rest = seen.lines.get(call, ("", ""))
            callee = known.get(_callee(rest)) if opcode == "call" else None
            if callee is None:
                return 0
            places = [place for place, operand in enumerate(seen.operands.get(call, ())) if operand == value]
            return sum(len(callee.users.get(one, ())) for one in callee.parameters(places))

        if first or self._coarse:
            seen.users = first_order(operands, age)
        else:
            seen.users = next_order(seen.users, seen.operands, operands, fresh, age, inlined)
        seen.operands = operands

    def restore(self, module: HloModule, places: Mapping[str, Mapping[str, int]] | None = None) -> None:
        """Put the instructions of every computation into list order; `places` has it where a proto tells it."""
        for computation in module.computations:
            self._restore(computation, (places or {}).get(computation.name))

    def _restore(self, computation: HloComputation, places: Mapping[str, int] | None) -> None:
        seen = self._computations.get(computation.name)
        if seen is None:
            return
        last = (self._stage, _MADE)
        instructions = list(computation.instructions)
        if places is not None and all(one.name in places for one in instructions):
            ordered = sorted(instructions, key=lambda one: places[one.name])
        else:
            ordered = sorted(instructions, key=lambda one: seen.keys.get(one.name, last))
        if ordered != instructions:
            computation.reorder(ordered)
        _restore_users(ordered, seen.users)


def _restore_users(ordered: list[HloInstruction], users: Users) -> None:
    """Put users in the order that the stages tell, else in order of age: who was made later became a user later."""
    place = {one: number for number, one in enumerate(ordered)}
    for value in ordered:
        if value.user_count > 1:
            told = {name: number for number, name in enumerate(users.get(value.name, ()))}
            by_age = sorted(value.users, key=place.__getitem__)
            set_users(value, sorted(by_age, key=lambda one: told.get(one.name, len(told))))


class _Inlined:
    """Instructions of computations that are gone: what looks like one of them is its copy."""

    def __init__(self, gone: list[_Seen]) -> None:
        ranked: list[tuple[Key, int, str, str]] = []
        for number, seen in enumerate(gone):
            ranked += [(seen.keys[one], number, opcode, rest) for one, (opcode, rest) in seen.lines.items()]
        self._ranks: dict[str, deque[int]] = {}
        for rank, (_, _, opcode, rest) in enumerate(sorted(ranked, key=lambda one: (one[1], one[0]))):
            self._ranks.setdefault(_signature(opcode, rest), deque()).append(rank)

    def share(self, lines: Iterable[tuple[str, str]]) -> float:
        """Share of the lines that look like one of the originals, 0 to 1."""
        signatures = [_signature(*line) for line in lines]
        return sum(bool(self._ranks.get(one)) for one in signatures) / max(1, len(signatures))

    def take(self, opcode: str, rest: str) -> int | None:
        """The place of the next original that looks like this line."""
        found = self._ranks.get(_signature(opcode, rest))
        return found.popleft() if found else None


def _is_new(
    before: tuple[str, str], after: tuple[str, str], lines: dict[str, tuple[str, str]], now: dict[str, tuple[str, str]]
) -> bool:
    """Whether a line cannot come from the same instruction: attributes or the shape of an operand changed."""
    if _core(*before) != _core(*after):
        return True
    if after[0] == "broadcast" and _without_reshapes(before[1], lines, now):
        return True
    return [_shape_of(one, lines) for one in _operands(before[1])] != [
        _shape_of(one, now) for one in _operands(after[1])
    ]


def _is_by_pass(name: str, opcode: str, rest: str) -> bool:
    """Whether a pass made an instruction, as far as it tells by itself.

    Such a one is called after its opcode, while its place in the program has another name, or the name has no number,
    which a program's own always have. Gathers and scatters without dropped dimensions come of ``gather_simplifier`` and
    ``scatter_simplifier``.
    """
    dropped = _SIMPLIFIED.get(opcode)
    if dropped is not None and f"{dropped}={{}}" in rest and "index_vector_dim=1," in rest:
        return True
    if name == opcode != "parameter":
        return True
    word = _OP_NAME.search(rest)
    return word is not None and _NUMBER.sub("", name) == opcode != word[1]


def _without_reshapes(rest: str, lines: dict[str, tuple[str, str]], now: dict[str, tuple[str, str]]) -> bool:
    """Whether a broadcast read a reshape of a reshape (or of a broadcast of as many elements) that is gone.

    algsimp merges the two, and makes the broadcast anew over what is behind them. Source:
    ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc#HandleBroadcast, #HandleReshape``.
    """
    for allowed in (("reshape",), ("reshape", "broadcast")):
        name = next(iter(_operands(rest)), "")
        opcode, rest = lines.get(name, ("", ""))
        if opcode not in allowed or name in now:
            return False
    behind = next(iter(_operands(rest)), "")
    return _elements(_shape_of(name, lines)) == _elements(_shape_of(behind, lines))


def _elements(shape: str) -> int:
    """Elements of an array's shape as text, 0 where it is none."""
    sizes = [size.lstrip("<=") for size in shape.partition("[")[2].rstrip("]").split(",") if size]
    return prod(map(int, sizes)) if all(map(str.isdecimal, sizes)) else 0


def _operands(rest: str) -> list[str]:
    return [one.lstrip("%") for one in _NAMES.findall(_NOTES.sub("", rest))]


def _callee(rest: str) -> str:
    found = _CALLEE.search(rest)
    return "" if found is None else found[1]


def _shape_of(name: str, lines: dict[str, tuple[str, str]]) -> str:
    found = lines.get(name)
    if found is None:
        return ""
    rest = found[1]
    return rest.partition(") ")[0] if rest[0] == "(" else rest.partition(" ")[0].partition("{")[0]


def _core(opcode: str, rest: str) -> str:
    """Opcode, shape and attributes that say what is computed: what a pass cannot change without a new instruction."""
    return opcode + _NAMES.sub("%", _NOTES.sub("", rest))


def _signature(opcode: str, rest: str) -> str:
    """A line without names; of the metadata the last word of the operation's name."""
    word = _OP_NAME.search(rest)
    return opcode + _NAMES.sub("%", _METADATA.sub("", rest)) + (word[1] if word else "")


def _bodies(text: str) -> dict[str, dict[str, tuple[str, str]]]:
    bodies: dict[str, dict[str, tuple[str, str]]] = {}
    body: dict[str, tuple[str, str]] | None = None
    for line in text.split("\n"):
        if body is None:
            header = _HEADER.match(line) if line and line[0] not in " \t" else None
            if header is not None and not line.startswith("HloModule"):
                body = bodies[header[1] or header[2]] = {}
        elif line.startswith("}"):
            body = None
        else:
            found = _INSTRUCTION.match(line)
            if found is not None:
                body[found[1]] = (found[3], found[2] if "%" in found[2] else _with_signs(found[3], found[2]))
    return bodies


def _with_signs(opcode: str, rest: str) -> str:
    """A line of the short form with a ``%`` before the operands' names."""
    start = rest.index(f"{opcode}(") + len(opcode) + 1
    end = rest.find(")", start)
    return rest[:start] + _BARE.sub(r"%\1", rest[start:end]) + rest[end:] if end >= 0 else rest


def _source(name: str, opcodes: list[str], known: dict[str, _Seen]) -> _Seen | None:
    """The computation that this one is a clone of, where it still looks the same."""
    while _CLONE.search(name):
        name = _CLONE.sub("", name)
        found = known.get(name)
        if found is not None and found.opcodes == opcodes:
            return found
    return None
