"""A Python file as a tree, by tree-sitter: text that is half typed keeps everything but the statement that is.

A text without fault is read as it is. In another one, a bracket that is never closed would swallow what follows, for
inside brackets neither lines nor indentation end anything; so there it is read statement by statement, by indentation,
and a compound statement with a fault inside by its header and the statements of its suite. What is left is one simple
statement or one header. Its brackets are closed where the layout of its lines says that they end, and what a dangling
``=`` or ``lambda`` waits for becomes ``...``; what still does not fit is left out by the grammar's own recovery. Such
statements are listed as faults: they are worth showing, and no ground for a finding.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hloscope.core.pallas.python_expressions import HOLE
from hloscope.core.pallas.python_nodes import NodeReader

MOST_FAULTS = 200
"""Faults after which the rest is read as the grammar recovers it, since a text with more is hardly Python."""

LONGEST_HEADER = 200
"""Most lines over which the brackets of a ``def`` are followed."""

_COMPOUND = re.compile(r"\s*(?:@|(?:async\s+)?(?:def|class|for|with)\b|(?:if|while|try|match)\b)")
_CLAUSE = re.compile(r"\s*(?:else\b|elif\b|except\b|finally\b|case\b.*:\s*(?:#.*)?$)")
_CASE = re.compile(r"\s*case\b")
_KEYWORD = re.compile(r"\s*\w+\s*=(?!=)")
_DANGLING = re.compile(r"(?:[=+\-*/%&|^<>:@~]|\b(?:and|or|not|in|is|if|else|await))$")
_LAMBDA = re.compile(r"\blambda\b[^:()\[\]{}]*$")
_TOKENS = re.compile(
    r"(?P<long>\"\"\"|''')(?:\\.|(?!(?P=long)).)*(?:(?P=long))?"
    r"|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?"
    r"|\#[^\n]*|[()\[\]{}]|\n",
    re.S,
)
_ENDS = (")", "]", "}")
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_LONG_STRING = re.compile(r"\"\"\".*?\"\"\"|'''.*?'''", re.S)


@dataclass(frozen=True, slots=True)
class Reading:
    """A text that was read. The tree is shared and is not to be changed."""

    tree: ast.Module
    faults: tuple[tuple[int, int], ...]
    """First and last line of each statement that is no Python as it stands, 1-based."""

    def doubtful(self, first: int, last: int) -> bool:
        """Whether lines, 1-based and both included, touch a fault."""
        return any(begin <= last and first <= end for begin, end in self.faults)


@functools.lru_cache(maxsize=4)
def read_python(text: str) -> Reading:
    """Reads a text; lines end with ``\\n``, ``\\r\\n`` or ``\\r``. The last few answers are kept. Raises nothing."""
    source = re.sub(r"\r(?!\n)", "\n", text.removeprefix("\ufeff"))
    root = _parse(source)
    if not root.has_error:
        try:
            return Reading(ast.Module(NodeReader().body(root), []), ())
        except RecursionError:
            pass  # the statement that is nested so deeply is found below
    recovery = _Recovery(source)
    body = recovery.suite(0, len(recovery.lines), 0)
    return Reading(ast.Module(body, []), tuple(recovery.faults))


def _parse(source: str):  # noqa: ANN202 - the type is the grammar library's, which is imported only here
    return _parser().parse(source.encode("utf-8", "replace")).root_node


def _parser():  # noqa: ANN202
    import tree_sitter

    return tree_sitter.Parser(_language())


@functools.cache
def _language():  # noqa: ANN202
    import tree_sitter
    import tree_sitter_python

    return tree_sitter.Language(tree_sitter_python.language())


class _Recovery:
    """Reads a text with faults by its statements."""

    def __init__(self, source: str) -> None:
        self.lines = source.split("\n")
        self.faults: list[tuple[int, int]] = []
        self._inside: set[int] = set()
        if source.count('"""') % 2 == 0 and source.count("'''") % 2 == 0:
            for found in _LONG_STRING.finditer(source):
                first = source.count("\n", 0, found.start())
                self._inside.update(range(first + 1, first + found.group().count("\n") + 1))

    def suite(self, first: int, last: int, indent: int) -> list[ast.stmt]:
        """The statements of the lines ``[first, last)`` that stand at an indentation or left of it."""
        found: list[ast.stmt] = []
        for start, end in self._pieces(first, last, indent, clauses=False):
            found += self._piece(start, end)
        return found

    def _pieces(self, first: int, last: int, indent: int, clauses: bool) -> Iterator[tuple[int, int]]:
        """Where statements begin and end; with ``clauses``, ``else`` and the like begin one of their own."""
        start, decorated = first, False
        for number in range(first, last):
            line = self.lines[number]
            if number in self._inside or _width(line) > indent or not _says(line) or line.lstrip()[0] in _ENDS:
                continue
            begins = number > start and not decorated and (clauses or not _CLAUSE.match(line))
            decorated = line.lstrip().startswith("@")
            if begins:
                if any(_says(one) for one in self.lines[start:number]):
                    yield start, number
                start = number
        if any(_says(one) for one in self.lines[start:last]):
            yield start, last

    def _piece(self, start: int, end: int) -> list[ast.stmt]:
        while not _says(self.lines[start]):
            start += 1
        while not _says(self.lines[end - 1]):
            end -= 1
        whole = self._read(self.lines[start:end], start)
        if whole is not None:
            return whole
        if len(self.faults) < MOST_FAULTS:
            clauses = list(self._pieces(start, end, _width(self.lines[start]), clauses=True))
            if len(clauses) > 1:
                return [one for first, last in clauses for one in self._piece(first, last)]
            header = self._header(start, end)
            if header is not None:
                return self._compound(start, header, end)
        self.faults.append((start + 1, end))
        repaired = repaired_lines(self.lines[start:end])
        return self._read(repaired, start) or self._read(self.lines[start:end], start, anyway=True) or []

    def _header(self, start: int, end: int) -> int | None:
        """The line after the header of a compound statement; None where there is none or no suite of its own."""
        line = self.lines[start]
        if not (_COMPOUND.match(line) or _CLAUSE.match(line)):
            return None
        indent, number = _width(line), start
        while number < end and self.lines[number].lstrip().startswith("@"):
            number += 1
            while number < end and (_width(self.lines[number]) > indent or self.lines[number].lstrip()[:1] in _ENDS):
                number += 1
        last, depth = number, 0
        while last < min(end, number + LONGEST_HEADER) and (depth > 0 or last == number):
            depth += _depth(self.lines[last])
            last += 1
        if depth > 0:
            last = number + 1
        follows = next((one for one in range(last, end) if _says(self.lines[one])), None)
        return last if follows is not None and _width(self.lines[follows]) > indent else None

    def _compound(self, start: int, header: int, end: int) -> list[ast.stmt]:
        follows = next(one for one in range(header, end) if _says(self.lines[one]))
        indent = _width(self.lines[follows])
        lines = self.lines[start:header]
        rest = [" " * indent + "pass"]
        opened: list[ast.stmt] | None
        if _CLAUSE.match(lines[0]) or lines[0].split(":")[0].strip() == "try":
            # By itself no statement; the names that a case binds are all that its header adds.
            opened = self._read(lines + rest, start, before="match 0:") if _CASE.match(lines[0]) else None
            broken = False
        else:
            opened = self._read(lines + rest, start)
            broken = opened is None
        if broken:
            self.faults.append((start + 1, header))
            repaired = repaired_lines(lines)
            with_colon = [*repaired[:-1], repaired[-1].rstrip().removesuffix(" ...").rstrip(": ") + ":"]
            opened = self._read(with_colon + rest, start)
        body = self.suite(header, end, indent)
        holder = opened[-1] if opened else None
        if isinstance(holder, ast.Match) and holder.cases:
            holder.cases[0].body = body
        elif holder is not None and "body" in holder._fields:
            setattr(holder, "body", body)
        else:
            place = {"lineno": start + 1, "col_offset": 0, "end_lineno": end, "end_col_offset": 0}
            return [ast.If(ast.Name(HOLE, ast.Load(), **place), body, [], **place)]
        holder.end_lineno = end
        return opened or []

    def _read(
        self, lines: Sequence[str], start: int, *, before: str = "if 0:", anyway: bool = False
    ) -> list[ast.stmt] | None:
        """The statements of lines that begin at a line of the text; None where they have a fault and must not."""
        indented = _width(lines[0]) > 0
        nested = indented or before != "if 0:"
        if nested and not indented:
            return None
        source = "\n".join([before, *lines] if nested else lines)
        root = _parse(source + "\n")
        if root.has_error and not anyway:
            return None
        try:
            body = NodeReader(start - 1 if nested else start).body(root)
        except RecursionError:
            return []
        holder = body[0] if body else None
        if nested and isinstance(holder, ast.If) and len(body) == 1:
            return holder.body
        return body


