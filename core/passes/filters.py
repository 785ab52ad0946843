"""Which pass runs are switched off: the entries of ``xla_disable_hlo_passes`` and ``xla_enable_hlo_passes_only``.

Four shapes: ``@N`` (the run with that pass id), ``name`` (every run of that pass, or of any pass directly inside a
pipeline of that name), ``name:K`` (the K-th run in the module, from 0), ``scope/name[:K]`` (only inside the pipeline
`scope`; K then counts within one entry of that pipeline). Source: ``openxla/xla:xla/hlo/pass/hlo_pass_filter.cc``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.errors import UsageError
from hloscope.core.passes.spelling import unknown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_INTEGER = re.compile(r"\s*[+-]?\d+\s*$")


@dataclass(frozen=True, slots=True)
class Invocation:
    """One run of a pass, as a filter sees it."""

    pass_name: str
    pipeline_name: str
    """The pipeline directly around it."""
    pass_id: int
    """1-based number of the ledger row, ``pipeline-start`` rows counted."""
    module_occurrence: int
    """0-based run of this pass name in the module."""
    pipeline_occurrence: int
    """0-based run of this pass name in this entry of its pipeline."""


@dataclass(frozen=True, slots=True)
class FilterEntry:
    """One entry of a filter flag."""

    text: str
    """The entry as it was given."""
    pass_name: str | None = None
    scope: str | None = None
    occurrence: int | None = None
    pass_id: int | None = None

    @staticmethod
    def parse(text: str) -> FilterEntry:
        """Read one entry (no blanks are trimmed, an empty one names a pass without a name). Raises UsageError."""
        if text.startswith("@"):
            if not _INTEGER.match(text[1:]):
                raise UsageError(f"invalid pass_id in HLO pass filter entry '{text}': expected an integer after '@'")
            return FilterEntry(text, pass_id=int(text[1:]))
        name, colon, number = text.partition(":")
        if colon and not _INTEGER.match(number):
            raise UsageError(f"invalid occurrence in HLO pass filter entry '{text}': expected an integer after ':'")
        scope, slash, inner = name.partition("/")
        return FilterEntry(
            text, inner if slash else name, scope if slash else None, int(number) if colon else None
        )

    def matches(self, run: Invocation) -> bool:
        """Whether the entry means this run."""
        if self.pass_id is not None:
            return run.pass_id == self.pass_id
        if self.pass_name != run.pass_name:
            # A plain name also means the pipeline directly around.
            return self.scope is None and self.occurrence is None and self.pass_name == run.pipeline_name
        if self.scope is not None and self.scope != run.pipeline_name:
            return False
        if self.occurrence is None:
            return True
        return self.occurrence == (run.module_occurrence if self.scope is None else run.pipeline_occurrence)


@dataclass(frozen=True, slots=True)
class HloPassFilter:
    """All entries of one flag; a run matches when any entry does."""

    entries: tuple[FilterEntry, ...] = ()

    @staticmethod
    def parse(entries: Iterable[str]) -> HloPassFilter:
        """Read the entries of a repeated flag. Raises UsageError."""
        return HloPassFilter(tuple(FilterEntry.parse(entry) for entry in entries))

    @staticmethod
    def from_flag(text: str) -> HloPassFilter:
        """Read ``a,b:1,@3``. Raises UsageError."""
        return HloPassFilter.parse(text.split(","))

    def __bool__(self) -> bool:
        return bool(self.entries)

    def match(self, run: Invocation) -> FilterEntry | None:
        """The first entry that means this run, None where none does."""
        return next((entry for entry in self.entries if entry.matches(run)), None)

    def check_names(self, known: Collection[str], flag: str) -> None:
        """Raises UsageError, with the nearest names, for a pass or pipeline that does not exist."""
        for entry in self.entries:
            for name in (entry.scope, entry.pass_name):
                if name and name not in known:
                    raise unknown("pass or pipeline", name, known, where=flag)
