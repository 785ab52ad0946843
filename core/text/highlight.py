"""HLO text as coloured tokens, for the dashboard and the language server.

The tree-sitter grammar in ``core/text/grammar`` with ``core/text/queries/highlights.scm`` decides where its extension
was built; the regular expressions of `highlight_plain` give the same classes on ordinary lines where it was not, and
in the parts of a text that the grammar does not understand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from hloscope.core.text.highlight_plain import Token, plain_tokens

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Query

CLASSES: Final = ("name", "define", "opcode", "shape", "layout", "key", "string", "number", "comment", "keyword")
"""Classes of tokens: ``define`` is a name where it is defined, ``key`` what stands before ``=``, ``shape`` an element
type with its dimensions, ``layout`` the braces after it."""

_CLASS_OF_CAPTURE: Final = {
    "variable": "name",
    "variable.parameter": "name",
    "variable.definition": "define",
    "function": "name",
    "function.definition": "define",
    "module": "name",
    "function.builtin": "opcode",
    "type": "shape",
    "attribute": "layout",
    "property": "key",
    "string": "string",
    "number": "number",
    "boolean": "number",
    "comment": "comment",
    "keyword": "keyword",
}
_BROKEN: Final = "broken"
"""Stands for what the grammar did not understand, until the regular expressions have read it."""


LONG_LINE: Final = 1 << 16
"""Characters of a line above which its tokens come from the regular expressions, which can begin in its middle."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The grammar and its highlight query, both immutable and shared by all threads."""

    language: Language
    highlights: Query


@cache
def grammar() -> Grammar | None:
    """The grammar; None where the extension was not built or does not fit the installed tree_sitter."""
    try:
        import tree_sitter

        from hloscope.core.text import _hlo_grammar

        language = tree_sitter.Language(_hlo_grammar.language())
        source = resources.files("hloscope.core.text").joinpath("queries", "highlights.scm").read_text("utf-8")
        highlights = tree_sitter.Query(language, source)
        for capture in range(highlights.capture_count):
            name = highlights.capture_name(capture)
            if name not in _CLASS_OF_CAPTURE:
                # Brackets and commas are a third of all nodes.
                highlights.disable_capture(name)
        return Grammar(language, highlights)
    # ValueError: the installed tree_sitter reads other ABI versions only.
    except (ImportError, OSError, ValueError):
        return None


def engine() -> str:
    """What colours: ``tree-sitter`` or ``regular expressions``."""
    return "regular expressions" if grammar() is None else "tree-sitter"


def tokens(text: str, start: int = 0, end: int | None = None) -> list[Token]:
    """The tokens of ``text[start:end]`` as (start, end, class), in order and without overlap; offsets are characters.

    Only the lines that the range touches are read, and of lines of 64 KB and more only what is near, so the cost does
    not grow with the text around it; a token that begins before the range or ends behind it is cut. What has no class
    (punctuation, enumeration words) is left out.
    """
    end = len(text) if end is None else min(end, len(text))
    start = max(start, 0)
    if start >= end:
        return []
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last
    if start - first > LONG_LINE or last - end > LONG_LINE or _has_long_line(text, first, last):
        found = plain_tokens(text, *_window(text, first, start, end, last))
    else:
        known = grammar()
        found = plain_tokens(text, first, last) if known is None else _tree_tokens(known, text[first:last], first)
    if first == start and last == end:
        return found
    return [(max(a, start), min(b, end), kind) for a, b, kind in found if a < end and b > start]


def understood(text: str) -> bool:
    """Whether the grammar reads whole lines without a fault: how it goes on after one depends on what is around."""
    known = grammar()
    if known is None:
        return True
    from tree_sitter import Parser

    return not Parser(known.language).parse(text.encode("utf-8", "surrogatepass")).root_node.has_error


def _has_long_line(text: str, first: int, last: int) -> bool:
    if last - first <= LONG_LINE:
        return False
    while last - first > LONG_LINE:
        end = text.rfind("\n", first, first + LONG_LINE)
        if end < 0:
            return True
        first = end + 1
    return False


def _window(text: str, first: int, start: int, end: int, last: int) -> tuple[int, int]:
    """The part of very long lines that the regular expressions read: a little more than what is asked for.

    It begins where a string does if the range begins inside one.
    """
    begin = max(first, start - LONG_LINE)
    if begin > first:
        line = text.rfind("\n", first, begin) + 1 or first
        if text.count('"', line, begin) % 2:
            begin = text.rfind('"', line, begin)
        else:
            begin = max(text.rfind(" ", line, begin) + 1, line)
    return begin, min(last, end + LONG_LINE)


def _tree_tokens(known: Grammar, text: str, base: int) -> list[Token]:
    from tree_sitter import Parser, QueryCursor

    data = text.encode("utf-8", "surrogatepass")
    root = Parser(known.language).parse(data).root_node
    # Sorts an outer token before those inside it, which it then hides; a broken part before everything in it; and of
    # two captures of one node the definition, which is also a name, first.
    spans: list[tuple[int, int, int, str]] = []
    for capture, nodes in QueryCursor(known.highlights).captures(root).items():
        kind = _CLASS_OF_CAPTURE.get(capture)
        if kind is not None:
            rank = 1 if kind == "define" else 2
            spans.extend((node.start_byte, -node.end_byte, rank, kind) for node in nodes)
    if root.has_error:
        spans.extend((start, -end, 0, _BROKEN) for start, end in _errors(root))
    spans.sort()
    to_character = None if text.isascii() else _Characters(data)
    out: list[Token] = []
    reached = 0
    for start, minus_end, _, kind in spans:
        end = -minus_end
        if start < reached or start == end:
            continue
        reached = end
        if to_character is not None:
            start, end = to_character(start), to_character(end)
        if kind == _BROKEN:
            out.extend((base + a, base + b, inner) for a, b, inner in plain_tokens(text, start, end))
        elif kind == "shape" and out and out[-1][1] == base + start and out[-1][2] == "shape":
            # An element type and its dimensions are one token.
            out[-1] = (out[-1][0], base + end, kind)
        else:
            out.append((base + start, base + end, kind))
    return out


def _errors(root: Node) -> list[tuple[int, int]]:
    """Byte ranges of the outermost nodes that the grammar could not read."""
    out: list[tuple[int, int]] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.is_error:
            out.append((node.start_byte, node.end_byte))
        elif node.has_error:
            waiting.extend(node.children)
    return out


class _Characters:
    """Character offsets of growing byte offsets."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._byte = self._character = 0

    def __call__(self, byte: int) -> int:
        self._character += len(self._data[self._byte : byte].decode("utf-8", "surrogatepass"))
        self._byte = byte
        return self._character
