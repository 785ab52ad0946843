"""Print a module as HLO text in XLA's format.

A computation that is as it was read prints in the order of its text; once it is changed, in post order as XLA does, and
always so with `PrintOptions.exact`. A scheduled module prints in schedule order.
With the default options every instruction keeps its printed line until it changes, so that a snapshot after a pass
costs only what the pass touched. Source: ``openxla/xla:xla/hlo/ir/hlo_instruction.cc#PrintWithCanonicalNameMap``,
``hlo_computation.cc#Print``, ``hlo_module.cc#Print``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.hlo.attributes import CALLED, CONTROL, quote
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.replica_groups import parse_replica_groups
from hloscope.core.hlo.shape import Shape
from hloscope.core.text.async_sugar import expandable
from hloscope.core.text.attribute_printer import ASYNC, AttributeWriter, constant_text, few_constants_text
from hloscope.core.text.header_forms import HEADER_OMITTED, HEADER_ORDER, header_value
from hloscope.core.text.made_shapes import BY_XLA, made_shape
from hloscope.core.text.opcode_syntax import COMMON
from hloscope.core.text.sharding_forms import without_metadata
from hloscope.core.text.tokens import escape, raw_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.stack_frames import StackFrames


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
    layouts: bool = True
    """Layouts in the shapes of results and operands."""
    control_edges: bool = True
    """The control-predecessors attribute."""
    bodies: bool = False
    """Called computations written out after their attribute."""
    canonical_names: bool = False
    """Instructions named ``tmp_0`` and on in each computation."""
    exact: bool = False
    """Asynchronous instructions sugared wherever they can be, and attributes left out that XLA reads and forgets; with
    False both print as they were read."""
    result_shapes: bool = True
    """Shapes of results in front of the opcodes."""
    operand_names: bool = True
    """Names of operands; canonical ones print in any case."""
    attributes: bool = True
    """Attributes of the opcode's own; those that every opcode has, and computations, print in any case."""
    ids: bool = True
    """With False names end before their first point, and modules and computations have none."""
    compact: bool = False
    """Four operands at most, and how many more there are."""
    indent: int = 0
    """Levels of two blanks in front of every line."""
    few_constants: bool = False
    """Values of constants only where all are 0, all are 1, or integers."""
    whole_groups: bool = False
    """Replica groups listed, also where the text has an iota or a mesh."""
    infeed_config: bool = True
    """Configurations of infeed and outfeed."""
    in_text_order: bool = False
    """Computations in the order of their definitions, where XLA else goes depth first."""

    @staticmethod
    def long() -> PrintOptions:
        """Names with ``%``, signatures, operand shapes, metadata: XLA's long text of older versions."""
        return PrintOptions(operand_shapes=True)

    @staticmethod
    def short() -> PrintOptions:
        """No ``%``, no signatures; what ``--xla_dump_hlo_as_long_text=false`` writes, control edges kept."""
        return PrintOptions(percent=False, index_comments=False, signatures=False)

    @staticmethod
    def short_parsable() -> PrintOptions:
        """``HloPrintOptions::ShortParsable``: as short, without metadata and control edges."""
        return PrintOptions(
            percent=False, index_comments=False, signatures=False, metadata=False, control_edges=False, exact=True
        )

    @staticmethod
    def canonical() -> PrintOptions:
        """``HloPrintOptions::Canonical``: equal text for modules that are equal up to names."""
        return PrintOptions(
            percent=False,
            operand_shapes=True,
            index_comments=False,
            signatures=False,
            metadata=False,
            backend_config=False,
            large_constants=False,
            control_edges=False,
            bodies=True,
            canonical_names=True,
            operand_names=False,
            exact=True,
        )

    @staticmethod
    def fingerprint() -> PrintOptions:
        """``HloPrintOptions::Fingerprint``: as canonical, without what does not change how a module is optimized."""
        same = PrintOptions.canonical()
        return replace(same, ids=False, few_constants=True, whole_groups=True, infeed_config=False, in_text_order=True)

    @staticmethod
    def xla() -> PrintOptions:
        """``HloPrintOptions()``, what ``HloModule.to_string`` of jaxlib prints."""
        return PrintOptions(large_constants=False, exact=True)


DEFAULT = PrintOptions()