# -- what the layout of lines says


def repaired_lines(lines: Sequence[str]) -> list[str]:
    """The lines of one statement with brackets and strings closed and dangling operators filled; none is added.

    A bracket ends before a line that stands no deeper than the line that opened it, and one that is not a call's ends
    before a line ``word=…``.
    """
    out: list[str] = []
    open_: list[tuple[str, int, bool]] = []
    for line in lines:
        if out and _says(line):
            closer = line.lstrip()[0] in _ENDS
            while open_:
                bracket, width, called = open_[-1]
                here = _width(line)
                ended = here < width or (here == width and not closer)
                if not ended and not (_KEYWORD.match(line) and not called):
                    break
                out[-1] = _closed(out[-1], bracket, more=len(open_) > 1 and not closer)
                open_.pop()
        out.append(_walked(line, open_))
    while open_:
        out[-1] = _closed(out[-1], open_.pop()[0], more=False)
    if out:
        out[-1] = _filled(out[-1])
    return out


def _walked(line: str, open_: list[tuple[str, int, bool]]) -> str:
    """A line with its own strings closed and its closing brackets matched to what is open, which it changes."""
    parts: list[str] = []
    at, width = 0, _width(line)
    for found in _TOKENS.finditer(line):
        token = found.group()
        parts.append(line[at : found.start()])
        at = found.end()
        if token in _PAIRS:
            before = "".join(parts).rstrip()[-1:]
            open_.append((token, width, bool(before) and (before.isalnum() or before in "_)]")))
        elif token in _ENDS:
            if any(_PAIRS[one[0]] == token for one in open_):
                missing = ""
                while (ends := _PAIRS[open_.pop()[0]]) != token:
                    missing += ends
                token = missing + token
            else:
                # The wrong one of the three, or one too many.
                token = _PAIRS[open_.pop()[0]] if open_ else " "
        elif token[0] in "\"'" and (len(token) == 1 or not token.endswith(token[0])):
            token += token[0]
        parts.append(token)
    return "".join(parts) + line[at:]


def _closed(line: str, bracket: str, more: bool) -> str:
    code, comment = _without_comment(line)
    ends = code.rstrip()
    return _filled(ends) + _PAIRS[bracket] + ("," if more and ends.endswith(",") else "") + comment


def _filled(line: str) -> str:
    code, comment = _without_comment(line)
    code = code.rstrip()
    if _LAMBDA.search(code):
        code += ": ..."
    elif code.endswith("."):
        code += "_"
    elif _DANGLING.search(code):
        code += " ..."
    return code + comment


def _without_comment(line: str) -> tuple[str, str]:
    for found in _TOKENS.finditer(line):
        if found.group().startswith("#"):
            return line[: found.start()], "  " + found.group()
    return line, ""


def _depth(line: str) -> int:
    tokens = [found.group() for found in _TOKENS.finditer(line)]
    return sum(1 if token in _PAIRS else -1 if token in _ENDS else 0 for token in tokens)


def _width(line: str) -> int:
    return len(line) - len(line.lstrip())


def _says(line: str) -> bool:
    stripped = line.lstrip()
    return bool(stripped) and not stripped.startswith("#")
