"""What every inference rule works with: the request, the typed error, and XLA's comparisons of shapes.

Source: ``openxla/xla:xla/shape_util.{h,cc}``, ``xla/shape.cc#Shape::Equal``, ``xla/primitive_util.h``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from hloscope.core.errors import VerifyError
from hloscope.core.hlo.attributes import ATTRIBUTES
from hloscope.core.hlo.element_types import ELEMENT_TYPES, ElementType, lookup
from hloscope.core.hlo.shape import UNBOUNDED, Shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction

ErrorKind = Literal["invalid", "missing-attribute", "missing-program", "shape-needed", "unimplemented", "operand-count"]


class InferenceError(VerifyError):
    """No shape follows: the operands, attributes or called computations do not fit the opcode.

    `kind` says what is wrong: ``invalid`` breaks a rule of XLA, ``missing-attribute`` and ``missing-program`` lack
    something that the opcode needs, ``shape-needed`` means that the opcode's shape follows from nothing else,
    ``operand-count`` is a wrong number of operands, ``unimplemented`` is what XLA itself has no rule for.
    """

    def __init__(self, message: str, *, opcode: str = "", kind: ErrorKind = "invalid") -> None:
        super().__init__(message)
        self.opcode = opcode
        self.kind: ErrorKind = kind


def invalid(message: str) -> NoReturn:
    """Refuse the operands in XLA's words."""
    raise InferenceError(message)


@dataclass(frozen=True, slots=True)
class ProgramShape:
    """Signature of a computation."""

    parameters: tuple[Shape, ...]
    result: Shape

    def __str__(self) -> str:
        inside = ", ".join(f"p{i}: {human(s)}" for i, s in enumerate(self.parameters))
        return f"({inside}) -> {human(self.result)}"


def program_of(computation: HloComputation) -> ProgramShape:
    """Signature of a computation of the graph. Raises InferenceError while it has no root."""
    if not computation.has_root:
        raise InferenceError(f"computation {computation.name} has no root", kind="missing-program")
    return ProgramShape(tuple(p.shape for p in computation.parameters), computation.root.shape)


class Request:
    """One question: which shape does this opcode give for these operands and attributes?"""

    __slots__ = ("_attrs", "_instruction", "_programs", "given", "opcode", "operands", "partitions", "replicas")

    def __init__(
        self,
        opcode: str,
        operands: Sequence[Shape],
        attributes: Mapping[str, Any] | None = None,
        programs: Mapping[str, Sequence[ProgramShape]] | None = None,
        given: Shape | None = None,
        *,
        replicas: int = 1,
        partitions: int = 1,
        instruction: HloInstruction | None = None,
    ) -> None:
        self.opcode = opcode
        self.operands = tuple(operands)
        self.given = given
        """The shape that the instruction says, None where it says none."""
        self.replicas = replicas
        self.partitions = partitions
        self._attrs = attributes
        self._programs = programs
        self._instruction = instruction

    @staticmethod
    def of(instruction: HloInstruction) -> Request:
        """The question that an instruction of a graph poses."""
        return Request(
            instruction.opcode,
            [operand.shape for operand in instruction.operands],
            given=instruction.shape,
            instruction=instruction,
        )

    @property
    def instruction(self) -> HloInstruction | None:
        """The instruction asked about, None for a question about bare shapes."""
        return self._instruction

    def operand(self, number: int) -> Shape:
        """Shape of an operand. Raises InferenceError where there are too few."""
        if number >= len(self.operands):
            raise InferenceError(
                f"{self.opcode} has {len(self.operands)} operands, at least {number + 1} are needed",
                kind="operand-count",
            )
        return self.operands[number]

    def attr(self, name: str, default: Any = None) -> Any:
        """Typed value of an attribute, `default` where it is absent. Raises ParseError where it cannot be read."""
        if self._instruction is not None:
            value = self._instruction.attr(name)
            return default if value is None else value
        value = self._attrs.get(name) if self._attrs is not None else None
        if value is None:
            return default
        kind = ATTRIBUTES.get(name)
        return kind.parse(value) if isinstance(value, str) and kind is not None else value

    def has(self, name: str) -> bool:
        """Whether an attribute is there, readable or not."""
        if self._instruction is not None:
            return self._instruction.raw_attrs.get(name) is not None
        return self._attrs is not None and self._attrs.get(name) is not None

    def need(self, name: str) -> Any:
        """Typed value of an attribute that the opcode cannot do without. Raises InferenceError where it is absent."""
        value = self.attr(name)
        if value is None:
            raise InferenceError(f"{self.opcode} needs the attribute {name}", kind="missing-attribute")
        return value

    def programs(self, name: str) -> tuple[ProgramShape, ...]:
        """Signatures of the computations under an attribute; empty where it is absent."""
        if self._instruction is not None:
            return tuple(program_of(c) for c in self._instruction.called.get(name, ()))
        return tuple(self._programs.get(name, ())) if self._programs is not None else ()

    def program(self, name: str = "to_apply") -> ProgramShape:
        """Signature of the one computation under an attribute. Raises InferenceError where there is none."""
        found = self.programs(name)
        if len(found) != 1:
            raise InferenceError(
                f"{self.opcode} needs one computation under {name}, found {len(found)}", kind="missing-program"
            )
        return found[0]

    def needs_shape(self) -> Shape:
        """The shape that the instruction says, for opcodes whose shape follows from nothing else."""
        if self.given is None:
            raise InferenceError(f"the shape of {self.opcode} must be given", kind="shape-needed")
        return self.given


