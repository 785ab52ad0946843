"""What a rewrite rule is, how it builds its replacement, and the questions that many rules ask.

A rule looks at one instruction and answers with the instruction that can stand in its place, with a function that
builds one, with a `Refusal` where it would apply but would not be right, or with None. Only the engine changes the
module. To add a rule: write a function with ``@rule(…)`` and put it into the RULES of its file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union

import numpy as np

from hloscope.core.hlo.instruction import HloInstruction, metadata_of
from hloscope.core.hlo.literal import Literal as HloLiteral
from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.gate import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """What the rules of one run may assume."""

    is_layout_sensitive: bool = False
    """After layout assignment: layouts are part of a shape, and only rules that keep them may run."""

    def same_shape(self, a: Shape, b: Shape) -> bool:
        """Equal shapes, layouts compared only where they count."""
        return a == b if self.is_layout_sensitive else a.compatible(b)


class Builder:
    """Makes the instructions of one rewrite, in the computation and with the metadata of the rewritten one."""

    def __init__(self, subject: HloInstruction) -> None:
        self._subject = subject
        self._metadata = metadata_of(subject)
        self.made: list[HloInstruction] = []
        """What was made, in order."""

    def make(
        self,
        opcode: str,
        shape: Shape,
        operands: Iterable[HloInstruction],
        attrs: Mapping[str, Any] | None = None,
        *,
        name: str = "",
    ) -> HloInstruction:
        """A new instruction; its name is the opcode where none is given, made unique."""
        return self._add(HloInstruction(opcode, shape, operands, attrs=attrs, name=name, metadata=self._metadata))

    def clone(
        self, one: HloInstruction, operands: Iterable[HloInstruction], shape: Shape | None = None
    ) -> HloInstruction:
        """A copy of an instruction with other operands."""
        return self._add(one.clone_with(shape=shape, operands=operands))

    def constant(self, values: object, shape: Shape) -> HloInstruction:
        """A constant of this shape; `values` is converted to its element type."""
        array = np.asarray(values, dtype=shape.type.dtype).reshape(shape.dimensions)
        return self._add(
            HloInstruction("constant", shape, literal=HloLiteral(shape, array), metadata=self._metadata)
        )

    def scalar_like(self, shape: Shape, value: object) -> HloInstruction:
        """A value in every element of an array shape: a scalar constant, broadcast where the shape has dimensions."""
        scalar = self.constant(value, like(shape, ()))
        return self.broadcast_scalar(scalar, shape)

    def broadcast_scalar(self, scalar: HloInstruction, shape: Shape) -> HloInstruction:
        """A scalar broadcast to a shape; itself where the shape is scalar."""
        if not shape.dimensions:
            return scalar
        return self.make("broadcast", shape, [scalar], {"dimensions": ()})

    def _add(self, one: HloInstruction) -> HloInstruction:
        self._subject.parent.add(one)
        self.made.append(one)
        return one


Build: TypeAlias = Callable[[Builder], HloInstruction]
Answer: TypeAlias = Union[HloInstruction, Build, Refusal, None]  # noqa: UP007  (a string-free union of a callable)
Match: TypeAlias = Callable[[HloInstruction, RuleOptions], Answer]


@dataclass(frozen=True)
class Rule:
    """One rewrite."""

    name: str
    """Stable name, shown in events: ``add-zero``."""
    opcodes: tuple[str, ...]
    """Opcodes of the instructions that it looks at."""
    summary: str
    """``x + 0 → x``, with its conditions."""
    match: Match
    layouts: Literal["any", "insensitive"] = "any"
    """``insensitive`` rules run before layout assignment only."""


def rule(name: str, opcodes: str, summary: str, *, insensitive: bool = False) -> Callable[[Match], Rule]:
    """Make a matching function a rule; `opcodes` are separated by blanks."""

    def declare(match: Match) -> Rule:
        return Rule(name, tuple(opcodes.split()), summary, match, "insensitive" if insensitive else "any")

    return declare


# ---------------------------------------------------------------- questions
def like(shape: Shape, dimensions: tuple[int, ...], element_type: str | None = None) -> Shape:
    """An array of other dimensions, with the default layout where `shape` has a layout at all."""
    made = Shape.array(element_type or shape.element_type, dimensions)
    return made if shape.layout is None else made.with_default_layout()


def literal_values(one: HloInstruction) -> np.ndarray[Any, np.dtype[Any]] | None:
    """Elements of an array constant; None for anything else, and where the text leaves them out."""
    if one.opcode != "constant" or not one.shape.is_array or one.shape.type.kind == "unknown":
        return None
    return one.literal.values


def is_all(one: HloInstruction, value: float | int | bool) -> bool:
    """A constant, or broadcasts of one, whose elements all equal `value` (0 and -0 are equal)."""
    while one.opcode == "broadcast":
        one = one.operand(0)
    values = literal_values(one)
    if values is None or not values.size:
        return False
    return bool(values.flat[0] == value) and bool((values == value).all())


def constant_value(one: HloInstruction) -> Any:
    """The value of a scalar constant or of a broadcast of one; None for anything else."""
    scalar = scalar_constant(one)
    return None if scalar is None else scalar.literal.array()[()]


def scalar_constant(one: HloInstruction) -> HloInstruction | None:
    """The scalar constant that `one` is or broadcasts."""
    if one.opcode == "broadcast":
        one = one.operand(0)
    return one if one.shape.is_scalar and literal_values(one) is not None else None


def is_constant(one: HloInstruction) -> bool:
    """A constant or a broadcast of one."""
    return (one.operand(0) if one.opcode == "broadcast" else one).opcode == "constant"


def is_static_array(shape: Shape) -> bool:
    """An array without dynamic dimensions."""
    return shape.is_array and not shape.is_dynamic


def type_of(one: HloInstruction) -> str:
    """Kind of the element type: ``int``, ``uint``, ``float``, ``pred``, ``complex`` or another."""
    return one.shape.type.kind


def is_integral(one: HloInstruction) -> bool:
    """Elements are signed or unsigned integers."""
    return one.shape.type.is_integral


NAN = "nan_semantics"
"""Refusal code: not right for every float, because of NaN or infinity."""