class LineWriter:
    """Texts that come again while one module is printed, for callers that print it piece by piece."""

    __slots__ = ("_bare", "_shapes", "attributes", "options")

    def __init__(self, options: PrintOptions = DEFAULT) -> None:
        self.options = options
        self.attributes = AttributeWriter(
            percent=options.percent, exact=options.exact, ids=options.ids, own=options.attributes
        )
        # By identity; the shape is held so that its identity stays its own.
        self._shapes: dict[int, tuple[Shape, str]] = {}
        self._bare: dict[int, tuple[Shape, str]] = {}

    def shape(self, shape: Shape) -> str:
        """A shape as the options print it."""
        known = self._shapes.get(id(shape))
        if known is None:
            text = shape.to_text(layout=self.options.layouts)
            known = self._shapes[id(shape)] = (shape, text)
        return known[1]

    def name(self, name: str) -> str:
        """A name as the options print it, without the percent sign."""
        return name if self.options.ids else name.partition(".")[0]

    def bare(self, shape: Shape) -> str:
        """A shape without its layout."""
        known = self._bare.get(id(shape))
        if known is None:
            known = self._bare[id(shape)] = (shape, shape.to_text(layout=False))
        return known[1]


def instruction_order(computation: HloComputation, *, scheduled: bool = True) -> list[HloInstruction]:
    """The printing order: the list order of a scheduled computation, the post order of any other.

    With `scheduled` False the post order in any case.
    """
    module = computation.module_or_none
    if scheduled and module is not None and module.is_scheduled and not computation.is_fusion:
        return list(computation.instructions)
    try:
        return computation.post_order()
    except InternalError:  # instructions that wait for each other have no order but that of the text
        return list(computation.instructions)


def text_order(computation: HloComputation) -> list[HloInstruction]:
    """The order of the text for a computation that is as it was read, else the printing order."""
    return list(computation.instructions) if computation.is_as_read else instruction_order(computation)


def print_operands(node: HloInstruction, options: PrintOptions) -> str:
    """What stands in the parentheses."""
    return _operands(node, LineWriter(options), {})


def _operands(node: HloInstruction, writer: LineWriter, names: Mapping[HloInstruction, str]) -> str:
    options = writer.options
    if node.opcode == "constant":
        if options.few_constants:
            return few_constants_text(node)
        return constant_text(node, large=options.large_constants, exact=options.exact)
    if node.payload is not None:
        return node.payload
    sign = "%" if options.percent and not options.canonical_names else ""
    named = options.operand_names or options.canonical_names
    operands, parts = node.operands, list[str]()
    for i, operand in enumerate(operands[:_COMPACT] if options.compact else operands):
        comment = f"/*index={i}*/" if options.index_comments and i and i % 5 == 0 else ""
        shape = writer.shape(operand.shape) if options.operand_shapes else ""
        name = sign + (names.get(operand) or writer.name(operand.name)) if named else ""
        parts.append(f"{comment}{shape}{' ' if shape and name else ''}{name}")
    if len(operands) > len(parts):
        parts.append(f"...(+{len(operands) - len(parts)})")
    return ", ".join(parts)


_COMPACT = 4
"""Operands that a compact text shows."""


def print_instruction(node: HloInstruction, options: PrintOptions = DEFAULT, writer: LineWriter | None = None) -> str:
    """One instruction without indentation: ``ROOT %n = f32[4]{0} negate(%a), metadata={…}``.

    `writer` is for the functions of this module, which print many instructions.
    """
    if options is DEFAULT and node.line_cache is not None:
        return node.line_cache
    text = _line(node, writer if writer is not None else LineWriter(options), {}, 0)
    if options is DEFAULT:
        node.line_cache = text
    return text


