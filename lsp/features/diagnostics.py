"""What is wrong with a text: what the index did not understand, else what the full reader finds in it."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from lsprotocol import types

from hloscope.core.errors import Diagnostic
from hloscope.core.hlo.verifier import verify
from hloscope.core.text import parse_module
from hloscope.core.views.advice import advise
from hloscope.core.views.mesh_advice import misfits
from hloscope.lsp.convert import to_diagnostic
from hloscope.lsp.documents import Check, Reading
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.hlo.module import HloModule
    from hloscope.core.text.module_index import ModuleIndex

_AT_ONCE = 1_000
"""Instructions up to which the reader is so fast that "nothing wrong yet" is not worth saying first."""
_READ_INSTRUCTIONS = 10_000
"""The reader takes about 50 ms for a thousand instructions and cannot be stopped."""
_REST_SECONDS = 0.5
_MOST = 1_000
"""Findings that are shown; a text that is not HLO at all has one a line."""


def from_index(reading: Reading) -> list[types.Diagnostic] | None:
    """Findings of the index, a moment after the edit; None where `from_reader` says all there is about as soon."""
    index = reading.index
    if not index.errors and index.instruction_count <= _AT_ONCE:
        return None
    return _shown(reading, list(index.diagnostics))


def from_reader(reading: Reading, *, advice: bool = True) -> list[types.Diagnostic] | None:
    """Findings of the reader, and the index's hints on other lines.

    None for a text too large to read on each edit, and for one that the index could not make sense of in places: it
    picks up again closer to the fault than the reader, which then finds fault with what follows, too.
    """
    index = reading.index
    if index.errors or index.instruction_count > _READ_INSTRUCTIONS:
        return None
    module, found = parse_module(reading.text)
    if module is not None and not any(one.severity == "error" for one in found):
        found = [*found, *_invariants(reading, module), *(_advice(index) if advice else ())]
    lines = {one.line for one in found}
    return _shown(reading, [*found, *(one for one in index.diagnostics if one.line not in lines)])


def _invariants(reading: Reading, module: HloModule) -> Iterator[Diagnostic]:
    """What the verifier finds, at the names of the instructions."""
    index = reading.index
    for one in verify(module):
        span = (0, 0)
        home = index.find_computation(one.computation) if one.computation is not None else None
        if one.instruction is not None and (at := index.find(one.instruction, home)) is not None:
            span = index.name_span(at)
        elif home is not None:
            span = index.computation(home).name_span
        line, column = index.position(span[0])
        end_line, end_column = index.position(span[1])
        yield Diagnostic(
            one.message, line + 1, column + 1, end_line + 1, end_column + 1, "error", one.code, span[0], span[1]
        )


def _shown(reading: Reading, found: list[Diagnostic]) -> list[types.Diagnostic]:
    found.sort(key=lambda one: (one.offset, one.end_offset))
    return [to_diagnostic(reading, one) for one in found[:_MOST]]


def from_advice(reading: Reading) -> list[types.Diagnostic] | None:
    """Advice on a text that is too large for the full reader, from its index alone."""
    index = reading.index
    if index.errors or not _READ_INSTRUCTIONS < index.instruction_count <= FULL_INSTRUCTIONS:
        return None
    return _shown(reading, [*index.diagnostics, *_advice(index)])


def _advice(index: ModuleIndex) -> list[Diagnostic]:
    """Advice, and collectives that do not fit the devices."""
    out = advise(index)
    for i, message, _ in islice(misfits(index), _MOST):
        start, end = index.name_span(i)
        (line, column), (end_line, end_column) = index.position(start), index.position(end)
        out.append(
            Diagnostic(message, line + 1, column + 1, end_line + 1, end_column + 1, "warning", "mesh", start, end)
        )
    return out


def _rest(reading: Reading) -> float:
    return 0 if reading.index.instruction_count <= _AT_ONCE else _REST_SECONDS


def _advice_rest(reading: Reading) -> float:
    return _REST_SECONDS if reading.index.instruction_count > _READ_INSTRUCTIONS else 0


def checks(*, advice: bool) -> tuple[Check, ...]:
    """In the order in which their findings are published; `advice` adds hints on texts in which nothing is wrong."""
    plain = (Check(from_index, lambda _: 0), Check(partial(from_reader, advice=advice), _rest))
    return (*plain, Check(from_advice, _advice_rest)) if advice else plain
