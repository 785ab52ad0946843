"""Rules that no text can break because the reader keeps them, options, order and positions of findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hloscope.core.hlo import HloComputation, HloInstruction, HloModule, Shape
from hloscope.core.hlo.verifier import RULES, VerifierOptions, options_for, verify
from hloscope.core.hlo.verifier.findings import Broken
from hloscope.core.text import load_module, parse_module

TEXT = """HloModule m

wide {
  x = f32[4]{0} parameter(0)
  ROOT s = f32[4]{0} negate(x)
}

ENTRY e {
  p = f32[4]{0} parameter(0)
  c = f32[4]{0} call(p), to_apply=wide
  ROOT r = f32[4]{0} sine(c)
}
"""
F4 = Shape.array("f32", (4,))


def codes(module: HloModule, options: VerifierOptions | None = None) -> set[str]:
    return {finding.code for finding in verify(module, options)}


def test_a_sound_module_has_no_finding() -> None:
    assert verify(load_module(TEXT)) == []


def test_a_module_without_name_or_entry() -> None:
    module = HloModule("")
    assert codes(module) == {"module-name", "no-entry"}


def test_a_fused_entry() -> None:
    module = load_module(TEXT)
    entry = module.entry
    caller = HloComputation("caller")
    p = caller.add(HloInstruction("parameter", F4, name="p", payload="0"))
    caller.set_root(caller.add(HloInstruction("fusion", F4, [p], called={"calls": entry}, attrs={"kind": "kLoop"})))
    module.add_computation(caller)
    assert "entry-is-fusion" in codes(module)


def test_an_operand_of_another_computation() -> None:
    module = load_module(TEXT)
    stray = module.computations[0].parameters[0]
    module.entry.root.replace_operand(0, stray)
    findings = verify(module)
    assert {finding.code for finding in findings} >= {"operand-computation"}
    assert [f.message for f in findings if f.code == "operand-computation"] == [
        "Operand 0 (x) of instruction r is in a different computation: wide vs e"
    ]


def test_an_operand_that_was_removed() -> None:
    module = load_module(TEXT)
    module.entry.root.append_operand(HloInstruction("constant", F4, name="lost", payload="{0,0,0,0}"))
    assert "operand-computation" in codes(module)


def test_a_callee_of_another_module() -> None:
    module, other = load_module(TEXT), load_module(TEXT)
    call = next(i for i in module.entry if i.opcode == "call")
    call.set_called("to_apply", other.computations[0])
    assert "callee-module" in codes(module)


def test_a_computation_without_root_and_with_wrong_parameters() -> None:
    module = load_module(TEXT)
    broken = HloComputation("broken")
    broken.add(HloInstruction("parameter", F4, name="q", payload="1"))
    module.add_computation(broken)
    assert codes(module) >= {"no-root", "parameter-numbers"}


def test_recursion() -> None:
    module = load_module(TEXT)
    wide = module.computations[0]
    again = wide.add(HloInstruction("call", F4, [wide.parameters[0]], name="again", called={"to_apply": wide}))
    wide.set_root(again)
    assert "recursion" in codes(module)


def test_an_operand_cycle() -> None:
    module = load_module(TEXT)
    root = module.entry.root
    root.operand(0).replace_operand(0, root)
    assert "cycle" in codes(module)


def test_an_attribute_that_cannot_be_read() -> None:
    text = TEXT.replace("sine(c)", "slice(c), slice={oops}")
    assert "unreadable-attribute" in codes(load_module(text))


@pytest.mark.parametrize("layout", ["{2}", "{0:T()}"])
def test_an_invalid_layout(layout: str) -> None:
    text = TEXT.replace("ROOT r = f32[4]{0}", f"ROOT r = f32[4]{layout}")
    assert "layout-invalid" in codes(load_module(text))


def test_a_layout_of_another_rank() -> None:
    module = load_module(TEXT)
    from hloscope.core.hlo import Layout

    module.entry.root.shape = F4.with_layout(Layout((1, 0)))
    assert "layout-rank" in codes(module)


PERMUTE = """HloModule m

