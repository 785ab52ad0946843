"""The passes: what each does on small modules, and that none changes what real programs compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.recorded import Recorded

from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.module import HloModule
from hloscope.core.ledger.events import RewriteDecision
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.flags import PassFlags
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.gate import DecisionFilter
from hloscope.core.passes.invariants import findings
from hloscope.core.passes.pipelines import compile_module, transforms_pipeline
from hloscope.core.passes.registry import PASSES, Registry
from hloscope.core.runtime.compare import compare_all, rules_for
from hloscope.core.runtime.evaluator import Array, evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module, print_module

CHANGING = sorted(n for n, (where, _) in PASSES.items() if ".core.passes." in where and n != "hlo-verifier")


def run(name: str, text: str, fuel: int | None = None) -> tuple[HloModule, bool, list[RewriteDecision]]:
    """The module after one pass, whether it changed, and the decisions; reports are checked and invariants hold."""
    module = load_module(text)
    ledger = Recorded()
    limit = None if fuel is None else Fuel({name.split("{")[0]: fuel})
    flags = PassFlags(
        xla_unsupported_crash_on_hlo_pass_silent_hlo_change=True, xla_unsupported_crash_on_hlo_pass_noop_change=True
    )
    registry = Registry()
    pipeline = transforms_pipeline([registry.make(name)], registry)
    result = compile_module(module, pipeline, PassContext(ledger, limit, flags), registry)
    assert list(findings(module)) == []
    return module, result.changed, ledger.decisions


def names(module: HloModule) -> set[str]:
    return {one.name for one in module.instructions()}


# ---------------------------------------------------------------- dce
DEAD = """HloModule m

unused { ROOT p = f32[] parameter(0) }

body {
  s = (s32[], f32[]) parameter(0)
  ROOT o = (s32[], f32[]) copy(s)
}

noisy {
  s.2 = (s32[], f32[]) parameter(0)
  t = token[] after-all()
  v = f32[] get-tuple-element(s.2), index=1
  f = token[] outfeed(v, t)
  ROOT o.2 = (s32[], f32[]) copy(s.2)
}

cond {
  s.1 = (s32[], f32[]) parameter(0)
  ROOT k = pred[] constant(false)
}

ENTRY main {
  a = f32[4]{0} parameter(0)
  unread = f32[4]{0} parameter(1)
  i = (s32[], f32[]) parameter(2)
  dead1 = f32[4]{0} negate(a)
  dead2 = f32[4]{0} abs(dead1)
  quiet = (s32[], f32[]) while(i), condition=cond, body=body
  loud = (s32[], f32[]) while(i), condition=cond, body=noisy
  ordered = f32[4]{0} cosine(a)
  ROOT r = f32[4]{0} sine(a), control-predecessors={ordered}
}
"""


def test_dce_removes_what_nobody_uses_and_keeps_what_has_an_effect() -> None:
    module, changed, decisions = run("dce", DEAD)
    assert changed
    assert names(module).isdisjoint({"dead1", "dead2", "quiet"})
    assert {"unread", "loud", "ordered", "f"} <= names(module)
    assert {c.name for c in module.computations} == {"noisy", "cond", "main"}
    assert sorted((d.rule, d.subject) for d in decisions) == [
        ("dead-instruction", "dead2"), ("dead-instruction", "quiet"),
        ("uncalled-computation", None), ("uncalled-computation", None),
    ]  # fmt: skip


def test_dce_drops_unused_outputs_of_fusions() -> None:
    text = """HloModule m

fused {
  p = f32[4]{0} parameter(0)
  n = f32[4]{0} negate(p)
  c = f32[4]{0} cosine(p)
  s = f32[4]{0} sine(p)
  ROOT t = (f32[4]{0}, f32[4]{0}, f32[4]{0}) tuple(n, c, s)
}

