"""Region analysis of copy removal: may two lists of values share memory although their live ranges are not plainly one
after the other?

Every instruction of one side is placed against those of the other: before, after, at the same one, or not ordered. A
write of one side *intercepts* the other where it falls between a definition there and its use. Instructions that
nothing orders may be ordered now, by new control edges. XLA has it off by default
(``xla_cpu_copy_insertion_use_region_analysis``, ``xla_gpu_copy_insertion_use_region_analysis``).
Source: ``openxla/xla:xla/service/copy_removal.cc#ValuesInterfere``, ``#ComputeRelativeLocation``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.analysis.alias_info import AliasInfo
    from hloscope.core.analysis.dataflow_values import HloUse, HloValue
    from hloscope.core.analysis.ordering import HloOrdering
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction


class Order(IntFlag):
    """When one instruction runs relative to others; a union of these."""

    NONE = 0
    """Never in the same run."""
    SAME = 1
    BEFORE = 2
    AFTER = 4


_UNORDERED = Order.BEFORE | Order.AFTER


@dataclass(slots=True)
class _Entry:
    """An instruction of a region."""

    is_definition: bool = False
    definition: HloInstruction | None = None
    """For a use: the instruction that makes the value."""


Region = dict["HloComputation", dict["HloInstruction", _Entry]]


@dataclass(slots=True)
class _Relation:
    """Orders of one region relative to another, and whether it writes between a definition and a use there."""

    orders: list[Order] = field(default_factory=list[Order])
    intercepts: bool = False

    @property
    def overlaps(self) -> bool:
        return any(order >= _UNORDERED for order in self.orders)

    def join_same(self, order: Order, intercepts: bool) -> None:
        """Another relation of the same instruction."""
        self.orders = [self.orders[0] | order] if self.orders else [order]
        self.intercepts |= intercepts

    def join_other(self, other: _Relation) -> None:
        """The relation of another instruction."""
        if not other.orders:
            return
        self.intercepts |= other.intercepts
        new = other.orders[0]
        for place, order in enumerate(self.orders):
            if order | new in (order, new):
                self.orders[place] = order | new
                return
        self.orders.append(new)


def region(values: Iterable[tuple[HloValue, Sequence[HloUse]]]) -> Region:
    """Where values are made and read, by computation."""
    found: Region = {}
    for value, uses in values:
        node = value.instruction
        found.setdefault(node.parent, {}).setdefault(node, _Entry()).is_definition = True
        for use in uses:
            reader = use.instruction
            found.setdefault(reader.parent, {}).setdefault(reader, _Entry()).definition = node
    return found


class RegionAnalysis:
    """One question: do two regions interfere? Orders that it would force are kept until the answer is no."""

    def __init__(self, ordering: HloOrdering, info: AliasInfo) -> None:
        self._ordering = ordering
        self._info = info
        self._saved: dict[tuple[HloInstruction, HloInstruction], Order] = {}
        self._edges: dict[HloInstruction, list[HloInstruction]] = {}

    def interfere(self, source: Region, target: Region, *, target_into_source: bool) -> bool:
        """Whether the regions cannot share memory. Where they can, control edges that it takes are added.

        `target_into_source`: the target's list goes into the source's, else the other way round.
        """
        first = self._between(source, target)
        second = self._between(target, source)
        if first.overlaps and second.overlaps:
            return True
        if first.overlaps and (first.intercepts or (not target_into_source and second.intercepts)):
            return True
        if second.overlaps and (second.intercepts or (target_into_source and first.intercepts)):
            return True
        return not self._add_edges()

    # ---------------------------------------------------------------- regions
    def _between(self, one: Region, other: Region) -> _Relation:
        """Where `other` runs relative to `one`."""
        found = _Relation()
        for outer, entries in one.items():
            for inner, others in other.items():
                if not others or not self._ordering.is_in(next(iter(others)), outer):
                    continue
                for node, entry in _listed(inner, others):
                    found.join_other(self._of_instruction(node, entry, outer, entries, one))
        return found

    def _of_instruction(
        self,
        node: HloInstruction,
        entry: _Entry,
        outer: HloComputation,
        entries: dict[HloInstruction, _Entry],
        whole: Region,
    ) -> _Relation:
        can_modify = self._can_intercept(node, entry, whole)
        found = _Relation()
        unordered: list[HloInstruction] = []
        intercepts = False
        for target, info in _listed(outer, entries):
            order, hit = self._entries(target, info, node, entry, can_modify)
            if order == _UNORDERED:
                unordered.append(target)
                intercepts |= hit
            else:
                found.join_same(order, hit)
        if not self._force(unordered, node, found.orders[0] if found.orders else Order.NONE):
            found.join_same(_UNORDERED, intercepts)
        return found

    def _entries(
        self, use: HloInstruction, info: _Entry, node: HloInstruction, entry: _Entry, can_modify: bool
    ) -> tuple[Order, bool]:
        """When `node` runs relative to `use`, and whether it comes between the use and its definition."""
        definition = info.definition
        order = self._order(node, use)
        if order == Order.SAME and info.is_definition != entry.is_definition:
            order = Order.BEFORE if info.is_definition else Order.AFTER
        always = node.opcode == "collective-permute" or node.info.asynchronous in ("start", "done")
        if definition is None or not can_modify:
            return order, always
        if definition.opcode == "parameter" and use.is_root:
            return order, True
        together = use.parent is definition.parent
        if together and definition.opcode == "while" and node.parent is definition.callee("body"):
            if self._order(use, node) == Order.AFTER:
                return order, False
        if together and use.opcode == "while" and node.parent is use.callee("body"):
            if self._order(definition, node) == Order.BEFORE:
                return order, False
        if together and definition is node and node.shape.is_tuple:
            if any(caller.opcode == "conditional" for caller in node.parent.callers):
                return order, True
        if order in (Order.BEFORE, _UNORDERED) and self._order(node, definition) in (Order.AFTER, _UNORDERED):
            return order, True
        return order, always

    def _can_intercept(self, node: HloInstruction, entry: _Entry, whole: Region) -> bool:
        """Whether an instruction writes something new into the shared memory."""

        def contains(one: HloInstruction) -> bool:
            return one in whole.get(one.parent, {})

        if not entry.is_definition:
            return any(contains(node.operand(pair.operand)) for pair in self._info.in_place_pairs(node))
        if node.opcode == "copy":
            operand = node.operand(0)
            if operand.opcode == "get-tuple-element":
                operand = operand.operand(0)
            return not (contains(operand) and node.shape == node.operand(0).shape)
        return node.opcode not in ("parameter", "tuple", "get-tuple-element", "while", "call", "conditional")

    # ---------------------------------------------------------------- orders
    def _order(self, a: HloInstruction, b: HloInstruction) -> Order:
        """When `a` runs relative to `b`, forced orders counted in."""
        known = self._saved.get((a, b))
        if known is None:
            turned = self._saved.get((b, a))
            known = _turn(turned) if turned is not None else None
        if known is not None:
            return known
        constraint = self._ordering.constraint(a, b)
        found = _BY_CONSTRAINT.get(constraint)
        if found is None and a.parent is b.parent:
            if any(self._reaches(a, before) for before in self._edges.get(b, ())):
                found = Order.BEFORE
            elif any(self._reaches(b, before) for before in self._edges.get(a, ())):
                found = Order.AFTER
        if found is None:
            return _UNORDERED
        self._saved[a, b] = found
        return found

    def _reaches(self, a: HloInstruction, b: HloInstruction) -> bool:
        return self._order(a, b) in (Order.BEFORE, Order.SAME, Order.BEFORE | Order.SAME)

    def _force(self, unordered: Sequence[HloInstruction], node: HloInstruction, wanted: Order) -> bool:
        """Note that `node` shall run before (or after) instructions that nothing orders against it, where it may."""
        if not unordered:
            return True
        if wanted not in (Order.BEFORE, Order.AFTER):
            return False
        for other in unordered:
            if other.parent is not node.parent:
                return False
            first, second = (node, other) if wanted == Order.BEFORE else (other, node)
            if first.is_root:
                return False
            if second.opcode == "copy" and any(
                first.operand(pair.operand) is second.operand(0) for pair in self._info.in_place_pairs(first)
            ):
                return False
        for other in unordered:
            self._saved[node, other] = wanted
            first, second = (node, other) if wanted == Order.BEFORE else (other, node)
            self._note_edge(first, second)
        return True

    def _note_edge(self, first: HloInstruction, second: HloInstruction) -> None:
        edges = self._edges.setdefault(second, [])
        for place, known in enumerate(edges):
            order = self._saved.get((first, known))
            turned = self._saved.get((known, first))
            found = order if order is not None else _turn(turned) if turned is not None else None
            if found is not None:
                if found == Order.AFTER:
                    edges[place] = first
                return
        edges.append(first)

    def _add_edges(self) -> bool:
        if not self._edges:
            return True
        if not self._ordering.by_dependence:
            return False
        for second, firsts in self._edges.items():
            for first in firsts:
                first.add_control_dependency(second)
                self._ordering.add_dependence(first, second)
        return True


_BY_CONSTRAINT = {
    "same": Order.SAME,
    "before-end": Order.BEFORE | Order.SAME,
    "before": Order.BEFORE,
    "after": Order.AFTER,
    "exclusive-before": Order.NONE,
    "exclusive-after": Order.NONE,
}


def _turn(order: Order) -> Order:
    turned = order & Order.SAME
    if order & Order.BEFORE:
        turned |= Order.AFTER
    if order & Order.AFTER:
        turned |= Order.BEFORE
    return turned


def _listed(
    computation: HloComputation, entries: dict[HloInstruction, _Entry]
) -> Iterator[tuple[HloInstruction, _Entry]]:
    """Entries in the order of the computation's list, which is that of XLA's instruction ids."""
    if len(entries) < 2:
        yield from entries.items()
        return
    place = {node: number for number, node in enumerate(computation.instructions)}
    yield from sorted(entries.items(), key=lambda one: place.get(one[0], -1))
