"""Which instructions fit as an operand of what is being typed, and which computations as what it calls.

The opcode, the shape of the result and the operands in front say it: by XLA's rule of inference where that needs no
attribute, which at this point are not typed yet, else by a rule of the operand's place in ``_RULES``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.infer_shape import RULES, InferenceError, ProgramShape, compatible, infer_shape
from hloscope.core.hlo.infer_shape.base import is_float, is_integral
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.hlo.shape import Shape

CALLERS = frozenset({"call", "fusion", "async-start"})
"""Opcodes whose operands are what the computation takes that they call."""
_TUPLES = frozenset({"get-tuple-element", "async-update", "async-done"})


@lru_cache(maxsize=4096)
def parsed(text: str) -> Shape | None:
    """A shape's text as a shape without layout; None where it cannot be read."""
    try:
        return Shape.parse(text).without_layout()
    except (HloscopeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Slot:
    """The operand that is being typed."""

    opcode: str
    number: int
    result: Shape
    before: tuple[Shape | None, ...]
    """Shapes of the operands in front of it; None where the name is not known."""
    wanted: tuple[Shape, ...] | None = None
    """Shapes of which it has to have one, where what is called says so."""

    @property
    def results(self) -> tuple[Shape, ...]:
        """The elements of a tuple, else the one result."""
        return self.result.tuple_shapes or (self.result,)

    def rank(self, candidate: Shape | None) -> int:
        """Order of an instruction of this shape: 0 where it fits, 1 where it does but for its element type, then the
        more the less it is like what fits."""
        if candidate is None:
            return 5
        if self.wanted is not None:
            return min((_distance(candidate, one) for one in self.wanted), default=4)
        found = _RULES.get(self.opcode, (_by_inference,))
        if (fit := found[min(self.number, len(found) - 1)](self, candidate)) is not None:
            return 0 if fit else 1
        wants_tuple = self.opcode in _TUPLES or self.opcode.endswith("-done") or self._wants_tuple()
        if candidate.is_array == wants_tuple:
            return 4
        kind = self.before[0] if self.before and self.before[0] is not None else self.results[0]
        return 2 if candidate.element_type == kind.element_type else 3

    def _wants_tuple(self) -> bool:
        return self.result.is_tuple and self.opcode in ("while", "copy", "opt-barrier", "domain")


def _distance(candidate: Shape, wanted: Shape) -> int:
    if compatible(candidate, wanted):
        return 0
    if candidate.is_array != wanted.is_array:
        return 4
    if candidate.is_array and candidate.dimensions == wanted.dimensions:
        return 1
    return 2 if candidate.element_type == wanted.element_type else 3


def takes(result: Shape, parameters: Sequence[Shape], wanted: Shape, before: Sequence[Shape | None]) -> bool:
    """Whether a computation of this signature gives what is wanted for the operands that are already there."""
    known = zip(before, parameters, strict=False)
    return compatible(result, wanted) and all(a is None or compatible(a, b) for a, b in known)


Fit = bool | None
"""True where it fits, False where it does but for its type, None where it does not."""
_Rule = Callable[[Slot, Shape], Fit]


def _yes(fits: bool, typed: bool = True) -> Fit:
    return typed if fits else None


def _same(slot: Slot, one: Shape) -> Fit:
    return _yes(compatible(one, slot.result))


def _by_inference(slot: Slot, one: Shape) -> Fit:
    """What XLA's rule makes of it, operands that are still to come being like it."""
    known = OPCODES.get(slot.opcode)
    if known is None or slot.opcode not in RULES:
        return _same(slot, one)
    if known.elementwise and one.is_array and slot.result.is_array and one.dimensions != slot.result.dimensions:
        return None  # the rule broadcasts scalars, which HLO itself must not
    missing = max(0, (known.arity or 0) - slot.number - 1)
    operands = [one if before is None else before for before in slot.before] + [one] * (1 + missing)
    try:
        fits = compatible(infer_shape(slot.opcode, operands, given=slot.result), slot.result)
        # The rule takes floats of two types, too, which few passes write.
        return _yes(fits, not known.elementwise or operands[0].element_type == one.element_type)
    except InferenceError as error:
        return None if error.kind == "invalid" else _same(slot, one)
    except HloscopeError:
        return _same(slot, one)


def _element(slot: Slot, one: Shape) -> Fit:
    return _yes(slot.number < len(slot.results) and compatible(one, slot.results[slot.number]))


def _holder(slot: Slot, one: Shape) -> Fit:
    return _yes(one.is_tuple and any(compatible(part, slot.result) for part in one.tuple_shapes))


def _like(one: Shape, other: Shape, fits: Callable[[tuple[int, ...], tuple[int, ...]], bool]) -> Fit:
    """Arrays of one type whose dimensions stand in a relation."""
    typed = one.element_type == other.element_type
    return _yes(one.is_array and other.is_array and typed and fits(one.dimensions, other.dimensions))


def _subsequence(few: Sequence[int], many: Sequence[int]) -> bool:
    rest = iter(many)
    return all(any(one == other for other in rest) for one in few)


def _permuted(slot: Slot, one: Shape) -> Fit:
    return _like(one, slot.result, lambda a, b: sorted(a) == sorted(b))


def _as_many(slot: Slot, one: Shape) -> Fit:
    return _yes(
        _like(one, slot.result, lambda a, b: True) is not None and one.element_count == slot.result.element_count
    )


def _as_large(slot: Slot, one: Shape) -> Fit:
    return _yes(one.is_array and slot.result.is_array and one.byte_size == slot.result.byte_size)


def _spread(slot: Slot, one: Shape) -> Fit:
    return _like(one, slot.result, _subsequence)


def _retyped(slot: Slot, one: Shape) -> Fit:
    same = one.is_array and slot.result.is_array and one.dimensions == slot.result.dimensions
    return _yes(same, one.element_type != slot.result.element_type)


def _larger(slot: Slot, one: Shape) -> Fit:
    return _like(one, slot.results[0], lambda a, b: len(a) == len(b) and all(x >= y for x, y in zip(a, b, strict=True)))


def _smaller(slot: Slot, one: Shape) -> Fit:
    return _like(one, slot.results[0], lambda a, b: len(a) == len(b) and all(x <= y for x, y in zip(a, b, strict=True)))


def _joined(slot: Slot, one: Shape) -> Fit:
    def all_but_one(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) <= 1

    return _yes(_smaller(slot, one) is not None and _like(one, slot.result, all_but_one) is not None)


def _ranked(slot: Slot, one: Shape) -> Fit:
    return _like(one, slot.results[0], lambda a, b: len(a) == len(b))


def _typed(slot: Slot, one: Shape) -> Fit:
    return _like(one, slot.result, lambda a, b: True)


def _value(slot: Slot, one: Shape) -> Fit:
    """A scalar of the result's type."""
    return _like(one, slot.result, lambda a, b: not a)


def _index(slot: Slot, one: Shape) -> Fit:
    return _yes(one.is_scalar and is_integral(one))


def _indices(slot: Slot, one: Shape) -> Fit:
    return _yes(one.is_array and is_integral(one))


def _chosen(slot: Slot, one: Shape) -> Fit:
    return _yes(one.element_type == "pred" and one.dimensions in ((), slot.result.dimensions))


def _branch(slot: Slot, one: Shape) -> Fit:
    return _yes(one.is_scalar and one.element_type in ("pred", "s32"))


def _bound(slot: Slot, one: Shape) -> Fit:
    return _like(one, slot.result, lambda a, b: a in ((), b))


def _any(slot: Slot, one: Shape) -> Fit:
    return True


def _token(slot: Slot, one: Shape) -> Fit:
    return _yes(one.is_token)


def _reduced(slot: Slot, one: Shape) -> Fit:
    """First the arrays, then as many initial values; as many as there are results."""
    results = slot.results
    if slot.number >= 2 * len(results):
        return None
    result = results[slot.number % len(results)]
    if slot.number >= len(results):
        return _like(one, result, lambda a, b: not a)
    first = slot.before[0] if slot.number else None
    if first is not None and one.dimensions != first.dimensions:
        return None
    if slot.opcode == "reduce-window":
        return _like(one, result, lambda a, b: len(a) == len(b))
    return _like(one, result, lambda a, b: len(a) > len(b) and _subsequence(b, a))


def _scattered(slot: Slot, one: Shape) -> Fit:
    """The arrays, the indices, the updates."""
    count = len(slot.results)
    if slot.number == count:
        return _indices(slot, one)
    if slot.number > 2 * count:
        return None
    if slot.number < count:
        return _element(slot, one)
    return _like(one, slot.results[slot.number - count - 1], lambda a, b: True)


def _left(slot: Slot, one: Shape) -> Fit:
    if not one.is_array or not one.rank or not slot.result.is_array:
        return None
    some = not slot.result.dimensions or slot.result.dimensions[0] in one.dimensions
    return _yes(some and _multiplies(one, slot.result), one.element_type == slot.result.element_type)


def _right(slot: Slot, one: Shape) -> Fit:
    """A dot's result has the batch dimensions, then what is left of the first operand, then of the second."""
    left = slot.before[0]
    if left is None or not (one.is_array and left.is_array and slot.result.is_array) or not _multiplies(one, left):
        return None
    dims = slot.result.dimensions
    for batch in range(len(dims) + 1):
        for middle in range(batch, len(dims) + 1):
            summed = [Counter(left.dimensions), Counter(one.dimensions)]
            for counted, kept in zip(summed, (dims[:middle], dims[:batch] + dims[middle:]), strict=True):
                counted.subtract(kept)
            if min((*summed[0].values(), *summed[1].values()), default=0) >= 0 and +summed[0] == +summed[1]:
                return one.element_type == left.element_type
    return None


def _multiplies(one: Shape, other: Shape) -> bool:
    return is_float(one) == is_float(other) and is_integral(one) == is_integral(other)


def _started(slot: Slot, one: Shape) -> Fit:
    return _yes(bool(slot.result.tuple_shapes) and compatible(one, slot.result.tuple_shapes[0]))


_RULES: Mapping[str, tuple[_Rule, ...]] = MappingProxyType(
    {
        "after-all": (_token,),
        "all-gather": (_smaller,),
        "bitcast": (_as_large,),
        "bitcast-convert": (_as_large,),
        "broadcast": (_spread,),
        "call": (_any,),
        "clamp": (_bound, _same, _bound),
        "concatenate": (_joined,),
        "conditional": (_branch, _any),
        "convert": (_retyped,),
        "convolution": (_ranked,),
        "copy-done": (_holder,),
        "copy-start": (_started,),
        "custom-call": (_any,),
        "dot": (_left, _right, _any),
        "dynamic-slice": (_larger, _index),
        "dynamic-update-slice": (_same, _smaller, _index),
        "fusion": (_any,),
        "gather": (_typed, _indices),
        "get-tuple-element": (_holder,),
        "pad": (_ranked, _value),
        "reduce": (_reduced,),
        "reduce-scatter": (_larger,),
        "reduce-window": (_reduced,),
        "reshape": (_as_many,),
        "reverse": (_same,),
        "rng": (_value,),
        "scatter": (_scattered,),
        "select": (_chosen, _same, _same),
        "select-and-scatter": (_same, _ranked, _value),
        "slice": (_larger,),
        "sort": (_element,),
        "transpose": (_permuted,),
        "tuple": (_element,),
    }
)
"""By operand; the last rule is that of all that follow."""


# -- what is called
_Wanted = tuple[tuple[Shape, ...], Shape | None]
"""Parameters and result."""


def called_rank(
    opcode: str, key: str, number: int, operands: Sequence[Shape | None], result: Shape, found: ProgramShape | None
) -> int:
    """Order of a computation as the `number`-th under an attribute: 0 where its signature fits, one more where its
    parameters do not, and one more where its result does not."""
    known = tuple(one for one in operands if one is not None)
    if found is None or len(known) != len(operands):
        return 2
    parameters, root = _wanted(opcode, key, number, known, result)
    given = found.parameters
    fits = len(given) == len(parameters) and all(compatible(a, b) for a, b in zip(given, parameters, strict=True))
    return (not fits) + (root is not None and not compatible(found.result, root))


def _wanted(opcode: str, key: str, number: int, operands: tuple[Shape, ...], result: Shape) -> _Wanted:
    results = result.tuple_shapes or (result,)
    if opcode == "while":
        return operands, Shape.scalar("pred") if key == "condition" else result
    if opcode == "conditional":
        at = 1 + (number if key == "branch_computations" else key == "false_computation")
        return operands[at : at + 1], result
    if opcode == "sort":
        return tuple(_scalar(one) for one in operands for _ in range(2)), Shape.scalar("pred")
    if opcode == "map":
        return tuple(_scalar(one) for one in operands), _scalar(result)
    if opcode == "select-and-scatter":
        return (_scalar(result),) * 2, Shape.scalar("pred") if key == "select" else _scalar(result)
    if opcode in ("reduce", "reduce-window", "scatter"):
        scalars = tuple([_scalar(one) for one in results])
        return scalars * 2, scalars[0] if len(scalars) == 1 else Shape.tuple_(scalars)
    if opcode.startswith(("all-reduce", "reduce-scatter")):
        return (_scalar(results[0]),) * 2, _scalar(results[0])
    return operands, result if opcode in ("call", "fusion") else None


def _scalar(shape: Shape) -> Shape:
    return Shape.scalar(shape.element_type) if shape.is_array else shape
