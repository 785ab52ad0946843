"""Fills the columns of a ModuleIndex from text: the pattern takes runs of ordinary lines, a hand-written scan the rest.

The text is cut into blocks; in each block one ``findall`` gives the parts of every row, whose lengths add up to their
offsets. The first row that the pattern does not know hands over to `_Builder._step`, which reads one thing by hand and
hands back. Rows near a block's end are read again with the next block, so that no value is cut.
"""

from __future__ import annotations

import gc
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.text.index_columns import Columns, Finding
from hloscope.core.text.instruction_text import (
    CALLS,
    FIXED_CHARACTERS,
    HEADER_PARTS,
    INLINE_BODY,
    INLINE_HINT,
    MAX_ROW,
    ROW,
    ROWS,
    InstructionText,
    Span,
    line_end,
    match_close,
    operand_names,
    scan_instruction,
    shape_end,
    skip_blank,
    value_end,
)
from hloscope.core.text.operand_resolver import OperandResolver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hloscope.core.errors import Severity

_FIRST_BLOCK = 1 << 12
_LAST_BLOCK = 1 << 18
_MAX_FINDINGS = 500
_NO_OPERANDS = frozenset(("constant", "parameter", "iota"))
_CALLS_NOTHING = frozenset(row.name for row in OPCODES.values() if row.calls == "none")
_TABLE = re.compile(r"(FileNames|FunctionNames|FileLocations|StackFrames)(?:\s++|\Z)")
_TABLE_ROWS = re.compile(r"(?>(?:\s*+\d++\s++(?:\"[^\"\\\n]*+(?>(?:\\.[^\"\\\n]*+)*)\"|\{[^{}\n]*+\}))*)")
_MODULE = re.compile(r"HloModule\b[ \t]*+%?+([A-Za-z0-9_.\-]++)?+:?+")
_COMPUTATION = re.compile(r"(ENTRY\b\s*+)?+%?+([A-Za-z_][A-Za-z0-9_.\-]*+)")
_KEY = re.compile(r"([A-Za-z0-9_.\-]++)[ \t]*+=")
_CLOSE_TAIL = re.compile(r"\}(?:\s*+,\s*+execution_thread=\"[^\"\n]*+\"?+)?+(?:[ \t]*+//[^\n\r]*+)?+")
# Where reading can start again after something that was not understood.
_ANCHOR = re.compile(
    r"^[ \t]*+(?:(?:ROOT\s++)?+%?+[A-Za-z_][A-Za-z0-9_.\-]*+ ?+=[ \t]*+(?:[a-z(]|$)|ENTRY\b|\}"
    r"|%?+[A-Za-z_][A-Za-z0-9_.\-]*+[ \t]*+(?:\{|\([^\n]*\{)[ \t\r]*+$)"
    r"|^(?:[^\n]* )?HloModule\b|^(?:FileNames|FunctionNames|FileLocations|StackFrames)[ \t\r]*+$",
    re.M,
)
# The same inside a line, for texts without line ends.
_ANCHOR_IN_LINE = re.compile(
    r"\s(?:ENTRY\s|(?:ROOT\s++)?+%?+[A-Za-z_][A-Za-z0-9_.\-]*+ = (?:\(|[a-z][a-z0-9]*+\[)|HloModule\s)"
)


@dataclass(slots=True)
class _Computation:
    name: Span
    start: int
    body: int
    """Offset after the opening brace."""
    entry: bool
    runs: list[tuple[int, int]]
    stop: int = -1
    inline: bool = False


