"""The registry of Pallas diagnostics: every code with its severity, what it means and what puts it right, and the
checks that find them. The command line and the language server read both from here.

To add one: a row in ``CODES`` and a function in a file of this folder, listed in ``CHECKS``. A check yields findings
for one call and says ``unsupported`` where it cannot decide; it never stays silent about that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hloscope.core.errors import Severity
from hloscope.core.pallas.checks import (
    aliases,
    block_shapes,
    budgets,
    grid_axes,
    initialisation,
    kernel_slices,
    outputs,
    padding,
    pipelines,
    refusals,
    spaces,
    windows,
)
from hloscope.core.pallas.checks.finding import Finding, Subject

Check: TypeAlias = Callable[[Subject], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding."""

    severity: Severity
    meaning: str
    """What it says of the kernel."""
    fix: str | None = None
    """What usually puts it right."""


CODES: Mapping[str, Code] = {
    "unsupported": Code("information", "a check could not decide; this is not a clean bill"),
    "trace-refused": Code("error", "jax refuses to trace the call"),
    "lowering-refused": Code("error", "jax's own lowering for the target refuses the kernel"),
    "empty-grid": Code("warning", "a grid bound is 0: the kernel never runs and outputs are never written"),
    "unused-grid-axis": Code(
        "information", "nothing depends on a dimension of the grid: the same blocks are computed again and again",
        "leave the dimension out of the grid, or let an index map or program_id use it",
    ),
    "index-map-out-of-range": Code(
        "error", "an index map names a block that lies past the end of the array",
        "return block numbers below the number of blocks, or shrink the grid",
    ),
    "partial-block": Code(
        "information", "the last block of a dimension is only partly inside the array",
        "mask what is read before it is reduced, or pad the array",
    ),
    "padding-reaches-output": Code(
        "warning", "values of padding, which nobody wrote, take part in a result that is kept",
        "select with an iota below the real length before reducing (jnp.where(mask, x, 0))",
    ),
    "output-never-written": Code("warning", "part of an output is in no block, or is never stored to"),
    "output-revisited": Code(
        "warning", "the grid returns to an output block after it was written, and what was there is lost",
        "make the dimension that the output's index map ignores the last of the grid",
    ),
    "overlapping-writes": Code("warning", "two different output windows share elements"),
    "parallel-write-race": Code(
        "error", "steps that may run at once write the same output block",
        "make the dimension 'arbitrary', give each step its own block, or accumulate atomically",
    ),
    "dimension-semantics": Code(
        "warning", "a parallel dimension of the grid stands behind one that is not: jax's TPU interpreter refuses that",
        "put the parallel dimensions first",
    ),
    "dimension-semantics-length": Code(
        "error", "dimension_semantics does not have one word for each dimension of the grid: the TPU lowering refuses",
        "give one word for each dimension of the grid, without those that vmap adds",
    ),
    "alias-hazard": Code(
        "warning", "an input that shares memory with an output is read after that memory was written",
        "read each block before any step writes it, or drop the alias",
    ),
    "prefetch-written": Code(
        "error", "a scalar prefetch operand that an index map reads is written, by the kernel or by an index map",
        "index maps of later steps may or may not see the change: compute the indices before the call",
    ),
    "input-written": Code(
        "warning", "the kernel stores to an input, and who sees that depends on how it is run",
        "compute in a value or in scratch memory, or alias the input with an output",
    ),
    "block-shape": Code(
        "error", "the backend does not take the block's shape",
        "use a shape whose last two dimensions are multiples of the tile, or those of the array",
    ),
    "block-window": Code(
        "error", "a block in ANY or HBM memory must be the whole array with an index map of zeros",
        "drop the block shape and index map there, and copy with make_async_copy",
    ),
    "vmem-budget": Code("error", "blocks and scratch do not fit into the core's vector memory", "smaller blocks"),
    "smem-budget": Code("error", "what lives in scalar memory does not fit into it", "smaller scalar operands"),
    "shared-memory-budget": Code(
        "error", "blocks and scratch do not fit into a GPU block's shared memory", "smaller blocks"
    ),
    "no-lowering-rule": Code("error", "the backend has no rule for a primitive of the kernel"),
    "uninitialized-read": Code(
        "error", "memory is read that the kernel has not written before",
        "initialise it under pl.when at the first step that sees it",
    ),
    "kernel-slice-out-of-range": Code(
        "error", "a slice inside the kernel reaches past the end of its reference",
        "clamp the start, or shrink the loop",
    ),
    "race": Code("error", "two accesses of the same memory, at least one a write, are not ordered by anything",
                 "wait for the copy or semaphore before the second access"),
    "out-of-bounds": Code("error", "the running kernel accessed memory outside a buffer"),
    "deadlock": Code("error", "a wait that nothing will ever satisfy", "signal the semaphore, or start the copy"),
    "livelock": Code(
        "error", "a loop that never ends: nothing that its condition reads can change any more",
        "change in the loop what its condition reads, or signal the semaphore that it polls",
    ),
    "semaphore-left": Code(
        "warning", "a semaphore is not zero when the kernel ends", "wait for every copy that was started"
    ),
    "memory-space": Code(
        "error", "the kernel loads or stores what lies in HBM", "copy it with make_async_copy or sync_copy"
    ),
    "copy-shape": Code("error", "a copy between references of different shapes", "slice both ends alike"),
    "order-dependent": Code("error", "the result depends on the order of steps or on when copies finish"),
    "interpreter-failed": Code(
        "information", "the interpreter met a form that it was not written for: hloscope's fault, not the kernel's"
    ),
}  # fmt: skip
"""Code -> what it is."""

FIXES: Mapping[tuple[str, str], str] = {
    ("race", "triton"): "give each program elements of its own, or accumulate with an atomic",
    ("parallel-write-race", "triton"): "give each program a block of its own, or accumulate with an atomic",
    ("uninitialized-read", "triton"): "write the memory before the call (input_output_aliases with zeros), or give the"
    " masked load `other`",
    ("out-of-bounds", "triton"): "mask the access with the array's real length",
}  # fmt: skip
"""(code, backend) -> what puts it right there, where that is something else."""

CHECKS: tuple[Check, ...] = (
    windows.check_grid,
    grid_axes.check_unused,
    windows.check_range,
    windows.check_partial,
    kernel_slices.check_slices,
    spaces.check_spaces,
    outputs.check_unwritten,
    outputs.check_revisits,
    outputs.check_overwritten,
    outputs.check_overlaps,
    pipelines.check_pipelines,
    outputs.check_parallel,
    outputs.check_semantics,
    initialisation.check_initialised,
    aliases.check_aliases,
    aliases.check_prefetch_written,
    aliases.check_input_written,
    padding.check_padding,
    block_shapes.check_block_shapes,
    budgets.check_budgets,
    refusals.check_rules,
    refusals.check_lowering,
)
"""Checks of a traced call, in the order of their findings."""


EXPLAINS = frozenset({"block-shape", "block-window", "no-lowering-rule", "dimension-semantics-length", "memory-space"})
"""Errors of ours for which jax's lowering refuses, too."""


def check_call(subject: Subject) -> list[Finding]:
    """Every finding about one call. A lowering that refuses for a reason that was found already is not told twice."""
    findings = [finding for check in CHECKS for finding in check(subject)]
    explained = any(finding.severity == "error" and finding.code in EXPLAINS for finding in findings)
    return [one for one in findings if one.code != "lowering-refused" or not explained]
