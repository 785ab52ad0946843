"""A shape token by token, as XLA's own parser takes it: what strict reading asks of every shape.

`hloscope.core.hlo.shape.scan_shape` reads shapes, quickly and leniently; this only refuses. XLA's parser forgives a
fault inside a layout's items where the closing brace comes next, and so does this. Sources:
``openxla/xla:xla/hlo/parser/hlo_parser.cc`` (ParseShape, ParseLayout, ParseTiles), ``xla/layout_util.cc``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import ParseError
from hloscope.core.hlo.element_types import ELEMENT_TYPES
from hloscope.core.hlo.layout import COMBINE
from hloscope.core.hlo.shape import UNBOUNDED, Shape, scan_shape
from hloscope.core.text.tokens import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.text.tokens import Cursor

_LEVELS = ("D", "C", "S", "H")
NO_ARRAYS = ("tuple", "buffer")
"""Element types that are not written as a word."""


def begins_shape(at: Cursor) -> bool:
    """Whether the present token can begin a shape."""
    if at.kind == "(":
        return True
    if at.kind != "word":
        return False
    return is_type_word(at.value) or (at.value == "b" and at.following().kind == "(")


def is_type_word(word: str) -> bool:
    """Whether XLA's lexer takes a word for an element type, and so never for a name."""
    return word in ELEMENT_TYPES and word not in NO_ARRAYS


def walk_shape(at: Cursor) -> None:
    """Go past one shape. Raises ParseError where XLA's parser refuses it."""
    start, depth = at.start, 0
    while True:
        if at.kind == "(":
            depth += 1
            at.advance()
            if not at.stands(")"):
                continue
        elif at.kind == "word" and at.value == "b" and at.following().kind == "(":
            at.advance()
            at.advance()
            if at.kind != "word" or at.value in ("token", "opaque", "b"):
                at.fail("a buffer is of one array")
            _array(at)
            at.expect(")")
        else:
            _array(at)
        while depth:
            if at.accept(","):
                break
            at.expect(")", "',' or ')' in a tuple shape")
            depth -= 1
            if not depth:
                _check_elements(at.text, start)
        else:
            return


def _array(at: Cursor) -> None:
    if at.kind != "word" or not is_type_word(at.value):
        at.fail(f"expected an element type, got {at.glance()}")
    plain = at.value in ("token", "opaque")
    at.advance()
    sizes: list[int] = []

    def size() -> str:
        if at.accept("?"):
            sizes.append(UNBOUNDED)
            return ""
        at.accept("leq")
        number = at.integer("the size of a dimension")
        if number < 0:
            raise ParseError("a dimension has a negative size", column=at.start + 1)
        sizes.append(number)
        return ""

    start = at.start
    at.items("[", "]", size)
    if plain and sizes:
        raise ParseError("a token or opaque value has no dimensions", column=start + 1)
    if at.stands("{") and at.following().kind in ("int", ":"):
        order = _layout(at)
        if order != len(sizes):
            raise ParseError(f"the layout has {order} dimensions, the shape has {len(sizes)}", column=start + 1)


def _layout(at: Cursor) -> int:
    """Go past a layout; how many dimensions it orders."""
    at.advance()
    order = 0
    if at.kind == "int":
        while True:
            at.integer()
            order += 1
            if not at.accept(","):
                break
    if at.accept(":"):
        for mark, item in _ITEMS:
            if at.kind == mark or (at.kind == "word" and at.value == mark):
                at.advance()
                try:
                    item(at)
                except _Forgiven:
                    pass
    at.expect("}", "'}' to end a layout")
    return order


class _Forgiven(Exception):
    """A fault inside a layout item; the parser goes on behind it."""


def _need(at: Cursor, kind: str) -> None:
    if not at.accept(kind):
        raise _Forgiven


def _listed(at: Cursor, first: str, item: Callable[[Cursor], None]) -> None:
    _need(at, first)
    if at.accept(")"):
        return
    while True:
        item(at)
        if not at.accept(","):
            break
    _need(at, ")")


