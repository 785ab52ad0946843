"""A fault planted into the files of a dump: stage and instruction are found, and a sound dump accuses nobody."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as given_by
from hypothesis import strategies as st

from hloscope.bisect.narrow import Pairs, Seen, first_to_cure
from hloscope.bisect.putback import Alignment, Border, align, changed_lines, lay_open, put_back, take_back
from hloscope.bisect.search import Outcome, smallest_cure
from hloscope.bisect.subjects.stage_probe import StageProbe
from hloscope.core.cli.main import run
from hloscope.core.hlo import HloModule
from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.registry import Registry
from hloscope.core.runtime import npz
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.text import load_module, print_module

HEAD = "HloModule m, entry_computation_layout={(f32[4,8]{1,0}, f32[8]{0})->(f32[4,8]{1,0}, f32[4]{0})}\n\n"
SUM = """%sum (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %s = f32[] add(%p, %q)
}

"""
OPEN = """ENTRY %main (a: f32[4,8], b: f32[8]) -> (f32[4,8], f32[4]) {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[8]{0} parameter(1)
"""
FIRST = """  %one = f32[] constant(1)
  %ones = f32[4,8]{1,0} broadcast(%one), dimensions={}
  %same = f32[4,8]{1,0} multiply(%a, %ones)
  %bs = f32[4,8]{1,0} broadcast(%b), dimensions={1}
  %minus = f32[4,8]{1,0} subtract(%same, %bs)
  %e = f32[4,8]{1,0} exponential(%minus)
  %zero = f32[] constant(0)
  %total = f32[4]{0} reduce(%e, %zero), dimensions={1}, to_apply=%sum
  %tail = f32[4,8]{1,0} subtract(%e, %a)
  ROOT %out = (f32[4,8]{1,0}, f32[4]{0}) tuple(%tail, %total)
}
"""
SIMPLE = """  %bs = f32[4,8]{1,0} broadcast(%b), dimensions={1}
  %minus = f32[4,8]{1,0} subtract(%a, %bs)
  %e = f32[4,8]{1,0} exponential(%minus)
  %zero = f32[] constant(0)
  %total = f32[4]{0} reduce(%e, %zero), dimensions={1}, to_apply=%sum
  %tail = f32[4,8]{1,0} subtract(%e, %a)
  ROOT %out = (f32[4,8]{1,0}, f32[4]{0}) tuple(%tail, %total)
}
"""
BODY = """%fused (x: f32[4,8], y: f32[8]) -> f32[4,8] {
  %x = f32[4,8]{1,0} parameter(0)
  %y = f32[8]{0} parameter(1)
  %bs.1 = f32[4,8]{1,0} broadcast(%y), dimensions={1}
  %minus.1 = f32[4,8]{1,0} subtract(%x, %bs.1)
  ROOT %e.1 = f32[4,8]{1,0} exponential(%minus.1)
}

"""
FUSED = """  %fusion = f32[4,8]{1,0} fusion(%a, %b), kind=kLoop, calls=%fused
  %zero = f32[] constant(0)
  %total = f32[4]{0} reduce(%fusion, %zero), dimensions={1}, to_apply=%sum
  %tail = f32[4,8]{1,0} subtract(%fusion, %a)
  ROOT %out = (f32[4,8]{1,0}, f32[4]{0}) tuple(%tail, %total)
}
"""
STAGES = {
    "before_optimizations": HEAD + SUM + OPEN + FIRST,
    "0001.simplification.after_algsimp.before_dce": HEAD + SUM + OPEN + SIMPLE,
    "0002.simplification.after_dce.before_cse": HEAD + SUM + OPEN + SIMPLE.replace("%zero", "%nought"),
    "0003.fusion.after_priority-fusion.before_verifier": HEAD + SUM + BODY + OPEN + FUSED,
    "sm_9.0_gpu_after_optimizations": HEAD.replace("m,", "m, is_scheduled=true,", 1) + SUM + BODY + OPEN + FUSED,
}
ORDER = list(STAGES)
FAULTS = {
    "other opcode": (1, "%tail = f32[4,8]{1,0} subtract", "%tail = f32[4,8]{1,0} add", "tail"),
    "swapped operands": (1, "subtract(%a, %bs)", "subtract(%bs, %a)", "minus"),
    "other dimension": (2, "constant(0)", "constant(2)", "nought"),
    "other reducer": (2, "add(%p, %q)", "maximum(%p, %q)", "s"),
    "inside a new fusion": (3, "subtract(%x, %bs.1)", "subtract(%bs.1, %x)", "minus.1"),
    "in the last stage": (4, "exponential(%minus.1)", "negate(%minus.1)", "e.1"),
}


def write_dump(folder: Path, fault: tuple[int, str, str, str] | None, *, lasting: bool = True) -> Path:
    """The stages as files; the fault stands in its stage and, where it lasts, in every later one with that line."""
    folder.mkdir()
    for number, (name, text) in enumerate(STAGES.items()):
        if fault is not None and (number == fault[0] or (lasting and number > fault[0])):
            assert number != fault[0] or fault[1] in text
            text = text.replace(fault[1], fault[2])
        (folder / f"module_0001.m.{name}.txt").write_text(text)
    return folder


def bisect(*words: object) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    with redirect_stdout(out):
        code = run(["bisect", *map(str, words), "--json"])
    return code, json.loads(out.getvalue())


@pytest.mark.parametrize("name", FAULTS)
def test_stage_and_instruction_are_found(tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    code, answer = bisect(write_dump(tmp_path / "dump", fault))
    assert (code, answer["verdict"]) == (1, "wrong-stage"), answer
    (culprit,) = answer["culprits"]
    assert (culprit["stage"], culprit["instruction"]) == (fault[0], fault[3]), answer
    stage = (tmp_path / "dump" / culprit["file"].rsplit("/", 1)[-1]).read_text().split("\n")
    assert f"%{fault[3]} = " in stage[culprit["line"] - 1]
    levels: dict[str, int] = {}
    for probe in answer["probes"]:
        levels[probe["level"]] = levels.get(probe["level"], 0) + 1
    assert levels["stage"] <= ceil(log2(len(STAGES))) + 3


CALLING = """HloModule m

