"""Which instruction of a wrong stage is the first to compute something that the stage before did not.

Where a stage has rewritten a whole region, taking the region back tells no instruction. But both stages run on the
same inputs: an instruction of the later one whose value the earlier one has nowhere is new, and one of the earlier one
whose value the later one has nowhere was lost. A new instruction that may be replaced by a lost one, so that the
results are right again, is where the fault begins. Later readers cure as well, so the first in order is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hloscope.bisect.putback import Alignment, Border
from hloscope.core.runtime.evaluator.noise import EXACT
from hloscope.core.runtime.evaluator.values import Token

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value

TURNS = 3
"""Values of an instruction that are kept: those of a loop's first iterations."""
MOST_ELEMENTS = 1 << 24
"""Elements of one stage's values; beyond it nothing is kept, and nothing can be told."""
_NO_VALUE = frozenset({"parameter", "tuple", "get-tuple-element"})
"""Opcodes that only pass values on."""


@dataclass(slots=True)
class Seen:
    """The values of one run, collected by its observer."""

    values: dict[HloInstruction, list[Value]] = field(default_factory=dict["HloInstruction", "list[Value]"])
    elements: int = 0
    parameters: dict[HloInstruction, Array] = field(default_factory=dict["HloInstruction", "Array"])
    """The program's inputs, where each parameter is an array."""

    def observe(self, node: HloInstruction, value: Value) -> None:
        """Keep the first values of an instruction."""
        known = self.values.setdefault(node, [])
        if len(known) < TURNS and self.elements < MOST_ELEMENTS:
            known.append(value)
            self.elements += value.size if isinstance(value, np.ndarray) else 1

    def of(self, node: HloInstruction) -> list[Value]:
        """What an instruction computed; empty where it did not run or has no text."""
        if node.opcode == "constant" and node.shape.is_array and not node.literal.is_elided:
            return [node.literal.array()]
        if node in self.parameters:
            return [self.parameters[node]]
        return self.values.get(node, [])


@dataclass(slots=True)
class Pairs:
    """What may stand for what."""

    found: Alignment
    """The two modules; `same` holds the instructions of equal value."""
    theirs: Seen
    ours: Seen
    groups: list[list[Border]] = field(default_factory=list["list[Border]"])
    """A new instruction and a lost one, with its other copies where it was laid open more than once; in the order in
    which they should be tried."""
    chain: list[list[Border]] = field(default_factory=list["list[Border]"])
    """The likeliest group of each new instruction, in the order in which the later stage computes them."""
    fresh: set[HloInstruction] = field(default_factory=set["HloInstruction"])
    """The new instructions."""
    looked_at: set[HloInstruction] = field(default_factory=set["HloInstruction"])
    """Instructions of the later stage whose values were matched."""

    def deeper(self, border: Border) -> Border | None:
        """The operand through which the two differ, where they do the same and one operand alone differs."""
        one, other = border.after, border.before
        if one.opcode != other.opcode or one.operand_count != other.operand_count or one.called_computations:
            return None
        apart = [
            at
            for at, (x, y) in enumerate(zip(one.operands, other.operands, strict=True))
            if x.shape.is_array and not _alike(self.theirs.of(y), self.ours.of(x))
        ]
        if len(apart) != 1:
            return None
        x, y = one.operand(apart[0]), other.operand(apart[0])
        if x.opcode in _NO_VALUE or not self.theirs.of(y) or not self.ours.of(x):
            return None
        return Border(x, y, _uses(x)) if x.shape.dimensions == y.shape.dimensions else None

    def cone(self, one: HloInstruction) -> list[HloInstruction]:
        """An instruction and the new ones that it is computed from."""
        seen: dict[HloInstruction, None] = {one: None}
        stack = [one]
        while stack:
            for operand in stack.pop().operands:
                if operand in self.fresh and operand not in seen:
                    seen[operand] = None
                    stack.append(operand)
        return list(seen)


