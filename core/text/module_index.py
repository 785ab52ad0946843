"""A columnar index of one HLO text, for viewing: what is where, without a graph.

Names, opcodes, shape ids, operands, users and source ranges lie in compact arrays, so that hundreds of stages of a
large module stay browsable; passes use the object graph of `hloscope.core.hlo` instead. Making an index never raises:
what is not understood becomes a `Diagnostic` and the rest is indexed. Instructions and computations are numbered in
text order; offsets are characters of the text, lines and columns 0-based.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from hloscope.core.errors import Diagnostic
from hloscope.core.hlo.attributes import CONTROL, unquote
from hloscope.core.hlo.stack_frames import FileLocation, Frame, StackFrame, StackFrames
from hloscope.core.text.index_builder import build
from hloscope.core.text.instruction_text import (
    InstructionText,
    Reference,
    Span,
    scan_instruction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hloscope.core.text.index_columns import Columns

TargetKind = Literal[
    "instruction", "operand", "computation", "computation-reference", "control", "opcode", "shape", "attribute",
    "parameter", "header", "none",
]  # fmt: skip
"""What can be under a cursor: the name an instruction is defined by, the name of an operand, a computation's own name
or a use of it, an instruction in control-predecessors, an opcode, a shape, an attribute's key or value, a parameter's
name in a computation's signature, a module attribute."""
SearchWhere = Literal["name", "opcode", "op_name", "line", "shape"]

