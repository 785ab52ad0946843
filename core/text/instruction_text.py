"""One instruction's text cut into its parts with their spans, whatever shape the text is in.

Two ways in, one grammar: `ROW`, a compiled pattern that takes the forms XLA prints at C speed (every repeat is atomic,
so that a failing match costs one walk over the text), and `scan_instruction`, which reads by hand what the pattern does
not: values over several lines, unclosed brackets, half-typed lines. Nothing here raises on any text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.core.hlo.attributes import CALLED, CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterator

Span = tuple[int, int]
"""Character offsets: start, and one past the end."""

# ---------------------------------------------------------------- the pattern
# Group repeats are written (?>(?:…)*), not (?:…)*+: before 3.11.5 the latter does not give back a half-matched round.
_WORD = r"[A-Za-z0-9_.\-]++"
_STRING = r'"[^"\\\n]*+(?>(?:\\.[^"\\\n]*+)*)"'


def _nested(left: str, right: str, depth: int) -> str:
    """A bracket group on one line that holds groups of its own kind up to `depth` deep; strings are skipped."""
    left, right = re.escape(left), re.escape(right)
    plain = rf'[^{left}{right}"\n]*+'
    inner = plain
    for _ in range(depth):
        inner = rf"{plain}(?>(?:(?:{_STRING}|{left}{inner}{right}){plain})*)"
    return rf"{left}{inner}{right}"


_BRACES = _nested("{", "}", 7)
_PARENS = _nested("(", ")", 4)
_ARRAY_SHAPE = r"[a-z][a-z0-9]*+\[[^\]\n]*+\](?:\{[^{}\n]*+\})?+"
_SHAPE = rf"(?:{_ARRAY_SHAPE}|b?+{_PARENS})"
_OPERANDS = rf'[^()"\n]*+(?>(?:(?:{_STRING}|{_PARENS})[^()"\n]*+)*)'
_VALUE = rf"""(?:[^\s,{{}}"'()\[\]]++|{_STRING}|{_BRACES}|\[[^\[\]\n]*+\](?: (?=\{{))?+|{_PARENS})"""
_ATTRIBUTES = rf"(?>(?:,\s*+{_WORD}={_VALUE}(?>(?:{_VALUE})*))*)"
_INSTRUCTION = (
    rf"(\s*+(?:ROOT )?+%?+)({_WORD}) = ({_SHAPE}) ([a-z][a-z0-9\-]*+)\(({_OPERANDS})\)({_ATTRIBUTES})(?![^\s}}])"
)
_CLOSE = rf"(\s*+\}}(?:,\s*+execution_thread={_STRING})?+(?:[ \t]*+//[^\n\r]*+)?+)"
_HEADER = rf"(\s*+(?:ENTRY\s++)?+%?+[A-Za-z_][A-Za-z0-9_.\-]*+(?>(?:\s*+{_PARENS}\s*+->\s*+{_SHAPE})?)\s*+\{{)"

ROW = re.compile(rf"{_INSTRUCTION}|{_CLOSE}|{_HEADER}")
"""One instruction (groups: lead, name, shape, opcode, operands, attributes), a computation's end, or its header."""
ROWS = re.compile(rf"{_INSTRUCTION}|{_CLOSE}|{_HEADER}|(\s++|[^\n]++)")
"""`ROW`, or anything else up to the line's end, so that its matches tile a text without gaps."""
# The same with blanks as one types them, without a shape, and whatever behind it: what `scan_instruction` makes of
# ordinary words, several times faster. Only brackets that pair up, since that is what it takes.
_BARE_TEXT = r'[^()"\[\]{}\n]*+'


def _paired(depth: int) -> str:
    """A string or a group in any brackets, with others inside up to `depth` deep."""
    inner = rf"{_BARE_TEXT}(?>(?:{_paired(depth - 1)}{_BARE_TEXT})*)" if depth else _BARE_TEXT
    return rf"(?:{_STRING}|\({inner}\)|\[{inner}\]|\{{{inner}\}})"


_LISTS = rf"{_BARE_TEXT}(?>(?:{_paired(2)}{_BARE_TEXT})*)"
_TYPED_SHAPE = rf"(?:[a-z][a-z0-9]*+\[[^\]\n]*+\](?:\{{[0-9:][^{{}}\n]*+\}}|(?!\s*+\{{))|\({_LISTS}\))"
_TYPED_VALUE = rf"""(?:[^\s,{{}}"'()\[\]]++|{_paired(3)})"""
_TYPED_ATTRIBUTES = rf"(?>(?:,\s*+{_WORD}={_TYPED_VALUE}(?>{_TYPED_VALUE}*)(?![\"'(\[{{]))*)"
TYPED_ROW = re.compile(
    rf"((?:ROOT\s++)?+%?+)({_WORD})\s*+=(?!=)\s*+((?:{_TYPED_SHAPE})?+)\s*+"
    rf"([A-Za-z_][A-Za-z0-9_\-]*+)\s*+\(({_LISTS})\)({_TYPED_ATTRIBUTES})"
)
"""An instruction that `ROW` does not take; the groups are its first six. Whoever uses it looks at what follows."""
FIXED_CHARACTERS = len(" = ") + len(" ") + len("()")
"""Characters of an instruction row that are in no group."""
MAX_ROW = 1 << 20
"""Longest text that the pattern is tried on: its atomic groups keep a record per round until they end."""

HEADER_PARTS = re.compile(r"\s*+(ENTRY\s++)?+%?+([A-Za-z_][A-Za-z0-9_.\-]*+)")
"""A header's ENTRY word and name."""
OPERAND_SHAPE = re.compile(rf"{_SHAPE} ")
"""A shape printed before an operand's name."""
NAME_LIST = re.compile(r"%?+[A-Za-z_][A-Za-z0-9_.\-]*+(?>(?:, %?+[A-Za-z_][A-Za-z0-9_.\-]*+)*)")
"""Operands as names alone."""
CALLS = re.compile(rf"{_STRING}|(?<![\w.\-])(?:{'|'.join(CALLED)})=(\{{[^{{}}]*+\}}|%?+{_WORD})")
"""Strings (group 1 empty) and attributes that name computations (group 1 the value), in an instruction's attributes."""
INLINE_BODY = re.compile(rf"(?<![\w.\-])(?:{'|'.join(CALLED)})=\s*+\{{\s*+(?:ROOT\s++)?+%?+{_WORD}\s*+=")
"""A called computation written out in place."""
INLINE_HINT = re.compile(rf"=\{{\s*+(?:ROOT\s++)?+%?+{_WORD}\s++=")
"""Cheap test for `INLINE_BODY` in the forms that `ROW` takes; true for some other texts too."""
COMMENT = re.compile(r"/\*.*?\*/", re.S)
BLANK = re.compile(r"(?>(?:\s++|//[^\n\r]*+|/\*(?:[^*]++|\*(?!/))*+\*/)*)")
"""Blanks and comments."""

# ---------------------------------------------------------------- by hand
_HEAD = re.compile(rf"(ROOT\s++)?+%?+({_WORD})\s*+=(?!=)")
_BLANKS = re.compile(r"\s*+")
_WORDS = re.compile(_WORD)
_OPCODE = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*+")
_OPCODE_OPEN = re.compile(r"([A-Za-z_][A-Za-z0-9_\-]*+)\s*+\(")
_ARRAY = re.compile(r"[a-z][a-z0-9]*+\s*+\[[^\]\n]*+\]")
_LAYOUT = re.compile(r"\s*+\{(?=\s*(?:\d|:))[^{}\n]*+\}")
_KEY = re.compile(rf"({_WORD})=")
_BARE = re.compile(r"""[^\s,{}"'()\[\]]++""")
_SINGLE_QUOTED = re.compile(r"'[^'\\\n]*+(?>(?:\\.[^'\\\n]*+)*)'")
# What can only begin a new instruction or computation: a bracket or string that reaches it was never closed.
_BREAK = r"\n[ \t\r]*+(?:ROOT\s++)?+%?+[A-Za-z0-9_.\-]++ = (?:\(|[a-z][a-z0-9\-]*+[\[(])|\nENTRY\b|\nHloModule\b"
_BREAKS = re.compile(_BREAK)
_STRUCTURE = re.compile(rf'["(){{}}\[\]]|{_BREAK}')
_BODY_STRUCTURE = re.compile(r'["(){}\[\]]|\nENTRY\b|\nHloModule\b')
_PAIRS = {"(": ")", "{": "}", "[": "]"}
_MANY = 1000
_STRIDE = re.compile(
    rf'(?>(?:[^"(){{}}\[\]\n]++|{_STRING}|{"|".join(_nested(*pair, 2) for pair in _PAIRS.items())}){{1,1000}})'
)
"""Balanced text at one depth; bounded, because every round is recorded until the group ends."""
_STRING_START = re.compile(r'[^"\\]*+(?>(?:\\.[^"\\]*+){0,1000})', re.S)

_REFERENCE = re.compile(
    rf"/\*.*?\*/|{_STRING}|{_ARRAY_SHAPE}|%(?P<percent>{_WORD})|{_WORD}\s*+\(|(?P<bare>{_WORD})|\{{[^{{}}\n]*+\}}", re.S
)
_NAME_IN_LIST = re.compile(rf"%?+({_WORD})")


@dataclass(slots=True)
class AttributeText:
    """``key=value`` with the spans of both."""

    key: str
    key_span: Span
    value: Span


@dataclass(slots=True)
class Reference:
    """A name used by an instruction."""

    name: str
    span: Span
    """Without the percent sign."""
    attribute: str | None = None
    """The attribute it stands in; None for an operand."""


@dataclass(slots=True)
class InstructionText:
    """Spans of one instruction's parts. Parts that the text does not have are None."""

    start: int
    """First character, the word ROOT included."""
    end: int
    name: Span
    is_root: bool
    shape: Span | None = None
    opcode: Span | None = None
    operands: Span | None = None
    """Inside of the parentheses."""
    attributes: list[AttributeText] = field(default_factory=list[AttributeText])
    problems: list[tuple[str, str, int, int]] = field(default_factory=list[tuple[str, str, int, int]])
    """Code, message, start, end of what is wrong."""
    reached: int = 0
    """How far the text was read in vain for something that is not closed."""

    def operand_references(self, text: str) -> Iterator[Reference]:
        """Names of operands in order; those of an operand written out in place are among them."""
        if self.operands is None or self.opcode is None:
            return
        if text[self.opcode[0] : self.opcode[1]] in ("constant", "parameter"):
            return
        for start, end in operand_names(text, *self.operands):
            yield Reference(text[start:end], (start, end))

    def attribute_references(self, text: str, keys: tuple[str, ...] | None = None) -> Iterator[Reference]:
        """Names in attributes: computations of the calling ones, instructions of control-predecessors."""
        for attribute in self.attributes:
            key = attribute.key
            if key not in CALLED and key != CONTROL or keys is not None and key not in keys:
                continue
            start, end = attribute.value
            if INLINE_BODY.match(text, attribute.key_span[0], end):
                continue
            for found in _NAME_IN_LIST.finditer(text, start, end):
                yield Reference(found[1], found.span(1), key)

    def attribute(self, key: str) -> AttributeText | None:
        """The attribute of that name, the first of several."""
        return next((a for a in self.attributes if a.key == key), None)


def operand_names(text: str, start: int, end: int) -> Iterator[Span]:
    """Spans of the operand names in an operand list: shapes, comments, strings and nested opcodes are passed over."""
    for found in _REFERENCE.finditer(text, start, end):
        if found.lastgroup == "percent":
            yield found.span("percent")
        elif found.lastgroup == "bare":
            first = text[found.start()]
            if first.isalpha() or first == "_":
                yield found.span("bare")


def match_close(text: str, pos: int, limit: int, *, holds_instructions: bool = False) -> int:
    """The position after the bracket that closes the one at `pos`, before `limit`; negative where it is not closed
    before a line that can only begin something new, or where brackets cross: minus the position reached. Strings are
    passed over."""
    structure = _BODY_STRUCTURE if holds_instructions else _STRUCTURE
    stack: list[str] = []
    i, rounds = pos, 0
    while True:
        found = structure.search(text, i, limit)
        if found is None:
            return -limit - 1
        ch = found[0]
        if ch == '"':
            i = string_end(text, found.start(), limit)
            if i < 0:
                return i
            continue
        if ch in _PAIRS:
            stack.append(_PAIRS[ch])
        elif len(ch) > 1 or not stack or stack.pop() != ch:
            return -found.end() - 1
        elif not stack:
            return found.end()
        i = found.end()
        rounds += 1
        if rounds > _MANY:
            # A long literal or configuration: take what is balanced in strides.
            stride = _STRIDE.match(text, i, limit)
            while stride is not None:
                i = stride.end()
                stride = _STRIDE.match(text, i, limit)


def string_end(text: str, pos: int, limit: int) -> int:
    """The position after the double-quoted string at `pos`; negative where it is not closed before `limit` or before a
    line that can only begin something new: minus the position reached."""
    end = pos + 1
    while not text.startswith('"', end):
        found = _STRING_START.match(text, end, limit)
        if found is None or found.end() == end or end >= limit:
            return -limit - 1
        end = found.end()
    broken = _BREAKS.search(text, pos, end)
    return end + 1 if broken is None else -broken.end() - 1


def line_end(text: str, pos: int) -> int:
    """The end of the line that holds `pos`, without the newline."""
    end = text.find("\n", pos)
    return len(text) if end < 0 else end


def skip_blank(text: str, pos: int) -> int:
    """The first position that is neither blank nor comment."""
    found = BLANK.match(text, pos)
    return found.end() if found is not None else pos


def shape_end(text: str, pos: int, limit: int) -> int:
    """The end of the shape at `pos`; negative where none begins or it is not closed."""
    if text.startswith("(", pos):
        return match_close(text, pos, limit)
    if text.startswith("b(", pos):
        return match_close(text, pos + 1, limit)
    found = _ARRAY.match(text, pos)
    if found is None:
        return -1
    layout = _LAYOUT.match(text, found.end())
    return layout.end() if layout is not None else found.end()


def value_end(text: str, pos: int, limit: int) -> int:
    """The end of the attribute value at `pos` (`pos` itself where none begins); negative where a bracket or string is
    not closed: minus the position reached."""
    i = pos
    while i < limit:
        ch = text[i]
        if ch == '"':
            i = string_end(text, i, limit)
        elif ch == "'":
            found = _SINGLE_QUOTED.match(text, i, limit)
            i = found.end() if found is not None else -i - 2
        elif ch in _PAIRS:
            i = match_close(text, i, limit)
        else:
            found = _BARE.match(text, i)
            if found is None:
                # A mesh carries its axes after a blank: mesh['a'=2] {'a'}.
                if ch == " " and text[i - 1] == "]" and text.startswith("{", i + 1):
                    i += 1
                    continue
                return i
            i = found.end()
        if i < 0:
            return i
    return i


def scan_instruction(text: str, pos: int, limit: int | None = None) -> InstructionText | None:
    """The instruction that begins at `pos` (blanks not skipped); None where no ``name =`` does.

    Nothing is looked for past `limit`, the end of the text by default.
    """
    if limit is None:
        limit = len(text)
    head = _HEAD.match(text, pos)
    if head is None:
        return None
    out = InstructionText(pos, head.end(), head.span(2), head[1] is not None)
    i = skip_blank(text, head.end())
    end = shape_end(text, i, limit)
    if end >= 0:
        out.shape = (i, end)
        out.end = end
        i = skip_blank(text, end)
    else:
        out.reached = -end
    opened = _OPCODE_OPEN.match(text, i)
    if opened is None:
        _stop_early(text, out, i)
        return out
    out.opcode = opened.span(1)
    close = match_close(text, opened.end() - 1, limit)
    if close < 0:
        out.reached = -close
        stop = line_end(text, opened.end())
        out.operands = (opened.end(), stop)
        out.end = stop
        out.problems.append(("unclosed", "the operand list is not closed", opened.end() - 1, stop))
        return out
    out.operands = (opened.end(), close - 1)
    out.end = close
    _scan_attributes(text, out, limit)
    return out


def _stop_early(text: str, out: InstructionText, pos: int) -> None:
    """Note what is missing in an instruction that has no opcode with operands, and where it ends."""
    stop = line_end(text, out.end)
    if pos > stop:
        pos = out.end
    word = _OPCODE.match(text, pos)
    if word is not None:
        out.opcode = word.span()
        out.end = word.end()
        out.problems.append(("syntax", f"expected '(' after {word[0]!r}", word.end(), word.end()))
    elif out.shape is None:
        out.problems.append(("syntax", "expected a shape and an opcode", pos, pos))
    else:
        out.problems.append(("syntax", "expected an opcode", pos, pos))
    rest = text[out.end : stop]
    if rest.strip() and "}" not in rest and "=" not in rest:
        out.end = stop


def _scan_attributes(text: str, out: InstructionText, limit: int) -> None:
    i = out.end
    while True:
        comma = skip_blank(text, i)
        if not text.startswith(",", comma):
            return
        key = _KEY.match(text, skip_blank(text, comma + 1))
        if key is None:
            out.end = comma + 1
            word = _WORDS.match(text, _BLANKS.match(text, comma + 1).end())  # type: ignore[union-attr]
            stop = line_end(text, comma)
            if word is not None and word.end() <= stop and not text[word.end() : stop].lstrip().startswith("="):
                out.end = word.end()
            out.problems.append(("syntax", "expected an attribute after the comma", comma, out.end))
            return
        start = key.end()
        if text.startswith("{", skip_blank(text, start)):
            start = skip_blank(text, start)
        if text.startswith("{", start) and INLINE_BODY.match(text, key.start(), limit):
            end = match_close(text, start, limit, holds_instructions=True)
        else:
            end = value_end(text, start, limit)
        if end < 0:
            out.reached = -end
            stop = line_end(text, start)
            out.attributes.append(AttributeText(key[1], key.span(1), (start, stop)))
            out.problems.append(("unclosed", f"the value of {key[1]} is not closed", start, stop))
            out.end = stop
            return
        out.attributes.append(AttributeText(key[1], key.span(1), (start, end)))
        if end == start:
            out.problems.append(("syntax", f"expected a value for {key[1]}", start, start))
        out.end = i = end
