"""Taking back a part of what one stage did: two neighbouring stages aligned, and modules made of both.

The stages are walked from their roots in step. Two instructions that have the same form (opcode, shape, attributes)
stay, and their operands are walked on; where the forms part is a *border*: what the later stage computes there stands
for what the earlier one computes. A border can be put back alone: the later stage then reads the earlier one's
expression, down to what both have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.core.errors import InternalError
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule

_NO_FORM = frozenset({"metadata", "sharding", "frontend_attributes", "control-predecessors"})


@dataclass(frozen=True, slots=True, eq=False)
class Border:
    """One place where the stages part."""

    after: HloInstruction
    """What the later stage computes."""
    before: HloInstruction
    """What the earlier one computes there."""
    uses: list[tuple[HloInstruction | None, int]] = field(default_factory=list["tuple[HloInstruction | None, int]"])
    """Who reads it, in the later stage, and as which operand; None is the computation's result."""


@dataclass(slots=True)
class Alignment:
    """Two stages walked in step."""

    before: HloModule
    after: HloModule
    same: dict[HloInstruction, HloInstruction] = field(default_factory=dict["HloInstruction", "HloInstruction"])
    """Earlier instruction -> the later one of the same form in its place."""
    borders: list[Border] = field(default_factory=list[Border])
    """In the order in which the walk met them."""

    def cone(self, border: Border) -> list[HloInstruction]:
        """The later stage's instructions that a border is made of, operands first."""
        shared = set(self.same.values())
        others = {one.after for one in self.borders} - {border.after}
        found: dict[HloInstruction, None] = {}
        stack = [border.after]
        while stack:
            one = stack.pop()
            if one in found or one in shared or (one in others):
                continue
            found[one] = None
            stack.extend(one.operands)
        place = {one: at for at, one in enumerate(border.after.parent.post_order())}
        return sorted(found, key=place.__getitem__)


def align(before: HloModule, after: HloModule) -> Alignment:
    """Walk two stages in step from their entry roots, into called computations too."""
    return _Walk(Alignment(before, after)).run()


class _Walk:
    def __init__(self, found: Alignment) -> None:
        self._found = found
        self._seen: set[tuple[HloInstruction, HloInstruction]] = set()
        self._bordered: dict[tuple[HloInstruction, HloInstruction], Border] = {}
        self._walked: set[HloInstruction] = set()
        self._taken: set[HloInstruction] = set()
        self._names: dict[HloComputation, dict[str, HloInstruction]] = {}
        self._stack: list[tuple[HloInstruction, HloInstruction, tuple[HloInstruction | None, int]]] = []

    def run(self) -> Alignment:
        found = self._found
        self._enter(found.before.entry, found.after.entry)
        while self._stack:
            self._pair(*self._stack.pop())
        return found

    def _enter(self, before: HloComputation, after: HloComputation) -> None:
        for b, a in zip(before.parameters, after.parameters, strict=True):
            self._keep(b, a)
        self._stack.append((before.root, after.root, _RESULT))

    def _keep(self, before: HloInstruction, after: HloInstruction) -> bool:
        """Note a pair of one form, unless either is in another pair."""
        if before in self._found.same:
            return self._found.same[before] is after
        if after in self._taken:
            return False
        self._found.same[before] = after
        self._taken.add(after)
        return True

    def _pair(self, before: HloInstruction, after: HloInstruction, use: tuple[HloInstruction | None, int]) -> None:
        known = self._bordered.get((before, after))
        if known is not None:
            known.uses.append(use)
            return
        if (before, after) in self._seen:
            return
        self._seen.add((before, after))
        if self._found.same.get(before) is after and before.opcode == "parameter":
            return
        calls = _callee_pairs(before, after)
        if calls is None or not _one_form(before, after) or self._rewired(before, after):
            self._border(before, after, use)
            return
        if not self._keep(before, after):
            self._border(before, after, use)
            return
        for pair in calls:
            self._enter(*pair)
        for at, (b, a) in enumerate(zip(before.operands, after.operands, strict=True)):
            self._stack.append((b, a, (after, at)))

    def _rewired(self, before: HloInstruction, after: HloInstruction) -> bool:
        """Whether the later one reads another operand although the one that it read is still there."""
        names = self._by_name(after.parent)
        for b, a in zip(before.operands, after.operands, strict=True):
            still = names.get(b.name)
            if b.name != a.name and still is not None and _one_form(b, still):
                return True
        return False

    def _border(self, before: HloInstruction, after: HloInstruction, use: tuple[HloInstruction | None, int]) -> None:
        border = Border(after, before, [use])
        self._bordered[(before, after)] = border
        self._found.borders.append(border)
        names = self._by_name(after.parent)
        stack = list(before.operands)
        while stack:
            b = stack.pop()
            if b in self._walked or b in self._found.same:
                continue
            self._walked.add(b)
            a = names.get(b.name)
            if a is not None and a.shape.compatible(b.shape) and _one_form(b, a):
                self._below(b, a)
            stack.extend(b.operands)

    def _below(self, before: HloInstruction, after: HloInstruction) -> None:
        """Below a border, an instruction of one name and form on both sides is common ground, where nothing calls."""
        if not before.called_computations and not self._rewired(before, after) and self._keep(before, after):
            for at, (b, a) in enumerate(zip(before.operands, after.operands, strict=True)):
                self._stack.append((b, a, (after, at)))

    def _by_name(self, computation: HloComputation) -> dict[str, HloInstruction]:
        found = self._names.get(computation)
        if found is None:
            found = self._names[computation] = {one.name: one for one in computation}
        return found


