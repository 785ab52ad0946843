"""Padding of partial input blocks that reaches a result which is kept (see ``taint.py``)."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.core.pallas.call import Operand
from hloscope.core.pallas.checks.finding import Finding, Subject
from hloscope.core.pallas.checks.windows import padded_dims, padding_of
from hloscope.core.pallas.taint import padding_leaks


def check_padding(subject: Subject) -> Iterator[Finding]:
    """Every partial input block, through the kernel."""
    if subject.schedule is None:
        return
    slots = subject.call.slots
    padded: dict[int, tuple[frozenset[int], str]] = {}
    outputs: dict[int, frozenset[int]] = {}
    for position, walk in subject.schedule.walks.items():
        dims = padded_dims(walk)
        axes = _ref_axes(walk.operand, dims)
        if position < slots.inputs:
            if axes:
                padded[slots.prefetch + position] = (axes, walk.operand.name)
        else:
            outputs[slots.prefetch + position] = axes
    if not padded:
        return
    leaks, unknown = padding_leaks(subject.call.kernel, padded, outputs, _left_out(subject))
    for leak in leaks:
        target = subject.call.kernel.name_of(leak.target)
        if leak.spoiler is not None:
            spoiler, place = leak.spoiler
            yield subject.finding(
                "padding-reaches-output",
                f"{spoiler.primitive} mixes padding of {leak.source}'s last block into a value that reaches {target}",
                place,
                leak.store_at,
                related=[(leak.store_at, f"stored to {target} here")],
                about=leak.source,
            )
        else:
            yield subject.finding(
                "padding-reaches-output",
                f"padding of {leak.source}'s last block is stored to {target}, whose own blocks do not cut it off",
                leak.store_at,
                about=leak.source,
            )
    if unknown and not leaks:
        equation, place = unknown[0]
        yield subject.finding(
            "unsupported",
            f"whether padding reaches an output is not decided: {equation.primitive} is not followed",
            place,
        )


def _left_out(subject: Subject) -> frozenset[int]:
    """Loads of inputs whose value a select leaves out at every step at which the block holds padding."""
    if subject.schedule is None or subject.facts is None:
        return frozenset()
    slots, found, needed = subject.call.slots, set[int](), set[int]()
    for position, walk in subject.schedule.walks.items():
        steps = padding_of(walk).any(axis=1) if position < slots.inputs else None
        for one in subject.facts.of(slots.prefetch + position):
            out = steps is not None and one.wanted is not None and not (one.wanted & steps).any()
            (found if out else needed).add(id(one.equation))
    return frozenset(found - needed)


def _ref_axes(operand: Operand, dims: frozenset[int]) -> frozenset[int]:
    """Dimensions of the array as axes of the kernel's reference."""
    kept = [d for d, dim in enumerate(operand.dims) if dim.in_ref]
    return frozenset(kept.index(d) for d in dims if d in kept)
