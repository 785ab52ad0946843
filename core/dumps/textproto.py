"""A reader of protobuf's text format that needs no schema: messages as ordered (field, value) pairs.

A scalar stays the text that the file holds, with quotes removed and escapes resolved for strings; whoever knows the
field turns it into a number. Errors carry the line and the column. Format: protobuf.dev, "Text Format Language
Specification".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hloscope.core.errors import ParseError

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>-?[ ]?(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|inf\w*|nan)[fFuUlL]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<extension>\[[A-Za-z_][A-Za-z0-9_]*(?:[./-][A-Za-z0-9_-]+)+\])
      | (?P<mark>[{}<>:;,\[\]])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SIMPLE = {"n": 10, "r": 13, "t": 9, "a": 7, "b": 8, "f": 12, "v": 11, "\\": 92, "'": 39, '"': 34, "?": 63}
_CLOSING = {"{": "}", "<": ">"}
MAX_DEPTH = 100
"""Nested messages that are read; protobuf's own limit."""


@dataclass(slots=True)
class Message:
    """One message: its fields in the order of the file."""

    fields: list[tuple[str, str | Message]] = field(default_factory=list)

    def all(self, name: str) -> Iterator[str | Message]:
        """Every value of a field, in order."""
        return (value for key, value in self.fields if key == name)

    def text(self, name: str) -> str | None:
        """The last scalar value of a field, None where it is unset."""
        found = [value for value in self.all(name) if isinstance(value, str)]
        return found[-1] if found else None

    def texts(self, name: str) -> list[str]:
        """Every scalar value of a field."""
        return [value for value in self.all(name) if isinstance(value, str)]

    def messages(self, name: str) -> list[Message]:
        """Every message value of a field."""
        return [value for value in self.all(name) if isinstance(value, Message)]

    def integer(self, name: str) -> int | None:
        """A field as an integer, None where it is unset or no integer."""
        value = self.text(name)
        try:
            return int(value, 0) if value is not None else None
        except ValueError:
            return None

    def number(self, name: str) -> float | None:
        """A field as a number, None where it is unset or no number."""
        value = self.text(name)
        try:
            return float(value) if value is not None else None
        except ValueError:
            return None

    def to_text(self) -> str:
        """The message on one line."""
        parts = (
            f"{key}: {value}" if isinstance(value, str) else f"{key} {value.to_text()}" for key, value in self.fields
        )
        return "{" + ", ".join(parts) + "}"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    offset: int


def parse_textproto(text: str, *, path: str | None = None) -> Message:
    """Reads a text proto. Raises ``ParseError`` at the first place that is not text format."""
    return _Parser(text, path).run()


class _Parser:
    def __init__(self, text: str, path: str | None) -> None:
        self._text = text
        self._path = path
        self._tokens = self._lex()
        self._token: _Token | None = next(self._tokens, None)

    def _lex(self) -> Iterator[_Token]:
        position = 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None:
                raise self._error(f"unexpected character {self._text[position]!r}", position)
            if match.lastgroup != "space":
                yield _Token(match.lastgroup or "", match.group(), position)
            position = match.end()

    def _error(self, message: str, offset: int | None = None) -> ParseError:
        at = offset if offset is not None else (self._token.offset if self._token else len(self._text))
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        return ParseError(message, path=self._path, line=line, column=column)

    def _next(self) -> _Token:
        token = self._token
        if token is None:
            raise self._error("the text ends inside a message")
        self._token = next(self._tokens, None)
        return token

    def _take(self, mark: str) -> bool:
        if self._token is not None and self._token.kind == "mark" and self._token.text == mark:
            self._token = next(self._tokens, None)
            return True
        return False

    def run(self) -> Message:
        message = self._fields(None, 0)
        if self._token is not None:
            raise self._error(f"unexpected {self._token.text!r}")
        return message

    def _fields(self, closing: str | None, depth: int) -> Message:
        if depth > MAX_DEPTH:
            raise self._error(f"messages nest deeper than {MAX_DEPTH}")
        message = Message()
        while True:
            if self._token is None:
                if closing is not None:
                    raise self._error(f"the text ends before {closing!r}")
                return message
            if closing is not None and self._take(closing):
                return message
            if self._token.kind not in ("name", "extension"):
                if closing is None and self._token.kind == "mark":
                    return message
                raise self._error(f"expected a field name, found {self._token.text!r}")
            name = self._next().text
            colon = self._take(":")
            if self._take("["):
                self._list(message, name, depth)
            else:
                message.fields.append((name, self._value(depth, colon)))
            if not self._take(","):
                self._take(";")

    def _list(self, message: Message, name: str, depth: int) -> None:
        while not self._take("]"):
            message.fields.append((name, self._value(depth, True)))
            if not self._take(",") and not (self._token and self._token.text == "]"):
                raise self._error("expected ',' or ']' in a list")

    def _value(self, depth: int, colon: bool) -> str | Message:
        token = self._token
        if token is None:
            raise self._error("the text ends where a value is expected")
        if token.kind == "mark" and token.text in _CLOSING:
            self._next()
            return self._fields(_CLOSING[token.text], depth + 1)
        if not colon:
            raise self._error("expected ':' or '{' after a field name")
        if token.kind == "string":
            parts: list[str] = []
            while self._token is not None and self._token.kind == "string":
                parts.append(_unescape(self._next().text[1:-1]))
            return "".join(parts)
        if token.kind in ("name", "number"):
            return self._next().text
        raise self._error(f"expected a value, found {token.text!r}")


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts = bytearray()
    position = 0
    for match in _ESCAPE.finditer(text):
        parts += text[position : match.start()].encode("utf-8", "replace")
        octal, hexadecimal, short, long, simple = match.groups()
        if octal is not None:
            parts.append(int(octal, 8) & 255)
        elif hexadecimal is not None:
            parts.append(int(hexadecimal, 16))
        elif short is not None or long is not None:
            code = int(short or long, 16)
            parts += chr(code if code < 0x110000 else 0xFFFD).encode("utf-8", "replace")
        elif simple in _SIMPLE:
            parts.append(_SIMPLE[simple])
        else:
            parts += match.group().encode("utf-8", "replace")
        position = match.end()
    parts += text[position:].encode("utf-8", "replace")
    return parts.decode("utf-8", "replace")
