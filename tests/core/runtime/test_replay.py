"""Replay: stages of real dumps agree, a planted fault is found at its stage, and what is not known is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from hloscope.core.errors import EvaluationError, UnsupportedError
from hloscope.core.runtime import elided, npz, verdicts
from hloscope.core.runtime import replay as replaying
from hloscope.core.runtime.compare import Rules, Sensitivity, compare
from hloscope.core.runtime.evaluator import Array, EvaluationOptions, evaluate
from hloscope.core.runtime.inputs import moderate_inputs
from hloscope.core.runtime.replay import AGREES, DIFFERS, NOT_EVALUATED, REFERENCE, SAME, Replay, ReplayOptions, replay
from hloscope.core.runtime.stage import Program, run_stage
from hloscope.core.text import load_module
from hloscope.core.views.run import load

HERE = ReplayOptions(workers=1)


def texts(stages: Sequence[str]) -> list[Callable[[], str]]:
    return [lambda text=text: text for text in stages]


def stages_of(path: Path, numbers: Sequence[int] | None = None) -> list[str]:
    with load(str(path)) as run:
        return [run.stage_text(i) for i in (numbers if numbers is not None else range(len(run)))]


def replayed(stages: Sequence[str], options: ReplayOptions = HERE) -> Replay:
    return replay(texts(stages), options)


def planted(stages: Sequence[str], at: int, pattern: str, new: str) -> list[str]:
    """The stages with one thing changed from stage `at` on, as a wrong pass would leave them."""
    changed = [re.sub(pattern, new, text, count=1) if i >= at else text for i, text in enumerate(stages)]
    assert changed[at] != stages[at], "the fault is not in the text"
    return changed


# ---------------------------------------------------------------- real dumps
@pytest.mark.parametrize("name", ["gpu", "gpu_narrow", "tpu", "cpu"])
def test_all_stages_of_a_real_dump_agree(fixtures: Path, name: str) -> None:
    found = replayed(stages_of(fixtures / "dumps" / name))
    assert {stage.status for stage in found.stages} <= {REFERENCE, SAME, AGREES}
    assert found.first_difference is None
    assert found.evaluated == len(found.stages) > 5
    assert found.stages[0].status == REFERENCE


@pytest.mark.parametrize(
    ("name", "at", "pattern", "new"),
    [
        ("gpu_narrow", 6, r"\badd\(", "subtract("),
        ("gpu_narrow", 3, r"(reverse\([^)]*\), dimensions=\{)2", r"\g<1>1"),
        ("gpu", 8, r"constant\(1\)", "constant(2)"),
        ("tpu", 12, r"\bmultiply\(", "add("),
    ],
)
def test_a_planted_fault_is_found_at_its_stage(fixtures: Path, name: str, at: int, pattern: str, new: str) -> None:
    stages = stages_of(fixtures / "dumps" / name, [*range(at + 2)])
    if re.search(pattern, stages[at]) is None:
        pytest.fail(f"stage {at} of {name} has no {pattern}")
    found = replayed(planted(stages, at, pattern, new))
    bad = found.stages[at]
    assert all(stage.status in (REFERENCE, SAME, AGREES) for stage in found.stages[:at])
    assert bad.status in (DIFFERS, NOT_EVALUATED)
    if bad.status == DIFFERS:
        assert found.first_difference == at and bad.worst_index is not None and bad.max_abs


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["tp_mlp", "shard_map_ppermute", "dp_train"])
def test_a_partitioned_program_meets_its_oracle(corpus: Path, name: str) -> None:
    folder = corpus / "cpu" / name
    with load(str(folder / "dump")) as run:
        stages = [run.stage_text(i) for i in (0, len(run) // 2, -1)]
    found = replay(texts(stages), HERE, inputs=npz.read(folder / "oracle.npz").inputs)
    assert found.first_difference is None and found.evaluated == 3
    assert found.stages[-1].devices == 8


@pytest.mark.corpus
def test_a_wrong_neighbour_is_found(corpus: Path) -> None:
    stages = stages_of(corpus / "cpu" / "shard_map_ppermute" / "dump", [0, 20, 30, -1])
    found = replayed(planted(stages, 2, r"\{\{0,1\},\{1,2\},", "{{0,2},{1,1},"))
    assert found.first_difference == 2


# ---------------------------------------------------------------- small programs
PLAIN = """HloModule m

