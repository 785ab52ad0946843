"""Module, ownership, edges, order, asynchronous pairs and channels: what holds before shapes are looked at.

Source: ``openxla/xla:xla/service/hlo_verifier.cc#VerifyHloStructure, #VerifyAsynchronousInstructionPairs,
#VerifyChannels, #VerifyInstructionNameUnchanged``. The graph of this package keeps pointers right by construction;
they are checked all the same, because a pass may hold on to a node that it removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import InternalError
from hloscope.core.hlo.verifier.context import (
    ASYNC_PRODUCERS,
    find_async_producer,
    is_async_computation,
    is_async_intermediary,
    target_of,
)
from hloscope.core.hlo.verifier.findings import Broken, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.verifier.context import Context


def module_faults(context: Context) -> Iterator[Broken]:
    """Name and entry of the module."""
    module = context.module
    if not module.name:
        yield Broken("module-name", "!module->name().empty() failed: the module has no name")
    if not module.has_entry:
        yield Broken("no-entry", f"module {module.name} has no entry computation")
    elif module.entry.is_fusion:
        yield Broken("entry-is-fusion", "Module entry computation cannot be a fusion computation")


def structure_faults(context: Context) -> Iterator[Broken]:
    """Parents, operands, roots, parameters, edges and order."""
    members = set(context.module.computations)
    for computation in context.module.computations:
        if computation.module_or_none is not context.module:
            yield Broken(
                "computation-parent",
                f"Computation {computation.name} parent() does not point to parent module",
                computation=computation,
            )
        yield from _computation_faults(computation, members)
    try:
        context.module.post_order()
    except InternalError as error:
        yield Broken("recursion", str(error))


def _computation_faults(computation: HloComputation, members: set[HloComputation]) -> Iterator[Broken]:
    if not computation.has_root or computation.root not in computation:
        yield Broken("no-root", f"computation {computation.name} has no root of its own", computation=computation)
    edges = True
    for node in computation.instructions:
        if not node.in_computation or node.parent is not computation:
            yield Broken(
                "instruction-parent", f"Instruction {node.name} parent() does not point to parent computation", node
            )
            edges = False
            continue
        for i, operand in enumerate(node.operands):
            if operand not in computation:
                where = operand.parent.name if operand.in_computation else "(null)"
                yield Broken(
                    "operand-computation",
                    f"Operand {i} ({operand.name}) of instruction {node.name} is in a different computation: {where} "
                    f"vs {computation.name}",
                    node,
                )
                edges = False
            elif not operand.use_count(node):
                yield Broken("use-lists", f"%{operand.name} does not know its user %{node.name}", node)
        for before in node.control_predecessors:
            if before not in computation or node not in (before.succ or ()):
                yield Broken("use-lists", f"%{node.name} waits for %{before.name}, which does not know it", node)
        for user in node.users:
            if user not in computation or node not in user.operands:
                yield Broken("use-lists", f"%{node.name} has the user %{user.name}, which does not use it", node)
        for callee in node.called_computations:
            if callee not in members:
                yield Broken("callee-module", f"%{node.name} calls {callee.name}, which is not in the module", node)
    numbers = [p.parameter_number for p in computation.parameters]
    if numbers != list(range(len(numbers))):
        message = f"parameters of {computation.name} are numbered {numbers}"
        yield Broken("parameter-numbers", message, computation=computation)
    if edges:
        try:
            computation.post_order()
        except InternalError:
            cycle = cycle_in(computation)
            way = " → ".join(f"%{node.name}" for node in (*cycle, *cycle[:1]))
            message = f"A cycle is detected in computation {computation.name}: {way}"
            yield Broken("cycle", message, cycle[0] if cycle else None, computation)


def cycle_in(computation: HloComputation) -> list[HloInstruction]:
    """Instructions of which each waits for the next, and the last for the first; empty where there is no cycle.

    Source: ``openxla/xla:xla/hlo/ir/hlo_computation.cc#MakeInstructionPostOrder`` (its message of a cycle).
    """
    done: set[HloInstruction] = set()
    for start in computation.instructions:
        way: dict[HloInstruction, Iterator[HloInstruction]] = {}
        node: HloInstruction | None = start if start not in done else None
        while node is not None:
            way[node] = iter((*node.operands, *node.control_predecessors))
            node = None
            while way and node is None:
                last = next(reversed(way))
                step = next((one for one in way[last] if one not in done), None)
                if step is None:
                    done.add(last)
                    del way[last]
                elif step in way:
                    nodes = list(way)
                    return nodes[nodes.index(step) :]
                else:
                    node = step
    return []


# ---------------------------------------------------------------- asynchronous pairs
_PAIR_STARTS = {
    "all-reduce-start": ("all-reduce-done",),
    "all-gather-start": ("all-gather-done",),
    "copy-start": ("copy-done",),
    "collective-permute-start": ("collective-permute-done",),
    "send": ("send-done", "tuple"),
    "recv": ("recv-done", "tuple"),
}
_PAIR_DONES = {
    "all-reduce-done": ("all-reduce-start",),
    "all-gather-done": ("all-gather-start",),
    "copy-done": ("copy-start",),
    "collective-permute-done": ("collective-permute-start",),
    "send-done": ("send", "get-tuple-element"),
    "recv-done": ("recv", "get-tuple-element"),
}
_CARRIERS = frozenset({"tuple", "get-tuple-element", "while", "call", "conditional", "opt-barrier", "domain"})


def async_faults(context: Context) -> Iterator[Broken]:
    """Users of asynchronous values, dedicated pairs, and chains from start to done."""
    starts: list[HloInstruction] = []
    updates: list[HloInstruction] = []
    dones: list[HloInstruction] = []
    groups = {"async-start": starts, "async-update": updates, "async-done": dones}
    for node in context.module.instructions():
        opcode = node.opcode
        if opcode in groups:
            groups[opcode].append(node)
            if opcode in ASYNC_PRODUCERS:
                yield from _user_faults(node)
        elif opcode in _PAIR_STARTS:
            yield from _single_user(node)
        elif opcode in _PAIR_DONES:
            yield from _single_operand(node)
    yield from _chain_faults(starts, updates, dones)


def _user_faults(node: HloInstruction) -> Iterator[Broken]:
    for user in node.users:
        for place, operand in enumerate(user.operands):
            if operand is not node:
                continue
            if user.opcode in ("async-update", "async-done"):
                if place:
                    yield Broken(
                        "async-user",
                        f"Async instruction {node.name} used as operand {place} of {user.name}. Async instructions can "
                        "only be used as the first operand of async-update or async-done.",
                        user,
                    )
            elif user.opcode not in _CARRIERS and not is_async_intermediary(user):
                yield Broken(
                    "async-user",
                    f"Async instruction {node.name} used as operand {place} of {user.name}. Async instructions can "
                    "only be used as operands of async-update, async-done, control flow, or tuple instructions.",
                    user,
                )


def _single_user(node: HloInstruction) -> Iterator[Broken]:
    if node.opcode in ("send", "recv") and node.is_root and is_async_computation(node.parent):
        return
    users = [user for user in node.users if target_of(user) != "control_dep"]
    if len(users) != 1:
        yield Broken("single-user", f"The {node.opcode} instruction requires one consumer, found {len(users)}", node)
        return
    expected = _PAIR_STARTS[node.opcode]
    if users[0].opcode not in expected and not is_async_intermediary(users[0]):
        yield Broken(
            "single-user",
            f"The consumer of a {node.opcode} instruction needs to be one of ({', '.join(expected)}), found "
            f"{users[0].opcode}",
            node,
        )


def _single_operand(node: HloInstruction) -> Iterator[Broken]:
    if node.operand_count != 1:
        yield Broken(
            "single-operand",
            f"The {node.opcode} instruction requires one operand, found {node.operand_count}",
            node,
        )
        return
    expected = _PAIR_DONES[node.opcode]
    operand = node.operand(0)
    producer = find_async_producer(operand) if operand.opcode not in expected else operand
    if operand.opcode not in expected and (producer is None or producer.opcode not in expected):
        yield Broken(
            "single-operand",
            f"The operand of a {node.opcode} instruction needs to be {' or '.join(expected)}, found {operand.opcode}",
            node,
        )


def _chain_faults(
    starts: list[HloInstruction], updates: list[HloInstruction], dones: list[HloInstruction]
) -> Iterator[Broken]:
    done_of: dict[HloInstruction, HloInstruction] = {}
    visited: set[HloInstruction] = set()
    for done in dones:
        if done.operand_count != 1:
            yield Broken("async-chain", f"async-done {done.name} must have exactly one operand", done)
            continue
        producer = find_async_producer(done.operand(0))
        fault = ""
        while producer is not None and producer.opcode == "async-update":
            if not producer.operand_count:
                fault = f"async-update {producer.name} must have at least one operand"
                break
            if producer in visited:
                fault = f"Async update {producer.name} is part of multiple chains or a cycle"
                break
            visited.add(producer)
            producer = find_async_producer(producer.operand(0))
        if not fault and producer is None:
            fault = f"Async done {done.name} does not trace back to an async start"
        if fault or producer is None:
            yield Broken("async-chain", fault, done)
        elif producer in done_of:
            yield Broken(
                "async-chain",
                f"Async start {producer.name} is matched by multiple async done instructions: "
                f"{done_of[producer].name} and {done.name}",
                done,
            )
        else:
            done_of[producer] = done
    for start in starts:
        if start not in done_of and not _carried_across_loop(start):
            yield Broken("async-chain", f"Async start {start.name} has no matching async done", start)
    for update in updates:
        if update not in visited and not _carried_across_loop(update):
            yield Broken("async-chain", f"Orphan async update {update.name} found", update)


def _carried_across_loop(op: HloInstruction) -> bool:
    """Whether the value leaves through a while's state, so that its done may be in the next iteration."""
    seen: set[HloInstruction] = set()
    work = [op]
    while work:
        node = work.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.is_root:
            for caller in node.parent.callers:
                if caller.opcode == "while" and node.parent in caller.called.get("body", ()):
                    return True
                if caller.opcode in ("call", "conditional"):
                    work.append(caller)
        for user in node.users:
            if user.opcode == "while":
                return True
            if user.opcode in _CARRIERS or user.opcode == "async-update":
                work.append(user)
    return False


