"""Inputs that go where the usual ones do not: into the other branch, beyond a clamp, into a tie.

A fault shows only on inputs that reach it. What a run reaches is counted in *places*: a predicate that was true, one
that was false, a comparison of equals, each side of a clamp, a slice that had to be moved inside. Other inputs are
worth the evaluation of every stage only where they reach a place that no inputs before them did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hloscope.bisect.putback import lay_open
from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from hloscope.bisect.judge import StageJudge
    from hloscope.bisect.putback import Flat
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value

Place: TypeAlias = "tuple[str, str]"
"""An instruction's name, and what happened there."""
Change: TypeAlias = "Callable[[Array], Array]"

_ORDERED = frozenset({"LT", "LE", "GT", "GE"})
_SIGNED = frozenset({"abs", "sign", "sort", "remainder", "shift-right-arithmetic", "shift-right-logical"})
"""Opcodes that do another thing to negative numbers."""
_PASSED_ON = frozenset({"parameter", "constant", "broadcast", "reshape", "bitcast", "copy", "transpose"})


@dataclass(slots=True)
class Reached:
    """What one run, or several, reach; an observer of the evaluator."""

    places: set[Place] = field(default_factory=set["Place"])
    possible: set[Place] = field(default_factory=set["Place"])
    """What the instructions that ran could have reached."""
    _last: dict[HloInstruction, Array] = field(default_factory=dict["HloInstruction", "Array"])

    def start(self, module: HloModule, inputs: Sequence[Array]) -> None:
        """Before a run: the parameters are not observed."""
        self._last = dict(zip(module.entry.parameters, inputs, strict=False))

    def observe(self, node: HloInstruction, value: Value) -> None:
        """Note what an instruction's value shows."""
        if not isinstance(value, np.ndarray):
            return
        self._last[node] = value
        operands = [self._of(one) for one in node.operands]
        told = [one for one in operands if one is not None]
        if len(told) != len(operands):
            return
        for said, here in _places(node, value, told):
            self.possible.add((node.name, said))
            if here:
                self.places.add((node.name, said))

    def _of(self, node: HloInstruction) -> Array | None:
        if node.opcode == "constant" and node.shape.is_array and not node.literal.is_elided:
            return node.literal.array()
        return self._last.get(node)


def _places(node: HloInstruction, value: Array, operands: Sequence[Array]) -> Iterator[tuple[str, bool]]:
    """What may happen at an instruction, and whether it did."""
    opcode = node.opcode
    if node.shape.type.name == "pred" and opcode not in _PASSED_ON:
        yield "true", bool(value.any())
        yield "false", not value.all()
    if opcode == "compare" and node.raw_attrs.get("direction") in _ORDERED:
        yield "equal", bool(np.any(operands[0] == operands[1]))
    elif opcode == "clamp":
        low, middle, high = operands
        yield "below", bool(np.any(middle < low))
        yield "above", bool(np.any(middle > high))
    elif opcode in ("maximum", "minimum"):
        yield "first", bool(np.any(operands[0] > operands[1]))
        yield "second", bool(np.any(operands[0] < operands[1]))
    elif opcode in ("dynamic-slice", "dynamic-update-slice"):
        taken = node.shape if opcode == "dynamic-slice" else node.operand(1).shape
        whole = node.operand(0).shape.dimensions
        starts = operands[1 if opcode == "dynamic-slice" else 2 :]
        for at, (start, size, part) in enumerate(zip(starts, whole, taken.dimensions, strict=False)):
            if size > part:
                yield f"start {at} below", bool(np.any(start < 0))
                yield f"start {at} above", bool(np.any(start.astype(np.float64) > size - part))
    elif opcode in _SIGNED and node.shape.type.kind in ("int", "float"):
        yield "negative", bool(np.any(operands[0] < 0))
    elif opcode == "gather":
        yield "index outside", bool(np.any(operands[1] < 0) or np.any(operands[1] >= max(operands[0].shape)))


VARIANTS: tuple[tuple[str, Change], ...] = (
    ("that are not centred at zero", lambda x: x + 1),
    ("that are small whole numbers, whose sums and products are exact", lambda x: np.clip(np.rint(4 * x), -8, 8)),
    ("16 times as large, which reach limits", lambda x: 16 * x),
    ("256 times as large, which reach limits", lambda x: 256 * x),
)
"""Other inputs where the usual ones leave it open, with what is said of them."""

TURNED: tuple[tuple[str, Change], ...] = (VARIANTS[1], VARIANTS[3])
"""Those with integers and predicates turned round, where nothing differs. The last, with
which an exponential that nothing bounds overflows, is for types whose exponents have eight bits."""


def varied(one: Array, change: Change, turned: bool) -> Array:
    """An input whose floating-point values are changed; where `turned`, integers of another sign and other preds."""
    if is_float(one):
        return change(one.astype(np.float64)).astype(one.dtype)
    if not turned:
        return one
    return ~one if one.dtype == np.bool_ else (3 - one if one.dtype.kind == "i" else one)