ENTRY e {{
  p = f32[4,8] parameter(0)
  i = s32[] constant(0)
  a = (s32[], s32[]{more}) tuple(i, i{extra})
  ROOT r = f32[4,8] collective-permute(p, p, a, a), source_target_pairs={{{{0,1}}}}, slice_sizes={{{{2,2}}}}
}}
"""


def test_a_permute_in_place() -> None:
    good = load_module(PERMUTE.format(more="", extra=""))
    assert "inplace-permute" not in codes(good)
    bad = load_module(PERMUTE.format(more=", s32[]", extra=", i"))
    assert "inplace-permute" in codes(bad)


DEADLOCK = """HloModule m, is_scheduled=true

add {{
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}}

ENTRY e {{
  p = f32[4]{{0}} parameter(0)
  t = token[] after-all()
  s = (f32[4]{{0}}, u32[], token[]) send(p, t), channel_id=1, frontend_attributes={{_xla_send_recv_source_target_pairs={{{{0,1}}}}}}
{between}
  v = (f32[4]{{0}}, u32[], token[]) recv(t), channel_id=2, frontend_attributes={{_xla_send_recv_source_target_pairs={{{{0,1}}}}}}
  d = token[] send-done(s), channel_id=1
  w = (f32[4]{{0}}, token[]) recv-done(v), channel_id=2
  ROOT r = f32[4]{{0}} get-tuple-element(w), index=0
}}
"""  # noqa: E501


def test_a_collective_between_send_and_recv_deadlocks() -> None:
    options = VerifierOptions(verify_no_collective_deadlocks=True)
    between = "  a = f32[8]{0} all-gather(p), replica_groups={{0,1}}, dimensions={0}"
    assert codes(load_module(DEADLOCK.format(between="")), options) == set()
    assert "collective-deadlock" in codes(load_module(DEADLOCK.format(between=between)), options)


def test_a_cyclic_send_deadlocks() -> None:
    text = DEADLOCK.format(between="").replace("{{0,1}}", "{{0,1},{1,0}}")
    assert "collective-deadlock" in codes(load_module(text), VerifierOptions(verify_no_collective_deadlocks=True))


# ---------------------------------------------------------------- the run
WRONG = TEXT.replace("ROOT s = f32[4]{0}", "ROOT s = f32[5]{0}").replace("ROOT r = f32[4]{0}", "ROOT r = f32[6]{0}")


def test_it_goes_on_behind_a_finding_and_stops_when_asked() -> None:
    module = load_module(WRONG)
    found = [(f.code, f.computation, f.instruction) for f in verify(module)]
    assert ("shape-mismatch", "wide", "s") in found
    assert ("shape-mismatch", "e", "r") in found
    assert len(verify(module, first_only=True)) == 1
    assert verify(module, first_only=True)[0] == verify(module)[0]


def test_lines_come_from_the_resolver() -> None:
    asked: list[tuple[str, str]] = []

    def line_of(computation: str, instruction: str) -> int:
        asked.append((computation, instruction))
        return 7

    findings = verify(load_module(WRONG), line_of=line_of)
    assert {finding.line for finding in findings} == {7}
    assert ("wide", "s") in asked


def test_findings_come_in_the_order_of_the_phases() -> None:
    text = WRONG.replace("HloModule m", "HloModule m, buffer_donor={ (9, {}) }")
    phases = [RULES[finding.code].phase for finding in verify(load_module(text))]
    order = list(dict.fromkeys(rule.phase for rule in RULES.values()))
    assert phases[-1] == "aliasing"
    assert order.index(phases[0]) < order.index("aliasing")


def test_a_scheduled_module_is_checked_with_layouts() -> None:
    text = TEXT.replace(
        "ROOT r = f32[4]{0} sine(c)", "t = f32[2,2]{1,0} bitcast(c)\n  ROOT r = f32[2,2]{0,1} negate(t)"
    )
    assert verify(load_module(text)) == []
    scheduled = load_module(text.replace("HloModule m", "HloModule m, is_scheduled=true"))
    assert options_for(scheduled).layout_sensitive
    assert codes(scheduled) == {"layout-change"}
    assert verify(scheduled, VerifierOptions()) == []


def test_tiled_layouts_mix_precisions() -> None:
    text = TEXT.replace("ROOT r = f32[4]{0} sine(c)", "ROOT r = bf16[4]{0:T(128)} sine(c)")
    module = load_module(text)
    assert options_for(module).allow_mixed_precision
    assert verify(module) == []
    assert codes(module, replace(VerifierOptions(), allow_mixed_precision=False)) == {"shape-mismatch"}


def test_an_unknown_rule_is_a_bug() -> None:
    from hloscope.core.errors import InternalError

    with pytest.raises(InternalError):
        Broken("no-such-rule", "")


def test_the_list_of_codes_is_up_to_date(root: Path) -> None:
    text = (root / "docs" / "verifier.md").read_text()
    for rule in RULES.values():
        if not rule.code.startswith("shape-of-"):
            assert f"| `{rule.code}` | {rule.meaning} |" in text, rule


BOUND_LATER = """HloModule m

