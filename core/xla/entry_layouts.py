"""The entry's layouts of a StableHLO program, as XLA:CPU and XLA:GPU take them over when they compile it.

What stands beside ``@main`` decides: ``mhlo.layout_mode`` of an argument or result is ``default`` (row-major, as is one
without it), ``auto`` (left to the compiler: no layout in the header) or a layout; ``mhlo.memory_kind`` gives the memory
space. Layouts that operations of the program or attributes of the module (``mhlo.xla_entry_computation_…``) would give
are not asked. Source: ``openxla/xla:xla/pjrt/utils.cc#LayoutModesToXlaShapes``, ``xla/pjrt/cpu/cpu_client.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from hloscope.core.errors import ParseError
from hloscope.core.hlo.layout import Layout
from hloscope.core.hlo.shape import Shape, scan_shape

ENTRY_LAYOUT = ", entry_computation_layout={"
_MEMORY_SPACES = {"device": 0, "pinned_host": 5, "unpinned_host": 6}
_PINNED_HOST = 5
_BETWEEN = re.compile(r"(?:\s+|,|/\*.*?\*/)*")
"""What may stand between two shapes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a program asks of one argument or result."""

    layout_mode: str | None = None
    memory_kind: str | None = None


def with_entry_layouts(header: str, arguments: Sequence[Asked], results: Sequence[Asked]) -> str:
    """An ``HloModule`` line with the layouts that the compiler gives the entry; without ``entry_computation_layout`` it
    stays as it is. Missing entries of the lists ask for nothing.

    Raises ``ParseError`` where XLA refuses what is asked.
    """
    at = header.find(ENTRY_LAYOUT)
    if at < 0:
        return header
    front = at + len(ENTRY_LAYOUT)
    parameters, arrow = _listed(header, front, arguments, "argument")
    back = header.index("->", arrow) + 2
    if header.startswith("(", back):
        result, end = _listed(header, back, results, "result")
    else:
        shape, end = scan_shape(header, back)
        result = str(_one(shape, _at(results, 0), "result 0"))
    return f"{header[:front]}{parameters}{header[arrow:back]}{result}{header[end:]}"


def _listed(header: str, begin: int, asked: Sequence[Asked], what: str) -> tuple[str, int]:
    """The shapes in the parentheses that begin at `begin`, laid out anew, and where the parentheses end."""
    parts = ["("]
    at = begin + 1
    for number in count():
        between = _BETWEEN.match(header, at)
        place = between.end() if between is not None else at
        parts.append(header[at:place])
        if header.startswith(")", place):
            return "".join((*parts, ")")), place + 1
        shape, at = scan_shape(header, place)
        parts.append(str(_one(shape, _at(asked, number), f"{what} {number}")))
    raise AssertionError  # count() does not end


def _at(asked: Sequence[Asked], number: int) -> Asked:
    return asked[number] if number < len(asked) else Asked()


def _one(shape: Shape, asked: Asked, what: str) -> Shape:
    mode, kind = asked.layout_mode, asked.memory_kind
    if shape.is_tuple:
        if mode is not None or kind is not None:
            raise ParseError(f"{what} is a tuple: XLA takes no layout or memory kind for it")
        return Shape.tuple_(_one(part, Asked(), what) for part in shape.tuple_shapes)
    if not shape.is_array:
        return shape
    space = _MEMORY_SPACES.get(kind or "device")
    if space is None:
        raise ParseError(f"mhlo.memory_kind of {what} is unknown: {kind!r} (there are {', '.join(_MEMORY_SPACES)})")
    if mode == "auto" and space != _PINNED_HOST:
        return shape.with_layout(None)
    layout = Layout.descending(shape.rank)
    if mode not in (None, "default", "auto"):
        layout = _given(mode, shape, what)
    return shape.with_layout(replace(layout, memory_space=space))


def _given(mode: str, shape: Shape, what: str) -> Layout:
    if not mode.strip().startswith("{"):
        raise ParseError(f"mhlo.layout_mode of {what} is neither default nor auto nor a layout: {mode!r}")
    try:
        layout = Layout.parse(mode)
    except ParseError as error:
        raise ParseError(f"mhlo.layout_mode of {what}: {error.message}") from None
    if sorted(layout.minor_to_major) != list(range(shape.rank)):
        dimensions = f"the dimensions of {shape.without_layout()}"
        raise ParseError(f"mhlo.layout_mode of {what}: {mode} is no order of {dimensions}")
    return layout
