"""Each malformed module of the table is found out, by the rule that it breaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hloscope.core.hlo.verifier import RULES, VerifierOptions, verify
from hloscope.core.text import parse_module

TABLE = Path(__file__).resolve().parents[4] / "fixtures" / "verifier" / "malformed.txt"


def _cases() -> list[tuple[str, tuple[str, ...], str]]:
    """Code, options and text of each module of the table."""
    out: list[tuple[str, tuple[str, ...], str]] = []
    for part in TABLE.read_text().split("\n//// ")[1:]:
        head, _, text = part.partition("\n")
        code, *options = head.split()
        out.append((code, tuple(options), text))
    return out


CASES = _cases()


@pytest.mark.parametrize(("code", "options", "text"), CASES, ids=[f"{i}-{one[0]}" for i, one in enumerate(CASES)])
def test_the_broken_rule_is_named(code: str, options: tuple[str, ...], text: str) -> None:
    module, diagnostics = parse_module(text)
    assert module is not None, text
    assert not [d for d in diagnostics if d.severity == "error"], (diagnostics, text)
    findings = verify(module, replace(VerifierOptions(), **dict.fromkeys(options, True)))
    assert code in {finding.code for finding in findings}, (findings, text)
    assert all(finding.code in RULES and finding.message for finding in findings)


def test_the_table_is_large() -> None:
    assert len(CASES) >= 250
    assert len({code for code, _, _ in CASES}) >= 120
