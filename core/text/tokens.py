"""Tokens of HLO text as XLA's own lexer sees them, and a cursor over the tokens of one attribute value.

Whoever checks what XLA would accept, or writes a value in XLA's form, reads it with this. Source:
``openxla/xla:xla/hlo/parser/hlo_lexer.cc``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from hloscope.core.errors import ParseError
from hloscope.core.text.scan import brace_end

if TYPE_CHECKING:
    from collections.abc import Callable

_SKIP = r"(?>(?:[ \t\n\r]++|//[^\n\r]*+|/\*(?>(?:[^*]++|\*(?!/))*)\*/)*)"
# Order as in the lexer: floats, dim labels, 1x2x3, padding, integers. A word before ':' or '=' is a name or a key.
_TOKEN = re.compile(
    _SKIP
    + r"""(?:
      (?P<string>"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"|'[^'\\]*+(?>(?:\\.[^'\\]*+)*)')
    | (?P<arrow>->)
    | (?P<percent>%[A-Za-z_][A-Za-z0-9_.\-]*)
    | (?P<name>[A-Za-z_][A-Za-z0-9_.\-]*:)
    | (?P<key>[A-Za-z_][A-Za-z0-9_.\-]*=)
    | (?P<decimal>-?(?:\d+\.\d*|\d+|(?<=-)\.\d+)[eE][+-]?\d+|-?\d+\.\d*|-\.\d+
        |-?nan(?![A-Za-z0-9_.\-])(?:\(0x[0-9a-fA-F]+\))?)
    | (?P<labels>[0-9bf?]{2,}_[0-9io?]{2,}->[0-9bf?]{2,})
    | (?P<word>[A-Za-z_][A-Za-z0-9_.\-]*)
    | (?P<dxd>\d+(?:x\d+)+)
    | (?P<pad>-?\d+_-?\d+(?:_\d+)?(?:x-?\d+_-?\d+(?:_\d+)?)*)
    | (?P<int>-?\d+)
    | (?P<negative_inf>-inf)
    | (?P<leq><=)
    | (?P<dots>\.\.\.)
    | (?P<mark>[=,:*\#+~\[\]{}()?])
    | (?P<end>\Z)
    )""",
    re.S | re.X,
)
_PLAIN_INT = re.compile(_SKIP + r"(-?\d+)", re.S)
_BLANKS = re.compile(_SKIP, re.S)
_PLAIN_STRING = re.compile(r"[^\\\"'\x00-\x1f\x7f-\U0010ffff]*")
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]+)|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([abfnrtv\\?'\"]))|(\\)")
_LETTERS = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_WRITTEN = {0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x22: '\\"', 0x27: "\\'", 0x5C: "\\\\"}

INT64_MIN, INT64_MAX, UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1


class Cursor:
    """The tokens of a text, one at a time: `kind`, `value` and `start` describe the present one.

    `kind` is the mark itself for punctuation, else the token's group (``word``, ``int``, ``end``, …); ``bad`` where no
    token begins.
    """

    __slots__ = ("_kind", "_next", "_value", "start", "text")

    def __init__(self, text: str, pos: int = 0) -> None:
        self.text = text
        self._next = pos
        self._kind, self._value, self.start = "", "", pos
        self.advance()

    def advance(self, *, integers: bool = False) -> None:
        """Go to the next token; with `integers` digits are an integer, whatever follows them."""
        if integers:
            found = _PLAIN_INT.match(self.text, self._next)
            if found is not None:
                self._kind, self._value, self.start = "int", found[1], found.start(1)
                self._next = found.end()
                return
        found = _TOKEN.match(self.text, self._next)
        if found is None or found.lastgroup is None:
            blank = _BLANKS.match(self.text, self._next)
            self._kind, self._value, self.start = "bad", "", blank.end() if blank is not None else self._next
            return
        kind = found.lastgroup
        self._value = found[kind]
        self.start, self._next = found.span(kind)
        if kind == "mark":
            kind = self._value
        elif kind in ("name", "key"):
            self._value = self._value[:-1]
        self._kind = kind

    @property
    def kind(self) -> str:
        """What the present token is."""
        return self._kind

    @property
    def value(self) -> str:
        """Its text: a name or key without the mark behind it."""
        return self._value

    def stands(self, *kinds: str) -> bool:
        """Whether the present token is of one of these kinds; to be asked again after moving on."""
        return self._kind in kinds

    def following(self) -> Cursor:
        """A cursor at the next token; this one stays."""
        return Cursor(self.text, self._next)

    def lower(self) -> None:
        """Read the present token as if it stood in lower case."""
        self._value = self._value.lower()

    def jump(self, pos: int) -> None:
        """Go on at another place."""
        self._next = pos
        self.advance()

    @property
    def end(self) -> int:
        """Where the present token ends."""
        return self._next

    def fail(self, message: str) -> NoReturn:
        """Raise ParseError at the present token; its column is 1-based in the text."""
        raise ParseError(message, column=self.start + 1)

    def glance(self) -> str:
        """The present token for a message."""
        return "the end" if self.kind == "end" else repr(self.text[self.start : self.start + 20].split("\n")[0])

    def expect(self, kind: str, what: str = "", *, integers: bool = False) -> str:
        """The value of the present token, which must be of `kind`; then the next one."""
        if self.kind != kind:
            self.fail(f"expected {what or repr(kind)}, got {self.glance()}")
        value = self.value
        self.advance(integers=integers)
        return value

    def accept(self, kind: str, *, integers: bool = False) -> bool:
        """Whether the present token is of `kind`; then the next one."""
        if self.kind != kind:
            return False
        self.advance(integers=integers)
        return True

    def integer(self, what: str = "an integer") -> int:
        """An integer of 64 bits (an unsigned one wraps, as in XLA)."""
        if self.kind != "int":
            self.fail(f"expected {what}, got {self.glance()}")
        number = int(self.value) if len(self.value) < 40 else UINT64_MAX + 1
        if not INT64_MIN <= number <= UINT64_MAX:
            self.fail(f"{self.value[:40]} does not fit in 64 bits")
        self.advance()
        return number if number <= INT64_MAX else number - 2**64

    def string(self) -> str:
        """A quoted string, unescaped and escaped again as XLA prints it (without quotes)."""
        if self.kind != "string":
            self.fail(f"expected a string, got {self.glance()}")
        try:
            value = canonical_string(self.value)
        except ValueError as bad:
            self.fail(str(bad))
        self.advance()
        return value

    def string_bytes(self) -> bytes:
        """The bytes that the quoted string at the cursor stands for; it stays the present token."""
        try:
            return unescape(self.value[1:-1])
        except ValueError as bad:
            self.fail(str(bad))

    def items(self, start: str, end: str, item: Callable[[], str], *, integers: bool = False) -> list[str]:
        """``start item, item, … end``: what `item` gives for each."""
        self.expect(start, integers=integers)
        out: list[str] = []
        if not self.accept(end):
            while True:
                out.append(item())
                if not self.accept(",", integers=integers):
                    break
            self.expect(end)
        return out

    def integers(self, start: str = "{", end: str = "}", *, loose: bool = False) -> list[int]:
        """``{1,2,3}``; a `loose` list may end with a comma."""
        if not loose:
            return [int(i) for i in self.items(start, end, lambda: str(self.integer()), integers=True)]
        self.expect(start)
        out: list[int] = []
        while self.kind != end:
            out.append(self.integer())
            if not self.accept(","):
                break
        self.expect(end)
        return out

    def index(self) -> str:
        """``{0,1}``: a path into a tuple."""
        return "{" + ",".join(map(str, self.integers(loose=True))) + "}"


def raw_bytes(text: str) -> bytes:
    """The bytes of a text that was decoded with ``surrogateescape``."""
    return text.encode("utf-8", "surrogatepass" if any("\ud800" <= c <= "\udbff" for c in text) else "surrogateescape")


def unescape(body: str) -> bytes:
    """The bytes that the inside of a quoted string stands for. Raises ValueError on an escape that XLA refuses."""
    data = raw_bytes(body)
    if b"\\" not in data:
        return data
    out: list[bytes] = []
    done = 0
    for found in _ESCAPE.finditer(data):
        out.append(data[done : found.start()])
        done = found.end()
        octal, hexed, short, long, letter, alone = found.groups()
        if alone is not None:
            raise ValueError(f"invalid escape {body[found.start() : found.start() + 2]!r} in a string")
        if octal is not None or hexed is not None:
            number = int(octal, 8) if octal is not None else int(hexed, 16)
            if number > 255:
                raise ValueError("an escape in a string stands for more than a byte")
            out.append(bytes([number]))
        elif short is not None or long is not None:
            number = int(short or long, 16)
            if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
                raise ValueError("an escape in a string is no character")
            out.append(chr(number).encode())
        else:
            out.append(_LETTERS.get(letter, letter))
    out.append(data[done:])
    return b"".join(out)


def escape(data: bytes) -> str:
    """Bytes as XLA escapes them: C escapes, and octal ones for all that is not printable ASCII."""
    return "".join(_WRITTEN.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in data)


def canonical_string(quoted: str) -> str:
    """The inside of a quoted string as XLA prints it. Raises ValueError on an escape that XLA refuses."""
    body = quoted[1:-1]
    if _PLAIN_STRING.fullmatch(body):
        return body
    return escape(unescape(body))


def lexes_as_json(text: str) -> bool:
    """Whether XLA prints this string without quotes: a brace group and nothing behind it but blanks and comments."""
    start = _BLANKS.match(text)
    at = start.end() if start is not None else 0
    if not text.startswith("{", at):
        return False
    end = brace_end(text, at)
    rest = _BLANKS.match(text, end) if end > 0 else None
    return rest is not None and rest.end() == len(text)
