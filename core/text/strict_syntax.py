"""The order of tokens that XLA's own parser asks for, around the values of attributes.

The reader takes a text by what it means and is lenient about marks; these functions walk over the same places token by
token and refuse what XLA's parser refuses. Each begins at the cursor, leaves it behind what it took, and raises
ParseError with a column in the whole text. Source: ``openxla/xla:xla/hlo/parser/hlo_parser.cc``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.errors import ParseError
from hloscope.core.text.scan import brace_end, match_bracket
from hloscope.core.text.shape_form import begins_shape, is_type_word, walk_shape
from hloscope.core.text.tokens import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.text.reading import Reading

KEYWORDS = frozenset(
    "true false inf nan HloModule ENTRY ROOT FileLocations FileNames FunctionNames StackFrames maximal replicated"
    " manual last_tile_dim_replicate shard_as shard_like unknown unreduced".split()
)
"""Words that are no names unless ``%`` stands in front or ``:`` behind."""

_FOREIGN = re.compile(r"[^\t\n\r -~]")
_STRAY = re.compile("[\0\udc80-\udcff]")
_RAW_GROUP = re.compile(r"\b(backend_config|frontend_attributes)=\s*\{")
_OUTSIDE = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|/\*.*?\*/|//[^\n\r]*|[^\t\n\r -~]", re.S)


def check_walk(reading: Reading, start: int, walk: Callable[[Cursor], None]) -> bool:
    """Walk from a place of the text and note what XLA refuses there; whether it refuses nothing."""
    try:
        walk(Cursor(reading.text, start))
    except ParseError as bad:
        at = max((bad.column or 1) - 1, start)
        reading.object(bad.message, min(at, len(reading.text)))
        return False
    return True


def note_bytes(reading: Reading) -> None:
    """Warn of the first byte that is not UTF-8 text, or is zero; such bytes are kept and printed back."""
    found = _STRAY.search(reading.text)
    if found is not None:
        byte = ord(found[0]) & 0xFF
        what = "a zero byte" if not byte else f"byte 0x{byte:02x}, which is not UTF-8 text,"
        reading.report(f"{what} is kept", found.start(), found.end(), code="stray-byte", severity="warning")


def _raw_groups(text: str) -> list[tuple[int, int]]:
    """Spans that XLA's lexer takes as they are: brace groups of backend configs and of frontend attributes' values."""
    spans: list[tuple[int, int]] = []
    for found in _RAW_GROUP.finditer(text):
        start = found.end() - 1
        end = brace_end(text, start)
        if found[1] == "backend_config":
            spans.append((start, end))
            continue
        inner = start + 1
        while 0 <= (inner := text.find("={", inner, end)):
            stop = brace_end(text, inner + 1)
            spans.append((inner + 1, stop))
            inner = max(stop, inner + 1)
    return spans


def check_characters(reading: Reading) -> None:
    """Note the first character that XLA's lexer does not know: any beyond ASCII in no string, comment or raw group."""
    text = reading.text
    if _FOREIGN.search(text) is None:
        return
    raw: list[tuple[int, int]] | None = None
    for found in _OUTSIDE.finditer(text):
        word = found[0]
        if len(word) == 1:
            raw = _raw_groups(text) if raw is None else raw
            if any(start < found.start() < end for start, end in raw):
                continue
            reading.object(f"the character {ascii(word)[1:-1]} stands outside strings and comments", found.start())
            return
        if word[0] == "/" and "\0" in word:
            reading.object("a zero byte in a comment", found.start() + word.index("\0"))
            return


# ---------------------------------------------------------------- names and heads
def walk_name(at: Cursor) -> str:
    """A name; ``%`` before it or ``:`` behind it make any word one."""
    if at.kind not in ("percent", "name") and not (
        at.kind == "word" and at.value not in KEYWORDS and not is_type_word(at.value)
    ):
        at.fail(f"expected a name, got {at.glance()}")
    name = at.value
    at.advance()
    return name


def walk_module_name(at: Cursor, end: int) -> None:
    """``HloModule name``, which was read up to `end`."""
    at.expect("word")
    walk_name(at)
    if at.start < end or at.kind not in (",", "word", "name", "percent", "end"):
        at.fail(f"expected ',' or a computation, got {at.glance()}")