_OP_NAME = re.compile(r'op_name=("[^"\\]*+(?:\\.[^"\\]*+)*+")')
_FRAME_ID = re.compile(r"stack_frame_id=(\d++)")
_SOURCE_FILE = re.compile(r'source_file=("[^"\\]*+(?:\\.[^"\\]*+)*+")')
_SOURCE_LINE = re.compile(r"source_line=(\d++)")
_TABLE_TEXT = re.compile(r'(\d++)\s++("[^"\\\n]*+(?:\\.[^"\\\n]*+)*+")')
_TABLE_FIELDS = re.compile(r"(\d++)\s++\{([^{}\n]*+)\}")
_FIELD = re.compile(r"(\w++)=(\d++)")
_CONTROL = f"{CONTROL}="
_SIGNATURE_NAME = re.compile(r"(?:\(|,)\s*+(?:/\*.*?\*/)?+%?+([A-Za-z_][A-Za-z0-9_.\-]*+)\s*+:", re.S)


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation of an index."""

    number: int
    name: str
    begin: int
    """First instruction."""
    end: int
    """One past the last instruction."""
    root: int
    """The root instruction: the one marked ROOT, else the last; -1 where there is none."""
    is_entry: bool
    span: Span
    """Header to closing brace."""
    name_span: Span
    header: Span
    """Up to and with the opening brace."""

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Target:
    """What lies under an offset."""

    kind: TargetKind
    name: str
    """The word itself: a name without percent sign, an opcode, a shape's text, an attribute's key."""
    span: Span
    instruction: int
    """The instruction whose text holds the offset; -1 outside any."""
    computation: int
    """The computation whose text holds the offset; -1 outside any."""
    refers_to: int = -1
    """The instruction (or, for the two computation kinds, the computation) that the name means; -1 for none."""


class ModuleIndex:
    """The index of one text. Make it with `from_text`."""

    def __init__(self, text: str, columns: Columns) -> None:
        self.source = text
        """The whole text."""
        self.columns = columns
        """The arrays; readers should prefer the methods."""

    @staticmethod
    def from_text(text: str, watch: Callable[[int, int], None] | None = None) -> ModuleIndex:
        """Index a text. Raises nothing: what is not understood is in `diagnostics`.

        `watch` is given the characters done and those in all, now and then.
        """
        return ModuleIndex(text, build(text, watch))

    # ---- sizes
    @property
    def instruction_count(self) -> int:
        """Number of instructions."""
        return len(self.columns.starts)

    @property
    def computation_count(self) -> int:
        """Number of computations."""
        return len(self.columns.computation_starts)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays made so far and of the interned texts, without the module's text itself."""
        c = self.columns
        arrays = [value for value in (getattr(c, name) for name in c.__slots__) if isinstance(value, np.ndarray)]
        arrays += [value for value in self.__dict__.values() if isinstance(value, np.ndarray)]
        for pair in (self.__dict__.get("_users"), self.__dict__.get("_name_hashes")):
            if pair is not None:
                arrays += list(pair)
        texts = sum(len(text) + 57 for text in (*c.shape_texts, *c.opcode_names))
        return sum(array.nbytes for array in arrays) + texts

    @property
    def truncated(self) -> bool:
        """Whether the text ends in the middle of something."""
        return self.columns.truncated

    # ---- the module
    @property
    def module_name(self) -> str:
        """Name in the header; empty where there is none."""
        return self.source[slice(*self.columns.module_name)]

    @cached_property
    def header_attributes(self) -> Mapping[str, str]:
        """Attributes of the module's header, name to text."""
        return {key: self.source[start:end] for key, start, end in self.columns.attributes}

    @property
    def is_scheduled(self) -> bool:
        """Whether the order of instructions is a schedule."""
        return self.header_attributes.get("is_scheduled") == "true"

    @cached_property
    def stack_frames(self) -> StackFrames:
        """The four source tables; empty where the text has none."""
        out = StackFrames()
        text, tables = self.source, self.columns.tables
        for name, rows in (("FileNames", out.file_names), ("FunctionNames", out.function_names)):
            for number, value in _table_rows(_TABLE_TEXT, text, tables.get(name)):
                rows.extend([""] * (number - 1 - len(rows)))
                rows.append(unquote(value))
        for number, value in _table_rows(_TABLE_FIELDS, text, tables.get("FileLocations")):
            fields = {key: int(n) for key, n in _FIELD.findall(value)}
            line, column = fields.get("line", 0), fields.get("column", 0)
            location = FileLocation(
                fields.get("file_name_id", 0), fields.get("function_name_id", 0), line, fields.get("end_line", line),
                column, fields.get("end_column", column),
            )  # fmt: skip
            out.file_locations.extend([FileLocation(0, 0, 0, 0, 0, 0)] * (number - 1 - len(out.file_locations)))
            out.file_locations.append(location)
        for number, value in _table_rows(_TABLE_FIELDS, text, tables.get("StackFrames")):
            fields = {key: int(n) for key, n in _FIELD.findall(value)}
            out.stack_frames.extend([StackFrame(0, 0)] * (number - 1 - len(out.stack_frames)))
            # The text holds the parent's row plus one.
            out.stack_frames.append(
                StackFrame(fields.get("file_location_id", 0), max(0, fields.get("parent_frame_id", 1) - 1))
            )
        return out

    @cached_property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What is wrong with the text, in text order."""
        out: list[Diagnostic] = []
        for f in self.columns.findings:
            line, column = self.position(f.start)
            end_line, end_column = self.position(f.end)
            out.append(
                Diagnostic(
                    f.message, line + 1, column + 1, end_line + 1, end_column + 1, f.severity, f.code, f.start, f.end,
                    f.related,
                )
            )  # fmt: skip
        return tuple(sorted(out, key=lambda d: (d.offset, d.end_offset, d.code)))

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """The diagnostics of severity error."""
        return tuple(d for d in self.diagnostics if d.severity == "error")

    # ---- positions
    @cached_property
    def line_starts(self) -> np.ndarray:
        """Offset of every line's first character; lines end with LF, CRLF or CR."""
        text, block = self.source, 1 << 22
        parts = [np.zeros(1, np.int64)]
        for pos in range(0, len(text), block):
            codes = np.frombuffer(text[pos : pos + block].encode("latin-1", "replace"), np.uint8)
            parts.append(np.flatnonzero(codes == 10) + (pos + 1))
            returns = np.flatnonzero(codes == 13) + (pos + 1)
            if returns.size:
                alone = [at for at in returns.tolist() if text[at : at + 1] != "\n"]
                parts.append(np.array(alone, np.int64))
        starts = np.concatenate(parts)
        if len(parts) > 2:
            starts.sort()
        return starts.astype(self.columns.starts.dtype)

    def position(self, offset: int) -> tuple[int, int]:
        """0-based line and column, in characters, of an offset."""
        line = _upto(self.line_starts, offset) - 1
        return line, offset - int(self.line_starts[line])

    def offset(self, line: int, column: int) -> int:
        """The offset of a 0-based line and column, held inside the text and the line."""
        starts = self.line_starts
        if line < 0:
            return 0
        if line >= len(starts):
            return len(self.source)
        begin = int(starts[line])
        end = int(starts[line + 1]) - 1 if line + 1 < len(starts) else len(self.source)
        return max(begin, min(begin + column, end))

    # ---- computations
    @cached_property
    def computations(self) -> Sequence[Computation]:
        """All computations in text order."""
        c = self.columns
        marked = np.flatnonzero(c.roots)
        last = np.searchsorted(marked, c.computation_ends) - 1
        roots = np.where(c.computation_ends > c.computation_begins, c.computation_ends - 1, -1)
        if len(marked):
            named = (last >= 0) & (marked[last] >= c.computation_begins)
            roots[named] = marked[last[named]]
        text, entry = self.source, c.entry
        rows = zip(
            c.computation_begins.tolist(),
            c.computation_ends.tolist(),
            roots.tolist(),
            c.computation_starts.tolist(),
            c.computation_stops.tolist(),
            c.computation_names.tolist(),
            c.computation_name_ends.tolist(),
            c.computation_bodies.tolist(),
            strict=True,
        )
        return tuple(
            Computation(k, text[n:m], begin, end, root, k == entry, (start, stop), (n, m), (start, body))
            for k, (begin, end, root, start, stop, n, m, body) in enumerate(rows)
        )

    def computation(self, number: int) -> Computation:
        """One computation. Raises IndexError."""
        c = self.columns
        begin, end = int(c.computation_begins[number]), int(c.computation_ends[number])
        name = (int(c.computation_names[number]), int(c.computation_name_ends[number]))
        start = int(c.computation_starts[number])
        roots = np.flatnonzero(c.roots[begin:end])
        root = begin + int(roots[-1]) if roots.size else end - 1 if end > begin else -1
        return Computation(
            number, self.source[slice(*name)], begin, end, root, number == c.entry,
            (start, int(c.computation_stops[number])), name, (start, int(c.computation_bodies[number])),
        )  # fmt: skip

    @property
    def entry(self) -> Computation | None:
        """The computation marked ENTRY, else the last one."""
        return self.computation(self.columns.entry) if self.columns.entry >= 0 else None

    def computation_of(self, i: int) -> int:
        """Number of the computation that holds instruction `i`."""
        return _upto(self.columns.computation_ends, i)

    @cached_property
    def _computation_numbers(self) -> dict[str, int]:
        return {c.name: c.number for c in reversed(self.computations) if c.name}

    def find_computation(self, name: str) -> int | None:
        """Number of the computation with that name, the first of several."""
        return self._computation_numbers.get(name.removeprefix("%"))

    # ---- instructions
    def name(self, i: int) -> str:
        """Name of an instruction, without the percent sign."""
        return self.source[int(self.columns.names[i]) : int(self.columns.name_ends[i])]

    @property
    def names(self) -> list[str]:
        """Names of all instructions in order; made anew at each call."""
        text = self.source
        return [text[a:b] for a, b in zip(self.columns.names.tolist(), self.columns.name_ends.tolist(), strict=True)]

    def name_span(self, i: int) -> Span:
        """Offsets of the name."""
        return int(self.columns.names[i]), int(self.columns.name_ends[i])

    def span(self, i: int) -> Span:
        """Offsets of the whole instruction, from ROOT or its name to the end of its attributes."""
        return int(self.columns.starts[i]), int(self.columns.ends[i])

    def opcode(self, i: int) -> str:
        """Opcode as written; empty where the text has none."""
        return self.columns.opcode_names[int(self.columns.opcode_ids[i])]

    def shape_text(self, i: int) -> str:
        """Result shape as written; empty where the text has none."""
        return self.columns.shape_texts[int(self.columns.shape_ids[i])]

    def is_root(self, i: int) -> bool:
        """Whether the text marks it ROOT."""
        return bool(self.columns.roots[i])

    def operands_text(self, i: int) -> str:
        """What stands between the parentheses."""
        return self.source[int(self.columns.operand_starts[i]) : int(self.columns.operand_ends[i])]

    def attributes_text(self, i: int) -> str:
        """What stands after the parentheses."""
        return self.source[int(self.columns.operand_ends[i]) + 1 : int(self.columns.ends[i])]

    def operands(self, i: int) -> list[int]:
        """Instructions that it uses, in order; -1 for one that the computation does not define."""
        rows = self.columns.operand_rows
        return self.columns.operands[int(rows[i]) : int(rows[i + 1])].tolist()

    @cached_property
    def _users(self) -> tuple[np.ndarray, np.ndarray]:
        """CSR of users: row pointers and user numbers, each user once, ascending."""
        c = self.columns
        n = self.instruction_count
        user = np.repeat(np.arange(n, dtype=np.int32), np.diff(c.operand_rows))
        known = c.operands >= 0
        pairs = np.sort(c.operands[known].astype(np.int64) * n + user[known])
        # Not numpy's unique: by hashes it takes ten times as long.
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        pointers = np.zeros(n + 1, np.int32)
        np.cumsum(np.bincount(pairs // n if n else pairs, minlength=n), out=pointers[1:])
        return pointers, (pairs % n if n else pairs).astype(np.int32)

    def users(self, i: int) -> list[int]:
        """Instructions that use it, each once, ascending."""
        pointers, users = self._users
        return users[int(pointers[i]) : int(pointers[i + 1])].tolist()

    def called(self, i: int) -> list[int]:
        """Computations that it calls, in the order written; -1 for one that the text does not define."""
        rows = self.columns.call_rows
        return self.columns.calls[int(rows[i]) : int(rows[i + 1])].tolist()

    def callers(self, computation: int) -> list[int]:
        """Instructions that call a computation, ascending."""
        at = np.flatnonzero(self.columns.calls == computation)
        return np.unique(np.searchsorted(self.columns.call_rows, at, "right") - 1).tolist()

    def line(self, i: int) -> int:
        """0-based line on which it starts."""
        return self.position(int(self.columns.starts[i]))[0]

    def text(self, i: int) -> str:
        """Its text, from ROOT or the name to the end of the attributes."""
        return self.source[int(self.columns.starts[i]) : int(self.columns.ends[i])]

    def line_text(self, i: int) -> str:
        """The same as `text`."""
        return self.text(i)

    def parts(self, i: int) -> InstructionText:
        """Spans of its parts, read from the text now."""
        start, end = self.span(i)
        part = scan_instruction(self.source, start)
        return part if part is not None else InstructionText(start, end, self.name_span(i), self.is_root(i))

    # ---- metadata
    def op_name(self, i: int) -> str | None:
        """``op_name`` of the metadata."""
        found = _OP_NAME.search(self.source, int(self.columns.operand_ends[i]), int(self.columns.ends[i]))
        return unquote(found[1]) if found is not None else None

    def stack_frame_id(self, i: int) -> int:
        """``stack_frame_id`` of the metadata, 0 for none."""
        found = _FRAME_ID.search(self.source, int(self.columns.operand_ends[i]), int(self.columns.ends[i]))
        return int(found[1]) if found is not None else 0

    def frames(self, i: int) -> tuple[Frame, ...]:
        """The Python stack that made it, innermost first; older texts have only a file and a line."""
        number = self.stack_frame_id(i)
        if number:
            return self.stack_frames.resolve(number)
        start, end = int(self.columns.operand_ends[i]), int(self.columns.ends[i])
        file, line = _SOURCE_FILE.search(self.source, start, end), _SOURCE_LINE.search(self.source, start, end)
        if file is None:
            return ()
        at = int(line[1]) if line is not None else 0
        return (Frame(unquote(file[1]), "", at, 0, at, 0),)

    def __getstate__(self) -> dict[str, object]:
        # Another process has other hashes of strings.
        return {key: value for key, value in self.__dict__.items() if key != "_name_hashes"}

    # ---- finding
    @cached_property
    def _name_hashes(self) -> tuple[np.ndarray, np.ndarray]:
        hashes = np.fromiter(map(hash, self.names), np.int64, self.instruction_count)
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        return hashes[order], order

    def find_all(self, name: str) -> list[int]:
        """Every instruction of that name (one per computation at most, in a right module), ascending."""
        word = name.removeprefix("%")
        hashes, order = self._name_hashes
        value = hashes.dtype.type(hash(word))
        begin, end = int(hashes.searchsorted(value, "left")), int(hashes.searchsorted(value, "right"))
        return sorted(i for i in order[begin:end].tolist() if self.name(i) == word)

    def find(self, name: str, computation: str | int | None = None) -> int | None:
        """The instruction of that name in a computation (name or number); without one, the entry's, else the first."""
        found = self.find_all(name)
        if computation is not None:
            number = self.find_computation(computation) if isinstance(computation, str) else computation
            return next((i for i in found if self.computation_of(i) == number), None)
        entry = self.columns.entry
        return next((i for i in found if self.computation_of(i) == entry), found[0] if found else None)

    def search(self, pattern: str, where: SearchWhere = "line", limit: int | None = None) -> list[int]:
        """Instructions whose name, opcode, shape, op_name or text matches a regular expression, in order.

        A pattern that is no regular expression is taken literally.
        """
        try:
            wanted = re.compile(pattern)
        except re.error:
            wanted = re.compile(re.escape(pattern))
        out: list[int] = []
        for i in self._candidates(wanted, where):
            out.append(i)
            if limit is not None and len(out) >= limit:
                break
        return out

    def _candidates(self, wanted: re.Pattern[str], where: SearchWhere) -> Iterator[int]:
        c, text = self.columns, self.source
        if where in ("opcode", "shape"):
            words, ids = (c.opcode_names, c.opcode_ids) if where == "opcode" else (c.shape_texts, c.shape_ids)
            hits = np.array([wanted.search(word) is not None for word in words], bool)
            yield from (np.flatnonzero(hits[ids]).tolist() if len(words) else ())
        elif where == "name":
            yield from (i for i, name in enumerate(self.names) if wanted.search(name))
        elif where == "op_name":
            begins, ends = c.operand_ends.tolist(), c.ends.tolist()
            for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                found = _OP_NAME.search(text, begin, end)
                if found is not None and wanted.search(unquote(found[1])):
                    yield i
        else:
            begins, ends = c.starts.tolist(), c.ends.tolist()
            for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                if wanted.search(text, begin, end):
                    yield i

    def opcode_histogram(self) -> list[tuple[str, int]]:
        """Opcodes and how often each occurs, commonest first, then by name."""
        counts = np.bincount(self.columns.opcode_ids, minlength=len(self.columns.opcode_names)).tolist()
        table = Counter(dict(zip(self.columns.opcode_names, counts, strict=True)))
        return sorted(((name, n) for name, n in table.items() if n and name), key=lambda row: (-row[1], row[0]))

    # ---- under the cursor
    @cached_property
    def _order(self) -> np.ndarray | None:
        """Instructions by offset; None where they already are."""
        starts = self.columns.starts
        if len(starts) < 2 or bool(np.all(starts[1:] > starts[:-1])):
            return None
        return np.argsort(starts, kind="stable").astype(np.int32)

    def instruction_at(self, offset: int) -> int | None:
        """The instruction whose text holds an offset (or ends at it), the innermost of nested ones."""
        starts, ends = self.columns.starts, self.columns.ends
        order = self._order
        if order is None:
            k = _upto(starts, offset) - 1
            return k if k >= 0 and offset <= int(ends[k]) else None
        k = _upto(starts[order], offset) - 1
        while k >= 0:
            if offset <= int(ends[order[k]]):
                return int(order[k])
            k -= 1
        return None

    def computation_at(self, offset: int) -> int | None:
        """The computation whose text holds an offset, the innermost of nested ones."""
        starts, stops = self.columns.computation_starts, self.columns.computation_stops
        k = _upto(starts, offset) - 1
        # Only bodies written inside an instruction nest, so the walk outwards is short.
        while k >= 0 and offset > int(stops[k]):
            if not self._nested:
                return None
            k -= 1
        return k if k >= 0 else None

    @cached_property
    def _nested(self) -> bool:
        """Whether some computation is written inside another."""
        c = self.columns
        return bool(np.any(c.computation_starts[1:] < c.computation_stops[:-1]))

    def references(self, i: int) -> list[Reference]:
        """Names that an instruction uses, with their spans: operands, called computations, control predecessors."""
        part = self.parts(i)
        return [*part.operand_references(self.source), *part.attribute_references(self.source)]

    @cached_property
    def control_predecessors(self) -> frozenset[int]:
        """The instructions that others name in their control-predecessors."""
        found: set[int] = set()
        # By hand: a pattern that begins with a word boundary tries every character.
        at, step = self.source.find(_CONTROL), len(_CONTROL)
        while at >= 0:
            i = self.instruction_at(at)
            at = self.source.find(_CONTROL, at + step)
            for one in () if i is None else self.parts(i).attribute_references(self.source, (CONTROL,)):
                before = self.find(one.name, self.computation_of(i or 0))
                found.update(() if before is None else (before,))
        return frozenset(found)

    def signature_names(self, computation: int) -> list[tuple[str, Span]]:
        """Parameter names in a computation's signature."""
        start, end = (
            int(self.columns.computation_name_ends[computation]),
            int(self.columns.computation_bodies[computation]),
        )
        out: list[tuple[str, Span]] = []
        for found in _SIGNATURE_NAME.finditer(self.source, start, end):
            out.append((found[1], found.span(1)))
        return out

    def at_offset(self, offset: int) -> Target:
        """What is under the cursor; a cursor right behind a word counts as on it."""
        i = self.instruction_at(offset)
        if i is not None:
            return self._in_instruction(i, offset)
        number = self.computation_at(offset)
        if number is not None:
            name = self.computation(number).name_span
            if name[0] <= offset <= name[1]:
                return Target("computation", self.source[slice(*name)], name, -1, number, number)
            for word, span in self.signature_names(number):
                if span[0] <= offset <= span[1]:
                    found = self.find(word, number)
                    return Target("parameter", word, span, -1, number, -1 if found is None else found)
            return Target("none", "", (offset, offset), -1, number)
        for key, start, end in self.columns.attributes:
            if start - len(key) - 1 <= offset <= end:
                return Target("header", key, (start, end), -1, -1)
        return Target("none", "", (offset, offset), -1, -1)

    def _in_instruction(self, i: int, offset: int) -> Target:
        number = self.computation_of(i)
        part, text = self.parts(i), self.source
        if part.name[0] <= offset <= part.name[1]:
            return Target("instruction", self.name(i), part.name, i, number, i)
        for r in part.operand_references(text):
            if r.span[0] - (text[r.span[0] - 1] == "%") <= offset <= r.span[1]:
                found = self.find(r.name, number)
                return Target("operand", r.name, r.span, i, number, -1 if found is None else found)
        for r in part.attribute_references(text):
            if r.span[0] - (text[r.span[0] - 1] == "%") <= offset <= r.span[1]:
                if r.attribute == CONTROL:
                    found = self.find(r.name, number)
                    return Target("control", r.name, r.span, i, number, -1 if found is None else found)
                called = self.find_computation(r.name)
                return Target("computation-reference", r.name, r.span, i, number, -1 if called is None else called)
        if part.opcode is not None and part.opcode[0] <= offset <= part.opcode[1]:
            return Target("opcode", text[slice(*part.opcode)], part.opcode, i, number, i)
        if part.shape is not None and part.shape[0] <= offset <= part.shape[1]:
            return Target("shape", text[slice(*part.shape)], part.shape, i, number, i)
        for attribute in part.attributes:
            if attribute.key_span[0] <= offset <= attribute.value[1]:
                return Target("attribute", attribute.key, (attribute.key_span[0], attribute.value[1]), i, number, i)
        return Target("none", "", (offset, offset), i, number)


def _upto(column: np.ndarray, value: int) -> int:
    """How many entries of an ascending column are at most `value`."""
    # A bare int would have the whole column brought to its type first.
    return int(column.searchsorted(column.dtype.type(value), "right"))


def _table_rows(pattern: re.Pattern[str], text: str, span: Span | None) -> Iterator[tuple[int, str]]:
    """Rows of a table in order; a number that goes back, or leaps, is not believed."""
    if span is None:
        return
    last = 0
    for found in pattern.finditer(text, *span):
        number = int(found[1])
        if last < number <= last + 10_000:
            yield number, found[2]
            last = number
