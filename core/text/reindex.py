"""A ModuleIndex after an edit, from the one before it: only what the edit touched is read again.

Two ways, tried in turn. An edit inside one computation reads the instructions that it touches, between one untouched
instruction on either side: these guards must come out as they were, which shows that the text around them means what it
meant before. Any other edit reads the computations it touches, up to the header of the next. What is read is the same
code that reads whole texts (`build`), on a piece of the text; the columns are then spliced, and names are resolved
again where the edit changed what they mean. Where neither way is sure, the answer is None, and the caller reads
everything, as it does where a comment begins inside a name: that has two readings, by the lines around it. A spliced
index equals the one that `ModuleIndex.from_text` makes; a test holds that on random edits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.attributes import CALLED
from hloscope.core.text.index_builder import build
from hloscope.core.text.index_columns import Columns, Finding
from hloscope.core.text.index_parts import UNENDED
from hloscope.core.text.instruction_text import CALLS, operand_names, skip_blank
from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.text.operand_resolver import OperandResolver

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hloscope.core.text.instruction_text import Span

MOST_FINDINGS = 400
"""Texts with more faults than this are read whole: the reader stops counting at 500."""
MOST_ROWS = 2_000
"""Instructions read one by one to resolve their operands; more are not worth it."""
_ASKED_ONE_BY_ONE = 16
"""Whoever asks for the users of more instructions will ask for all: then the table is worth making."""
_MOST_TOUCHED = 64
_SPARE_WORDS = 2_000
"""Shapes that nothing uses any more, after which the table of shapes is made anew."""

_GUARD = re.compile(r"\n[ \t\r]*+(?:ROOT\s++)?+%?+[A-Za-z0-9_.\-]++ = (?:\(|[a-z][a-z0-9\-]*+[\[(])")
"""What ends every bracket and string that was left open before it."""
_LINE_END = re.compile(r"[ \t\r]*+\n")
_NOT_IN_HEAD = ("unclosed", "outside", "second-module")
"""What may reach from the module's header far into the text."""
_NAMED = ("undefined", "duplicate")
_LONGEST_TEXT = {size: 2 ** (8 * size - 1) - 2**21 for size in (4, 8)}
"""By the bytes of an offset."""
_NO_OPERANDS = frozenset(("constant", "parameter", "iota"))
_LOOKED_AT = 300
"""Instructions of whole computations whose operand lists are looked at for malformed ones; a longer piece that someone
is typing in is rare, and the next edit reads it again."""
_OPEN = "c {\n"

_OFFSETS = ("starts", "ends", "names", "name_ends", "opcode_starts", "operand_starts", "operand_ends")
_PLACES = (
    "computation_starts",
    "computation_stops",
    "computation_names",
    "computation_name_ends",
    "computation_bodies",
)


class SplicedIndex(ModuleIndex):
    """An index made from an earlier one; what that one had worked out is carried over instead of made again."""

    def __init__(
        self,
        text: str,
        columns: Columns,
        name_hashes: tuple[np.ndarray, np.ndarray] | None,
        line_starts: np.ndarray | None,
    ) -> None:
        super().__init__(text, columns)
        self._asked = 0
        self.touched: frozenset[str] = frozenset()
        """Names of the computations that edits have touched since the text was read as a whole."""
        if name_hashes is not None:
            self.__dict__["_name_hashes"] = name_hashes
        if line_starts is not None:
            self.__dict__["line_starts"] = line_starts.astype(columns.starts.dtype)

    def users(self, i: int) -> list[int]:
        """Instructions that use it, each once, ascending."""
        self._asked += 1
        if self._asked > _ASKED_ONE_BY_ONE or "_users" in self.__dict__:
            return super().users(i)
        c = self.columns
        at = np.flatnonzero(c.operands == i)
        return np.unique(np.searchsorted(c.operand_rows, at, "right") - 1).tolist()