ENTRY e {
  x = f32[8,8] parameter(0)
  y = f32[8,8] parameter(1)
  d = f32[8,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[8,8] tanh(d)
}
"""


def test_equal_stages_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = PLAIN.replace(" d ", " product ").replace("tanh(d)", "tanh(product)")
    other = PLAIN.replace("tanh(d)", "negate(d)")
    runs: list[str] = []
    real = verdicts.run_stage

    def counted(module, *rest, **named):  # type: ignore[no-untyped-def]
        runs.append(module.name)
        return real(module, *rest, **named)

    monkeypatch.setattr(replaying, "run_stage", counted)
    monkeypatch.setattr(verdicts, "run_stage", counted)
    found = replayed([PLAIN, renamed, PLAIN, other, other])
    assert [stage.same_as for stage in found.stages] == [None, 0, 0, None, 3]
    assert [stage.status for stage in found.stages] == [REFERENCE, SAME, SAME, DIFFERS, DIFFERS]
    # The first stage, the same under other names, the wrong one, and two runs that show how firm the result is.
    assert len(runs) == 3 + verdicts.NOISY_RUNS


def test_verdicts_are_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ReplayOptions(workers=1, cache=str(tmp_path / "verdicts"))
    stages = [PLAIN, PLAIN.replace("tanh(d)", "negate(d)")]
    first = replayed(stages, options)
    real = verdicts.run_stage
    runs: list[str] = []

    def counted(module, *rest, **named):  # type: ignore[no-untyped-def]
        runs.append(module.name)
        return real(module, *rest, **named)

    monkeypatch.setattr(replaying, "run_stage", counted)
    monkeypatch.setattr(verdicts, "run_stage", counted)
    again = replayed(stages, options)
    assert len(runs) == 1, "only the first stage is computed"
    assert [(s.status, s.reason) for s in again.stages] == [(s.status, s.reason) for s in first.stages]
    assert replayed(stages, ReplayOptions(workers=1, seed=1, cache=options.cache)).first_difference == 1
    assert len(runs) > 2, "other inputs, other verdicts"


def test_workers_give_the_same_verdicts() -> None:
    stages = [PLAIN, *(PLAIN.replace("tanh(d)", f"{word}(d)") for word in ("negate", "copy", "sine"))]
    here, there = replayed(stages), replayed(stages, ReplayOptions(workers=2))
    assert [(s.index, s.status, s.reason, s.same_as) for s in here.stages] == [
        (s.index, s.status, s.reason, s.same_as) for s in there.stages
    ]


def test_a_stage_that_cannot_be_evaluated_says_why() -> None:
    unknown = PLAIN.replace("tanh(d)", 'custom-call(d), custom_call_target="nobody_knows"')
    broken = PLAIN.replace("tanh(d)", "tanh(d")
    fewer = "HloModule m\n\nENTRY e {\n  x = f32[8,8] parameter(0)\n  ROOT r = f32[8,8] tanh(x)\n}\n"
    root = "ROOT r = f32[8,8] tanh(d)"
    more = PLAIN.replace(root, "t = f32[8,8] tanh(d)\n  ROOT r = (f32[8,8], f32[8,8]) tuple(t, t)")
    found = replayed([PLAIN, unknown, broken, fewer, more])
    assert [stage.status for stage in found.stages] == [REFERENCE] + [NOT_EVALUATED] * 4
    reasons = [stage.reason for stage in found.stages[1:]]
    assert "nobody_knows" in reasons[0] and "7" in reasons[1]
    assert "1 parameters, the first stage 2" in reasons[2] and "2 results, the first stage 1" in reasons[3]
    assert {stage.how for stage in found.stages[1:]} == {"not-checked"}


def test_a_first_stage_that_cannot_be_evaluated_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="nobody_knows"):
        replayed([PLAIN.replace("tanh(d)", 'custom-call(d), custom_call_target="nobody_knows"')])
    with pytest.raises(EvaluationError, match="no stage"):
        replay([], HERE)


# ---------------------------------------------------------------- what the text does not hold
KERNEL = """HloModule m

ENTRY e {
  x = f32[4] parameter(0)
  n = f32[4] negate(x)
  k = f32[4] custom-call(n), custom_call_target="tpu_custom_call"
  ROOT r = f32[4] add(k, k)
}
"""


def test_an_opaque_kernel_gives_the_same_everywhere_and_its_operands_are_compared() -> None:
    doubled = KERNEL.replace(
        "ROOT r = f32[4] add(k, k)",
        "two = f32[] constant(2)\n  b = f32[4] broadcast(two), dimensions={}\n  ROOT r = f32[4] multiply(k, b)",
    )
    wrong = KERNEL.replace("negate(x)", "sine(x)")
    found = replayed([KERNEL, doubled, wrong])
    assert [stage.status for stage in found.stages] == [REFERENCE, SAME, DIFFERS]
    assert "operand 0 of tpu_custom_call" in found.stages[2].reason and found.stages[2].output is None


FOLDING = """HloModule m

ENTRY e {
  x = f32[16] parameter(0)
  i = f32[16] iota(), iota_dimension=0
  two = f32[] constant(2)
  b = f32[16] broadcast(two), dimensions={}
  c = f32[16] multiply(i, b)
  ROOT r = f32[16] add(x, c)
}
"""
FOLDED = """HloModule m

ENTRY e {
  x = f32[16] parameter(0)
  NAME = f32[16] constant({...})
  ROOT r = f32[16] add(x, NAME)
}
"""


def test_an_elided_constant_is_what_was_folded() -> None:
    found = replayed([FOLDING, *(FOLDED.replace("NAME", name) for name in ("k", "other", "k"))])
    assert [stage.status for stage in found.stages] == [REFERENCE, SAME, SAME, SAME]
    assert not found.notes


def test_a_constant_that_no_stage_has_is_random_and_shared() -> None:
    stages = [FOLDED.replace("NAME", "k"), FOLDED.replace("NAME", "other").replace("ROOT r", "ROOT q")]
    found = replayed(stages)
    assert [stage.status for stage in found.stages] == [REFERENCE, SAME]
    assert any("%k of stage 0: they are random" in note for note in found.notes)


def test_a_folded_constant_may_have_lost_its_copies() -> None:
    wide = FOLDING.replace(
        "ROOT r = f32[16] add(x, c)",
        "w = f32[16,3] broadcast(c), dimensions={0}\n  s = f32[16,3] slice(w), slice={[0:16], [0:3]}\n"
        "  h = f32[16,1] slice(s), slice={[0:16], [0:1]}\n  g = f32[16] reshape(h)\n  ROOT q = f32[16] add(x, g)",
    )
    module = load_module(FOLDED.replace("NAME", "k"))
    values = elided.resolve(module, load_module(wide), {}, 0)
    assert values.guessed == ["k"] and values.values["k"].tolist() == [2.0 * i for i in range(16)]


# ---------------------------------------------------------------- how much may differ
def test_rounding_errors_show_how_firm_a_result_is() -> None:
    text = """HloModule m

ENTRY e {
  x = f32[64] parameter(0)
  big = f32[] constant(1e6)
  b = f32[64] broadcast(big), dimensions={}
  up = f32[64] add(x, b)
  down = f32[64] subtract(up, b)
  s = f32[64] sine(x)
  ROOT r = (f32[64], f32[64]) tuple(down, s)
}
"""
    module = load_module(text)
    inputs = moderate_inputs(module.entry)
    exact = [np.asarray(x) for x in evaluate(module, inputs)]
    noisy = [[np.asarray(x) for x in evaluate(module, inputs, options=EvaluationOptions(noise=n))] for n in (0, 1)]
    again = [np.asarray(x) for x in evaluate(module, inputs, options=EvaluationOptions(noise=0))]
    assert np.array_equal(noisy[0][0], again[0]), "the same seed, the same errors"
    loose, firm = (Sensitivity.of(x, [run[i] for run in noisy]) for i, x in enumerate(exact))
    assert 0.01 < loose.farthest < 1 and firm.farthest < 1e-6
    shifted = [x + np.float32(0.05) for x in exact]
    assert not compare(exact[0], shifted[0], Rules()).within
    assert compare(exact[0], shifted[0], Rules(), loose).within
    assert not compare(exact[1], shifted[1], Rules(), firm).within


def test_a_few_roundings_that_fell_the_other_way_are_excused_and_many_are_not() -> None:
    result = np.zeros(1000, np.int32)
    flipped = result.copy()
    flipped[3] = 1
    moved = Sensitivity.of(result, [flipped])
    one, many = result.copy(), result.copy()
    one[700] = 1
    many[100:200] = 1
    assert compare(result, one, Rules(), moved).within
    assert not compare(result, one, Rules()).within
    assert not compare(result, many, Rules(), moved).within


def test_a_comparator_that_reads_bits_runs_on_whole_arrays() -> None:
    text = """HloModule m

less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] bitcast-convert(a)
  j = s32[] bitcast-convert(b)
  ROOT r = pred[] compare(i, j), direction=LT
}

