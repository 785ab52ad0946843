"""Dumps of some passes only: what a stage shows there may be the work of passes that were not dumped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import HloscopeError

if TYPE_CHECKING:
    from hloscope.core.views.run import Run

_FLAG = re.compile(r"xla_dump_hlo_pass_re(?:=|\s*:\s*)\"?([^\s\"]+)")
_ALL = (".*", ".+")
_START = "pipeline-start"


def dumped_passes(run: Run) -> str | None:
    """The ``--xla_dump_hlo_pass_re`` that left passes out of a run; None where it has them all, or nothing tells."""
    if run.source.kind == "hlo" or run.source.by_core:
        return None
    texts = [run.report(FileKind.DEBUG_OPTIONS) or ""]
    if run.source.kind == "ledger":
        try:
            texts += [str(row[0]) for row in run.sql("select flags from runs where flags is not null", limit=1).rows]
        except HloscopeError:
            pass
    found = next((match[1] for text in texts if (match := _FLAG.search(text)) is not None), None)
    return None if found in _ALL else found


def among(run: Run, index: int, pattern: str | None) -> str | None:
    """``A … B`` where any pass of a range may have done what a row shows; None where the row's own pass did.

    `pattern` is what `dumped_passes` says.
    """
    row = run.outline[index]
    if row.unannounced is not None:
        return row.unannounced
    if pattern is None or not index or not row.own_snapshot:
        return None
    last = run.outline[index - 1]
    # A row without a snapshot stands for a pass that the compiler told of: then none is left out.
    if not last.own_snapshot or last.next_pass == row.pass_name or row.pass_name == _START:
        return None
    return f"{last.next_pass or last.pass_name} … {row.pass_name}"
