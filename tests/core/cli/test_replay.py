"""hloscope replay, and hloscope run for several devices, as a user calls them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from hloscope.core.cli import main
from hloscope.core.errors import CompileError
from hloscope.core.runtime import npz
from hloscope.core.runtime.compare import compare_all, rules_for
from hloscope.core.text import load_module
from hloscope.core.xla.execute import execute_hlo_text

KEYS = {"index", "status", "max_abs", "max_ulp", "worst_index"}


def hloscope(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main.run([str(one) for one in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_stage_that_xla_does_not_compile_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "late.hlo"
    path.write_text(
        "HloModule late, is_scheduled=true\n\nENTRY %e (x: f32[4]) -> s32[4] {\n"
        "  %x = f32[4]{0} parameter(0)\n  ROOT %b = s32[4]{0} bitcast(%x)\n}\n"
    )
    code, _, err = hloscope(capsys, "run", path, "--engine", "xla")
    assert code == 2 and err.count("\n") == 1
    assert err.startswith(f"hloscope: {path}: ") and "optimized already" in err and "--engine reference" in err
    assert "JaxRuntimeError" not in err
    assert hloscope(capsys, "run", path)[0] == 0


@pytest.mark.parametrize(
    ("first_line", "expected"),
    [
        ("HloModule late, is_scheduled=true", "refuses it, since it is optimized already: Check failed: has_layout()"),
        ("HloModule early", "was ended by SIGABRT: Check failed: has_layout()"),
    ],
)
def test_an_abort_of_the_compiler_is_told_by_what_it_was_given(first_line: str, expected: str) -> None:
    def aborts(command: Sequence[str], env: Mapping[str, str], said: BinaryIO, timeout: float) -> int:
        said.write(b"F1130 19:00:00.000000 7 shape_util.cc:1] Check failed: has_layout() f32[11]\n")
        return -signal.SIGABRT

    text = f"{first_line}\n\nENTRY %e (x: f32[4]) -> f32[4] {{\n  ROOT %x = f32[4]{{0}} parameter(0)\n}}\n"
    with pytest.raises(CompileError) as caught:
        execute_hlo_text(text, [np.zeros(4, np.float32)], start=aborts)
    assert expected in caught.value.message


@pytest.fixture
def dump(fixtures: Path, tmp_path: Path) -> Path:
    """A copy of a real GPU dump in which a pass went wrong."""
    copy = tmp_path / "dump"
    shutil.copytree(fixtures / "dumps" / "gpu_narrow", copy)
    return copy


def plant(dump: Path, fragment: str) -> str:
    """Makes the stage whose file name holds `fragment`, and all after it, subtract where they added."""
    files = sorted(dump.glob("module_*.0*.txt"))
    at = next(i for i, path in enumerate(files) if fragment in path.name)
    later = [*files[at:], *dump.glob("*gpu_after_optimizations.txt")]
    for path in later:
        path.write_text(path.read_text().replace(" add(", " subtract(", 1))
    return files[at].name


def test_a_sound_dump(capsys: pytest.CaptureFixture[str], dump: Path, tmp_path: Path) -> None:
    code, out, _ = hloscope(capsys, "replay", dump, "--json", "--workers", 1)
    found = json.loads(out)
    assert code == 0 and found["first_difference"] is None
    assert all(set(row) >= KEYS for row in found["stages"])
    assert [row["index"] for row in found["stages"]] == list(range(len(found["stages"])))
    assert list((tmp_path / "cache" / "hloscope" / "replay").glob("*.json"))
    code, out, _ = hloscope(capsys, "replay", dump, "--workers", 1)
    assert code == 0 and "stages were evaluated and agree" in out


def test_a_fault_is_shown_with_what_the_stage_changed(capsys: pytest.CaptureFixture[str], dump: Path) -> None:
    name = plant(dump, ".0004.")
    code, out, _ = hloscope(capsys, "replay", dump, "--json", "--workers", 1)
    found = json.loads(out)
    assert code == 1
    first = found["stages"][found["first_difference"]]
    assert first["file"] == name and first["status"] == "differs" and first["worst_index"] is not None
    code, out, _ = hloscope(capsys, "replay", dump, "--workers", 1)
    assert code == 1
    assert f"stage {first['index']} is the first that differs" in out
    assert "subtract(" in out.split("is the first that differs")[1]


def test_what_cannot_be_replayed(capsys: pytest.CaptureFixture[str], dump: Path, tmp_path: Path) -> None:
    code, _, err = hloscope(capsys, "replay", dump, "--from", 5, "--to", 2)
    assert code == 2 and err.startswith("hloscope: ") and "comes before" in err
    code, _, err = hloscope(capsys, "replay", dump, "--args", tmp_path / "none.npz")
    assert code == 2 and "Traceback" not in err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert hloscope(capsys, "replay", empty)[0] == 2


def test_run_of_a_program_for_two_devices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "two.hlo"
    path.write_text(
        """HloModule m, num_partitions=2

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY e {
  x = f32[2] parameter(0), sharding={devices=[2]<=[2]}
  g = f32[2] all-reduce(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=sum
  n = f32[2] negate(x)
  ROOT t = (f32[2], f32[2]) tuple(g, n)
}
"""
    )
    code, out, err = hloscope(capsys, "run", path, "--json")
    outputs = json.loads(out)["outputs"]
    assert code == 0 and [one["shape"] for one in outputs] == [[2], [2, 2]]
    assert "result 1 is not the same on all devices" in err


WHOLE = """HloModule m, num_partitions=2

ENTRY e {
  x = f32[4] parameter(0), sharding={devices=[2]<=[2]}
  c = f32[4] constant({1, 2, 3, 4})
  n = f32[4] multiply(x, c)
  r = f32[4] reverse(x), dimensions={0}
  ROOT t = (f32[4], f32[4]) tuple(n, r), sharding={{devices=[2]<=[2]}, {replicated}}
}
"""
PARTITIONED = """HloModule m, num_partitions=2

ENTRY e {
  x = f32[2] parameter(0), sharding={devices=[2]<=[2]}
  c = f32[4] constant({...})
  p = u32[] partition-id()
  two = u32[] constant(2)
  at = u32[] multiply(p, two)
  mine = f32[2] dynamic-slice(c, at), dynamic_slice_sizes={2}
  n = f32[2] multiply(x, mine)
  g = f32[4] all-gather(x), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  r = f32[4] reverse(g), dimensions={0}
  ROOT t = (f32[2], f32[4]) tuple(n, r)
}
"""


def test_run_takes_and_gives_whole_arrays_at_every_stage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Before and after partitioning; also where only the values tell how a result is spread; constants from before."""
    dump = tmp_path / "dump"
    dump.mkdir()
    silent = WHOLE.replace(", sharding={{devices=[2]<=[2]}, {replicated}}", "")
    for name, first in (("said", WHOLE), ("unsaid", silent)):
        (dump / f"module_0001.{name}.before_optimizations.txt").write_text(first)
        (dump / f"module_0001.{name}.cpu_after_optimizations.txt").write_text(PARTITIONED)
        outputs: list[list[list[float]]] = []
        for stage in (0, -1):
            to = tmp_path / f"{name}{stage}.npz"
            code, out, err = hloscope(
                capsys, "run", dump, "--module", f"^{name}$", "--stage", stage, "-o", to, "--json"
            )
            assert code == 0, err
            assert [one["shape"] for one in json.loads(out)["outputs"]] == [[4], [4]]
            arrays = npz.read(to)
            assert [list(x.shape) for x in arrays.inputs] == [[4]]
            outputs.append([x.tolist() for x in arrays.outputs])
        assert outputs[0] == outputs[1]
    other = tmp_path / "other.npz"
    npz.write(other, inputs=[npz.read(tmp_path / "said0.npz").inputs[0][:2]])
    code, _, err = hloscope(capsys, "run", dump, "--module", "^said$", "--stage", -1, "--args", other)
    assert code == 2 and f"{other}: argument 0 for parameter x is f32[2], expected f32[4]" in err


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["dp_train", "tp_mlp", "shard_map_ppermute"])
def test_run_of_a_partitioned_program_meets_its_oracle(
    capsys: pytest.CaptureFixture[str], corpus: Path, tmp_path: Path, name: str
) -> None:
    folder = corpus / "cpu" / name
    oracle = folder / "oracle.npz"
    (first,) = (folder / "dump").glob("*.before_optimizations.txt")
    rules = rules_for(load_module(first.read_text()))
    for stage in (0, 9, -1):
        to = tmp_path / f"{stage}.npz"
        code, _, err = hloscope(capsys, "run", folder / "dump", "--stage", stage, "--args", oracle, "-o", to)
        assert code == 0, err
        assert all(one.within for one in compare_all(npz.read(oracle).outputs, npz.read(to).outputs, rules))


