"""Elementwise operations and normalizations written out in simpler ones.

Source: ``openxla/xla:xla/hlo/transforms/expanders/logistic_expander.cc``, ``comparison_expander.cc``,
``xla/service/batchnorm_expander.cc``, ``map_inliner.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.expand.counted_loop import inline_reducer, reducer_is_elementwise
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


@rule("expand-logistic", "logistic", "logistic(x) → 1 / (1 + exp(-x))")
def expand_logistic(one: HloInstruction, options: RuleOptions) -> Answer:
    def make(build: Builder) -> HloInstruction:
        unit = build.scalar_like(one.shape, 1)
        power = build.unary("exponential", build.unary("negate", one.operand(0)))
        return build.binary("divide", unit, build.binary("add", unit, power))

    return make


@dataclass(frozen=True)
class LogisticExpander(RulePass):
    """The logistic function by its formula."""

    name = "logistic-expander"
    rules = (expand_logistic,)


# ---------------------------------------------------------------- comparisons
@rule("expand-comparison", "compare", "a comparison of floats in total order → of integers")
def expand_comparison(one: HloInstruction, options: RuleOptions) -> Answer:
    kind = one.operand(0).shape.type
    if one.attr("type") != "TOTALORDER" or kind.kind != "float":
        return None
    if kind.bits not in (8, 16, 32, 64):
        return Refusal("width", f"{kind.bits} bits")
    if kind.name.endswith("fnuz"):
        return Refusal("no_negative_zero", kind.name)
    unsigned = kind.name == "f8e8m0fnu"
    integer = f"{'u' if unsigned else 's'}{kind.bits}"

    def ordered(build: Builder, x: HloInstruction) -> HloInstruction:
        bits = build.make("bitcast-convert", x.shape.with_element_type(integer), [x])
        if unsigned:
            return bits
        zero = build.scalar_like(bits.shape, 0)
        most = build.scalar_like(bits.shape, (1 << (kind.bits - 1)) - 1)
        return build.select(build.compare(bits, zero, "LT"), build.binary("xor", most, bits), bits)

    left, right = one.operands
    direction = str(one.attr("direction"))
    return lambda build: build.compare(ordered(build, left), ordered(build, right), direction)


@dataclass(frozen=True)
class ComparisonExpander(RulePass):
    """Total order of floats by their bits."""

    name = "comparison-expander"
    rules = (expand_comparison,)


# ---------------------------------------------------------------- batch normalization
def _spread(build: Builder, x: HloInstruction, like: HloInstruction, feature: int) -> HloInstruction:
    return build.broadcast(x, [feature], like.shape.dimensions)


def _sum(build: Builder, x: HloInstruction, feature: int) -> HloInstruction:
    kind = x.shape.element_type
    others = [d for d in range(x.shape.rank) if d != feature]
    return build.reduce(x, build.scalar(kind, 0), others, build.reducer("add", kind))


def _stable_rsqrt(build: Builder, variance: HloInstruction, epsilon: float) -> HloInstruction:
    return build.unary("rsqrt", build.binary("add", variance, build.scalar_like(variance.shape, epsilon)))


def _features(one: HloInstruction) -> tuple[int, float, int]:
    """Feature dimension, epsilon, and the elements of a feature."""
    feature = int(str(one.attr("feature_index")))
    sizes = one.operand(0).shape.dimensions
    return feature, float(str(one.attr("epsilon"))), prod(s for d, s in enumerate(sizes) if d != feature)


@rule("expand-batch-norm-inference", "batch-norm-inference", "(x - mean) · rsqrt(variance + ε) · scale + offset")
def expand_inference(one: HloInstruction, options: RuleOptions) -> Answer:
    x, scale, offset, mean, variance = one.operands
    feature, epsilon, _ = _features(one)
    if not is_static_array(x.shape):
        return None

    def make(build: Builder) -> HloInstruction:
        def spread(v: HloInstruction) -> HloInstruction:
            return _spread(build, v, x, feature)

        factor = build.binary("multiply", scale, _stable_rsqrt(build, variance, epsilon))
        shift = build.binary("subtract", offset, build.binary("multiply", mean, factor))
        return build.binary("add", build.binary("multiply", x, spread(factor)), spread(shift))

    return make


@rule("expand-batch-norm-training", "batch-norm-training", "mean and variance of the batch, then as in inference")
def expand_training(one: HloInstruction, options: RuleOptions) -> Answer:
    x, scale, offset = one.operands
    feature, epsilon, count = _features(one)
    if not is_static_array(x.shape):
        return None

    def make(build: Builder) -> HloInstruction:
        size = build.scalar_like(scale.shape, count)
        mean = build.binary("divide", _sum(build, x, feature), size)
        centred = build.binary("subtract", x, _spread(build, mean, x, feature))
        variance = build.binary("divide", _sum(build, build.binary("multiply", centred, centred), feature), size)
        factor = build.binary("multiply", _stable_rsqrt(build, variance, epsilon), scale)
        scaled = build.binary("multiply", centred, _spread(build, factor, x, feature))
        normal = build.binary("add", scaled, _spread(build, offset, x, feature))
        return build.make("tuple", one.shape, [normal, mean, variance])

    return make


@rule("expand-batch-norm-grad", "batch-norm-grad", "gradients by sums over the batch")
def expand_grad(one: HloInstruction, options: RuleOptions) -> Answer:
    x, scale, mean, variance, gradient = one.operands
    feature, epsilon, count = _features(one)
    if not is_static_array(x.shape):
        return None

    def make(build: Builder) -> HloInstruction:
        def spread(v: HloInstruction) -> HloInstruction:
            return _spread(build, v, x, feature)

        inverse = _stable_rsqrt(build, variance, epsilon)
        centred = build.binary("subtract", x, spread(mean))
        by_offset = _sum(build, gradient, feature)
        projected = _sum(build, build.binary("multiply", gradient, centred), feature)
        by_scale = build.binary("multiply", projected, inverse)
        size = build.scalar_like(scale.shape, count)
        # scale·rsqrt/n · (n·g - Σg - (x - mean)·Σ(g·(x - mean))·rsqrt²)
        first = build.binary("multiply", gradient, build.scalar_like(gradient.shape, count))
        second = spread(by_offset)
        square = build.binary("multiply", inverse, inverse)
        third = build.binary("multiply", centred, spread(build.binary("multiply", projected, square)))
        inside = build.binary("subtract", build.binary("subtract", first, second), third)
        factor = build.binary("divide", build.binary("multiply", scale, inverse), size)
        by_input = build.binary("multiply", spread(factor), inside)
        return build.make("tuple", one.shape, [by_input, by_scale, by_offset])

    return make


@dataclass(frozen=True)
class BatchNormExpander(RulePass):
    """Batch normalization by its formulas."""

    name = "batchnorm_expander"
    rules = (expand_inference, expand_training, expand_grad)


# ---------------------------------------------------------------- map
@rule("inline-map", "map", "map of an elementwise computation → the operations on whole arrays")
def inline_map(one: HloInstruction, options: RuleOptions) -> Answer:
    callee = one.callee("to_apply")
    if callee.root.opcode == "parameter":
        return one.operand(callee.root.parameter_number)
    if not reducer_is_elementwise(callee) or callee.root.opcode == "tuple":
        return Refusal("not_elementwise", callee.name)
    if not one.operand_count or not is_static_array(one.shape):
        return None
    return lambda build: inline_reducer(build, callee, one.operands)[0]


@dataclass(frozen=True)
class MapInliner(RulePass):
    """Maps as plain operations."""

    name = "map-inline"
    rules = (inline_map,)
