"""One fault, one finding: what a trace and a run say of the same thing is told once, at its cause, with all the facts.

Findings of one call that share a joint (``jaxpr.Joint``) are one fault. The one that says why comes first, by ``WHY``;
what the others say, and their places, stand beside it, and the gravest severity of all counts. A changed result
(``order-dependent``) stands beside whatever explains the memory or order that it depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hloscope.core.pallas.checks.finding import Finding
from hloscope.core.pallas.interpret.order import ORDERS
from hloscope.core.pallas.jaxpr import Joint, Span

MOST_BESIDE = 12
"""Places that are listed beside a finding."""
SAME_FAULT: Mapping[str, str] = {"out-of-bounds": "kernel-slice-out-of-range", "race": "parallel-write-race"}
"""Code of a run -> code under which the static check tells the same."""
EXPLAINED_BY_MEMORY = frozenset({"padding-reaches-output", "uninitialized-read", "output-revisited"})
"""Codes that say why the content of some memory changes a result."""
EXPLAINED_BY_ORDER = frozenset({"parallel-write-race", "uninitialized-read"})
"""Codes that say why the order of steps or cores changes a result."""
WHY: Sequence[str] = (
    "block-shape", "block-window", "index-map-out-of-range", "deadlock", "parallel-write-race", "alias-hazard",
    "output-revisited", "race", "output-never-written", "uninitialized-read", "semaphore-left",
)  # fmt: skip
"""Codes of findings that may be one fault: causes before what comes of them."""
OF_A_SPEC = frozenset({"block-shape", "block-window", "index-map-out-of-range"})
"""Codes that are one fault where several operands share a spec."""
SHAPES_OF_A_COPY = "DMA source and target shape mismatch"
"""What the lowering says of a copy of unlike shapes, which a run tells better."""
GRAVITY: Sequence[str] = ("error", "warning", "information", "hint")


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Findings by place, each told once."""
    seen: set[tuple[object, ...]] = set()
    unique: list[Finding] = []
    for one in findings:
        key = (one.code, one.file, one.line, one.column, one.message, one.function, one.call_line)
        if key not in seen:
            seen.add(key)
            unique.append(one)
    return sorted(unique, key=lambda one: (one.file, one.line, one.column, one.code))


def told_by_running(known: Sequence[Finding], run: Sequence[Finding]) -> list[Finding]:
    """Findings of a run without those that were known at the same place before."""

    def key(one: Finding, code: str | None) -> tuple[object, ...]:
        return code, one.file, one.line, one.column, one.function, one.call_line

    places = {key(one, one.code) for one in known}
    for one in known:
        if one.code == "parallel-write-race":  # the pipeline's writes of a block are told at its index map
            spots = (replace(one, line=span.line, column=span.column, file=span.file) for span, _ in one.related)
            places |= {key(spot, one.code) for spot in spots}

    def is_new(one: Finding) -> bool:
        if one.code == "unsupported":  # each has a reason of its own
            return True
        return not {key(one, one.code), key(one, SAME_FAULT.get(one.code))} & places

    return [one for one in run if is_new(one)]


def without_decided(known: Sequence[Finding], run: Sequence[Finding]) -> list[Finding]:
    """Findings of a trace without what it left open and a run found to be a fault, at the same place."""

    faults = {_key(one) for one in run if one.severity == "error"}
    return [one for one in known if one.code != "unsupported" or _key(one) not in faults]


def with_evidence(known: Sequence[Finding], again: Sequence[Finding]) -> list[Finding]:
    """Findings of a trace with the places that a run names when it tells the same again."""
    found: list[Finding] = []
    for one in known:
        places = {(one.file, one.line, one.column)} | {at.spot for at, _ in one.related}
        more: list[tuple[Span, str]] = []
        joints = one.joints
        for other in again:
            same = one.code in (other.code, SAME_FAULT.get(other.code)) and other.code != "unsupported"
            if same and _key(one) == _key(other):
                more += [(at, text) for at, text in other.related if at.spot not in places]
                joints |= other.joints
        found.append(replace(one, related=(*one.related, *more), joints=joints))
    return found


