"""Collectives, synchronous and in pairs of start and done, over the devices of a mesh.

A start does the whole exchange; its done hands the result on. Without a mesh a program for one device runs alone, and a
program for more is refused by name. Source: ``openxla/xla:xla/service/collective_ops_utils.h``,
``xla/backends/cpu/runtime/collective_thunk.cc``, ``docs/operation_semantics.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import numpy as np

from hloscope.core.hlo.attributes import parse_pairs
from hloscope.core.runtime.evaluator import groups
from hloscope.core.runtime.evaluator.values import (
    TOKEN,
    Array,
    InstructionFailed,
    InstructionUnsupported,
    Kernel,
    Machine,
    Mesh,
    Prepare,
    Value,
    zeros,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

Combine = Callable[[list[tuple[Array, ...]], int], Value]
"""Everybody's operands in rank order and the caller's rank to the caller's result."""


class Alone:
    """The mesh of one device."""

    replicas = 1
    partitions = 1
    device = 0

    def __init__(self) -> None:
        self._left: dict[tuple[object, ...], list[Value]] = {}

    def exchange(self, instruction: HloInstruction, members: tuple[int, ...], value: Value) -> list[Value]:
        """The caller's own value."""
        return [value]

    def post(self, key: tuple[object, ...], target: int, value: Value) -> None:
        """Leave a message for oneself."""
        self._left.setdefault(key, []).append(value)

    def fetch(self, instruction: HloInstruction, key: tuple[object, ...]) -> Value:
        """Take it. Raises InstructionFailed where there is none."""
        if not self._left.get(key):
            raise InstructionFailed(instruction, "receives what nobody sends")
        return self._left[key].pop(0)


def mesh_of(instruction: HloInstruction, machine: Machine) -> Mesh:
    """The mesh of the run. Raises InstructionUnsupported for a program of several devices that runs without one."""
    if machine.options.mesh is not None:
        return machine.options.mesh
    if instruction.in_computation:
        module = instruction.module
        devices = module.num_partitions * module.replica_count
        if devices > 1:
            raise InstructionUnsupported(instruction, f"between {devices} devices, without a mesh of them")
    return Alone()


# ---------------------------------------------------------------- what each one computes
def _all_reduce(instruction: HloInstruction, machine: Machine) -> Combine:
    """Operand by operand, in rank order."""
    combine = machine.elementwise(instruction.callee("to_apply"))

    def together(parts: list[tuple[Array, ...]], rank: int) -> Value:
        out = list(parts[0])
        for part in parts[1:]:
            out = [cast("Array", combine(a, b)) for a, b in zip(out, part, strict=True)]
        return out[0] if len(out) == 1 else tuple(out)

    return together


def _reduce_scatter(instruction: HloInstruction, machine: Machine) -> Combine:
    reduce = _all_reduce(instruction, machine)
    (dim,) = instruction.dimensions or (0,)

    def together(parts: list[tuple[Array, ...]], rank: int) -> Value:
        whole = reduce(parts, rank)
        each = whole if isinstance(whole, tuple) else (whole,)
        out = [np.split(cast("Array", x), len(parts), axis=dim)[rank] for x in each]
        return out[0] if len(out) == 1 else tuple(out)

    return together


def _all_gather(instruction: HloInstruction, machine: Machine) -> Combine:
    (dim,) = instruction.dimensions or (0,)

    def together(parts: list[tuple[Array, ...]], rank: int) -> Value:
        out = [np.concatenate([part[i] for part in parts], axis=dim) for i in range(len(parts[0]))]
        return out[0] if len(out) == 1 else tuple(out)

    return together


def _all_to_all(instruction: HloInstruction, machine: Machine) -> Combine:
    """With a split dimension one operand is cut into equal parts; without one there is an operand for each member."""
    dims = instruction.dimensions

    def split(parts: list[tuple[Array, ...]], rank: int) -> Value:
        (dim,) = dims
        pieces = [np.split(part[0], len(parts), axis=dim)[rank] for part in parts]
        return np.concatenate(pieces, axis=dim)

    def listed(parts: list[tuple[Array, ...]], rank: int) -> Value:
        return tuple(part[rank] for part in parts)

    return split if dims else listed


def _broadcast(instruction: HloInstruction, machine: Machine) -> Combine:
    """The first member's operands."""

    def together(parts: list[tuple[Array, ...]], rank: int) -> Value:
        return parts[0][0] if len(parts[0]) == 1 else tuple(parts[0])

    return together


def _ragged(instruction: HloInstruction, machine: Machine) -> Combine:
    """Rows ``input_offsets[r] : + send_sizes[r]`` go to member r, at the ``output_offsets`` that the sender names.

    Operands: input, output, input offsets, send sizes, output offsets, receive sizes. Rows that nobody writes keep the
    second operand's. With offsets of rank 2 or several per member, a member has several runs.
    """

    def together(parts: list[tuple[Array, ...]], rank: int) -> Value:
        out = np.array(parts[rank][1])
        for part in parts:
            rows, starts, sizes, places = part[0], *(p.reshape(len(parts), -1) for p in (part[2], part[3], part[4]))
            for start, size, place in zip(starts[rank], sizes[rank], places[rank], strict=True):
                out[int(place) : int(place) + int(size)] = rows[int(start) : int(start) + int(size)]
        return out

    return together