%f (x: f32[4,4], y: f32[4,4]) -> f32[4,4] {
  %x = f32[4,4]{1,0} parameter(0)
  %y = f32[4,4]{1,0} parameter(1)
  %gap = f32[4,4]{1,0} subtract(%x, %y)
  %t = f32[4,4]{1,0} tanh(%gap)
  ROOT %p = f32[4,4]{1,0} multiply(%t, %y)
}

ENTRY %main (a: f32[4,4], b: f32[4,4]) -> f32[4,4] {
  %a = f32[4,4]{1,0} parameter(0)
  %b = f32[4,4]{1,0} parameter(1)
  %c = f32[4,4]{1,0} call(%a, %b), to_apply=%f
  ROOT %r = f32[4,4]{1,0} add(%c, %a)
}
"""
INLINED = """HloModule m

ENTRY %main (a: f32[4,4], b: f32[4,4]) -> f32[4,4] {
  %a = f32[4,4]{1,0} parameter(0)
  %b = f32[4,4]{1,0} parameter(1)
  %s.1 = f32[4,4]{1,0} subtract(%b, %a)
  %s.2 = f32[4,4]{1,0} tanh(%s.1)
  %s.3 = f32[4,4]{1,0} multiply(%s.2, %b)
  ROOT %s.4 = f32[4,4]{1,0} add(%s.3, %a)
}
"""


@pytest.mark.parametrize(
    ("wrong", "name"),
    [("", "s.1"), ("tanh(%s.1)|sine(%s.1)", "s.2"), ("add(%s.3, %a)|add(%s.3, %b)", "s.4")],
)
def test_values_narrow_a_region_that_has_no_name_in_common(tmp_path: Path, wrong: str, name: str) -> None:
    """A call is laid out in line, under new names: the first instruction with a value that was not there is meant."""
    text = INLINED
    if wrong:
        old, _, new = wrong.partition("|")
        text = text.replace("subtract(%b, %a)", "subtract(%a, %b)").replace(old, new)
    (tmp_path / "module_0001.m.before_optimizations.txt").write_text(CALLING)
    (tmp_path / "module_0001.m.0001.simplification.after_call-inliner.before_dce.txt").write_text(text)
    _, answer = bisect(tmp_path)
    assert [(one["stage"], one["instruction"]) for one in answer["culprits"]] == [(1, name)], answer


TWICE = """HloModule m

ENTRY %main (a: f32[4], z: f32[]) -> (f32[6], f32[6]) {
  %a = f32[4] parameter(0)
  %z = f32[] parameter(1)
  %p = f32[6] pad(%a, %z), padding=1_1
  %n = f32[6] cosine(%p)
  %q = f32[6] add(%n, %p)
  %r0 = f32[6] tanh(%q)
  %r1 = f32[6] exponential(%q)
  ROOT %out = (f32[6], f32[6]) tuple(%r0, %r1)
}
"""
TWICE_FUSED = """HloModule m

%f0 (x: f32[4], y: f32[]) -> f32[6] {
  %x = f32[4] parameter(0)
  %y = f32[] parameter(1)
  %pad.0 = f32[6] pad(%x, %y), padding=2_0
  %n.0 = f32[6] cosine(%pad.0)
  %q.0 = f32[6] add(%n.0, %pad.0)
  ROOT %t = f32[6] tanh(%q.0)
}

