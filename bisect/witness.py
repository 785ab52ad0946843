"""Whom a guilty stage is held against beside the stage before: modules that compute the right thing in nearly its form.

Where a pass has put many instructions in the place of one, the stage before has nothing to hold a single one of them
against. Two others may: the stage that is right again, where a later one is, and what our own pass of that name makes
of the stage before. Nothing is believed of them: that they compute the right thing is probed as for any stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.bisect.running import Overrun, limited
from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.registry import PASSES, Registry

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule

SECONDS = 20.0
"""Longest run of a pass of our own."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A right module and a wrong one that differ in little."""

    right: HloModule
    right_stage: int
    """The stage that has the values of its elided constants."""
    wrong: HloModule
    wrong_stage: int
    said: str
    """What tells the guilty instruction, in words."""


def by_own_pass(
    name: str, before: HloModule, earlier: int, after: HloModule, number: int, target: str
) -> Iterator[Witness]:
    """What our pass of a name makes of the stage before; none where we have none, or it leaves that as it is."""
    if name not in PASSES:
        return
    made = before.clone()
    try:
        with limited(SECONDS):
            Registry().make(name).run(made, PassContext(target=target))
    except (Exception, Overrun):  # one that fails here says nothing of the stage
        return
    if structural_hash(made) != structural_hash(before):
        yield Witness(made, earlier, after, number, f"our own {name} makes it right where this one does not")
