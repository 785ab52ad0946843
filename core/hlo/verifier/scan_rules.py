"""The shape rules of scan. Source: ``openxla/xla:xla/service/hlo_verifier.cc#HandleScan``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.infer_shape.base import flags_of, make
from hloscope.core.hlo.verifier.equality import ShapeEqual
from hloscope.core.hlo.verifier.findings import broken, describe

if TYPE_CHECKING:
    from hloscope.core.hlo.infer_shape import Request
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.hlo.verifier.context import Context


def check(context: Context, scan: HloInstruction, request: Request) -> None:
    """Counts, then operands against parameters, carries against roots, results against roots."""
    dimensions = tuple(request.need("dimensions"))
    if len(dimensions) != 1:
        broken("scan", f"Scan instruction has {len(dimensions)} dimensions, expected exactly one.")
    if context.options.layout_sensitive and request.attr("is_associative") is not True:
        broken(
            "scan",
            "Non-associative scan reached layout-sensitive HloVerifier; it should have been expanded to a while loop "
            f"by ScanExpander: {describe(scan)}",
        )
    program, carries, dim = request.program(), int(request.need("num_carries")), dimensions[0]
    operands, parameters = request.operands, program.parameters
    roots, results = _parts(program.result), _parts(scan.shape)
    _check_counts(len(operands), len(parameters), len(roots), len(results), carries)
    if dim < 0:
        broken("scan", f"Scan dimension {dim} should be non-negative")
    inputs, outputs = len(operands) - carries, len(results) - carries
    first = operands[0] if inputs else results[0]
    size = first.dimensions[dim] if dim < first.rank else -1
    equal = ShapeEqual(layout=False, precision=not context.options.allow_mixed_precision)

    def body_shape(shape: Shape, number: int, scanned: bool, what: str) -> Shape:
        if not scanned:
            return shape
        if dim >= shape.rank:
            broken("scan", f"Scan dimension {dim} out of bounds for {what} {number}")
        if shape.dimensions[dim] != size:
            broken("scan", f"Scan dimension {dim} has size {shape.dimensions[dim]}, expected {size}")
        dims, flags = list(shape.dimensions), flags_of(shape)
        del dims[dim], flags[dim]
        return make(shape.element_type, dims, flags)

    for i, (operand, parameter) in enumerate(zip(operands, parameters, strict=True)):
        if not context.same(parameter, body_shape(operand, i, i < inputs, "operand"), equal):
            broken("scan", f"Shapes of operand {i} and to_apply computation parameter are inconsistent")
    for i in range(carries):
        if not context.same(parameters[i + inputs], roots[i + outputs], equal):
            broken("scan", f"Shapes of parameter {i} and root in to_apply computation are inconsistent")
    for i, (root, result) in enumerate(zip(roots, results, strict=True)):
        if not context.same(root, body_shape(result, i, i < outputs, "result"), equal):
            broken("scan", f"Shapes of result {i} and to_apply computation root are inconsistent")


def _parts(shape: Shape) -> tuple[Shape, ...]:
    return shape.tuple_shapes if shape.is_tuple else (shape,)


def _check_counts(operands: int, parameters: int, roots: int, results: int, carries: int) -> None:
    if operands < carries:
        broken("scan", f"Scan instruction has {carries} carries, but only {operands} operands.")
    if results < carries:
        broken("scan", f"Scan instruction has {carries} carries, but only {results} results.")
    if operands == carries and results == carries:
        broken("scan", "Scan instruction has no inputs or outputs.")
    if operands != parameters:
        broken(
            "scan",
            f"Scan instruction has {operands} operands, but the to_apply computation has {parameters} parameters.",
        )
    if roots != results:
        broken("scan", f"Scan instruction has {results} results, but the to_apply computation has {roots} results.")
