"""Print a module as HLO text in XLA's format.

A module that is not scheduled prints its instructions in post order, as XLA does; a scheduled one in schedule order.
With the default options every instruction keeps its printed line until it changes, so that a snapshot after a pass
costs only what the pass touched. Source: ``openxla/xla:xla/hlo/ir/hlo_instruction.cc#PrintWithCanonicalNameMap``,
``hlo_computation.cc#Print``, ``hlo_module.cc#Print``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.attributes import CONTROL, quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape


@dataclass(frozen=True, slots=True)
class PrintOptions:
    """What to print; the defaults are XLA's for dumps."""

    percent: bool = True
    """``%`` in front of names."""
    operand_shapes: bool = False
    """Shapes in front of operand names, as older dumps have them."""
    index_comments: bool = True
    """``/*index=5*/`` before every fifth operand."""
    signatures: bool = True
    """Parameter and result shapes in a computation's first line."""
    metadata: bool = True
    """The metadata attribute and the source tables."""
    backend_config: bool = True
    large_constants: bool = True
    """With False the values of arrays above ten elements print as ``{...}``."""

    @staticmethod
    def long() -> PrintOptions:
        """Names with ``%``, signatures, operand shapes, metadata: XLA's long text of older versions."""
        return PrintOptions(operand_shapes=True)

    @staticmethod
    def short() -> PrintOptions:
        """No ``%``, no signatures; what ``--xla_dump_hlo_as_long_text=false`` writes."""
        return PrintOptions(percent=False, index_comments=False, signatures=False)


DEFAULT = PrintOptions()

# Attributes that come last, in this order; the rest keeps the order in which it was set.
_LAST = {
    name: i
    for i, name in enumerate(
        ("sharding", "frontend_attributes", CONTROL, "statistics", "origin", "metadata", "backend_config"), start=1
    )
}


def instruction_order(computation: HloComputation) -> list[HloInstruction]:
    """The printing order: the list order of a scheduled computation, the post order of any other."""
    module = computation.module_or_none
    if module is not None and module.is_scheduled and not computation.is_fusion:
        return list(computation.instructions)
    return computation.post_order()


def print_operands(node: HloInstruction, options: PrintOptions) -> str:
    """What stands in the parentheses."""
    if options is DEFAULT and node.payload is None and node.operand_count <= 5:
        return ", ".join(["%" + operand.name for operand in node.operands])
    if node.opcode == "constant" and not options.large_constants and node.shape.is_array:
        literal = node.literal
        if literal.values is not None and literal.values.size > 10:
            return "{...}"
    if node.payload is not None:
        return node.payload
    sign = "%" if options.percent else ""
    parts: list[str] = []
    for i, operand in enumerate(node.operands):
        comment = f"/*index={i}*/" if options.index_comments and i and i % 5 == 0 else ""
        shape = f"{operand.shape} " if options.operand_shapes else ""
        parts.append(f"{comment}{shape}{sign}{operand.name}")
    return ", ".join(parts)


def _rank(name: str) -> int:
    return _LAST.get(name, 0)


def _attributes(node: HloInstruction, options: PrintOptions) -> Iterator[str]:
    sign = "%" if options.percent else ""
    names = node.raw_attrs
    if not names:
        return
    ordered = sorted(names, key=_rank) if len(names) > 1 else names
    for name in ordered:
        if (name == "metadata" and not options.metadata) or (name == "backend_config" and not options.backend_config):
            continue
        text = names[name]
        if text is None and name == CONTROL:
            text = "{" + ", ".join(sign + p.name for p in node.control_predecessors) + "}"
        elif text is None:
            text = ", ".join(sign + c.name for c in node.called[name])
            if name in node.calls_as_list:
                text = "{" + text + "}"
        yield f"{name}={text}"


def print_instruction(
    node: HloInstruction, options: PrintOptions = DEFAULT, shapes: dict[int, tuple[Shape, str]] | None = None
) -> str:
    """One instruction without indentation: ``ROOT %n = f32[4]{0} negate(%a), metadata={…}``.

    `shapes` keeps the texts of shape objects, by identity, for a caller that prints many instructions.
    """
    if options is DEFAULT and node.line_cache is not None:
        return node.line_cache
    root = "ROOT " if node.is_root else ""
    sign = "%" if options.percent else ""
    if shapes is None:
        shape = str(node.shape)
    else:
        known = shapes.get(id(node.shape))
        if known is None:
            known = shapes[id(node.shape)] = (node.shape, str(node.shape))
        shape = known[1]
    text = f"{root}{sign}{node.name} = {shape} {node.opcode}({print_operands(node, options)})"
    for attribute in _attributes(node, options):
        text += ", " + attribute
    if options is DEFAULT:
        node.line_cache = text
    return text


def computation_lines(
    computation: HloComputation,
    options: PrintOptions = DEFAULT,
    shapes: dict[int, tuple[Shape, str]] | None = None,
) -> list[str]:
    """The lines of a computation, first and last one included; for `shapes` see `print_instruction`."""
    sign = "%" if options.percent else ""
    entry = "ENTRY " if computation.is_entry else ""
    head = f"{entry}{sign}{computation.name}"
    if options.signatures:
        parameters = ", ".join([f"{p.name}: {p.shape.to_text(layout=False)}" for p in computation.parameters])
        head += f" ({parameters}) -> {computation.root.shape.to_text(layout=False)}"
    lines = [head + " {"]
    kept = options is DEFAULT
    for node in instruction_order(computation):
        line = node.line_cache if kept else None
        lines.append("  " + (print_instruction(node, options, shapes) if line is None else line))
    thread = f", execution_thread={quote(computation.execution_thread)}" if computation.execution_thread else ""
    lines.append("}" + thread)
    return lines


def header_lines(module: HloModule, options: PrintOptions = DEFAULT) -> Iterator[str]:
    """The first line and the source tables."""
    yield f"HloModule {module.name}" + "".join(f", {key}={text}" for key, text in module.attrs.items())
    yield ""
    tables = module.stack_frames
    if not options.metadata or not (tables or module.tables_present):
        return
    yield "FileNames"
    for i, name in enumerate(tables.file_names, start=1):
        yield f"{i} {quote(name)}"
    yield ""
    yield "FunctionNames"
    for i, name in enumerate(tables.function_names, start=1):
        yield f"{i} {quote(name)}"
    yield ""
    yield "FileLocations"
    for i, at in enumerate(tables.file_locations, start=1):
        yield (
            f"{i} {{file_name_id={at.file_name_id} function_name_id={at.function_name_id} line={at.line} "
            f"end_line={at.end_line} column={at.column} end_column={at.end_column}}}"
        )
    yield ""
    yield "StackFrames"
    for i, frame in enumerate(tables.stack_frames, start=1):
        yield f"{i} {{file_location_id={frame.file_location_id} parent_frame_id={frame.parent_frame_id + 1}}}"
    yield ""
    yield ""


def module_lines(module: HloModule, options: PrintOptions = DEFAULT) -> Iterator[str]:
    """All lines of a module, without line ends; the last line is empty."""
    shapes: dict[int, tuple[Shape, str]] = {}
    yield from header_lines(module, options)
    for computation in module.computations:
        yield from computation_lines(computation, options, shapes)
        yield ""


def print_module(module: HloModule, options: PrintOptions = DEFAULT) -> str:
    """The module as text; ends with a line end."""
    return "\n".join(module_lines(module, options)) + "\n"
