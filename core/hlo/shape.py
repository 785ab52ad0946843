"""Shapes: element type, dimensions and layout of an array; or a tuple, token, opaque or buffer.

A shape is a value: frozen, compared by content. ``str(shape)`` is XLA's text with layouts; ``Shape.parse`` reads it.
Source: ``openxla/xla:xla/shape.h``, ``xla/shape_util.cc#ShapeUtil::HumanStringWithLayout``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from hloscope.core.errors import ParseError
from hloscope.core.hlo.element_types import ElementType, lookup
from hloscope.core.hlo.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

UNBOUNDED = -(2**63)
"""The size of an unbounded dynamic dimension, printed ``?``."""

ShapeIndex = tuple[int, ...]
"""Path into a nested tuple; ``()`` is the shape itself."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An XLA shape."""

    element_type: str
    """Word of the element type; ``tuple`` and ``buffer`` for those."""
    dimensions: tuple[int, ...] = ()
    """Sizes; the upper bound of a bounded dynamic dimension, `UNBOUNDED` for an unbounded one."""
    dynamic_dimensions: tuple[bool, ...] = ()
    """Per dimension whether its size is dynamic; empty means none is."""
    layout: Layout | None = None
    """None where the text gives none and none was assigned."""
    tuple_shapes: tuple[Shape, ...] = ()
    """Elements of a tuple; the one array of a buffer."""

    # ---- making
    @staticmethod
    def array(element_type: str, dimensions: Iterable[int], layout: Layout | None = None) -> Shape:
        """An array shape without dynamic dimensions."""
        return Shape(element_type, tuple(dimensions), (), layout)

    @staticmethod
    def scalar(element_type: str) -> Shape:
        """A rank-0 array."""
        return Shape(element_type)

    @staticmethod
    def tuple_(shapes: Iterable[Shape]) -> Shape:
        """A tuple of shapes."""
        return Shape("tuple", tuple_shapes=tuple(shapes))

    @staticmethod
    def token() -> Shape:
        """The token that orders side effects."""
        return Shape("token")

    # ---- asking
    @property
    def type(self) -> ElementType:
        """The row of the element type."""
        return lookup(self.element_type)

    @property
    def is_tuple(self) -> bool:
        """True for a tuple, the empty one included."""
        return self.element_type == "tuple"

    @property
    def is_array(self) -> bool:
        """True for an array of numbers or preds."""
        return self.element_type not in ("tuple", "token", "opaque", "buffer")

    @property
    def is_token(self) -> bool:
        """True for a token."""
        return self.element_type == "token"

    @property
    def is_scalar(self) -> bool:
        """True for a rank-0 array."""
        return self.is_array and not self.dimensions

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dimensions)

    @property
    def is_dynamic(self) -> bool:
        """True where some dimension (of some leaf) has a dynamic size."""
        return any(self.dynamic_dimensions) or any(s.is_dynamic for s in self.tuple_shapes)

    def dimension_is_dynamic(self, dim: int) -> bool:
        """Whether dimension `dim` has a dynamic size."""
        return bool(self.dynamic_dimensions) and self.dynamic_dimensions[dim]

    @property
    def is_unbounded(self) -> bool:
        """True where some size has no bound."""
        return UNBOUNDED in self.dimensions or any(s.is_unbounded for s in self.tuple_shapes)

    @property
    def element_count(self) -> int:
        """Number of elements of an array (the bound, for dynamic ones). Raises ValueError when unbounded."""
        if self.is_unbounded:
            raise ValueError(f"{self} has no bound")
        return prod(self.dimensions)

    @property
    def byte_size(self) -> int:
        """Bytes without tiling padding: leaves added up for a tuple (pointer tables not counted), packed where the
        layout's element size says so; tokens and opaques are 0. Raises ValueError when unbounded."""
        if self.tuple_shapes:
            return sum(s.byte_size for s in self.tuple_shapes)
        if not self.is_array:
            return 0
        bits = self.layout.element_size_in_bits if self.layout is not None else 0
        if bits:
            return (self.element_count * bits + 7) // 8
        return self.element_count * self.type.byte_size

    def leaves(self, prefix: ShapeIndex = ()) -> Iterator[tuple[ShapeIndex, Shape]]:
        """All non-tuple shapes in order, with their index."""
        if not self.is_tuple:
            yield prefix, self
            return
        for i, shape in enumerate(self.tuple_shapes):
            yield from shape.leaves((*prefix, i))

    def sub(self, index: ShapeIndex) -> Shape:
        """The shape at a tuple index. Raises IndexError where there is none."""
        shape = self
        for i in index:
            shape = shape.tuple_shapes[i]
        return shape

    # ---- changing
    def with_layout(self, layout: Layout | None) -> Shape:
        """A copy with another layout."""
        return replace(self, layout=layout)

    def with_default_layout(self) -> Shape:
        """A copy where every array leaf without a layout has the descending one."""
        if self.tuple_shapes:
            return replace(self, tuple_shapes=tuple(s.with_default_layout() for s in self.tuple_shapes))
        if not self.is_array or self.layout is not None:
            return self
        return replace(self, layout=Layout.descending(self.rank))

    def without_layout(self) -> Shape:
        """A copy with no layout anywhere."""
        if self.tuple_shapes:
            return replace(self, tuple_shapes=tuple(s.without_layout() for s in self.tuple_shapes))
        return self if self.layout is None else replace(self, layout=None)

    def static(self) -> Shape:
        """A copy in which every dynamic dimension has its bound as a fixed size."""
        if self.tuple_shapes:
            return replace(self, tuple_shapes=tuple(s.static() for s in self.tuple_shapes))
        return replace(self, dynamic_dimensions=()) if self.dynamic_dimensions else self

    def with_dimensions(self, dimensions: Iterable[int], layout: Layout | None = None) -> Shape:
        """A static array of the same element type with other dimensions."""
        return Shape(self.element_type, tuple(dimensions), (), layout)

    def with_element_type(self, element_type: str) -> Shape:
        """A copy with another element type."""
        return replace(self, element_type=element_type)

    def compatible(self, other: Shape) -> bool:
        """Equal apart from layouts (`ShapeUtil::Compatible`)."""
        return self.without_layout() == other.without_layout()

    def same_dimensions(self, other: Shape) -> bool:
        """Arrays of equal dimensions, whatever the element type."""
        return self.is_array and other.is_array and self.dimensions == other.dimensions

    # ---- text
    def to_text(self, *, layout: bool = True, index_comments: bool = True) -> str:
        """XLA's text. `index_comments` writes ``/*index=5*/`` before every fifth tuple element, as XLA does."""
        if self.is_tuple:
            parts: list[str] = []
            for i, shape in enumerate(self.tuple_shapes):
                comment = f"/*index={i}*/" if index_comments and i and i % 5 == 0 else ""
                parts.append(comment + shape.to_text(layout=layout, index_comments=index_comments))
            return "(" + ", ".join(parts) + ")"
        if self.element_type == "buffer":
            inner = self.tuple_shapes[0].to_text(layout=layout, index_comments=index_comments)
            return f"b({inner})"
        if self.dynamic_dimensions:
            dims = ",".join([
                ("?" if d == UNBOUNDED else f"<={d}") if self.dimension_is_dynamic(i) else str(d)
                for i, d in enumerate(self.dimensions)
            ])
        else:
            dims = ",".join(map(str, self.dimensions))
        text = f"{self.element_type}[{dims}]"
        if layout and self.layout is not None and (self.dimensions or self.layout.suffix()):
            text += str(self.layout)
        return text

    def __str__(self) -> str:
        return self.to_text()

    @staticmethod
    def parse(text: str) -> Shape:
        """Read one shape. Raises ParseError where the text is not exactly one."""
        shape, end = scan_shape(text, 0)
        if text[end:].strip():
            raise ParseError(f"unexpected {text[end:].strip()[:20]!r} after a shape", column=end + 1)
        return shape