def walk_untitled(at: Cursor) -> None:
    """The front of a text without HloModule, which is of computations where ENTRY or a name and ``{`` come first."""
    if at.kind == "word" and at.value == "ENTRY":
        return
    after = at.following()
    if after.kind != "{":
        after.fail(f"expected HloModule, ENTRY, or '=' behind a name, got {after.glance()}")


def walk_computation_head(at: Cursor) -> None:
    """``ENTRY %name (p: f32[2]) -> f32[2] {``."""
    if at.kind == "word" and at.value == "ENTRY":
        at.advance()
    walk_name(at)
    if at.accept("("):
        if not at.accept(")"):
            while True:
                walk_name(at)
                walk_shape(at)
                if not at.accept(","):
                    break
            at.expect(")", "')' at the end of the parameter list")
        at.expect("arrow", "'->'")
        walk_shape(at)
    if at.kind != "{":
        at.fail(f"expected '{{' to open a computation, got {at.glance()}")


# ---------------------------------------------------------------- instructions
def walk_instruction(at: Cursor) -> None:
    """``ROOT name = shape opcode(operands)``, up to the closing parenthesis."""
    if at.kind == "word" and at.value == "ROOT":
        at.advance()
    walk_name(at)
    at.expect("=")
    walk_right_side(at)


def walk_right_side(at: Cursor) -> None:
    """``shape opcode(operands)``; the shape may be left out."""
    if begins_shape(at):
        walk_shape(at)
    if at.kind != "word" or at.value in KEYWORDS or is_type_word(at.value):
        at.fail(f"expected an opcode, got {at.glance()}")
    opcode = at.value
    at.advance()
    if opcode == "constant":
        if not at.stands("("):
            at.fail(f"expected '(', got {at.glance()}")
        end = match_bracket(at.text, at.start)
        if end < 0:
            at.fail("the parentheses are not closed")
        at.jump(end)
    elif opcode == "parameter":
        at.expect("(")
        at.integer("a parameter number")
        at.expect(")")
    else:
        _operands(at)


def _operands(at: Cursor) -> None:
    at.expect("(")
    if at.accept(")"):
        return
    while True:
        _operand(at)
        if not at.accept(","):
            break
    at.expect(")", "',' or ')' behind an operand")


def _operand(at: Cursor) -> None:
    start = at.start
    try:
        if begins_shape(at):
            walk_shape(at)
        walk_name(at)
        while at.accept("#"):
            at.integer()
        if at.kind in (",", ")"):
            return
        message = f"expected ',' or ')' behind an operand, got {at.glance()}"
        place = at.start
    except ParseError as bad:
        message, place = bad.message, (bad.column or 1) - 1
    at.jump(start)
    try:
        walk_right_side(at)
    except ParseError:
        if at.kind not in (",", ")"):  # there XLA's parser goes on as if nothing had been
            raise ParseError(message, column=place + 1) from None


# ---------------------------------------------------------------- source tables
_LOCATION = ("file_name_id", "function_name_id", "line", "end_line", "column", "end_column")
_FRAME = ("file_location_id", "parent_frame_id")


def walk_tables(at: Cursor) -> None:
    """``FileNames 1 "a.py" FunctionNames … FileLocations 1 {…} StackFrames 1 {…}``."""
    for table in ("FileNames", "FunctionNames"):
        _table_head(at, table)
        while at.kind == "int":
            at.integer()
            if at.stands("string"):
                at.string()
    _table_head(at, "FileLocations")
    _rows(at, _LOCATION)
    _table_head(at, "StackFrames")
    _rows(at, _FRAME)


def _table_head(at: Cursor, table: str) -> None:
    if at.kind != "word" or at.value != table:
        at.fail(f"expected {table}, got {at.glance()}")
    at.advance()


def _rows(at: Cursor, keys: tuple[str, ...]) -> None:
    while at.kind == "int":
        at.integer()
        row = at.start
        at.expect("{")
        seen: set[str] = set()
        while not at.stands("}"):
            at.accept(",")
            if not at.stands("key") or at.value not in keys:
                at.fail(f"expected one of {', '.join(keys)}, got {at.glance()}")
            if at.value in seen:
                at.fail(f"{at.value} is given twice")
            seen.add(at.value)
            at.advance()
            value = at.start
            if not -(2**31) <= at.integer() < 2**31:
                raise ParseError("the number does not fit in 32 bits", column=value + 1)
        for key in keys:
            if key not in seen:
                raise ParseError(f"the row lacks {key}", column=row + 1)
        at.advance()