def _line(node: HloInstruction, writer: LineWriter, names: Mapping[HloInstruction, str], depth: int) -> str:
    options = writer.options
    root = "ROOT " if node.is_root else ""
    attributes = writer.attributes
    if options is DEFAULT:
        name, opcode, shape, operands, payload, attrs = node.parts
        if payload is None and len(operands) <= 5:
            inside = ", ".join([f"%{operand}" for operand in operands])
        else:
            inside = _operands(node, writer, names)
        word = opcode if opcode not in ASYNC else attributes.opcode(node)
        return f"{root}%{name} = {writer.shape(shape)} {word}({inside}){attributes.tail(node, opcode, attrs)}"
    sign = "%" if options.percent and not options.canonical_names else ""
    opcode = attributes.opcode(node)
    name = names.get(node) or writer.name(node.name)
    shape = writer.shape(node.shape) + " " if options.result_shapes else ""
    text = f"{root}{sign}{name} = {shape}{opcode}({_operands(node, writer, names)})"
    wrapped = attributes.wrapped(node) if options.bodies and node.opcode == "async-start" else None
    body = ""
    if wrapped is not None and depth < _MAX_BODIES:  # what it runs, which no other form of the text names
        body = ", calls=\n" + "\n".join(_body(wrapped, writer, depth + 1))
    for key, value in attributes.attributes(node):
        if key == "metadata" and not options.metadata:
            continue
        if key == "backend_config" and not options.backend_config:
            continue
        if key == CONTROL and not options.control_edges:
            continue
        if key in _INFEED and not options.infeed_config or key == "parameter_replication" and not options.ids:
            continue
        if not options.attributes and key not in CALLED and key not in _COMMON:
            continue
        if key == "replica_groups" and options.whole_groups:
            value = _whole_groups(value)
        if key == "sharding" and not options.metadata:
            value = without_metadata(value)
        if options.bodies and (key in CALLED) and depth < _MAX_BODIES:
            value = _bodies(node, key, writer, depth)
            if key == "to_apply" and opcode not in _APPLIED and opcode.removesuffix("-start") not in _APPLIED:
                key = "calls"
        of_wrapped = key == "frontend_attributes" and key not in node.raw_attrs  # those stand with its own attributes
        if body and key in _BEHIND_CALLS and not of_wrapped:
            text, body = text + body, ""
        text += f", {key}={value}"
    return text + body


_INFEED = frozenset({"infeed_config", "outfeed_config"})
_COMMON = frozenset({*COMMON, "is_composite"})


def _whole_groups(text: str) -> str:
    """Replica groups listed one by one; the text where they cannot be."""
    try:
        groups = parse_replica_groups(text)
    except HloscopeError:
        return text
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


_APPLIED = frozenset({"all-reduce", "all-reduce-start", "call", "map", "reduce", "reduce-window", "scatter", "sort"})
"""Opcodes whose computation keeps the name ``to_apply`` where it is written out; it is ``calls`` for any other."""
_BEHIND_CALLS = frozenset({"sharding", "frontend_attributes", CONTROL, "origin", "statistics", "metadata"})
_MAX_BODIES = 60
"""How deep bodies are written in one another; deeper ones (and those that call themselves) are named."""


def _bodies(node: HloInstruction, key: str, writer: LineWriter, depth: int) -> str:
    """Called computations written out, one level further in."""
    wrapped = writer.attributes.wrapped(node)
    owner = wrapped.root if wrapped is not None else node
    group = owner.called.get(key) or owner.called.get("to_apply", ())
    bodies = ["\n".join(_body(c, writer, depth + 1)) for c in group]
    listed = CALLED.get(key, False)
    return "{\n" + ",\n".join(bodies) + "\n}" if listed else "\n" + ", ".join(bodies)


def _body(
    computation: HloComputation, writer: LineWriter, depth: int, order: Sequence[HloInstruction] | None = None
) -> list[str]:
    """The lines of a computation from its brace on; for `depth` above 0 the first one is indented too."""
    options = writer.options
    tab = "  " * (depth + options.indent)
    if order is None:  # XLA gives nested bodies no schedule
        order = instruction_order(computation, scheduled=depth == 0)
    names = {node: f"tmp_{i}" for i, node in enumerate(order)} if options.canonical_names else {}
    lines = (f"{tab}  {_line(node, writer, names, depth)}" for node in order)
    signature = _signature(computation, writer) + " " if depth and options.signatures else ""
    return [(tab if depth else "") + signature + "{", *lines, tab + "}" + _thread(computation, options)]


def _signature(computation: HloComputation, writer: LineWriter) -> str:
    parameters = ", ".join([f"{writer.name(p.name)}: {writer.bare(p.shape)}" for p in computation.parameters])
    return f"({parameters}) -> {writer.bare(_result(computation.root))}"