%f1 (x: f32[4], y: f32[]) -> f32[6] {
  %x.1 = f32[4] parameter(0)
  %y.1 = f32[] parameter(1)
  %pad.1 = f32[6] pad(%x.1, %y.1), padding=1_1
  %n.1 = f32[6] cosine(%pad.1)
  %q.1 = f32[6] add(%n.1, %pad.1)
  ROOT %c = f32[6] exponential(%q.1)
}

ENTRY %main (a: f32[4], z: f32[]) -> (f32[6], f32[6]) {
  %a = f32[4] parameter(0)
  %z = f32[] parameter(1)
  %r0 = f32[6] fusion(%a, %z), kind=kLoop, calls=%f0
  %r1 = f32[6] fusion(%a, %z), kind=kLoop, calls=%f1
  ROOT %out = (f32[6], f32[6]) tuple(%r0, %r1)
}
"""


def test_a_copy_among_others_in_new_fusions_is_told_from_them(tmp_path: Path) -> None:
    """What was computed once is computed twice in a stage, once wrongly: the other copy has the old value."""
    (tmp_path / "module_0001.m.before_optimizations.txt").write_text(TWICE)
    (tmp_path / "module_0001.m.0001.fusion.after_fusion.before_dce.txt").write_text(TWICE_FUSED)
    _, answer = bisect(tmp_path)
    assert [(one["stage"], one["instruction"]) for one in answer["culprits"]] == [(1, "pad.0")], answer
    said = answer["culprits"][0]["sentence"]  # in the words of the two files
    assert said.startswith("%pad.0 is pad(%x, %y), padding=2_0 where %p was pad(%a, %z), padding=1_1;")


KEPT = """HloModule m

ENTRY %main (a: f32[1,8], z: f32[]) -> f32[1,4] {
  %a = f32[1,8] parameter(0)
  %z = f32[] parameter(1)
  %p = f32[2,8] pad(%a, %z), padding=0_1_1x0_0_0
  %s = f32[1,8] slice(%p), slice={[0:1:2], [0:8:1]}
  %t = f32[1,8] slice(%a), slice={[0:1], [0:8]}
  %top = f32[1,8] maximum(%s, %t)
  %turned = f32[1,8] atan2(%s, %t)
  %both = f32[1,8] add(%top, %turned)
  ROOT %r = f32[1,4] slice(%both), slice={[0:1], [0:8:2]}
}
"""


@pytest.mark.parametrize(
    ("was", "now", "name"),
    [
        ("maximum(%s, %t)", "minimum(%s, %t)", "top"),
        ("atan2(%s, %t)", "atan2(%t, %s)", "turned"),
        ("slice(%p), slice={[0:1:2], [0:8:1]}", "slice(%p), slice={[0:1], [0:8]}", ""),
        ("padding=0_1_1x0_0_0", "padding=0_1x0_0", ""),
    ],
)
def test_a_line_that_says_another_thing_is_accused_though_no_value_tells(
    tmp_path: Path, was: str, now: str, name: str
) -> None:
    """Whatever the inputs, both operands are equal; another form of the same attribute is no other thing."""
    (tmp_path / "module_0001.m.before_optimizations.txt").write_text(KEPT)
    (tmp_path / "module_0001.m.0001.simplification.after_algsimp.before_dce.txt").write_text(KEPT.replace(was, now))
    code, answer = bisect(tmp_path)
    assert [one["instruction"] for one in answer["culprits"]] == ([name] if name else []), answer
    assert (code, answer["verdict"]) == ((1, "wrong-stage") if name else (0, "no-difference"))


@pytest.mark.parametrize("sides", ["first", "second"])
def test_a_line_that_a_later_stage_sets_right_is_wrong_where_it_was_made(tmp_path: Path, sides: str) -> None:
    """Made with another operation, or turned in a stage that gave it another operand, too; no value tells either."""
    renamed = (
        KEPT.replace("%top", "%made") if sides == "first" else KEPT.replace("%t = ", "%t.0 = ").replace("%t)", "%t.0)")
    )
    wrong = KEPT.replace("maximum(%s, %t)", "minimum(%s, %t)")
    for number, text in enumerate((renamed, wrong, KEPT)):
        name = f"000{number}.simplification.after_pass-{number}.before_dce" if number else "before_optimizations"
        (tmp_path / f"module_0001.m.{name}.txt").write_text(text)
    code, answer = bisect(tmp_path)
    assert (code, answer["verdict"]) == (1, "wrong-stage"), answer
    assert [(one["stage"], one["instruction"]) for one in answer["culprits"]] == [(1, "top")], answer


SELDOM = """HloModule m

%most (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %m = f32[] maximum(%x, %y)
}