def _each(floats: Change, integers: Change, predicate: bool) -> Change:
    def changed(one: Array) -> Array:
        if one.dtype == np.bool_:
            return np.full_like(one, predicate)
        if is_float(one):
            return floats(one.astype(np.float64)).astype(one.dtype)
        return integers(one.astype(np.int64)).astype(one.dtype) if one.dtype.kind in "iu" else one

    return changed


CHANGES: tuple[tuple[str, Change], ...] = (
    ("negative", _each(lambda x: -np.abs(x) - 0.5, lambda x: -np.abs(x) - 1, predicate=False)),
    ("positive", _each(lambda x: np.abs(x) + 0.5, lambda x: np.abs(x) + 1, predicate=True)),
    ("zero", _each(lambda x: 0 * x, lambda x: 0 * x, predicate=False)),
    ("8 times as large", _each(lambda x: 8 * x, lambda x: 8 * x, predicate=True)),
)
"""What is done to all inputs, or to one of them."""
MOST_ALONE = 12
"""Inputs that are changed alone."""
MOST_CANDIDATES = 24
"""Inputs of which it is asked what they reach."""
MOST_OTHERS = 4
"""Of these, inputs on which every stage is evaluated."""


def candidates(inputs: Sequence[Array]) -> Iterator[tuple[str, list[Array]]]:
    """Other inputs, with what is said of them: all of them changed, then one alone."""
    for said, change in CHANGES:
        yield f"that are {said}", [change(one) for one in inputs]
    if len(inputs) < 2:
        return
    for at in range(min(len(inputs), MOST_ALONE)):
        for said, change in CHANGES:
            yield (
                f"of which number {at} is {said}",
                [change(one) if number == at else one for number, one in enumerate(inputs)],
            )


def ordinary(one: Array, source: np.random.Generator) -> Array:
    """An input with random values in place of NaN, infinities, and what gets there or to zero in a few products."""
    if not is_float(one):
        return one
    wide = one.astype(np.float64)
    size = np.abs(wide)
    plain = np.isfinite(wide) & (size < 1e4) & ((size > 1e-4) | (size == 0))
    return np.where(plain, wide, source.standard_normal(one.shape)).astype(one.dtype)


def has_short_exponents(module: HloModule) -> bool:
    """Whether some value is of a type in which moderate numbers overflow: f16, or one of eight bits and fewer."""
    leaves = (leaf for one in module.instructions() for _, leaf in one.shape.leaves())
    return any(leaf.type.name == "f16" or leaf.type.name.startswith(("f8", "f4")) for leaf in leaves)


def is_float(array: Array) -> bool:
    """Floating point, ml_dtypes' types too."""
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float"))


class Reaching:
    """The search for inputs that reach what the usual ones, and others that were tried, do not."""

    def __init__(self, judge: StageJudge, texts: Mapping[int, str], tried: Sequence[Sequence[Array]]) -> None:
        """`texts` are the stages that are looked at, by number, the first stage among them."""
        self._judge = judge
        self._reached: set[tuple[int, Place]] = set()
        self._possible: set[Place] = set()
        self._flats: list[tuple[int, Flat]] = []
        for number, text in texts.items():
            try:
                self._flats.append((number, lay_open(load_module(text))))
            except (HloscopeError, InternalError):
                continue
        self._first = min(texts)
        for inputs in (judge.inputs, *tried):
            self._reached |= self._run(inputs)

    def others(self) -> Iterator[tuple[str, list[Array]]]:
        """Inputs that reach something new, with what is said of them."""
        found = 0
        for number, (said, inputs) in enumerate(candidates(self._judge.inputs)):
            if number == MOST_CANDIDATES or found == MOST_OTHERS:
                return
            new = self._run(inputs) - self._reached
            if new:
                found += 1
                self._reached |= new
                yield said, inputs

    def left_out(self) -> list[str]:
        """What no input that was tried reaches in the first stage, in words; empty where there is nothing."""
        left = sorted(self._possible - {place for number, place in self._reached if number == self._first})
        if not left:
            return []
        shown = ", ".join(f"%{name} ({said})" for name, said in left[:3])
        places = "one place" if len(left) == 1 else f"{len(left)} places"
        return [f"no input that was tried reaches {places} of the first stage, such as {shown}"]

    def _run(self, inputs: Sequence[Array]) -> set[tuple[int, Place]]:
        found: set[tuple[int, Place]] = set()
        for number, flat in self._flats:
            watched = Reached()
            watched.start(flat.module, inputs)
            self._judge.watch(flat.module, self._judge.moved(number, flat), inputs, watched.observe)
            found |= {(number, place) for place in watched.places}
            if number == self._first:
                self._possible |= watched.possible
        return found
