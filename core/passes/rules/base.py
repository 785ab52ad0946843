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

from hloscope.core.hlo.attributes import PaddingDimension, SliceDimension
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction, metadata_of
from hloscope.core.hlo.literal import Literal as HloLiteral
from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.gate import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """What the rules of one run may assume; the names are those of XLA's ``AlgebraicSimplifierOptions``."""

    is_layout_sensitive: bool = False
    """After layout assignment: layouts are part of a shape, and only rules that keep them may run."""
    executing_on_cpu: bool = False
    """Rules of the CPU backend run."""
    enable_dot_strength_reduction: bool = True
    """Dots without free dimensions become multiply and reduce."""
    unconditionally_simplify_reduce_of_transpose_or_reshape: bool = False
    """Reductions look through rearrangements that others use too."""
    enable_unconditional_reduce_of_concat_replacement: bool = True
    """A reduction of a concatenation becomes several, whatever their shapes."""
    enable_hoist_transpose_of_reshape: bool = False
    """A reshape that leaves a transpose's moved runs alone goes below it."""
    enable_fold_transpose_into_scatter: bool = False
    """A transposed scatter scatters into a transposed operand."""
    enable_conditional_simplification: bool = False
    """Conditionals on a converted pred branch on the pred."""
    enable_conv_add_multiply_reorder: bool = False
    """Bias additions after convolutions are merged, and factors folded into constant filters."""
    enable_fast_math: bool = False
    """Floats are treated as real numbers without NaN and infinities."""
    enable_sink_broadcast: bool = True
    """Elementwise operations on broadcasts become broadcasts of operations."""
    enable_remove_no_op_reduce_precision: bool = False
    """A rounding to the type's own precision goes."""
    rewrite_reshape_transpose_as_slice_concatenate: bool = True
    """A reshape that moves part of a dimension becomes slices and a concatenation."""
    very_small_gather_size: int = 4
    """A gather from a vector of so many elements becomes selects."""

    def same_shape(self, a: Shape, b: Shape) -> bool:
        """Equal shapes, layouts compared only where they count."""
        return a == b if self.is_layout_sensitive else a.compatible(b)


