"""``hloscope buffers`` as a user calls it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hloscope.core.cli import main

LOOSE = """HloModule loose
ENTRY e {
  a = f32[64] parameter(0)
  b = f32[64] negate(a)
  c = f32[64] reverse(b), dimensions={0}
  ROOT t = (f32[64], f32[64]) tuple(c, c)
}
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main.run([str(one) for one in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("backend", ["cpu", "gpu", "tpu"])
def test_the_promised_keys(capsys: pytest.CaptureFixture[str], fixtures: Path, backend: str) -> None:
    found = answer(capsys, "buffers", fixtures / "dumps" / backend)
    assert found["origin"] == "xla" and found["hazards"] is None
    assert found["peak_bytes"] <= found["total_bytes"] == sum(one["size"] for one in found["allocations"])
    one = found["allocations"][0]
    assert {"index", "size", "color", "kind", "values"} <= set(one)
    assert {"name", "shape_index", "size", "offset", "live"} <= set(one["values"][0])
    assert all(row["reason"] for row in found["largest"]) and len(found["largest"]) <= 10


def test_a_plain_file_is_scheduled_and_assigned(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(LOOSE)
    found = answer(capsys, "buffers", path, "--hazards")
    assert found["origin"] == "core" and found["hazards"] == [] and "not scheduled" in found["notes"][0]
    assert {one["code"] for one in found["refusals"]} <= {"live_ranges_overlap", "read_only", "too_small", "copy_of_it",
                                                          "not_shared", "output_of_other_size"}  # fmt: skip


def test_hazards_end_in_a_no(capsys: pytest.CaptureFixture[str], fixtures: Path) -> None:
    code, out, _ = run(capsys, "buffers", fixtures / "buffers" / "cpu_shifted_update", "--hazards")
    assert code == 1 and "error: reads_other_positions: bitcast_dynamic-update-slice_fusion" in out
    code, out, _ = run(capsys, "buffers", fixtures / "buffers" / "cpu_while_rotate", "--hazards")
    assert code == 0 and "no hazards" in out


def test_sharing_and_what_if(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(LOOSE)
    found = answer(capsys, "buffers", path, "--can-share", "a", "b", "--what-if", "drop:b")
    assert found["can_share"]["code"] == "read_only" and not found["can_share"]["could"]
    assert found["what_if"][0]["peak_after"] <= found["what_if"][0]["peak_before"] == found["peak_bytes"]


def test_reports_are_written_in_xla_s_format(
    capsys: pytest.CaptureFixture[str], fixtures: Path, tmp_path: Path
) -> None:
    dump = fixtures / "buffers" / "cpu_donated_sgd"
    code, _, err = run(capsys, "buffers", dump, "--reports", tmp_path / "out")
    assert code == 0, err
    real = next(dump.glob("*-memory-usage-report.txt"))
    assert (tmp_path / "out" / real.name).read_text() == real.read_text()
    assert len(list((tmp_path / "out").iterdir())) == 4


def test_an_out_of_memory_message_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "error.txt"
    path.write_text(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes.\nBufferAssignment OOM Debugging.\n"
        "Peak buffers:\n\tBuffer 1:\n\t\tSize: 4.0KiB\n\t\tXLA Label: dot\n\t\tShape: f32[1024]\n\t\t=====\n"
    )
    found = answer(capsys, "buffers", path)
    assert found["wanted"] == 4096 and found["buffers"][0]["label"] == "dot"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--can-share", "a", "nobody"], "no instruction 'nobody'"),
        (["--what-if", "grow:a"], "a change is one of"),
        (["--prove"], "--prove needs a change to prove"),
    ],
)
def test_faults_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], said: str
) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(LOOSE)
    code, _, err = run(capsys, "buffers", path, *arguments)
    assert code == 2 and said in err.splitlines()[-1] and err.splitlines()[-1].startswith("hloscope: ")


def test_values_as_a_table(capsys: pytest.CaptureFixture[str], fixtures: Path) -> None:
    dump = fixtures / "buffers" / "cpu_donated_sgd"
    whole = answer(capsys, "buffers", dump)
    count = sum(len(one["values"]) for one in whole["allocations"])
    rows = answer(capsys, "buffers", dump, "--values")["rows"]
    assert len(rows) == count and {"name", "size", "offset", "start", "end", "opcode"} <= set(rows[0])
    found = answer(capsys, "buffers", dump, "--sort", "-size", "--limit", "2")
    assert [one["size"] for one in found["rows"]] == sorted((one["size"] for one in rows), reverse=True)[:2]
    assert found["truncated"]
    kept = answer(capsys, "buffers", dump, "--filter", "kind=parameter and bytes>1")["rows"]
    assert kept == [one for one in rows if one["kind"] == "parameter" and one["size"] > 1]
    code, _, err = run(capsys, "buffers", dump, "--limit", "1", "--hazards")
    assert code == 2 and "--hazards answers with more than a table" in err


def test_the_report_of_another_module_is_left_aside(
    capsys: pytest.CaptureFixture[str], fixtures: Path, tmp_path: Path
) -> None:
    whole = answer(capsys, "buffers", fixtures / "dumps" / "cpu")
    for one in (fixtures / "dumps" / "cpu").iterdir():
        text = one.read_bytes()
        if one.name.endswith("-buffer-assignment.txt"):
            text = re.sub(rb"(value: <\d+ )", rb"\1foreign_", text)
        (tmp_path / one.name).write_bytes(text)
    found = answer(capsys, "buffers", tmp_path)
    assert found["origin"] == "core" and "is another module's" in found["notes"][0]
    assert found["peak_bytes"] == whole["peak_bytes"]