_COMBINE: Mapping[str, Callable[[HloInstruction, Machine], Combine]] = MappingProxyType(
    {
        "all-gather": _all_gather,
        "all-reduce": _all_reduce,
        "all-to-all": _all_to_all,
        "collective-broadcast": _broadcast,
        "ragged-all-to-all": _ragged,
        "reduce-scatter": _reduce_scatter,
    }
)


def _function(instruction: HloInstruction, machine: Machine) -> Kernel:
    """The exchange of one instruction: operands to result, whatever tuple a start wraps around it."""
    mesh = mesh_of(instruction, machine)
    opcode = instruction.opcode.removesuffix("-start")
    combine = _COMBINE[opcode](instruction, machine)
    rank_of: dict[int, tuple[groups.Group, int]] = {}
    for group in groups.participants(instruction, mesh.replicas, mesh.partitions):
        for rank, device in enumerate(group):
            rank_of[device] = (group, rank)

    def kernel(*operands: Array) -> Value:
        device = mesh.device
        group, rank = rank_of.get(device, ((device,), 0))
        parts = mesh.exchange(instruction, group, tuple(operands))
        return combine(cast("list[tuple[Array, ...]]", parts), rank)

    return kernel


# ---------------------------------------------------------------- collective-permute
def _permute_function(instruction: HloInstruction, machine: Machine) -> Kernel:
    """A device that nobody sends to gets zeros.

    With in-place operands (input, output, input offsets, output offsets) a slice of the input lands in the output.
    """
    mesh = mesh_of(instruction, machine)
    routes = groups.pairs(instruction, mesh.replicas, mesh.partitions)
    sources = {target: source for source, target in routes}
    members = tuple(range(mesh.replicas * mesh.partitions))
    if instruction.raw_attrs.get("slice_sizes") or instruction.operand_count == 4:
        return _permute_slices(instruction, mesh, sources, members)
    results = _received(instruction)
    empty = [zeros(shape) for shape in results]

    def kernel(*operands: Value) -> Value:
        parts = mesh.exchange(instruction, members, tuple(operands))
        source = sources.get(mesh.device)
        got = list(cast("tuple[Value, ...]", parts[source])) if source is not None else list(empty)
        return got[0] if len(got) == 1 else tuple(got)

    return kernel


def _received(instruction: HloInstruction) -> list[Shape]:
    return [operand.shape for operand in instruction.operands]


def _permute_slices(
    instruction: HloInstruction, mesh: Mesh, sources: Mapping[int, int], members: tuple[int, ...]
) -> Kernel:
    sizes = parse_pairs(instruction.raw_attrs.get("slice_sizes") or "")
    if not sizes:
        raise InstructionUnsupported(instruction, "in place, without slice sizes")
    if instruction.operand(0).shape.is_tuple:
        raise InstructionUnsupported(instruction, "in place, of several arrays")

    def offsets(value: Value) -> list[list[int]]:
        if isinstance(value, tuple) and value and isinstance(value[0], tuple):
            return [[int(cast("Array", v)) for v in cast("tuple[Value, ...]", row)] for row in value]
        return [[int(cast("Array", v)) for v in cast("tuple[Value, ...]", value)]]

    def kernel(given: Array, into: Array, starts: Value, places: Value) -> Value:
        parts = mesh.exchange(instruction, members, (given, starts))
        source = sources.get(mesh.device)
        if source is None:
            return into
        data, start_values = cast("tuple[Array, Value]", parts[source])
        out = np.array(into)
        for size, start, place in zip(sizes, offsets(start_values), offsets(places), strict=False):
            read = tuple(slice(s, s + n) for s, n in zip(start, size, strict=True))
            write = tuple(slice(s, s + n) for s, n in zip(place, size, strict=True))
            out[write] = data[read]
        return out

    return kernel


# ---------------------------------------------------------------- start, done
def _start(prepare: Prepare) -> Prepare:
    """(operands, result, contexts…) around the exchange; all-reduce-start gives the result alone."""

    def start(instruction: HloInstruction, machine: Machine) -> Kernel:
        function = prepare(instruction, machine)
        shape = instruction.shape
        if instruction.opcode == "all-reduce-start":
            return function
        if not shape.is_tuple or len(shape.tuple_shapes) < 2:
            raise InstructionUnsupported(instruction, f"of the shape {shape.to_text(layout=False)}")
        contexts = shape.tuple_shapes[2:]

        def kernel(*operands: Value) -> Value:
            value = operands[0] if len(operands) == 1 and not shape.tuple_shapes[0].is_tuple else tuple(operands)
            return (value, function(*operands), *(zeros(context) for context in contexts))

        return kernel

    return start


def _done(instruction: HloInstruction, machine: Machine) -> Kernel:
    whole = instruction.opcode == "all-reduce-done"

    def kernel(state: tuple[Value, ...]) -> Value:
        return state if whole else state[1]

    return kernel


