"""What the verifier checks and tolerates. Source: ``openxla/xla:xla/service/hlo_verifier.h#HloVerifierOpts``,
``xla/service/layout_assignment.cc#LayoutAssignment::InstructionCanChangeLayout``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hloscope.core.hlo.shape import UNBOUNDED, Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule

POINTER_SIZE = 8
"""Bytes of a pointer; a tuple's size is that of its table of pointers."""


@dataclass(frozen=True, slots=True)
class VerifierOptions:
    """Options of one run, with XLA's defaults."""

    layout_sensitive: bool = False
    """Compare layouts too where an operation cannot change them, and sizes of bitcasts."""
    allow_mixed_precision: bool = False
    """Let operands and result differ in floating precision."""
    verify_broadcast_dimensions_order: bool = False
    """Demand ascending dimensions of a broadcast."""
    verify_reshape_is_bitcast: bool = False
    """Demand that a reshape outside fusions moves nothing."""
    verify_call_nested_computation_thread_name: bool = False
    """Demand that callees run on their caller's thread."""
    verify_sharding_device_numbers: bool = True
    """Compare device ids in shardings with the number of partitions."""
    allow_bitcast_to_have_different_size: bool = False
    """Let a bitcast change the padded size where the data's size stays."""
    allow_unbounded_dynamism: bool = False
    """Let results have dimensions without bound."""
    verify_unique_names: bool = True
    """Demand instruction names that are unique in the module; XLA's reader makes them so."""
    verify_instruction_name_unchanged: bool = False
    """Demand that names are those recorded for scheduling."""
    verify_no_host_memory_space: bool = False
    """Refuse layouts in host memory."""
    verify_no_collective_deadlocks: bool = False
    """Look for send and recv in an order that deadlocks (scheduled modules)."""
    check_replica_groups: bool = True
    """Compare replica groups with replica and partition counts."""
    restrict_layout_changes: bool = False
    """Demand equal layouts of operands and result of operations that layout assignment does not let differ."""

    def shape_size(self, shape: Shape) -> int:
        """Bytes, `UNBOUNDED` without a bound; tiles are not padded to."""
        if shape.is_unbounded:
            return UNBOUNDED
        if shape.is_tuple:
            return POINTER_SIZE * len(shape.tuple_shapes)
        return shape.byte_size if shape.is_array or shape.element_type == "buffer" else 0


def options_for(module: HloModule) -> VerifierOptions:
    """The options that fit what a module looks like.

    A backend's pipeline verifies without layouts until layout assignment has run, and with layouts after it. Text does
    not say which side it is from (the reader of XLA itself gives every shape a default layout), but a schedule is made
    only after layout assignment: a scheduled module is checked with layouts, any other without. Tiled layouts are
    those of a backend that pads bitcasts to tiles and mixes bf16 with f32 inside fusions: both are let through there.
    """
    options = VerifierOptions(layout_sensitive=module.is_scheduled, restrict_layout_changes=module.is_scheduled)
    if uses_tiles(module):
        options = replace(
            options,
            allow_mixed_precision=True,
            allow_bitcast_to_have_different_size=True,
            restrict_layout_changes=False,
        )
    return options


def uses_tiles(module: HloModule) -> bool:
    """Whether any result of the entry computation has a tiled layout."""
    if not module.has_entry:
        return False
    return any(
        leaf.layout is not None and leaf.layout.tiles
        for instruction in module.entry
        for leaf in (instruction.shape.tuple_shapes or (instruction.shape,))
    )


KEEPS_LAYOUT = frozenset(
    "abs acos acosh asin asinh add add-dependency and atan2 atanh bitcast-convert ceil clamp count-leading-zeros "
    "compare complex concatenate convert cosine cosh all-gather all-gather-start all-gather-done all-to-all "
    "collective-broadcast collective-permute divide dynamic-slice dynamic-update-slice erf exponential "
    "exponential-minus-one fft floor imag is-finite log log-plus-one logistic map maximum minimum multiply mulhi "
    "negate not opt-barrier or xor pad power real reduce-precision reduce-window remainder reverse "
    "round-nearest-afz round-nearest-even rsqrt scatter select select-and-scatter shift-left "
    "shift-right-arithmetic shift-right-logical sign sine sinh slice sort topk sqrt cbrt subtract "
    "stochastic-convert tan tanh popcnt triangular-solve cholesky while set-dimension-size all-reduce "
    "reduce-scatter all-reduce-start all-reduce-done ragged-all-to-all scan".split()
)
"""Opcodes whose array result has its operands' layout once layouts are assigned."""