ENTRY e {
  x = f32[17] parameter(0)
  y = f32[17] abs(x)
  ROOT r = f32[17] sort(y), dimensions={0}, to_apply=less
}
"""
    module = load_module(text)
    inputs = moderate_inputs(module.entry)
    (found,) = evaluate(module, inputs)
    assert np.array_equal(np.asarray(found), np.sort(np.abs(np.asarray(inputs[0]))))


def test_types_may_change_at_the_border_of_a_fusion() -> None:
    text = """HloModule m

f {
  a = f32[4] parameter(0)
  ROOT n = f32[4] negate(a)
}

ENTRY e {
  x = bf16[4] parameter(0)
  y = bf16[4] fusion(x), kind=kLoop, calls=f
  ROOT r = f32[4] convert(y)
}
"""
    module = load_module(text)
    run = run_stage(module, Program(tuple(np.asarray(x) for x in moderate_inputs(module.entry)), (None,)))
    assert run.outputs[0].dtype == np.float32 and run.outputs[0].shape == (4,)


ROUGH = """HloModule m

ENTRY e {
  x = f32[64,8] parameter(0)
  big = f32[] constant(1e6)
  b = f32[64,8] broadcast(big), dimensions={}
  up = f32[64,8] add(x, b)
  down = f32[64,8] subtract(up, b)
  scale = f32[] constant(300)
  s = f32[64,8] broadcast(scale), dimensions={}
  wide = f32[64,8] multiply(down, s)
  steps = f32[64,8] round-nearest-even(wide)
  low = f32[] constant(-127)
  high = f32[] constant(127)
  most = f32[64,8] broadcast(high), dimensions={}
  least = f32[64,8] broadcast(low), dimensions={}
  held = f32[64,8] clamp(least, steps, most)
  ROOT q = s8[64,8] convert(held)
}
"""


def test_a_small_fault_behind_a_large_rounding_error_is_found() -> None:
    """Rounding may move every result by many steps: only on the same values does one step show."""
    simpler = ROUGH.replace("subtract(up, b)", "copy(x)")
    faulty = simpler.replace("constant(127)", "constant(126)")
    found = replayed([ROUGH, simpler, faulty])
    assert [stage.status for stage in found.stages] == [REFERENCE, AGREES, DIFFERS]
    assert found.stages[1].widened and found.first_difference == 2
    assert "on the values of the stage before" in found.stages[2].reason


def test_a_small_fault_in_a_loop_behind_a_large_rounding_error_is_found() -> None:
    lines = [line.strip() for line in ROUGH.splitlines()[3:-1]]
    body = "\n  ".join(
        line.replace("x = f32[64,8] parameter(0)", "x = f32[64,8] get-tuple-element(p), index=1") for line in lines
    )
    body = body.replace("ROOT q = s8[64,8] convert(held)", "y = f32[64,8] multiply(held, small)")
    text = f"""HloModule m

