"""Runs a scheduled module through its assignment: every value at its address in one block of bytes, nothing beside it.

Each instruction reads its operands from the block and writes its results there, in the order of the schedule, with the
evaluator's kernels. What an assignment gets wrong is then a wrong number. Values lie as their layouts say, so that a
bitcast is nothing but another way to read the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hloscope.core.analysis.dataflow import branches
from hloscope.core.analysis.dataflow_values import sub_shapes
from hloscope.core.errors import EvaluationError, UnsupportedError
from hloscope.core.runtime.evaluator import TOKEN, EvaluationOptions, Evaluator, bind, leaves
from hloscope.core.text.async_sugar import wrapped_computation

if TYPE_CHECKING:
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.buffers.allocation import BufferAssignment
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape, ShapeIndex
    from hloscope.core.runtime.evaluator import Array, Token, Value

POISON = 0xA5
"""What memory holds before anything is written."""
_SILENT = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "add-dependency", "domain",
     "async-done", "async-update", "copy-done", "after-all")
)  # fmt: skip
"""Opcodes that write nothing: what they hold is in place."""


def run_in_slab(
    assignment: BufferAssignment, args: Sequence[Value], *, options: EvaluationOptions | None = None
) -> list[Array | Token]:
    """The entry's flattened results, read from the block at the end.

    Raises EvaluationError for arguments that do not fit and UnsupportedError for instructions that the evaluator does
    not have, asynchronous collectives, and types that a layout packs.
    """
    return _Slab(assignment, options).run(args)


class _Slab:
    def __init__(self, assignment: BufferAssignment, options: EvaluationOptions | None) -> None:
        import numpy

        self._numpy = numpy
        self._assignment = assignment
        self._flow = assignment.analysis.dataflow
        self._evaluator = Evaluator(options)
        self._limit = 1_000_000
        self._kernels: dict[HloInstruction, Any] = {}
        self._base: dict[int, int] = {}
        total = 0
        for one in assignment.allocations:
            total = -(-total // assignment.alignment) * assignment.alignment
            self._base[one.index] = total
            total += one.size
        self._bytes: Any = numpy.full(total, POISON, dtype=numpy.uint8)

    def run(self, args: Sequence[Value]) -> list[Array | Token]:
        entry = self._assignment.analysis.module.entry
        parameters = entry.parameters
        values = bind([one.name for one in parameters], [one.shape for one in parameters], args)
        for parameter, value in zip(parameters, values, strict=True):
            self._write(parameter, value)
        with self._numpy.errstate(all="ignore"):
            for node in self._assignment.live.sequence:
                if node.opcode == "constant":
                    self._write(node, node.literal.array())
            self._computation(entry)
        return list(leaves(self._read(entry.root)))

    # ---------------------------------------------------------------- control flow
    def _computation(self, computation: HloComputation) -> None:
        for node in self._assignment.live.schedule[computation]:
            self._instruction(node)

    def _instruction(self, node: HloInstruction) -> None:
        opcode = node.opcode
        if opcode in _SILENT:
            return
        if opcode == "while":
            condition, body = node.callee("condition"), node.callee("body")
            for _ in range(self._limit):
                self._computation(condition)
                if not bool(self._read(condition.root)):
                    return
                self._computation(body)
            raise EvaluationError(f"{node.name} did not end within {self._limit:,} turns")
        if opcode == "conditional":
            chosen = branches(node)
            picker: Any = self._read(node.operand(0))
            number = int(picker)
            if node.operand(0).shape.element_type == "pred":
                number = 0 if number else 1
            self._computation(chosen[number if 0 <= number < len(chosen) else -1])
        elif opcode == "call":
            self._computation(node.callee("to_apply"))
        elif opcode == "async-start":
            wrapped = wrapped_computation(node)
            if wrapped is None:
                raise UnsupportedError(f"{node.name} runs no computation")
            self._computation(wrapped)
        elif opcode == "copy":
            self._write(node, self._read(node.operand(0)))
        elif opcode == "copy-start":
            self._write_leaf(node, (0,), self._read(node.operand(0)))
        elif node.info.asynchronous:
            raise UnsupportedError(f"{node.name}: {opcode} has no kernel of one device")
        else:
            kernel = self._kernels.get(node)
            if kernel is None:
                kernel = self._kernels[node] = self._evaluator.prepare(node)
            self._write(node, kernel(*(self._read(operand) for operand in node.operands)))

    # ---------------------------------------------------------------- memory
    def _read(self, node: HloInstruction) -> Value:
        return self._value(node, (), node.shape)

    def _value(self, node: HloInstruction, index: ShapeIndex, shape: Shape) -> Value:
        if shape.is_tuple:
            return tuple(self._value(node, (*index, i), part) for i, part in enumerate(shape.tuple_shapes))
        if not shape.is_array:
            return TOKEN
        at, _ = self._place(node, index, shape)
        dtype = shape.type.dtype
        order = _major_to_minor(shape)
        sizes = [shape.dimensions[dim] for dim in order]
        bits = _packed_bits(shape)
        if bits:
            raw = self._unpack(self._bytes[at : at + -(-shape.element_count * bits // 8)], shape, bits).reshape(sizes)
        else:
            raw = self._bytes[at : at + shape.element_count * dtype.itemsize].copy().view(dtype).reshape(sizes)
        # A kernel may round otherwise for an array with other strides; the evaluator's own are in row-major order.
        return self._numpy.array(raw.transpose([order.index(dim) for dim in range(len(order))]), order="C")

    def _write(self, node: HloInstruction, value: Value) -> None:
        for index, part in sub_shapes(node.shape):
            if not part.is_array or not self._makes(node, index):
                continue
            leaf: Any = value
            for number in index:
                leaf = leaf[number]
            self._write_leaf(node, index, leaf)

    def _write_leaf(self, node: HloInstruction, index: ShapeIndex, value: Value) -> None:
        shape = node.shape.sub(index)
        at, size = self._place(node, index, shape)
        array = self._numpy.asarray(value, dtype=shape.type.dtype).reshape(shape.dimensions)
        data = self._numpy.ascontiguousarray(array.transpose(_major_to_minor(shape)))
        flat = data.reshape(-1).view(self._numpy.uint8)
        bits = _packed_bits(shape)
        if bits:
            flat = self._pack(flat, bits)
        if flat.nbytes > size:
            raise EvaluationError(f"{node.name} makes {flat.nbytes} bytes, its buffer has {size}")
        self._bytes[at : at + flat.nbytes] = flat

    def _pack(self, flat: Any, bits: int) -> Any:
        """Several elements in each byte, the first in the lowest bits. Source: ``openxla/xla:xla/util.h#PackIntN``."""
        each = 8 // bits
        padded = self._numpy.zeros(-(-flat.size // each) * each, dtype=self._numpy.uint8)
        padded[: flat.size] = flat & ((1 << bits) - 1)
        packed = self._numpy.zeros(padded.size // each, dtype=self._numpy.uint8)
        for number in range(each):
            packed |= padded[number::each] << (bits * number)
        return packed

    def _unpack(self, packed: Any, shape: Shape, bits: int) -> Any:
        """The elements of packed bytes, one a byte as the kernels want them."""
        each = 8 // bits
        codes = self._numpy.empty(packed.size * each, dtype=self._numpy.uint8)
        for number in range(each):
            codes[number::each] = (packed >> (bits * number)) & ((1 << bits) - 1)
        codes = codes[: shape.element_count]
        if shape.type.kind == "int":
            sign = 1 << (bits - 1)
            codes = ((codes ^ sign).astype(self._numpy.int8) - sign).view(self._numpy.uint8)
        return codes.view(shape.type.dtype)

    def _makes(self, node: HloInstruction, index: ShapeIndex) -> bool:
        return self._flow.defined_at(node, index) is not None

    def _place(self, node: HloInstruction, index: ShapeIndex, shape: Shape) -> tuple[int, int]:
        if shape.is_dynamic:
            raise UnsupportedError(
                f"{node.name} has shape {shape}, whose bytes are not laid out one element after another"
            )
        values = self._flow.value_set(node, index)
        if len(values) != 1:
            raise EvaluationError(f"{node.name} may hold {len(values)} values")
        return self._address(values[0])

    def _address(self, value: HloValue) -> tuple[int, int]:
        found = self._assignment.slice_of(value)
        if found is None:
            raise EvaluationError(f"{value.short()} has no allocation")
        return self._base[found[0].index] + found[1].offset, found[1].size


def _packed_bits(shape: Shape) -> int:
    """Bits of an element where several share a byte, else 0."""
    bits = shape.layout.element_size_in_bits if shape.layout is not None else 0
    return bits if bits in (1, 2, 4) else 0


def _major_to_minor(shape: Shape) -> list[int]:
    return list(reversed(shape.layout.minor_to_major)) if shape.layout is not None else list(range(shape.rank))


def overlaps(assignment: BufferAssignment) -> Iterator[tuple[HloValue, HloValue]]:
    """Pairs of values of one allocation with common bytes; what an independent check starts from."""
    for one in assignment.allocations:
        placed = sorted(one.assigned.items(), key=lambda item: (item[1].offset, item[0].id))
        for number, (value, chunk) in enumerate(placed):
            for other, following in placed[number + 1 :]:
                if following.offset >= chunk.end:
                    break
                if chunk.size and following.size:
                    yield value, other