def pairs_of(
    before: HloModule, after: HloModule, theirs: Seen, ours: Seen, origin: Callable[[HloInstruction], str]
) -> Pairs:
    """Match the values of two runs, computation by computation; `origin` names what an instruction is a copy of."""
    pairs = Pairs(Alignment(before, after), theirs, ours)
    grouped: dict[tuple[str, int], list[Border]] = {}
    for old, new in _computations(before, after):
        pairs.looked_at.update(new)
        for a, near in _match(old, new, pairs, origin):
            for rank, b in enumerate(near):
                grouped.setdefault((origin(a), rank), []).append(Border(a, b, _uses(a)))
    place = {one: at for at, one in enumerate(_in_order(after.entry))}
    last = len(place)

    def computed(group: list[Border]) -> int:
        return min(place.get(one.after, last) for one in group)

    def likeliest(group: list[Border]) -> tuple[bool, bool, int]:
        new = group[0].after
        reads_new = any(_is_new(operand, pairs.fresh) for operand in new.operands)
        return origin(new) != origin(group[0].before), reads_new, computed(group)

    pairs.groups = sorted(grouped.values(), key=likeliest)
    pairs.chain = sorted((group for (_, rank), group in grouped.items() if rank == 0), key=computed)
    return pairs


def first_to_cure(pairs: Pairs, cures: Callable[[Sequence[Border]], bool]) -> list[Border] | None:
    """The first group that makes the results right; None where none was found.

    Of n groups at most ceil(log2 n) + 3 are asked: the likeliest one alone; then, where the chain put back as a whole
    makes it right, the chain's first part that does, by halving; else as many single ones, the likeliest first.
    """
    groups, chain = pairs.groups, pairs.chain
    if not groups:
        return None
    left = (len(groups) - 1).bit_length() + 3

    def ask(chosen: Sequence[list[Border]]) -> bool:
        nonlocal left
        left -= 1
        return cures([border for group in chosen for border in group])

    if ask(groups[:1]):
        return groups[0]
    if len(chain) > left and ask(chain):
        low, high = 0, len(chain)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if ask(chain[:middle]) else (middle, high)
        if ask([chain[high - 1]]):
            return chain[high - 1]
        return None
    return next((group for group in groups[1:] if left and ask([group])), None)


def _is_new(one: HloInstruction, fresh: set[HloInstruction]) -> bool:
    """Whether a value is new, or one that a loop or branch hands on which computes something new."""
    while one.opcode == "get-tuple-element":
        one = one.operand(0)
    inner = one.called_computations if one.opcode in ("while", "conditional") else ()
    return one in fresh or any(node in fresh for body in inner for node in body)


def _in_order(computation: HloComputation) -> Iterable[HloInstruction]:
    """Instructions in the order in which they are computed, with those of bodies and branches before their callers."""
    for one in computation.post_order():
        if one.opcode in ("while", "conditional"):
            for callee in one.called_computations:
                yield from _in_order(callee)
        yield one


def leaves_a_limit(before: HloModule, after: HloModule, theirs: Seen, ours: Seen, *, reached: bool) -> bool:
    """Whether the later run differs because it does not overflow, or make NaN of it, where the earlier one does.

    A rewrite that computes less (log(exp(x)) is x, x * convert(p) is a select) does not go there. So a value that the
    later run lacks is one of its own but for infinities and NaN. Where inputs were chosen to reach limits (`reached`),
    it is enough that the first one lacking is at a limit: an infinity, or an exponential that is zero. A run that has
    infinities or NaN in a result where the earlier one's is finite goes to a limit, and leaves none.
    """
    if _spoilt(before, after, theirs, ours):
        return False
    have: dict[tuple[int, ...], list[list[Value]]] = {}
    for one in after.instructions():
        if one.shape.is_array and (values := ours.of(one)):
            have.setdefault(one.shape.dimensions, []).append(values)
    first = True
    for computation in before.post_order():
        for one in computation.post_order():
            values = theirs.of(one)
            if not one.shape.is_array or one.opcode in _NO_VALUE or not values:
                continue
            others = have.get(one.shape.dimensions, ())
            if any(_alike(values, other) for other in others):
                continue
            arrays = [value for value in values if isinstance(value, np.ndarray) and _is_inexact(value)]
            limit = any(not np.isfinite(_wide(array)).all() for array in arrays)
            rounds = one.opcode not in EXACT and len(arrays) == len(values)
            zero = one.opcode == "exponential" and any(not x.all() for x in arrays)
            if reached and first and rounds and (limit or zero):
                return True
            if limit and rounds and any(_alike_where_finite(arrays, other) for other in others):
                return True
            first = False
    return False