ENTRY main {
  a = f32[4]{0} parameter(0)
  f = (f32[4]{0}, f32[4]{0}, f32[4]{0}) fusion(a), kind=kLoop, calls=fused
  x = f32[4]{0} get-tuple-element(f), index=1
  y = f32[4]{0} get-tuple-element(f), index=2
  ROOT r = f32[4]{0} add(x, y)
}
"""
    module, _, _ = run("dce", text)
    fusion = module.find_instruction("f")
    assert fusion is not None and fusion.shape.to_text(layout=False) == "(f32[4], f32[4])"
    assert names(module).isdisjoint({"n"})
    assert [o.attr("index") for o in module.entry.root.operands] == [0, 1]
    one, _, _ = run("dce", text.replace("add(x, y)", "negate(x)"))
    fusion = one.find_instruction("f")
    assert fusion is not None and fusion.shape.to_text(layout=False) == "f32[4]"
    assert one.entry.root.operand(0) is fusion


# ---------------------------------------------------------------- cse
def test_cse_keeps_the_first_of_equal_values() -> None:
    module, changed, decisions = run("cse", """HloModule m

add1 { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y) }

add2 { u = f32[] parameter(0)
  v = f32[] parameter(1)
  ROOT w = f32[] add(u, v) }

ENTRY main {
  a = f32[4]{0} parameter(0)
  b = f32[4]{0} parameter(1)
  k1 = f32[] constant(1)
  k2 = f32[] constant(1.0)
  m1 = f32[4]{0} multiply(a, b), metadata={op_name="first"}
  m2 = f32[4]{0} multiply(b, a), metadata={op_name="second"}
  d1 = f32[4]{0} divide(a, b)
  d2 = f32[4]{0} divide(b, a)
  r1 = f32[] reduce(m1, k1), dimensions={0}, to_apply=add1
  r2 = f32[] reduce(m2, k2), dimensions={0}, to_apply=add2
  n1 = f32[4]{0} rng(k1, k1), distribution=rng_uniform
  n2 = f32[4]{0} rng(k1, k1), distribution=rng_uniform
  ROOT t = (f32[], f32[], f32[4]{0}, f32[4]{0}, f32[4]{0}, f32[4]{0}) tuple(r1, r2, d1, d2, n1, n2)
}
""")  # fmt: skip
    assert changed
    assert [o.name for o in module.entry.root.operands] == ["r1", "r1", "d1", "d2", "n1", "n2"]
    assert names(module).isdisjoint({"k2", "m2", "r2"})
    kept = module.find_instruction("m1")
    assert kept is not None and kept.metadata.op_name == "first"
    assert [(d.rule, d.subject, d.detail) for d in decisions] == [
        ("same-constant", "k2", "kept %k1"), ("same-value", "m2", "kept %m1"), ("same-value", "r2", "kept %r1")
    ]  # fmt: skip


def test_cse_tells_layouts_apart_only_after_layout_assignment() -> None:
    text = """HloModule m

ENTRY main {
  a = f32[2,3]{1,0} parameter(0)
  x = f32[2,3]{1,0} negate(a)
  y = f32[2,3]{0,1} negate(a)
  ROOT t = (f32[2,3]{1,0}, f32[2,3]{0,1}) tuple(x, y)
}
"""
    assert run("cse", text)[1]
    assert not run("cse{is_layout_sensitive=true}", text)[1]


def test_cse_does_not_merge_unequal_bits_or_elided_values() -> None:
    text = """HloModule m

ENTRY main {
  a = f32[] constant(0)
  b = f32[] constant(-0)
  c = f32[4]{0} constant({...})
  d = f32[4]{0} constant({...})
  ROOT t = (f32[], f32[], f32[4]{0}, f32[4]{0}) tuple(a, b, c, d)
}
"""
    assert not run("cse", text)[1]


# ---------------------------------------------------------------- tuples, calls
def test_tuples_are_looked_through() -> None:
    module, changed, decisions = run("tuple-simplifier", """HloModule m

ENTRY main {
  a = f32[] parameter(0)
  p = (f32[], f32[]) parameter(1)
  in = (f32[], f32[]) tuple(a, a)
  out = ((f32[], f32[]), f32[]) tuple(in, a)
  g = (f32[], f32[]) get-tuple-element(out), index=0
  h = f32[] get-tuple-element(g), index=1
  p0 = f32[] get-tuple-element(p), index=0
  p1 = f32[] get-tuple-element(p), index=1
  whole = (f32[], f32[]) tuple(p0, p1)
  swapped = (f32[], f32[]) tuple(p1, p0)
  ROOT t = (f32[], (f32[], f32[]), (f32[], f32[])) tuple(h, whole, swapped)
}
""")  # fmt: skip
    assert changed
    assert [o.name for o in module.entry.root.operands] == ["a", "p", "swapped"]
    assert {d.rule for d in decisions} == {"tuple-of-elements", "element-of-tuple"}


CALLS = """HloModule m