_RESULT: tuple[HloInstruction | None, int] = (None, 0)


def _one_form(before: HloInstruction, after: HloInstruction) -> bool:
    """Whether two instructions do the same to their operands; operands, names and callees do not count."""
    if before.opcode != after.opcode or before.operand_count != after.operand_count:
        return False
    if before.shape != after.shape:
        return False
    if any(not b.shape.compatible(a.shape) for b, a in zip(before.operands, after.operands, strict=True)):
        return False
    if before.opcode == "constant":
        return before.payload == after.payload
    if before.payload != after.payload:
        return False

    def attributes(one: HloInstruction) -> dict[str, str | None]:
        return {key: text for key, text in one.raw_attrs.items() if key not in _NO_FORM and key not in one.called}

    return attributes(before) == attributes(after)


def _callee_pairs(before: HloInstruction, after: HloInstruction) -> list[tuple[HloComputation, HloComputation]] | None:
    """Called computations in pairs; None where they cannot be paired."""
    mine, theirs = before.called_computations, after.called_computations
    if len(mine) != len(theirs):
        return None
    for b, a in zip(mine, theirs, strict=True):
        if len(b.parameters) != len(a.parameters) or not b.root.shape.compatible(a.root.shape):
            return None
        if any(not x.shape.compatible(y.shape) for x, y in zip(b.parameters, a.parameters, strict=True)):
            return None
    return list(zip(mine, theirs, strict=True))


@dataclass(frozen=True, slots=True)
class Hybrid:
    """The later stage with some borders put back."""

    module: HloModule
    borrowed: dict[str, str]
    """Names of the constants taken from the earlier stage -> their names there."""


def put_back(found: Alignment, chosen: Iterable[Border]) -> Hybrid:
    """The later stage with the chosen borders as the earlier stage has them. Raises InternalError for a cycle."""
    return _Mixer(found, list(chosen)).run()


class _Mixer:
    def __init__(self, found: Alignment, chosen: list[Border]) -> None:
        self._found = found
        self._chosen = chosen
        self._module = found.after.clone()
        homes = {computation.name: computation for computation in self._module.computations}
        self._copy: dict[HloInstruction, HloInstruction] = {}
        for computation in found.after.computations:
            twins = {one.name: one for one in homes[computation.name]}
            for one in computation:
                self._copy[one] = twins[one.name]
        self._border_of = {one.before: one for one in found.borders}
        self._wanted = set(chosen)
        self._made: dict[tuple[HloComputation, HloInstruction], HloInstruction] = {}
        self._callees: dict[HloComputation, HloComputation] = {}
        self._borrowed: dict[str, str] = {}

    def run(self) -> Hybrid:
        places = [self._copy[one.after] for one in self._chosen]
        built = [self._build(one, old.parent) for one, old in zip(self._chosen, places, strict=True)]
        for border, old, new in zip(self._chosen, places, built, strict=True):
            if old.shape.is_array and old.shape.type != new.shape.type:
                # The stage went on in another type: its readers get that one.
                new = old.parent.add(HloInstruction("convert", old.shape, (new,)))
            for reader, at in border.uses:
                if reader is None:
                    old.parent.set_root(new)
                else:
                    self._copy[reader].replace_operand(at, new)
        for computation in self._module.computations:
            computation.post_order()  # a cycle shows here
        return Hybrid(self._module, self._borrowed)

    def _build(self, border: Border, home: HloComputation) -> HloInstruction:
        """The earlier expression of a border in the later stage's computation."""
        order: list[HloInstruction] = []
        stack: list[tuple[HloInstruction, bool]] = [(border.before, False)]
        while stack:
            one, ready = stack.pop()
            if (home, one) in self._made or self._shared(one, border, home) is not None:
                continue
            if ready:
                order.append(one)
                self._made[(home, one)] = self._clone(one, border, home)
                continue
            stack.append((one, True))
            stack.extend((operand, False) for operand in one.operands)
        return self._made[(home, border.before)]

    def _shared(self, one: HloInstruction, border: Border, home: HloComputation) -> HloInstruction | None:
        """The later stage's own instruction for one of the earlier stage's, where the two stand for each other."""
        if one is border.before:
            return None
        same = self._found.same.get(one)
        if same is not None and self._copy[same].parent is home:
            return self._copy[same]
        other = self._border_of.get(one)
        if other is not None and other not in self._wanted and self._copy[other.after].parent is home:
            return self._copy[other.after]
        return None

    def _clone(self, one: HloInstruction, border: Border, home: HloComputation) -> HloInstruction:
        if one.opcode == "parameter":
            raise InternalError(f"%{one.name} has no counterpart in {home.name}")
        operands = [self._shared(operand, border, home) or self._made[(home, operand)] for operand in one.operands]
        clone = one.clone_with(operands=operands)
        for key, group in one.called.items():
            clone.set_called(key, tuple(self._callee(callee) for callee in group))
        home.add(clone)
        if one.opcode == "constant":
            self._borrowed[clone.name] = one.name
        return clone

    def _callee(self, computation: HloComputation) -> HloComputation:
        """A computation of the earlier stage, copied into the module."""
        known = self._callees.get(computation)
        if known is None:
            for one in computation.module.post_order():
                if one is computation or computation.reaches(one):
                    twin = self._callees.get(one)
                    if twin is None:
                        twin = HloComputation(one.name)
                        self._module.add_computation(twin, first=True)
                        names = [node.name for node in one]
                        one.clone_into(twin, self._callees)
                        for node, name in zip(twin, names, strict=True):
                            node.rename(f"{name}.before")
                            if node.opcode == "constant":
                                self._borrowed[node.name] = name
                        self._callees[one] = twin
            known = self._callees[computation]
        return known


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """An instruction of the later stage that has its name, but not its line, from the earlier one."""

    after: HloInstruction
    before: HloInstruction


