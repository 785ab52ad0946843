"""Each malformed module is found out, by the rule that it breaks; the sound ones are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from malformed import CASES, Case

from hloscope.core.hlo.verifier import RULES, VerifierOptions, verify
from hloscope.core.text import parse_module


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.code}" for i, case in enumerate(CASES)])
def test_the_broken_rule_is_named(case: Case) -> None:
    module, diagnostics = parse_module(case.text)
    assert module is not None, case.text
    assert not [d for d in diagnostics if d.severity == "error"], (diagnostics, case.text)
    findings = verify(module, replace(VerifierOptions(), **dict(case.options)))
    assert case.code in {finding.code for finding in findings}, (findings, case.text)
    assert all(finding.code in RULES for finding in findings)