inner {
  x = f32[4]{0} parameter(0)
  ROOT n = f32[4]{0} negate(x), metadata={op_name="neg"}
}

outer {
  y = f32[4]{0} parameter(0)
  z = f32[4]{0} parameter(1)
  c1 = f32[4]{0} call(y), to_apply=inner
  c2 = f32[4]{0} call(z), to_apply=inner
  ROOT s = f32[4]{0} subtract(c1, c2)
}

ENTRY main {
  a = f32[4]{0} parameter(0)
  b = f32[4]{0} parameter(1)
  first = f32[4]{0} call(a, b), to_apply=outer, metadata={op_name="jit(f)"}
  ROOT last = f32[4]{0} call(first, b), to_apply=outer, frontend_attributes={inlineable="false"}
}
"""


def test_calls_are_inlined_callees_first() -> None:
    module, changed, decisions = run("call-inliner", CALLS)
    assert changed
    assert [one.opcode for one in module.entry.post_order()] == [
        "parameter", "negate", "parameter", "negate", "subtract", "call"
    ]  # fmt: skip
    assert {c.name for c in module.computations} == {"outer", "main"}
    assert {one.metadata.op_name for one in module.entry if one.opcode == "negate"} == {"jit(f)/neg"}
    refused = [(d.subject, d.code, d.detail) for d in decisions if d.verdict == "refused"]
    assert refused == [("last", "not_inlineable", "inlineable=false")]


def test_single_call_sites_only() -> None:
    _, changed, decisions = run("call-inliner{single_call_site=true}", CALLS)
    assert not changed
    assert {d.code for d in decisions} == {"several_call_sites", "not_inlineable"}
    flat, _, _ = run("flatten-call-graph", CALLS)
    inlined = load_module(print_module(flat))
    registry = Registry()
    assert registry.make("call-inliner{single_call_site=true}").run(inlined, PassContext())
    assert sum(one.opcode == "negate" for one in inlined.entry) == 2
    assert {c.name for c in inlined.computations} == {"main", "outer.clone"}


def test_every_call_gets_its_own_computation() -> None:
    module, changed, _ = run("flatten-call-graph", CALLS)
    assert changed
    assert all(len(c.callers) == 1 for c in module.computations if not c.is_entry)
    assert {c.name for c in module.computations} == {
        "main", "outer", "outer.clone", "inner", "inner.clone", "inner.clone.1", "inner.clone.2"
    }  # fmt: skip


# ---------------------------------------------------------------- constants
def test_constants_are_folded() -> None:
    module, changed, decisions = run("constant_folding", """HloModule m

sum { x = s32[] parameter(0)
  y = s32[] parameter(1)
  ROOT s = s32[] add(x, y) }

ENTRY main {
  a = s32[3]{0} constant({1, 2, 3})
  two = s32[] constant(2)
  twos = s32[3]{0} broadcast(two), dimensions={}
  i = s32[3]{0} iota(), iota_dimension=0
  m = s32[3]{0} multiply(a, twos), metadata={op_name="mul"}
  n = s32[3]{0} subtract(m, i)
  zero = s32[] constant(0)
  r = s32[] reduce(n, zero), dimensions={0}, to_apply=sum
  only_splats = s32[3]{0} add(twos, twos)
  random = s32[] rng(zero, two), distribution=rng_uniform
  elided = f32[4]{0} constant({...})
  e = f32[4]{0} negate(elided)
  ROOT t = (s32[3]{0}, s32[], s32[3]{0}, s32[], f32[4]{0}) tuple(n, r, only_splats, random, e)
}
""")  # fmt: skip
    assert changed
    values = [o.literal.array().tolist() for o in module.entry.root.operands if o.opcode == "constant"]
    assert values == [[2, 3, 4], 9]
    assert [o.opcode for o in module.entry.root.operands] == ["constant", "constant", "add", "rng", "negate"]
    assert [d.subject for d in decisions if d.verdict == "applied"] == ["m", "n", "r"]
    assert [(d.subject, d.code) for d in decisions if d.verdict == "refused"] == [
        ("random", "random"), ("e", "elided_literal")
    ]  # fmt: skip


def test_tuples_of_constants_are_folded_and_every_refusal_is_told() -> None:
    module, changed, decisions = run("constant_folding", """HloModule m