ENTRY %main (a: f32[64], b: f32[64]) -> f32[64] {
  %a = f32[64] parameter(0)
  %b = f32[64] parameter(1)
  %low = f32[] constant(-inf)
  %top = f32[] reduce(%a, %low), dimensions={0}, to_apply=%most
  %zero = f32[] constant(0)
  %below = pred[] compare(%top, %zero), direction=LT
  %all = pred[64] broadcast(%below), dimensions={}
  %gap = f32[64] subtract(%a, %b)
  ROOT %r = f32[64] select(%all, %gap, %a)
}
"""


def test_inputs_are_looked_for_that_reach_the_fault(tmp_path: Path) -> None:
    """All of 64 values are below zero: no random inputs are. What nothing reaches is told."""
    (tmp_path / "module_0001.m.before_optimizations.txt").write_text(SELDOM)
    after = SELDOM.replace("%gap = f32[64] subtract(%a, %b)", "%far = f32[64] subtract(%b, %a)").replace("%gap", "%far")
    last = tmp_path / "module_0001.m.0001.simplification.after_algsimp.before_dce.txt"
    last.write_text(after)
    code, answer = bisect(tmp_path)
    assert (code, answer["verdict"]) == (1, "wrong-stage"), answer
    assert [(one["stage"], one["instruction"]) for one in answer["culprits"]] == [(1, "far")]
    assert answer["evidence"][0] == "seen on inputs that are negative"
    for file in (last, tmp_path / "module_0001.m.before_optimizations.txt"):
        file.write_text(SELDOM.replace("%zero = f32[] constant(0)", "%zero = f32[] constant(-1e9)") + f"// {file.name}")
    answer = bisect(tmp_path)[1]
    assert answer["verdict"] == "no-difference"
    assert "%below (true)" in answer["evidence"][-1], answer


SHIFTED = """HloModule m

%most (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %m = f32[] maximum(%x, %y)
}

%sum (x.1: f32[], y.1: f32[]) -> f32[] {
  %x.1 = f32[] parameter(0)
  %y.1 = f32[] parameter(1)
  ROOT %s = f32[] add(%x.1, %y.1)
}

ENTRY %main (a: f32[4,6]) -> f32[4,6] {
  %a = f32[4,6] parameter(0)
  %rest = f32[] constant(-1e9)
  %fill = f32[4,6] broadcast(%rest), dimensions={}
  %i = s32[4,6] iota(), iota_dimension=0
  %j = s32[4,6] iota(), iota_dimension=1
  %seen = pred[4,6] compare(%j, %i), direction=LE
  %masked = f32[4,6] select(%seen, %a, %fill)
  %low = f32[] constant(-inf)
  %top = f32[4] reduce(%masked, %low), dimensions={1}, to_apply=%most
  %tops = f32[4,6] broadcast(%top), dimensions={0}
  %gap = f32[4,6] subtract(%masked, %tops)
  %e = f32[4,6] exponential(%gap)
  %zero = f32[] constant(0)
  %total = f32[4] reduce(%e, %zero), dimensions={1}, to_apply=%sum
  %totals = f32[4,6] broadcast(%total), dimensions={0}
  ROOT %r = f32[4,6] divide(%e, %totals)
}
"""
"""A softmax of what a mask leaves: the same for every shift, as long as nothing overflows."""


def test_a_softmax_that_shifts_otherwise_is_seen_where_it_overflows(tmp_path: Path) -> None:
    text = "%near = f32[4,6] add(%masked, %tops)"
    (tmp_path / "module_0001.m.before_optimizations.txt").write_text(SHIFTED)
    last = tmp_path / "module_0001.m.0001.simplification.after_algsimp.before_dce.txt"
    last.write_text(SHIFTED.replace("%gap = f32[4,6] subtract(%masked, %tops)", text).replace("%gap", "%near"))
    code, answer = bisect(tmp_path)
    assert (code, answer["verdict"]) == (1, "wrong-stage"), answer
    assert answer["culprits"][0]["stage"] == 1 and "inputs 256 times as large" in answer["evidence"][0]
    # a shift by other values than the greatest is as good where it bounds the exponential
    shifted = "%more = f32[4,6] add(%tops, %ones)\n  %near = f32[4,6] subtract(%masked, %more)"
    ones = "%one = f32[] constant(1)\n  %ones = f32[4,6] broadcast(%one), dimensions={}"
    last.write_text(
        SHIFTED.replace("%gap = f32[4,6] subtract(%masked, %tops)", f"{ones}\n  {shifted}").replace("%gap", "%near")
    )
    assert bisect(tmp_path)[1]["verdict"] in ("no-difference", "allowed-change")


FINITE = """HloModule m

