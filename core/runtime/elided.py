"""Constants whose values the text leaves out (``{...}``): one value for one constant in every stage.

A large constant appears when a pass folds a computation. Where it stands, the stage before has what was folded, so its
value is that expression's. Failing that, a constant of the same name or the only one of the same shape in the stage
before is the same one; failing that, it is the only expression without inputs there that holds such values, maybe
broadcast or converted. Failing that, it is drawn from the seed, and said so.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import HloscopeError
from hloscope.core.runtime.evaluator import EvaluationOptions, evaluate_instruction
from hloscope.core.runtime.evaluator.values import ElidedSource as Source
from hloscope.core.runtime.evaluator.values import elided_error
from hloscope.core.runtime.inputs import random_array
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.runtime.evaluator import Array, Value

ELIDED_MARK = "{...}"
_DEEPEST = 2000
"""Instructions of one folded expression."""
_IMPURE = frozenset(
    {"parameter", "rng", "rng-get-and-update-state", "custom-call", "infeed", "recv", "partition-id", "replica-id"}
)


@dataclass(slots=True)
class ElidedConstants:
    """Values of a stage's elided constants by name, and how they were found."""

    values: dict[str, Array] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)
    """Names whose values are random."""
    folded: list[str] = field(default_factory=list)
    """Names whose values were computed from the stage before."""
    guessed: list[str] = field(default_factory=list)
    """Names whose values are the only expression in the stage before that can be them."""


def elided_constants(module: HloModule) -> list[HloInstruction]:
    """The constants of a module, arrays, whose values the text leaves out."""
    return [n for n in module.instructions() if n.opcode == "constant" and n.shape.is_array and n.literal.is_elided]


def resolve(module: HloModule, before: HloModule | None, known: Mapping[str, Array], seed: int) -> ElidedConstants:
    """Values for the elided constants of a stage; `before` is the stage before and `known` its own values."""
    out = ElidedConstants()
    index = {} if before is None else {node.name: node for node in before.instructions()}
    turns: dict[str, int] = {}
    guesses: list[Array] | None = None
    for node in elided_constants(module):
        text = node.shape.to_text(layout=False)
        turn = turns[text] = turns.get(text, -1) + 1
        value = None if before is None else _from_before(node, index, known)
        if value is not None:
            out.folded.append(node.name)
        else:
            value = _alike(node, index, known)
        if value is None and before is not None:
            if guesses is None:
                guesses = _expressions(before, known)
            value = _guess(node, guesses)
            if value is not None:
                out.guessed.append(node.name)
        if value is None:
            source = np.random.default_rng([seed, zlib.crc32(text.encode()), turn])
            value = random_array(node.shape, source)
            out.drawn.append(node.name)
        out.values[node.name] = value
    return out


def known_in(stages: Sequence[Callable[[], str]], number: int, seed: int) -> dict[str, Array]:
    """Values of one stage's elided constants as far as the stages before it tell them."""
    start = number
    while start and ELIDED_MARK in stages[start - 1]():
        start -= 1
    known: dict[str, Array] = {}
    before: HloModule | None = None
    for index in range(max(0, start - 1), number + 1):
        try:
            module = load_module(stages[index]())
        except HloscopeError:
            before = None
            continue
        found = resolve(module, before, known, seed)
        known = {name: value for name, value in found.values.items() if name not in found.drawn}
        before = module
    return known


def source(known: Mapping[str, Array], options: EvaluationOptions) -> Source:
    """The values of constants: the known ones, and for others what the options say."""
    other = options.elided

    def value(node: HloInstruction) -> Array:
        if node.name in known:
            return known[node.name]
        if callable(other):
            return other(node)
        if other == "random":
            return random_array(node.shape, np.random.default_rng([options.seed, zlib.crc32(node.name.encode())]))
        raise elided_error(node)

    return value


def _fits(node: HloInstruction, value: object) -> bool:
    shape = node.shape
    return isinstance(value, np.ndarray) and value.shape == shape.dimensions and value.dtype == shape.type.dtype


def _alike(node: HloInstruction, index: Mapping[str, HloInstruction], known: Mapping[str, Array]) -> Array | None:
    same = known.get(node.name)
    if same is not None and _fits(node, same):
        return same
    if same is not None and (relaid := _relaid(node, index.get(node.name), same)) is not None:
        return relaid
    fitting = [value for name, value in known.items() if name in index and _fits(node, value)]
    distinct = {value.tobytes(): value for value in fitting}
    return next(iter(distinct.values())) if len(distinct) == 1 else None


