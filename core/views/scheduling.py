"""From a module as somebody wrote it to one that buffers can be assigned for: layouts, copies, a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.buffers.copy_insertion import CopyInsertion
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.flatten_call_graph import FlattenCallGraph
from hloscope.core.schedule.memory_scheduler import HloMemoryScheduler

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule


def schedule_for_buffers(module: HloModule, target: str | None) -> list[str]:
    """Give an unscheduled module copies and a schedule in place; returns what was done, in words for the user.

    Shapes without a layout get the default one. Raises a HloscopeError for a module that the passes do not take.
    """
    ctx = PassContext(target="gpu" if target not in (None, "cpu", "core") else "cpu")
    for node in module.instructions():
        node.shape = node.shape.with_default_layout()
    FlattenCallGraph().run(module, ctx)
    CopyInsertion().run(module, ctx)
    HloMemoryScheduler().run(module, ctx)
    return [
        "the module is not scheduled: copy-insertion and the memory scheduler of hloscope ran first, no optimization"
    ]
