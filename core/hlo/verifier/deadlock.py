"""Sends and recvs of a schedule that would wait for each other for ever.

Source: ``openxla/xla:xla/service/hlo_verifier.cc#VerifyNoCollectiveDeadlocks``. A state machine over the schedule:
after a send its recv is expected and the other way round; another collective in between would deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.core.hlo.attributes import parse_pairs
from hloscope.core.hlo.verifier.context import is_async_computation
from hloscope.core.hlo.verifier.findings import broken, describe

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction

PAIRS = "_xla_send_recv_source_target_pairs"
_PIPELINED = "_xla_send_recv_pipeline"
_OTHER = frozenset(
    "all-gather all-reduce all-to-all ragged-all-to-all collective-permute reduce-scatter collective-broadcast".split()
)

Pair = tuple[int, ...]


@dataclass(slots=True)
class _State:
    expected: str = ""
    """``send``, ``recv`` or nothing."""
    pending: dict[str, list[HloInstruction]] = field(default_factory=lambda: {"send": [], "recv": []})


def check(entry: HloComputation) -> None:
    """Raises Broken where the schedule deadlocks."""
    state = _State()
    _walk(entry, state)
    if state.expected:
        _check_pending(state)


def _walk(computation: HloComputation, state: _State) -> None:
    for node in computation.instructions:
        if not node.called_computations:
            if node.opcode in ("send", "recv"):
                _transfer(node, state)
            elif node.opcode in _OTHER and state.expected:
                _refuse_collective(node, state)
            continue
        for callee in node.called_computations:
            if is_async_computation(callee) and any(
                one is not callee.root and one.opcode != "parameter" for one in callee.instructions
            ):
                # A group of transfers that run together has an order of its own.
                inner = _State()
                _walk(callee, inner)
                if state.expected:
                    _check_pending(inner)
            else:
                _walk(callee, state)


def pairs_of(node: HloInstruction) -> tuple[Pair, ...]:
    """Source-target pairs of a send or recv."""
    text = (node.attr("frontend_attributes") or {}).get(PAIRS)
    return parse_pairs(text) if text else ()


def _conflict(pairs: tuple[Pair, ...]) -> str | None:
    targets = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    if len(targets) != len(pairs) or len(set(targets.values())) != len(targets):
        return "have unique source and target pairs"
    for start in targets:
        at, steps = targets[start], 0
        while at in targets and at != start and steps <= len(targets):
            at, steps = targets[at], steps + 1
        if at == start:
            return "have non-cyclical source-target pairs"
    return None


def _transfer(node: HloInstruction, state: _State) -> None:
    attributes = node.attr("frontend_attributes") or {}
    if node.attr("is_host_transfer") or _PIPELINED in attributes:
        return
    mine = pairs_of(node)
    wrong = _conflict(mine)
    if wrong is not None:
        broken(
            "collective-deadlock", f"Expected send and recv instructions to {wrong}, but found {describe(node)}", node
        )
    kind, other = node.opcode, "recv" if node.opcode == "send" else "send"
    if not state.expected:
        state.pending[kind].append(node)
        state.expected = other
    elif state.expected == other:
        if any(_conflict((*mine, *pairs_of(waiting))) for waiting in state.pending[kind]):
            broken("collective-deadlock", f"Expected {other}, but found {describe(node)}", node)
        state.pending[kind].append(node)
    else:
        match = next((one for one in state.pending[other] if pairs_of(one) == mine), None)
        if match is None:
            state.pending[kind].append(node)
        else:
            state.pending[other].remove(match)
            if not state.pending[other]:
                state.expected = ""


def _refuse_collective(node: HloInstruction, state: _State) -> None:
    if state.pending["send"] or state.pending["recv"]:
        broken(
            "collective-deadlock",
            "Expected send and recv instructions to have the same source-target pairs, but could not match some "
            f"instructions. Introducing the following instruction will cause a deadlock: {describe(node)}",
            node,
        )
    broken("collective-deadlock", f"Expected send or recv, but found {describe(node)}", node)


def _check_pending(state: _State) -> None:
    sends, recvs = state.pending["send"], state.pending["recv"]
    if sends and not recvs:
        broken("collective-deadlock", "Expected recv to match send", sends[0])
    if recvs and not sends:
        broken("collective-deadlock", "Expected send to match recv", recvs[0])
    left: list[HloInstruction] = []
    rest = list(recvs)
    for send in sends:
        match = next((one for one in rest if pairs_of(one) == pairs_of(send)), None)
        if match is None:
            left.append(send)
        else:
            rest.remove(match)
    left += rest
    if left:
        broken(
            "collective-deadlock",
            f"Deadlock detected. Last checked instructions: {', '.join(map(describe, left))}",
            left[0],
        )