# ---------------------------------------------------------------- ids
def _id(instruction: HloInstruction, machine: Machine) -> Kernel:
    mesh = mesh_of(instruction, machine)
    by_partition = instruction.opcode == "partition-id"

    def kernel() -> Value:
        number = mesh.device % mesh.partitions if by_partition else mesh.device // mesh.partitions
        return np.asarray(number, np.uint32)

    return kernel


# ---------------------------------------------------------------- send, recv, infeed, outfeed
def _peers(instruction: HloInstruction, mesh: Mesh) -> tuple[tuple[int, int], ...]:
    """Source and target devices of a send or recv; frontend attributes carry them."""
    written = instruction.attr("source_target_pairs")
    if written is None:
        attributes = instruction.attr("frontend_attributes") or {}
        text = attributes.get("_xla_send_recv_source_target_pairs")
        written = parse_pairs(text) if text else ()
    if not written:
        return tuple((device, device) for device in range(mesh.replicas * mesh.partitions))
    return tuple((int(a), int(b)) for a, b in written)


def _channel(instruction: HloInstruction) -> tuple[object, ...]:
    return ("channel", instruction.attr("channel_id"))


def _send(instruction: HloInstruction, machine: Machine) -> Kernel:
    if instruction.attr("is_host_transfer"):
        return _host_send(instruction, machine)
    mesh = mesh_of(instruction, machine)
    routes = _peers(instruction, mesh)
    key = _channel(instruction)

    def kernel(x: Value, *_token: Value) -> Value:
        for source, target in routes:
            if source == mesh.device:
                mesh.post(key, target, x)
        return (x, np.zeros((), np.uint32), TOKEN)

    return kernel


def _host_send(instruction: HloInstruction, machine: Machine) -> Kernel:
    mesh, host = mesh_of(instruction, machine), machine.options.host
    if host is None:
        raise InstructionUnsupported(instruction, "to the host, without a host")
    shape, name = instruction.operand(0).shape, f"channel {instruction.attr('channel_id')}"

    def kernel(x: Value, *_token: Value) -> Value:
        host.outfeed(shape, x, name, mesh.device)
        return (x, np.zeros((), np.uint32), TOKEN)

    return kernel


def _recv(instruction: HloInstruction, machine: Machine) -> Kernel:
    """The message is taken by recv-done, so that a device may post its own send in between."""
    shape = instruction.shape.tuple_shapes[0]
    empty = zeros(shape)
    return lambda *_token: (empty, np.zeros((), np.uint32), TOKEN)


def _recv_done(instruction: HloInstruction, machine: Machine) -> Kernel:
    start = instruction.operand(0)
    while start.opcode not in ("recv", "parameter") and start.operands:
        start = start.operand(0)
    if start.opcode != "recv":
        raise InstructionUnsupported(instruction, "whose recv is in another computation")
    shape = start.shape.tuple_shapes[0]
    mesh = mesh_of(instruction, machine)
    if start.attr("is_host_transfer"):
        host = machine.options.host
        if host is None:
            raise InstructionUnsupported(instruction, "from the host, without a host")
        return lambda _state: (host.infeed(shape, f"channel {start.attr('channel_id')}", mesh.device), TOKEN)
    targets = {target for _, target in _peers(start, mesh)}
    key, empty = _channel(start), zeros(shape)

    def kernel(_state: Value) -> Value:
        return (mesh.fetch(start, key) if mesh.device in targets else empty, TOKEN)

    return kernel


def _token(instruction: HloInstruction, machine: Machine) -> Kernel:
    return lambda *_state: TOKEN


def _infeed(instruction: HloInstruction, machine: Machine) -> Kernel:
    mesh, host = mesh_of(instruction, machine), machine.options.host
    if host is None:
        raise InstructionUnsupported(instruction, "without a host that feeds it")
    shape, config = instruction.shape.tuple_shapes[0], str(instruction.attr("infeed_config") or "")
    return lambda *_token: (host.infeed(shape, config, mesh.device), TOKEN)


def _outfeed(instruction: HloInstruction, machine: Machine) -> Kernel:
    mesh, host = mesh_of(instruction, machine), machine.options.host
    if host is None:
        raise InstructionUnsupported(instruction, "without a host that takes it")
    shape, config = instruction.operand(0).shape, str(instruction.attr("outfeed_config") or "")

    def kernel(x: Value, *_token: Value) -> Value:
        host.outfeed(shape, x, config, mesh.device)
        return TOKEN

    return kernel


def _table() -> dict[str, Prepare]:
    out: dict[str, Prepare] = {"collective-permute": _permute_function, "partition-id": _id, "replica-id": _id}
    out["collective-permute-start"] = _start(_permute_function)
    out["collective-permute-done"] = _done
    for opcode in _COMBINE:
        out[opcode] = _function
        out[f"{opcode}-start"] = _start(_function)
        out[f"{opcode}-done"] = _done
    out.update({"send": _send, "send-done": _token, "recv": _recv, "recv-done": _recv_done})
    out.update({"infeed": _infeed, "outfeed": _outfeed})
    return out


TABLE: Mapping[str, Prepare] = MappingProxyType(_table())