# ---------------------------------------------------------------- words
def human(shape: Shape) -> str:
    """`ShapeUtil::HumanString`: without layout."""
    return shape.to_text(layout=False, index_comments=False)


_WORDS = {"opaque": "OPAQUE_TYPE"}


def type_word(element_type: str) -> str:
    """`PrimitiveType_Name`: ``F32``."""
    return _WORDS.get(element_type, element_type.upper())


def word(shape: Shape) -> str:
    """`PrimitiveType_Name` of a shape's element type."""
    return type_word(array_of(shape).element_type)


# ---------------------------------------------------------------- element types
_RANGE_AND_DIGITS = {
    "f16": (16, 11), "bf16": (128, 8), "f32": (128, 24), "f64": (1024, 53), "f8e5m2": (16, 3), "f8e4m3": (8, 4),
    "f8e4m3fn": (9, 4), "f8e4m3b11fnuz": (5, 4), "f8e5m2fnuz": (16, 3), "f8e4m3fnuz": (8, 4), "f8e3m4": (4, 5),
    "f4e2m1fn": (3, 2), "f8e8m0fnu": (128, 1), "f6e3m2fn": (5, 3), "f6e2m3fn": (3, 4),
}  # fmt: skip
_COMPONENT = {"c64": "f32", "c128": "f64"}
_COMPLEX = {"f32": "c64", "f64": "c128"}


def component_type(element_type: str) -> str:
    """Type of the real part of a complex type; any other type is its own."""
    return _COMPONENT.get(element_type, element_type)


def complex_type(element_type: str) -> str | None:
    """The complex type of a component type, None where there is none."""
    return _COMPLEX.get(element_type)


def _rank_of(element_type: str) -> tuple[bool, int, int, int, bool]:
    row = lookup(element_type)
    component = lookup(component_type(element_type))
    span, digits = _RANGE_AND_DIGITS.get(component.name, (-1, -1))
    return row.kind == "complex", span, digits, component.bits, row.kind == "int"


def higher_precision(a: str, b: str) -> str:
    """`primitive_util::HigherPrecisionType`: complex first, then range, then digits, then width, then signed."""
    return a if a == b or _rank_of(a) >= _rank_of(b) else b


_FLOATS = frozenset(name for name, row in ELEMENT_TYPES.items() if row.kind == "float")
_INTEGERS = frozenset(name for name, row in ELEMENT_TYPES.items() if row.is_integral)


def is_float(shape: Shape) -> bool:
    """Real floating elements."""
    return shape.element_type in _FLOATS


def is_integral(shape: Shape) -> bool:
    """Integer elements (pred is not one)."""
    return shape.element_type in _INTEGERS