def _relaid(node: HloInstruction, earlier: HloInstruction | None, value: Array) -> Array | None:
    """The same bytes under other dimensions, where the name stayed and the dimensions are those in which the bytes lie:
    what layout normalization makes of a constant."""
    if earlier is None or earlier.opcode != "constant" or value.dtype != node.shape.type.dtype:
        return None
    lies, order = value.transpose(_major_to_minor(earlier.shape)), _major_to_minor(node.shape)
    if lies.shape != tuple(node.shape.dimensions[d] for d in order):
        return None
    return lies.transpose(np.argsort(order)) if order else lies


def _major_to_minor(shape: Shape) -> list[int]:
    if shape.layout is None:
        return list(range(shape.rank))
    return list(reversed(shape.layout.minor_to_major))


def _from_before(node: HloInstruction, index: Mapping[str, HloInstruction], known: Mapping[str, Array]) -> Array | None:
    """What stood at the constant's place: under its own name, or as the same operand of the same user."""
    candidates: list[HloInstruction] = []
    for user in node.users:
        earlier = index.get(user.name)
        if earlier is None or earlier.opcode != user.opcode or earlier.operand_count != user.operand_count:
            continue
        candidates += [earlier.operand(i) for i, operand in enumerate(user.operands) if operand is node]
    if node.name in index:
        candidates.append(index[node.name])
    for candidate in candidates:
        if candidate.shape.is_array and candidate.shape.dimensions == node.shape.dimensions:
            value = _fold(candidate, known)
            if value is not None and _fits(node, value):
                return value
    return None


def _fold(root: HloInstruction, known: Mapping[str, Array]) -> Array | None:
    """The value of an expression without inputs; None where it has some, is large, or cannot be evaluated."""
    order: list[HloInstruction] = []
    seen: set[HloInstruction] = set()
    stack = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            if node.opcode in _IMPURE or len(seen) > _DEEPEST:
                return None
            stack.append((node, True))
            stack.extend((operand, False) for operand in node.operands)
    values: dict[HloInstruction, Value] = {}
    options = EvaluationOptions(elided=lambda node: known[node.name])
    for node in order:
        try:
            if node.opcode == "constant" and node.shape.is_array:
                values[node] = known[node.name] if node.literal.is_elided else node.literal.array()
            else:
                values[node] = evaluate_instruction(node, [values[o] for o in node.operands], options=options)
        except (HloscopeError, KeyError):
            return None
    found = values[root]
    return found if isinstance(found, np.ndarray) else None


_MOST_ELEMENTS = 1 << 22
"""Elements of an expression that is looked at."""
_PLAIN = frozenset({"constant", "iota", "broadcast", "tuple"})
"""What no pass folds into a large constant."""


def _expressions(before: HloModule, known: Mapping[str, Array]) -> list[Array]:
    """The values of the expressions without inputs in a module, without the dimensions along which they repeat."""
    free: set[HloInstruction] = set()
    for computation in before.computations:
        for node in computation.post_order():
            if node.opcode not in _IMPURE and all(operand in free for operand in node.operands):
                free.add(node)
    out: list[Array] = []
    for node in free:
        if node.opcode in _PLAIN or not node.shape.is_array or not 1 < node.shape.element_count <= _MOST_ELEMENTS:
            continue
        value = _fold(node, known)
        if value is not None and (short := _without_repeats(value)).size > 1:
            out.append(short)
    return out


def _without_repeats(value: Array) -> Array:
    for axis in range(value.ndim):
        if value.shape[axis] > 1:
            first = value.take([0], axis)
            if bool(np.all(np.equal(value, first))):
                value = first
    return value.squeeze()


def _guess(node: HloInstruction, guesses: list[Array]) -> Array | None:
    shape = node.shape
    short = tuple(n for n in shape.dimensions if n != 1)
    kind = shape.type.dtype
    found = [x.astype(kind) for x in guesses if x.shape == short and (x.dtype == kind or x.dtype.kind == kind.kind)]
    distinct = {value.tobytes(): value for value in found}
    return next(iter(distinct.values())).reshape(shape.dimensions) if len(distinct) == 1 else None