def changed_lines(found: Alignment, border: Border) -> list[Line]:
    """The lines inside a border that one could take back alone, operands first, in the fusions that it calls too."""
    earlier: dict[str, list[HloInstruction]] = {}
    for one in found.before.instructions():
        earlier.setdefault(one.name, []).append(one)
    cone = found.cone(border)
    inside = [one for node in cone for callee in _reached(node) for one in callee.post_order()]
    lines: list[Line] = []
    for one in (*inside, *cone):
        named = earlier.get(one.name, ())
        # Copies of one computation have the same names: what counts is the one that this was.
        olds = [old for old in named if old.parent.name == one.parent.name] or named
        if one.opcode == "parameter" or any(old.opcode == "parameter" or _same_line(old, one) for old in olds):
            continue
        old = next((old for old in olds if _is_changed(old, one)), None)
        if old is not None:
            lines.append(Line(one, old))
    return lines


def _reached(node: HloInstruction) -> list[HloComputation]:
    found: dict[HloComputation, None] = {}
    stack = list(node.called_computations)
    while stack:
        one = stack.pop()
        if one not in found:
            found[one] = None
            stack.extend(callee for inner in one for callee in inner.called_computations)
    return list(found)


def _is_changed(before: HloInstruction, after: HloInstruction) -> bool:
    if not before.shape.compatible(after.shape) or before.operand_count != after.operand_count:
        return False
    if _callee_pairs(before, after) is None or before.called_computations:
        return False
    here = {one.name for one in after.parent}
    if not all(one.name in here for one in before.operands):
        return False
    return not _same_line(before, after)


def _same_line(before: HloInstruction, after: HloInstruction) -> bool:
    return _one_form(before, after) and [o.name for o in before.operands] == [o.name for o in after.operands]


def take_back(found: Alignment, lines: Iterable[Line]) -> Hybrid:
    """The later stage with some lines as the earlier stage has them. Raises InternalError for a cycle."""
    module = found.after.clone()
    homes = {one.name: (one, {node.name: node for node in one}) for one in module.computations}
    borrowed: dict[str, str] = {}
    made: list[tuple[HloInstruction, HloInstruction]] = []
    for line in lines:
        home, names = homes[line.after.parent.name]
        new = home.add(line.before.clone_with(operands=[names[one.name] for one in line.before.operands]))
        if new.opcode == "constant":
            borrowed[new.name] = line.before.name
        made.append((names[line.after.name], new))
    for old, new in made:
        old.replace_all_uses_with(new)  # also in the other lines that are taken back
    for computation in module.computations:
        computation.post_order()
    return Hybrid(module, borrowed)


OPENED = frozenset({"fusion", "call"})
"""Opcodes whose bodies can stand in their place."""


@dataclass(frozen=True, slots=True)
class Flat:
    """A module whose fusions and calls are laid open."""

    module: HloModule
    names: dict[str, str]
    """Names of instructions that stood in the body of a fusion or call -> their names there."""


def lay_open(module: HloModule) -> Flat:
    """A copy with the body of every fusion and call in its place; it computes the same."""
    copy = module.clone()
    names: dict[str, str] = {}
    for computation in copy.computations:
        if computation.is_fusion:
            continue
        stack = [one for one in computation if one.opcode in OPENED]
        while stack:
            fusion = stack.pop()
            (body,) = fusion.called_computations
            made: dict[HloInstruction, HloInstruction] = dict(zip(body.parameters, fusion.operands, strict=True))
            for one in body.post_order():
                if one in made:
                    continue
                clone = computation.add(one.clone_with(operands=[made[operand] for operand in one.operands]))
                names[clone.name] = names.get(one.name, one.name)
                made[one] = clone
                if clone.opcode in OPENED:
                    stack.append(clone)
            fusion.replace_all_uses_with(made[body.root])
            fusion.drop_all_control_dependencies()
            computation.remove(fusion)
    return Flat(copy, names)