@dataclass(slots=True)
class _Piece:
    """What replaces the rows ``[r0, r1)`` of an index and, of its computations, ``[c0, c1)``."""

    r0: int
    r1: int
    c0: int
    c1: int
    columns: Columns
    """Of the piece's own text, guards included."""
    first: int
    last: int
    """The piece's rows without the guards."""
    computations: int
    """The piece's computations without the guard."""
    base: int
    """What to add to the piece's offsets."""
    begin: int
    end: int
    """The characters of the old text that were read again, guards not included."""
    inside: bool
    """Instructions of one computation were read, not whole computations."""


_COMMENT_IN_NAME = re.compile(r"[\w.\-]//")
"""Read as one word or as a name before a comment, by what else is wrong in the text."""
_KNOWN_CLEAN = "_no_comment_in_name"
"""Where an index remembers that its text has none, so that only the edited characters are looked at."""


def reindexed(
    old: ModuleIndex, text: str, start: int, end: int, *, line_starts: np.ndarray | None = None
) -> ModuleIndex | None:
    """The index of `text`, which is `old.source` with ``[start, end)`` replaced; None where all must be read.

    `line_starts` are the offsets of the lines of `text`, where the caller has them.
    """
    c = old.columns
    shift = len(text) - len(old.source)
    if (
        c.truncated
        or _has_comment_in_name(old, text, start, end + shift)
        or len(c.findings) > MOST_FINDINGS
        or not len(c.computation_starts)
        or len(text) >= _LONGEST_TEXT[c.starts.dtype.itemsize]
        or bool(np.any(c.computation_starts[1:] < c.computation_stops[:-1]))
        or any(
            one.code == "second-module" or one.message == "a second ENTRY" or one.start < c.header[1]
            for one in c.findings
        )
    ):
        return None
    piece = _instructions(old, text, start, end, shift) or _computations(old, text, start, end, shift)
    if piece is None:
        return None
    index = _Splice(old, text, shift, piece, line_starts).run()
    if index is not None:
        index.__dict__[_KNOWN_CLEAN] = True
        last = piece.c0 + (1 if piece.inside else piece.computations)
        before = old.touched if isinstance(old, SplicedIndex) and len(old.touched) < _MOST_TOUCHED else frozenset()
        index.touched = before | {index.computation(number).name for number in range(piece.c0, last)}
    return index


def _has_comment_in_name(old: ModuleIndex, text: str, start: int, end: int) -> bool:
    """Whether a text has `_COMMENT_IN_NAME` somewhere, where only ``[start, end)`` of it is new."""
    if _KNOWN_CLEAN in old.__dict__:
        return _COMMENT_IN_NAME.search(text, max(0, start - 2), end + 2) is not None
    return "//" in text and _COMMENT_IN_NAME.search(text) is not None


# ---------------------------------------------------------------- what to read again
def _instructions(old: ModuleIndex, text: str, start: int, end: int, shift: int) -> _Piece | None:
    """The instructions that an edit inside one computation touches; None for other edits."""
    c, source = old.columns, old.source
    number = int(np.searchsorted(c.computation_starts, start, "right")) - 1
    if number < 0:
        return None
    body, brace = int(c.computation_bodies[number]), int(c.computation_stops[number]) - 1
    if not body <= start <= end <= brace or source[brace : brace + 1] != "}" or not source.startswith("{", body - 1):
        return None
    begin, stop = int(c.computation_begins[number]), int(c.computation_ends[number])
    r0 = begin + int(np.searchsorted(c.ends[begin:stop], start, "left"))
    r1 = begin + int(np.searchsorted(c.starts[begin:stop], end, "right"))
    r1 = max(r0, r1)
    faults = [one for one in c.findings if one.code not in _NAMED and body <= one.start and one.end <= brace + 1]
    # An instruction with a fault, or before one, may end elsewhere now: what is behind it is part of it.
    while r0 > begin and any(one.end >= int(c.starts[r0 - 1]) and one.start <= end for one in faults):
        r0 -= 1
    while r1 < stop and not _is_guard(source, int(c.starts[r1]), end):
        r1 += 1
    if r1 - r0 > MOST_ROWS:
        return None
    before, behind = r0 > begin, r1 < stop
    if before and not _is_guard(source, int(c.starts[r0 - 1])):
        return None
    read_from = int(c.starts[r0 - 1]) if before else body
    read_to = (int(c.ends[r1]) if behind else brace + 1) + shift
    part = f"{_OPEN}{text[read_from:read_to]}" + ("\n}" if behind else "")
    found = build(part)
    base = read_from - len(_OPEN)
    rows = len(found.starts)
    if (
        found.truncated
        or len(found.computation_starts) != 1
        or found.tables
        or found.header[1]
        or int(found.computation_stops[0]) != len(part)
        or rows < before + behind
        or not _closes_comments(part)
        or len(found.findings) > MOST_FINDINGS
        or (not behind and any(one.code == "unclosed" for one in found.findings))
    ):
        return None
    if before and not _same_row(c, r0 - 1, found, 0, base):
        return None
    if behind and not _same_row(c, r1, found, rows - 1, base - shift):
        return None
    left = int(c.ends[r0 - 1]) if before else body
    right = int(c.starts[r1]) if behind else brace
    return _Piece(r0, r1, number, number, found, int(before), rows - behind, 0, base, left, right, True)


