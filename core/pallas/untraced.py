"""What is said of the calls of a file that no trace reached: what their text shows, and that no more is known."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from hloscope.core.pallas.checks.finding import Finding
from hloscope.core.pallas.static_source import scan_file


def untraced_findings(
    path: str,
    function: str | None,
    target: str | None,
    traced: Collection[tuple[str, int]],
    refusals: Sequence[Finding],
    refused: Collection[str],
) -> list[Finding]:
    """Findings about calls of a file outside of ``traced``, by file and line.

    ``refusals`` are what jax said of the functions ``refused``: the same is not told twice of one line. With
    ``function`` only what it reaches is looked at. Raises ``UsageError`` where the file cannot be read.
    """
    calls, findings = scan_file(path, function, target)
    seen = {(os.path.realpath(file), line) for file, line in traced}
    missing = [one for one in calls if (os.path.realpath(one.file), one.line) not in seen]
    lines = {one.line for one in missing}
    told = {(os.path.realpath(one.file), one.line) for one in refusals}
    found = [
        one
        for one in findings
        if one.call_line in lines
        and one.code != "unsupported"
        and (one.code != "trace-refused" or (os.path.realpath(one.file), one.line) not in told)
    ]
    for one in missing:
        if function is not None or one.function in refused:
            continue
        name = one.function or one.name
        found.append(
            Finding(
                "unsupported", "information",
                f"the pallas_call of {name} was not traced: no function with defaults that give shapes reaches it",
                one.file, one.line, one.column, one.line, one.end_column, call=one.name,
                fix=f"name it and its shapes: {path}:{name} --trace --arg …",
            )
        )  # fmt: skip
    return found
