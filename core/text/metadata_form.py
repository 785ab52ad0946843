"""Instruction metadata in XLA's form. Source: ``openxla/xla:xla/hlo/ir/hlo_op_metadata.cc#OpMetadataToString``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.errors import ParseError

if TYPE_CHECKING:
    from hloscope.core.text.tokens import Cursor

_STRING = r'"[^"\\\'\x00-\x1f\x7f-\U0010ffff]*"'
_NUMBER = r"[1-9]\d{0,8}"
_ITEMS = (
    ("op_type", _STRING), ("op_name", _STRING), ("source_file", _STRING), ("source_line", _NUMBER),
    ("source_end_line", _NUMBER), ("source_column", _NUMBER), ("source_end_column", _NUMBER),
    ("profile_type", r"\{\d+(?:,\d+)*\}"), ("deduplicated_name", _STRING), ("scheduling_name", _STRING),
    ("stack_frame_id", _NUMBER), ("metadata_payload", _STRING),
)  # fmt: skip
ORDER = tuple(name for name, _ in _ITEMS)
"""Keys in the order in which XLA prints them."""
_STRINGS = frozenset(name for name, form in _ITEMS if form is _STRING)

USUAL = re.compile(r"\{(?! )" + "".join(rf"(?: ?{name}=(?!\"\"){form})?" for name, form in _ITEMS) + r"\}")
"""Metadata that is in XLA's form already (where it matches whole)."""
_GLUED = re.compile(r'["}]\w+=|\{ ')


def metadata_form(at: Cursor) -> str:
    """``{op_name="…" stack_frame_id=3}``; items may be separated by blanks, commas or nothing."""
    at.expect("{")
    found: dict[str, str] = {}
    while at.kind != "}":
        at.accept(",")
        if at.kind != "key":
            at.fail(f"expected an item of the metadata, got {at.glance()}")
        key = at.value
        if key not in ORDER:
            at.fail(f"metadata has no item {key}")
        if key in found:
            at.fail(f"{key} is given twice")
        at.advance()
        if key in _STRINGS:
            value = at.string()
            found[key] = f'{key}="{value}"' if value or key == "metadata_payload" else ""
        elif key == "profile_type":
            numbers = at.integers()
            found[key] = f"{key}={{{','.join(map(str, numbers))}}}" if numbers else ""
        else:
            before = at.start
            number = at.integer()
            if not -(2**31) <= number < 2**31:
                raise ParseError(f"{number} does not fit in 32 bits", column=before + 1)
            found[key] = f"{key}={number}" if number else ""
    at.advance()
    return "{" + " ".join(found[key] for key in ORDER if found.get(key)) + "}"


def is_usual(text: str) -> bool:
    """Whether metadata is in XLA's form as it stands; False says nothing."""
    return text != "{}" and USUAL.fullmatch(text) is not None and _GLUED.search(text) is None
