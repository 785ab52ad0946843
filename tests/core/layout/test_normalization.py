"""layout_normalization: real stages, each rule on a small module, the values, and every rewrite switched off alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.core.recorded import Recorded

from hloscope.core.analysis.real_compile import DumpCompile
from hloscope.core.dumps.directory import open_dump
from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.hlo.module import HloModule
from hloscope.core.layout.audit_passes import audit_passes
from hloscope.core.layout.normalization import LayoutNormalization
from hloscope.core.ledger.events import RewriteDecision
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.registry import Registry
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module, print_module

STAGES = Path(__file__).resolve().parents[3] / "fixtures" / "layout" / "normalization"
PAIRS = sorted(one.name.removesuffix(".before.txt") for one in STAGES.glob("*.before.txt"))


def normalize(module: HloModule, **context: object) -> bool:
    """Run the pass as the pipeline does."""
    ctx = PassContext(target="gpu", **context)  # pyright: ignore[reportArgumentType]
    run = ctx.push_run("layout_normalization", "")
    changed = LayoutNormalization().run(module, ctx)
    ctx.pop_run(run)
    return changed


def values(text: str) -> list[np.ndarray]:
    module = load_module(text)
    return [np.asarray(one) for one in evaluate(module, inputs_for(module.entry))]


def same_values(module: HloModule, text: str) -> bool:
    pairs = zip(values(text), values(print_module(module)), strict=True)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in pairs)


@pytest.mark.parametrize("name", PAIRS)
def test_a_real_stage_becomes_what_xla_made_of_it(name: str) -> None:
    ours = load_module((STAGES / f"{name}.before.txt").read_text())
    real = load_module((STAGES / f"{name}.after.txt").read_text())
    assert normalize(ours)
    assert structural_hash(ours) == structural_hash(real)


# ---------------------------------------------------------------- one rule each
ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }"
STARTS = "i = s32[] parameter(1) j = s32[] constant(1) k = s32[] constant(0)"
CASES = {
    "unary": ("p = f32[5,4]{0,1} parameter(0) ROOT r = f32[5,4]{0,1} abs(p)", "f32[4,5]{1,0} abs"),
    "sizes of 1": (
        "p = f32[5,1,4]{0,1,2} parameter(0) ROOT r = f32[5,1,4]{0,1,2} negate(p)",
        "f32[4,1,5]{2,1,0} negate",
    ),
    "convert": ("p = f32[5,4]{0,1} parameter(0) ROOT r = s32[5,4]{0,1} convert(p)", "s32[4,5]{1,0} convert"),
    "compare": (
        "p = f32[5,4]{0,1} parameter(0) q = f32[5,4]{0,1} parameter(1) ROOT r = pred[5,4]{0,1} compare(p, q),"
        " direction=LT",
        "pred[4,5]{1,0} compare direction=LT",
    ),
    "copy": (
        "p = f32[3,4,5]{0,1,2} parameter(0) ROOT r = f32[3,4,5]{2,0,1} copy(p)",
        "f32[4,3,5]{2,1,0} transpose dimensions={1,2,0}",
    ),
    "transpose that moves": (
        "p = f32[3,4,5]{0,1,2} parameter(0) ROOT r = f32[5,4,3]{2,0,1} transpose(p), dimensions={2,1,0}",
        "f32[4,5,3]{2,1,0} transpose dimensions={1,0,2}",
    ),
    "transpose that moves nothing": (
        "p = f32[5,4]{1,0} parameter(0) t = f32[4,5]{0,1} transpose(p), dimensions={1,0}"
        " ROOT r = f32[4,5]{0,1} sine(t)",
        "f32[5,4]{1,0} sine",
    ),
    "reshape": (
        "p = f32[5,4]{0,1} parameter(0) ROOT r = f32[5,2,2]{0,2,1} reshape(p)",
        "f32[2,2,5]{2,1,0} reshape",
    ),
    "broadcast": (
        "p = f32[4,3,5]{0,2,1} parameter(0) ROOT r = f32[4,3,2,5]{0,1,2,3} broadcast(p), dimensions={0,1,3}",
        "f32[5,2,3,4]{3,2,1,0} broadcast dimensions={2,0,3}",
    ),
    "broadcast of a scalar": (
        "p = f32[] parameter(0) ROOT r = f32[4,3]{0,1} broadcast(p), dimensions={}",
        "f32[3,4]{1,0} broadcast dimensions={}",
    ),
    "iota": ("ROOT r = s32[2,4,3]{1,2,0} iota(), iota_dimension=2", "s32[2,3,4]{2,1,0} iota iota_dimension=1"),
    "concatenate": (
        "p = f32[4,5]{0,1} parameter(0) q = f32[3,5]{0,1} parameter(1) ROOT r = f32[7,5]{0,1} concatenate(p, q),"
        " dimensions={0}",
        "f32[5,7]{1,0} concatenate dimensions={1}",
    ),
    "reverse": (
        "p = f32[2,3,5]{0,2,1} parameter(0) ROOT r = f32[2,3,5]{0,2,1} reverse(p), dimensions={0,1}",
        "f32[3,5,2]{2,1,0} reverse dimensions={0,2}",
    ),
    "pad": (
        "p = f32[2,3,5]{0,2,1} parameter(0) z = f32[] constant(7) ROOT r = f32[5,4,6]{0,2,1} pad(p, z),"
        " padding=1_2x0_1x1_0",
        "f32[4,6,5]{2,1,0} pad padding=0_1x1_0x1_2",
    ),
    "slice": (
        "p = f32[3,9,7]{1,2,0} parameter(0) ROOT r = f32[2,4,3]{1,2,0} slice(p), slice={[0:2],[1:9:2],[2:5]}",
        "f32[2,3,4]{2,1,0} slice slice={[0:2:1], [2:5:1], [1:9:2]}",
    ),
    "dynamic-slice": (
        f"p = f32[3,4,6]{{1,0,2}} parameter(0) {STARTS} ROOT r = f32[1,2,6]{{1,0,2}} dynamic-slice(p, i, j, k),"
        " dynamic_slice_sizes={1,2,6}",
        "f32[6,1,2]{2,1,0} dynamic-slice dynamic_slice_sizes={6,1,2}",
    ),
    "dynamic-update-slice": (
        f"p = f32[3,4,6]{{1,0,2}} parameter(0) {STARTS} u = f32[1,2,6]{{1,0,2}} parameter(2)"
        " ROOT r = f32[3,4,6]{1,0,2} dynamic-update-slice(p, u, i, j, k)",
        "f32[6,3,4]{2,1,0} dynamic-update-slice",
    ),
    "reduce-window": (
        "p = f32[6,8]{0,1} parameter(0) z = f32[] constant(0) ROOT r = f32[6,8]{0,1} reduce-window(p, z),"
        " window={size=2x3 pad=0_1x1_1}, to_apply=add",
        "f32[8,6]{1,0} reduce-window window={size=3x2 pad=1_1x0_1}",
    ),
    "select by a scalar": (
        "p = f32[5,4]{0,1} parameter(0) q = f32[5,4]{0,1} parameter(1) c = pred[] parameter(2)"
        " ROOT r = f32[5,4]{0,1} select(c, p, q)",
        "f32[4,5]{1,0} select",
    ),
    "clamp": (
        "p = f32[5,4]{0,1} parameter(0) l = f32[] constant(-1) u = f32[] constant(0.5)"
        " ROOT r = f32[5,4]{0,1} clamp(l, p, u)",
        "f32[4,5]{1,0} clamp",
    ),
    "bitcast-convert to a wider type": (
        "p = u16[3,5,2]{2,0,1} parameter(0) ROOT r = u32[3,5]{0,1} bitcast-convert(p)",
        "u32[5,3]{1,0} bitcast-convert",
    ),
    "convolution": (
        "p = f32[2,3,6,5]{1,3,2,0} parameter(0) k = f32[4,3,2,2]{1,3,2,0} parameter(1)"
        " ROOT r = f32[2,4,5,4]{1,3,2,0} convolution(p, k), window={size=2x2}, dim_labels=bf01_oi01->bf01",
        "f32[2,5,4,4]{3,2,1,0} convolution window={size=2x2} dim_labels=b01f_o01i->b01f",
    ),
    "scatter": (
        "p = f32[4,3,5]{0,2,1} parameter(0) i = s32[2,2]{0,1} constant({{0,2},{1,3}}) u = f32[2,3]{0,1} parameter(1)"
        " ROOT r = f32[4,3,5]{0,2,1} scatter(p, i, u), update_window_dims={1}, inserted_window_dims={0,2},"
        " scatter_dims_to_operand_dims={0,2}, index_vector_dim=1, to_apply=add",
        "f32[3,5,4]{2,1,0} scatter update_window_dims={0} inserted_window_dims={1,2}"
        " scatter_dims_to_operand_dims={2,1} index_vector_dim=0",
    ),
    "constant": (
        "p = f32[3,2]{0,1} parameter(0) c = f32[3,2]{0,1} constant({{1,2},{3,4},{5,6}})"
        " ROOT r = f32[3,2]{0,1} add(p, c)",
        "f32[2,3]{1,0} constant",
    ),
}


def module_text(body: str) -> str:
    lines = body.replace(" ROOT ", "\n  ROOT ")
    for name in "pqzcluijkt":
        lines = lines.replace(f" {name} = ", f"\n  {name} = ")
    reducer = ADD.replace("{ ", "{\n  ").replace(") b", ")\n  b").replace(") ROOT", ")\n  ROOT").replace(" }", "\n}")
    return f"HloModule m\n\n{reducer}\n\nENTRY e {{\n  {lines}\n}}\n"


def described(module: HloModule) -> list[str]:
    """Shape, opcode and attributes of everything but parameters and bitcasts."""
    return [
        " ".join([f"{one.shape} {one.opcode}", *(f"{k}={v}" for k, v in one.raw_attrs.items() if v is not None)])
        for one in module.entry.post_order()
        if one.opcode not in ("parameter", "bitcast")
    ]


@pytest.mark.parametrize("case", CASES)
def test_each_rule(case: str) -> None:
    body, wanted = CASES[case]
    text = module_text(body)
    module = load_module(text)
    result = module.entry.root.shape
    assert normalize(module)
    assert wanted in described(module)
    assert module.entry.root.shape == result
    assert all(
        one.shape.layout is None or one.shape.layout.is_default_order or one.opcode in ("parameter", "bitcast")
        for one in module.entry.instructions
    )
    assert same_values(module, text)


@pytest.mark.parametrize("case", CASES)
def test_without_fuel_nothing_changes_but_what_is_refused_is_on_record(case: str) -> None:
    text = module_text(CASES[case][0])
    module, ledger = load_module(text), Recorded()
    before = described(module)
    assert not normalize(module, fuel=Fuel({"layout_normalization": 0}), ledger=ledger)
    assert described(module) == before
    decisions = [one for one in ledger.events if isinstance(one, RewriteDecision)]
    assert decisions and all(one.verdict == "refused" and one.code == "fuel_exhausted" for one in decisions)


def test_any_amount_of_fuel_keeps_the_values() -> None:
    text = (STAGES / "sort_t.before.txt").read_text()
    expected = values(text)
    whole = Recorded()
    normalize(load_module(text), ledger=whole)
    asked = sum(isinstance(one, RewriteDecision) for one in whole.events)
    assert asked > 5
    for fuel in range(1, asked, 3):
        module = load_module(text)
        assert normalize(module, fuel=Fuel({"layout_normalization": fuel}))
        assert all(np.array_equal(a, b) for a, b in zip(expected, values(print_module(module)), strict=True))


def test_a_second_run_adds_bitcasts_only() -> None:
    text = (STAGES / "windows_t.before.txt").read_text()
    module = load_module(text)
    normalize(module)
    once = described(module)
    normalize(module)
    assert described(module) == once
    assert same_values(module, text)


def test_an_operation_without_a_rule_gets_a_pair_of_bitcasts() -> None:
    text = module_text(
        "p = f32[5,4]{0,1} parameter(0) q = f32[4,5]{0,1} parameter(1)"
        " c = f32[5,5]{0,1} dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        " ROOT r = f32[5,5]{0,1} negate(c)"
    )
    module = load_module(text)
    normalize(module)
    dot = next(one for one in module.entry.instructions if one.opcode == "dot")
    assert str(dot.shape) == "f32[5,5]{0,1}" and [one.opcode for one in dot.users] == ["bitcast"]
    assert "f32[5,5]{1,0} negate" in described(module) and same_values(module, text)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("p = f32[4,6]{0,1} parameter(0) ROOT r = f32[24]{0} reshape(p)", "reshape_moves_bytes"),
        ("p = f32[4,6]{0,1} parameter(0) ROOT r = f32[4,6]{1,0} abs(p)", "layouts_differ"),
        (
            "p = f32[4,3]{0,1} parameter(0) i = s32[2,2,1]{2,1,0} constant({{{0},{1}},{{2},{3}}})"
            " u = f32[2,2,3]{2,1,0} parameter(1) ROOT r = f32[4,3]{0,1} scatter(p, i, u), update_window_dims={2},"
            " inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=add",
            "several_scatter_dimensions",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(body: str, code: str) -> None:
    text, ledger = module_text(body), Recorded()
    module = load_module(text)
    normalize(module, ledger=ledger)
    refused = [one for one in ledger.events if isinstance(one, RewriteDecision) and one.verdict == "refused"]
    assert [one.code for one in refused] == [code] and refused[0].detail
    assert same_values(module, text)


def test_it_goes_by_xlas_name() -> None:
    assert Registry().make("layout_normalization") == LayoutNormalization()


def test_the_audit_counts_what_agrees(corpus: Path) -> None:
    with open_dump(str(corpus / "gpu" / "layout_heavy" / "dump")) as dump:
        figures, notes = audit_passes(DumpCompile(dump.select(None)[0]))
    assert not notes and set(figures) == {"reshape_decomposer", "normalization"}
    assert all(one.total > 30 and one.agree == one.total for one in figures.values())
    with open_dump(str(corpus / "gpu" / "softmax_layernorm__proto" / "dump")) as dump:
        figures, notes = audit_passes(DumpCompile(dump.select(None)[0]))
    assert figures["normalization"].agree == figures["normalization"].total and len(notes) == 1
