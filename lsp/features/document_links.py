"""Document links: the Python files that a text's source tables and metadata name, where they exist here."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lsprotocol import types

from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature

_TABLE_ROW = re.compile(r'^\d+ "(?P<path>[^"\n]+)"', re.M)
_METADATA = re.compile(r'source_file="(?P<path>[^"\n]+)"(?:\s+source_line=(?P<line>\d+))?')
_FILE = re.compile(r'source_file="([^"\n]+)"')
_MOST = 2_000


def links(reading: Reading, params: types.DocumentLinkParams) -> list[types.DocumentLink]:
    """A link for every mention of a file that is on this machine."""
    del params
    text, index = reading.text, reading.index
    exists: dict[str, bool] = {}

    def is_here(path: str) -> bool:
        if path not in exists:
            exists[path] = os.path.isabs(path) and os.path.isfile(path)
        return exists[path]

    found: list[re.Match[str]] = []
    for start, end in index.columns.tables.values():
        found += [one for one in _TABLE_ROW.finditer(text, start, end) if is_here(one["path"])]
    # Most texts name few files, or none that is here: whether any is, is known much sooner than where.
    if any(is_here(path) for path in set(_FILE.findall(text))):
        found += [one for one in _METADATA.finditer(text) if is_here(one["path"])]
    out: list[types.DocumentLink] = []
    for one in sorted(found[:_MOST], key=lambda one: one.start()):
        line = f"#L{one['line']}" if "line" in one.groupdict() and one["line"] else ""
        out.append(types.DocumentLink(reading.range(*one.span("path")), target=Path(one["path"]).as_uri() + line))
    return out


FEATURE = Feature(types.TEXT_DOCUMENT_DOCUMENT_LINK, links, heavy=True)