def _level(at: Cursor) -> None:
    if at.kind != "word" or at.value not in _LEVELS:
        raise _Forgiven
    at.advance()
    at.accept("+")
    at.accept("~")


def _tile_size(at: Cursor) -> None:
    if at.kind == "int":
        if at.integer() < 0:
            at.fail("a tile has a negative size")
    elif not at.accept("*"):
        raise _Forgiven


def _number(at: Cursor) -> None:
    if at.kind != "int":
        raise _Forgiven
    at.integer()


def _levels(at: Cursor) -> None:
    _listed(at, "(", _level)


def _tiles(at: Cursor) -> None:
    _listed(at, "(", _tile_size)
    while at.kind == "(":
        _listed(at, "(", _tile_size)


def _in_parentheses(at: Cursor) -> None:
    _need(at, "(")
    _number(at)
    _need(at, ")")


def _padding(at: Cursor) -> None:
    _need(at, "(")
    if at.kind == "int" and int(at.value) <= 0:
        at.fail("the tail padding is not positive")
    _number(at)
    _need(at, ")")


def _index_type(at: Cursor) -> None:
    _need(at, "(")
    if at.kind == "word" and is_type_word(at.value):
        at.advance()
    _need(at, ")")


def _splits(at: Cursor) -> None:
    while True:
        _need(at, "(")
        _number(at)
        _listed(at, ":", _number)
        if at.kind != "(":
            return


def _physical(at: Cursor) -> None:
    at.fail("a layout with a physical shape, but the array is not sparse")


_ITEMS: tuple[tuple[str, Callable[[Cursor], None]], ...] = (
    ("D", _levels), ("T", _tiles), ("L", _padding), ("#", _index_type), ("*", _index_type), ("E", _in_parentheses),
    ("S", _in_parentheses), ("SC", _splits), ("P", _physical), ("M", _in_parentheses),
)  # fmt: skip
"""Layout items in the order in which they must stand, and how each goes on behind its letter."""


def _check_elements(text: str, start: int) -> None:
    """XLA validates the shapes of a tuple's elements, and only those. Raises ParseError."""
    try:
        shape, _ = scan_shape(text, start)
    except (ParseError, ValueError):
        return  # refused already, or forgiven
    for _, element in shape.leaves():
        message = invalid_element(element)
        if message is not None:
            raise ParseError(message, column=start + 1)


def invalid_element(shape: Shape) -> str | None:
    """Why a shape cannot be an element of a tuple, None where it can: its layout and its size."""
    if not shape.is_array or shape.element_type not in ELEMENT_TYPES:
        return None
    if not shape.is_unbounded:
        size = max(shape.type.byte_size, 1)
        for dim in shape.dimensions:
            size *= dim
            if size > INT64_MAX:
                return "an element of a tuple is too large"
    layout = shape.layout
    if layout is None:
        return None
    if sorted(layout.minor_to_major) != list(range(shape.rank)):
        return f"the layout {layout} does not order {shape.rank} dimensions"
    if layout.index_primitive_type is not None or layout.pointer_primitive_type is not None:
        return "a layout with an index or pointer type, but the array is not sparse"
    if any(not tile or any(d <= 0 and d != COMBINE for d in tile) for tile in layout.tiles):
        return "a layout has an empty tile, or one of no size"
    if layout.element_size_in_bits < 0:
        return "a layout with a negative element size"
    seen: set[int] = set()
    for dimension, places in layout.split_configs:
        if not 0 <= dimension < shape.rank or dimension in seen:
            return "a layout is split at a dimension that it does not have, or twice"
        seen.add(dimension)
        bounds = (0, *places, shape.dimensions[layout.minor_to_major[-1 - dimension]])
        if any(a >= b for a, b in zip(bounds, bounds[1:], strict=False)):
            return "the points at which a layout is split do not ascend within the dimension"
    return None
