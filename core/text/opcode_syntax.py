"""Which attributes each opcode takes, which it must have, and how XLA prints them: order, defaults, what is dropped.

One row an opcode, one word an attribute, in printing order: ``name`` optional; ``name!`` required; ``name-=x`` not
printed where it is ``x``; ``name+=x`` printed as ``x`` where it is absent; ``name~`` read and forgotten; ``name?``
known to XLA's sources but not to the version that jaxlib 0.10.2 has, which refuses it. Sources:
``openxla/xla:xla/hlo/parser/hlo_parser.cc#CreateInstruction``, ``xla/hlo/ir/hlo_instructions.cc``; what 0.10.2 takes
was asked of its parser, opcode by opcode.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.hlo.opcodes import OPCODES

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMON = (
    "sharding", "frontend_attributes", "control-predecessors", "statistics", "result_accuracy", "origin", "metadata",
    "backend_config",
)  # fmt: skip
"""What XLA prints last, in this order; all but ``result_accuracy`` may stand on every opcode."""

_COLLECTIVE = "channel_id replica_groups+={} constrain_layout-=false"
_GLOBAL = "use_global_device_ids-=false"
_DOT = "lhs_batch_dims-={} lhs_contracting_dims+={} rhs_batch_dims-={} rhs_contracting_dims+={}"
_SEND = "channel_id is_host_transfer-=false"
_NORM = "epsilon! feature_index!"

_ROWS: dict[str, str] = {
    "all-gather": f"{_COLLECTIVE} dimensions! {_GLOBAL}",
    "all-reduce": f"{_COLLECTIVE} {_GLOBAL} mode~ to_apply!",
    "reduce-scatter": f"{_COLLECTIVE} {_GLOBAL} dimensions! mode~ to_apply!",
    "all-to-all": f"{_COLLECTIVE} dimensions",
    "ragged-all-to-all": "channel_id replica_groups+={} dimensions~",
    "collective-broadcast": "channel_id replica_groups+={} has_dynamic_root?",
    "collective-permute": "channel_id source_target_pairs! slice_sizes",
    "async-start": 'async_execution_thread-="main" output_to_operand_aliasing calls!',
    "async-update": "async_execution_thread~ output_to_operand_aliasing? calls~",
    "async-done": "async_execution_thread~ calls~",
    "batch-norm-grad": _NORM,
    "batch-norm-inference": _NORM,
    "batch-norm-training": _NORM,
    "broadcast": "dimensions+={}",
    "call": "to_apply! is_composite-=false",
    "cholesky": "lower-=false",
    "compare": "direction! type",
    "concatenate": "dimensions!",
    "conditional": "true_computation false_computation branch_computations",
    "convolution": "window-={} dim_labels! feature_group_count-=1 batch_group_count-=1 convolution_kind-=unset"
    " operand_precision algorithm? sparsity_config-={}",
    "copy-start": "cross_program_prefetch_index",
    "custom-call": "window dim_labels feature_group_count-=1 batch_group_count-=1 operand_precision"
    " padding_type-=PADDING_INVALID custom_call_target! operand_layout_constraints custom_call_has_side_effect-=false"
    " literal output_to_operand_aliasing-={} schedule-=SCHEDULE_NONE api_version-=API_VERSION_ORIGINAL to_apply"
    " called_computations",
    "domain": "domain!",
    "dot": f"{_DOT} operand_precision algorithm-=unset",
    "dynamic-slice": "dynamic_slice_sizes!",
    "fft": "fft_type! fft_length!",
    "fusion": "kind! output_to_operand_aliasing-={} calls!",
    "gather": "offset_dims! collapsed_slice_dims! start_index_map! operand_batching_dims-={}"
    " start_indices_batching_dims-={} index_vector_dim! slice_sizes! indices_are_sorted-=false",
    "get-dimension-size": "dimensions!",
    "get-tuple-element": "index!",
    "infeed": 'infeed_config-=""',
    "iota": "iota_dimension!",
    "map": "dimensions to_apply!",
    "outfeed": 'outfeed_shape outfeed_config-=""',
    "pad": "padding!",
    "parameter": "parameter_replication",
    "ragged-dot": f"{_DOT} lhs_ragged_dims-={{}} rhs_group_dims-={{}} operand_precision",
    "recv": _SEND,
    "recv-done": _SEND,
    "reduce": "dimensions! to_apply!",
    "reduce-precision": "exponent_bits! mantissa_bits!",
    "reduce-window": "window-={} to_apply!",
    "reshape": "inferred_dimension-=-1",
    "reverse": "dimensions!",
    "rng": "distribution!",
    "rng-bit-generator": "algorithm!",
    "rng-get-and-update-state": "delta!",
    "scaled-dot": f"{_DOT} operand_precision algorithm-=unset",
    "scan": "dimensions! num_carries! is_reverse-=false is_associative+=false to_apply!",
    "scatter": "update_window_dims! inserted_window_dims! scatter_dims_to_operand_dims! input_batching_dims-={}"
    " scatter_indices_batching_dims-={} index_vector_dim! indices_are_sorted-=false unique_indices-=false to_apply!",
    "select-and-scatter": "window-={} select! scatter!",
    "send": _SEND,
    "send-done": _SEND,
    "set-dimension-size": "dimensions!",
    "slice": "slice!",
    "sort": "dimensions! is_stable-=false to_apply!",
    "topk": "k! largest+=true is_stable?",
    "transpose": "dimensions!",
    "triangular-solve": "left_side-=false lower-=false unit_diagonal-=false transpose_a-=TRANSPOSE_INVALID",
    "while": "condition! body!",
}
_ROWS["all-gather-start"] = _ROWS["all-gather"]
_ROWS["all-reduce-start"] = _ROWS["all-reduce"]
_ROWS["collective-permute-start"] = _ROWS["collective-permute"]

ACCURATE = frozenset(
    "acos acosh asin asinh atanh cbrt cosine cosh erf exponential exponential-minus-one log log-plus-one logistic rsqrt"
    " sine sinh sqrt tan tanh".split()
)
"""Opcodes that take ``result_accuracy``."""

ONE_DIMENSION = frozenset(
    "all-gather all-gather-start all-to-all concatenate get-dimension-size ragged-all-to-all reduce-scatter scan"
    " set-dimension-size sort".split()
)
"""Opcodes whose ``dimensions`` hold exactly one."""

NATIVE_ASYNC = frozenset({"all-gather", "all-reduce", "collective-permute", "copy", "recv", "send"})
"""Opcodes with asynchronous opcodes of their own, for which the sugared forms do not exist."""

@dataclass(frozen=True, slots=True)
class OpcodeSyntax:
    """The row of one opcode."""

    opcode: str
    rank: Mapping[str, int]
    """Attribute name to its place in the printed order, common attributes included."""
    required: frozenset[str]
    omitted: Mapping[str, str]
    """Values that are not printed."""
    added: tuple[tuple[str, str], ...]
    """What is printed where the attribute is absent."""
    forgotten: frozenset[str]
    newer: frozenset[str]
    """Attributes that jaxlib 0.10.2 does not take yet."""

    def allows(self, name: str) -> bool:
        """Whether the parser of jaxlib 0.10.2 takes the attribute on this opcode."""
        if name == "result_accuracy":
            return self.opcode in ACCURATE
        return name == "parameter_replication" or (name in self.rank and name not in self.newer)


def _parse(opcode: str, row: str) -> OpcodeSyntax:
    rank: dict[str, int] = {}
    required: set[str] = set()
    omitted: dict[str, str] = {}
    added: list[tuple[str, str]] = []
    forgotten: set[str] = set()
    newer: set[str] = set()
    for i, word in enumerate(row.split()):
        name, equals, value = word.partition("=")
        mark = name[-1] if name[-1] in "!-+~?" else ""
        name = name.rstrip("!-+~?")
        rank[name] = i
        if mark == "!":
            required.add(name)
        elif mark == "-" and equals:
            omitted[name] = value
        elif mark == "+" and equals:
            added.append((name, value))
        elif mark == "~":
            forgotten.add(name)
        elif mark == "?":
            newer.add(name)
    for i, name in enumerate(COMMON):
        rank[name] = 1000 + i
    return OpcodeSyntax(
        opcode,
        MappingProxyType(rank),
        frozenset(required),
        MappingProxyType(omitted),
        tuple(added),
        frozenset(forgotten),
        frozenset(newer),
    )


SYNTAX: Mapping[str, OpcodeSyntax] = MappingProxyType({name: _parse(name, _ROWS.get(name, "")) for name in OPCODES})
"""The rows by opcode."""

UNKNOWN = _parse("", "")
"""The row for an opcode that the table does not have."""


def syntax_of(opcode: str) -> OpcodeSyntax:
    """The row of an opcode; that of an opcode without attributes of its own for an unknown one."""
    return SYNTAX.get(opcode, UNKNOWN)