less { x = s32[] parameter(0)
  y = s32[] parameter(1)
  p = s32[] parameter(2)
  q = s32[] parameter(3)
  ROOT l = pred[] compare(x, y), direction=LT }

noisy { x = s32[] parameter(0)
  ROOT s = s32[] rng(x, x), distribution=rng_uniform }

ENTRY main {
  k = s32[3]{0} constant({3, 1, 2})
  v = s32[3]{0} constant({30, 10, 20})
  s = (s32[3]{0}, s32[3]{0}) sort(k, v), dimensions={0}, to_apply=less
  one = s32[] constant(1)
  ones = s32[5]{0} broadcast(one), dimensions={}
  zero = s32[] constant(0)
  p = s32[7]{0} pad(ones, zero), padding=1_1
  c = s32[] call(one), to_apply=noisy
  d = s32[3]{0} custom-call(k), custom_call_target="f"
  b = s32[3]{0} opt-barrier(k)
  large = s32[46000000]{0} broadcast(one), dimensions={}
  u = s32[46000000]{0} dynamic-update-slice(large, k, one)
  held = s32[] negate(one), control-predecessors={zero}
  ROOT t = ((s32[3]{0}, s32[3]{0}), s32[7]{0}, s32[], s32[3]{0}, s32[3]{0}, s32[46000000]{0}, s32[])
    tuple(s, p, c, d, b, u, held)
}
""")  # fmt: skip
    assert changed
    folded = module.entry.root.operand(0)
    assert [o.literal.array().tolist() for o in folded.operands] == [[1, 2, 3], [10, 20, 30]]
    assert {d.subject: d.code for d in decisions if d.verdict == "refused"} == {
        "p": "grows_module", "c": "random", "d": "opaque", "b": "kept_apart", "u": "too_large",
        "held": "control_dependencies",
    }  # fmt: skip
    assert next(d.detail for d in decisions if d.subject == "c") == "%s in noisy: rng"


def test_a_constant_that_every_call_passes_moves_into_the_body() -> None:
    module, changed, _ = run("constant_folding", """HloModule m

f { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y) }

