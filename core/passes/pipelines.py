"""The pipelines of the backends, each one function that reads top to bottom, and how a whole compile is run.

They have XLA's names and nesting and hold the passes that exist here so far: the part before layout assignment.
Source: ``openxla/xla:xla/service/cpu/cpu_compiler.cc#RunHloPassesThroughLayoutAssn``,
``xla/service/gpu/gpu_compiler.cc#RunOptimizationPasses``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.errors import UsageError
from hloscope.core.passes.pipeline import HloPassFix, HloPassPipeline, pass_names
from hloscope.core.passes.spelling import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext
    from hloscope.core.passes.interface import HloPass
    from hloscope.core.passes.registry import Registry

BEFORE = "before_optimizations"
AFTER = "after_optimizations"


def cpu_pipelines(registry: Registry) -> list[HloPass]:
    """XLA:CPU, one partition, up to layout assignment."""
    make = registry.make

    def simplification(name: str) -> HloPass:
        return HloPassFix(
            HloPassPipeline(
                name,
                [
                    make("algsimp"),
                    make("dce"),
                    make("tuple-simplifier"),
                    make("dce"),
                    make("constant_folding"),
                ],
            )
        )

    return [
        HloPassPipeline("sharding-removal", [make("flatten-call-graph"), make("dce")], [make("hlo-verifier")]),
        HloPassPipeline(
            "HLO passes through layout assignment",
            [
                make("call-inliner{single_call_site=true}"),
                simplification("simplification"),
                simplification("post_scatter_expansion_simplification"),
                make("cse"),
                make("tuple-simplifier"),
                make("flatten-call-graph"),
            ],
            [make("hlo-verifier")],
        ),
    ]


def gpu_pipelines(registry: Registry) -> list[HloPass]:
    """XLA:GPU, one partition, up to layout assignment."""
    make = registry.make
    return [
        HloPassPipeline("pre-spmd-partitioner", [make("flatten-call-graph"), make("call-inliner")]),
        HloPassPipeline("sharding-removal", [make("dce")]),
        HloPassPipeline(
            "optimization",
            [
                make("call-inliner"),
                HloPassFix(
                    HloPassPipeline(
                        "simplification",
                        [
                            make("algsimp"),
                            make("tuple-simplifier"),
                            make("constant_folding"),
                            make("cse"),
                            make("dce"),
                        ],
                    )
                ),
                HloPassFix(HloPassPipeline("simplification-2", [make("algsimp")])),
            ],
            [make("hlo-verifier")],
        ),
        HloPassPipeline("layout assignment", [make("flatten-call-graph")]),
    ]


PIPELINES: Mapping[str, tuple[Callable[[Registry], list[HloPass]], str]] = MappingProxyType(
    {
        "cpu": (cpu_pipelines, "XLA:CPU up to layout assignment"),
        "gpu": (gpu_pipelines, "XLA:GPU up to layout assignment"),
    }
)
"""Backend -> (its pipelines in order, one line)."""


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What a compile did."""

    changed: bool
    files: tuple[str, ...]
    """Dump files written, in order."""
    warnings: tuple[str, ...]
    """Sentences for the user."""


def named_pipeline(name: str, registry: Registry) -> list[HloPass]:
    """The pipelines of a backend. Raises UsageError for a backend without one."""
    if name not in PIPELINES:
        raise unknown("pipeline", name, PIPELINES)
    return PIPELINES[name][0](registry)


def transforms_pipeline(passes: Sequence[HloPass], registry: Registry) -> list[HloPass]:
    """Single passes as one pipeline, as ``hlo-opt --passes`` runs them."""
    return [HloPassPipeline("transforms_pipeline", passes, [registry.make("hlo-verifier")])]


def cut_before(pipelines: Sequence[HloPass], name: str) -> list[HloPass]:
    """Pipelines up to the first pass of that name, which is left out with all that follows.

    A fixed point that is cut runs its first part once. Raises UsageError where no pass has that name.
    """
    kept, found = _cut(pipelines, name)
    if not found:
        raise unknown("pass of this pipeline", name, sorted({n for one in pipelines for n in pass_names(one)}))
    return kept


def _cut(passes: Sequence[HloPass], name: str) -> tuple[list[HloPass], bool]:
    kept: list[HloPass] = []
    for one in passes:
        if one.name == name:
            return kept, True
        inner = one.inner if isinstance(one, HloPassFix) else one
        if isinstance(inner, HloPassPipeline) and name in pass_names(inner):
            part, _ = _cut(inner.passes, name)
            return [*kept, HloPassPipeline(inner.name, part, inner.checkers)], True
        kept.append(one)
    return kept, False


def check_names(pipelines: Sequence[HloPass], ctx: PassContext, registry: Registry) -> None:
    """Raises UsageError for fuel, filters and flags that name a pass which does not exist."""
    passes = {*registry.names(), *(name for one in pipelines for name in pass_names(one))}
    leaves = {*registry.names(), *(one.name for one in _leaves(pipelines))}
    ctx.fuel.check_names(leaves)
    ctx.flags.disable_filter.check_names(passes, "xla_disable_hlo_passes")
    ctx.flags.enable_filter.check_names(passes, "xla_enable_hlo_passes_only")
    start = ctx.flags.xla_run_hlo_passes_starting_from
    if start and start not in leaves:
        raise unknown("pass", start, leaves, where="xla_run_hlo_passes_starting_from")


def _leaves(passes: Sequence[HloPass]) -> list[HloPass]:
    found: list[HloPass] = []
    for one in passes:
        inner = one.inner if isinstance(one, HloPassFix) else one
        found.extend(_leaves(inner.passes) if isinstance(inner, HloPassPipeline) else [one])
    return found


def compile_module(
    module: HloModule, pipeline: str | Sequence[HloPass], ctx: PassContext, registry: Registry | None = None
) -> CompileResult:
    """Run a backend's pipelines (or given ones) on a module, in place, with bookend rows, snapshots and dumps.

    The ledger's module must have been begun. Raises UsageError for names that do not exist before anything is done.
    When a pass raises (Ctrl-C included), its ledger row stays open, its event is recorded and the exception goes on.
    """
    from hloscope.core.passes.registry import Registry as Table

    table = Table() if registry is None else registry
    pipelines = named_pipeline(pipeline, table) if isinstance(pipeline, str) else list(pipeline)
    if not pipelines:
        raise UsageError("no passes to run")
    check_names(pipelines, ctx, table)
    _bookend(module, ctx, BEFORE, pipelines[0].name)
    changed = False
    try:
        for one in pipelines:
            changed |= one.run(module, ctx)
        _bookend(module, ctx, AFTER, None)
    finally:
        if ctx.dumps is not None:
            ctx.dumps.write_metadata(ctx.runs)
    files = () if ctx.dumps is None else ctx.dumps.written
    return CompileResult(changed, files, ctx.final_warnings())


def _bookend(module: HloModule, ctx: PassContext, name: str, following: str | None) -> None:
    """A row of the timeline that is no pass: how the module came, and how it goes."""
    count = module.instruction_count
    row = ctx.ledger.begin_pass(name, instructions=count)
    files: tuple[str, ...] = ()
    if ctx.dumps is not None:
        files = ctx.dumps.write_before(module) if name == BEFORE else ctx.dumps.write_after(module)
    ctx.ledger.end_pass(
        row,
        changed=False,
        instructions=count,
        snapshot=ctx.snapshot(module),
        file=files[0] if files else None,
        next_pass=following,
    )
