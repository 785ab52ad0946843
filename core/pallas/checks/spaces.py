"""Loads and stores of what lies in HBM: on a TPU only copies reach it.

Source: ``jax-ml/jax:jax/_src/pallas/mosaic/lowering.py`` ("Loads are only allowed on VMEM and SMEM references").
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.core.pallas.checks.finding import Finding, Subject

DISTANT = frozenset({"any", "hbm"})
"""Memory spaces whose references a kernel can only copy."""


def check_spaces(subject: Subject) -> Iterator[Finding]:
    """Every direct access of such a reference, each statement once."""
    if subject.backend != "tpu" or subject.facts is None:
        return
    told: set[object] = set()
    for access in subject.facts.accesses:
        if access.kind not in ("read", "write", "update") or (access.ref.aval.space or "") not in DISTANT:
            continue
        if (key := (access.ref.key, access.place)) in told:
            continue
        told.add(key)
        verb = "reads" if access.kind == "read" else "writes"
        yield subject.finding(
            "memory-space",
            f"the kernel {verb} {access.ref.name} directly, which lies in HBM: only copies reach it",
            access.place,
        )