ENTRY main {
  a = f32[] parameter(0)
  k1 = f32[] constant(2)
  k2 = f32[] constant(2)
  c1 = f32[] call(a, k1), to_apply=f
  ROOT c2 = f32[] call(c1, k2), to_apply=f
}
""")  # fmt: skip
    assert changed
    root = next(c for c in module.computations if c.name == "f").root
    assert [o.opcode for o in root.operands] == ["parameter", "constant"]


# ---------------------------------------------------------------- checker
def test_the_verifier_finds_what_is_broken() -> None:
    def broken(text: str) -> str:
        return next(iter(findings(load_module(text))), "")

    head = "HloModule m\n\nENTRY main {\n  a = f32[4]{0} parameter(0)\n  m = f32[2,3]{1,0} parameter(1)\n"
    for line, message in {
        "ROOT r = f32[4]{0} add(a, m)": "operand 1 has dimensions [2, 3]",
        "ROOT r = f32[5]{0} reshape(a)": "another number of elements",
        "ROOT r = f32[3,2]{1,0} broadcast(a), dimensions={0}": "does not have the operand's size 4",
        "ROOT r = f32[2,3]{1,0} transpose(m), dimensions={1,0}": "does not permute",
        "ROOT r = (f32[4]{0}) tuple(m)": "element 0 is f32[2,3]",
        "ROOT r = f16[4]{0} add(a, a)": "mixes f16 and f32",
        "ROOT r = f32[4]{0} negate(a, a)": "has 2 operands, negate takes 1",
        "ROOT r = f32[4]{0} compare(a, a), direction=EQ": "is no pred",
    }.items():
        assert message in broken(f"{head}  {line}\n}}\n"), line
    module = load_module(f"{head}  ROOT r = f32[4]{{0}} negate(a)\n}}\n")
    assert list(findings(module)) == []
    module.entry.parameters[1].set_parameter_number(3)
    assert "parameters of %main are numbered [0, 3]" in list(findings(module))


def test_the_verifier_finds_edges_that_do_not_agree() -> None:
    module = load_module("HloModule m\n\nENTRY main {\n  a = f32[] parameter(0)\n  ROOT r = f32[] negate(a)\n}\n")
    other = load_module("HloModule o\n\nENTRY main {\n  ROOT b = f32[] parameter(0)\n}\n")
    module.entry.root.replace_operand(0, other.entry.root)
    assert "uses %b, which is not there" in " ".join(findings(module))
    dangling = load_module(CALLS)
    call = dangling.entry.root
    call.set_called("to_apply", load_module(CALLS).entry)
    assert any("calls %main, which is not in the module" in one for one in findings(dangling))


# ---------------------------------------------------------------- real programs
PROGRAMS = [
    "softmax_layernorm",
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("layout_heavy", "quant_int8", "lstm_scan", "fft_cholesky")),
]


def program(corpus: Path, name: str) -> str:
    return next((corpus / "cpu" / name / "dump").glob("*before_optimizations.txt")).read_text()


@pytest.mark.corpus
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_pass_changes_what_a_real_program_computes(corpus: Path, name: str) -> None:
    text = program(corpus, name)
    module = load_module(text)
    args = inputs_for(module.entry)
    expected = [np.asarray(one) for one in evaluate(module, args)]
    rules = rules_for(module)
    registry = Registry()
    alone_too = [] if name == "lstm_scan" else CHANGING  # a large program: the pipelines alone
    for one in [*alone_too, "cpu", "gpu"]:
        module = load_module(text)
        flags = PassFlags(
            xla_unsupported_crash_on_hlo_pass_silent_hlo_change=True,
            xla_unsupported_crash_on_hlo_pass_noop_change=True,
        )
        alone = transforms_pipeline([registry.make(one)], registry) if one in CHANGING else one
        if not compile_module(module, alone, PassContext(flags=flags), registry).changed:
            assert print_module(module) == print_module(load_module(text)), one
            continue
        got: list[Array] = [np.asarray(value) for value in evaluate(module, args)]
        assert all(pair.within for pair in compare_all(expected, got, rules)), one
        if one in CHANGING:
            assert not registry.make(one).run(module, PassContext()), f"{one} has more to do in a second run"
        else:
            again = load_module(print_module(module))
            assert structural_hash(again) == structural_hash(module), one


@pytest.mark.corpus
def test_refusing_one_decision_leaves_the_identities_of_the_others(corpus: Path) -> None:
    text = program(corpus, "softmax_layernorm")

    def decisions(*handlers: DecisionFilter) -> list[RewriteDecision]:
        ledger = Recorded()
        compile_module(load_module(text), "cpu", PassContext(ledger, handlers=handlers))
        return [d for d in ledger.decisions if d.fuel is not None]

    free = decisions()
    identities = [str(d.identity) for d in free]
    assert len(set(identities)) == len(identities)
    for number in (0, len(free) // 3, len(free) - 1):
        cut = decisions(DecisionFilter("refuse", identities=frozenset({identities[number]})))
        refused = [str(d.identity) for d in cut if d.verdict == "refused"]
        assert refused and set(refused) == {identities[number]}
        applied = {str(d.identity) for d in cut if d.verdict == "applied"}
        # Some decisions follow from the refused one; most do not.
        assert len(applied & set(identities)) > 0.7 * len(identities)


@pytest.mark.corpus
def test_fuel_halves_real_work_and_two_runs_agree(corpus: Path) -> None:
    text = program(corpus, "quant_int8")
    for limit in (0, 5, 10):
        texts: set[str] = set()
        for _ in range(2):
            module = load_module(text)
            ledger = Recorded()
            compile_module(module, "cpu", PassContext(ledger, Fuel({"algsimp": limit})))
            applied = [d.fuel for d in ledger.decisions if d.pass_name == "algsimp" and d.verdict == "applied"]
            assert applied == list(range(limit))
            texts.add(print_module(module))
        assert len(texts) == 1


# ---------------------------------------------------------------- random programs
UNARY = ("negate", "abs", "not", "copy")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "and", "or", "xor")


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Integer programs of elementwise operations, constants, shape changes and tuples: every pass must be exact."""
    lines = ["  p0 = s32[4]{0} parameter(0)", "  p1 = s32[4]{0} parameter(1)"]
    known = ["p0", "p1"]
    for number in range(draw(st.integers(1, 14))):
        name = f"v{number}"
        kind = draw(st.sampled_from(["unary", "binary", "splat", "constant", "reshape", "tuple", "select", "reverse"]))
        a, b = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        match kind:
            case "unary":
                lines.append(f"  {name} = s32[4]{{0}} {draw(st.sampled_from(UNARY))}({a})")
            case "binary":
                lines.append(f"  {name} = s32[4]{{0}} {draw(st.sampled_from(BINARY))}({a}, {b})")
            case "splat":
                lines.append(f"  k{number} = s32[] constant({draw(st.integers(-2, 2))})")
                lines.append(f"  {name} = s32[4]{{0}} broadcast(k{number}), dimensions={{}}")
            case "constant":
                values = ", ".join(str(draw(st.integers(-1, 1))) for _ in range(4))
                lines.append(f"  {name} = s32[4]{{0}} constant({{{values}}})")
            case "reshape":
                lines.append(f"  w{number} = s32[2,2]{{1,0}} reshape({a})")
                turned = draw(st.sampled_from(["reshape", "transpose"]))
                dims = ", dimensions={1,0}" if turned == "transpose" else ""
                lines.append(f"  x{number} = s32[2,2]{{1,0}} {turned}(w{number}){dims}")
                lines.append(f"  {name} = s32[4]{{0}} reshape(x{number})")
            case "tuple":
                lines.append(f"  t{number} = (s32[4]{{0}}, s32[4]{{0}}) tuple({a}, {b})")
                index = draw(st.integers(0, 1))
                lines.append(f"  {name} = s32[4]{{0}} get-tuple-element(t{number}), index={index}")
            case "select":
                lines.append(f"  c{number} = pred[4]{{0}} compare({a}, {b}), direction={draw(DIRECTIONS)}")
                lines.append(f"  {name} = s32[4]{{0}} select(c{number}, {b}, {a})")
            case _:
                lines.append(f"  {name} = s32[4]{{0}} reverse({a}), dimensions={{0}}")
        known.append(name)
    lines.append(f"  ROOT r = (s32[4]{{0}}, s32[4]{{0}}) tuple({known[-1]}, {draw(st.sampled_from(known))})")
    return "HloModule random\n\nENTRY main {\n" + "\n".join(lines) + "\n}\n"