def _spoilt(before: HloModule, after: HloModule, theirs: Seen, ours: Seen) -> bool:
    """Whether some element of a result is finite in the earlier run and is not in the later one."""
    roots = [
        list(root.operands) if root.opcode == "tuple" else [root] for root in (before.entry.root, after.entry.root)
    ]
    for old, new in zip(roots[0], roots[1], strict=False):
        for one, other in zip(theirs.of(old), ours.of(new), strict=False):
            if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.shape == other.shape):
                continue
            both = _is_inexact(one) and _is_inexact(other)
            if both and (np.isfinite(_wide(one)) & ~np.isfinite(_wide(other))).any():
                return True
    return False


def _alike_where_finite(arrays: Sequence[Array], others: Sequence[Value]) -> bool:
    """Whether values are others but for elements that are infinite or NaN, with a quarter of them left to tell."""
    if len(arrays) != len(others):
        return False
    for one, other in zip(arrays, others, strict=True):
        if not isinstance(other, np.ndarray) or not _is_inexact(other):
            return False
        told = np.isfinite(_wide(one))
        if 4 * np.count_nonzero(told) < told.size or not _close(one[told], other[told]):
            return False
    return True


def differing_turn(pairs: Pairs, border: Border) -> int | None:
    """The first turn (of a loop) in which the two of a border have other values; None where none is known."""
    ours, theirs = pairs.ours.of(border.after), pairs.theirs.of(border.before)
    both = zip(ours, theirs, strict=False)
    return next((turn for turn, (one, other) in enumerate(both) if not _close(other, one)), None)


def _uses(one: HloInstruction) -> list[tuple[HloInstruction | None, int]]:
    found: list[tuple[HloInstruction | None, int]] = [
        (user, at) for user in one.users for at, operand in enumerate(user.operands) if operand is one
    ]
    return [*found, (None, 0)] if one is one.parent.root else found


def _computations(before: HloModule, after: HloModule) -> Iterable[tuple[HloComputation, HloComputation]]:
    """The entries, and the bodies of loops and branches that stand for each other, in order."""
    stack = [(before.entry, after.entry)]
    seen: set[HloComputation] = set()
    while stack:
        old, new = stack.pop()
        if new in seen:
            continue
        seen.add(new)
        yield old, new
        for opcode in ("while", "conditional"):
            mine = [one for one in new.post_order() if one.opcode == opcode]
            others = [one for one in old.post_order() if one.opcode == opcode]
            if len(mine) != len(others):
                continue
            names = {one.name: one for one in others}
            if {one.name for one in mine} == set(names):
                others = [names[one.name] for one in mine]
            for a, b in zip(mine, others, strict=True):
                if len(a.called_computations) == len(b.called_computations):
                    stack.extend(zip(b.called_computations, a.called_computations, strict=True))