_BLANKS = r"(?>(?:\s++|//[^\n\r]*+|/\*(?>(?:[^*]++|\*(?!/))*)\*/)*)"
_SPACE = re.compile(_BLANKS)
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\s*\[\s*((?:<=\s*\d+|\?|\d+)?(?:\s*,\s*(?:<=\s*\d+|\?|\d+))*)\s*\]")
# A brace after a shape is a layout only when a number or a colon follows; else it opens a computation body.
_LAYOUT = re.compile(rf"{_BLANKS}\{{(?={_BLANKS}(?:-?\d|:))")
_PLAIN_LAYOUT = re.compile(r"\{([\d,\s\-]*)\}")
MAX_TUPLE_DEPTH = 300
"""How deep tuples may be nested; XLA has no bound of its own, programs have a handful."""


def scan_shape(text: str, pos: int) -> tuple[Shape, int]:
    """Read the shape that starts at `pos` (blanks and comments skipped); the end position is returned with it.

    Raises ParseError with `column` set to the 1-based offset in `text`.
    """
    pos = _end(_SPACE, text, pos)
    if not text.startswith("(", pos):
        return _scan_one(text, pos)
    open_tuples: list[list[Shape]] = [[]]
    pos = _end(_SPACE, text, pos + 1)
    while True:
        if text.startswith("(", pos):
            if len(open_tuples) >= MAX_TUPLE_DEPTH:
                raise ParseError(f"tuples are nested more than {MAX_TUPLE_DEPTH} deep", column=pos + 1)
            open_tuples.append([])
            pos = _end(_SPACE, text, pos + 1)
            continue
        parts = open_tuples[-1]
        if parts or not text.startswith(")", pos):
            shape, pos = _scan_one(text, pos)
            parts.append(shape)
            pos = _end(_SPACE, text, pos)
        while text.startswith(")", pos):
            done = Shape.tuple_(open_tuples.pop())
            if not open_tuples:
                return done, pos + 1
            open_tuples[-1].append(done)
            pos = _end(_SPACE, text, pos + 1)
        if not text.startswith(",", pos):
            raise ParseError("expected ',' or ')' in a tuple shape", column=pos + 1)
        pos = _end(_SPACE, text, pos + 1)


