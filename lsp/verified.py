"""What the full reader, the verifier and advice have said of an open text, carried over edits.

A look at a whole large text takes seconds. Until the next one is done, what it said of a computation stays as long as
that computation's text does, and the computations that edits touched are verified on their own. Advice stays on the
instructions on which it was given, as far as it is still right there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hloscope.core.hlo.verifier import Finding
from hloscope.core.text.reindex import SplicedIndex
from hloscope.core.views.findings import findings_of_computations

if TYPE_CHECKING:
    from hloscope.core.errors import Diagnostic
    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.lsp.documents import Reading

_MOST_TOUCHED = 16
"""Computations verified on their own between two looks at the whole."""
_HEAD = ""
"""Stands for what is in front of the computations."""


@dataclass(frozen=True, slots=True)
class Said:
    """One sentence of the reader, as ``hloscope.lsp.child`` writes it, at its place in a computation."""

    row: tuple[str, str, str]
    """Message, severity, code."""
    computation: str
    start: int
    """From the computation's begin."""
    end: int
    related: tuple[tuple[int, int, str], ...]
    """Places in the same computation."""


class Verified:
    """One document's findings. Each write replaces the whole: they are read by several threads."""

    def __init__(self) -> None:
        self._known: tuple[tuple[Finding, ...], Mapping[str, str]] = ((), {})
        """Findings, and the texts of computations as they were then: those with findings and those edited before."""
        self._answer: tuple[int, Mapping[str, Any]] | None = None
        self._said: tuple[Said, ...] = ()
        self._advice: Mapping[str, list[tuple[str, str]]] = {}
        """By code, computation and instruction."""

    def take(self, reading: Reading, answer: Mapping[str, Any]) -> None:
        """The answer of the checker about one version."""
        found = tuple(Finding(*row) for row in answer["broken"])
        index = reading.index
        said = tuple(_said(index, row) for row in answer["reader"])
        names = {one.computation for one in found if one.computation is not None} | set(_touched(index))
        names.update(one.computation for one in said)
        self._known = found, {name: text for name in names if (text := _text(index, name)) is not None}
        self._said = said
        self._answer = reading.version, answer

    def reader(self, reading: Reading) -> list[list[Any]] | None:
        """What the reader said of exactly this version; None where it was not asked."""
        if self._answer is None or self._answer[0] != reading.version:
            return None
        return self._answer[1]["reader"]

    def reader_so_far(self, reading: Reading) -> list[list[Any]]:
        """What the reader said, of this version or of those computations that are as they were: where they are now."""
        exact = self.reader(reading)
        if exact is not None:
            return exact
        index, texts = reading.index, self._known[1]
        begins: dict[str, int | None] = {}
        out: list[list[Any]] = []
        for one in self._said:
            if one.computation not in begins:
                begins[one.computation] = _begin(index, one.computation, texts)
            begin = begins[one.computation]
            if begin is not None:
                related = [(a + begin, b + begin, words) for a, b, words in one.related]
                out.append([*one.row, one.start + begin, one.end + begin, related])
        return out

    def advise(self, index: ModuleIndex, found: Iterable[Diagnostic]) -> None:
        """Advice that is given on a version."""
        known: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for one in found:
            i = index.instruction_at(one.offset)
            if i is not None:
                known[one.code].append((index.computation(index.computation_of(i)).name, index.name(i)))
        self._advice = dict(known)

    def advised(self, index: ModuleIndex) -> dict[str, list[int]]:
        """Instructions on which advice was given last, by its code."""
        out: dict[str, list[int]] = {}
        for code, names in self._advice.items():
            found = (index.find(name, computation) for computation, name in names)
            out[code] = sorted(i for i in found if i is not None)
        return out

    def findings(self, reading: Reading) -> list[Finding]:
        """What is wrong by now, as far as it is known."""
        index = reading.index
        found, texts = self._known
        if self._answer is not None and self._answer[0] == reading.version:
            return list(found)
        changed = [name for name in _touched(index) if texts.get(name) != _text(index, name)]
        edited = {number for name in changed if (number := index.find_computation(name)) is not None}
        fresh: list[Finding] = []
        if edited and not index.errors and len(edited) <= _MOST_TOUCHED:
            fresh = findings_of_computations(index, edited) or []
        told = {(one.code, one.computation, one.instruction) for one in fresh}
        kept = [
            one
            for one in found
            if one.computation is not None
            and one.computation not in changed
            and (one.code, one.computation, one.instruction) not in told
            and _text(index, one.computation) == texts.get(one.computation)
            and not _calls(index, one, edited)
        ]
        return [*kept, *fresh]


def _calls(index: ModuleIndex, one: Finding, edited: set[int]) -> bool:
    """Whether it is about a call of what was edited: that was looked at again."""
    if one.instruction is None or not edited:
        return False
    i = index.find(one.instruction, one.computation)
    return i is not None and bool(edited.intersection(index.called(i)))


def _touched(index: ModuleIndex) -> frozenset[str]:
    return index.touched if isinstance(index, SplicedIndex) else frozenset()


def _said(index: ModuleIndex, row: list[Any]) -> Said:
    message, severity, code, start, end, related = row
    number = index.computation_at(start)
    name, span = _HEAD, (0, _head(index))
    if number is not None:
        name, span = index.computation(number).name, index.computation(number).span
    begin = span[0]
    near = tuple((a - begin, b - begin, words) for a, b, words in related if span[0] <= a <= b <= span[1])
    return Said((message, severity, code), name, start - begin, end - begin, near)


def _head(index: ModuleIndex) -> int:
    """Where the computations begin."""
    return int(index.columns.computation_starts[0]) if len(index.columns.computation_starts) else len(index.source)


def _begin(index: ModuleIndex, name: str, texts: Mapping[str, str]) -> int | None:
    """Where a computation begins whose text is what it was; None for any other."""
    text = texts.get(name)
    if text is None:
        return None
    if name == _HEAD:
        return 0 if index.source.startswith(text) and len(text) == _head(index) else None
    number = index.find_computation(name)
    if number is None:
        return None
    start, stop = index.computation(number).span
    return start if stop - start == len(text) and index.source.startswith(text, start) else None


def _text(index: ModuleIndex, name: str) -> str | None:
    if name == _HEAD:
        return index.source[: _head(index)]
    number = index.find_computation(name)
    return None if number is None else index.source[slice(*index.computation(number).span)]
