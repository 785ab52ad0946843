"""StableHLO (text, MLIR bytecode, portable artifacts) as HLO text, by the installed jaxlib in a child process.

The HLO is what jax hands to XLA: the module before its first pass. Instructions of a text without locations are placed
at their lines of that text.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from hloscope.core.errors import CompileError, ParseError, UnsupportedError
from hloscope.core.xla.child import clean_environment, run_child
from hloscope.core.xla.entry_layouts import ENTRY_LAYOUT, Asked, with_entry_layouts

SECONDS = 600.0
"""Longest conversion."""
BYTECODE = b"ML\xefR"
"""How MLIR bytecode begins, portable artifacts too."""

_LONGEST = 300
"""Characters of an error that are shown; MLIR may quote a token of any length."""

_COUNTS = (
    ("replica_count", re.compile(r"\bmhlo\.num_replicas\s*=\s*([0-9]+)")),
    ("num_partitions", re.compile(r"\bmhlo\.num_partitions\s*=\s*([0-9]+)")),
)
_ERROR = re.compile(r"^(?:[A-Z_]+: )?(?:(?P<where>\S.*?): )?error: (?P<message>.*)$", re.M)
_PLACE = re.compile(r"(?P<file>.*):(?P<line>[0-9]+):(?P<column>[0-9]+)\Z", re.S)
_STATUS = re.compile(r"^[A-Z_]+: ")
# A position in a text that came without a name: inline, or in the table of file names.
_INLINE = re.compile(r'(?<=\bsource_file=)"-"(?= source_line=)')
_LISTED = re.compile(r'^([0-9]+) "-"$', re.M)


def stablehlo_to_hlo(data: bytes, path: str) -> str:
    """HLO text of a StableHLO program, with the layouts that its entry gets and the replicas and partitions that it is
    for in its first line.

    Raises ``ParseError`` with MLIR's own words and position or for layouts that XLA refuses, ``UnsupportedError`` where
    jaxlib is missing or the program has no HLO form (dynamic shapes), ``CompileError`` where the child fails.
    """
    text, answer = _converted(data, path, "hlo")
    head = str(answer.get("head", ""))
    counts = "".join(
        f", {name}={count[1]}" for name, form in _COUNTS if (count := form.search(head)) is not None and count[1] != "1"
    )
    line, end, rest = text.partition("\n")
    try:
        text = with_entry_layouts(line, _asked(answer, "arguments"), _asked(answer, "results")) + end + rest
    except ParseError as error:
        error.path = path
        raise
    if not data.startswith(BYTECODE):
        name = json.dumps(path, ensure_ascii=False)
        front, found, rest = text.partition("\n%")
        text = _INLINE.sub(lambda _: name, _LISTED.sub(lambda listed: f"{listed[1]} {name}", front) + found + rest)
    return _with_counts(text, counts) if counts else text


def stablehlo_text(data: bytes, path: str | None = None) -> str:
    """The same program as StableHLO text: bytecode is laid open. Raises as ``stablehlo_to_hlo`` does."""
    return _converted(data, path, "stablehlo")[0]


def _asked(answer: Mapping[str, object], side: str) -> list[Asked]:
    found = answer.get(side)
    return [Asked(mode, kind) for mode, kind in cast("list[list[str | None]]", found or [])]


def _converted(data: bytes, path: str | None, form: str) -> tuple[str, Mapping[str, object]]:
    """The program in a form, and what else the child told of it."""
    with tempfile.TemporaryDirectory(prefix="hloscope-") as folder:
        program, made = Path(folder, "program"), Path(folder, "made")
        program.write_bytes(data)
        request: dict[str, object] = {"program": str(program), "hlo": None, "stablehlo": None, form: str(made)}
        try:
            answer = run_child(
                "child_stablehlo.py",
                request,
                env=clean_environment({"JAX_PLATFORMS": "cpu"}),
                timeout=SECONDS,
                what="reading StableHLO",
            )
        except CompileError as error:
            error.path = path
            raise
        if "missing" in answer:
            raise UnsupportedError(
                f"reading StableHLO needs {str(answer['missing']).partition('.')[0]}, which is not installed",
                path=path,
                hint="pip install jax jaxlib",
            )
        if "refused" in answer:
            refusal = _refusal(str(answer["refused"]), path, binary=data.startswith(BYTECODE))
            if refusal.line is None and "unplaced" in answer:
                there = _refusal(str(answer["unplaced"]), path, binary=False)
                refusal.line, refusal.column = there.line, there.column
            raise refusal
        return made.read_text("utf-8", "surrogateescape"), answer


def _refusal(said: str, path: str | None, *, binary: bool) -> ParseError | UnsupportedError:
    """What MLIR said on many lines, as one error at its position in the file, where that is what it told."""
    error = _ERROR.search(said)
    if error is None:
        lines = said.strip().splitlines()
        said = _STATUS.sub("", lines[0])[:_LONGEST] if lines else "refused without a word"
        return ParseError(f"not StableHLO: {said}", path=path)
    message, where = error["message"].rstrip(), error["where"]
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]}…"
    place = _PLACE.match(where) if where is not None else None
    kind = UnsupportedError if "can't be translated to XLA HLO" in message else ParseError
    if place is not None and place["file"] == "-" and not binary:
        return kind(message, path=path, line=int(place["line"]), column=int(place["column"]))
    if place is not None and place["file"] != "-":
        return kind(f"{message} (of {os.path.basename(place['file'])}:{place['line']})", path=path)
    return kind(message, path=path)


def _with_counts(text: str, counts: str) -> str:
    """Puts the counts behind the entry's layout, where XLA writes them."""
    line, end, rest = text.partition("\n")
    at = line.find(ENTRY_LAYOUT)
    depth = 0
    for place in range(at + len(ENTRY_LAYOUT) - 1, len(line) if at >= 0 else 0):
        depth += (line[place] == "{") - (line[place] == "}")
        if depth == 0:
            return f"{line[: place + 1]}{counts}{line[place + 1 :]}{end}{rest}"
    return f"{line}{counts}{end}{rest}"
