"""Pipelines inside a kernel (``pltpu.emit_pipeline``): output blocks that come back.

Once traced such a pipeline is loops and copies, which do what they are told in every order; that a block is not read
again when its turn comes back shows in its index map alone, which the tracing child has asked for every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hloscope.core.pallas.accesses import Access
from hloscope.core.pallas.checks.finding import Finding, Subject, points_text
from hloscope.core.pallas.jaxpr import Span


def check_pipelines(subject: Subject) -> Iterator[Finding]:
    """Every pipeline of the kernel, each place once."""
    if subject.facts is None:
        return
    told: set[Span | None] = set()
    for equation, place in subject.facts.primitives:
        made = equation.params.get("pipeline")
        if not isinstance(made, Mapping) or place in told:
            continue
        told.add(place)
        if made["refused"] is not None:
            yield subject.finding(
                "unsupported",
                f"output blocks of the pipeline that come back are not looked for: {made['refused']}",
                place,
            )
        for output in made["outputs"]:
            if output["steps"] is not None:
                yield _comes_back(subject, output, made["body"], place)


def _comes_back(subject: Subject, output: Mapping[str, Any], body: Span | None, place: Span | None) -> Finding:
    first, between, again = (points_text(point) for point in output["steps"])
    reads = _read_in(subject, tuple(output["block"]), body)
    loss = (
        "what was accumulated before is lost: the block is not read again"
        if reads is not None
        else "only the last visit's values remain"
    )
    related = [] if place is None else [(place, "the pipeline")]
    return subject.finding(
        "output-revisited",
        f"output {output['number']} of the pipeline comes back to a block at {again} after {first} wrote it and"
        f" {between} wrote another: {loss}",
        output["map"],
        output["spec"],
        place,
        severity="error" if reads is not None else "warning",
        related=related if reads is None else [(reads.place, "reads the block here"), *related],
    )


def _read_in(subject: Subject, block: tuple[int, ...], body: Span | None) -> Access | None:
    """Where the body reads a buffer of such blocks that it also writes, before it has written all of it for certain."""
    assert subject.facts is not None
    if body is None:
        return None
    inside: dict[object, list[Access]] = {}
    for one in subject.facts.accesses:
        at = one.place
        mine = one.ref.position is None and one.ref.aval.shape[1:] == block and one.kind in ("read", "write", "update")
        if mine and at is not None and at.file == body.file and body.line <= at.line <= body.end_line:
            inside.setdefault(one.ref.key, []).append(one)
    for accesses in inside.values():
        if not any(one.writes for one in accesses):
            continue
        begin = accesses[0]
        if begin.writes and not begin.reads and not begin.masked and begin.steps is not None and begin.steps.all():
            continue
        reads = next((one for one in accesses if one.reads), None)
        if reads is not None:
            return reads
    return None
