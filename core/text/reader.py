"""Read HLO text into a module. The reader recovers: it returns what it could read and a diagnostic for the rest.

Names are resolved after a computation is read, so definitions may come after uses. Attributes stay text until somebody
asks (`HloInstruction.attr`). What XLA's closed parser would refuse for being new (opcodes, attributes, element types)
is kept. Source of the grammar: ``openxla/xla:xla/hlo/parser/hlo_parser.cc``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.core.errors import Diagnostic, ParseError
from hloscope.core.hlo.attributes import CALLED, CONTROL, split_top, unquote
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.module import HloModule
from hloscope.core.hlo.opcodes import ALIASES
from hloscope.core.hlo.shape import Shape, scan_shape
from hloscope.core.hlo.stack_frames import FileLocation, StackFrame
from hloscope.core.text.scan import LineMap, match_bracket, skip_blank, value_end

if TYPE_CHECKING:
    from hloscope.core.errors import Severity

_MODULE = re.compile(r"HloModule\s+%?([^\s,{:]+):?")
_ATTR = re.compile(r"\s*,\s*([A-Za-z_][\w.\-]*)\s*=\s*")
_HEAD = re.compile(r"(ENTRY\s+)?%?([A-Za-z_][\w.\-]*)\s*")
_DEFINE = re.compile(r"(ROOT\s+)?%?([A-Za-z_][\w.\-]*)\s*=\s*")
_OPCODE = re.compile(r"\s*([A-Za-z][\w\-]*)\s*\(")
_SIMPLE_SHAPE = re.compile(r"[a-z]\w*\[[\d,]*\](?:\{[\d,]*(?::[^{}]*)?\})?(?=\s)")
_SIMPLE_OPERANDS = re.compile(r"[^()\"{}\[\]/#]*\)")
_OPERAND = re.compile(r"%?([A-Za-z_][\w.\-]*)((?:#\d+)*):?$")
_THREAD = re.compile(r"\s*,\s*execution_thread\s*=\s*\"([^\"]*)\"")
_NEXT_LINE = re.compile(r"[\n\r]")
_RESUME = re.compile(r"^[ \t]*(?:(?:ROOT[ \t]+)?%?[A-Za-z_][\w.\-]*[ \t]*=[ \t]|\})", re.M)
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_TABLE_HEAD = re.compile(r"(FileNames|FunctionNames|FileLocations|StackFrames)[ \t]*(?=[\n\r])")
_TABLE_STRING = re.compile(r'\s*(\d+)\s+("(?:[^"\\]|\\.)*")')
_TABLE_ROW = re.compile(r"\s*(\d+)\s+\{([^}]*)\}")
_FIELD = re.compile(r"(\w+)=(-?\d+)")


@dataclass(slots=True)
class _Line:
    """One instruction as read, before names are resolved."""

    name: str
    start: int
    end: int
    node: HloInstruction
    operands: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Names with their offsets."""
    called: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    """Attribute, text and offset of what names computations."""
    control: list[str] = field(default_factory=list[str])
    control_at: int = 0


class _Stop(Exception):
    """The instruction or computation at hand cannot be read; `offset` says where."""

    def __init__(self, message: str, offset: int, code: str = "syntax") -> None:
        super().__init__(message)
        self.message, self.offset, self.code = message, offset, code