def _thread(computation: HloComputation, options: PrintOptions) -> str:
    """What stands behind the closing brace of a computation of another thread."""
    if not options.ids:
        return ""
    return f", execution_thread={quote(computation.execution_thread)}" if computation.execution_thread else ""


def computation_lines(
    computation: HloComputation,
    options: PrintOptions = DEFAULT,
    writer: LineWriter | None = None,
    *,
    as_read: bool = False,
    order: Sequence[HloInstruction] | None = None,
) -> list[str]:
    """The lines of a computation, first and last one included; for `writer` see `print_instruction`.

    `order` replaces the printing order. With `as_read` an instruction that nothing has touched shows the line it was
    read from, and one that is printed keeps its line for the next time.
    """
    writer = LineWriter(options) if writer is None else writer
    sign = "%" if options.percent else ""
    entry = "ENTRY " if computation.is_entry else ""
    head = f"{entry}{sign}{computation.name} " if options.ids else f"{entry}{sign}"
    if options.signatures:
        head += _signature(computation, writer) + " "
    if options.bodies or options.canonical_names or options.indent:
        body = _body(computation, writer, 0, order)
        return [f"{'  ' * options.indent}{head}{body[0]}", *body[1:]]
    thread = _thread(computation, options)
    nodes = order if order is not None else text_order(computation) if as_read else instruction_order(computation)
    if as_read:
        return [head + "{", *_lines_as_read(nodes, options, writer), "}" + thread]
    lines = [head + "{"]
    kept = options is DEFAULT
    for node in nodes:
        line = node.line_cache if kept else None
        lines.append("  " + (print_instruction(node, options, writer) if line is None else line))
    lines.append("}" + thread)
    return lines


def _lines_as_read(nodes: Sequence[HloInstruction], options: PrintOptions, writer: LineWriter) -> list[str]:
    lines = HloInstruction.lines_as_read(nodes)
    for at, line in enumerate(lines):
        if line is None or line[0] != " ":
            # Indented once and kept: a snapshot looks lines up, and the same string object is found fastest.
            node = nodes[at]
            if line is None:
                line = node.line_cache
                if line is None or options is not DEFAULT:
                    line = print_instruction(node, options, writer)
            lines[at] = node.source_line = "  " + line
    return cast("list[str]", lines)


def _result(root: HloInstruction) -> Shape:
    """The shape of a computation's result; XLA compares it with the shape that it makes itself, not with the text's."""
    made = made_shape(root) if root.opcode in BY_XLA else None
    return root.shape if made is None or made.compatible(root.shape) else made


@dataclass(frozen=True, slots=True)
class _Header:
    """The header lines of a module and what they were made from."""

    source: tuple[str, list[tuple[str, str]], StackFrames, bool]
    lines: list[str]
    values: dict[tuple[str, str], str]
    """Attributes as they print, by name and text."""


_HEADERS: WeakKeyDictionary[HloModule, _Header] = WeakKeyDictionary()
"""Kept like an instruction's printed line: the entry layout of a large module costs as much as its body."""


def header_lines(module: HloModule, options: PrintOptions = DEFAULT) -> Sequence[str]:
    """The first line and the source tables; with the default options the same list until one of them changes."""
    if options is not DEFAULT:
        return list(_header_lines(module, options))
    source = (module.name, list(module.attrs.items()), module.stack_frames, module.tables_present)
    kept = _HEADERS.get(module)
    if kept is None or kept.source != source:
        values = {} if kept is None else kept.values
        kept = _Header((*source[:2], source[2].copy(), source[3]), list(_header_lines(module, options, values)), values)
        _HEADERS[module] = kept
    return kept.lines


def _header_lines(
    module: HloModule, options: PrintOptions, values: dict[tuple[str, str], str] | None = None
) -> Iterator[str]:
    name = module.name if options.ids else ""
    tail = "".join(f", {key}={text}" for key, text in header_attributes(module, options, values))
    yield f"{'  ' * options.indent}HloModule {name}{tail}"
    yield ""
    tables = module.stack_frames
    if not options.metadata or not (tables or (module.tables_present and not options.exact)):
        return
    yield "FileNames"
    for i, name in enumerate(tables.file_names, start=1):
        yield f'{i} "{escape(raw_bytes(name))}"'
    yield ""
    yield "FunctionNames"
    for i, name in enumerate(tables.function_names, start=1):
        yield f'{i} "{escape(raw_bytes(name))}"'
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