class _Builder:
    def __init__(self, text: str) -> None:
        self.text = text
        self.kind = np.int32 if len(text) < 2**31 - 2**21 else np.int64
        self.findings: list[Finding] = []
        self.truncated = False
        self.header: Span = (0, 0)
        self.module_name: Span = (0, 0)
        self.attributes: list[tuple[str, int, int]] = []
        self.tables: dict[str, Span] = {}
        self.columns: list[tuple[np.ndarray, ...]] = []
        self.singles: list[tuple[int, ...]] = []
        self.rows = 0
        self.shape_ids: defaultdict[str, int] = defaultdict()
        self.opcode_ids: defaultdict[str, int] = defaultdict()
        self.lead_ids: defaultdict[str, int] = defaultdict()
        for table in (self.shape_ids, self.opcode_ids, self.lead_ids):
            table.default_factory = table.__len__
        self.resolver = OperandResolver()
        self.computations: list[_Computation] = []
        self.open: list[int] = []
        self.closed: list[int] = []
        """Ended since the last `_flush`."""
        self.run_begin = 0
        self.has_inline = False
        self.call_rows: list[int] = []
        self.call_names: list[str] = []
        self.wasted = 0
        """Characters read in vain for brackets that are not closed; past a limit nothing is looked for beyond the line,
        so that a text of nothing but opening brackets takes linear time."""

    # ---- the loop
    def run(self, pos: int, end: int) -> int:
        """Read rows in [pos, end); the position after the last thing read is returned."""
        text = self.text
        block, burst = _FIRST_BLOCK, 1
        while pos < end:
            stop = min(pos + block, end)
            rows = ROWS.findall(text, pos, stop)
            if stop < end:
                rows.pop()
            before = self.rows
            pos, stuck = self._take(rows, pos) if rows else (pos, True)
            self._flush()
            if self.rows > before:
                burst = 1
            if not stuck:
                block = min(block * 4, _LAST_BLOCK)
                continue
            block = _FIRST_BLOCK
            for _ in range(burst):
                pos = self._step(pos, end)
                if pos >= end:
                    break
            burst = min(burst * 2, 256)
        return pos

    def _take(self, rows: list[tuple[str, ...]], pos: int) -> tuple[int, bool]:
        """Take rows up to the first that the pattern does not know; the position reached, and whether there is one."""
        self._take_singles()
        columns = list(zip(*rows, strict=True))
        n, stuck = len(rows), False
        if any(columns[8]):
            for k, blank in enumerate(columns[8]):
                if blank and not blank.isspace():
                    n, stuck = k, True
                    if blank.startswith(","):
                        # Attributes that go on in the next line belong to the instruction before.
                        while n and not rows[n - 1][1]:
                            n -= 1
                        n = max(0, n - 1)
                    break
        lead, names, shapes, opcodes, operands, attributes, closes, headers, blanks = (c[:n] for c in columns)
        if not any(names) and not any(closes) and not any(headers):
            return pos + sum(map(len, blanks)), stuck
        codes = np.fromiter(map(self.opcode_ids.__getitem__, opcodes), np.int32, n)
        calls = _by_word(self.opcode_ids, codes, opcodes, lambda word: word not in _CALLS_NOTHING and word != "", bool)
        callers = np.flatnonzero(calls).tolist()
        for k in callers:
            if INLINE_HINT.search(attributes[k]) and INLINE_BODY.search(attributes[k]):
                return self._take(rows[:k], pos) if k else (pos, True)
        if not n:
            return pos, True
        ids = np.fromiter(map(self.shape_ids.__getitem__, shapes), np.int32, n)
        leads = np.fromiter(map(self.lead_ids.__getitem__, lead), np.int32, n)
        name_lengths = np.fromiter(map(len, names), np.int64, n)
        operand_lengths = np.fromiter(map(len, operands), np.int64, n)
        total = np.fromiter(map(len, attributes), np.int64, n)
        lead_lengths = _by_word(self.lead_ids, leads, lead, len, np.int64)
        shape_lengths = _by_word(self.shape_ids, ids, shapes, len, np.int64)
        opcode_lengths = _by_word(self.opcode_ids, codes, opcodes, len, np.int64)
        total += lead_lengths + name_lengths + shape_lengths + opcode_lengths + operand_lengths + FIXED_CHARACTERS
        keep = name_lengths > 0
        others = np.flatnonzero(~keep).tolist()
        if others:
            total[others] = [len(closes[k]) + len(headers[k]) + len(blanks[k]) for k in others]
        stops = np.cumsum(total) + pos
        begins = stops - total
        name_starts = begins + lead_lengths
        name_ends = name_starts + name_lengths
        shape_starts = name_ends + 3
        opcode_starts = shape_starts + shape_lengths + 1
        operand_starts = opcode_starts + opcode_lengths + 1
        operand_ends = operand_starts + operand_lengths
        starts = name_starts - _by_word(self.lead_ids, leads, lead, lambda word: len(word.lstrip()), np.int64)
        roots = _by_word(self.lead_ids, leads, lead, lambda word: "R" in word, bool)
        offsets = (starts, stops, name_starts, name_ends, shape_starts, opcode_starts, operand_starts, operand_ends)
        kind = self.kind
        at = np.flatnonzero(keep)
        self.columns.append((*(column[at].astype(kind) for column in offsets), ids[at], codes[at], roots[at]))
        no_operands = _by_word(self.opcode_ids, codes, opcodes, _NO_OPERANDS.__contains__, bool)
        if others:
            named = filter(None, names)
            lists = [operands[k] for k in at.tolist()]
        else:
            named, lists = names, operands
        self.resolver.add(named, lists, (~no_operands & (operand_lengths > 0))[at])
        row_of = np.cumsum(keep) - 1 + self.rows
        for k in callers:
            if attributes[k]:
                self._add_calls(int(row_of[k]), attributes[k])
        self._take_marks(others, begins, stops, closes, headers, starts, keep)
        return int(stops[-1]), stuck

    def _take_marks(
        self,
        others: list[int],
        begins: np.ndarray,
        stops: np.ndarray,
        closes: Sequence[str],
        headers: Sequence[str],
        starts: np.ndarray,
        keep: np.ndarray,
    ) -> None:
        """Take the headers and ends among rows, in order, and count the instructions between them."""
        n, base = len(keep), self.rows
        if not self.open and bool(keep[0]):
            self._implicit(int(starts[0]))
        for before, k in enumerate(others):
            self.rows = base + k - before
            if closes[k]:
                self._close(int(stops[k]), int(begins[k]))
            elif headers[k]:
                start = int(begins[k]) + len(headers[k]) - len(headers[k].lstrip())
                found = HEADER_PARTS.match(self.text, start)
                if found is not None:
                    self._open(found.span(2), start, int(stops[k]), entry=found[1] is not None)
            if not self.open and k + 1 < n and keep[k + 1]:
                self._implicit(int(starts[k + 1]))
        self.rows = base + n - len(others)

    # ---- one thing by hand
    def _step(self, pos: int, end: int) -> int:
        """Read one thing at `pos`, whatever it is; the position after it, always greater than `pos`."""
        text = self.text
        start = skip_blank(text, pos)
        if start < end and text.startswith("/*", start):
            self._find("unclosed", "the comment is not closed", start, start + 2)
            self.truncated = True
            return end
        if start >= end:
            return end
        row = ROW.match(text, start, min(end, start + MAX_ROW))
        if row is not None and (row.end() == start + MAX_ROW or text.startswith(",", skip_blank(text, row.end()))):
            row = None
        if row is not None and row[2] is None:
            self._take([(*(group or "" for group in row.groups()), "")], start)
            return row.end()
        if row is not None and not INLINE_BODY.search(row[6]):
            operands = () if row[4] in _NO_OPERANDS else [text[a:b] for a, b in operand_names(text, *row.span(5))]
            self._add_calls(self._add_row(
                (row.end(1) - len(row[1].lstrip()), row.end(), *row.span(2), row.start(3), row.start(4), *row.span(5)),
                row[3], row[4], "R" in row[1], operands,
            ), row[6])  # fmt: skip
            return row.end()
        if text.startswith("}", start):
            tail = _CLOSE_TAIL.match(text, start)
            stop = tail.end() if tail is not None else start + 1
            self._close(stop, start)
            return stop
        if not self.open or text.startswith("HloModule", start):
            top = self._top(start, end)
            if top > start:
                return top
        instruction = scan_instruction(text, start, self._limit(start))
        if instruction is not None:
            self.wasted += max(0, instruction.reached - instruction.end)
            return self._add(instruction, end)
        opened = self._computation_header(start, end)
        if opened > start:
            return opened
        return self._skip(start, end)

    def _limit(self, start: int) -> int:
        """How far to look for what closes a bracket opened after `start`."""
        return len(self.text) if self.wasted <= len(self.text) + MAX_ROW else line_end(self.text, start)

    def _top(self, start: int, end: int) -> int:
        """A module header or a table of stack frames; `start` where it is neither."""
        text = self.text
        found = _MODULE.match(text, start)
        if found is not None:
            if self.header[1]:
                self._find("second-module", "a second module in one text; its computations are listed with the first's",
                           *found.span())  # fmt: skip
                while self.open:
                    self._close_quietly(start)
                return self._header_attributes(found.end(), end)[1]
            if found[1] is None:
                self._find("syntax", "expected the module's name", *found.span())
            self.module_name = found.span(1) if found[1] else (found.end(), found.end())
            self.attributes, stop = self._header_attributes(found.end(), end)
            self.header = (start, stop)
            return stop
        table = _TABLE.match(text, start)
        if table is not None:
            rows = _TABLE_ROWS.match(text, table.end())
            stop = rows.end() if rows is not None else table.end()
            self.tables.setdefault(table[1], (table.end(), stop))
            return max(stop, start + 1)
        if text.startswith("\ufeff", start):
            self._find("byte-order-mark", "a byte order mark before the module", start, start + 1, "information")
            return start + 1
        return start

    def _header_attributes(self, pos: int, end: int) -> tuple[list[tuple[str, int, int]], int]:
        """``, key=value`` of a module header, over as many lines as it takes."""
        text, out = self.text, list[tuple[str, int, int]]()
        while True:
            comma = skip_blank(text, pos)
            if comma >= end or text[comma] != ",":
                return out, pos
            key = _KEY.match(text, skip_blank(text, comma + 1))
            if key is None:
                self._find("syntax", "expected a module attribute after the comma", comma, comma + 1)
                return out, comma + 1
            start = skip_blank(text, key.end())
            stop = _header_value_end(text, start)
            if stop < 0:
                stop = line_end(text, start)
                self._find("unclosed", f"the value of {key[1]} is not closed", start, stop)
                self.truncated |= stop >= end
            out.append((key[1], start, stop))
            pos = max(stop, key.end())

    def _computation_header(self, start: int, end: int) -> int:
        """A computation's header in any layout; `start` where it is none."""
        text = self.text
        found = _COMPUTATION.match(text, start)
        if found is None:
            return start
        i = skip_blank(text, found.end())
        if text.startswith("(", i):
            close = match_close(text, i, self._limit(start))
            if close < 0:
                self.wasted += -close - start
                return start
            i = skip_blank(text, close)
            if not text.startswith("->", i):
                return start
            result = shape_end(text, skip_blank(text, i + 2), self._limit(start))
            if result < 0:
                return start
            i = skip_blank(text, result)
        if not text.startswith("{", i):
            return start
        self._open(found.span(2), start, i + 1, entry=found[1] is not None)
        return i + 1

    def _add(self, part: InstructionText, end: int) -> int:
        """Take an instruction that was read by hand, and the bodies written inside it."""
        text = self.text
        for code, message, start, stop in part.problems:
            self._find(code, message, start, stop)
            self.truncated |= stop >= len(text)
        shape = text[slice(*part.shape)] if part.shape is not None else ""
        opcode = text[slice(*part.opcode)] if part.opcode is not None else ""
        operands = part.operands or (part.end, part.end)
        opcode_start = part.opcode[0] if part.opcode is not None else part.end
        shape_start = part.shape[0] if part.shape is not None else -1
        row = self._add_row(
            (part.start, part.end, *part.name, shape_start, opcode_start, *operands),
            shape, opcode, part.is_root, [r.name for r in part.operand_references(text)],
        )  # fmt: skip
        bodies: list[tuple[str, Span]] = []
        for attribute in part.attributes:
            start, stop = attribute.value
            if INLINE_BODY.match(text, attribute.key_span[0], stop) and text[stop - 1] == "}":
                bodies.append((attribute.key, (start, stop)))
        for reference in part.attribute_references(text):
            if reference.attribute != "control-predecessors":
                self.call_rows.append(row)
                self.call_names.append(reference.name)
        for key, (start, stop) in bodies:
            self._inline(key, start, stop, row)
        return max(part.end, part.start + 1) if part.end <= end else end

    def _add_row(self, offsets: tuple[int, ...], shape: str, opcode: str, root: bool, operands: Sequence[str]) -> int:
        """Take one instruction: the offsets in the order of the columns, what they hold, the operands' names."""
        if not self.open:
            self._implicit(offsets[0])
        self.singles.append((*offsets, self.shape_ids[shape], self.opcode_ids[opcode], int(root)))
        self.resolver.add_one(self.text[offsets[2] : offsets[3]], operands)
        self.rows += 1
        return self.rows - 1

    def _take_singles(self) -> None:
        """Bring the rows that were read one by one into the columns."""
        if self.singles:
            table = np.array(self.singles, np.int64).T
            offsets = [column.astype(self.kind) for column in table[:8]]
            self.columns.append((*offsets, table[8].astype(np.int32), table[9].astype(np.int32), table[10] > 0))
            self.singles.clear()

    def _inline(self, key: str, start: int, stop: int, row: int) -> None:
        """The body of a computation written in place of its name."""
        self.has_inline = True
        self._end_run()
        number = len(self.computations)
        name = self.text.find(key, max(0, start - len(key) - 8), start)
        self.computations.append(_Computation((name, name + len(key)), start, start + 1, False, [], stop, True))
        self.open.append(number)
        self.run_begin = self.rows
        self.call_rows.append(row)
        self.call_names.append(f"\0{number}")
        depth = len(self.open)
        self.run(start + 1, stop - 1)
        while len(self.open) > depth - 1:
            self._end_run()
            self.open.pop()
        self.run_begin = self.rows

    def _skip(self, start: int, end: int) -> int:
        """Pass over what nothing understands, up to where reading can start again; one finding for all of it."""
        stop = line_end(self.text, start)
        found = _ANCHOR_IN_LINE.search(self.text, start, min(stop, end))
        if found is None:
            found = _ANCHOR.search(self.text, min(stop + 1, end), end)
        inside = self.text.find("HloModule ", start + 1, stop)
        if not self.open and not self.header[1] and inside >= 0:
            self._find("prefix", "text before the module", start, inside, "warning")
            return inside
        resume = found.start() if found is not None else end
        shown = self.text[start : min(stop, start + 24)].split("\n")[0]
        where = "an instruction" if self.open else "a computation"
        self._find("syntax", f"expected {where}, got {shown!r}", start, max(start + 1, min(stop, resume)))
        self.truncated |= found is None and resume >= len(self.text)
        return max(resume, start + 1)

    # ---- computations
    def _open(self, name: Span, start: int, body: int, *, entry: bool) -> None:
        if self.open:
            at = self.computations[self.open[-1]].name
            self._find("unclosed", "the computation before this one is not closed", *name,
                       related=((*at, "it begins here"),))  # fmt: skip
            self._close_quietly(start)
        self.run_begin = self.rows
        self.open.append(len(self.computations))
        self.computations.append(_Computation(name, start, body, entry, []))

    def _implicit(self, start: int) -> None:
        """Instructions outside any computation are kept in one without a name."""
        if not self.open:
            self._find("outside", "an instruction outside any computation", start, line_end(self.text, start))
            self.run_begin = self.rows
            self.open.append(len(self.computations))
            self.computations.append(_Computation((start, start), start, start, False, []))

    def _end_run(self) -> None:
        if self.open and self.rows > self.run_begin:
            self.computations[self.open[-1]].runs.append((self.run_begin, self.rows))
        self.run_begin = self.rows

    def _close_quietly(self, stop: int) -> None:
        self._end_run()
        number = self.open.pop()
        self.computations[number].stop = stop
        self.closed.append(number)

    def _close(self, stop: int, start: int) -> None:
        if not self.open or self.computations[self.open[-1]].inline:
            at = skip_blank(self.text, start)
            self._find("syntax", "'}' closes nothing", at, at + 1)
            return
        self._close_quietly(stop)

    # ---- operands and calls
    def _add_calls(self, row: int, attributes: str) -> None:
        for value in CALLS.findall(attributes):
            if not value:
                continue
            for name in value.strip("{}").split(","):
                word = name.strip().lstrip("%")
                if word:
                    self.call_rows.append(row)
                    self.call_names.append(word)

    def _flush(self) -> None:
        """Resolve the operands of the computations that have ended, so that their names can be forgotten."""
        if self.closed and not self.has_inline:
            self.resolver.resolve([run for number in self.closed for run in self.computations[number].runs])
            self.closed.clear()

    def _find(
        self,
        code: str,
        message: str,
        start: int,
        end: int,
        severity: Severity = "error",
        related: tuple[tuple[int, int, str], ...] = (),
    ) -> None:
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(Finding(code, message, start, end, severity, related))

    # ---- the end
    def finish(self) -> Columns:
        """Close what is open, resolve what is left and put the columns together."""
        if self.open:
            self.truncated = True
            at = self.computations[self.open[0]].name
            if at[1] > at[0]:
                self._find("truncated", "the text ends inside this computation", *at)
        while self.open:
            self._close_quietly(len(self.text))
        self._take_singles()
        if self.columns:
            columns = [np.concatenate(parts) for parts in zip(*self.columns, strict=True)]
        else:
            columns = [np.zeros(0, self.kind) for _ in range(8)]
            columns += [np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, bool)]
        self.columns.clear()
        if self.has_inline:
            columns = self._sort_by_computation(columns)
        self._flush()
        operand_rows, operands = self.resolver.finish()
        call_rows, calls, undefined_calls = self._calls(len(columns[0]))
        begins = np.array([c.runs[0][0] if c.runs else 0 for c in self.computations], np.int32)
        ends = np.array([c.runs[0][1] if c.runs else 0 for c in self.computations], np.int32)
        # A computation without instructions sits between its neighbours.
        if len(begins):
            empty = begins == ends
            begins[empty] = ends[empty] = np.concatenate(([0], np.maximum.accumulate(ends)[:-1]))[empty]
        offsets = {
            "computation_starts": [c.start for c in self.computations],
            "computation_stops": [c.stop for c in self.computations],
            "computation_names": [c.name[0] for c in self.computations],
            "computation_name_ends": [c.name[1] for c in self.computations],
            "computation_bodies": [c.body for c in self.computations],
        }
        return Columns(
            starts=columns[0],
            ends=columns[1],
            names=columns[2],
            name_ends=columns[3],
            shapes=columns[4],
            opcode_starts=columns[5],
            operand_starts=columns[6],
            operand_ends=columns[7],
            shape_ids=columns[8],
            opcode_ids=columns[9],
            roots=columns[10],
            operand_rows=operand_rows,
            operands=operands,
            call_rows=call_rows,
            calls=calls,
            computation_begins=begins,
            computation_ends=ends,
            **{key: np.array(values, self.kind) for key, values in offsets.items()},
            entry=self._entry(),
            shape_texts=list(self.shape_ids),
            opcode_names=list(self.opcode_ids),
            header=self.header,
            module_name=self.module_name,
            attributes=self.attributes,
            tables=self.tables,
            findings=self._all_findings(columns, undefined_calls),
            truncated=self.truncated,
        )

    def _entry(self) -> int:
        marked = [k for k, c in enumerate(self.computations) if c.entry]
        if len(marked) > 1:
            first = self.computations[marked[0]].name
            for k in marked[1:]:
                self._find("duplicate", "a second ENTRY", *self.computations[k].name,
                           related=((*first, "the first is here"),))  # fmt: skip
        if marked:
            return marked[0]
        return next((k for k in range(len(self.computations) - 1, -1, -1) if not self.computations[k].inline), -1)

    def _calls(self, n: int) -> tuple[np.ndarray, np.ndarray, list[tuple[int, str]]]:
        """CSR of called computations, and the first call of each that the text does not define."""
        table = {self.text[slice(*c.name)]: k for k, c in enumerate(self.computations) if not c.inline}
        numbers = [int(name[1:]) if name[0] == "\0" else table.get(name, -1) for name in self.call_names]
        undefined: dict[str, int] = {}
        if -1 in numbers:
            for row, name, number in zip(self.call_rows, self.call_names, numbers, strict=True):
                if number < 0 and len(undefined) < _MAX_FINDINGS:
                    undefined.setdefault(name, row)
        rows = np.array(self.call_rows, np.int64)
        order = np.argsort(rows, kind="stable")
        pointers = np.zeros(n + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=n), out=pointers[1:])
        return pointers, np.array(numbers, np.int32)[order], [(row, name) for name, row in undefined.items()]

    def _sort_by_computation(self, columns: list[np.ndarray]) -> list[np.ndarray]:
        """Bring the rows of each computation together where bodies were written inside instructions."""
        owner = np.zeros(self.rows, np.int32)
        for number, computation in enumerate(self.computations):
            for begin, end in computation.runs:
                owner[begin:end] = number
        order = np.argsort(owner, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        self.call_rows = back[np.array(self.call_rows, np.int64)].tolist() if self.call_rows else []
        self.resolver.reorder(order)
        sizes = np.bincount(owner, minlength=len(self.computations))
        ends = np.cumsum(sizes).tolist()
        for number, computation in enumerate(self.computations):
            if computation.runs:
                computation.runs = [(ends[number] - int(sizes[number]), ends[number])]
        self.closed = list(range(len(self.computations)))
        self.has_inline = False
        return [column[order] for column in columns]

    def _all_findings(self, columns: list[np.ndarray], undefined_calls: list[tuple[int, str]]) -> list[Finding]:
        """The findings, those of names with their spans; a text that is cut off may lack what it names."""
        names, name_ends = columns[2], columns[3]
        out = self.findings
        for row, first in self.resolver.duplicates:
            span, at = (int(names[row]), int(name_ends[row])), (int(names[first]), int(name_ends[first]))
            related = ((*at, "the first definition is here"),)
            out.append(Finding("duplicate", f"{self.text[slice(*span)]} is defined twice", *span, related=related))
        if self.truncated:
            return out
        ends = {c.runs[0][0]: c.stop for c in self.computations if c.runs}
        for begin, word in self.resolver.undefined:
            span = self._where(word, int(columns[0][begin]), ends.get(begin, len(self.text)))
            out.append(Finding("undefined", f"instruction {word} is not defined", *span))
        for row, word in undefined_calls:
            span = self._where(word, int(columns[7][row]), int(columns[1][row]))
            out.append(Finding("undefined", f"computation {word} is not defined", *span))
        return out

    def _where(self, word: str, start: int, end: int) -> Span:
        found = re.compile(rf"(?<![\w.\-]){re.escape(word)}(?![\w.\-])").search(self.text, start, end)
        return found.span() if found is not None else (start, start)


def _by_word(
    table: dict[str, int], ids: np.ndarray, words: Sequence[str], function: Callable[[str], int], kind: type
) -> np.ndarray:
    """A property of each word of a column, computed once for each distinct word where these are the fewer."""
    if len(table) > len(words):
        return np.fromiter(map(function, words), kind, len(words))
    return np.fromiter(map(function, table), kind, len(table))[ids]


_HEADER_STRUCTURE = re.compile(r'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"|[{}]', re.S)


def _header_value_end(text: str, pos: int) -> int:
    """The end of a header attribute: its strings may hold whole modules, over many lines; -1 where it is not closed."""
    end = value_end(text, pos, len(text))
    if end >= 0 or not text.startswith("{", pos):
        return end
    depth = 0
    for found in _HEADER_STRUCTURE.finditer(text, pos):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return -1


def build(text: str) -> Columns:
    """Read a whole text. Raises nothing, whatever the text is."""
    # Rows come as millions of short-lived tuples without cycles: letting the collector look at them costs a quarter.
    collecting = gc.isenabled()
    gc.disable()
    try:
        builder = _Builder(text)
        builder.run(0, len(text))
        return builder.finish()
    finally:
        if collecting:
            gc.enable()