class Reader:
    """Reads one text; use `parse_module`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 1 if text.startswith("\ufeff") else 0
        self.diagnostics: list[Diagnostic] = []
        self.module = HloModule("")
        self._lines = LineMap(text) if text else LineMap("")
        self._shapes: dict[str, Shape] = {}
        self._pending: list[_Line] = []
        self._by_name: dict[str, tuple[HloComputation, int]] = {}
        self._root_seen: dict[HloComputation, int] = {}

    # ---------------------------------------------------------------- module
    def read(self) -> HloModule | None:
        """The module, None where the text holds no computation at all."""
        self.pos = skip_blank(self.text, self.pos)
        self._read_header()
        self._read_tables()
        entry: HloComputation | None = None
        last: HloComputation | None = None
        while True:
            self.pos = skip_blank(self.text, self.pos)
            if self.pos >= len(self.text):
                break
            before = self.pos
            computation, is_entry = self._read_computation()
            if computation is not None:
                last = computation
                if is_entry:
                    if entry is not None:
                        self._report("a second ENTRY computation", before, before + 5, code="duplicate-entry")
                    entry = computation
            if self.pos <= before:
                self.pos = before + 1
        self._resolve_called()
        if entry is None:
            entry = last
        if entry is None:
            if not self.diagnostics:
                self._report(
                    "expected an HLO module: no computation found", 0, min(len(self.text), 1), code="no-module"
                )
            return None
        self.module.set_entry(entry)
        if not self.module.name:
            self.module.name = entry.name
        return self.module

    def _read_header(self) -> None:
        found = _MODULE.match(self.text, self.pos)
        if found is None:
            if self.text.startswith("HloModule", self.pos):
                self._report("expected a module name after HloModule", self.pos, self.pos + 9)
                self._skip_line()
            return
        self.module.name = found[1]
        self.pos = found.end()
        while True:
            attr = _ATTR.match(self.text, self.pos)
            if attr is None:
                break
            end = value_end(self.text, attr.end())
            if end < 0:
                self._report(f"the value of {attr[1]} is not closed", attr.start(1), attr.end(), code="unclosed")
                self._skip_line()
                return
            self.module.attrs[attr[1]] = self.text[attr.end() : end]
            self.pos = end

    def _read_tables(self) -> None:
        tables = self.module.stack_frames
        while True:
            at = skip_blank(self.text, self.pos)
            head = _TABLE_HEAD.match(self.text, at)
            if head is None:
                return
            self.module.tables_present = True
            self.pos = head.end()
            while True:
                if head[1] in _TABLES[:2]:
                    row = _TABLE_STRING.match(self.text, self.pos)
                    if row is None:
                        break
                    target = tables.file_names if head[1] == "FileNames" else tables.function_names
                    target.append(unquote(row[2]))
                else:
                    row = _TABLE_ROW.match(self.text, self.pos)
                    if row is None:
                        break
                    items = {k: int(v) for k, v in _FIELD.findall(row[2])}
                    if head[1] == "FileLocations":
                        tables.file_locations.append(
                            FileLocation(
                                items.get("file_name_id", 0),
                                items.get("function_name_id", 0),
                                items.get("line", 0),
                                items.get("end_line", 0),
                                items.get("column", 0),
                                items.get("end_column", 0),
                            )
                        )
                    else:
                        # Printed as the parent's id plus one, so that 1 says "no parent".
                        parent = items.get("parent_frame_id", 1) - 1
                        tables.stack_frames.append(StackFrame(items.get("file_location_id", 0), max(parent, 0)))
                self.pos = row.end()

    # ---------------------------------------------------------------- computations
    def _read_computation(self) -> tuple[HloComputation | None, bool]:
        start = self.pos
        head = _HEAD.match(self.text, self.pos)
        if head is None:
            self._report(f"expected a computation, got {self._glance(self.pos)}", self.pos, self.pos + 1)
            self._skip_line()
            return None, False
        pos = skip_blank(self.text, head.end())
        if self.text.startswith("(", pos):
            end = match_bracket(self.text, pos)
            if end < 0:
                self._report("the parameter list is not closed", pos, pos + 1, code="unclosed")
                self.pos = len(self.text)
                return None, False
            pos = skip_blank(self.text, end)
            if not self.text.startswith("->", pos):
                self._report("expected '->' after the parameter list", pos, pos + 1)
                self._skip_line()
                return None, False
            try:
                _, pos = scan_shape(self.text, pos + 2)
            except ParseError as bad:
                self._report(bad.message, (bad.column or 1) - 1, bad.column or 1)
                self._skip_line()
                return None, False
            pos = skip_blank(self.text, pos)
        if not self.text.startswith("{", pos):
            self._report(f"expected '{{' to open a computation, got {self._glance(pos)}", pos, pos + 1)
            self._skip_line()
            return None, False
        computation = HloComputation(head[2])
        other = self._by_name.get(head[2])
        if other is not None:
            self._report(
                f"computation %{head[2]} is defined twice",
                head.start(2),
                head.end(2),
                code="duplicate-computation",
                related=((other[1], other[1] + len(head[2]), "first defined here"),),
            )
        else:
            self._by_name[head[2]] = (computation, head.start(2))
        self.pos = pos + 1
        closed = self._read_body(computation)
        if not closed:
            self._report(
                f"the text ends inside computation %{computation.name}",
                len(self.text),
                len(self.text),
                code="truncated",
            )
        thread = _THREAD.match(self.text, self.pos)
        if thread is not None:
            computation.execution_thread = thread[1]
            self.pos = thread.end()
        if not len(computation):
            self._report(f"computation %{head[2]} is empty", start, head.end(2), code="empty-computation")
            return None, False
        self.module.add_computation(computation, keep_name=True)
        return computation, head[1] is not None

    def _read_body(self, computation: HloComputation) -> bool:
        """Read instructions up to the closing brace; False where the text ends before it."""
        lines: list[_Line] = []
        defined: dict[str, _Line] = {}
        root: HloInstruction | None = None
        closed = False
        while True:
            self.pos = skip_blank(self.text, self.pos)
            if self.pos >= len(self.text):
                break
            if self.text[self.pos] == "}":
                self.pos += 1
                closed = True
                break
            try:
                is_root, line = self._read_instruction(computation, lines, defined)
            except _Stop as bad:
                self._report(bad.message, bad.offset, min(bad.offset + 1, len(self.text)), code=bad.code)
                resume = _RESUME.search(self.text, max(bad.offset, self.pos + 1))
                line_end = _NEXT_LINE.search(self.text, max(bad.offset, self.pos))
                self.pos = resume.start() if resume is not None else len(self.text)
                if line_end is not None and resume is not None and resume.start() < line_end.start():
                    following = _RESUME.search(self.text, line_end.end())
                    self.pos = following.start() if following is not None else len(self.text)
                continue
            if is_root:
                if root is not None:
                    self._report("a second ROOT in one computation", line.start, line.start + 4, code="duplicate-root")
                root = line.node
        self._link(computation, lines, defined)
        if lines:
            computation.set_root(root if root is not None else lines[-1].node)
        self._check_parameters(computation, lines)
        return closed

    def _check_parameters(self, computation: HloComputation, lines: list[_Line]) -> None:
        where = {line.node: line for line in lines}
        for number, parameter in enumerate(computation.parameters):
            if parameter.parameter_number != number:
                line = where[parameter]
                self._report(
                    f"parameter numbers of %{computation.name} are not 0, 1, 2, …: found {parameter.parameter_number}, "
                    f"expected {number}",
                    line.start,
                    line.end,
                    code="parameter-number",
                )
                return

    # ---------------------------------------------------------------- instructions
    def _read_instruction(
        self, computation: HloComputation, lines: list[_Line], defined: dict[str, _Line]
    ) -> tuple[bool, _Line]:
        text, start = self.text, self.pos
        head = _DEFINE.match(text, start)
        if head is None:
            raise _Stop(f"expected 'name = shape opcode(…)', got {self._glance(start)}", start)
        shape, pos = self._scan_shape(head.end())
        found = _OPCODE.match(text, pos) or _OPCODE.match(text, skip_blank(text, pos))
        if found is None:
            raise _Stop(f"expected an opcode and '(', got {self._glance(skip_blank(text, pos))}", skip_blank(text, pos))
        name = head[2]
        line = self._read_rest(computation, lines, defined, name, shape, found, start)
        other = defined.get(name)
        if other is not None:
            self._report(
                f"%{name} is defined twice in computation %{computation.name}",
                head.start(2),
                head.end(2),
                code="duplicate-name",
                related=((other.start, other.end, "first defined here"),),
            )
        else:
            defined[name] = line
        lines.append(line)
        computation.add(line.node, keep_name=True)
        return head[1] is not None, line

    def _read_rest(
        self,
        computation: HloComputation,
        lines: list[_Line],
        defined: dict[str, _Line],
        name: str,
        shape: Shape | None,
        found: re.Match[str],
        start: int,
    ) -> _Line:
        text = self.text
        opcode = ALIASES.get(found[1], found[1])
        inside = found.end()
        simple = _SIMPLE_OPERANDS.match(text, inside)
        end = simple.end() if simple is not None else match_bracket(text, inside - 1)
        if end < 0:
            raise _Stop(f"the operands of %{name} are not closed", inside - 1, "unclosed")
        operands: list[tuple[str, int]] = []
        payload: str | None = None
        if opcode in ("constant", "parameter"):
            payload = text[inside : end - 1].strip()
            if opcode == "parameter" and not payload.isdigit():
                raise _Stop(f"expected a parameter number, got {payload[:20]!r}", inside)
        elif simple is not None:
            at = inside
            for part in text[inside : end - 1].split(","):
                word = part.strip().removeprefix("%")
                if word:
                    if " " in word:
                        operands.extend(self._read_operands(computation, lines, defined, part, at))
                    else:
                        operands.append((word.removesuffix(":"), at + part.find(word)))
                at += len(part) + 1
        else:
            operands = self._read_operands(computation, lines, defined, text[inside : end - 1], inside)
        node = HloInstruction(opcode, shape if shape is not None else Shape.token(), name=name, payload=payload)
        line = _Line(name, start, end, node, operands)
        pos = end
        while True:
            attr = _ATTR.match(text, pos)
            if attr is None:
                break
            key = attr[1]
            stop = value_end(text, attr.end())
            if stop < 0:
                raise _Stop(f"the value of {key} is not closed", attr.start(1), "unclosed")
            value = text[attr.end() : stop]
            if key in node.raw_attrs:
                self._report(f"attribute {key} is given twice", attr.start(1), attr.end(1), code="duplicate-attribute")
            if key in CALLED:
                line.called.append((key, value, attr.end()))
                node.load_attr(key, value)
            elif key == CONTROL:
                line.control = [w.strip().removeprefix("%") for w in split_top(value[1:-1])]
                line.control_at = attr.end()
            else:
                node.load_attr(key, value)
            pos = stop
        if shape is None:
            node.shape = self._infer(line, defined, found.start(1))
        line.end = self.pos = pos
        rest = text[pos : pos + 1]
        if rest and rest not in "\n\r \t}/":
            raise _Stop(f"unexpected {self._glance(pos)} after %{name}", pos)
        after = skip_blank(text, pos)
        if after < len(text) and text[after] in ",)":
            raise _Stop(f"unexpected {self._glance(after)} after %{name}", after)
        return line

    def _read_operands(
        self, computation: HloComputation, lines: list[_Line], defined: dict[str, _Line], inside: str, at: int
    ) -> list[tuple[str, int]]:
        """Operand names from a list with shapes, comments, nested instructions or tuple-element suffixes."""
        out: list[tuple[str, int]] = []
        pos = 0
        n = len(inside)
        while True:
            pos = skip_blank(inside, pos)
            if pos >= n:
                return out
            shape: Shape | None = None
            word = re.compile(r"%?([A-Za-z_][\w.\-]*)((?:#\d+)*):?").match(inside, pos)
            after = skip_blank(inside, word.end()) if word is not None else pos
            if word is None or (after < n and inside[after] not in ",(") or inside.startswith("b(", pos):
                try:
                    shape, pos = scan_shape(inside, pos)
                except ParseError as bad:
                    raise _Stop(bad.message, at + (bad.column or 1) - 1) from None
                pos = skip_blank(inside, pos)
                word = re.compile(r"%?([A-Za-z_][\w.\-]*)((?:#\d+)*):?").match(inside, pos)
                if word is None:
                    raise _Stop(f"expected an operand name, got {self._glance(at + pos)}", at + pos)
                after = skip_blank(inside, word.end())
            if after < n and inside[after] == "(":
                end = match_bracket(inside, after)
                name = f"{word[1]}.anonymous.{at + pos}"
                found = _OPCODE.match(self.text, at + pos)
                if found is None or end < 0:
                    raise _Stop(f"expected an operand, got {self._glance(at + pos)}", at + pos)
                keep = self.pos
                nested = self._read_nested(computation, lines, defined, name, shape, found)
                self.pos = keep
                out.append((nested, at + pos))
                pos = end
            else:
                out.append((self._element(computation, lines, defined, word, at), at + word.start(1)))
                pos = word.end()
            pos = skip_blank(inside, pos)
            if pos < n and inside[pos] != ",":
                raise _Stop(f"expected ',' between operands, got {self._glance(at + pos)}", at + pos)
            pos += 1

    def _read_nested(
        self,
        computation: HloComputation,
        lines: list[_Line],
        defined: dict[str, _Line],
        name: str,
        shape: Shape | None,
        found: re.Match[str],
    ) -> str:
        # An anonymous instruction carries no attributes: read it from its own text alone.
        end = match_bracket(self.text, found.end() - 1)
        inner = self.text[: end if end > 0 else len(self.text)]
        outer, self.text = self.text, inner
        try:
            line = self._read_rest(computation, lines, defined, name, shape, found, found.start(1))
        finally:
            self.text = outer
        defined[name] = line
        lines.append(line)
        computation.add(line.node, keep_name=True)
        return name

    def _element(
        self,
        computation: HloComputation,
        lines: list[_Line],
        defined: dict[str, _Line],
        word: re.Match[str],
        at: int,
    ) -> str:
        """The name of an operand; ``t#1#0`` makes the get-tuple-element instructions that it stands for."""
        name = word[1]
        for index in word[2].split("#")[1:]:
            whole = f"{name}#{index}"
            if whole not in defined:
                base = defined.get(name)
                if base is None or not base.node.shape.is_tuple or int(index) >= len(base.node.shape.tuple_shapes):
                    raise _Stop(f"%{name} has no element {index}", at + word.start())
                node = HloInstruction(
                    "get-tuple-element", base.node.shape.tuple_shapes[int(index)], name=f"{name}.{index}"
                )
                node.load_attr("index", index)
                line = _Line(whole, at + word.start(), at + word.end(), node, [(name, at + word.start())])
                defined[whole] = line
                lines.append(line)
                computation.add(node, keep_name=True)
            name = whole
        return name

    def _infer(self, line: _Line, defined: dict[str, _Line], at: int) -> Shape:
        """The shape of an instruction that gives none; the opcodes that XLA's parser infers for."""
        from hloscope.core.hlo.infer_shape import NEEDS_SHAPE, InferenceError, infer_shape, program_of

        node = line.node
        if node.opcode in NEEDS_SHAPE:
            raise _Stop(f"the shape of {node.opcode} must be given", at, "missing-shape")
        try:
            operands = [defined[name].node.shape for name, _ in line.operands]
            programs = {
                key: [program_of(self._by_name[word.removeprefix("%")][0]) for word in split_top(value.strip("{}"))]
                for key, value, _ in line.called
            }
            attributes = {key: text for key, text in node.raw_attrs.items() if key not in CALLED}
            return infer_shape(node.opcode, operands, attributes, programs).with_default_layout()
        except KeyError as missing:
            what = f"it depends on %{missing.args[0]}, which is not defined before it"
            raise _Stop(f"the shape of {node.opcode} must be given: {what}", at, "missing-shape") from None
        except (InferenceError, ParseError, ValueError) as error:
            why = getattr(error, "message", str(error))
            raise _Stop(f"the shape of {node.opcode} does not follow: {why}", at, "missing-shape") from None

    def _scan_shape(self, pos: int) -> tuple[Shape | None, int]:
        """The result shape at `pos`; None where an opcode stands there."""
        text = self.text
        found = _SIMPLE_SHAPE.match(text, pos)
        if found is not None:
            known = self._shapes.get(found[0])
            if known is not None:
                return known, found.end()
        elif text.startswith("(", pos):
            end = match_bracket(text, pos)
            if end > 0:
                known = self._shapes.get(text[pos:end])
                if known is not None:
                    return known, end
        elif _OPCODE.match(text, pos) is not None and not text.startswith("b(", pos):
            return None, pos
        try:
            shape, end = scan_shape(text, pos)
        except ParseError as bad:
            raise _Stop(bad.message, (bad.column or pos + 1) - 1) from None
        return self._shapes.setdefault(text[pos:end], shape), end

    # ---------------------------------------------------------------- names
    def _link(self, computation: HloComputation, lines: list[_Line], defined: dict[str, _Line]) -> None:
        for line in lines:
            for name, at in line.operands:
                target = defined.get(name)
                if target is None:
                    self._report(
                        f"%{name} is not defined in computation %{computation.name}",
                        at,
                        at + len(name),
                        code="undefined-name",
                    )
                else:
                    line.node.append_operand(target.node)
            for name in line.control:
                target = defined.get(name)
                if target is None:
                    self._report(
                        f"control predecessor %{name} is not defined in computation %{computation.name}",
                        line.control_at,
                        line.control_at + 1,
                        code="undefined-name",
                    )
                else:
                    target.node.add_control_dependency(line.node)
            if line.called:
                self._pending.append(line)

    def _resolve_called(self) -> None:
        for line in self._pending:
            for key, value, at in line.called:
                inside = value[1:-1] if value.startswith("{") else value
                group: list[HloComputation] = []
                for word in split_top(inside):
                    name = word.removeprefix("%")
                    target = self._by_name.get(name)
                    if target is None:
                        self._report(
                            f"computation %{name[:60]} is not defined",
                            at,
                            at + len(value),
                            code="undefined-computation",
                        )
                    else:
                        group.append(target[0])
                if group:
                    line.node.set_called(key, group if value.startswith("{") else group[0])

    # ---------------------------------------------------------------- reporting
    def _glance(self, pos: int) -> str:
        end = _NEXT_LINE.search(self.text, pos)
        stop = min(end.start() if end is not None else len(self.text), pos + 24)
        return repr(self.text[pos:stop]) if pos < len(self.text) else "the end of the text"

    def _skip_line(self) -> None:
        end = _NEXT_LINE.search(self.text, self.pos)
        self.pos = end.end() if end is not None else len(self.text)

    def _report(
        self,
        message: str,
        start: int,
        end: int,
        *,
        code: str = "syntax",
        severity: Severity = "error",
        related: tuple[tuple[int, int, str], ...] = (),
    ) -> None:
        line, column = self._lines.position(start)
        end_line, end_column = self._lines.position(end)
        self.diagnostics.append(
            Diagnostic(message, line, column, end_line, end_column, severity, code, start, end, related)
        )


def parse_module(text: str) -> tuple[HloModule | None, list[Diagnostic]]:
    """Read HLO text. Returns the module (None where there is none to speak of) and what is wrong, in text order.

    Never raises on bad text. A module returned beside errors holds what was readable, and is for looking at only.
    """
    reader = Reader(text)
    module = reader.read()
    return module, sorted(reader.diagnostics, key=lambda d: d.offset)


def load_module(text: str, path: str | None = None) -> HloModule:
    """Read HLO text that must be right. Raises ParseError (with `path`, line and column) on the first error."""
    module, diagnostics = parse_module(text)
    for diagnostic in diagnostics:
        if diagnostic.severity == "error":
            raise diagnostic.error(path)
    if module is None:
        raise ParseError("no HLO module in the text", path=path)
    return module
