"""Reads what stands before the computations: the HloModule line and the four source tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.hlo.attributes import unquote
from hloscope.core.hlo.stack_frames import FileLocation, StackFrame
from hloscope.core.text.header_forms import MODULE_ATTRIBUTES
from hloscope.core.text.scan import BLANKS, attribute_end, skip_blank

if TYPE_CHECKING:
    from hloscope.core.text.reading import Reading

_MODULE = re.compile(rf"HloModule(?=[\s/%]){BLANKS}%?([^\s,{{:/]+):?", re.S)
_ATTR = re.compile(rf"{BLANKS},{BLANKS}([A-Za-z_][\w.\-]*){BLANKS}={BLANKS}", re.S)
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_TABLE_HEAD = re.compile(r"(FileNames|FunctionNames|FileLocations|StackFrames)\b(?=\s)")
_TABLE_STRING = re.compile(rf"{BLANKS}(-?\d+)(?:{BLANKS}(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'))?", re.S)
_TABLE_ROW = re.compile(rf"{BLANKS}(-?\d+){BLANKS}\{{([^}}]*)\}}", re.S)
_FIELD = re.compile(r"(\w+)=(-?\d{1,18})")
_LOCATION = ("file_name_id", "function_name_id", "line", "end_line", "column", "end_column")
_FRAME = ("file_location_id", "parent_frame_id")

_LOG_PREFIX = re.compile(r"^(?:[IWEF]\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ [^\s\]]+:\d+\])[ ]?", re.M)
"""What the C++ log puts in front of a line."""


def without_log_prefixes(text: str) -> str:
    """The text with the prefixes of log lines blanked out; offsets stay."""
    if _LOG_PREFIX.match(text.lstrip("\ufeff")[:200]) is None:
        return text
    return _LOG_PREFIX.sub(lambda found: " " * len(found[0]), text)


def read_header(reading: Reading) -> bool:
    """Read the HloModule line where there is one; whether there was."""
    text = reading.text
    found = _MODULE.match(text, reading.pos)
    if found is None:
        if not text.startswith("HloModule", reading.pos):
            return False
        reading.report("expected a module name after HloModule", reading.pos, reading.pos + 9)
        reading.skip_line()
        return True
    reading.module.name = found[1]
    if reading.check:
        from hloscope.core.text.strict_syntax import check_walk, walk_module_name

        end = found.end()
        check_walk(reading, reading.pos, lambda at: walk_module_name(at, end))
    reading.pos = found.end()
    attrs = reading.module.attrs
    key_at: dict[str, int] = {}
    while True:
        attr = _ATTR.match(text, reading.pos)
        if attr is None:
            break
        key = attr[1]
        end = attribute_end(text, key, attr.end())
        if end < 0:
            reading.report(f"the value of {key} is not closed", attr.start(1), attr.end(), code="unclosed")
            reading.skip_line()
            return True
        if reading.check and text[attr.end(1)] != "=":
            reading.object(f"a blank between {key} and '='", attr.end(1))
        if key in attrs:
            reading.twice(f"attribute {key} is given twice", *attr.span(1), key_at[key], "duplicate-attribute")
        key_at.setdefault(key, attr.start(1))
        if key not in MODULE_ATTRIBUTES:
            reading.unknown("module attribute", key, attr.start(1))
        elif reading.check:
            from hloscope.core.text.strict import check_module_attribute

            check_module_attribute(reading, key, text[attr.end() : end], attr.end())
        attrs[key] = text[attr.end() : end]
        reading.pos = end
    return True


def read_tables(reading: Reading) -> None:
    """Read the source tables where there are some."""
    tables = reading.module.stack_frames
    seen: list[str] = []
    start = skip_blank(reading.text, reading.pos)
    while True:
        at = skip_blank(reading.text, reading.pos)
        head = _TABLE_HEAD.match(reading.text, at)
        if head is None:
            break
        seen.append(head[1])
        reading.module.tables_present = True
        reading.pos = head.end()
        while True:
            if head[1] in _TABLES[:2]:
                row = _TABLE_STRING.match(reading.text, reading.pos)
                if row is None:
                    break
                (tables.file_names if head[1] == "FileNames" else tables.function_names).append(unquote(row[2] or ""))
            else:
                row = _TABLE_ROW.match(reading.text, reading.pos)
                if row is None:
                    break
                items = {key: int(value) for key, value in _FIELD.findall(row[2])}
                if head[1] == "FileLocations":
                    tables.file_locations.append(FileLocation(*[items.get(key, 0) for key in _LOCATION]))
                else:
                    # Printed as the parent's id plus one, so that 1 says "no parent".
                    parent = max(items.get("parent_frame_id", 1) - 1, 0)
                    tables.stack_frames.append(StackFrame(items.get("file_location_id", 0), parent))
            reading.pos = row.end()
    if seen and reading.check:
        from hloscope.core.text.strict_syntax import check_walk, walk_tables

        if check_walk(reading, start, walk_tables) and tuple(seen) != _TABLES:
            reading.object(f"the source tables are {', '.join(_TABLES)}, once and in this order", start)