def header_attributes(
    module: HloModule, options: PrintOptions = DEFAULT, values: dict[tuple[str, str], str] | None = None
) -> list[tuple[str, str]]:
    """Attributes of the HloModule line, in XLA's order and form; an exact one has the entry's layout in any case.

    `values` keeps what texts came to, for one set of options.
    """
    known = {} if values is None else values
    attrs = dict(module.attrs)
    if "entry_computation_layout" not in attrs and module.has_entry and options.exact:
        parameters = Shape.tuple_(p.shape.with_default_layout() for p in module.entry.parameters)
        attrs["entry_computation_layout"] = f"{{{parameters}->{module.entry.root.shape.with_default_layout()}}}"
    out: list[tuple[str, str]] = []
    for key in sorted(attrs, key=lambda name: HEADER_ORDER.get(name, len(HEADER_ORDER))):
        said = (key, attrs[key])
        value = known.get(said)
        if value is None:
            value = known[said] = header_value(*said, exact=options.exact)
        if key == "origin_recovery_table":
            tab = "  " * options.indent
            lines = (tab + line if i and line not in ("", "}") else line for i, line in enumerate(value.split("\n")))
            value = "\n".join(lines) + "\n"
        if value and HEADER_OMITTED.get(key) != value:
            out.append((key, value))
    return out


def module_lines(module: HloModule, options: PrintOptions = DEFAULT) -> Iterator[str]:
    """All lines of a module, without line ends; the last line is empty."""
    writer = LineWriter(options)
    yield from header_lines(module, options)
    for computation in _order(module, options):
        if computation.synthetic:
            continue
        order = None if options.exact or options.bodies else text_order(computation)
        yield from computation_lines(computation, options, writer, order=order)
        yield ""


def _order(module: HloModule, options: PrintOptions) -> Sequence[HloComputation]:
    """Computations in printing order: that of the text, or the one in which XLA prints them."""
    if not options.exact:
        return module.computations
    hidden = {
        c
        for node in module.instructions()
        if node.opcode == "async-start"
        for c in node.called.get("calls", ())
        if expandable(c)
    }
    order = list(module.computations) if options.in_text_order else dfs_order(module)
    return [c for c in order if c not in hidden]


def dfs_order(module: HloModule) -> list[HloComputation]:
    """Computations in XLA's printing order: callees first, from each one that nobody calls.

    Source: ``openxla/xla:xla/hlo/ir/hlo_module.cc#MakeComputationPostOrder`` with ``dfs_postorder``,
    ``hlo_computation.cc#MakeEmbeddedComputationsList``.
    """
    called = {c for node in module.instructions() for c in node.called_computations}
    order: dict[HloComputation, None] = {}
    for root in module.computations:
        if root in called:
            continue
        seen: set[HloComputation] = set()
        stack: list[tuple[HloComputation, Iterator[HloInstruction]]] = [(root, iter(root))]
        while stack:
            computation, rest = stack[-1]
            for node in rest:
                if node.called:
                    fresh = [c for c in dict.fromkeys(_in_xla_order(node)) if c not in seen]
                    seen.update(fresh)
                    stack.extend((c, iter(c)) for c in reversed(fresh))
                    if fresh:
                        break
            else:
                stack.pop()
                order.setdefault(computation)
    order.update(dict.fromkeys(module.computations))
    return list(order)


def _in_xla_order(node: HloInstruction) -> list[HloComputation]:
    """Called computations as XLA holds them: a while has its body first, though it prints the condition first."""
    called = node.called
    keys = sorted(called, key=_FIRST_CALLED.index) if len(called) > 1 and _FIRST_CALLED_SET >= called.keys() else called
    return [c for key in keys for c in called[key]]


_FIRST_CALLED = ("body", "condition", "true_computation", "false_computation", "select", "scatter")
_FIRST_CALLED_SET = frozenset(_FIRST_CALLED)


def print_module(module: HloModule, options: PrintOptions = DEFAULT) -> str:
    """The module as text; ends with a line end."""
    return "\n".join(module_lines(module, options)) + "\n"