def _scan_one(text: str, pos: int) -> tuple[Shape, int]:
    """A shape that is no tuple."""
    if text.startswith("b(", pos):
        inside = _end(_SPACE, text, pos + 2)
        if text.startswith("b(", inside):
            raise ParseError("a buffer is of one array", column=inside + 1)
        inner, end = _scan_one(text, inside)
        end = _end(_SPACE, text, end)
        if not text.startswith(")", end):
            raise ParseError("expected ')' after a buffer's shape", column=end + 1)
        return Shape("buffer", tuple_shapes=(inner,)), end + 1
    found = _ARRAY.match(text, pos)
    if found is None:
        raise ParseError(f"expected a shape, got {text[pos : pos + 20].partition(chr(10))[0]!r}", column=pos + 1)
    element_type, inside = found[1], found[2]
    end = found.end()
    dims: list[int] = []
    dynamic: list[bool] = []
    for part in inside.split(",") if inside else ():
        size = part.strip()
        if not size:
            raise ParseError("expected the size of a dimension", column=pos + 1)
        dynamic.append(not size[0].isdigit())
        dims.append(UNBOUNDED if size == "?" else int(size.removeprefix("<=")))
    layout: Layout | None = None
    brace = _LAYOUT.match(text, end)
    if brace is not None:
        plain = _PLAIN_LAYOUT.match(text, brace.end() - 1)
        if plain is not None:
            try:
                layout = Layout(tuple([int(p) for p in plain[1].split(",")]))
            except ValueError:
                raise ParseError(f"expected a layout such as {{1,0}}, got {plain[0]!r}", column=end + 1) from None
            end = plain.end()
        else:
            close = _close_brace(text, brace.end())
            layout = Layout.parse(text[brace.end() : close])
            end = close + 1
        if len(layout.minor_to_major) != len(dims):
            raise ParseError(
                f"the layout has {len(layout.minor_to_major)} dimensions, the shape has {len(dims)}",
                column=brace.start() + 1,
            )
    return Shape(element_type, tuple(dims), tuple(dynamic) if any(dynamic) else (), layout), end


def _end(pattern: re.Pattern[str], text: str, pos: int) -> int:
    found = pattern.match(text, pos)
    return found.end() if found is not None else pos


def _close_brace(text: str, pos: int) -> int:
    close = text.find("}", pos)
    if close < 0:
        raise ParseError("a layout is not closed", column=pos + 1)
    return close
