"""``hloscope reduce``: smaller at every step, valid at every step, the fault kept."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from hloscope.bisect.journal import Journal
from hloscope.bisect.reduce import Reduced, reduce_module, remembered
from hloscope.bisect.reduce_command import Inputs, inputs_of
from hloscope.core.cli.main import run
from hloscope.core.errors import InternalError
from hloscope.core.hlo.module import HloModule
from hloscope.core.passes.invariants import findings
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module, print_module

TEXT = """HloModule big, entry_computation_layout={(f32[8,16]{1,0}, f32[16]{0})->(f32[8,16]{1,0}, f32[8]{0})}

%sum (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %s = f32[] add(%p, %q), metadata={op_name="sum"}
}

%body (x: f32[8,16], y: f32[16]) -> f32[8,16] {
  %x = f32[8,16]{1,0} parameter(0)
  %y = f32[16]{0} parameter(1)
  %wide = f32[8,16]{1,0} broadcast(%y), dimensions={1}
  %gap = f32[8,16]{1,0} subtract(%x, %wide)
  ROOT %deep = f32[8,16]{1,0} tanh(%gap)
}

ENTRY %main (a: f32[8,16], b: f32[16]) -> (f32[8,16], f32[8]) {
  %a = f32[8,16]{1,0} parameter(0)
  %b = f32[16]{0} parameter(1)
  %twice = f32[8,16]{1,0} add(%a, %a)
  %fusion = f32[8,16]{1,0} fusion(%twice, %b), kind=kLoop, calls=%body
  %e = f32[8,16]{1,0} exponential(%fusion)
  %zero = f32[] constant(0)
  %total = f32[8]{0} reduce(%e, %zero), dimensions={1}, to_apply=%sum
  %scaled = f32[8,16]{1,0} multiply(%e, %twice)
  ROOT %out = (f32[8,16]{1,0}, f32[8]{0}) tuple(%scaled, %total)
}
"""


def has(*opcodes: str):  # type: ignore[no-untyped-def]
    def shows(module: HloModule) -> bool:
        return set(opcodes) <= {one.opcode for one in module.instructions()}

    return shows


@pytest.mark.parametrize(
    ("opcodes", "most"),
    [(("exponential",), 2), (("tanh",), 2), (("reduce",), 6), (("subtract", "multiply"), 5), (("fusion",), 6)],
)
def test_only_what_the_fault_needs_is_left(opcodes: tuple[str, ...], most: int) -> None:
    module = load_module(TEXT)
    kept: list[int] = []

    def watch(found: Reduced, _: str) -> None:
        assert list(findings(found.module)) == []
        assert set(opcodes) <= {one.opcode for one in found.module.instructions()}
        evaluate(found.module, inputs_for(found.module.entry))
        kept.append(found.after)

    found = reduce_module(module, has(*opcodes), watch=watch)
    assert found.after <= most, [one.opcode for one in found.module.instructions()]
    assert found.before == module.instruction_count == 17
    sizes = [size for one in found.module.instructions() for size in one.shape.dimensions]
    assert max(sizes, default=1) == 1
    assert len(kept) == len(found.steps) and found.probes <= 400


def test_the_budget_is_kept() -> None:
    asked: list[HloModule] = []

    def shows(module: HloModule) -> bool:
        asked.append(module)
        return has("tanh")(module)

    assert reduce_module(load_module(TEXT), shows, budget=5).probes == len(asked) == 5


def test_a_module_without_the_fault_is_no_start() -> None:
    with pytest.raises(InternalError, match="does not show"):
        reduce_module(load_module(TEXT), has("cosine"))


def test_the_command_asks_a_user_s_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, small, script = tmp_path / "big.hlo", tmp_path / "small.hlo", tmp_path / "judge.py"
    source.write_text(TEXT)
    script.write_text("import sys\nsys.exit(1 if 'exponential(' in open(sys.argv[1]).read() else 0)\n")
    oracle = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"
    words = ["reduce", str(source), "--oracle", oracle, "-o", str(small), "--budget", "60", "--json"]
    assert run(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["before"], answer["after"], answer["out"]) == (17, 2, str(small))
    assert load_module(small.read_text()).entry.root.opcode == "exponential"
    assert run(words) == 2, "an existing file is not overwritten"
    assert "exists already" in capsys.readouterr().err
    assert run(["reduce", str(small), "--oracle", f"{sys.executable} -c 0", "-o", str(tmp_path / "x")]) == 1


def test_a_wrong_rule_of_a_plugin_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, small = tmp_path / "big.hlo", tmp_path / "small.hlo"
    source.write_text(TEXT)
    plugin = Path(__file__).with_name("planted.py")
    words = ["--plugin", str(plugin), "--passes", "swap-subtract", "-o", str(small), "--json"]
    assert run(["reduce", str(source), *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["after"] <= 3
    assert "subtract(" in small.read_text()


def test_a_killed_reduction_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def shows(module: HloModule) -> bool:
        if len(asked) == 9:
            asked.append("killed")
            raise KeyboardInterrupt
        asked.append(print_module(module))
        return any(one.opcode == "tanh" for one in module.instructions())

    monkeypatch.setenv("HLOSCOPE_CACHE_DIR", str(tmp_path))
    whole = print_module(reduce_module(load_module(TEXT), has("tanh")).module)
    with pytest.raises(KeyboardInterrupt), Journal.for_question("q") as journal:
        reduce_module(load_module(TEXT), remembered(shows, journal))
    with Journal.for_question("q") as journal:
        found = reduce_module(load_module(TEXT), remembered(shows, journal))
        assert journal.resumed == 9
    assert print_module(found.module) == whole
    assert len(asked) == len(set(asked)), "nothing is asked twice"
    assert not list((tmp_path / "bisect").iterdir()), "nothing stays"


def test_inputs_stay_with_their_parameters() -> None:
    module = load_module(TEXT)
    a, b = np.full((8, 16), 7, np.float32), np.full(16, 8, np.float32)
    inputs = Inputs(0, inputs_of(module, [a, b]))
    whole = [np.asarray(one) for one in inputs.of(module)]
    assert all(np.array_equal(one, want) for one, want in zip(whole, (a, b), strict=True))
    smaller = load_module(TEXT.replace("[8,16]", "[4,16]").replace("f32[8]", "f32[4]"))
    first, second = (np.asarray(one) for one in inputs.of(smaller))
    assert first.shape == (4, 16) and not (first == 7).any() and np.array_equal(second, b)


def test_recorded_results_are_no_oracle_of_smaller_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "big.hlo"
    source.write_text(TEXT)
    for oracle, said in (("seen.npz", "recorded results fit one module"), ("unoptimised", "--engine xla")):
        assert run(["reduce", str(source), "-o", str(tmp_path / "out.hlo"), "--oracle", oracle]) == 2
        assert said in capsys.readouterr().err
