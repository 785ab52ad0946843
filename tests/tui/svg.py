"""A drawn screen as a small SVG: one text a run of cells, one class a style. Equal screens give equal text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from xml.sax.saxutils import escape

from rich.segment import Segment
from rich.style import Style

_WIDE, _HIGH = 8.4, 17
_INK, _PAPER = "#e0e0e0", "#121212"


def svg(strips: Sequence[Iterable[Segment]], width: int) -> str:
    """Lines of segments, as a terminal of `width` columns shows them."""
    classes: dict[str, str] = {}
    backs: list[str] = []
    texts: list[str] = []
    for y, strip in enumerate(strips):
        x = 0
        for style, group in groupby(strip, lambda segment: _look(segment.style)):
            text = "".join(segment.text for segment in group)
            ink, paper, more = style
            if paper != _PAPER:
                name = classes.setdefault(f"fill:{paper}", f"b{len(classes)}")
                backs.append(f'<rect class="{name}" x="{x * _WIDE:g}" y="{y * _HIGH}" width="{len(text) * _WIDE:g}"/>')
            if text.strip():
                name = classes.setdefault(f"fill:{ink}{more}", f"t{len(classes)}")
                lead = len(text) - len(text.lstrip())
                shown = escape(text.strip()).replace(" ", "\u00a0")
                texts.append(
                    f'<text class="{name}" x="{(x + lead) * _WIDE:g}" y="{y * _HIGH + 13}"'
                    f' textLength="{len(text.strip()) * _WIDE:g}">{shown}</text>'
                )
            x += len(text)
    rules = "\n".join(f".{name}{{{rule}}}" for rule, name in classes.items())
    size = f'width="{width * _WIDE:g}" height="{len(strips) * _HIGH}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<style>text{{font:14px monospace}}rect{{height:{_HIGH}px}}\n{rules}</style>",
            f'<rect fill="{_PAPER}" {size} style="height:100%"/>',
            *backs,
            *texts,
            "</svg>\n",
        )
    )


def _look(style: Style | None) -> tuple[str, str, str]:
    """Ink, paper and the rest of a style."""
    if style is None:
        return _INK, _PAPER, ""
    ink = style.color.get_truecolor().hex if style.color is not None else _INK
    paper = style.bgcolor.get_truecolor().hex if style.bgcolor is not None else _PAPER
    if style.reverse:
        ink, paper = paper, ink
    more = (";font-weight:bold" if style.bold else "") + (";text-decoration:underline" if style.underline else "")
    return ink, paper, more