def is_complex(shape: Shape) -> bool:
    """Complex elements."""
    return shape.element_type in _COMPONENT


def is_signed(shape: Shape) -> bool:
    """Signed integers and floats."""
    return shape.element_type in _FLOATS or lookup(shape.element_type).kind == "int"


def same_type_ignoring_precision(a: str, b: str) -> bool:
    """Equal, or both floating."""
    return a == b or (a in _FLOATS and b in _FLOATS)


def row_of(shape: Shape) -> ElementType:
    """Row of the element type."""
    return lookup(shape.element_type)


# ---------------------------------------------------------------- shapes
def array_of(shape: Shape) -> Shape:
    """The array inside a buffer; any other shape is returned as it is."""
    return shape.tuple_shapes[0] if shape.element_type == "buffer" and shape.tuple_shapes else shape


def is_array(shape: Shape) -> bool:
    """`Shape::IsArray`: an array or a buffer of one."""
    return shape.is_array or shape.element_type == "buffer"


def make(element_type: str, dimensions: Iterable[int], dynamic: Iterable[bool] = ()) -> Shape:
    """An array without layout."""
    flags = tuple(dynamic)
    return Shape(element_type, tuple(dimensions), flags if any(flags) else ())


def scalar(element_type: str) -> Shape:
    """A rank-0 array."""
    return Shape(element_type)


def is_scalar_of(shape: Shape, element_type: str) -> bool:
    """A rank-0 array of that type."""
    return shape.element_type == element_type and not shape.dimensions


def flags_of(shape: Shape) -> list[bool]:
    """Per dimension whether it is dynamic."""
    return list(shape.dynamic_dimensions) if shape.dynamic_dimensions else [False] * len(shape.dimensions)


def is_unbounded(shape: Shape, dim: int) -> bool:
    """Whether a dimension has no bound."""
    return shape.dimensions[dim] == UNBOUNDED


def elements_in(shape: Shape) -> int:
    """Number of elements, the bound for dynamic dimensions."""
    return prod(array_of(shape).dimensions)


def retyped(shape: Shape, element_type: str) -> Shape:
    """`ShapeUtil::ChangeElementType`, layout kept."""
    return shape.with_element_type(element_type) if shape.element_type != element_type else shape


def expect_array(shape: Shape, what: str) -> None:
    """Refuse anything but a plain array."""
    if not shape.is_array:
        invalid(f"Expected array argument for {what}, but got {human(shape)}.")


def sizes_compatible(a: int, b: int) -> bool:
    """Equal, or one of them without bound."""
    return a == b or a == UNBOUNDED or b == UNBOUNDED


def same_dimensions(a: Shape, b: Shape) -> bool:
    """`ShapeUtil::SameDimensions`."""
    return a.dimensions == b.dimensions or (
        len(a.dimensions) == len(b.dimensions)
        and all(sizes_compatible(x, y) for x, y in zip(a.dimensions, b.dimensions, strict=True))
    )


Types = Literal["equal", "ignore-precision", "ignore"]


def compatible(a: Shape, b: Shape, types: Types = "equal") -> bool:
    """`ShapeUtil::Compatible` and its kin: layout and dynamic flags aside; a size without bound fits any."""
    if a is b:
        return True
    if a.element_type == "tuple" or a.element_type == "buffer":
        return (
            a.element_type == b.element_type
            and len(a.tuple_shapes) == len(b.tuple_shapes)
            and all(compatible(x, y, types) for x, y in zip(a.tuple_shapes, b.tuple_shapes, strict=True))
        )
    if not a.is_array:
        return a.element_type == b.element_type
    if not b.is_array:
        return False
    if a.element_type != b.element_type:
        if types == "equal":
            return False
        if types == "ignore-precision" and not same_type_ignoring_precision(a.element_type, b.element_type):
            return False
    return same_dimensions(a, b)


def compatible_ignoring_precision(a: Shape, b: Shape) -> bool:
    """Compatible, any two floats being the same."""
    return compatible(a, b, "ignore-precision")


def compatible_ignoring_type(a: Shape, b: Shape) -> bool:
    """Compatible, whatever the element types."""
    return compatible(a, b, "ignore")