body {{
  p = (s32[], f32[64,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  tiny = f32[] constant(0.01)
  small = f32[64,8] broadcast(tiny), dimensions={{}}
  {body}
  ROOT t = (s32[], f32[64,8]) tuple(j, y)
}}

more {{
  p = (s32[], f32[64,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}}

ENTRY e {{
  a = f32[64,8] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[64,8]) tuple(zero, a)
  w = (s32[], f32[64,8]) while(t), condition=more, body=body
  ROOT r = f32[64,8] get-tuple-element(w), index=1
}}
"""
    simpler = text.replace("subtract(up, b)", "copy(x)")
    found = replayed([text, simpler, simpler.replace("constant(127)", "constant(126.5)")])
    assert [stage.status for stage in found.stages] == [REFERENCE, AGREES, DIFFERS], found.stages


def test_a_fast_engine_goes_first_and_the_reference_decides_where_it_disagrees() -> None:
    text = "HloModule m\nENTRY e {\n  x = f32[5] parameter(0)\n  ROOT r = f32[5] add(x, x)\n}\n"
    renamed = text.replace("add(x, x)", 'add(x, x), metadata={op_name="a"}').replace(" r =", " other =")
    scaled = text.replace("  ROOT r = f32[5] add(x, x)", "  y = f32[5] negate(x)\n  ROOT r = f32[5] subtract(x, y)")
    fused = (
        "HloModule m\nf {\n  p = f32[5] parameter(0)\n  ROOT r = f32[5] add(p, p)\n}\n"
        "ENTRY e {\n  x = f32[5] parameter(0)\n  ROOT f = f32[5] fusion(x), kind=kLoop, calls=f\n}\n"
    )
    asked: list[str] = []

    def right(text: str, inputs: Sequence[Array]) -> list[Array]:
        asked.append(text)
        return [inputs[0] * np.float32(2)]

    def wrong(text: str, inputs: Sequence[Array]) -> list[Array]:
        return [inputs[0] * np.float32(3)]

    stages = [text, renamed, scaled, fused]
    found = replayed(stages, ReplayOptions(workers=1, fast=right))
    assert found.first_difference is None and scaled in asked and fused not in asked
    assert "evaluated by the fast engine" in found.stages[2].notes
    assert "evaluated by the fast engine" not in found.stages[3].notes
    found = replayed(stages, ReplayOptions(workers=1, fast=wrong))
    assert found.first_difference is None and "evaluated by the fast engine" not in found.stages[2].notes
    bad = scaled.replace("negate(x)", "abs(x)")
    assert replayed([text, bad], ReplayOptions(workers=1, fast=wrong)).first_difference == 1
