"""XLA's passes that the pipelines here leave out, and why: what the page on the optimizer and a comparison say of them.

Names are those that dumps show, pipelines' among them. Source: ``openxla/xla:xla/service/cpu/cpu_compiler.cc``,
``xla/service/gpu/gpu_compiler.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Passes that are left out for one reason."""

    backends: tuple[str, ...]
    """``CPU``, ``GPU``."""
    names: tuple[str, ...]
    why: str
    more: str = ""
    """What else belongs to them, in words."""


def _row(backends: str, names: str, why: str, more: str = "") -> LeftOut:
    return LeftOut(tuple(backends.split()), tuple(names.split()), why, more)


LEFT_OUT = (
    _row("CPU GPU", "shardy-xla spmd-partitioning spmd-partitioner spmd-simplify spmd-cleanup after_spmd_partitioner",
         "the partitioner: a module is compiled as it came, partitioned or not"),
    _row("CPU GPU",
         "async-collective-replacer async-collective-creator async-collective-annotator"
         " gpu-convert-async-collectives-to-sync",
         "collectives stay synchronous here; their start and done forms are read, not made"),
    _row("CPU GPU", "associative-scan-rewriter scan-rewriter", "`scan_expander` writes every scan as a loop"),
    _row("CPU", "shape-canonicalizer literal-canonicalizer",
         "they share memory between modules of one process and change no text"),
    _row("CPU", "dot-library-rewriter cpu-all-reduce-combiner cpu-parallel-task-assigner",
         "library kernels, communication, threads: after layout assignment"),
    _row("CPU GPU", "apply-xla-transforms", "rewrites that a user's own program hands to XLA; here they are plugins"),
    _row("GPU",
         "cudnn-custom-call-converter conv-rewriter cudnn-fused-convolution-rewriter conv-padding-legalization"
         " cudnn_pad_for_convolutions cudnn_simplify_padding convolution_4d_expander convolution-pred-expander"
         " sort-rewriter topk-specializer topk-splitter gpu_scatter_expander",
         "they prepare or pick library calls"),
    _row("GPU",
         "stable-sort-expander permutation_sort_simplifier scatter-slice-simplifier dot_dimension_sorter"
         " ragged_dot_rewriter operand_converter composite-rewriter",
         "not written; such programs keep the plain form"),
    _row("GPU",
         "windowed-einsum-handler collective-permute-motion all-gather-optimizer all-reduce-splitter"
         " reduce-scatter-creator reduce-scatter-reassociate collective-pipeliner-forward collective-quantizer"
         " while-loop-all-reduce-code-motion",
         "of use to partitioned programs only", " and other rewrites of collectives"),
    _row("GPU",
         "annotate-host-compute host_compute_asyncifier host-offload-legalize"
         " convert-memory-placement-to-internal-annotations",
         "no values are held on the host here"),
    _row("GPU", "sub_byte_collective_normalization all-reduce-contiguous gpu-all-reduce-combiner",
         "collectives after layout assignment"),
    _row("GPU",
         "splitk-rewriter gemm-fusion-swap-operands hoist-fused-bitcasts convert_triton_gemm_config"
         " fusion-block-level-rewriter fusion-dynamic-memcpy-rewriter",
         "they choose or prepare kernels, which are not tuned here"),
    _row("GPU", "reduction-layout-normalizer reduction-dimension-grouper", "forms of reductions for the emitters"),
    _row("GPU", "latency-hiding-scheduler remat-pipeline",
         "the schedule is the memory scheduler's: nothing is overlapped or computed anew"),
    _row("GPU", "rename-instructions scheduling-instruction-annotator", "names and notes for tools"),
)  # fmt: skip
"""The table."""

WHY: Mapping[str, str] = MappingProxyType({name: row.why for row in LEFT_OUT for name in row.names})
"""Pass name -> why it is left out."""


def markdown() -> str:
    """The table of the page on the optimizer."""
    lines = ["| backend | left out | why |", "|---|---|---|"]
    for row in LEFT_OUT:
        names = ", ".join(f"`{name}`" for name in row.names)
        lines.append(f"| {', '.join(row.backends)} | {names}{row.more} | {row.why} |")
    return "\n".join(lines) + "\n"
