"""Fills the columns of a ModuleIndex from text: the pattern takes runs of ordinary lines, a hand-written scan the rest.

The text is cut into blocks; in each block one ``findall`` gives the parts of every row, whose lengths add up to their
offsets. The first row that the pattern does not know hands over to `_Builder._step`, which reads one thing by hand and
hands back. Rows near a block's end are read again with the next block, so that no value is cut.
"""

from __future__ import annotations

import gc
import re
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.text.index_columns import Columns
from hloscope.core.text.index_parts import IndexedComputation, IndexParts
from hloscope.core.text.instruction_text import (
    FIXED_CHARACTERS,
    HEADER_PARTS,
    INLINE_BODY,
    INLINE_HINT,
    MAX_ROW,
    NAME_LIST,
    ROW,
    ROWS,
    TYPED_ROW,
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
from hloscope.core.text.operand_resolver import words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Row = tuple[str, ...]
"""What `ROWS` finds: the groups of an instruction, a computation's end, its header, or other text."""
_FIRST_BLOCK = 1 << 12
_LAST_BLOCK = 1 << 18
_FEW = 32
"""Rows up to which each is taken on its own."""
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


class _Builder(IndexParts):
    """Reads a text into its parts."""

    # ---- the loop
    def run(self, pos: int, end: int, watch: Callable[[int, int], None] | None = None) -> int:
        """Read rows in [pos, end); the position after the last thing read is returned, and told to `watch` before."""
        text, block = self.text, _FIRST_BLOCK
        while pos < end:
            stop = min(pos + block, end)
            rows = ROWS.findall(text, pos, stop)
            if stop < end:
                rows.pop()
            before = pos
            pos, used = self._take_all(rows, pos, end) if rows else (self._step(pos, end), True)
            self._flush()
            if watch is not None:
                watch(pos, end)
            # Where what is read by hand ends inside rows, these were found in vain: fewer the next time.
            block = min(block * 4, _LAST_BLOCK) if used and pos > before else _FIRST_BLOCK
        return pos

    def _take_all(self, rows: list[Row], pos: int, end: int) -> tuple[int, bool]:
        """Take rows, those by hand that the pattern does not know; the position reached, and whether they were all of
        use."""
        unknown = [k for k, row in enumerate(rows) if row[8] and not row[8].isspace()]
        unknown.append(len(rows))
        k = 0
        for at in unknown:
            while k < at or k == at < len(rows):
                known = _before(rows, k, at) if at < len(rows) and rows[at][8].startswith(",") else at
                if k < known:
                    pos, taken = self._take(rows[k:known], pos)
                    k += taken
                if k < len(rows):
                    pos, k = self._by_hand(rows, k, pos, end, tried=k == at)
                    if k < 0:
                        return pos, False
        return pos, True

    def _by_hand(self, rows: list[Row], k: int, pos: int, end: int, *, tried: bool = False) -> tuple[int, int]:
        """Read by hand from row `k` at `pos` until a row begins there (blanks aside): the position and number of that
        row, the number being -1 where they do not meet again."""
        text, start = self.text, pos
        reached = pos
        while True:
            reached = self._step(reached, end, tried=tried)
            tried = False
            while k < len(rows) and (stop := start + _length(rows[k])) <= reached:
                start, k = stop, k + 1
            if k == len(rows):
                return max(start, reached), k if start == reached else -1
            if start == reached or text[start:reached].isspace():
                return start, k

    def _take(self, rows: list[Row], pos: int) -> tuple[int, int]:
        """Take rows that the pattern knows, up to the first with a computation written out in it; the position reached
        and their number."""
        if len(rows) < _FEW:
            for k, row in enumerate(rows):
                stop = self._take_one(row, pos)
                if stop < 0:
                    return pos, k
                pos = stop
            return pos, len(rows)
        self._take_singles()
        columns = list(zip(*rows, strict=True))
        n = len(rows)
        lead, names, shapes, opcodes, operands, attributes, closes, headers, blanks = columns
        if not any(names) and not any(closes) and not any(headers):
            return pos + sum(map(len, blanks)), n
        codes = np.fromiter(map(self.opcode_ids.__getitem__, opcodes), np.int32, n)
        calls = _by_word(self.opcode_ids, codes, opcodes, lambda word: word not in _CALLS_NOTHING and word != "", bool)
        callers = np.flatnonzero(calls).tolist()
        for k in callers:
            if INLINE_HINT.search(attributes[k]) and INLINE_BODY.search(attributes[k]):
                return self._take(rows[:k], pos) if k else (pos, 0)
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
        return int(stops[-1]), n

    def _take_one(self, row: Row, pos: int) -> int:
        """Take one row at `pos`: for a few, columns cost more than they save. The position after it; -1 where a
        computation is written out in it."""
        lead, name, shape, opcode, operands, attributes, close, header, blank = row
        if name:
            calls = attributes and opcode not in _CALLS_NOTHING
            if calls and INLINE_HINT.search(attributes) and INLINE_BODY.search(attributes):
                return -1
            begin = pos + len(lead)
            stop = begin + len(name)
            shape_start = stop + 3
            opcode_start = shape_start + len(shape) + 1
            operand_start = opcode_start + len(opcode) + 1
            operand_end = operand_start + len(operands)
            end = operand_end + 1 + len(attributes)
            start = begin - len(lead.lstrip())
            words = () if opcode in _NO_OPERANDS or not operands else words_of(operands)
            number = self._add_row(
                (start, end, begin, stop, shape_start, opcode_start, operand_start, operand_end),
                shape, opcode, "R" in lead, words,
            )  # fmt: skip
            if calls:
                self._add_calls(number, attributes)
            return end
        if close:
            stop = pos + len(close)
            self._close(stop, pos)
            return stop
        if header:
            stop = pos + len(header)
            self._header_row(pos, stop)
            return stop
        return pos + len(blank)

    def _header_row(self, pos: int, stop: int) -> None:
        start = pos
        while self.text[start].isspace():
            start += 1
        found = HEADER_PARTS.match(self.text, start)
        if found is not None:
            self._open(found.span(2), start, stop, entry=found[1] is not None)

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
                self._header_row(int(begins[k]), int(stops[k]))
            if not self.open and k + 1 < n and keep[k + 1]:
                self._implicit(int(starts[k + 1]))
        self.rows = base + n - len(others)

    # ---- one thing by hand
    def _step(self, pos: int, end: int, *, tried: bool = False) -> int:
        """Read one thing at `pos`, whatever it is; the position after it, always greater than `pos`.

        `tried` where the pattern is known not to take what is there.
        """
        text = self.text
        start = skip_blank(text, pos)
        if start < end and text.startswith("/*", start):
            self._find("unclosed", "the comment is not closed", start, start + 2)
            self.truncated = True
            return end
        if start >= end:
            return end
        row = None if tried and start == pos else ROW.match(text, start, min(end, start + MAX_ROW))
        if row is not None and (row.end() == start + MAX_ROW or text.startswith(",", skip_blank(text, row.end()))):
            row = None
        if row is not None:
            stop = self._take_one((*(group or "" for group in row.groups()), ""), start)
            if stop >= 0:
                return stop
        if text.startswith("}", start):
            tail = _CLOSE_TAIL.match(text, start)
            stop = tail.end() if tail is not None else start + 1
            self._close(stop, start)
            return stop
        if not self.open or text.startswith("HloModule", start):
            top = self._top(start, end)
            if top > start:
                return top
        typed = TYPED_ROW.match(text, start, min(end, start + MAX_ROW))
        if typed is not None and (stop := self._typed(typed, start)) > start:
            return stop
        instruction = scan_instruction(text, start, self._limit(start))
        if instruction is not None:
            self.wasted += max(0, instruction.reached - instruction.end)
            return self._add(instruction, end)
        opened = self._computation_header(start, end)
        if opened > start:
            return opened
        return self._skip(start, end)

    def _typed(self, row: re.Match[str], start: int) -> int:
        """Take an instruction in an unusual form; the position after it, `start` where it is not to be taken so."""
        text, end = self.text, row.end()
        if end == start + MAX_ROW or text.startswith(",", skip_blank(text, end)):
            return start
        root, _, shape, opcode, operands, attributes = row.groups("")
        calls = attributes and opcode not in _CALLS_NOTHING
        if calls and INLINE_BODY.search(attributes):
            return start
        at = row.start
        words: Sequence[str] = ()
        if operands and opcode not in _NO_OPERANDS:
            if NAME_LIST.fullmatch(operands):
                words = operands.replace("%", "").split(", ")
            else:
                words = [text[a:b] for a, b in operand_names(text, *row.span(5))]
        number = self._add_row(
            (start, end, *row.span(2), at(3) if shape else -1, at(4), at(5), row.end(5)),
            shape, opcode, bool(root.strip("%")), words,
        )  # fmt: skip
        if calls:
            self._add_calls(number, attributes)
        return end

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

    def _inline(self, key: str, start: int, stop: int, row: int) -> None:
        """The body of a computation written in place of its name."""
        self.has_inline = True
        self._end_run()
        number = len(self.computations)
        name = self.text.find(key, max(0, start - len(key) - 8), start)
        self.computations.append(IndexedComputation((name, name + len(key)), start, start + 1, False, [], stop, True))
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


def _before(rows: list[Row], k: int, at: int) -> int:
    """The last instruction among the rows from `k` on before `at`, whose attributes go on in that row; else `at`."""
    return next((i for i in range(at - 1, k - 1, -1) if rows[i][1]), at)


def _length(row: Row) -> int:
    """Characters of a row."""
    return sum(map(len, row)) + (FIXED_CHARACTERS if row[1] else 0)


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


def build(text: str, watch: Callable[[int, int], None] | None = None) -> Columns:
    """Read a whole text. Raises nothing, whatever the text is. `watch` is given the characters done, and all."""
    # Rows come as millions of short-lived tuples without cycles: letting the collector look at them costs a quarter.
    collecting = gc.isenabled()
    gc.disable()
    try:
        builder = _Builder(text)
        builder.run(0, len(text), watch)
        return builder.finish()
    finally:
        if collecting:
            gc.enable()