class Builder:
    """Makes the instructions of one rewrite, in the computation and with the metadata of the rewritten one."""

    def __init__(self, subject: HloInstruction, computation: HloComputation | None = None) -> None:
        self._home = subject.parent if computation is None else computation
        self._metadata = metadata_of(subject)
        leaves = [leaf for _, leaf in subject.shape.leaves() if leaf.is_array]
        self._laid_out = not leaves or leaves[0].layout is not None
        self.made: list[HloInstruction] = []
        """What was made, in order."""

    def inside(self, computation: HloComputation) -> Builder:
        """A builder of the same metadata that adds to another computation."""
        other = object.__new__(Builder)
        other._home, other._metadata, other._laid_out = computation, self._metadata, self._laid_out
        other.made = []
        return other

    @property
    def computation(self) -> HloComputation:
        """Where instructions are added."""
        return self._home

    # ---------------------------------------------------------------- the general ones
    def make(
        self,
        opcode: str,
        shape: Shape,
        operands: Iterable[HloInstruction],
        attrs: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        called: Mapping[str, HloComputation | Sequence[HloComputation]] | None = None,
    ) -> HloInstruction:
        """A new instruction; its name is the opcode where none is given, made unique."""
        node = HloInstruction(opcode, shape, operands, attrs=attrs, name=name, called=called, metadata=self._metadata)
        return self._add(node)

    def clone(
        self, one: HloInstruction, operands: Iterable[HloInstruction], shape: Shape | None = None
    ) -> HloInstruction:
        """A copy of an instruction with other operands."""
        return self._add(one.clone_with(shape=shape, operands=operands))

    def shape(self, element_type: str, dimensions: Iterable[int]) -> Shape:
        """An array shape, with the default layout where the rewritten instruction has one."""
        made = Shape.array(element_type, dimensions)
        return made.with_default_layout() if self._laid_out else made

    def constant(self, values: object, shape: Shape) -> HloInstruction:
        """A constant of this shape; `values` is converted to its element type."""
        array = np.asarray(values, dtype=shape.type.dtype).reshape(shape.dimensions)
        return self._add(
            HloInstruction("constant", shape, literal=HloLiteral(shape, array), metadata=self._metadata)
        )

    def scalar(self, element_type: str, value: object) -> HloInstruction:
        """A scalar constant."""
        return self.constant(value, self.shape(element_type, ()))

    def scalar_like(self, shape: Shape, value: object) -> HloInstruction:
        """A value in every element of an array shape: a scalar constant, broadcast where the shape has dimensions."""
        scalar = self.constant(value, like(shape, ()))
        return self.broadcast_scalar(scalar, shape)

    def broadcast_scalar(self, scalar: HloInstruction, shape: Shape) -> HloInstruction:
        """A scalar broadcast to a shape; itself where the shape is scalar."""
        if not shape.dimensions:
            return scalar
        return self.make("broadcast", shape, [scalar], {"dimensions": ()})

    # ---------------------------------------------------------------- by opcode
    def unary(self, opcode: str, x: HloInstruction) -> HloInstruction:
        """An elementwise operation of one operand, of its type."""
        return self.make(opcode, x.shape, [x])

    def binary(self, opcode: str, a: HloInstruction, b: HloInstruction) -> HloInstruction:
        """An elementwise operation of two operands of one shape."""
        return self.make(opcode, a.shape, [a, b])

    def convert(self, x: HloInstruction, element_type: str) -> HloInstruction:
        """Another element type; `x` itself where it has that."""
        if x.shape.element_type == element_type:
            return x
        return self.make("convert", x.shape.with_element_type(element_type), [x])

    def compare(self, a: HloInstruction, b: HloInstruction, direction: str) -> HloInstruction:
        """A pred of a comparison."""
        return self.make("compare", a.shape.with_element_type("pred"), [a, b], {"direction": direction})

    def select(self, p: HloInstruction, a: HloInstruction, b: HloInstruction) -> HloInstruction:
        """`a` where `p` holds, else `b`; a scalar `p` is broadcast."""
        if p.shape.dimensions != a.shape.dimensions:
            p = self.broadcast_scalar(p, a.shape.with_element_type("pred"))
        return self.make("select", a.shape, [p, a, b])

    def reshape(self, x: HloInstruction, dimensions: Iterable[int]) -> HloInstruction:
        """Other dimensions; `x` itself where it has those."""
        sizes = tuple(dimensions)
        if x.shape.dimensions == sizes:
            return x
        return self.make("reshape", self.shape(x.shape.element_type, sizes), [x])

    def transpose(self, x: HloInstruction, order: Iterable[int]) -> HloInstruction:
        """Dimensions permuted; `x` itself where nothing moves."""
        dims = tuple(order)
        if dims == tuple(range(x.shape.rank)):
            return x
        shape = self.shape(x.shape.element_type, [x.shape.dimensions[d] for d in dims])
        return self.make("transpose", shape, [x], {"dimensions": dims})

    def broadcast(self, x: HloInstruction, dimensions: Iterable[int], sizes: Iterable[int]) -> HloInstruction:
        """`x` whose dimension i becomes dimension ``dimensions[i]`` of the result."""
        shape = self.shape(x.shape.element_type, sizes)
        return self.make("broadcast", shape, [x], {"dimensions": tuple(dimensions)})

    def slice(
        self, x: HloInstruction, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None = None
    ) -> HloInstruction:
        """A rectangle of `x`; `x` itself where it is all of it."""
        steps = strides or [1] * len(starts)
        if not any(starts) and tuple(limits) == x.shape.dimensions and all(s == 1 for s in steps):
            return x
        bounds = tuple(SliceDimension(*b) for b in zip(starts, limits, steps, strict=True))
        sizes = [-(-(b.limit - b.start) // b.stride) for b in bounds]
        return self.make("slice", self.shape(x.shape.element_type, sizes), [x], {"slice": bounds})

    def concatenate(self, parts: Sequence[HloInstruction], along: int) -> HloInstruction:
        """Parts one after the other; the part itself where there is one."""
        if len(parts) == 1:
            return parts[0]
        sizes = list(parts[0].shape.dimensions)
        sizes[along] = sum(part.shape.dimensions[along] for part in parts)
        shape = self.shape(parts[0].shape.element_type, sizes)
        return self.make("concatenate", shape, parts, {"dimensions": (along,)})

    def pad(self, x: HloInstruction, value: HloInstruction, padding: Sequence[PaddingDimension]) -> HloInstruction:
        """`x` with padding around and between; `x` itself where there is none."""
        if not any(p.low or p.high or p.interior for p in padding):
            return x
        sizes = [
            p.low + p.high + size + max(0, size - 1) * p.interior
            for size, p in zip(x.shape.dimensions, padding, strict=True)
        ]
        return self.make("pad", self.shape(x.shape.element_type, sizes), [x, value], {"padding": tuple(padding)})

    def iota(self, element_type: str, sizes: Iterable[int], along: int) -> HloInstruction:
        """0, 1, 2, … along a dimension."""
        return self.make("iota", self.shape(element_type, sizes), [], {"iota_dimension": along})

    def dynamic_slice(
        self, x: HloInstruction, starts: Sequence[HloInstruction], sizes: Sequence[int]
    ) -> HloInstruction:
        """A rectangle at run-time starts."""
        shape = self.shape(x.shape.element_type, sizes)
        return self.make("dynamic-slice", shape, [x, *starts], {"dynamic_slice_sizes": tuple(sizes)})

    def dynamic_update_slice(
        self, x: HloInstruction, update: HloInstruction, starts: Sequence[HloInstruction]
    ) -> HloInstruction:
        """`x` with a rectangle at run-time starts overwritten."""
        return self.make("dynamic-update-slice", x.shape, [x, update, *starts])

    def reduce(
        self, x: HloInstruction, initial: HloInstruction, dimensions: Iterable[int], reducer: HloComputation
    ) -> HloInstruction:
        """One array folded over dimensions."""
        dims = tuple(dimensions)
        shape = self.shape(x.shape.element_type, [s for d, s in enumerate(x.shape.dimensions) if d not in dims])
        return self.make("reduce", shape, [x, initial], {"dimensions": dims}, called={"to_apply": reducer})

    def element(self, x: HloInstruction, index: int) -> HloInstruction:
        """An element of a tuple."""
        return self.make("get-tuple-element", x.shape.tuple_shapes[index], [x], {"index": index})

    def tuple(self, parts: Sequence[HloInstruction]) -> HloInstruction:
        """Parts as a tuple."""
        return self.make("tuple", Shape.tuple_([part.shape for part in parts]), parts)

    def reducer(self, opcode: str, element_type: str) -> HloComputation:
        """A new computation of two scalars, ``scalar_add_computation``."""
        shape = self.shape(element_type, ())
        made = HloComputation(f"scalar_{opcode}_computation")
        left = made.add(HloInstruction("parameter", shape, name="scalar_lhs", payload="0"))
        right = made.add(HloInstruction("parameter", shape, name="scalar_rhs", payload="1"))
        made.set_root(made.add(HloInstruction(opcode, shape, [left, right])))
        return self._home.module.add_computation(made, first=True)

    def _add(self, one: HloInstruction) -> HloInstruction:
        self._home.add(one)
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
    """Looks at an instruction; see the module."""
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
