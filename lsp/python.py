"""Python files with Pallas kernels: findings and hover from the text alone. Nothing is imported and nothing runs."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lsprotocol import types

from hloscope.core.errors import UsageError
from hloscope.core.pallas.static_source import scan_text
from hloscope.lsp.convert import SEVERITIES, SOURCE
from hloscope.lsp.positions import Encoding, TextLines

if TYPE_CHECKING:
    from hloscope.core.pallas.checks.finding import Finding
    from hloscope.core.pallas.report import CallReport

_MENTIONS = re.compile(r"\bpallas")
MOST_CHARACTERS = 2_000_000
"""Longer files are left alone: no kernel is that long."""
_SHOWN = ("array", "block", "space")


def is_python(uri: str, language: str) -> bool:
    """Whether a text is a Python file, by its language or its name."""
    return language.lower() == "python" or unquote(urlsplit(uri).path).endswith(".py")


def findings(uri: str, lines: TextLines, encoding: Encoding) -> list[types.Diagnostic]:
    """What is wrong with the Pallas calls of a file, as far as its text tells."""
    _, found = _scanned(uri, lines.text)
    out: list[types.Diagnostic] = []
    for one in found:
        start = _offset(lines, one.line, one.column)
        end = max(start + 1, _offset(lines, one.end_line, one.end_column))
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
            start = _offset(lines, row["line"], row["column"])
            end = max(start + 1, _offset(lines, row["end_line"], row["end_column"]))
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


def hover(uri: str, lines: TextLines, position: types.Position) -> types.Hover | None:
    """Within a ``pallas_call``: its grid, its steps and the blocks of its operands."""
    calls, _ = _scanned(uri, lines.text)
    if not calls:
        return None
    ends = _ends(lines.text)
    line = position.line + 1
    for call in calls:
        if call.line <= line <= ends.get(call.line, call.line):
            return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, _markdown(call)))
    return None


def _scanned(uri: str, text: str) -> tuple[list[CallReport], list[Finding]]:
    if len(text) > MOST_CHARACTERS or _MENTIONS.search(text) is None:
        return [], []
    try:
        return scan_text(text, os.path.basename(unquote(urlsplit(uri).path)) or "kernel.py")
    except (UsageError, RecursionError):
        return [], []  # half-typed: the editor's own Python support says so


def _ends(text: str) -> dict[int, int]:
    """First line of every call -> its last line."""
    found: dict[int, int] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and node.end_lineno is not None:
            found[node.lineno] = max(found.get(node.lineno, 0), node.end_lineno)
    return found


def _markdown(call: CallReport) -> str:
    grid = "not known here" if call.grid is None else " × ".join("?" if n is None else str(n) for n in call.grid)
    steps = "" if call.steps is None else f" · {call.steps:,} steps"
    lines = [f"**pallas_call** of `{call.name}`", "", f"grid {grid or '()'}{steps}", ""]
    for row in call.operands:
        parts = [f"{key} `{_text(row[key])}`" for key in _SHOWN if row.get(key)]
        lines.append(f"- {row.get('name', 'operand')}: {', '.join(parts)}")
    if call.scratch:
        lines.append(f"- scratch: {', '.join(f'`{one}`' for one in call.scratch)}")
    return "\n".join(lines)


def _text(value: object) -> str:
    return f"({', '.join(map(str, value))})" if isinstance(value, list | tuple) else str(value)


def _offset(lines: TextLines, line: int, column: int) -> int:
    return lines.offset(max(0, line - 1), max(0, column - 1), Encoding.UTF32)


def _range(lines: TextLines, start: int, end: int, encoding: Encoding) -> types.Range:
    first, last = lines.position(start, encoding), lines.position(end, encoding)
    return types.Range(types.Position(*first), types.Position(*last))
