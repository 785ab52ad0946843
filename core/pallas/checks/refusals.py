"""What jax itself refuses: primitives without a rule on the backend, and what its lowering said of the function."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.core.pallas.checks.finding import Finding, Subject

TABLES = {"tpu": "tpu:tc", "triton": "triton", "mosaic_gpu": "mosaic_gpu"}
"""Backend -> the table of lowering rules that a kernel on it is checked against."""
TITLES = {"tpu": "the Pallas TPU lowering (TensorCore)", "triton": "the Pallas Triton lowering",
          "mosaic_gpu": "the Pallas Mosaic GPU lowering"}  # fmt: skip
HANDLED_ELSEWHERE = frozenset({"jit", "pjit"})


def check_rules(subject: Subject) -> Iterator[Finding]:
    """Primitives that the backend has no rule for: a certain refusal. Having a rule is not enough to lower."""
    if subject.backend is None or subject.facts is None:
        return
    rules = subject.rules.get(TABLES[subject.backend])
    if rules is None:
        yield subject.finding("unsupported", f"the installed jax has no table of rules for {subject.backend}")
        return
    seen: set[tuple[str, object]] = set()
    for equation, place in subject.facts.primitives:
        key = (equation.primitive, place)
        if equation.primitive in rules or equation.primitive in HANDLED_ELSEWHERE or key in seen:
            continue
        seen.add(key)
        yield subject.finding(
            "no-lowering-rule", f"{TITLES[subject.backend]} has no rule for the primitive {equation.primitive}", place
        )


def check_lowering(subject: Subject) -> Iterator[Finding]:
    """jax's own answer for the target, where it was asked."""
    if subject.lowering is None or subject.lowering.refusal is None:
        return
    refusal = subject.lowering.refusal
    yield subject.finding(
        "lowering-refused",
        f"jax does not lower it for {subject.lowering.platform}: {refusal.kind}: {refusal.message[:400]}",
        refusal.at,
        origin="jax",
    )