def test_a_constant_that_the_text_leaves_out_comes_from_the_proto(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    whole = (
        "HloModule m\nENTRY e {\n  x = f32[3] parameter(0)\n  c = f32[3] constant({1, 20, 300})\n"
        "  ROOT r = f32[3] multiply(x, c)\n}\n"
    )
    dump = tmp_path / "dump"
    dump.mkdir()
    for name in ("before_optimizations", "cpu_after_optimizations"):
        (dump / f"module_0001.m.{name}.txt").write_text(whole.replace("{1, 20, 300}", "{...}"))
    (tmp_path / "source").write_text(whole)
    script = (
        "import sys; from jaxlib import _hlo; text = open(sys.argv[1]).read(); "
        "open(sys.argv[2], 'wb').write(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())"
    )
    proto = dump / "module_0001.m.before_optimizations.hlo.pb"
    subprocess.run([sys.executable, "-c", script, tmp_path / "source", proto], check=True, timeout=120)
    given = tmp_path / "in.npz"
    npz.write(given, inputs=[np.ones(3, np.float32)])
    out = tmp_path / "out.npz"
    code, _, err = hloscope(capsys, "run", dump, "--args", given, "-o", out)
    assert (code, err) == (0, "") and npz.read(out).outputs[0].tolist() == [1, 20, 300]
    code, _, err = hloscope(capsys, "run", dump, "--stage", -1, "--args", given, "-o", out, "--force")
    assert (code, err) == (0, "") and npz.read(out).outputs[0].tolist() == [1, 20, 300]
    code, text, err = hloscope(capsys, "replay", dump, "--workers", 1, "--json")
    assert code == 0 and err == "" and json.loads(text)["notes"] == []


def test_what_is_too_large_or_endless_is_said_before_it_hurts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    huge = tmp_path / "huge.hlo"
    huge.write_text(
        "HloModule m\nENTRY e {\n  x = f32[4000000,4000000] parameter(0)\n  ROOT r = f32[] constant(1)\n}\n"
    )
    code, _, err = hloscope(capsys, "run", huge)
    assert code == 2 and err.startswith(f"hloscope: {huge}: the inputs take about 64.0 TB") and "--regions" in err
    wide = tmp_path / "wide.hlo"
    wide.write_text(
        "HloModule m\nENTRY e {\n  x = f32[4000000] parameter(0)\n"
        "  y = f32[4000000,4000000] broadcast(x), dimensions={0}\n"
        "  ROOT z = f32[4000000,4000000] add(y, y)\n}\n"
    )
    code, _, err = hloscope(capsys, "run", wide)
    assert code == 2 and "evaluating this takes about 64.0 TB (most of it at %z)" in err and "--regions" in err
    endless = tmp_path / "endless.hlo"
    endless.write_text(
        "HloModule m\nbody {\n  ROOT b = s32[] parameter(0)\n}\ncond {\n  c = s32[] parameter(0)\n"
        "  ROOT t = pred[] constant(true)\n}\nENTRY e {\n  x = s32[] parameter(0)\n"
        "  ROOT w = s32[] while(x), condition=cond, body=body\n}\n"
    )
    code, _, err = hloscope(capsys, "run", endless, "--step-limit", 1000)
    assert code == 2 and err.startswith(f"hloscope: {endless}:11:8: %w (while): gave up after 1,000 iterations")
