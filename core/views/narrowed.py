"""Whose work a stage shows: where passes were not dumped, or a text is not readable, it may be that of several."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.dumps.filenames import FileKind, parse_name
from hloscope.core.dumps.lost import lost_before
from hloscope.core.dumps.nesting import running_pass
from hloscope.core.errors import HloscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.views.data import PassRow
    from hloscope.core.views.run import Run
    from hloscope.core.views.stages import StageRow

_FLAG = re.compile(r"xla_dump_hlo_pass_re(?:=|\s*:\s*)\"?([^\s\"]*)")
_ALL = (".*", ".+")
_START = "pipeline-start"
_END = "pipeline-end"


def dumped_passes(run: Run) -> str | None:
    """The ``--xla_dump_hlo_pass_re`` that left passes out of a run: empty where the flag is not known, but the stages
    show that some were left out; None where none was.

    With every pass dumped the first file of a pipeline is that of its start.
    """
    if run.source.kind == "hlo" or run.source.by_core or len(run) <= 1:
        return None
    texts = [run.report(FileKind.DEBUG_OPTIONS) or ""]
    if run.source.kind == "ledger":
        try:
            texts += [str(row[0]) for row in run.sql("select flags from runs where flags is not null", limit=1).rows]
        except HloscopeError:
            pass
    found = next((match[1] for text in texts if (match := _FLAG.search(text)) is not None), None)
    if found is not None:
        return None if found in _ALL else found
    return None if _starts_dumped(run) else ""


def only_some(pattern: str) -> str:
    """What `dumped_passes` says, in words."""
    return f"only passes that match {pattern!r} were dumped" if pattern else "not all passes were dumped"


def _starts_dumped(run: Run) -> bool:
    seen: set[str] = set()
    for row in run.outline:
        # Only the file after a pass names the one that comes next.
        if not row.own_snapshot or row.next_pass is None or row.pipeline in seen:
            continue
        seen.add(row.pipeline)
        if row.pass_name != _START:
            return False
    return bool(seen)


def among(run: Run, index: int, pattern: str | None) -> str | None:
    """``A … B`` where any pass of a range may have done what a row shows; None where the row's own pass did.

    `pattern` is what `dumped_passes` says.
    """
    row = run.outline[index]
    if (blurred := unread_range(run, index, pattern)) is not None:
        return blurred
    if row.unannounced is not None:
        return row.unannounced
    if not index or not row.own_snapshot:
        return None
    if row.pass_name == _START and (name := run.running_passes.get(index)) is not None:
        return f"{name} … {name}"
    last = run.outline[index - 1]
    # A row without a snapshot stands for a pass that the compiler told of: then none is left out.
    if not last.own_snapshot:
        return None
    # The start of a pipeline and the files around all passes are no pass: what changed is the work of one before.
    if row.pipeline and row.pass_name != _START and (pattern is None or _follows(last, row)):
        return None
    first = last.next_pass or last.pass_name
    first = f"{last.pipeline}/{_END}" if first == _END else first
    return f"{first} … {_end(row)}"


def running_passes(rows: Sequence[StageRow]) -> dict[int, str]:
    """The starts of pipelines that a pass runs: row → that pass, which shows there what it did until then."""
    own = [at for at, row in enumerate(rows) if row.file is not None]
    points = [(rows[at].pipeline, rows[at].pass_name, rows[at].next_pass) for at in own]
    found = {at: running_pass(points, number) for number, at in enumerate(own)}
    return {at: name for at, name in found.items() if name is not None}


def unread_range(run: Run, index: int, pattern: str | None) -> str | None:
    """``A … B`` for the first stage after texts that are not readable; None for any other."""
    unread = unread_passes(run, index)
    if not unread:
        return lost_range(run, index)
    # Where every pass was dumped, those between the last readable text and the first other one changed nothing.
    begin = run.outline[run.whole_before(index)].next_pass if pattern is not None else None
    return f"{begin or unread[0]} … {_end(run.outline[index])}"


def unseen_rows(rows: Sequence[StageRow]) -> list[int]:
    """The rows after which the module is in a state that no stage shows: a pass changed it, or may have."""
    found: list[int] = []
    for at, row in enumerate(rows):
        shown = (row.file is not None or row.own_snapshot) and row.fault is None
        if at and not shown and (row.changed is not False or found[-1:] == [at - 1]):
            found.append(at)
    return found


def lost_stages(rows: Sequence[StageRow]) -> dict[int, tuple[int, ...]]:
    """Row → the numbers of the stages that were dumped right before its own and are not there any more."""
    names = [parse_name(row.file) if row.file is not None else None for row in rows]
    return lost_before([None if name is None or name.step is None else (name.module_id, name.step) for name in names])


def lost_range(run: Run, index: int) -> str | None:
    """``A … B`` for a stage that shows the work of passes whose own stages are lost."""
    rows = run.outline
    if index not in run.lost:
        return None
    last = next((at for at in range(index - 1, -1, -1) if rows[at].file is not None), None)
    if last is None or _follows(rows[last], rows[index]):
        return None
    if run.known_timeline is not None:
        # Of passes that the compiler told of only those count that reported a change, or may have.
        for row in run.known_timeline[last + 1 : index]:
            if row.changed is not False:
                return f"{_end(row)} … {_end(rows[index])}"
    first = rows[last].next_pass or rows[last].pass_name
    return f"{rows[last].pipeline}/{_END} … {_end(rows[index])}" if first == _END else f"{first} … {_end(rows[index])}"


def _end(row: StageRow | PassRow) -> str:
    """The last pass of a range; the start of a pipeline is told with the pipeline."""
    return f"{row.pipeline}/{_START}" if row.pass_name == _START else row.pass_name


def unread_before(run: Run, index: int) -> list[int]:
    """The stages right before one whose texts are not readable."""
    found: list[int] = []
    for earlier in range(index - 1, -1, -1):
        if run.fault(earlier) is not None:
            found.insert(0, earlier)
        elif run.outline[earlier].own_snapshot:
            break
    return found


def unread_passes(run: Run, index: int) -> tuple[str, ...]:
    """The passes after which no text is readable, so that what they did is first seen in a stage; none for a stage that
    is not readable either."""
    unread = unread_before(run, index)
    return tuple(run.outline[one].pass_name for one in unread) if unread and run.fault(index) is None else ()


def told_range(among: str, unread: Sequence[str] = ()) -> str:
    """``A … B`` in words, with what keeps from telling which pass it was."""
    first, _, last = among.partition(" … ")
    if first == last:
        return f"{first}, before the pipeline that it runs began"
    if not unread:
        return f"a pass between {first} and {last}, which was not dumped"
    names = f"{unread[0]} and {len(unread) - 1} more" if len(unread) > 1 else unread[0]
    return f"a pass between {first} and {last} (the text after {names} was not readable)"


def _follows(last: StageRow, row: StageRow) -> bool:
    """Whether a stage is that before the very pass whose row it is."""
    step_inside = last.next_pass is None and last.pipeline
    if row.next_pass is None:
        return last.next_pass == row.pipeline or bool(step_inside and last.pipeline == row.pipeline)
    return last.next_pass == row.pass_name or bool(step_inside and last.pipeline == row.pass_name)