# ---------------------------------------------------------------- channels and names
def channel_faults(context: Context) -> Iterator[Broken]:
    """Send and recv with a channel: one user, the same channel as their done, and identical host transfers."""
    hosts: dict[int, list[HloInstruction]] = {}
    for node in context.module.instructions():
        if node.opcode not in ("send", "recv"):
            continue
        channel = node.attr("channel_id")
        if channel is None:
            done = next((user for user in node.users if user.opcode == f"{node.opcode}-done"), None)
            if done is not None and done.attr("channel_id") is not None:
                yield Broken(
                    "channel-pair",
                    "Expected to have the same channel id, actual channel ids are: "
                    f"{describe(node)} (-1), {describe(done)} ({done.attr('channel_id')})",
                    done,
                )
            continue
        host = bool(node.attr("is_host_transfer"))
        if host:
            hosts.setdefault(int(channel), []).append(node)
        if node.is_root and is_async_computation(node.parent):
            continue
        if node.user_count != 1:
            yield Broken(
                "channel-pair", f"instruction->users().size() == 1 failed: {describe(node)} has {node.user_count}", node
            )
            continue
        done = node.users[0]
        if done.opcode != f"{node.opcode}-done":
            continue
        if done.attr("channel_id") != channel:
            yield Broken(
                "channel-pair",
                f"Expected to have the same channel id, actual channel ids are: {describe(node)} ({channel}), "
                f"{describe(done)} ({done.attr('channel_id') if done.attr('channel_id') is not None else -1})",
                done,
            )
        elif bool(done.attr("is_host_transfer")) != host:
            yield Broken(
                "channel-pair",
                "Expected instructions to have the same is-host-transfer property: "
                f"{describe(node)}, {describe(done)} ",
                done,
            )
    for nodes in hosts.values():
        for other in nodes[1:]:
            if not _identical_transfer(nodes[0], other):
                yield Broken(
                    "host-transfer",
                    "Host-transfer send/recv instructions that use the same channel must be identical up to having "
                    "different operands. Found different instructions with the same channel ID: "
                    f"{describe(nodes[0])} vs {describe(other)}.",
                    other,
                )


def _identical_transfer(a: HloInstruction, b: HloInstruction) -> bool:
    ignore = frozenset({"metadata", "origin", "sharding"})
    return a.same_attributes(b, ignore) and [o.shape for o in a.operands] == [o.shape for o in b.operands]


def name_faults(context: Context) -> Iterator[Broken]:
    """Names recorded for scheduling are still the names, where the options ask for it."""
    if not context.options.verify_instruction_name_unchanged:
        return
    for node in context.module.instructions():
        recorded = node.metadata.scheduling_name
        if recorded and recorded != node.name and ".remat" not in node.name and ".clone" not in node.name:
            yield Broken(
                "name-unchanged",
                f"Expected instruction name to remain the same. Was '{recorded}' is '{node.name}'.",
                node,
            )
