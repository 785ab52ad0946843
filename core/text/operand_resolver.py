"""Turns operand names into instruction numbers, computation by computation, so that names need not be kept."""

from __future__ import annotations

from itertools import compress, repeat
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.text.instruction_text import COMMENT, OPERAND_SHAPE, operand_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MAX_KEPT = 500


class OperandResolver:
    """Takes names and operand lists in text order; hands out CSR columns at the end."""

    def __init__(self) -> None:
        self.undefined: list[tuple[int, str]] = []
        """Instructions and the names that they use and their computation lacks, each once; a few hundred at most."""
        self.duplicates: list[tuple[int, int]] = []
        """An instruction and an earlier one of the same name in its computation."""
        self._names: list[str] = []
        self._operands: list[str] = []
        self._counts: list[np.ndarray] = []
        self._singles: list[int] = []
        self._base = 0
        self._done_counts: list[np.ndarray] = []
        self._done: list[np.ndarray] = []

    def add(self, names: Iterable[str], lists: Sequence[str], has_operands: np.ndarray) -> None:
        """Take instructions: their names, the texts of their operand lists, and which of these hold operands."""
        self._take_singles()
        self._names.extend(names)
        counts = np.zeros(len(has_operands), np.int32)
        texts = list(compress(lists, has_operands.tolist()))
        if texts:
            counts[has_operands], flat = _split(texts)
            self._operands.extend(flat)
        self._counts.append(counts)

    def add_one(self, name: str, operands: Sequence[str]) -> None:
        """Take one instruction whose operands are known by name."""
        self._names.append(name)
        self._operands.extend(operands)
        self._singles.append(len(operands))

    def _take_singles(self) -> None:
        if self._singles:
            self._counts.append(np.array(self._singles, np.int32))
            self._singles.clear()

    @property
    def resolved(self) -> int:
        """How many instructions, from the first on, are resolved."""
        return self._base

    def resolve(self, bounds: Sequence[tuple[int, int]]) -> None:
        """Resolve whole computations: ascending ranges of instructions that begin where the last call ended."""
        bounds = [bound for bound in bounds if bound[1] > bound[0]]
        if not bounds:
            return
        self._take_singles()
        counts = np.concatenate(self._counts)
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        base, done = self._base, bounds[-1][1]
        edges = offsets[np.array(bounds).reshape(-1) - base].tolist()
        undefined: list[tuple[int, str]] = []
        names, operands = self._names, self._operands
        indices: list[int] = []
        for k, (begin, end) in enumerate(bounds):
            first, last = edges[2 * k], edges[2 * k + 1]
            found = self._computation(names[begin - base : end - base], begin, operands[first:last], indices)
            undefined += [(first + at, word) for at, word in found]
        if undefined:
            owners = np.searchsorted(offsets, [at for at, _ in undefined], "right") - 1 + base
            uses = zip(owners.tolist(), [word for _, word in undefined], strict=True)
            self.undefined += list(dict.fromkeys(uses))
        self._done.append(np.array(indices, np.int32))
        self._done_counts.append(counts[: done - base])
        self._operands = operands[int(offsets[done - base]) :]
        self._names = names[done - base :]
        self._counts = [counts[done - base :]]
        self._base = done

    def _computation(
        self, names: list[str], begin: int, operands: list[str], out: list[int]
    ) -> list[tuple[int, str]]:
        """Resolve one computation; which operands stay unknown, as far as these are kept."""
        table = dict(zip(names, range(begin, begin + len(names)), strict=True))
        if len(table) != len(names):
            self._note_duplicates(names, begin)
            # The first definition is the one meant.
            table = dict(zip(reversed(names), range(begin + len(names) - 1, begin - 1, -1), strict=True))
        found = list(map(table.get, operands, repeat(-1)))
        unknown: list[tuple[int, str]] = []
        if -1 in found:
            for k, row in enumerate(found):
                if row != -1:
                    continue
                # `t#0` picks a tuple's element, `a:` is an older way to write a name.
                word = operands[k].strip().split("#")[0].rstrip(": \t\r")
                found[k] = table.get(word, -1)
                if found[k] == -1 and len(unknown) + len(self.undefined) < _MAX_KEPT:
                    unknown.append((k, word))
        out.extend(found)
        return unknown

    def _note_duplicates(self, names: list[str], begin: int) -> None:
        seen: dict[str, int] = {}
        for k, name in enumerate(names):
            if name in seen and len(self.duplicates) < _MAX_KEPT:
                self.duplicates.append((begin + k, seen[name]))
            seen.setdefault(name, begin + k)

    def reorder(self, order: np.ndarray) -> None:
        """Bring the instructions into another order (old number of each new one); what is resolved keeps its place."""
        self._take_singles()
        counts = np.concatenate(self._counts)
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        bounds = offsets.tolist()
        names, operands = self._names, self._operands
        left = order[self._base :] - self._base
        rows = left.tolist()
        self._names = [names[row] for row in rows]
        self._operands = [word for row in rows for word in operands[bounds[row] : bounds[row + 1]]]
        self._counts = [counts[left]]

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """CSR pointers and instruction numbers of all operands."""
        counts = np.concatenate([np.zeros(0, np.int32), *self._done_counts])
        pointers = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=pointers[1:])
        return pointers, np.concatenate([np.zeros(0, np.int32), *self._done])


def _split(texts: list[str]) -> tuple[np.ndarray, list[str]]:
    """Names out of operand lists, many at once: how many each list has, and all of them in order."""
    joined = "\n".join(texts)
    if "/*" in joined:
        joined = COMMENT.sub("", joined)
    if "[" in joined:
        joined = OPERAND_SHAPE.sub("", joined)
    if "%" in joined:
        joined = joined.replace("%", "")
    if "," in joined:
        joined = _spaced(joined)
    n = len(texts)
    if _is_plain(joined):
        rows = joined.split("\n")
        flat = joined.replace("\n", ", ").split(", ")
        if len(rows) == n and "" not in flat:
            return np.fromiter(map(str.count, rows, repeat(", ")), np.int32, n) + 1, flat
    parts = [_names(text) for text in texts]
    return np.fromiter(map(len, parts), np.int32, n), [name for part in parts for name in part]


def _spaced(text: str) -> str:
    """With one blank after each comma, as XLA prints them: its reader takes none, too."""
    if text.count(", ") == text.count(","):
        return text
    return text.replace(",", ", ").replace(",  ", ", ")


def _is_plain(text: str) -> bool:
    """Whether lists hold names alone: no brackets, no strings, and no blank but that after a comma."""
    marks = "(" in text or '"' in text or "{" in text
    return not marks and text.count(" ") == text.count(", ")


def words_of(text: str) -> list[str]:
    """Names out of one operand list, as `OperandResolver.add` takes them."""
    bare = text if "/*" not in text else COMMENT.sub("", text)
    if "[" in bare:
        bare = OPERAND_SHAPE.sub("", bare)
    bare = _spaced(bare.replace("%", ""))
    if "\n" not in bare and _is_plain(bare):
        words = bare.split(", ")
        if "" not in words:
            return words
    return _names(text)


def _names(text: str) -> list[str]:
    return [text[a:b] for a, b in operand_names(text, 0, len(text))]
