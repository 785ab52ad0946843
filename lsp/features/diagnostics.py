"""What is wrong with a text: what the index did not understand, else what the full reader and the verifier find.

Small texts are read and verified here, a moment after the edit. Large ones are by another process, once nobody types;
until its answer is there, what it said before stands, as does advice, and the computations just edited are verified
here.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from hloscope.core.errors import Diagnostic, UsageError
from hloscope.core.views.advice import advise
from hloscope.core.views.findings import findings_of_text, findings_of_whole_computations
from hloscope.core.views.mesh_advice import misfits
from hloscope.core.views.unknown_opcodes import CODE as UNKNOWN_OPCODE
from hloscope.core.views.unknown_opcodes import unknown_opcodes
from hloscope.lsp.checker import MOST_INSTRUCTIONS, Checker
from hloscope.lsp.convert import to_diagnostic
from hloscope.lsp.documents import Check, Reading
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hloscope.core.errors import Severity
    from hloscope.core.hlo.verifier import Finding
    from hloscope.core.text.module_index import ModuleIndex

log = logging.getLogger(__name__)

_AT_ONCE = 1_000
"""Instructions up to which the reader is so fast that "nothing wrong yet" is not worth saying first."""
_REST_SECONDS = 0.5
_INSTRUCTIONS_A_SECOND = 100_000
"""Of more rest, for texts that take the other process long."""
_MISFIT = "mesh"
LARGE = "no hints where nothing is wrong"
_MOST = 1_000
"""Findings that are shown; a text that is not HLO at all has one a line."""


def from_index(reading: Reading, *, advice: bool = True) -> list[types.Diagnostic] | None:
    """Findings of the index, a moment after the edit, and what else is known by now; None where `from_reader` says all
    there is about as soon."""
    index = reading.index
    if index.instruction_count > _AT_ONCE:
        known = _known(reading)
        return _shown(reading, [*known, *(_advice_so_far(reading, known) if advice else ())])
    if not index.errors:
        return None
    # A fault in one computation hides nothing in those that are whole.
    found = [*_placed(reading, findings_of_whole_computations(index)), *unknown_opcodes(index)]
    return _shown(reading, [*index.diagnostics, *found])


def from_reader(reading: Reading, *, advice: bool = True) -> list[types.Diagnostic] | None:
    """Findings of the reader and the verifier on a small text, and the index's hints on other lines.

    None for a text too large to read on each edit, and for one that the index could not make sense of in places: it
    picks up again closer to the fault than the reader, which then finds fault with what follows, too.
    """
    index = reading.index
    if index.errors or index.instruction_count > _AT_ONCE:
        return None
    found = findings_of_text(reading.text)
    return _all(reading, found.reader, found.broken, advice=advice)


def from_advice(reading: Reading) -> list[types.Diagnostic] | None:
    """Advice on a text that is too large to be read at once, from its index alone."""
    index = reading.index
    if index.errors or not _AT_ONCE < index.instruction_count <= FULL_INSTRUCTIONS:
        return None
    if any(severity == "error" for _, severity, *_ in reading.verified.reader_so_far(reading)):
        return None
    known = _known(reading)
    return _shown(reading, [*known, *_advice(reading, known)])


def _is_asked(reading: Reading) -> bool:
    return not reading.index.errors and _AT_ONCE < reading.index.instruction_count <= MOST_INSTRUCTIONS


async def _ask(reading: Reading, checker: Checker) -> None:
    if not _is_asked(reading):
        return
    try:
        reading.verified.take(reading, await checker.check(reading.text))
    except UsageError as error:
        log.warning("%s is not verified: %s", reading.uri, error.message)


def from_checker(reading: Reading, *, advice: bool = True) -> list[types.Diagnostic] | None:
    """The same as `from_reader`, of a large text that the other process has read."""
    rows = reading.verified.reader(reading)
    if rows is None:
        return None
    index = reading.index
    advice = advice and index.instruction_count <= FULL_INSTRUCTIONS
    return _all(reading, _of_reader(index, rows), reading.verified.findings(reading), advice=advice)


def _of_reader(index: ModuleIndex, rows: Iterable[Sequence[Any]]) -> list[Diagnostic]:
    return [
        _diagnostic(index, start, end, message, severity, code, tuple((a, b, words) for a, b, words in related))
        for message, severity, code, start, end, related in rows
        if code != UNKNOWN_OPCODE
    ]


def _known(reading: Reading) -> list[Diagnostic]:
    """What is known of a large text by now: by the index all of it, by the others what still stands."""
    index = reading.index
    return _with_index(
        index,
        [
            *_of_reader(index, reading.verified.reader_so_far(reading)),
            *_placed(reading, reading.verified.findings(reading)),
        ],
    )


def _with_index(index: ModuleIndex, found: list[Diagnostic]) -> list[Diagnostic]:
    """These, and what the index finds on other lines."""
    lines = {one.line for one in found}
    return [*found, *unknown_opcodes(index), *(one for one in index.diagnostics if one.line not in lines)]


def _all(
    reading: Reading, found: Iterable[Diagnostic], broken: Iterable[Finding], *, advice: bool
) -> list[types.Diagnostic]:
    index = reading.index
    # Of these the reader says only the first.
    out = [one for one in found if one.code != UNKNOWN_OPCODE]
    faults = [one.offset for one in out if one.severity == "error"]
    if faults:
        small = index.instruction_count <= _AT_ONCE
        out += _placed(reading, findings_of_whole_computations(index, faults) if small else ())
        hints = _advice_so_far(reading, out) if advice and not small else []
    else:
        placed = list(_placed(reading, broken))
        out += placed
        hints = _advice(reading, placed) if advice else []
    return _shown(reading, [*_with_index(index, out), *hints])


def _placed(reading: Reading, broken: Iterable[Finding]) -> Iterator[Diagnostic]:
    """What the verifier finds, at the names of the instructions."""
    index = reading.index
    for one in broken:
        span = (0, 0)
        home = index.find_computation(one.computation) if one.computation is not None else None
        if one.instruction is not None and (at := index.find(one.instruction, home)) is not None:
            span = index.name_span(at)
        elif home is not None:
            span = index.computation(home).name_span
        yield _diagnostic(index, *span, one.message, "error", one.code)


def _diagnostic(
    index: ModuleIndex,
    start: int,
    end: int,
    message: str,
    severity: Severity,
    code: str,
    related: tuple[tuple[int, int, str], ...] = (),
) -> Diagnostic:
    (line, column), (end_line, end_column) = index.position(start), index.position(end)
    return Diagnostic(message, line + 1, column + 1, end_line + 1, end_column + 1, severity, code, start, end, related)


def _shown(reading: Reading, found: list[Diagnostic]) -> list[types.Diagnostic]:
    found.sort(key=lambda one: (one.offset, one.end_offset))
    return [to_diagnostic(reading, one) for one in found[:_MOST]]


def _advice(reading: Reading, wrong: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Advice, and collectives that do not fit the devices; of what is wrong already no more is said."""
    index = reading.index
    out = [*advise(index), *_misfits(index, None, wrong)]
    reading.verified.advise(index, out)
    return out


