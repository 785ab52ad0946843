"""XLA:GPU's constraints on a dot: each side must be a batch of matrices that a library can read by two strides.

Source: ``openxla/xla:xla/backends/gpu/transforms/layout_assignment.cc#AddDotBackendConstraints, #SetDotLayout``,
``xla/service/gpu/matmul_utils.cc#MatrixLayout::For``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.element_types import lookup
from hloscope.core.layout.orders import any_set, from_major_to_minor, layout_of, order_of, row_major

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.layout import Layout
    from hloscope.core.layout.gpu import GpuBackend
    from hloscope.core.layout.orders import Order
    from hloscope.core.layout.state import EntryLayout, LayoutState

BLACKWELL = (10, 0)
AFTER_BLACKWELL = (11, 0)
FP8 = frozenset({"f8e4m3fn", "f8e5m2fnuz"})
"""8-bit types whose products need the contracted dimension fastest before Blackwell."""

Dims = tuple[int, ...]

# Orders of the groups batch (0), rows (1), columns (2), fastest first, that two strides can describe.
_MATRIX_ORDERS = frozenset({(2, 1, 0), (1, 2, 0), (2, 0, 1), (1, 0, 2)})


@dataclass(frozen=True, slots=True)
class _Side:
    number: int
    operand: HloInstruction
    batch: Dims
    contracting: Dims
    rest: Dims


def forms_matrix(order: Order, batch: Dims, rows: Dims, columns: Dims) -> bool:
    """Whether an order shows the groups as a batch of matrices: each group in one piece with its last dimension
    fastest, the batch not the fastest group. An empty group counts as the slowest."""
    groups = (batch, rows, columns)
    sequence: list[int] = []
    at = 0
    while at < len(order):
        found = next((g for g, dims in enumerate(groups) if dims and dims[-1] == order[at]), None)
        if found is None:
            return False
        dims = groups[found]
        if order[at : at + len(dims)] != tuple(reversed(dims)):
            return False
        sequence.append(found)
        at += len(dims)
    sequence += [g for g in (2, 1, 0) if not groups[g]]
    return tuple(sequence) in _MATRIX_ORDERS


def _side(dot: HloInstruction, number: int) -> _Side:
    name = "lhs" if number == 0 else "rhs"
    batch: Dims = dot.attr(f"{name}_batch_dims") or ()
    contracting: Dims = dot.attr(f"{name}_contracting_dims") or ()
    operand = dot.operand(number)
    rest = tuple(d for d in range(operand.shape.rank) if d not in batch and d not in contracting)
    return _Side(number, operand, batch, contracting, rest)


def result_layout_fits(dot: HloInstruction, order: Order) -> bool:
    """Whether a dot can write its result in an order."""
    lhs, rhs = _side(dot, 0), _side(dot, 1)
    batch, rows, columns = max(len(lhs.batch), len(rhs.batch)), len(lhs.rest), len(rhs.rest)
    dims = tuple(range(len(order)))
    if len(order) != batch + rows + columns:
        return False
    return forms_matrix(order, dims[:batch], dims[batch : batch + rows], dims[batch + rows :])


def constrain_dot(backend: GpuBackend, state: LayoutState, dot: HloInstruction) -> None:
    """The operands, then the result where a batch or several free dimensions leave it open."""
    lhs, rhs = _side(dot, 0), _side(dot, 1)
    types = (lhs.operand.shape.element_type, rhs.operand.shape.element_type)
    blackwell = not backend.rocm and BLACKWELL <= backend.capability < AFTER_BLACKWELL
    wants_minor = (dot.shape.element_type == "s32" and types == ("s8", "s8")) or (
        types[0] in FP8 and types[1] in FP8 and not blackwell
    )
    for side in (lhs, rhs):
        if wants_minor or (backend.pack_along_contracting and _is_packed(side.operand)):
            _contracting_fastest(state, dot, side)
        elif side.batch or len(side.contracting) > 1 or len(side.rest) > 1:
            _as_matrix(state, dot, side, mandatory=True)
        elif _reaches_open_parameter(side.operand, state.given):
            _as_matrix(state, dot, side, mandatory=False)
    if lhs.batch or len(lhs.rest) > 1 or len(rhs.rest) > 1:
        _result(state, dot)


def _contracting_fastest(state: LayoutState, dot: HloInstruction, side: _Side) -> None:
    shape = side.operand.shape
    request = state.request("gpu-dot-contracting-fastest")
    order = order_of(shape)
    fastest = order[: len(side.contracting)] if order is not None else None
    if fastest is not None and set(fastest) <= set(side.contracting):
        if forms_matrix(layout_of(shape).minor_to_major, side.batch, side.rest, side.contracting):
            state.set_operand(dot, side.number, shape, request)
            return
    layout = from_major_to_minor([*side.batch, *side.rest, *side.contracting])
    state.set_array_operand(dot, side.number, layout, request)


def _as_matrix(state: LayoutState, dot: HloInstruction, side: _Side, *, mandatory: bool) -> None:
    """The layout it has, else row-major, else batch, contracted and free dimensions in this order."""
    shape = side.operand.shape
    request = state.request("gpu-dot-operand", mandatory=mandatory)
    for candidate in (shape, row_major(shape)):
        order = order_of(candidate)
        if order is not None and forms_matrix(order, side.batch, side.contracting, side.rest):
            state.set_operand(dot, side.number, candidate, request)
            return
    layout = from_major_to_minor([*side.batch, *side.contracting, *side.rest])
    request = state.request("gpu-dot-operand", mandatory=mandatory, depth_first=mandatory)
    state.set_array_operand(dot, side.number, layout, request)


def _result(state: LayoutState, dot: HloInstruction) -> None:
    """What a user asks for where the dot can write that, else row-major."""
    chosen: Layout | None = None
    for user in dot.users:
        for number, operand in enumerate(user.operands):
            constraint = state.operands.get((user, number)) if operand is dot else None
            if constraint is not None and result_layout_fits(dot, layout_of(constraint.shape).minor_to_major):
                chosen = layout_of(constraint.shape)
                request = state.request("gpu-dot-result-as-used", constraint.step)
                state.set_instruction(dot, dot.shape.with_layout(chosen), request)
                return
    state.set_instruction(dot, row_major(dot.shape), state.request("gpu-dot-result"))


def _is_packed(instruction: HloInstruction) -> bool:
    """Whether a value comes from elements smaller than a byte, up a chain of elementwise steps."""
    seen: set[HloInstruction] = set()
    stack = [instruction]
    while stack:
        node = stack.pop()
        while node not in seen:
            seen.add(node)
            kind = node.shape.element_type
            if node.shape.is_array and kind != "pred" and 0 < lookup(kind).bits < 8:
                return True
            if node.operand_count != 1:
                break
            node = node.operand(0)
        else:
            continue
        if node.operand_count == 2 and node.info.elementwise:
            stack += reversed(node.operands)
    return False


def _reaches_open_parameter(instruction: HloInstruction, given: EntryLayout) -> bool:
    """Whether an entry parameter whose layout is to be chosen is behind a chain that layouts pass cheaply."""
    if not instruction.parent.is_entry:
        return False
    node = instruction
    while node.opcode in ("transpose", "reshape") or (node.info.elementwise and node.operand_count == 1):
        node = node.operand(0)
    if node.opcode == "parameter":
        shape = given.parameters[node.parameter_number]
        return bool(shape.dimensions) and not any_set(shape)
    return node.opcode == "concatenate" and any(_reaches_open_parameter(one, given) for one in node.operands)
