"""The page on the optimizer holds the table of rules as it is, and the table holds every rule."""

from __future__ import annotations

from pathlib import Path

from hloscope.core.passes.left_out import WHY
from hloscope.core.passes.left_out import markdown as markdown_of_left_out
from hloscope.core.passes.registry import PASSES
from hloscope.core.passes.rules import ALGSIMP_RULES
from hloscope.core.passes.rules.catalogue import CATALOGUE, markdown


def test_every_rule_is_in_the_catalogue_once_or_more() -> None:
    assert {one.name for one in ALGSIMP_RULES} == {name for entry in CATALOGUE for name in entry.rules}
    assert all(entry.rules or entry.reason for entry in CATALOGUE)


def test_the_page_holds_the_table(root: Path) -> None:
    text = (root / "docs" / "optimizer.md").read_text("utf-8")
    assert text.endswith(markdown()), "run python -m hloscope.core.passes.rules.catalogue"


def test_passes_that_are_left_out_are_on_the_page_and_in_no_pipeline(root: Path) -> None:
    assert markdown_of_left_out() in (root / "docs" / "optimizer.md").read_text("utf-8")
    assert len(WHY) > 30 and not set(WHY) & set(PASSES)