def _advice_so_far(reading: Reading, wrong: Sequence[Diagnostic]) -> list[Diagnostic]:
    """What of the last advice is still right: found in a moment, and so there from edit to edit."""
    index = reading.index
    if index.instruction_count > FULL_INSTRUCTIONS:
        return []
    among = reading.verified.advised(index)
    return [*advise(index, among=among), *_misfits(index, among.get(_MISFIT, ()), wrong)]


def _misfits(index: ModuleIndex, among: Iterable[int] | None, wrong: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    told = {one.offset for one in wrong}
    for i, message, _ in islice(misfits(index, among), _MOST):
        if index.name_span(i)[0] not in told:
            yield _diagnostic(index, *index.name_span(i), message, "warning", _MISFIT)


def _rest(reading: Reading) -> float:
    return _REST_SECONDS if reading.index.instruction_count > _AT_ONCE else 0


def _checker_rest(reading: Reading) -> float:
    """Beyond the rest that advice waits for."""
    return reading.index.instruction_count / _INSTRUCTIONS_A_SECOND if _is_asked(reading) else 0


def checks(*, advice: bool, checker: Checker) -> tuple[Check, ...]:
    """In the order in which their findings are published; `advice` adds hints on texts in which nothing is wrong."""
    small = (
        Check(partial(from_index, advice=advice), lambda _: 0),
        Check(partial(from_reader, advice=advice), lambda _: 0),
    )
    hints = Check(from_advice if advice else lambda _: None, _rest)
    return (*small, hints, Check(partial(from_checker, advice=advice), _checker_rest, partial(_ask, checker=checker)))
