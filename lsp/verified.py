"""What the verifier has said of an open text, carried over edits.

A look at a whole large text takes seconds. Until the next one is done, what it said of a computation stays as long as
that computation's text does, and the computations that edits touched are verified on their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hloscope.core.hlo.verifier import Finding
from hloscope.core.text.reindex import SplicedIndex
from hloscope.core.views.findings import findings_of_computations

if TYPE_CHECKING:
    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.lsp.documents import Reading

_MOST_TOUCHED = 16
"""Computations verified on their own between two looks at the whole."""


class Verified:
    """One document's findings. Written on the loop, read by workers: each write replaces the whole."""

    def __init__(self) -> None:
        self._known: tuple[tuple[Finding, ...], Mapping[str, str]] = ((), {})
        """Findings, and the texts of computations as they were then: those with findings and those edited before."""
        self._answer: tuple[int, Mapping[str, Any]] | None = None

    def take(self, reading: Reading, answer: Mapping[str, Any]) -> None:
        """The answer of the checker about one version."""
        found = tuple(Finding(*row) for row in answer["broken"])
        index = reading.index
        names = {one.computation for one in found if one.computation is not None} | set(_touched(index))
        self._known = found, {name: text for name in names if (text := _text(index, name)) is not None}
        self._answer = reading.version, answer

    def reader(self, reading: Reading) -> list[list[Any]] | None:
        """What the reader said of exactly this version; None where it was not asked."""
        if self._answer is None or self._answer[0] != reading.version:
            return None
        return self._answer[1]["reader"]

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


def _text(index: ModuleIndex, name: str) -> str | None:
    number = index.find_computation(name)
    return None if number is None else index.source[slice(*index.computation(number).span)]