DIRECTIONS = st.sampled_from(["EQ", "NE", "LT", "LE", "GT", "GE"])
INPUTS = [np.array([0, 1, -3, 2**31 - 1], np.int32), np.array([-(2**31), 1, 7, -1], np.int32)]


@settings(max_examples=40, deadline=None)
@given(programs(), st.integers(0, 6))
def test_random_programs_keep_their_values(text: str, fuel: int) -> None:
    expected = [np.asarray(one) for one in evaluate(load_module(text), INPUTS)]
    for ctx in (
        PassContext(flags=PassFlags(xla_unsupported_crash_on_hlo_pass_silent_hlo_change=True)),
        PassContext(fuel=Fuel({"algsimp": fuel, "cse": 1})),
    ):
        module = load_module(text)
        compile_module(module, "cpu", ctx)
        assert list(findings(module)) == []
        for want, got in zip(expected, evaluate(module, INPUTS), strict=True):
            np.testing.assert_array_equal(np.asarray(got), want)
        again = load_module(print_module(module))
        assert structural_hash(again) == structural_hash(module)


def test_a_planted_fault_is_an_ordinary_pass() -> None:
    """How a search for a wrong rewrite tests itself: a plugin pass that is right but for one decision."""

    class Wrong:
        name = "wrong"
        is_pipeline = False

        def run(self, module: HloModule, ctx: PassContext) -> bool:
            changed = False
            for one in module.entry:
                if one.opcode == "add":
                    step = ctx.gate("add-to-subtract", one)
                    if step:
                        new = HloInstruction("subtract", one.shape, one.operands)
                        module.entry.replace(one, new)
                        step.done(new)
                        changed = True
            return changed

    registry = Registry()
    registry.add_pass("wrong", Wrong, "turns sums into differences")
    text = "HloModule m\n\nENTRY main {\n  a = f32[] parameter(0)\n  ROOT r = f32[] add(a, a)\n}\n"
    for fuel, value in ((0, 4.0), (1, 0.0)):
        module = load_module(text)
        pipeline = transforms_pipeline([registry.make("wrong")], registry)
        compile_module(module, pipeline, PassContext(fuel=Fuel({"wrong": fuel})), registry)
        assert float(np.asarray(evaluate(module, [np.array(2, np.float32)])[0])) == value