def _key(one: Finding) -> tuple[object, ...]:
    """A finding's place, and the call that it belongs to."""
    return one.file, one.line, one.column, one.function, one.call_line


def joined(known: Sequence[Finding], run: Sequence[Finding]) -> list[Finding]:
    """What a trace and a run find, each fault once."""
    told = told_by_running(known, run)
    refused = {one.function for one in told if one.code == "copy-shape"}
    known = [one for one in known if not (one.function in refused and SHAPES_OF_A_COPY in one.message)]
    more = with_evidence(without_decided(known, told), [one for one in run if one not in told])
    return beside_causes([*more, *told])


def beside_causes(findings: Sequence[Finding]) -> list[Finding]:
    """Findings, one a fault. A result that was seen to change makes an error of what explains it."""
    kept = list(findings)
    for one in findings:
        if one.code != "order-dependent" or not one.about:
            continue
        number = next((k for k, cause in enumerate(kept) if _explains(cause, one)), None)
        if number is not None:
            cause = kept[number]
            kept[number] = replace(cause, severity="error", related=(*cause.related, (one.span, one.message)))
            kept.remove(one)
    groups: list[list[Finding]] = [[one] for one in kept]
    for joint in {(one.of_call, joint) for one in kept for joint in _joints(one)}:
        tied = [group for group in groups if any(_has(one, joint) for one in group)]
        for group in tied[1:]:
            tied[0] += group
            groups.remove(group)
    return [one if len(group) == 1 else _as_one(group) for group in groups for one in group[:1]]


def _explains(cause: Finding, changed: Finding) -> bool:
    """Whether a finding says why a result depends on an order, or on what memory holds."""
    if cause.of_call != changed.of_call:
        return False
    if cause.code in EXPLAINED_BY_MEMORY and cause.about == changed.about:
        return True
    if changed.about not in ORDERS or cause.code not in EXPLAINED_BY_ORDER:
        return False
    return cause.code == "parallel-write-race" or cause.about in ORDERS


def _joints(one: Finding) -> frozenset[Joint]:
    if one.code not in WHY:
        return frozenset()
    return one.joints | ({("spec", one.code, one.span.spot)} if one.code in OF_A_SPEC else frozenset())


def _has(one: Finding, joint: tuple[tuple[object, ...], Joint]) -> bool:
    return one.of_call == joint[0] and joint[1] in _joints(one)


def _as_one(group: Sequence[Finding]) -> Finding:
    """The finding that says why, with what the others say beside it."""

    def rank(one: Finding) -> tuple[object, ...]:
        copies_alone = not any(joint[0] == "at" for joint in one.joints)  # the kernel's own statement comes first
        return WHY.index(one.code), copies_alone, GRAVITY.index(one.severity), one.file, one.line, one.column

    cause, *others = sorted(group, key=rank)
    beside = list(cause.related)
    for one in others:
        beside.append((one.span, one.message + ("" if one.code == cause.code else f" [{one.code}]")))
    for one in others:
        places = {at.spot for at, _ in beside} | {cause.span.spot}
        beside += [(at, text) for at, text in one.related if at.spot not in places or "differ" in text]
    gravest = min((one.severity for one in group), key=GRAVITY.index)
    about = cause.about or next((one.about for one in others if one.about), "")
    joints = frozenset[Joint]().union(*(one.joints for one in group))
    return replace(cause, severity=gravest, related=tuple(_shortened(beside, cause.span)), about=about, joints=joints)


def _shortened(beside: Iterable[tuple[Span, str]], at: Span) -> list[tuple[Span, str]]:
    listed = list(dict.fromkeys(beside))
    if len(listed) <= MOST_BESIDE:
        return listed
    return [*listed[: MOST_BESIDE - 1], (at, f"{len(listed) - MOST_BESIDE + 1:,} more places are not listed")]
