"""Python files with Pallas kernels: findings and hover from the text alone. Nothing is imported and nothing runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lsprotocol import types

from hloscope.core.errors import UsageError
from hloscope.lsp.convert import SEVERITIES, SOURCE
from hloscope.lsp.positions import Encoding, TextLines

if TYPE_CHECKING:
    from hloscope.core.pallas.checks.finding import Finding
    from hloscope.core.pallas.report import CallReport
    from hloscope.core.views.pallas_source import BlockFacts, PallasFacts, Place, ScratchFacts

_MENTIONS = re.compile(r"\bpallas")
MOST_CHARACTERS = 2_000_000
"""Longer files are left alone: no kernel is that long."""


def is_python(uri: str, language: str) -> bool:
    """Whether a text is a Python file, by its language or its name."""
    return language.lower() == "python" or unquote(urlsplit(uri).path).endswith(".py")


def findings(uri: str, lines: TextLines, encoding: Encoding, target: str | None = None) -> list[types.Diagnostic]:
    """What is wrong with the Pallas calls of a file, as far as its text tells; on that chip, where one is named."""
    _, found = _scanned(uri, lines.text, target)
    out: list[types.Diagnostic] = []
    for one in found:
        start, end = _marked(lines, one.line, one.column, one.end_line, one.end_column)
        message = one.message if one.fix is None else f"{one.message} ({one.fix})"
        where = _range(lines, start, end, encoding)
        out.append(types.Diagnostic(where, message, severity=SEVERITIES[one.severity], code=one.code, source=SOURCE))
    return out


def traced(
    uri: str, path: str, answer: Mapping[str, Any]
) -> Callable[[TextLines | None, Encoding], list[types.Diagnostic]]:
    """The findings of a trace, or of a run, as diagnostics of one file; those in other files are left out."""

    def find(lines: TextLines | None, encoding: Encoding) -> list[types.Diagnostic]:
        if lines is None:
            with open(path, encoding="utf-8", errors="replace", newline="") as opened:
                lines = TextLines.of(opened.read())
        out: list[types.Diagnostic] = []
        for row in answer.get("findings", ()):
            if os.path.realpath(row["file"] or path) != os.path.realpath(path):
                continue
            start, end = _marked(lines, row["line"], row["column"], row["end_line"], row["end_column"])
            message = row["message"] if row["fix"] is None else f"{row['message']} ({row['fix']})"
            related = [
                types.DiagnosticRelatedInformation(
                    types.Location(uri, _point(lines, one["line"], one["column"], encoding)), one["message"]
                )
                for one in row.get("related", ())
                if os.path.realpath(one["file"]) == os.path.realpath(path)
            ]
            out.append(
                types.Diagnostic(
                    _range(lines, start, end, encoding), message, severity=SEVERITIES[row["severity"]],
                    code=row["code"], source=SOURCE, related_information=related or None,
                )
            )  # fmt: skip
        return out

    return find


def _point(lines: TextLines, line: int, column: int, encoding: Encoding) -> types.Range:
    at = _offset(lines, line, column)
    return _range(lines, at, at, encoding)


def hover(uri: str, lines: TextLines, position: types.Position, encoding: Encoding) -> types.Hover | None:
    """On a ``BlockSpec`` or a scratch shape: that one; elsewhere within a ``pallas_call`` or its ``grid_spec``: all of
    the call."""
    del uri
    if len(lines.text) > MOST_CHARACTERS or _MENTIONS.search(lines.text) is None:
        return None
    from hloscope.core.views.pallas_source import pallas_facts

    offset = lines.offset(position.line, position.character, encoding)
    line, column = (one + 1 for one in lines.position(offset, Encoding.UTF32))
    said: list[tuple[Place, str]] = []
    for call in pallas_facts(lines.text):
        said += [(one.place, f"- {call.name}, {_block(one)}") for one in call.blocks]
        said += [(one.place, f"- {call.name}, {_scratch(one)}") for one in call.scratch]
        said += [(place, _markdown(call)) for place in (call.grid_spec, call.place) if place is not None]
    here = [(place, text) for place, text in said if place.has(line, column)]
    if not here:
        return None
    # The innermost; what several calls share is told of each.
    inner = here[0][0]
    for place, _ in here:
        inner = place if place.within(inner) else inner
    text = "\n".join(dict.fromkeys(text for place, text in here if place == inner))
    start, end = _offset(lines, inner.line, inner.column), _offset(lines, inner.end_line, inner.end_column)
    content = types.MarkupContent(types.MarkupKind.Markdown, text)
    return types.Hover(content, _range(lines, start, end, encoding))


def _scanned(uri: str, text: str, target: str | None) -> tuple[list[CallReport], list[Finding]]:
    if len(text) > MOST_CHARACTERS or _MENTIONS.search(text) is None:
        return [], []
    # Half a second of start-up that most clients never need.
    from hloscope.core.pallas.static_source import scan_text

    try:
        name = os.path.basename(unquote(urlsplit(uri).path)) or "kernel.py"
        return scan_text(text, name, target=target, half_typed=True)
    except (UsageError, RecursionError):
        return [], []


def _markdown(call: PallasFacts) -> str:
    grid = "not known here" if call.grid is None else " × ".join("?" if n is None else str(n) for n in call.grid)
    steps = "" if call.steps is None else f" · {call.steps:,} steps"
    semantics = f" · {', '.join(call.semantics)}" if call.semantics else ""
    of = "" if call.name == "pallas_call" else f" of `{call.name}`"
    lines = [f"**pallas_call**{of}", "", f"grid {grid or '()'}{steps}{semantics}", ""]
    lines += [f"- {_block(one)}" for one in call.blocks]
    lines += [f"- {_scratch(one)}" for one in call.scratch]
    total, unknown = call.total
    if call.memory is not None and (total or unknown):
        what = {"vector": "a TPU's vector memory (tiles padded, two of each block)", "shared": "shared memory"}
        least = "at least " if unknown else ""
        size = f"{least}{total:,} bytes of {what[call.memory]}"
        lines += ["", size if total else "the text does not give the sizes of its blocks in bytes"]
    return "\n".join(lines)


def _scratch(one: ScratchFacts) -> str:
    return f"scratch `{one.text}`" + (f", {one.bytes:,} bytes" if one.bytes else "")


def _block(one: BlockFacts) -> str:
    parts = [f"{one.title}: "]
    if one.array is not None:
        parts.append(f"array `{one.array}`, ")
    parts.append(f"block `{one.block}`")
    if one.bytes is not None:
        parts.append(f" of {one.bytes:,} bytes")
    if one.space != "default":
        parts.append(f" in {one.space}")
    if one.index_map is not None:
        parts.append(f", index map `{one.index_map}`")
    return "".join(parts)


def _offset(lines: TextLines, line: int, column: int) -> int:
    return lines.offset(max(0, line - 1), max(0, column - 1), Encoding.UTF32)


def _marked(lines: TextLines, line: int, column: int, end_line: int, end_column: int) -> tuple[int, int]:
    """From where to where a finding is shown: the line's text where it names nothing wider than a place."""
    start, end = _offset(lines, line, column), _offset(lines, end_line, end_column)
    if end > start:
        return start, end
    first, last = _offset(lines, line, 1), _offset(lines, line, 1 << 30)
    text = lines.text[first:last]
    start = max(start, first + len(text) - len(text.lstrip()))
    return start, max(start + 1, first + len(text.rstrip()))


def _range(lines: TextLines, start: int, end: int, encoding: Encoding) -> types.Range:
    first, last = lines.position(start, encoding), lines.position(end, encoding)
    return types.Range(types.Position(*first), types.Position(*last))
