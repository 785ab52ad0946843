"""Literals token by token, as XLA's own parser takes them: what strict reading asks of every constant.

`hloscope.core.hlo.literal.parse_literal` reads values, quickly and leniently; this only refuses, at the place of what
is wrong. Commas between elements are nobody's business in XLA's parser, and so here. Source:
``openxla/xla:xla/hlo/parser/hlo_parser.cc`` (ParseLiteral, ParseDenseLiteral, SetValueInLiteral).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from hloscope.core.errors import ParseError
from hloscope.core.hlo.literal import check_element, parse_literal
from hloscope.core.text.tokens import Cursor

if TYPE_CHECKING:
    from hloscope.core.hlo.shape import Shape

_TOO_LARGE = 1 << 40
"""Bytes of an array that no machine holds; what XLA can hold below that is the machine's business."""
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n\r]*", re.S)
_PLAIN = re.compile(
    r"(?>(?:[\s{},()]++|(?:-?+(?:[0-9]++(?:\.[0-9]*+)?+(?:e[+-]?+[0-9]++)?+|inf|nan)|true|false)(?=[\s{},()]|\Z))*)"
)
"""Texts of ordinary tokens only: those that the lenient reader takes, XLA's takes too."""


def literal_objection(text: str, shape: Shape) -> tuple[str, int] | None:
    """What XLA refuses in the text inside ``constant(…)``, with the offset in it; None where it takes it."""
    try:
        parse_literal(text, shape)
    except (ParseError, ValueError):
        pass
    else:
        small = all(leaf.is_array and leaf.byte_size < _TOO_LARGE for _, leaf in shape.leaves())
        if small and _PLAIN.fullmatch(_COMMENT.sub(" ", text) if "/" in text else text):
            return None
    at = Cursor(text)
    try:
        walk_literal(at, shape)
        if at.kind != "end":
            at.fail(f"expected the end of the literal, got {at.glance()}")
    except ParseError as bad:
        return bad.message, (bad.column or 1) - 1
    return None


def walk_literal(at: Cursor, shape: Shape) -> None:
    """Go past a literal of a shape. Raises ParseError where XLA's parser refuses it."""
    if shape.is_tuple:
        _tuple(at, shape)
    elif shape.is_array:
        _Dense(at, shape).walk()
    else:
        at.fail(f"{shape.element_type} is no constant")


def _tuple(at: Cursor, shape: Shape) -> None:
    at.expect("(", "'(' in front of a tuple's elements")
    if not at.stands(")"):
        for i, element in enumerate(shape.tuple_shapes):
            if i:
                at.accept(",")
            walk_literal(at, element)
    at.expect(")", f"')' behind the {len(shape.tuple_shapes)} elements of a tuple")


class _Dense:
    """The walk over one array; `seen` counts elements or sub-arrays of each dimension."""

    def __init__(self, at: Cursor, shape: Shape) -> None:
        self.at, self.shape = at, shape
        self.level = 0
        self.seen = [0] * shape.rank
        self.taken = 0
        self.count = math.prod(shape.dimensions)

    def walk(self) -> None:
        at, shape = self.at, self.shape
        if shape.type.kind == "unknown":
            at.fail(f"values of the unknown element type {shape.element_type}")
        if shape.byte_size >= _TOO_LARGE:
            at.fail(f"XLA has no memory for a literal of {shape.to_text(layout=False)}")
        while True:
            if at.stands("{"):
                self._open()
            elif at.stands("}"):
                self._close()
            elif at.stands("("):
                self._complex()
            elif at.stands("dots"):
                if self.level != 1:
                    at.fail("'...' stands alone in the outermost braces of a literal")
                self.seen[0] = shape.dimensions[0]
                at.advance()
            elif at.stands(","):
                at.advance()
            else:
                self._element()
            if not self.level:
                return

    def _open(self) -> None:
        at, sizes = self.at, self.shape.dimensions
        self.level += 1
        if self.level > len(sizes):
            at.fail(f"braces nest {self.level} deep, {self.shape.to_text(layout=False)} has rank {len(sizes)}")
        if self.level > 1:
            outer = self.level - 2
            self.seen[outer] += 1
            if self.seen[outer] > sizes[outer]:
                at.fail(f"more than {sizes[outer]} rows in dimension {outer} of the literal")
        at.advance()

    def _close(self) -> None:
        at, sizes = self.at, self.shape.dimensions
        if not self.level:
            at.fail("unexpected '}'")
        self.level -= 1
        if self.seen[self.level] != sizes[self.level]:
            found, wanted = self.seen[self.level], sizes[self.level]
            at.fail(f"dimension {self.level} of the literal has {found} elements, its shape has {wanted}")
        self.seen[self.level] = 0
        at.advance()

    def _count(self) -> str | None:
        """Count an element; what is wrong with its place, which XLA minds in complex ones only."""
        sizes = self.shape.dimensions
        if not sizes:
            return None
        if self.level != len(sizes):
            return f"an element stands {self.level} braces deep in a literal of rank {len(sizes)}"
        self.seen[-1] += 1
        return f"more than {sizes[-1]} elements in a row" if self.seen[-1] > sizes[-1] else None

    def _take(self, token: str, start: int) -> None:
        try:
            check_element(token, self.shape.type)
        except ParseError as bad:
            raise ParseError(bad.message, column=start + 1) from None
        if self.taken >= self.count:
            wanted = self.shape.to_text(layout=False)
            raise ParseError(f"more than the {self.count} elements of {wanted}", column=start + 1)
        self.taken += 1

    def _complex(self) -> None:
        at = self.at
        if self.shape.type.kind != "complex":
            at.fail(f"'(' in a literal of {self.shape.element_type}")
        wrong = self._count()
        if wrong is not None:
            at.fail(wrong)
        start = at.start
        at.advance()
        real = self._number("the real part")
        at.expect(",", "',' between the parts of a complex number")
        imaginary = self._number("the imaginary part")
        at.expect(")", "')' behind a complex number")
        self._take(f"({real}, {imaginary})", start)

    def _number(self, what: str) -> str:
        at = self.at
        if not _is_number(at):
            at.fail(f"expected {what}, got {at.glance()}")
        return _token(at)

    def _element(self) -> None:
        at, element = self.at, self.shape.type
        word = at.kind == "word" and at.value in ("true", "false")
        if not word and not _is_number(at):
            at.fail(f"expected an element of a literal, got {at.glance()}")
        self._count()  # its complaint is not heard
        start = at.start
        if word and element.kind != "pred":
            at.fail(f"{at.value} is no {element.name}")
        if not word and (element.kind == "pred" or element.is_integral) and not at.stands("int"):
            at.fail(f"expected an integer of type {element.name}, got {at.glance()}")
        if element.kind == "complex":
            at.fail("a complex element is written (real, imaginary)")
        token = _token(at)
        if element.kind == "pred" and not word:
            token = "true" if int(token) else "false"
        self._take(token, start)


def _is_number(at: Cursor) -> bool:
    return at.kind in ("int", "decimal", "negative_inf") or (at.kind == "word" and at.value == "inf")


_PAYLOAD = re.compile(r"-?nan\((0x[0-9a-fA-F]+)\)")


def _token(at: Cursor) -> str:
    """The number at the cursor, which the lexer must take."""
    token = at.value
    if at.stands("int"):
        at.integer()
        return token
    payload = _PAYLOAD.fullmatch(token)
    if payload is not None and not 0 < int(payload[1], 16) < 1 << 52:
        at.fail(f"NaN payload {payload[1]} does not fit in 64 bits")
    at.advance()
    return token
