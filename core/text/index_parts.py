"""What is gathered of a text while it is read, and how it becomes the columns of an index."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.text.index_columns import Columns, Finding
from hloscope.core.text.instruction_text import CALLS, Span, line_end, skip_blank
from hloscope.core.text.operand_resolver import OperandResolver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.errors import Severity

_MAX_FINDINGS = 500
UNENDED = "the computation before this one is not closed"


@dataclass(slots=True)
class IndexedComputation:
    """A computation that was met in the text."""

    name: Span
    start: int
    body: int
    """Offset after the opening brace."""
    entry: bool
    runs: list[tuple[int, int]]
    stop: int = -1
    inline: bool = False


class IndexParts:
    """Rows, computations, calls and findings in text order; `finish` puts them together."""

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
        self.computations: list[IndexedComputation] = []
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

    # ---- instructions
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

    # ---- computations
    def _open(self, name: Span, start: int, body: int, *, entry: bool) -> None:
        if self.open:
            at = self.computations[self.open[-1]].name
            self._find("unclosed", UNENDED, *name,
                       related=((*at, "it begins here"),))  # fmt: skip
            self._close_quietly(start)
        self.run_begin = self.rows
        self.open.append(len(self.computations))
        self.computations.append(IndexedComputation(name, start, body, entry, []))

    def _implicit(self, start: int) -> None:
        """Instructions outside any computation are kept in one without a name."""
        if not self.open:
            self._find("outside", "an instruction outside any computation", start, line_end(self.text, start))
            self.run_begin = self.rows
            self.open.append(len(self.computations))
            self.computations.append(IndexedComputation((start, start), start, start, False, []))

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
        lost = self.truncated
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
            findings=self._all_findings(columns, undefined_calls, lost=lost),
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
        """CSR of called computations, and each call of one that the text does not define."""
        table = {self.text[slice(*c.name)]: k for k, c in enumerate(self.computations) if not c.inline}
        numbers = [int(name[1:]) if name[0] == "\0" else table.get(name, -1) for name in self.call_names]
        undefined: dict[tuple[int, str], None] = {}
        if -1 in numbers:
            for row, name, number in zip(self.call_rows, self.call_names, numbers, strict=True):
                if number < 0 and len(undefined) < _MAX_FINDINGS:
                    undefined[row, name] = None
        rows = np.array(self.call_rows, np.int64)
        order = np.argsort(rows, kind="stable")
        pointers = np.zeros(n + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=n), out=pointers[1:])
        return pointers, np.array(numbers, np.int32)[order], list(undefined)

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
        # Computations that were resolved before the first written-out body came are in front, in their order.
        done = self.resolver.resolved
        self.closed = [k for k, one in enumerate(self.computations) if one.runs and one.runs[0][0] >= done]
        self.has_inline = False
        return [column[order] for column in columns]

    def _all_findings(
        self, columns: list[np.ndarray], undefined_calls: list[tuple[int, str]], *, lost: bool
    ) -> list[Finding]:
        """The findings, those of names with their spans; what is `lost` in a text that is cut off may define names."""
        names, name_ends = columns[2], columns[3]
        out = self.findings
        for row, first in self.resolver.duplicates:
            span, at = (int(names[row]), int(name_ends[row])), (int(names[first]), int(name_ends[first]))
            related = ((*at, "the first definition is here"),)
            out.append(Finding("duplicate", f"{self.text[slice(*span)]} is defined twice", *span, related=related))
        if lost:
            return out
        for row, word in self.resolver.undefined:
            # At the use itself: a search from the computation's begin takes long where much is undefined far down.
            span = self._where(word, int(columns[6][row]), int(columns[7][row]))
            out.append(Finding("undefined", f"instruction {word} is not defined", *span))
        for row, word in undefined_calls:
            span = self._where(word, int(columns[7][row]), int(columns[1][row]))
            out.append(Finding("undefined", f"computation {word} is not defined", *span))
        return out

    def _where(self, word: str, start: int, end: int) -> Span:
        found = re.compile(rf"(?<![\w.\-]){re.escape(word)}(?![\w.\-])").search(self.text, start, end)
        return found.span() if found is not None else (start, start)
