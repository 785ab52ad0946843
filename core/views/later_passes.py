"""Which of our passes go on from a stage of a compile: those that the compiler ran after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import UsageError
from hloscope.core.passes.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.views.stages import StageRow

LAYOUT_PASS = "layout-assignment"
"""After it a pipeline cannot begin anew: a bitcast has no meaning where layouts are not assigned yet."""
_KEPT = "{is_layout_sensitive=true}"


def has_layouts(rows: Sequence[StageRow], stage: int) -> bool:
    """Whether a stage comes after layout assignment."""
    return any(row.pass_name == LAYOUT_PASS for row in rows[1 : stage + 1])


def later_passes(rows: Sequence[StageRow], stage: int) -> str:
    """The passes after a stage with layouts, as ``--passes`` takes them; those that we have not are left out.

    Raises UsageError where we have none of them.
    """
    registry = Registry()
    known = frozenset(registry.names())
    found: list[str] = []
    for row in rows[stage + 1 :]:
        name = row.pass_name
        if name in known and name != LAYOUT_PASS:
            text = _written(registry, name)
            if found[-1:] != [text]:
                found.append(text)
    if not found:
        raise UsageError("hloscope has none of the passes that come after this stage")
    return ",".join(found)


def _written(registry: Registry, name: str) -> str:
    """A pass that leaves layouts as they are, where it has that choice."""
    try:
        registry.make(name + _KEPT)
    except UsageError:
        return name
    return name + _KEPT
