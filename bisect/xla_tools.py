"""Commands of XLA's own tools, for a maintainer who does not have hloscope: as these tools take them.

``hlo-opt`` knows the passes that are registered in it, not every pass of a compile, and has no TPU. Source:
``openxla/xla:xla/hlo/tools/hlo_opt/opt_lib.cc#RegisterAllHardwareIndependentPasses``,
``xla/tools/hlo_opt/compiled_opt_lib.cc``, ``cpu_opt.cc``, ``gpu_opt.cc`` and ``xla/tools/run_hlo_module_main.cc``.
"""

from __future__ import annotations

import re

_ANYWHERE = """
    AssumeGatherIndicesInBoundRewriteToCopy ReduceWindowToReduceAndBroadcast add-original-value algsimp
    all-gather-bcast-reorder all-gather-combiner all-gather-cse all-gather-dynamic-slice-simplifier
    all-reduce-combiner all-reduce-contiguous all-reduce-folder all-reduce-simplifier all-reduce-splitter
    all_to_all_decomposer ar-crs-combiner async-collective-creator batch-dot-simplification
    batched_gather_scatter_normalizer bf16-mixed-precision-removal bfloat16-fold bfloat16-propagation
    bitcast_dtypes_expander broadcast_canonicalizer call-inliner cholesky_expander collective-quantizer
    collective-transformation-reorderer collectives-schedule-linearizer comparison-expander computation-deduplicator
    conditional-canonicalizer conditional-to-select constant_folding control-dep-remover
    convert-async-collectives-to-sync convert-memory-placement-to-internal-annotations convert-mover
    convert_operand_folding convolution-group-converter convolution-pred-expander convolution_4d_expander
    cse_barrier_expander dce defuser despecializer dot-merger dot_decomposer dot_dimension_merger
    dynamic-dimension-simplifier dynamic-index-splitter eigh_expander element_type_converter flatten-call-graph
    fusion_constant_sinking gather_expander gather_simplifier gpu_scatter_expander hlo-constant-splitter
    hlo-descheduler hlo-trivial-scheduler host-memory-transfer-asyncifier host-offload-legalize
    infeed-token-propagation instruction-hoister literal-canonicalizer logistic-expander map-inline
    memory-space-propagation operand_upcaster optimize_input_output_buffer_alias qr_expander recognize-reduce-window
    reduce-decomposer reduce-scatter-reassociate reduce-window-rewriter reorder-convert-reduce-add
    reorder-reduce-transpose reshape-decomposer reshape-mover result_caster rng-bit-generator-expander rng-expander
    root-instruction-sinker scatter-slice-simplifier scatter_determinism_expander scatter_simplifier
    select_and_scatter_expander sharding-remover shardy-xla simplify-conditional simplify-fp-conversions
    simplify-sorts simplify-while-loops slice-sinker stable-sort-expander stochastic_convert_decomposer
    sub-byte-size-setter topk-decomposer tree-reduction-rewriter triangular_solve_expander tuple-simplifier
    while-loop-all-reduce-code-motion while-loop-constant-sinking while-loop-invariant-code-motion
    while-loop-trip-count-annotator zero_sized_hlo_elimination
"""
"""Passes that ``hlo-opt`` has for every platform."""
_ON_CPU = """
    batchnorm_expander change-op-data-type convolution-canonicalization copy-insertion cpu-parallel-task-assigner
    dynamic_padder fusion hlo-memory-scheduler host-offloader layout-assignment recognize-reduce-window
    sharding-propagation spmd-partitioning transpose-folding
"""
_ON_GPU = """
    all-gather-optimizer copy-insertion cublas-gemm-broadcast-folding-rewriter cudnn-custom-call-converter
    dot-algorithm-rewriter dot_dimension_sorter dot_normalizer gemv-rewriter hlo-memory-scheduler host-offloader
    operand_converter reduce-scatter-creator reduction-degenerate-dim-remover reduction-dimension-grouper
    reduction-layout-normalizer sanitize-constant-names schedule-aware-collective-cse topk-specializer topk-splitter
    triton-gemm-rewriter windowed-einsum-handler
"""
HLO_OPT = {
    "cpu": frozenset((_ANYWHERE + _ON_CPU).split()),
    "gpu": frozenset((_ANYWHERE + _ON_GPU).split()),
}
"""Names of passes by the platform that ``hlo-opt`` is given."""


def kind_of(target: str | None) -> str:
    """``cpu``, ``tpu`` or ``gpu``: what a target (``core``, ``v5e``, ``h100``) is; a CPU where none is known."""
    if target is None or target.startswith(("cpu", "core")):
        return "cpu"
    return "tpu" if target.startswith("tpu") or re.fullmatch(r"v\d[a-z]*", target) else "gpu"


def hlo_opt(name: str, target: str | None, path: str) -> str | None:
    """The command that runs one pass on a module, with the pass's default options; None where the tool lacks it."""
    platform = "gpu" if kind_of(target) == "gpu" else "cpu"
    return f"hlo-opt --platform={platform} --passes={name} {path}" if name in HLO_OPT[platform] else None


def run_hlo_module(path: str) -> str:
    """The command that compares XLA:CPU's result with its interpreter's, on inputs that the tool makes up."""
    return f"run_hlo_module --platform=CPU --reference_platform=Interpreter --input_format=hlo {path}"
