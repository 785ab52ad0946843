"""The pipelines of the backends, each one function that reads top to bottom, and how a whole compile is run.

They have XLA's names and nesting and hold the passes that exist here: for each backend the part through layout
assignment, and the rest, which ends with a schedule and the buffer assignment. Scheduling and assignment are no passes
in XLA; here they are, in pipelines of their own.
Source: ``openxla/xla:xla/service/cpu/cpu_compiler.cc#RunHloPassesThroughLayoutAssn, #RunHloPassesAfterLayoutAssn,
#CompileCpuExecutable``, ``xla/service/gpu/gpu_compiler.cc#RunOptimizationPasses, #OptimizeHloPostLayoutAssignment,
#RunPreSchedulingCopyInsertion, #RunPostSchedulingPipelines``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.errors import UsageError
from hloscope.core.ledger.record import LedgerWriter
from hloscope.core.passes.expand.float_normalization import WIDER
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


_CPU_SIMPLIFY = (
    "algsimp{executing_on_cpu=true} simplify-sorts dce gather_expander gather_simplifier"
    " tree_reduction_rewriter{except_library=true}"
    " zero_sized_hlo_elimination while-loop-invariant-code-motion tuple-simplifier while-loop-constant-sinking"
    " simplify-while-loops dce reshape-mover constant_folding simplify-conditional"
)
_FLOATS = " ".join(f"float-normalization-{kind}" for kind in WIDER)
_CPU_BEFORE = (
    "batched_gather_scatter_normalizer result_caster dot_decomposer operand_upcaster{except_library=true}"
    " rng-expander rng-bit-generator-expander zero_sized_hlo_elimination dynamic-index-splitter"
    " conditional-to-select map-inline topk-decomposer comparison-expander cholesky_expander qr_expander eigh_expander"
    " triangular_solve_expander all_to_all_decomposer stochastic_convert_decomposer call-inliner{single_call_site=true}"
    " batch-dot-simplification"
    f" dot_decomposer all-reduce-promotion {_FLOATS} batch-dot-simplification"
    " convolution-group-converter{convert_batch_groups_only=true} convolution-group-converter batchnorm_expander"
    " logistic-expander conditional-canonicalizer dynamic-dimension-simplifier reduce-window-rewriter"
    " reduce-window-resizer scan_expander dynamic_padder convolution-canonicalization change-op-data-type"
)
_GPU_SIMPLIFY = (
    "zero_sized_hlo_elimination gather_simplifier gather_expander scatter_simplifier scatter_expander"
    " dot-strength-reduction algsimp{enable_dot_strength_reduction=false,"
    "enable_unconditional_reduce_of_concat_replacement=false,"
    "unconditionally_simplify_reduce_of_transpose_or_reshape=true,enable_hoist_transpose_of_reshape=true,"
    "enable_fold_transpose_into_scatter=true,enable_conditional_simplification=true,"
    "enable_conv_add_multiply_reorder=true} simplify-sorts tuple-simplifier while-loop-constant-sinking"
    " simplify-while-loops slice-sinker reshape-mover{reshape_of_1d_broadcast_is_cheap=true} constant_folding"
    " simplify-conditional cse dce"
)
_GPU_BEFORE = (
    "batched_gather_scatter_normalizer dot_decomposer result_caster"
    " operand_upcaster{except_matrices=true} sub-byte-size-setter rng-expander"
    " rng-bit-generator-expander comparison-expander zero_sized_hlo_elimination select_and_scatter_expander"
    " cholesky_expander qr_expander eigh_expander"
    " dynamic-index-splitter call-inliner stochastic_convert_decomposer batchnorm_expander"
    " logistic-expander conditional-canonicalizer dynamic-dimension-simplifier reduce-window-rewriter"
    " reduce-window-resizer scan_expander dynamic_padder"
)

_CPU_SIMPLIFY_LATE = "algsimp{is_layout_sensitive=true,executing_on_cpu=true} dce cse{is_layout_sensitive=true}"
_GPU_ALGSIMP_LATE = (
    "algsimp{is_layout_sensitive=true,enable_dot_strength_reduction=false,"
    "enable_unconditional_reduce_of_concat_replacement=false,"
    "unconditionally_simplify_reduce_of_transpose_or_reshape=true}"
)


def _passes(registry: Registry, words: str) -> list[HloPass]:
    """The passes of a list separated by blanks."""
    return [registry.make_for_pipeline(word) for word in words.split()]


def cpu_pipelines(registry: Registry) -> list[HloPass]:
    """XLA:CPU, one partition, up to layout assignment."""

    def simplification(name: str) -> HloPass:
        return HloPassFix(HloPassPipeline(name, _passes(registry, _CPU_SIMPLIFY)))

    verifier = [registry.make("hlo-verifier")]
    return [
        HloPassPipeline("pre-spmd-partitioner", _passes(registry, "strip-memory-placement-annotations")),
        HloPassPipeline(
            "sharding-removal",
            _passes(registry, "flatten-call-graph sharding-remover control-dep-rewriter dce"),
            verifier,
        ),
        HloPassPipeline("SubbytePacker pipeline", _passes(registry, "sub-byte-size-setter")),
        HloPassPipeline(
            "HLO passes through layout assignment",
            [
                *_passes(registry, _CPU_BEFORE),
                simplification("simplification"),
                *_passes(registry, "select_and_scatter_expander scatter_expander scatter_simplifier"),
                simplification("post_scatter_expansion_simplification"),
                *_passes(
                    registry,
                    "gemv-rewriter bitcast_dtypes_expander topk-rewriter transpose-folding{rows_and_columns_only=true}"
                    " cse cse_barrier_expander tuple-simplifier"
                    " while-loop-trip-count-annotator flatten-call-graph layout-assignment{backend=cpu}"
                    " sub-byte-size-setter",
                ),
            ],
            verifier,
        ),
    ]


def gpu_pipelines(registry: Registry) -> list[HloPass]:
    """XLA:GPU, one partition, up to layout assignment."""
    return [
        HloPassPipeline(
            "pre-spmd-partitioner",
            _passes(registry, "flatten-call-graph call-inliner zero_sized_hlo_elimination conditional-canonicalizer"),
        ),
        HloPassPipeline("sharding-removal", _passes(registry, "sharding-remover dce")),
        HloPassPipeline(
            "optimization",
            [
                *_passes(registry, _GPU_BEFORE),
                HloPassFix(HloPassPipeline("simplification", _passes(registry, _GPU_SIMPLIFY))),
                *_passes(registry, "dot-merger transpose-folding"),
                HloPassFix(HloPassPipeline("simplification-2", _passes(registry, "convert-mover algsimp"))),
                *_passes(registry, "computation-deduplicator"),
            ],
            [registry.make("hlo-verifier")],
        ),
        HloPassPipeline(
            "collective-optimizations",
            _passes(
                registry,
                "all-reduce-simplifier all-reduce-folder all-reduce-reassociate dce all-reduce-promotion dce"
                " while-loop-trip-count-annotator",
            ),
        ),
        HloPassPipeline(
            "layout assignment",
            _passes(
                registry,
                "flatten-call-graph layout-assignment{backend=gpu} sub-byte-size-setter"
                " optimize_input_output_buffer_alias",
            ),
        ),
    ]


def cpu_late_pipelines(registry: Registry) -> list[HloPass]:
    """XLA:CPU after layout assignment, through buffer assignment."""
    verifier = [registry.make("hlo-verifier")]
    return [
        HloPassPipeline(
            "hlo normalization", _passes(registry, "reshape-decomposer reduce-decomposer broadcast_canonicalizer")
        ),
        HloPassPipeline(
            "HLO passes after layout assignment",
            [
                *_passes(registry, "reshape-decomposer fusion fusion-wrapper tuple-simplifier"),
                HloPassFix(
                    HloPassPipeline("simplification after layout assignment", _passes(registry, _CPU_SIMPLIFY_LATE))
                ),
                *_passes(
                    registry,
                    "dce optimize_input_output_buffer_alias copy-insertion small-while-loop-hoisting"
                    " propagate-call-metadata dce",
                ),
            ],
            verifier,
        ),
        HloPassPipeline("scheduling", _passes(registry, "hlo-memory-scheduler"), verifier),
        HloPassPipeline("buffer assignment", _passes(registry, "buffer-assignment{skip_unscheduled=true}")),
    ]


def gpu_late_pipelines(registry: Registry) -> list[HloPass]:
    """XLA:GPU after layout assignment, through buffer assignment."""
    verifier = [registry.make("hlo-verifier")]
    return [
        HloPassPipeline(
            "layout normalization",
            [
                *_passes(registry, "reshape-decomposer"),
                HloPassFix(registry.make_for_pipeline("move_copy_to_users")),
                *_passes(
                    registry,
                    f"layout_normalization {_GPU_ALGSIMP_LATE} broadcast_canonicalizer scatter_simplifier",
                ),
            ],
            verifier,
        ),
        HloPassPipeline(
            "hlo normalization",
            _passes(
                registry,
                f"{_GPU_ALGSIMP_LATE} bitcast_dtypes_expander transpose-folding reshape-decomposer reduce-decomposer"
                " gemv-rewriter"
                " triton-gemm-rewriter"
                f" constant_folding reshape-decomposer layout_normalization {_GPU_ALGSIMP_LATE} scatter_simplifier"
                f" broadcast_canonicalizer {_GPU_ALGSIMP_LATE} cse{{is_layout_sensitive=true}} constant_folding dce"
                " triton-softmax-rewriter",
            ),
            verifier,
        ),
        HloPassPipeline(
            "post-layout_assignment",
            [
                HloPassPipeline("float_normalization", _passes(registry, f"{_FLOATS} simplify-fp-conversions")),
                *_passes(
                    registry,
                    f"reshape-decomposer layout_normalization scatter_simplifier tuple-simplifier {_GPU_ALGSIMP_LATE}"
                    " simplify-fp-conversions cse{is_layout_sensitive=true}",
                ),
            ],
            verifier,
        ),
        HloPassPipeline(
            "fusion",
            _passes(
                registry,
                "sort-iota-fusion priority-fusion cse{is_layout_sensitive=true} dce multi_output_fusion"
                " cse{is_layout_sensitive=true} dce",
            ),
            verifier,
        ),
        HloPassPipeline("post-fusion optimization", _passes(registry, "rename_fusions dce tuple-simplifier"), verifier),
        HloPassPipeline(
            "post-fusion-simplification-pipeline optimization",
            _passes(registry, _GPU_ALGSIMP_LATE),
            verifier,
        ),
        HloPassPipeline("autotuner", _passes(registry, "fusion-wrapper"), verifier),
        HloPassPipeline("propagate-call-metadata", _passes(registry, "propagate-call-metadata")),
        HloPassPipeline(
            "pre-scheduling-copy-insertion",
            _passes(registry, "dce loop-schedule-linearizer copy-insertion copy_fusion sanitize-constant-names"),
            verifier,
        ),
        HloPassPipeline("pre-scheduling-passes", _passes(registry, "fusion-wrapper"), verifier),
        HloPassPipeline(
            "scheduling", _passes(registry, "hlo-memory-scheduler post-scheduling-copy-insertion"), verifier
        ),
        HloPassPipeline(
            "post-scheduling-passes",
            [
                HloPassPipeline("fusion-wrapper", _passes(registry, "fusion-wrapper")),
                HloPassPipeline("sanitize-constant-names", _passes(registry, "sanitize-constant-names")),
            ],
            verifier,
        ),
        HloPassPipeline("buffer assignment", _passes(registry, "buffer-assignment{skip_unscheduled=true}")),
    ]


@dataclass(frozen=True, slots=True)
class Backend:
    """The pipelines of one backend."""

    through_layout: Callable[[Registry], list[HloPass]]
    after_layout: Callable[[Registry], list[HloPass]]
    description: str
    """One line."""


PIPELINES: Mapping[str, Backend] = MappingProxyType(
    {
        "cpu": Backend(
            cpu_pipelines, cpu_late_pipelines, "XLA:CPU up to layout assignment; with --until, up to any pass"
        ),
        "gpu": Backend(
            gpu_pipelines, gpu_late_pipelines, "XLA:GPU up to layout assignment; with --until, up to any pass"
        ),
    }
)
"""Backend -> its pipelines."""


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What a compile did."""

    changed: bool
    files: tuple[str, ...]
    """Dump files written, in order."""
    warnings: tuple[str, ...]
    """Sentences for the user."""


def named_pipeline(name: str, registry: Registry) -> list[HloPass]:
    """The pipelines of a backend through layout assignment. Raises UsageError for a backend without one."""
    return _backend(name).through_layout(registry)


def whole_pipeline(name: str, registry: Registry) -> list[HloPass]:
    """All pipelines of a backend, through buffer assignment. Raises UsageError for a backend without one."""
    backend = _backend(name)
    return [*backend.through_layout(registry), *backend.after_layout(registry)]


def _backend(name: str) -> Backend:
    if name not in PIPELINES:
        raise unknown("pipeline", name, PIPELINES)
    return PIPELINES[name]


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
    if name == AFTER:
        _keep_reports(ctx)
    ctx.ledger.end_pass(
        row,
        changed=False,
        instructions=count,
        snapshot=ctx.snapshot(module),
        file=files[0] if files else None,
        next_pass=following,
    )


def _keep_reports(ctx: PassContext) -> None:
    for kind, text in ctx.reports.items():
        file = None if ctx.dumps is None else ctx.dumps.write_report(kind, text)
        if isinstance(ctx.ledger, LedgerWriter):
            ctx.ledger.add_report(kind.value, file or "", text.encode("utf-8", "surrogateescape"))
