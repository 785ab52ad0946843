"""Asynchronous operations in a memory schedule: starts as early, dones as late as the order around them allows.

XLA:GPU does this to every order before it compares peaks. Source:
``openxla/xla:xla/service/gpu/gpu_hlo_schedule.cc#PostProcessSchedule``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction

_STARTS = frozenset(("all-gather-start", "all-reduce-start", "collective-permute-start", "async-start"))
_DONES = frozenset(("all-gather-done", "all-reduce-done", "collective-permute-done", "async-done"))


def place_asynchronous(order: Sequence[HloInstruction]) -> list[HloInstruction]:
    """The order of one computation with its asynchronous operations moved."""
    if not any(node.opcode in _STARTS or _scheduled(node) for node in order):
        return list(order)
    return _late(_early(_synchronous(order)))


def _synchronous(order: Sequence[HloInstruction]) -> list[HloInstruction]:
    """A start that is marked synchronous stands directly before its done."""
    found: list[HloInstruction] = []
    for node in order:
        if node.opcode in _STARTS and _is_synchronous(node):
            continue
        if node.opcode in _DONES and node.operand(0).opcode in _STARTS and _is_synchronous(node.operand(0)):
            found.append(node.operand(0))
        found.append(node)
    return found


def _early(order: Sequence[HloInstruction]) -> list[HloInstruction]:
    """Starts follow at once when all that they need is there."""
    found: dict[HloInstruction, None] = {}

    def emit(node: HloInstruction) -> None:
        found[node] = None
        for after in (*node.users, *node.control_successors):
            ready = all(one in found for one in (*after.operands, *after.control_predecessors))
            if after not in found and ready and _goes_early(after):
                emit(after)

    for node in order:
        if node not in found:
            emit(node)
    return list(found)


def _late(order: Sequence[HloInstruction]) -> list[HloInstruction]:
    """Dones wait until directly before what reads them."""
    found: dict[HloInstruction, None] = {}

    def emit(node: HloInstruction) -> None:
        found[node] = None
        for before in (*node.operands, *node.control_predecessors):
            ready = all(one in found for one in (*before.users, *before.control_successors))
            if before not in found and ready and _goes_late(before):
                emit(before)

    for node in reversed(order):
        if node not in found:
            emit(node)
    return list(reversed(found))


def _goes_early(node: HloInstruction) -> bool:
    if node.opcode in _STARTS:
        return not _is_synchronous(node)
    return _scheduled(node) == "SCHEDULE_EARLIEST"


def _goes_late(node: HloInstruction) -> bool:
    if node.opcode in _DONES:
        start = node.operand(0)
        return start.opcode in _STARTS and not _is_synchronous(start)
    return _scheduled(node) == "SCHEDULE_LATEST"


def _scheduled(node: HloInstruction) -> str:
    return (node.raw_attrs.get("schedule") or "") if node.opcode == "custom-call" else ""


def _is_synchronous(start: HloInstruction) -> bool:
    config: Any = start.attr("backend_config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            return False
    found = config.get("collective_backend_config") if isinstance(config, dict) else None
    return bool(found.get("is_sync")) if isinstance(found, dict) else False
