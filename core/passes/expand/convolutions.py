"""Convolutions in the forms that the libraries take.

``convolution-canonicalization`` brings dimensions into the order NHWC and HWIO by transposes;
``convolution-group-converter`` writes groups out: batch groups as feature groups or as a masked reduction, feature
groups as a kernel with zeros between the groups. Source: ``openxla/xla:xla/service/cpu/conv_canonicalization.cc``,
``xla/hlo/transforms/simplifiers/convolution_group_converter.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hloscope.core.hlo.attributes import ConvolutionDimensionNumbers
from hloscope.core.passes.engine import RulePass, run_rules
from hloscope.core.passes.expand.cpu_library import eigen_takes_convolution
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


def _count(one: HloInstruction, name: str) -> int:
    return int(str(one.attr(name) or 1))


@rule("canonical-convolution", "convolution", "any order of dimensions → NHWC and HWIO between transposes")
def canonical_convolution(one: HloInstruction, options: RuleOptions) -> Answer:
    if not one.parent.is_entry or not all(is_static_array(o.shape) for o in (one, *one.operands)):
        return None
    labels: Any = one.attr("dim_labels")
    spatial = len(labels.output_spatial)
    places = tuple(range(1, spatial + 1))
    last = spatial + 1
    inputs = (labels.input_batch, *labels.input_spatial, labels.input_feature)
    kernels = (*labels.kernel_spatial, labels.kernel_input_feature, labels.kernel_output_feature)
    outputs = (labels.output_batch, *labels.output_spatial, labels.output_feature)
    same = tuple(range(spatial + 2))
    if eigen_takes_convolution(one) or inputs == kernels == outputs == same:
        return None

    def make(build: Builder) -> HloInstruction:
        x, kernel = build.transpose(one.operand(0), inputs), build.transpose(one.operand(1), kernels)
        sizes = [one.shape.dimensions[d] for d in outputs]
        made = build.clone(one, [x, kernel], build.shape(one.shape.element_type, sizes))
        made.set_attr(
            "dim_labels",
            ConvolutionDimensionNumbers(
                0, last, places, spatial, last, tuple(range(spatial)), 0, last, places
            ),
        )
        return build.transpose(made, [outputs.index(d) for d in same])

    return make


@dataclass(frozen=True)
class ConvCanonicalization(RulePass):
    """Convolutions of the entry computation in library order."""

    name = "convolution-canonicalization"
    rules = (canonical_convolution,)


@rule("batch-groups", "convolution", "batch groups → feature groups, the groups moved from batch to feature")
def batch_groups(one: HloInstruction, options: RuleOptions) -> Answer:
    groups = _count(one, "batch_group_count")
    if groups == 1 or not all(is_static_array(o.shape) for o in (one, *one.operands)):
        return None
    labels: Any = one.attr("dim_labels")
    x, kernel = one.operands
    batch, feature = labels.input_batch, labels.input_feature
    outer, out = labels.kernel_input_feature, labels.kernel_output_feature
    if x.shape.dimensions[batch] % groups or kernel.shape.dimensions[out] % groups:
        return Refusal("sizes", f"{x.shape} and {kernel.shape} in {groups} groups")

    def make(build: Builder) -> HloInstruction:
        # Group g of the batch becomes group g of the features.
        sizes = list(x.shape.dimensions)
        split = [*sizes[:batch], groups, sizes[batch] // groups, *sizes[batch + 1 :]]
        apart = build.reshape(x, split)
        at = feature + (feature > batch)
        order = [d for d in range(len(split)) if d != batch]
        order.insert(order.index(at), batch)
        joined = build.transpose(apart, order)
        sizes[batch] //= groups
        sizes[feature] *= groups
        moved = build.reshape(joined, sizes)
        made = build.clone(one, [moved, kernel])
        made.set_attr("batch_group_count", None)
        made.set_attr("feature_group_count", str(groups))
        return made

    return make if outer >= 0 else None


@rule("feature-groups", "convolution", "feature groups → one group, zeros in the kernel between the groups")
def feature_groups(one: HloInstruction, options: RuleOptions) -> Answer:
    groups = _count(one, "feature_group_count")
    if groups == 1 or not all(is_static_array(o.shape) for o in (one, *one.operands)):
        return None
    if one.shape.element_type in ("f16", "f32"):
        return Refusal("element_type", f"the library takes groups of {one.shape.element_type}")
    labels: Any = one.attr("dim_labels")
    kernel = one.operand(1)
    inner, out = labels.kernel_input_feature, labels.kernel_output_feature

    def make(build: Builder) -> HloInstruction:
        sizes = list(kernel.shape.dimensions)
        wide = [s * groups if d == inner else s for d, s in enumerate(sizes)]
        # The kernel again and again along its input features, kept where input and output group agree.
        copies = build.concatenate([kernel] * groups, inner)

        def group_of(d: int, width: int) -> HloInstruction:
            place = build.iota("s32", wide, d)
            return build.binary("divide", place, build.scalar_like(place.shape, width))

        own = build.compare(group_of(inner, sizes[inner]), group_of(out, sizes[out] // groups), "EQ")
        filled = build.select(own, copies, build.scalar_like(copies.shape, 0))
        made = build.clone(one, [one.operand(0), filled])
        made.set_attr("feature_group_count", None)
        return made

    return make


@dataclass(frozen=True)
class ConvolutionGroupConverter:
    """Groups written out."""

    name = "convolution-group-converter"
    is_pipeline = False
    convert_batch_groups_only: bool = False
    """Leave feature groups."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation."""
        rules = (batch_groups,) if self.convert_batch_groups_only else (batch_groups, feature_groups)
        return run_rules(rules, RuleOptions(), module, ctx)