ENTRY %main (a: f32[8], p: pred[8]) -> (f32[8], f32[8]) {
  %a = f32[8] parameter(0)
  %p = pred[8] parameter(1)
  %c = f32[8] convert(%p)
  %prod = f32[8] multiply(%a, %c)
  %twice = f32[8] add(%a, %a)
  ROOT %r = (f32[8], f32[8]) tuple(%prod, %twice)
}
"""


def test_infinities_that_are_given_do_not_hide_what_is_wrong_behind_a_rewrite(tmp_path: Path) -> None:
    """XLA's own: x * convert(p) is a select, which is no NaN where x is infinite and p false."""
    chosen = "%zeros = f32[8] broadcast(%zero), dimensions={}\n  %prod.1 = f32[8] select(%p, %a, %zeros)"
    second = FINITE.replace("%c = f32[8] convert(%p)", "%zero = f32[] constant(0)").replace(
        "%prod = f32[8] multiply(%a, %c)", chosen
    )
    second = second.replace("tuple(%prod,", "tuple(%prod.1,")
    third = second.replace("%twice = f32[8] add(%a, %a)", "%much = f32[8] multiply(%a, %a)").replace("%twice", "%much")
    dump = tmp_path / "dump"
    dump.mkdir()
    for number, text in enumerate((FINITE, second, third)):
        name = f"000{number}.simplification.after_pass-{number}.before_dce" if number else "before_optimizations"
        (dump / f"module_0001.m.{name}.txt").write_text(text)
    given = np.array([1, -3, np.inf, 0.5, -np.inf, 7, -8, 0.25], np.float32)
    npz.write(tmp_path / "given.npz", inputs=[given, np.array([True, False] * 2 + [False, True] * 2)])
    code, answer = bisect(dump, "--args", tmp_path / "given.npz")
    assert (code, answer["verdict"]) == (1, "wrong-stage")
    assert [(one["stage"], one["instruction"]) for one in answer["culprits"]] == [(2, "much")], answer
    assert "ordinary values" in answer["evidence"][0]
    assert "stage 1 (pass-1) differs before it" in answer["evidence"][1]


TOTAL = """HloModule m

%less (x: f32[], y: f32[]) -> pred[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %lt = pred[] compare(%x, %y), direction=LT, type=TOTALORDER
}

ENTRY %main (a: f32[16]) -> f32[16] {
  %a = f32[16] parameter(0)
  ROOT %sorted = f32[16] sort(%a), dimensions={0}, to_apply=%less
}
"""


def test_a_line_of_a_comparator_that_a_pass_has_made_is_told_by_our_own_pass(tmp_path: Path) -> None:
    module = load_module(TOTAL)
    Registry().make("comparison-expander").run(module, PassContext())
    expanded = print_module(module)
    wrong = next(one for one in module.instructions() if one.opcode == "select")
    x, y = (f"%{one.name}" for one in wrong.operands[1:])
    assert f"{x}, {y})" in expanded
    (tmp_path / "module_0001.m.before_optimizations.txt").write_text(TOTAL)
    after = tmp_path / "module_0001.m.0001.simplification.after_comparison-expander.before_dce.txt"
    after.write_text(expanded.replace(f"{x}, {y})", f"{y}, {x})"))
    answer = bisect(tmp_path)[1]
    assert [(one["stage"], one["instruction"]) for one in answer["culprits"]] == [(1, wrong.name)], answer
    assert "our own comparison-expander makes it right where this one does not" in answer["evidence"][-1]