def _computations(old: ModuleIndex, text: str, start: int, end: int, shift: int) -> _Piece | None:
    """The computations that an edit touches, or the text between two of them, or the module's header."""
    c = old.columns
    c0 = int(np.searchsorted(c.computation_stops, start, "left"))
    c1 = max(c0, int(np.searchsorted(c.computation_starts, end, "right")))
    count = len(c.computation_starts)
    # One that only the next header ends is still open there, and one without a header is none to stop at.
    unended = {one.start for one in c.findings if _is_unended(one)}
    while 0 < c0 < count and int(c.computation_names[c0]) in unended:
        c0 -= 1
    while c1 < count and int(c.computation_names[c1]) == int(c.computation_name_ends[c1]):
        c1 += 1
    left = int(c.computation_stops[c0 - 1]) if c0 else _head(c, text, start)
    right = int(c.computation_starts[c1]) if c1 < count else len(old.source)
    if any(one.start < left and (one.end > left or _reaches(old.source, one, left)) for one in c.findings):
        return None
    if right - left + shift > max(len(text) // 2, 1 << 16):
        return None
    behind = c1 < count
    part = text[left : right + shift]
    if not left and part.count('"') % 2:
        return None  # a string of the header may end anywhere
    if behind:
        if _LINE_END.match(old.source, int(c.computation_bodies[c1])) is None:
            return None  # what is looked for from above may not see a header in it
        part += text[right + shift : int(c.computation_bodies[c1]) + shift] + "\n}\n"
    found = build(part)
    computations = len(found.computation_starts) - behind
    if (
        found.truncated
        or computations < 0
        or bool(np.any(found.computation_starts[1:] < found.computation_stops[:-1]))
        or not _closes_comments(part)
        or len(found.findings) > MOST_FINDINGS
        or any(one.code in _NOT_IN_HEAD for one in found.findings if not left or one.code == "second-module")
    ):
        return None
    if behind and any(one.code == "unclosed" and not _is_unended(one) for one in found.findings):
        # What looks for its end does so up to an instruction on a line of its own: the guard has to have one.
        first = int(c.computation_begins[c1])
        if first == int(c.computation_ends[c1]) or not _is_guard(old.source, int(c.starts[first]), right):
            return None
        if any(one.code == "unclosed" and _is_of_body(one) for one in found.findings):
            return None
    if behind and (
        int(found.computation_starts[-1]) + left != right + shift
        or int(found.computation_names[-1]) + left != int(c.computation_names[c1]) + shift
        or int(found.computation_begins[-1]) != int(found.computation_ends[-1])
    ):
        return None
    if left and (
        found.header[1] or found.tables or c.header[1] > left or any(stop > left for _, stop in c.tables.values())
    ):
        return None
    if not left and (c.header[1] > right or any(stop > right for _, stop in c.tables.values())):
        return None
    r0 = int(c.computation_begins[c0]) if c0 < count else len(c.starts)
    r1 = int(c.computation_begins[c1]) if c1 < count else len(c.starts)
    return _Piece(r0, r1, c0, c1, found, 0, len(found.starts), computations, left, left, right, False)


def _head(c: Columns, text: str, start: int) -> int:
    """Where the module's header and tables end, for an edit behind them that does not make them longer; else 0."""
    stop = max([c.header[1], *(stop for _, stop in c.tables.values())])
    if stop >= start:
        return 0
    at = skip_blank(text, stop)
    return 0 if text.startswith(",", at) or text[at : at + 1].isdigit() else stop


def _is_unended(one: Finding) -> bool:
    """Whether it is about a computation that only the header of the next ends, at whose name it stands."""
    return one.code == "unclosed" and one.message == UNENDED


def _is_of_body(one: Finding) -> bool:
    """Whether it may be about a computation written out in place, whose end is looked for past other instructions."""
    return any(one.message.startswith(f"the value of {key} ") for key in CALLED)


def _reaches(source: str, one: Finding, left: int) -> bool:
    """Whether the end of what is not closed was looked for at `left` and beyond."""
    if one.code != "unclosed" or one.message == UNENDED:
        return False
    return _is_of_body(one) or _GUARD.search(source, one.start, left) is None


def _is_guard(source: str, start: int, since: int = 0) -> bool:
    """Whether the instruction at `start` is on a line of its own, the line end before it not touched by an edit."""
    line = source.rfind("\n", since, start)
    return line >= 0 and not source[line:start].strip() and _GUARD.match(source, line) is not None


def _same_row(old: Columns, row: int, new: Columns, at: int, base: int) -> bool:
    return all(int(getattr(old, key)[row]) == int(getattr(new, key)[at]) + base for key in _OFFSETS) and bool(
        old.roots[row] == new.roots[at]
    )


def _closes_comments(part: str) -> bool:
    opened = part.rfind("/*")
    return opened < 0 or part.find("*/", opened + 2) >= 0


# ---------------------------------------------------------------- putting together
class _Splice:
    """One splice: the old columns without what was read again, the piece in its place, names resolved."""

    def __init__(self, old: ModuleIndex, text: str, shift: int, piece: _Piece, line_starts: np.ndarray | None) -> None:
        self.old, self.c, self.text, self.shift, self.piece = old, old.columns, text, shift, piece
        self.line_starts = line_starts
        self.kind = old.columns.starts.dtype
        self.rows = piece.last - piece.first
        self.delta = self.rows - (piece.r1 - piece.r0)

    def run(self) -> SplicedIndex | None:
        c, p = self.c, self.piece
        columns: dict[str, np.ndarray] = {key: self._offsets(key) for key in _OFFSETS}
        columns["shapes"] = self._shapes()
        shape_ids, shape_texts = self._words("shape_ids", c.shape_texts, p.columns.shape_texts)
        opcode_ids, opcode_names = self._words("opcode_ids", c.opcode_names, p.columns.opcode_names)
        if len(shape_texts) > _SPARE_WORDS:
            shape_ids, shape_texts = _without_unused(shape_ids, shape_texts)
        roots = np.concatenate((c.roots[: p.r0], p.columns.roots[p.first : p.last], c.roots[p.r1 :]))
        places, begins, ends = self._places()
        hashes = self._hashes(columns["names"], columns["name_ends"])
        new = Columns(
            **columns,
            shape_ids=shape_ids,
            opcode_ids=opcode_ids,
            roots=roots,
            operand_rows=c.operand_rows,
            operands=c.operands,
            call_rows=c.call_rows,
            calls=c.calls,
            computation_begins=begins,
            computation_ends=ends,
            **places,
            entry=c.entry,
            shape_texts=shape_texts,
            opcode_names=opcode_names,
            header=c.header,
            module_name=c.module_name,
            attributes=c.attributes,
            tables=c.tables,
            findings=[],
            truncated=False,
        )
        if not self._header(new):
            return None
        index = SplicedIndex(self.text, new, hashes, self.line_starts)
        new.findings = self._moved_findings()
        done = self._operands(index) and self._calls(index) and self._entry(new) and len(new.findings) <= MOST_FINDINGS
        if not done:
            return None
        if p.begin and "stack_frames" in self.old.__dict__:
            index.__dict__["stack_frames"] = self.old.stack_frames
        return index

    # ---- columns
    def _offsets(self, key: str) -> np.ndarray:
        c, p = self.c, self.piece
        old: np.ndarray = getattr(c, key)
        new: np.ndarray = getattr(p.columns, key)[p.first : p.last]
        return np.concatenate((old[: p.r0], (new + p.base).astype(self.kind), old[p.r1 :] + self.kind.type(self.shift)))

    def _shapes(self) -> np.ndarray:
        c, p = self.c, self.piece
        new, tail = p.columns.shapes[p.first : p.last], c.shapes[p.r1 :]
        return np.concatenate(
            (
                c.shapes[: p.r0],
                np.where(new < 0, new, new + p.base).astype(self.kind),
                np.where(tail < 0, tail, tail + self.shift).astype(self.kind),
            )
        )

    def _words(self, key: str, old: list[str], new: list[str]) -> tuple[np.ndarray, list[str]]:
        """A column of numbers of words, the piece's words brought into the old table."""
        p = self.piece
        ids: np.ndarray = getattr(self.c, key)
        fresh: np.ndarray = getattr(p.columns, key)[p.first : p.last]
        table = {word: number for number, word in enumerate(old)}
        words = old
        if any(word not in table for word in new):
            words = list(old)
            for word in new:
                if word not in table:
                    table[word] = len(words)
                    words.append(word)
        numbers = np.array([table[word] for word in new], ids.dtype)
        middle = numbers[fresh] if len(fresh) else fresh
        return np.concatenate((ids[: p.r0], middle.astype(ids.dtype), ids[p.r1 :])), words

    def _places(self) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """The columns of computations."""
        c, p = self.c, self.piece
        out: dict[str, np.ndarray] = {}
        begins, ends = c.computation_begins, c.computation_ends
        if self.piece.inside:
            number = p.c0
            for key in _PLACES:
                column: np.ndarray = getattr(c, key).copy()
                column[number + 1 :] += self.kind.type(self.shift)
                out[key] = column
            out["computation_stops"][number] += self.kind.type(self.shift)
            begins, ends = begins.copy(), ends.copy()
            begins[number + 1 :] += self.delta
            ends[number:] += self.delta
            return out, begins, ends
        n = p.computations
        for key in _PLACES:
            column = getattr(c, key)
            fresh: np.ndarray = getattr(p.columns, key)[:n]
            out[key] = np.concatenate(
                (column[: p.c0], (fresh + p.base).astype(self.kind), column[p.c1 :] + self.kind.type(self.shift))
            )
        new_begins, new_ends = p.columns.computation_begins[:n] + p.r0, p.columns.computation_ends[:n] + p.r0
        begins = np.concatenate((begins[: p.c0], new_begins, begins[p.c1 :] + self.delta)).astype(np.int32)
        ends = np.concatenate((ends[: p.c0], new_ends, ends[p.c1 :] + self.delta)).astype(np.int32)
        return out, begins, ends

    def _hashes(self, names: np.ndarray, name_ends: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The table that finds instructions by name, if the old index had made it or the piece needs it."""
        p = self.piece
        if "_name_hashes" not in self.old.__dict__ and not self.piece.inside:
            return None
        hashes, order = self.old._name_hashes  # pyright: ignore[reportPrivateUsage]
        keep = (order < p.r0) | (order >= p.r1)
        hashes, order = hashes[keep], order[keep]
        order = np.where(order >= p.r1, order + self.delta, order).astype(np.int32)
        text = self.text
        fresh = np.fromiter(
            (hash(text[a:b]) for a, b in zip(
                names[p.r0 : p.r0 + self.rows].tolist(), name_ends[p.r0 : p.r0 + self.rows].tolist(), strict=True
            )),
            np.int64, self.rows,
        )  # fmt: skip
        by_hash = np.argsort(fresh, kind="stable")
        at = np.searchsorted(hashes, fresh[by_hash])
        rows = (by_hash + p.r0).astype(np.int32)
        return np.insert(hashes, at, fresh[by_hash]), np.insert(order, at, rows)

    def _header(self, new: Columns) -> bool:
        """Bring the module's header and tables to where they are now."""
        p, found = self.piece, self.piece.columns
        if p.begin == 0 and not self.piece.inside:
            new.header, new.module_name = found.header, found.module_name
            new.attributes, new.tables = found.attributes, found.tables
            return True
        # Both stand before what changed: `_computations` made sure, and here it is made sure for instructions.
        return self.c.header[1] <= p.begin and all(stop <= p.begin for _, stop in self.c.tables.values())

    # ---- findings
    def _moved_findings(self) -> list[Finding]:
        """Findings outside the piece where they are now, and the piece's own; those about names come later."""
        p = self.piece
        brace_span = self._computation_span()
        behind = not p.inside and p.c1 < len(self.c.computation_names)
        guard = int(self.c.computation_names[p.c1]) if behind else -1
        out: list[Finding] = []
        for one in self.c.findings:
            if one.message.startswith("computation ") and one.code == "undefined":
                continue
            if brace_span is not None and one.code in _NAMED and brace_span[0] <= one.start < brace_span[1]:
                continue
            if one.end > p.begin and one.start < p.end or p.begin <= one.start < p.end:
                continue
            if one.start == one.end == p.end:
                continue  # at the end of the last instruction that was read again
            if one.start == guard and _is_unended(one):
                continue
            out.append(self._moved(one, p.end, self.shift) if one.start >= p.end else one)
        for one in p.columns.findings:
            if one.message.startswith("computation ") and one.code == "undefined":
                continue
            if self.piece.inside:
                first = int(p.columns.ends[0]) if p.first else len(_OPEN)
                last = int(p.columns.starts[p.last]) if p.last < len(p.columns.starts) else len(self.text)
                if one.code in _NAMED or not first <= one.start < last:
                    continue
            out.append(self._moved(one, 0, p.base))
        return out

    def _computation_span(self) -> Span | None:
        if not self.piece.inside:
            return None
        number = self.piece.c0
        return int(self.c.computation_starts[number]), int(self.c.computation_stops[number])

    def _moved(self, one: Finding, since: int, by: int) -> Finding:
        related = tuple((a + by, b + by, text) if a >= since else (a, b, text) for a, b, text in one.related)
        return Finding(one.code, one.message, one.start + by, one.end + by, one.severity, related)

    # ---- operands
    def _operands(self, index: SplicedIndex) -> bool:
        c, p, new = self.c, self.piece, index.columns
        counts = np.diff(p.columns.operand_rows)[p.first : p.last]
        begin, end = int(c.operand_rows[p.r0]), int(c.operand_rows[p.r1])
        new_counts = np.concatenate((np.diff(c.operand_rows[: p.r0 + 1]), counts, np.diff(c.operand_rows[p.r1 :])))
        pointers = np.zeros(len(new_counts) + 1, np.int32)
        np.cumsum(new_counts, out=pointers[1:])
        new.operand_rows = pointers
        head, tail = c.operands[:begin], c.operands[end:]
        if not self.piece.inside:
            fresh = p.columns.operands[: int(p.columns.operand_rows[p.last])]
            fresh = np.where(fresh >= 0, fresh + p.r0, fresh).astype(np.int32)
            tail = np.where(tail >= 0, tail + self.delta, tail).astype(np.int32)
            new.operands = np.concatenate((head, fresh, tail))
            looked_at = range(p.r0, p.r0 + min(self.rows, _LOOKED_AT))
            return all(_operand_words(index, i) == _split_words(index, i) for i in looked_at)
        number = p.c0
        low, high = int(new.computation_begins[number]), int(new.computation_ends[number])
        meaning = _Names(index, low, high)
        # Where an old number leads now.
        lead = np.arange(len(c.starts), dtype=np.int32)
        lead[p.r1 :] += self.delta
        old_low, old_high = int(c.computation_begins[number]), int(c.computation_ends[number])
        touched = {self.old.name(i) for i in range(p.r0, p.r1)}
        touched |= {index.name(i) for i in range(p.r0, p.r0 + self.rows)}
        old_meaning = _Names(self.old, old_low, old_high)
        for name in touched:
            was = old_meaning.first(name)
            if was >= 0:
                lead[was] = meaning.first(name)
        lost = _led(head, lead), _led(tail, lead)
        words: list[str] = []
        for i in range(p.r0, p.r0 + self.rows):
            found = _operand_words(index, i)
            if len(found) != int(counts[i - p.r0]) or found and found != _split_words(index, i):
                return False
            words += found
        fresh = np.fromiter(map(meaning.first, words), np.int32, len(words))
        new.operands = np.concatenate((lost[0], fresh, lost[1]))
        return self._undefined(index, meaning, low, high)

    def _undefined(self, index: SplicedIndex, meaning: _Names, low: int, high: int) -> bool:
        """Resolve what is still unknown in the computation, and say what stays so, and what is defined twice."""
        new, text = index.columns, self.text
        begin, end = int(new.operand_rows[low]), int(new.operand_rows[high])
        at = np.flatnonzero(new.operands[begin:end] < 0) + begin
        if len(at) > MOST_FINDINGS:
            return False
        said: set[tuple[int, str]] = set()
        owners = np.searchsorted(new.operand_rows, at, "right") - 1
        for position, i in zip(at.tolist(), owners.tolist(), strict=True):
            words = _operand_words(index, i)
            k = position - int(new.operand_rows[i])
            if words != _split_words(index, i):
                return False
            row = meaning.first(words[k])
            if row >= 0:
                new.operands[position] = row
            elif (i, words[k]) not in said:
                said.add((i, words[k]))
                span = _where(text, words[k], int(new.operand_starts[i]), int(new.operand_ends[i]))
                new.findings.append(Finding("undefined", f"instruction {words[k]} is not defined", *span))
        for row, first in meaning.repeated():
            span, earlier = index.name_span(row), index.name_span(first)
            related = ((*earlier, "the first definition is here"),)
            new.findings.append(Finding("duplicate", f"{text[slice(*span)]} is defined twice", *span, related=related))
        return True

    # ---- calls
    def _calls(self, index: SplicedIndex) -> bool:
        c, p, new = self.c, self.piece, index.columns
        text = self.text
        numbers = {
            text[a:b]: k
            for k, (a, b) in enumerate(
                zip(new.computation_names.tolist(), new.computation_name_ends.tolist(), strict=True)
            )
        }
        counts = np.diff(p.columns.call_rows)[p.first : p.last]
        begin, end = int(c.call_rows[p.r0]), int(c.call_rows[p.r1])
        new_counts = np.concatenate((np.diff(c.call_rows[: p.r0 + 1]), counts, np.diff(c.call_rows[p.r1 :])))
        pointers = np.zeros(len(new_counts) + 1, np.int32)
        np.cumsum(new_counts, out=pointers[1:])
        fresh: list[int] = []
        for i in np.flatnonzero(counts).tolist():
            words = _called_words(index, p.r0 + i)
            if len(words) != int(counts[i]):
                return False
            fresh += [numbers.get(word, -1) for word in words]
        head, tail = c.calls[:begin], c.calls[end:]
        if not self.piece.inside:
            old_names = (
                self.old.source[a:b]
                for a, b in zip(c.computation_names.tolist(), c.computation_name_ends.tolist(), strict=True)
            )
            lead = np.fromiter((numbers.get(name, -1) for name in old_names), np.int32, len(c.computation_names))
            head, tail = _led(head, lead), _led(tail, lead)
        new.call_rows = pointers
        new.calls = np.concatenate((head, np.array(fresh, np.int32), tail))
        unknown = np.flatnonzero(new.calls < 0)
        if len(unknown) > MOST_FINDINGS:
            return False
        said: set[tuple[int, str]] = set()
        for position in unknown.tolist():
            i = int(pointers.searchsorted(pointers.dtype.type(position), "right")) - 1
            words = _called_words(index, i)
            k = position - int(pointers[i])
            if len(words) != int(pointers[i + 1]) - int(pointers[i]):
                return False
            word = words[k]
            if word in numbers:
                new.calls[position] = numbers[word]
            elif (i, word) not in said:
                said.add((i, word))
                span = _where(text, word, int(new.operand_ends[i]), int(new.ends[i]))
                new.findings.append(Finding("undefined", f"computation {word} is not defined", *span))
        return True

    def _entry(self, new: Columns) -> bool:
        if self.piece.inside:
            return True
        marked = [
            k for k, start in enumerate(new.computation_starts.tolist())
            if self.text.startswith("ENTRY", start) and start != int(new.computation_names[k])
        ]  # fmt: skip
        new.entry = marked[0] if marked else len(new.computation_starts) - 1
        return len(marked) <= 1


class _Names:
    """What a name means among the instructions of one computation: the first of that name."""

    def __init__(self, index: ModuleIndex, low: int, high: int) -> None:
        self._index, self._low, self._high = index, low, high

    def first(self, name: str) -> int:
        """Its number; -1 where there is none."""
        return next((i for i in self._index.find_all(name) if self._low <= i < self._high), -1)

    def repeated(self) -> Iterable[Span]:
        """Instructions whose name an earlier one has, with the first of that name."""
        hashes, order = self._index._name_hashes  # pyright: ignore[reportPrivateUsage]
        mine = (order >= self._low) & (order < self._high)
        hashes, order = hashes[mine], order[mine]
        for value in np.unique(hashes[1:][hashes[1:] == hashes[:-1]]):
            first: dict[str, int] = {}
            for row in np.sort(order[hashes == value]).tolist():
                name = self._index.name(row)
                if name in first:
                    yield row, first[name]
                first.setdefault(name, row)


def _led(numbers: np.ndarray, lead: np.ndarray) -> np.ndarray:
    if not len(numbers) or not len(lead):
        return numbers
    return np.where(numbers >= 0, lead[numbers], -1).astype(np.int32)


def _operand_words(index: ModuleIndex, i: int) -> list[str]:
    c = index.columns
    if index.opcode(i) in _NO_OPERANDS:
        return []
    source = index.source
    return [source[a:b] for a, b in operand_names(source, int(c.operand_starts[i]), int(c.operand_ends[i]))]


def _split_words(index: ModuleIndex, i: int) -> list[str]:
    """The same as the reader splits ordinary lines. Where the two differ the list is malformed, and what the reader
    makes of it depends on the lines around it."""
    text = index.operands_text(i) if index.opcode(i) not in _NO_OPERANDS else ""
    resolver = OperandResolver()
    resolver.add(["\0"], [text], np.array([bool(text)]))
    resolver.resolve([(0, 1)])
    return [word for _, word in resolver.undefined]


def _called_words(index: ModuleIndex, i: int) -> list[str]:
    return [
        word
        for value in CALLS.findall(index.attributes_text(i))
        if value
        for part in value.strip("{}").split(",")
        if (word := part.strip().lstrip("%"))
    ]


def _without_unused(ids: np.ndarray, words: list[str]) -> tuple[np.ndarray, list[str]]:
    used = np.flatnonzero(np.bincount(ids, minlength=len(words)))
    if len(words) - len(used) < _SPARE_WORDS:
        return ids, words
    numbers: Mapping[int, int] = {old: new for new, old in enumerate(used.tolist())}
    lead = np.zeros(len(words), ids.dtype)
    for old, new in numbers.items():
        lead[old] = new
    return lead[ids], [words[old] for old in used.tolist()]


def _where(text: str, word: str, start: int, end: int) -> Span:
    """The first place of a whole word; an empty one at the start where it is not written so."""
    at = text.find(word, start, end)
    while at >= 0:
        stop = at + len(word)
        before, after = text[at - 1 : at], text[stop : stop + 1] if stop < end else ""
        if not any(one.isalnum() or one in ("_", ".", "-") for one in (before, after)):
            return at, stop
        at = text.find(word, at + 1, end)
    return start, start
