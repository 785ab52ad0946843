"""Fills the columns of a ModuleIndex from text: the pattern takes runs of ordinary lines, a hand-written scan the rest.

The text is cut into blocks; in each block one ``findall`` gives the parts of every row, whose lengths add up to their
offsets. The first row that the pattern does not know hands over to `_Builder._step`, which reads one thing by hand and
hands back. Rows near a block's end are read again with the next block, so that no value is cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.text.instruction_text import (
    CALLS,
    COMMENT,
    FIXED_CHARACTERS,
    HEADER_PARTS,
    INLINE_BODY,
    INLINE_HINT,
    MAX_ROW,
    OPERAND_SHAPE,
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
    string_end,
    value_end,
)

if TYPE_CHECKING:
    from hloscope.core.errors import Severity

_FIRST_BLOCK = 1 << 12
_LAST_BLOCK = 1 << 20
_MAX_FINDINGS = 500
_NO_OPERANDS = frozenset(("constant", "parameter", "iota"))
_CALLS_NOTHING = frozenset(row.name for row in OPCODES.values() if row.calls == "none")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_TABLE = re.compile(r"(FileNames|FunctionNames|FileLocations|StackFrames)[ \t\r]*+(?:\n|\Z)")
_TABLE_ROWS = re.compile(r"(?>(?:[ \t]*+\d++[ \t]++(?:\"[^\"\n]*+[^\n]*+|\{[^\n]*+)(?:\n|\Z))*)")
_MODULE = re.compile(r"HloModule\b[ \t]*+%?+([A-Za-z0-9_.\-]++)?+:?+")
_COMPUTATION = re.compile(r"(ENTRY\b\s*+)?+%?+([A-Za-z_][A-Za-z0-9_.\-]*+)")
_KEY = re.compile(r"([A-Za-z0-9_.\-]++)[ \t]*+=")
_CLOSE_TAIL = re.compile(r"\}(?:\s*+,\s*+execution_thread=\"[^\"\n]*+\"?+)?+(?:[ \t]*+//[^\n\r]*+)?+")
# Where reading can start again after something that was not understood.
_ANCHOR = re.compile(
    r"^\s*+(?:ROOT\s++)?+%?+[A-Za-z_][A-Za-z0-9_.\-]*+ ?+=(?:[ \t]*+[a-z(]|[ \t]*+$)"
    r"|^(?:\S.*)?HloModule\b|^\s*+ENTRY\b|^\s*+%?+[A-Za-z_][A-Za-z0-9_.\-]*+\s*+(?:\([^\n]*->[^\n]*)?+\{\s*+$|^\s*+\}"
    r"|^(?:FileNames|FunctionNames|FileLocations|StackFrames)[ \t\r]*+$",
    re.M,
)


@dataclass(slots=True)
class Finding:
    """Something that is wrong in a text, by offsets."""

    code: str
    message: str
    start: int
    end: int
    severity: Severity = "error"
    related: tuple[tuple[int, int, str], ...] = ()


@dataclass(slots=True)
class Columns:
    """What the builder made; the index takes it over."""

    starts: np.ndarray
    ends: np.ndarray
    names: np.ndarray
    name_ends: np.ndarray
    shapes: np.ndarray
    """Start of the shape; -1 where the text has none."""
    opcode_starts: np.ndarray
    operand_starts: np.ndarray
    operand_ends: np.ndarray
    shape_ids: np.ndarray
    opcode_ids: np.ndarray
    roots: np.ndarray
    operand_rows: np.ndarray
    operands: np.ndarray
    call_rows: np.ndarray
    calls: np.ndarray
    computation_begins: np.ndarray
    computation_ends: np.ndarray
    computation_starts: np.ndarray
    computation_stops: np.ndarray
    computation_names: np.ndarray
    computation_name_ends: np.ndarray
    computation_bodies: np.ndarray
    entry: int
    shape_texts: list[str]
    opcode_names: list[str]
    header: Span
    module_name: Span
    attributes: list[tuple[str, int, int]]
    tables: dict[str, Span]
    findings: list[Finding]
    truncated: bool


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
        self.rows = 0
        self.shape_ids: dict[str, int] = {}
        self.opcode_ids: dict[str, int] = {}
        self.computations: list[_Computation] = []
        self.open: list[int] = []
        self.run_begin = 0
        self.has_inline = False
        # Names and operand names of the rows whose computation is still open.
        self.names: list[str] = []
        self.operands: list[str] = []
        self.counts: list[np.ndarray] = []
        self.pending_from = 0
        self.resolved: list[np.ndarray] = []
        self.all_counts: list[np.ndarray] = []
        self.unflushed: list[int] = []
        self.call_rows: list[int] = []
        self.call_names: list[str] = []
        self.undefined: list[tuple[int, str]] = []
        self.missing_operands = 0

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
            next_pos, stuck = self._take(rows, pos) if rows else (pos, True)
            self._flush()
            if next_pos > pos:
                burst = 1
            pos = next_pos
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
        cut, stuck = len(rows), False
        others = [k for k, row in enumerate(rows) if not row[1]]
        for k in others:
            if rows[k][8] and not rows[k][8].isspace():
                cut, stuck = k, True
                break
        if not cut:
            return pos, True
        if stuck:
            rows = rows[:cut]
            others = [k for k in others if k < cut]
        lead, names, shapes, opcodes, operands, attributes, closes, headers, blanks = zip(*rows, strict=True)
        callers = [k for k, word in enumerate(opcodes) if word not in _CALLS_NOTHING and word]
        for k in callers:
            if INLINE_HINT.search(attributes[k]) and INLINE_BODY.search(attributes[k]):
                return self._take(rows[:k], pos)[0] if k else pos, True
        n = len(rows)
        lengths = [np.fromiter(map(len, column), np.int64, n) for column in (lead, names, shapes, opcodes, operands)]
        attribute_lengths = np.fromiter(map(len, attributes), np.int64, n)
        total = sum(lengths, attribute_lengths) + FIXED_CHARACTERS
        if others:
            at = np.array(others)
            total[at] = [len(closes[k]) + len(headers[k]) + len(blanks[k]) for k in others]
        stops = np.cumsum(total) + pos
        begins = stops - total
        end = int(stops[-1])

        if self.open == [] and (not others or others[0] != 0 or not headers[0]):
            # Rows before any header: they belong to no computation unless all of them are blank.
            first = next((k for k in range(n) if headers[k] or names[k]), n)
            if first < n and names[first]:
                start = int(begins[first]) + len(lead[first])
                self._implicit(start)
        keep = np.ones(n, bool)
        keep[others] = False
        name_starts = begins + lengths[0]
        name_ends = name_starts + lengths[1]
        shape_starts = name_ends + 3
        opcode_starts = shape_starts + lengths[2] + 1
        operand_starts = opcode_starts + lengths[3] + 1
        operand_ends = operand_starts + lengths[4]
        marks = {word: (len(word.lstrip()), "R" in word) for word in set(lead)}
        widths = np.fromiter((marks[word][0] for word in lead), np.int64, n)
        roots = np.fromiter((marks[word][1] for word in lead), bool, n)
        starts = name_starts - widths
        shape_ids, opcode_ids = self.shape_ids, self.opcode_ids
        for word in set(shapes).difference(shape_ids):
            shape_ids[word] = len(shape_ids)
        for word in set(opcodes).difference(opcode_ids):
            opcode_ids[word] = len(opcode_ids)
        ids = np.fromiter(map(shape_ids.__getitem__, shapes), np.int32, n)
        codes = np.fromiter(map(opcode_ids.__getitem__, opcodes), np.int16, n)
        kind = self.kind
        self.columns.append(
            (
                starts[keep].astype(kind), stops[keep].astype(kind), name_starts[keep].astype(kind),
                name_ends[keep].astype(kind), shape_starts[keep].astype(kind), opcode_starts[keep].astype(kind),
                operand_starts[keep].astype(kind), operand_ends[keep].astype(kind), ids[keep], codes[keep], roots[keep],
            )
        )  # fmt: skip
        if others:
            skip = set(others)
            self.names.extend([name for name in names if name])
            texts = ["" if opcodes[k] in _NO_OPERANDS else operands[k] for k in range(n) if k not in skip]
        else:
            self.names.extend(names)
            texts = ["" if word in _NO_OPERANDS else text for word, text in zip(opcodes, operands, strict=True)]
        self._add_operands(texts)

        # Calls, then headers and ends, in order; `before` counts the rows that are not instructions.
        row_of = np.cumsum(keep) - 1 + self.rows
        for k in callers:
            if attributes[k]:
                self._add_calls(int(row_of[k]), attributes[k])
        base = self.rows
        for before, k in enumerate(others):
            self.rows = base + k - before
            if closes[k]:
                self._close(int(stops[k]), int(begins[k]))
            elif headers[k]:
                start = int(begins[k])
                start += len(headers[k]) - len(headers[k].lstrip())
                found = HEADER_PARTS.match(self.text, start)
                if found is not None:
                    self._open(found.span(2), start, int(stops[k]), entry=found[1] is not None)
            elif blanks[k]:
                continue
            if not self.open and k + 1 < n and names[k + 1]:
                self._implicit(int(begins[k + 1]) + len(lead[k + 1]))
        self.rows = base + n - len(others)
        return end, stuck

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
        if row is not None and row.end() == start + MAX_ROW:
            row = None
        if row is not None:
            if row[2] is None:
                self._take([tuple(group or "" for group in row.groups()) + ("",)], start)
                return row.end()
            if not INLINE_BODY.search(row[6]):
                self._take([tuple(group or "" for group in row.groups()) + ("",)], start)
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
        instruction = scan_instruction(text, start)
        if instruction is not None:
            return self._add(instruction, end)
        opened = self._computation_header(start, end)
        if opened > start:
            return opened
        return self._skip(start, end)

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
            close = match_close(text, i)
            if close < 0:
                return start
            i = skip_blank(text, close)
            if not text.startswith("->", i):
                return start
            result = shape_end(text, skip_blank(text, i + 2))
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
        if not self.open:
            self._implicit(part.start)
        for code, message, start, stop in part.problems:
            self._find(code, message, start, stop)
            self.truncated |= stop >= len(text)
        shape = text[slice(*part.shape)] if part.shape is not None else ""
        opcode = text[slice(*part.opcode)] if part.opcode is not None else ""
        operands = part.operands or (part.end, part.end)
        opcode_start = part.opcode[0] if part.opcode is not None else part.end
        shape_start = part.shape[0] if part.shape is not None else -1
        shape_id = self.shape_ids.setdefault(shape, len(self.shape_ids))
        opcode_id = self.opcode_ids.setdefault(opcode, len(self.opcode_ids))
        kind = self.kind
        offsets = (part.start, part.end, *part.name, shape_start, opcode_start, *operands)
        self.columns.append(
            (
                *(np.array([offset], kind) for offset in offsets),
                np.array([shape_id], np.int32), np.array([opcode_id], np.int16), np.array([part.is_root]),
            )
        )  # fmt: skip
        self.names.append(text[slice(*part.name)])
        references = [r.name for r in part.operand_references(text)]
        self.operands.extend(references)
        self.counts.append(np.array([len(references)], np.int32))
        row = self.rows
        self.rows += 1
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
        self.unflushed.append(number)

    def _close(self, stop: int, start: int) -> None:
        if not self.open or self.computations[self.open[-1]].inline:
            at = skip_blank(self.text, start)
            self._find("syntax", "'}' closes nothing", at, at + 1)
            return
        self._close_quietly(stop)

    # ---- operands and calls
    def _add_operands(self, texts: list[str]) -> None:
        """Names out of operand lists, many at once."""
        joined = "\n".join(texts)
        if "/*" in joined:
            joined = COMMENT.sub("", joined)
        if "[" in joined:
            joined = OPERAND_SHAPE.sub("", joined)
        if "%" in joined:
            joined = joined.replace("%", "")
        rows = joined.split("\n")
        if "(" in joined or '"' in joined or len(rows) != len(texts):
            rows = [", ".join(t[a:b] for a, b in operand_names(t, 0, len(t))) for t in texts]
            joined = "\n".join(rows)
        counts = np.fromiter(map(str.count, rows, repeat(", ")), np.int32, len(rows))
        counts += np.fromiter(map(bool, rows), np.int32, len(rows))
        flat = joined.replace("\n", ", ").split(", ")
        if "" in flat:
            flat = [name for name in flat if name]
        if len(flat) != int(counts.sum()):
            parts = [[name for name in row.split(", ") if name] for row in rows]
            counts = np.fromiter(map(len, parts), np.int32, len(rows))
            flat = [name for part in parts for name in part]
        self.operands.extend(flat)
        self.counts.append(counts)

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
        if not self.unflushed or self.has_inline or len(self.open) > 1:
            return
        counts = np.concatenate(self.counts) if self.counts else np.zeros(0, np.int32)
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        base, done = self.pending_from, self.pending_from
        indices: list[int] = []
        bounds: list[tuple[int, int]] = []
        for number in self.unflushed:
            runs = self.computations[number].runs
            bounds.append(runs[0] if runs else (done, done))
            done = max(done, bounds[-1][1])
        edges = offsets[np.array(bounds).reshape(-1) - base].tolist()
        names, operands = self.names, self.operands
        for k, (begin, end) in enumerate(bounds):
            if begin == end:
                continue
            self._resolve(names[begin - base : end - base], begin, operands[edges[2 * k] : edges[2 * k + 1]], indices)
        self.resolved.append(np.array(indices, np.int32))
        taken = int(offsets[done - base])
        self.all_counts.append(counts[: done - base])
        self.names = names[done - base :]
        self.operands = operands[taken:]
        self.counts = [counts[done - base :]]
        self.pending_from = done
        self.unflushed.clear()

    def _resolve(self, names: list[str], begin: int, operands: list[str], out: list[int]) -> None:
        """Append the row of each operand name, -1 where the computation does not define it."""
        table = dict(zip(names, range(begin, begin + len(names)), strict=True))
        if len(table) != len(names):
            self._duplicates(names, begin)
        found = list(map(table.get, operands, repeat(-1)))
        if -1 in found:
            for k, row in enumerate(found):
                if row != -1:
                    continue
                # `t#0` picks a tuple's element, `a:` is an older way to write a name.
                word = operands[k].strip().split("#")[0].rstrip(": \t\r")
                found[k] = table.get(word, -1)
                if found[k] == -1 and len(self.undefined) < _MAX_FINDINGS:
                    self.undefined.append((begin, word))
        out.extend(found)

    def _duplicates(self, names: list[str], begin: int) -> None:
        seen: dict[str, int] = {}
        for k, name in enumerate(names):
            if name in seen and len(self.findings) < _MAX_FINDINGS:
                self.findings.append(Finding("duplicate", f"{name} is defined twice", begin + k, seen[name], "error"))
            seen.setdefault(name, begin + k)

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
        columns = [np.concatenate(parts) for parts in zip(*self.columns, strict=True)] if self.columns else None
        if columns is None:
            kind = self.kind
            columns = [np.zeros(0, kind) for _ in range(8)]
            columns += [np.zeros(0, np.int32), np.zeros(0, np.int16), np.zeros(0, bool)]
        self.columns.clear()
        if self.has_inline:
            columns = self._sort_by_computation(columns)
        self._flush()
        counts = np.concatenate([np.zeros(0, np.int32), *self.all_counts])
        operand_rows = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=operand_rows[1:])
        operands = np.concatenate([np.zeros(0, np.int32), *self.resolved])
        calls = self._calls(columns[0])
        begins = np.array([c.runs[0][0] if c.runs else 0 for c in self.computations], np.int32)
        ends = np.array([c.runs[0][1] if c.runs else 0 for c in self.computations], np.int32)
        # A computation without instructions sits between its neighbours.
        if len(begins):
            empty = begins == ends
            begins[empty] = ends[empty] = np.concatenate(([0], np.maximum.accumulate(ends)[:-1]))[empty]
        kind = self.kind
        return Columns(
            *columns, operand_rows, operands, *calls, begins, ends,
            np.array([c.start for c in self.computations], kind), np.array([c.stop for c in self.computations], kind),
            np.array([c.name[0] for c in self.computations], kind),
            np.array([c.name[1] for c in self.computations], kind),
            np.array([c.body for c in self.computations], kind),
            self._entry(), list(self.shape_ids), list(self.opcode_ids), self.header, self.module_name, self.attributes,
            self.tables, self._spans_of_names(columns), self.truncated,
        )  # fmt: skip

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

    def _calls(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        table = {self.text[slice(*c.name)]: k for k, c in enumerate(self.computations) if not c.inline}
        rows = np.array(self.call_rows, np.int64)
        numbers = [int(n[1:]) if n[0] == "\0" else table.get(n, -1) for n in self.call_names]
        if not self.truncated:
            seen: set[str] = set()
            for k, number in enumerate(numbers):
                name = self.call_names[k]
                if number < 0 and name not in seen and len(seen) < _MAX_FINDINGS:
                    seen.add(name)
                    self.undefined.append((-1 - self.call_rows[k], name))
        order = np.argsort(rows, kind="stable")
        pointers = np.zeros(len(starts) + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=len(starts)), out=pointers[1:])
        return pointers, np.array(numbers, np.int32)[order]

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
        base = self.pending_from
        counts = np.concatenate(self.counts)
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        names, operands = self.names, self.operands
        pending = [int(row) - base for row in order if row >= base]
        self.names = [names[row] for row in pending]
        self.operands = [word for row in pending for word in operands[offsets[row] : offsets[row + 1]]]
        self.counts = [counts[pending]]
        sizes = np.bincount(owner, minlength=len(self.computations))
        ends = np.cumsum(sizes)
        for number, computation in enumerate(self.computations):
            if computation.runs:
                computation.runs = [(int(ends[number] - sizes[number]), int(ends[number]))]
        flushed = {k for k, c in enumerate(self.computations) if c.runs and c.runs[0][1] <= base}
        self.unflushed = [k for k, c in enumerate(self.computations) if c.runs and k not in flushed]
        self.has_inline = False
        return [column[order] for column in columns]

    def _spans_of_names(self, columns: list[np.ndarray]) -> list[Finding]:
        """Give findings that were noted by row their offsets; undefined names are left out of a text that is cut off."""
        text, names, name_ends = self.text, columns[2], columns[3]
        out: list[Finding] = []
        for f in self.findings:
            if f.code == "duplicate" and f.message.endswith("is defined twice"):
                row, first = f.start, f.end
                related = ((int(names[first]), int(name_ends[first]), "the first definition is here"),)
                f = Finding(f.code, f.message, int(names[row]), int(name_ends[row]), f.severity, related)
            out.append(f)
        if self.truncated:
            return out
        for begin, word in self.undefined:
            row = -1 - begin if begin < 0 else begin
            start, end = int(columns[0][row]), int(columns[1][row])
            if begin >= 0:
                owner = next((c for c in self.computations if c.runs and c.runs[0][0] <= begin < c.runs[0][1]), None)
                end = owner.stop if owner is not None else end
            pattern = re.compile(rf"(?<![\w.\-]){re.escape(word)}(?![\w.\-])")
            at = pattern.search(text, start, end)
            span = at.span() if at is not None else (start, start)
            what = "computation" if begin < 0 else "instruction"
            out.append(Finding("undefined", f"{what} {word} is not defined", *span))
        return out


def _header_value_end(text: str, pos: int) -> int:
    """The end of a header attribute: its strings may hold whole modules, over many lines; -1 where it is not closed."""
    if not text.startswith("{", pos):
        return value_end(text, pos)
    end = match_close(text, pos)
    if end >= 0:
        return end
    depth = 0
    for found in re.compile(r'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"|[{}]', re.S).finditer(text, pos):
        if found[0] == "{":
            depth += 1
        elif found[0] == "}":
            depth -= 1
            if depth == 0:
                return found.end()
    return -1


def build(text: str) -> Columns:
    """Read a whole text. Raises nothing, whatever the text is."""
    builder = _Builder(text)
    builder.run(0, len(text))
    return builder.finish()


__all__ = ["Columns", "Finding", "build", "string_end"]