def _match(
    old: HloComputation, new: HloComputation, pairs: Pairs, origin: Callable[[HloInstruction], str]
) -> Iterable[tuple[HloInstruction, list[HloInstruction]]]:
    """New instructions, and for each the earlier ones that it may stand for, the likeliest first."""
    theirs, ours, same = pairs.theirs, pairs.ours, pairs.found.same
    if len(old.parameters) == len(new.parameters):
        same |= {b: a for b, a in zip(old.parameters, new.parameters, strict=True) if b.shape.compatible(a.shape)}
    earlier: dict[tuple[int, ...], list[HloInstruction]] = {}
    names: dict[str, HloInstruction] = {}
    for b in old.post_order():
        names.setdefault(origin(b), b)
        if b.shape.is_array and b.opcode != "parameter" and theirs.of(b):
            earlier.setdefault(b.shape.dimensions, []).append(b)
    mated: set[HloInstruction] = set()
    fresh: list[HloInstruction] = []
    for a in new.post_order():
        values = ours.of(a)
        if not a.shape.is_array or a.opcode == "parameter" or not values:
            continue
        choice = earlier.get(a.shape.dimensions, [])
        mates = [b for b in choice if _alike(theirs.of(b), values)]
        named = names.get(origin(a))
        if named is not None and named in choice and named not in mates:
            mates = []  # small values are equal by chance
        if (not mates or _by_chance(a, mates, choice, pairs)) and a.opcode not in _NO_VALUE:
            fresh.append(a)
            mates = []
        for b in mates:
            mated.add(b)
            if b.shape.compatible(a.shape):
                same.setdefault(b, a)
    pairs.fresh |= set(fresh)
    for a in fresh:
        named = names.get(origin(a))
        choice = earlier.get(a.shape.dimensions, ())
        lost = [b for b in choice if (b not in mated or b is named) and b.opcode not in _NO_VALUE]
        if a.opcode == "constant":
            values = {str(b.payload): b for b in reversed(choice) if b.opcode == "constant"}
            yield a, sorted(values.values(), key=lambda b, a=a: origin(b) != origin(a))[:4]
            continue
        lost.sort(key=lambda b, a=a: (origin(b) != origin(a), b.opcode != a.opcode, b.shape != a.shape))
        # One that does the same to the same, though another copy may have its value; one of the same name or opcode;
        # else only the likeliest.
        twins = [b for b in choice if b is not named and _same_operands(b, a, pairs)]
        twins.sort(key=lambda b, a=a: b.opcode != a.opcode)
        likely = [b for b in lost if b is named or (b.opcode == a.opcode and b not in twins)] or lost[:1]
        yield a, [*twins[:2], *likely[:3]]


def _by_chance(
    new: HloInstruction, mates: Sequence[HloInstruction], choice: Sequence[HloInstruction], pairs: Pairs
) -> bool:
    """Whether values are equal to others by chance (predicates, all NaN): what reads the same as `new` has others."""
    twins = [b for b in choice if b.opcode == new.opcode and _same_operands(b, new, pairs)]
    return bool(twins) and not any(b in mates for b in twins)


def _same_operands(old: HloInstruction, new: HloInstruction, pairs: Pairs) -> bool:
    """Whether two instructions read the same values, in whatever order."""
    if not new.operand_count or old.operand_count != new.operand_count:
        return False

    def alike(b: HloInstruction, a: HloInstruction) -> bool:
        return pairs.found.same.get(b) is a or _alike(pairs.theirs.of(b), pairs.ours.of(a))

    left = list(old.operands)
    for a in new.operands:
        found = next((b for b in left if alike(b, a)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _alike(one: Sequence[Value], other: Sequence[Value]) -> bool:
    """Whether two instructions computed the same, but for rounding."""
    return bool(one) and len(one) == len(other) and all(_close(x, y) for x, y in zip(one, other, strict=True))


def _close(one: Value, other: Value) -> bool:
    if isinstance(one, tuple) or isinstance(other, tuple) or isinstance(one, Token) or isinstance(other, Token):
        return False
    if one.shape != other.shape:
        return False
    if not (_is_inexact(one) and _is_inexact(other)):
        return _is_inexact(one) == _is_inexact(other) and bool(np.array_equal(one, other))
    narrow = min(one.dtype.itemsize, other.dtype.itemsize) < 4
    tolerance = 2e-2 if narrow else 1e-5
    wide = [_wide(x) for x in (one, other)]
    finite = np.abs(np.where(np.isfinite(wide[0]), wide[0], 0))
    scale = float(finite.max(initial=0.0))
    return bool(np.allclose(*wide, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def _is_inexact(array: Array) -> bool:
    """Floating point or complex, ml_dtypes' types too."""
    return array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float"))


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