@pytest.mark.parametrize("count", [1, 2, 7, 33, 64])
def test_the_first_value_that_cures_is_found_within_the_budget(count: int) -> None:
    """Of groups of which one cures, and those behind it too; whatever the order in which they are likely."""
    module = load_module(TOTAL)
    root = module.entry.root
    chain = [[Border(root, root)] for _ in range(count)]
    guilty = chain[2 * count // 3][0]
    likely = [*chain[1:], chain[0]]
    asked = 0

    def cures(borders: Sequence[Border]) -> bool:
        nonlocal asked
        asked += 1
        return guilty in borders

    found = first_to_cure(Pairs(Alignment(module, module), Seen(), Seen(), likely, chain), cures)
    assert found == [guilty]
    assert asked <= ceil(log2(count)) + 3


RAISED = """HloModule m

ENTRY %main (p: f32[6,6]) -> f32[6,6] {
  %p = f32[6,6] parameter(0)
  %e = f32[6,6] exponential(%p)
  %n = f32[6,6] negate(%e)
  %l = f32[6,6] log(%e)
  %d = f32[6,6] divide(%n, %l)
  ROOT %r = f32[6,6] add(%d, %l)
}
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_rewrite_that_does_not_round_nor_overflow_is_not_accused(tmp_path: Path, seed: int) -> None:
    """XLA's own: log(exp(x)) is x. Small x divide, and large ones leave the range that exp has."""
    after = RAISED.replace("  %l = f32[6,6] log(%e)\n", "").replace("%l)", "%p)")
    (tmp_path / "module_0001.m.before_optimizations.txt").write_text(RAISED)
    (tmp_path / "module_0001.m.0001.simplification.after_algsimp.before_dce.txt").write_text(after)
    code, answer = bisect(tmp_path, "--seed", seed)
    assert (code, answer["culprits"]) == (0, []), answer


MASKED = """HloModule m

ENTRY %main (p: f32[8,8]) -> (f32[8,8], f32[8,8]) {
  %p = f32[8,8] parameter(0)
  %zero = f32[] constant(0)
  %zeros = f32[8,8] broadcast(%zero), dimensions={}
  %less = pred[8,8] compare(%p, %zeros), direction=LT
  %far = f32[] constant(1000)
  %fars = f32[8,8] broadcast(%far), dimensions={}
  %large = f32[8,8] multiply(%p, %fars)
  %e = f32[8,8] exponential(%large)
  %some = f32[8,8] convert(%less)
  %m = f32[8,8] multiply(%e, %some)
  %q = f32[8,8] add(%p, %p)
  ROOT %out = (f32[8,8], f32[8,8]) tuple(%m, %q)
}
"""


@pytest.mark.parametrize("fault", [False, True])
def test_behind_a_stage_that_no_longer_overflows_the_search_goes_on(tmp_path: Path, fault: bool) -> None:
    """XLA's own: x * convert(p) is a select, 0 where infinity times 0 is NaN."""
    chosen = MASKED.replace("multiply(%e, %some)", "select(%less, %e, %zeros)").replace(
        "  %some = f32[8,8] convert(%less)\n", ""
    )
    last = chosen.replace("add(%p, %p)", "subtract(%p, %p)") if fault else chosen.replace("%q", "%twice")
    for name, text in (("before_optimizations", MASKED), ("0001.s.after_algsimp.before_dce", chosen),
                       ("0002.s.after_dce.before_cse", last)):  # fmt: skip
        (tmp_path / f"module_0001.m.{name}.txt").write_text(text)
    code, answer = bisect(tmp_path)
    assert any("stage 1 (algsimp) does not overflow" in said for said in answer["evidence"]), answer
    assert (code, answer["verdict"]) == ((1, "wrong-stage") if fault else (0, "allowed-change"))
    assert [(one["stage"], one["instruction"]) for one in answer["culprits"]] == ([(2, "q")] if fault else [])


def test_a_stage_that_is_no_valid_module_is_accused(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump", (2, "dimensions={1}, to_apply", "dimensions={0}, to_apply", "total"))
    code, answer = bisect(dump)
    assert (code, answer["verdict"]) == (1, "compile-failure"), answer
    assert [(one["stage"], one["instruction"]) for one in answer["culprits"]] == [(2, "total")]
    assert "f32[4]" in answer["culprits"][0]["sentence"]
    # Of a stage that cannot be evaluated for another reason nothing is said.
    for one in dump.iterdir():
        one.write_text(one.read_text().replace("dimensions={0}, to_apply", "dimensions={1}, to_apply"))
    last = max(dump.glob("*after_optimizations.txt"))
    last.write_text(last.read_text().replace("subtract(%fusion, %a)", 'custom-call(%a), custom_call_target="own"'))
    code, answer = bisect(dump)
    assert (code, answer["verdict"], answer["culprits"]) == (1, "cannot-tell", []), answer


class Killed(BaseException):
    """What stands for a kill: nothing catches it."""


def test_a_dump_s_search_that_is_killed_goes_on_where_it_was(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = write_dump(tmp_path / "dump", FAULTS["other opcode"])
    wanted = bisect(dump)
    run_probe, made = StageProbe.run, list[str]()
    limit = 0

    def counted(self: StageProbe) -> Outcome:
        if len(made) == limit:
            raise Killed
        made.append(self.key)
        return run_probe(self)

    monkeypatch.setattr(StageProbe, "run", counted)
    for limit in (0, 1, 3, 4):
        with pytest.raises(Killed):
            bisect(dump)
        assert len(made) == limit, "nothing is asked again"
    limit = 99
    assert bisect(dump) == wanted
    assert len(made) == len(set(made)) and not list(cache.glob("bisect/*"))


def test_a_fault_that_a_later_stage_undoes_is_found_too(tmp_path: Path) -> None:
    code, answer = bisect(write_dump(tmp_path / "dump", FAULTS["swapped operands"], lasting=False))
    assert (code, answer["verdict"]) == (1, "wrong-stage")
    assert [(one["stage"], one["instruction"]) for one in answer["culprits"]] == [(1, "minus")]
    assert any("computes the right thing again" in said for said in answer["evidence"])


def test_a_sound_dump_accuses_nobody(tmp_path: Path) -> None:
    code, answer = bisect(write_dump(tmp_path / "dump", None))
    assert (code, answer["verdict"], answer["culprits"]) == (0, "no-difference", [])


def test_recorded_results_that_no_stage_explains_lie_below(tmp_path: Path) -> None:
    from hloscope.core.runtime.inputs import inputs_for

    module = load_module(STAGES["before_optimizations"])
    values = inputs_for(module.entry, 1)
    given = [one for one in values if isinstance(one, np.ndarray)]
    results = [one.copy() for one in evaluate(module, values) if isinstance(one, np.ndarray)]
    dump = write_dump(tmp_path / "dump", None)
    npz.write(tmp_path / "good.npz", inputs=given, outputs=results)
    assert bisect(dump, "--oracle", tmp_path / "good.npz")[1]["verdict"] == "no-difference"
    results[1][2] += 1.0
    npz.write(tmp_path / "bad.npz", inputs=given, outputs=results)
    code, answer = bisect(dump, "--oracle", tmp_path / "bad.npz")
    assert (code, answer["verdict"]) == (1, "below-hlo"), answer


def test_putting_everything_back_gives_the_earlier_stage() -> None:
    texts = list(STAGES.values())
    for before, after in zip(texts, texts[1:], strict=False):
        found = align(load_module(before), load_module(after))
        again = put_back(found, found.borders).module
        live = load_module(print_module(lay_open(again).module))
        assert structural_hash(_swept(live)) == structural_hash(_swept(lay_open(load_module(before)).module))


def _swept(module: Any) -> Any:
    """Only what the results need."""
    from hloscope.core.passes.context import PassContext
    from hloscope.core.passes.dce import HloDce

    HloDce().run(module, PassContext())
    for computation in module.computations:
        computation.reorder(computation.post_order())
    module.attrs.pop("is_scheduled", None)
    return module


@given_by(st.integers(1, 400), st.data())
def test_the_smallest_cure_is_found_within_the_budget(count: int, data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=2))

    def cured(members: frozenset[int]) -> Outcome:
        return Outcome("right" if wanted <= members else "wrong")

    found, steps = smallest_cure(count, cured, "change")
    assert found == wanted
    assert len(steps) <= len(wanted) * (ceil(log2(count)) + 2) + 1


def test_nothing_cures_where_taking_back_everything_does_not() -> None:
    found, steps = smallest_cure(5, lambda members: Outcome("wrong"), "change")
    assert (found, len(steps)) == (frozenset(), 1)


def test_lines_that_read_each_other_are_taken_back_together() -> None:
    """A line taken back reads the others as they were; one of its name in a copy of its computation is another."""
    body = "{\n  p = f32[4] parameter(0)\n  q = f32[4] OUTER(p)\n  ROOT r = f32[4] INNER(q)\n}\n"

    def module(one: tuple[str, str], other: tuple[str, str]) -> HloModule:
        bodies = [body.replace("OUTER", outer).replace("INNER", inner) for outer, inner in (one, other)]
        return load_module(
            f"HloModule m\n\nfirst {bodies[0]}\nsecond {bodies[1]}\nENTRY e {{\n  x = f32[4] parameter(0)\n"
            "  a = f32[4] call(x), to_apply=first\n  b = f32[4] call(a), to_apply=second\n"
            "  ROOT t = (f32[4], f32[4]) tuple(a, b)\n}\n"
        )

    before = module(("negate", "exponential"), ("cosine", "tanh"))
    found = align(before, module(("abs", "sine"), ("cosine", "tanh")))
    lines = {line.after: line for border in found.borders for line in changed_lines(found, border)}
    assert sorted((one.name, one.parent.name) for one in lines) == [("q", "first"), ("r", "first")]
    value = np.array([0.25, -0.5, 1, 2], np.float32)
    made = evaluate(take_back(found, lines.values()).module, [value])
    for one, other in zip(made, evaluate(before, [value]), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_the_bundle_holds_what_a_maintainer_needs_and_no_names(tmp_path: Path) -> None:
    named = {
        name: text.replace("%sum\n", '%sum, metadata={op_name="jit(secret)/sum" source_file="secret/model.py"}\n')
        for name, text in STAGES.items()
    }
    fault, dump, bundle = FAULTS["swapped operands"], tmp_path / "dump", tmp_path / "bundle"
    dump.mkdir()
    for number, (name, text) in enumerate(named.items()):
        (dump / f"module_0001.m.{name}.txt").write_text(text.replace(fault[1], fault[2]) if number else text)
    code, answer = bisect(dump, "--bundle", bundle)
    assert code == 1 and answer["bundle"] == str(bundle)
    held = {one.name for one in bundle.iterdir()}
    names = {"report.md", "before.hlo", "after.hlo", "inputs.npz", "expected.npz", "environment.json", "repro.py"}
    assert names | {f"minimal_{name}" for name in ("before.hlo", "after.hlo", "inputs.npz", "actual.npz")} <= held
    small = [load_module((bundle / f"minimal_{name}.hlo").read_text()) for name in ("before", "after")]
    assert [one.entry.root.opcode for one in small] == ["subtract"] * 2
    assert [[p.shape.dimensions for p in one.entry.parameters] for one in small] == [[(4, 8), (4, 8)]] * 2
    given = npz.read(bundle / "minimal_inputs.npz").inputs
    for one, name in zip(small, ("expected", "actual"), strict=True):
        (result,) = evaluate(one, given)
        np.testing.assert_array_equal(np.asarray(result), npz.read(bundle / f"minimal_{name}.npz").outputs[0])
    assert answer["reduced"] == {"before": 12, "after": 3, "probes": 0}
    assert not any(b"secret" in one.read_bytes() for one in bundle.iterdir() if one.suffix != ".npz")
    report = (bundle / "report.md").read_text()
    assert "%minus = subtract(%bs, %a) stands where %minus = subtract(%same, %bs) stood" in report
    assert "the guilty computation and what it stands for: `python repro.py`" in report
    changed = load_module((bundle / "after.hlo").read_text()).find_instruction("minus")
    assert changed is not None and [one.name for one in changed.operands] == ["bs", "a"]
    assert run(["bisect", str(dump), "--bundle", str(bundle)]) == 2, "a folder that holds something is left alone"


def test_of_two_dumps_the_wrong_one_is_named(tmp_path: Path) -> None:
    good, bad = write_dump(tmp_path / "a", None), write_dump(tmp_path / "b", FAULTS["other opcode"])
    code, answer = bisect(good, "--against", bad)
    assert (code, answer["verdict"]) == (1, "wrong-stage")
    assert [(one["stage"], one["instruction"]) for one in answer["culprits"]] == [(1, "tail")]
    assert answer["culprits"][0]["file"].startswith(str(bad))
    assert any(said.startswith("their stages part at algsimp") for said in answer["evidence"])
    parted = next(said for said in answer["evidence"] if said.startswith("their values part at algsimp (stage 1 of A"))
    assert "A is where the first stage of A is; B is off by" in parted
    code, answer = bisect(good, "--against", good)
    assert (code, answer["verdict"]) == (0, "no-difference")
    assert "their last common stages compute the same bits" in answer["evidence"]
    other = tmp_path / "c"
    other.mkdir()
    for one in good.iterdir():
        (other / one.name).write_text(one.read_text().replace("exponential", "cosine"))
    code, answer = bisect(good, "--against", other)
    assert (code, answer["verdict"]) == (1, "wrong-input"), "two programs"
    assert any(said.startswith("their first stages compute different things") for said in answer["evidence"])


def test_a_stage_that_cannot_be_read_ends_no_search_and_is_named(tmp_path: Path) -> None:
    text = "HloModule m\n\nENTRY e {\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] negate(x)\n}\n"
    broken = text.replace("negate(x)", "fusion(x), kind=kLoop, calls=gone")
    for at, stage in enumerate(("before_optimizations", "0001.p.after_dce.before_cse", "cpu_after_optimizations")):
        (tmp_path / f"module_0001.m.{stage}.txt").write_text(broken if at == 2 else text.replace("r =", f"r{at} ="))
    out = io.StringIO()
    with redirect_stdout(out):
        code = run(["bisect", str(tmp_path), "--json"])
    answer = json.loads(out.getvalue())
    assert (code, answer["verdict"], answer["culprits"]) == (1, "cannot-tell", [])
    assert any("module_0001.m.cpu_after_optimizations.txt" in said and "gone" in said for said in answer["evidence"])


def test_a_module_with_which_no_pipeline_can_begin_accuses_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = tmp_path / "late.hlo"
    late.write_text("HloModule m\n\nENTRY e {\n  x = f32[2,3]{1,0} parameter(0)\n  ROOT r = f32[6]{0} bitcast(x)\n}\n")
    assert run(["bisect", str(late)]) == 2
    assert "late.hlo:5: %r is a bitcast" in capsys.readouterr().err
    assert run(["bisect", str(late), "--passes", "dce"]) == 0
    late.write_text("HloModule m\n\nENTRY e {\n  x = f32[6,5] parameter(0)\n  ROOT r = f32[29] reshape(x)\n}\n")
    for more in (["--engine", "xla"], ["--against=--xla_a=1"]):
        assert run(["bisect", str(late), *more]) == 2
        assert "late.hlo:5: %r (reshape)" in capsys.readouterr().err
