"""Which instructions ended up in which fusion, found by matching the stages before and after a fusion pass.

Every instruction gets a hash of what it computes: opcode, shape, attributes and the hashes of its operands, with
fusion bodies read as if they stood outside. An instruction inside a fusion and the one that it came from have the same
hash whatever their names.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule

_NO_MEANING = frozenset(
    "metadata frontend_attributes sharding backend_config control-predecessors origin original_value".split()
)
_OPAQUE = frozenset(("while", "conditional", "call", "async-start"))
"""Instructions whose bodies fusion itself may change: the name says which they are."""


@dataclass(frozen=True, slots=True)
class Group:
    """One fusion of the later stage."""

    fusion: str
    kind: str
    computation: str
    members: tuple[str, ...]
    """Instructions of the earlier stage that it computes, operands before users."""
    unknown: int
    """Instructions inside that were not found in the earlier stage."""


class _Values:
    """Numbers for what instructions compute, shared by both stages."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def of(
        self,
        one: HloInstruction,
        operands: list[int],
        callees: dict[HloComputation, int],
        inside: dict[HloInstruction, int] | None = None,
    ) -> int:
        """The number of an instruction; of a fusion that of its body's root, each instruction of it put in `inside`."""
        if one.opcode == "fusion":
            body = one.callee()
            inside = {} if inside is None else inside
            for each in body.post_order():
                if each.opcode == "parameter":
                    inside[each] = operands[each.parameter_number]
                else:
                    inside[each] = self.of(each, [inside[operand] for operand in each.operands], callees, inside)
            return inside[body.root]
        if one.opcode in _OPAQUE or one.opcode == "parameter":
            return self.number((one.opcode, one.name, one.shape.without_layout(), tuple(operands)))
        attrs = tuple(
            sorted((key, text) for key, text in one.raw_attrs.items() if text is not None and key not in _NO_MEANING)
        )
        called = tuple(callees.get(computation, -1) for computation in one.called_computations)
        payload = one.payload if one.opcode == "constant" else None
        return self.number((one.opcode, one.shape.without_layout(), attrs, called, payload, tuple(operands)))


def recover_groups(before: HloModule, after: HloModule) -> list[Group]:
    """The fusions of `after` that `before` has not, or with less in them, and what of `before` went in."""
    values = _Values()
    sources: dict[str, dict[int, list[str]]] = {}
    inside: dict[HloInstruction, int] = {}
    first_callees = _callee_numbers(before, values)
    for computation in before.computations:
        if not computation.is_fusion:
            found: defaultdict[int, list[str]] = defaultdict(list)
            numbers: dict[HloInstruction, int] = {}
            for one in computation.post_order():
                numbers[one] = values.of(one, [numbers[operand] for operand in one.operands], first_callees, inside)
                found[numbers[one]].append(one.name)
            sources[computation.name] = found
    groups: list[Group] = []
    callees = _callee_numbers(after, values)
    known = set(inside.values())
    for computation in after.computations:
        if not computation.is_fusion and computation.name in sources:
            groups.extend(_groups(computation, sources[computation.name], known, values, callees))
    return groups


def _callee_numbers(module: HloModule, values: _Values) -> dict[HloComputation, int]:
    """Numbers of reducers and the like, by what they compute."""
    found: dict[HloComputation, int] = {}
    for computation in module.post_order():
        numbers: dict[HloInstruction, int] = {}
        for one in computation.post_order():
            if one.opcode == "parameter":
                numbers[one] = values.number(("parameter", one.parameter_number, one.shape.without_layout()))
            else:
                numbers[one] = values.of(one, [numbers[operand] for operand in one.operands], found)
        found[computation] = values.number(("computation", numbers[computation.root]))
    return found


def _groups(
    computation: HloComputation,
    source: dict[int, list[str]],
    known: set[int],
    values: _Values,
    callees: dict[HloComputation, int],
) -> list[Group]:
    numbers: dict[HloInstruction, int] = {}
    groups: list[Group] = []
    for one in computation.post_order():
        inside: dict[HloInstruction, int] = {}
        numbers[one] = values.of(one, [numbers[operand] for operand in one.operands], callees, inside)
        if one.opcode != "fusion":
            continue
        members: dict[str, None] = {}
        unknown = 0
        for each, number in inside.items():
            if each.opcode == "parameter":
                continue
            names = source.get(number)
            if names is None:
                unknown += each.opcode != "tuple" and number not in known
            else:
                # equal computations are told apart by nothing; the one of the same name or root name comes first
                same = (name for name in names if name == one.name and number == numbers[one])
                alike = (name for name in names if _stem(name) == _stem(each.name))
                members[next(same, next(alike, names[0]))] = None
        if set(members) - {one.name}:
            groups.append(Group(one.name, str(one.attr("kind") or ""), computation.name, tuple(members), unknown))
    return groups


def _stem(name: str) -> str:
    """A name without the numbers and words that clones append."""
    while True:
        head, dot, tail = name.rpartition(".")
        if not dot or not (tail.isdigit() or tail == "clone"):
            return name
        name = head
