"""What checks leave open, said once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hloscope.core.pallas.checks.finding import Finding


def said_once(findings: Sequence[Finding]) -> list[Finding]:
    """Findings in their order, where the same thing that is not decided of several calls is said once, with their
    lines."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        if one.code == "unsupported":
            groups.setdefault((one.file, one.message), []).append(one)
    out: list[Finding] = []
    for one in findings:
        same = groups.get((one.file, one.message), []) if one.code == "unsupported" else []
        if len(same) < 2:
            out.append(one)
        elif one is same[0]:
            lines = list(dict.fromkeys(str(other.line) for other in same[1:]))
            out.append(replace(one, message=f"{one.message} (so at line{'s'[: len(lines) > 1]} {', '.join(lines)})"))
    return out
