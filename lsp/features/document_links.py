"""Document links: the Python files that a text's source tables and metadata name, where they exist here."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lsprotocol import types

from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature

_NAMED = re.compile(
    r'^\d+ "(?P<table>[^"\n]+)"|source_file="(?P<metadata>[^"\n]+)"(?:\s+source_line=(?P<line>\d+))?', re.M
)
_MOST = 2_000


def links(reading: Reading, params: types.DocumentLinkParams) -> list[types.DocumentLink]:
    """A link for every mention of a file that is on this machine."""
    del params
    exists: dict[str, bool] = {}
    out: list[types.DocumentLink] = []
    for found in _NAMED.finditer(reading.text):
        group = "table" if found["table"] is not None else "metadata"
        path = found[group]
        if path not in exists:
            exists[path] = os.path.isabs(path) and os.path.isfile(path)
        if exists[path]:
            line = f"#L{found['line']}" if found["line"] else ""
            target = Path(path).as_uri() + line
            out.append(types.DocumentLink(reading.range(*found.span(group)), target=target))
            if len(out) >= _MOST:
                break
    return out


FEATURE = Feature(types.TEXT_DOCUMENT_DOCUMENT_LINK, links, heavy=True)
