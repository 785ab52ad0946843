"""Memory that an input and an output share, and scalar operands that the kernel changes under its own index maps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hloscope.core.pallas.checks.finding import Finding, Subject, points_text
from hloscope.core.pallas.grid import Walk
from hloscope.core.pallas.jaxpr import statements

MOST_PAIRS = 4_000_000
"""Most pairs of windows that are compared."""


def check_aliases(subject: Subject) -> Iterator[Finding]:
    """Blocks of an aliased input that are fetched after a step has written that memory.

    The pipeline fetches ahead, so the read may see the old value or the new one; ``interpret=True`` keeps two arrays
    and always shows the old one.
    """
    schedule = subject.schedule
    if schedule is None or not schedule.steps:
        return
    for source, output in subject.call.aliases:
        position = source - subject.call.slots.prefetch
        target = subject.call.slots.inputs + output
        if position < 0 or position not in schedule.walks or target not in schedule.walks:
            yield subject.finding("unsupported", f"the alias of input {source} and output {output} is not checked")
            continue
        reader, writer = schedule.walks[position], schedule.walks[target]
        if not reader.copied or not writer.copied:
            continue  # the kernel copies for itself: the race detector's matter
        if len(reader.first_of) * len(writer.first_of) > MOST_PAIRS:
            yield subject.finding("unsupported", f"the alias of {reader.operand.title} has too many blocks to compare")
            continue
        found = _read_after_write(reader, writer)
        if found is not None:
            written, read = found
            yield subject.finding(
                "alias-hazard",
                f"{reader.operand.title} shares memory with {writer.operand.title}: its block {reader.window(read)} is"
                f" fetched for {points_text(schedule.point(read))} after {points_text(schedule.point(written))} wrote"
                f" {writer.window(written)}, and the pipeline may fetch it before or after that write",
                reader.operand.place,
                related=[(writer.operand.place, "the output's blocks")],
                about=reader.operand.name,
                joints=frozenset({("fetched", reader.operand.name)}),
            )


def _read_after_write(reader: Walk, writer: Walk) -> tuple[int, int] | None:
    """(step that wrote, later step that fetches) of windows that share an element."""
    ends = np.flatnonzero(np.append(writer.changed[1:], True))
    # the first step after which each distinct output window is written back
    written = np.full(len(writer.first_of), writer.steps, np.int64)
    np.minimum.at(written, writer.block_of[ends], ends)
    fetch = np.flatnonzero(reader.changed)
    last = np.full(len(reader.first_of), -1, np.int64)
    np.maximum.at(last, reader.block_of[fetch], fetch)
    out_low, out_high = writer.starts[writer.first_of], (writer.starts + writer.sizes)[writer.first_of]
    best: tuple[int, int] | None = None
    for block, step in enumerate(reader.first_of):
        low, high = reader.starts[step], reader.starts[step] + reader.sizes[step]
        meets = ((out_low < high) & (low < out_high)).all(axis=1) & (written < last[block])
        for other in np.flatnonzero(meets)[:1]:
            later = fetch[(reader.block_of[fetch] == block) & (fetch > written[other])]
            pair = (int(written[other]), int(later[0]))
            best = pair if best is None or pair < best else best
    return best


def check_prefetch_written(subject: Subject) -> Iterator[Finding]:
    """Scalar prefetch operands that an index map changes, or reads while the kernel stores to them."""
    for operand in subject.call.operands:
        for equation, place, _ in statements(operand.index_map):
            if equation.primitive in ("swap", "addupdate"):
                yield subject.finding(
                    "prefetch-written",
                    f"the index map of {operand.title} writes a scalar prefetch operand: interpret=True forgets that at"
                    " once, a TPU keeps it, and how often and when index maps run is not said",
                    place,
                    operand.place,
                )
                break
    if subject.facts is None:
        return
    rank = len(subject.call.grid)
    for number in range(subject.call.slots.prefetch):
        stores = [one for one in subject.facts.of(number) if one.writes]
        readers = [
            operand
            for operand in subject.call.operands
            if any(
                equation.primitive == "get" and operand.index_map.inputs[rank + number] in equation.inputs
                for equation, _, _ in statements(operand.index_map)
            )
        ]
        if stores and readers:
            yield subject.finding(
                "prefetch-written",
                f"the kernel writes {stores[0].ref.name}, which the index map of {readers[0].title} reads",
                stores[0].place,
                related=[(readers[0].place, "reads it here")],
            )


def check_input_written(subject: Subject) -> Iterator[Finding]:
    """Stores to an input that shares no memory with an output: who sees them differs between jax's own modes.

    ``interpret=True`` keeps them in its copy of the array. A TPU keeps them in the block's buffer until another one is
    fetched there, as ``InterpretParams`` does. Blocks of Triton kernels, and operands that the pipeline does not copy,
    are the caller's array.
    """
    call = subject.call
    if subject.facts is None or subject.schedule is None or not subject.schedule.steps:
        return
    shared = {source - call.slots.prefetch for source, _ in call.aliases}
    for operand in call.inputs:
        walk = subject.schedule.walks.get(operand.number)
        accesses = subject.facts.of(call.slots.prefetch + operand.number)
        stores = [one for one in accesses if one.writes]
        if operand.number in shared or operand.ref.is_semaphore or not stores:
            continue
        store = stores[0]
        if subject.backend in ("triton", "mosaic_gpu") or (walk is not None and not walk.copied):
            yield subject.finding(
                "input-written",
                f"the kernel writes {operand.title}, which is the caller's array: interpret=True leaves that as it was,"
                " and the compiler counts on nobody changing it",
                store.place,
                severity="error",
                fix="alias it with an output (input_output_aliases), or write to an output",
            )
        elif walk is not None and walk.fetches > len(walk.first_of) and any(one.reads for one in accesses):
            first = min(accesses, key=lambda one: one.order)
            if first.is_whole and not first.reads and first.steps is not None and first.steps.all():
                continue  # whatever is there at first, nobody reads it
            yield subject.finding(
                "input-written",
                f"the kernel writes the block of {operand.title}, and {len(walk.first_of):,} blocks are fetched"
                f" {walk.fetches:,} times: interpret=True keeps what was written, a TPU fetches the block without it",
                store.place,
                operand.place,
                related=[(operand.place, "its blocks come back")],
            )
