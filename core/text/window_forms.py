"""Windows, paddings, slices and the labels of convolution dimensions in the one form in which XLA prints each.

Every function reads at a cursor and gives the text; it raises ParseError where XLA's parser refuses. Source:
``openxla/xla:xla/hlo/parser/hlo_parser.cc`` (ParseWindow, ParsePaddingConfig, ParseConvolutionDimensionNumbers).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.errors import ParseError

if TYPE_CHECKING:
    from hloscope.core.text.tokens import Cursor

_WINDOW = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")
_WINDOW_DEFAULT = {"stride": "1", "pad": "0_0", "lhs_dilate": "1", "rhs_dilate": "1", "rhs_reversal": "0"}


def window_form(at: Cursor) -> str:
    """``{size=2x2 pad=0_1x0_1}``; what is the default is left out."""
    start = at.start
    at.expect("{")
    items: dict[str, list[str]] = {}
    while at.kind != "}":
        if at.kind != "key" or at.value not in _WINDOW:
            at.fail(f"expected one of {', '.join(_WINDOW)}, got {at.glance()}")
        key = at.value
        if items.get(key):
            at.fail(f"{key} is given twice in the window")
        at.advance()
        kinds = ("pad",) if key == "pad" else ("int", "dxd")
        if at.kind not in kinds:
            at.fail(f"expected {'low_high x …' if key == 'pad' else 'a number or 1x2'}, got {at.glance()}")
        items[key] = list[str](at.value.split("x"))
        if key == "pad" and any(part.count("_") != 1 for part in items[key]):
            at.fail("expected low_high in the padding of a window")
        at.advance()
    at.advance()
    size = items.get("size", [])
    parts: list[str] = ["size=" + "x".join(_plain(v) for v in size)] if size else []
    for key in _WINDOW[1:]:
        values = items.get(key)
        if values is None:
            continue
        if len(values) != len(size) and key != "rhs_reversal":
            raise ParseError(f"{key} of the window has {len(values)} entries, size has {len(size)}", column=start + 1)
        if key == "rhs_reversal":
            written = ["1" if int(v) == 1 else "0" for v in values[: len(size)]]
            written += ["0"] * (len(size) - len(written))
        elif key == "pad":
            written = ["_".join(_plain(n) for n in v.split("_")) for v in values]
        else:
            written = [_plain(v) for v in values]
        if any(v != _WINDOW_DEFAULT[key] for v in written):
            parts.append(f"{key}=" + "x".join(written))
    return "{" + " ".join(parts) + "}"


def _plain(digits: str) -> str:
    return str(int(digits))


def padding_form(at: Cursor) -> str:
    """``0_1x2_3_1``: low, high and interior of each dimension."""
    if at.kind != "pad":
        at.fail(f"expected a padding such as 0_1x2_3_1, got {at.glance()}")
    dims = [[int(n) for n in part.split("_")] for part in at.value.split("x")]
    at.advance()
    interior = any(len(d) == 3 and d[2] for d in dims)
    return "x".join(f"{d[0]}_{d[1]}" + (f"_{d[2] if len(d) == 3 else 0}" if interior else "") for d in dims)


def slice_form(at: Cursor) -> str:
    """``{[0:2], [1:9:2]}``."""
    rows: list[list[int]] = []

    def row() -> str:
        start = at.start
        values = [int(v) for v in _colon_list(at)]
        if len(values) not in (2, 3):
            raise ParseError("expected [start:limit] or [start:limit:stride]", column=start + 1)
        rows.append(values)
        return ""

    at.items("{", "}", row)
    strided = any(len(r) == 3 and r[2] != 1 for r in rows)
    out = [f"[{r[0]}:{r[1]}" + (f":{r[2] if len(r) == 3 else 1}]" if strided else "]") for r in rows]
    return "{" + ", ".join(out) + "}"


def _colon_list(at: Cursor) -> list[int]:
    at.expect("[", integers=True)
    out: list[int] = []
    if at.accept("]"):
        return out
    while True:
        out.append(at.integer())
        if not at.accept(":", integers=True):
            break
    at.expect("]")
    return out


_TWICE = re.compile(r"([^?]).*\1")


def dim_labels_form(at: Cursor) -> str:
    """``b01f_01io->b01f``."""
    if at.kind != "labels":
        at.fail(f"expected dim labels such as b01f_01io->b01f, got {at.glance()}")
    text = at.value
    left, rest = text.split("_")
    middle, right = rest.split("->")
    counts: list[int] = []
    for labels, letters in ((left, "bf"), (middle, "io"), (right, "bf")):
        spatial = [c for c in labels if c not in letters and c != "?"]
        counts.append(len(spatial))
        if _TWICE.search(labels) or any(not c.isdigit() or int(c) >= len(spatial) for c in spatial):
            at.fail(f"dim labels {labels!r} do not number their spatial dimensions")
    if len(set(counts)) != 1:
        at.fail("input, kernel and output differ in their number of spatial dimensions")
    at.advance()
    return f"{_labels(left, 'bf')}_{_labels(middle, 'io')}->{_labels(right, 'bf')}"


def _labels(labels: str, letters: str) -> str:
    """Labels as XLA writes them: a letter that is missing stands for dimension 0, trailing unknown ones are lost."""
    places = {c: i for i, c in enumerate(labels) if c != "?"}
    first, second = places.get(letters[0], 0), places.get(letters[1], 0)
    spatial = [i for c, i in sorted(places.items()) if c.isdigit()]
    out = ["?"] * (max([first, second, *spatial]) + 1)
    out[first] = letters[0]
    out[second] = letters[1]
    for number, place in enumerate(spatial):
        out[place] = str(number)
    return "".join(out)