first {
  p = f32[2,3] parameter(0)
  q = f32[2,3] parameter(1)
  ROOT r = f32[2,3] add(p, q)
}

second {
  p = f32[2,3] parameter(0)
  q = f32[2,3] parameter(1)
  ROOT s = f32[2,3] add(p, q)
}

ENTRY e {
  a = f32[2,3] parameter(0)
  s = ((f32[2,3]), (), u32[]) async-start(a), calls=first
  u = ((f32[2,3], f32[2,3]), f32[2,3], u32[]) async-update(s, a), calls=second
  ROOT d = f32[2,3] async-done(u), calls=second
}
"""


def test_a_chain_may_bind_operands_later_and_name_equal_computations() -> None:
    module = load_module(BOUND_LATER)
    assert verify(module, VerifierOptions(verify_unique_names=False)) == []
    other = load_module(BOUND_LATER.replace("ROOT s = f32[2,3] add(p, q)", "ROOT s = f32[2,3] add(q, p)"))
    found = verify(other, VerifierOptions(verify_unique_names=False))
    assert {one.code for one in found} == {"async-shape"}


LATE_FUSION = """HloModule m

ENTRY e {
  a = f32[] parameter(0)
  s = ((), (), s32[]) fusion-start(), kind=kLoop, calls={
    p = f32[] parameter(0)
    q = f32[] parameter(1)
    ROOT add = f32[] add(p, q)
  }
  u = ((f32[]), (), s32[]) fusion-update(s, a)
  v = ((f32[], f32[]), (), s32[]) fusion-update(u, a)
  ROOT d = f32[] fusion-done(v)
}
"""


def test_a_fusion_whose_operands_are_bound_later_has_its_result_from_the_done() -> None:
    module, _ = parse_module(LATE_FUSION)
    assert module is not None
    assert verify(module, VerifierOptions(verify_unique_names=False)) == []
    unbound = LATE_FUSION.replace("  v = ((f32[], f32[]), (), s32[]) fusion-update(u, a)\n", "").replace("(v)", "(u)")
    module, _ = parse_module(unbound)
    assert module is not None
    (found,) = verify(module, VerifierOptions(verify_unique_names=False))
    assert found.code == "async-shape" and "fully bound" in found.message


def test_a_cycle_is_shown_with_its_instructions_and_line() -> None:
    text = "HloModule m\nENTRY e {\n p = f32[] parameter(0)\n a = f32[] add(p, b)\n ROOT b = f32[] negate(a)\n}\n"
    module, _ = parse_module(text)
    assert module is not None
    asked: list[tuple[str, str]] = []

    def line_of(computation: str, instruction: str) -> int:
        asked.append((computation, instruction))
        return 4

    (found,) = verify(module, line_of=line_of)
    assert found.code == "cycle" and "%a → %b → %a" in found.message and found.line == 4
    assert asked == [("e", "a")]


def test_aliases_and_donors_are_of_the_header() -> None:
    module = load_module(
        "HloModule m, input_output_alias={ {}: (3, {}, may-alias) }, buffer_donor={ (7, {}) }\n"
        "ENTRY e {\n p = f32[] parameter(0)\n ROOT c = f32[] copy(p)\n}\n"
    )
    found = verify(module, line_of=lambda computation, instruction: 1 if not computation else 99)
    assert [(one.code, one.line) for one in found] == [("alias-config", 1), ("buffer-donor", 1)]


def test_one_operand_used_twice_is_one_finding_of_the_schedule() -> None:
    module = load_module(
        "HloModule m, is_scheduled=true\nENTRY e {\n ROOT c = f32[] add(p, p)\n p = f32[] parameter(0)\n}\n"
    )
    assert [one.code for one in verify(module)] == ["schedule-order"]
