"""ls, passes, diff, why, sql and import as a user calls them: output, JSON keys, exit codes, and bad input."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hloscope.core.cli import main
from hloscope.core.ledger import LedgerWriter
from hloscope.core.views.run import load

BACKENDS = ("cpu", "gpu", "tpu")


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Hloscope = Callable[..., Outcome]


@pytest.fixture
def hloscope(capsys: pytest.CaptureFixture[str]) -> Hloscope:
    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main.run([str(one) for one in arguments])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run


@pytest.fixture(params=BACKENDS)
def dump(request: pytest.FixtureRequest, fixtures: Path) -> Path:
    return fixtures / "dumps" / str(request.param)


def child(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hloscope.core.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


# ---------------------------------------------------------------- passes
def test_passes_has_the_promised_keys(hloscope: Hloscope, dump: Path) -> None:
    answer = hloscope("passes", dump, "--json").json
    assert answer["source"]["path"] == str(dump)
    assert answer["source"]["target"] == dump.name
    promised = {
        "index", "pipeline", "pass", "changed", "instructions_before", "instructions_after", "ns", "file",
        "unannounced",
    }  # fmt: skip
    assert all(promised <= row.keys() for row in answer["rows"])
    assert [row["index"] for row in answer["rows"]] == list(range(len(answer["rows"])))


def test_passes_filters_sorts_and_limits(hloscope: Hloscope, dump: Path) -> None:
    answer = hloscope("passes", dump, "--json", "--filter", "changed", "--sort", "-delta", "--limit", "3").json
    rows = answer["rows"]
    assert len(rows) == 3 and answer["truncated"]
    assert all(row["changed"] for row in rows)
    assert [row["delta"] for row in rows] == sorted((row["delta"] for row in rows), reverse=True)
    lines = hloscope("passes", dump, "--jsonl").out.splitlines()
    assert len(lines) == len(hloscope("passes", dump, "--json").json["rows"])


def test_the_table_names_every_pass(hloscope: Hloscope, dump: Path) -> None:
    out = hloscope("passes", dump).out.splitlines()
    assert out[0].split()[:4] == ["index", "pipeline", "pass", "changed"]
    assert len(out) == 1 + len(load(str(dump)))


# ---------------------------------------------------------------- ls
def test_ls_tells_modules_apart(hloscope: Hloscope, fixtures: Path) -> None:
    rows = hloscope("ls", fixtures / "dumps/cpu_multi", "--json").json["rows"]
    promised = {"index", "name", "instructions", "stages", "files", "bytes", "same_as", "differs_by"}
    assert all(promised <= row.keys() for row in rows)
    again = [row for row in rows if row["differs_by"]]
    assert any("parameter 0" in row["differs_by"] for row in again)


def test_the_index_of_ls_is_what_module_takes(hloscope: Hloscope, fixtures: Path) -> None:
    folder = fixtures / "dumps/cpu_multi"
    for row in hloscope("ls", folder, "--json", "--filter", "stages > 0").json["rows"]:
        outcome = hloscope("passes", folder, "--module", row["index"], "--json")
        assert outcome.json["source"]["module"] == row["name"]
        assert outcome.err == ""


def test_what_was_taken_is_said_on_stderr(hloscope: Hloscope, fixtures: Path) -> None:
    outcome = hloscope("passes", fixtures / "dumps/cpu_multi", "--json")
    assert "took the largest, number 0, " in outcome.err and "--module" in outcome.err
    assert outcome.json["rows"]
    several = hloscope("passes", fixtures / "dumps/cpu_multi", "--module", "jit", "--json")
    number = int(several.err.partition("took number ")[2].partition(",")[0])
    again = hloscope("passes", fixtures / "dumps/cpu_multi", "--module", number, "--json")
    assert again.json == several.json and again.err == ""


# ---------------------------------------------------------------- import and sql
def test_import_then_ask(hloscope: Hloscope, dump: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    report = hloscope("import", dump, "-o", ledger, "--json").json
    assert {"files", "modules", "stages", "events", "not_understood"} <= report.keys()
    assert report["files"] == sum(1 for path in dump.rglob("*") if path.is_file())
    passes = hloscope("passes", ledger, "--json").json["rows"]
    assert passes == hloscope("passes", dump, "--json").json["rows"]
    counted = hloscope("sql", ledger, "select count(*) n from passes where changed", "--json").json["rows"]
    assert counted == [{"n": sum(1 for row in passes if row["changed"])}]
    first, again = (hloscope("ls", path, "--json").json["rows"][0]["stages"] for path in (dump, ledger))
    assert first == again == report["stages"] or report["modules"] > 1
    opened = [hloscope("open", path, "--json").json for path in (dump, ledger)]
    assert opened[0]["stages"] == opened[1]["stages"] == first


def test_import_does_not_overwrite(hloscope: Hloscope, dump: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    ledger.write_text("precious")
    outcome = hloscope("import", dump, "-o", ledger)
    assert outcome.code == 2 and "--force" in outcome.err
    assert ledger.read_text() == "precious"
    assert hloscope("import", dump, "-o", ledger, "--force").code == 0
    assert hloscope("ls", ledger).code == 0


def test_import_of_what_is_no_dump_leaves_no_file(hloscope: Hloscope, tmp_path: Path, dump: Path) -> None:
    (tmp_path / "empty").mkdir()
    file = next(dump.glob("*before_optimizations.txt"))
    for source in (tmp_path / "empty", tmp_path / "missing", file):
        outcome = hloscope("import", source, "-o", tmp_path / "out.ledger")
        assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]


@pytest.mark.parametrize("query", ["delete from pass_rows", "select nothing from passes", "", "select 1; select 2"])
def test_sql_that_cannot_be_asked(hloscope: Hloscope, fixtures: Path, tmp_path: Path, query: str) -> None:
    ledger = tmp_path / "run.ledger"
    hloscope("import", fixtures / "dumps/cpu_snapshot", "-o", ledger)
    before = ledger.read_bytes()
    outcome = hloscope("sql", ledger, query)
    assert outcome.code == 2 and outcome.err.startswith("hloscope: ") and outcome.err.count("\n") == 1
    assert ledger.read_bytes() == before


def test_sql_columns_of_one_name_are_kept_apart(hloscope: Hloscope, fixtures: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    hloscope("import", fixtures / "dumps/cpu_snapshot", "-o", ledger)
    rows = hloscope("sql", ledger, "select 1 a, 2 a, x'00ff' b", "--json").json["rows"]
    assert rows == [{"a": 1, "a_2": 2, "b": "<2 bytes>"}]


def test_rows_of_a_query_that_never_ends(fixtures: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    child("import", fixtures / "dumps/cpu_snapshot", "-o", ledger)
    query = "with recursive t(x) as (select 1 union all select x+1 from t) select x from t"
    command = [sys.executable, "-m", "hloscope.core.cli.main", "sql", str(ledger), query]
    for option, first in ((["--jsonl"], ['{"x": 1}', '{"x": 2}']), ([], ["x", "1"])):
        with subprocess.Popen(
            [*command, *option], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            assert [process.stdout.readline().strip() for _ in range(2)] == first
            process.stdout.close()
            assert process.wait(timeout=30) == 141 and process.stderr.read() == ""


def test_sql_on_a_dump_says_which_module_is_asked(hloscope: Hloscope, fixtures: Path) -> None:
    outcome = hloscope("sql", fixtures / "dumps/cpu_multi", "select count(*) n from modules", "--json")
    assert outcome.json["rows"] == [{"n": 1}] and "took the largest" in outcome.err


# ---------------------------------------------------------------- diff
def test_diff_of_a_stage(hloscope: Hloscope, dump: Path) -> None:
    rows = hloscope("passes", dump, "--json").json["rows"]
    changed = next(row for row in rows if row["changed"] and row["delta"])
    outcome = hloscope("diff", dump, "--stage", changed["index"], "--json")
    assert outcome.code == 1
    answer = outcome.json
    assert {"added", "removed", "modified", "renamed"} <= answer.keys()
    assert len(answer["added"]) - len(answer["removed"]) == changed["delta"]
    assert all({"name", "before", "after", "what"} <= one.keys() for one in answer["modified"])
    text = hloscope("diff", dump, "--stage", changed["index"]).out
    assert f"[{changed['index']}]" in text and changed["pass"] in text
    assert "\x1b" not in text


def test_diff_of_an_unchanged_stage_exits_0(hloscope: Hloscope, dump: Path) -> None:
    rows = hloscope("passes", dump, "--json").json["rows"]
    same = next(row["index"] for row in rows[1:] if row["changed"] is False)
    outcome = hloscope("diff", dump, "--stage", same)
    assert outcome.code == 0 and "no difference" in outcome.out


def test_diff_says_where_a_row_is_only_the_end_of_its_pass(hloscope: Hloscope, fixtures: Path) -> None:
    dump = fixtures / "dumps/tpu"
    (row,) = hloscope("passes", dump, "--filter", "pass=copy-insertion", "--json").json["rows"]
    steps = hloscope("passes", dump, "--filter", "pipeline=copy-insertion", "--json").json["rows"]
    at, first = int(row["index"]), int(steps[0]["index"])
    said = hloscope("diff", dump, "--stage", at).err
    assert (
        f"rows {first} to {at - 1} are steps of copy-insertion; all that it changed: --from {first - 1} --to {at}"
        in said
    )
    whole = hloscope("diff", dump, "--from", first - 1, "--to", at, "--json").json
    assert len(whole["added"]) - len(whole["removed"]) == row["delta"] + sum(step["delta"] for step in steps)
    assert "steps" not in hloscope("diff", dump, "--stage", first).err


def test_diff_from_to_and_of_the_whole(hloscope: Hloscope, dump: Path) -> None:
    whole = hloscope("diff", dump, "--json").json
    last = len(load(str(dump))) - 1
    assert (whole["from"], whole["to"]) == (0, last)
    assert hloscope("diff", dump, "--from", 0, "--to", last, "--json").json["added"] == whole["added"]
    assert hloscope("diff", dump, "--from", 3, "--to", 3).code == 0


def test_diff_of_two(hloscope: Hloscope, fixtures: Path, tmp_path: Path) -> None:
    first = fixtures / "dumps/cpu"
    file = next(first.glob("*before_optimizations.txt"))
    assert hloscope("diff", first, first).code == 0
    assert hloscope("diff", file, file).code == 0
    changed = tmp_path / "b.txt"
    changed.write_text(file.read_text().replace("transpose(", "copy(", 1))
    outcome = hloscope("diff", file, changed, "--json")
    assert outcome.code == 1
    # The stages of a dump against one file: the first stage is that file.
    assert hloscope("diff", first, file, "--from", 0).code == 0
    assert hloscope("diff", first, fixtures / "dumps/gpu_narrow").code == 1


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ([(', metadata={op_name="neg"}', "")], "metadata alone differs"),
        ([('op_name="neg"', 'op_name="pos"'), ("b =", "c =")], "metadata and names alone differ"),
        ([('op_name="neg"', 'op_name="pos"'), ("HloModule m", "HloModule m, num_partitions=2")],
         "what is modified differs by metadata alone"),
        ([("negate(", "abs(")], None),
        ([("HloModule m", "HloModule m, num_partitions=2")], None),
    ],
)  # fmt: skip
def test_diff_says_that_metadata_alone_differs(
    hloscope: Hloscope, tmp_path: Path, edits: list[tuple[str, str]], said: str | None
) -> None:
    a, b = tmp_path / "a.hlo", tmp_path / "b.hlo"
    text = 'HloModule m\n\nENTRY e {\n  a = f32[] parameter(0)\n  ROOT b = f32[] negate(a), metadata={op_name="neg"}\n}'
    a.write_text(text)
    for old, new in edits:
        text = text.replace(old, new)
    b.write_text(text)
    lines = [line for line in hloscope("diff", a, b).out.split("\n") if "metadata" in line]
    assert [line for line in lines if not line.startswith((" ", "/"))] == ([said] if said else [])
    assert hloscope("diff", a, b, "--json").json["metadata_alone"] is (said is not None)


def test_what_is_cut_off_is_not_called_equal(hloscope: Hloscope, fixtures: Path, tmp_path: Path) -> None:
    whole = "// by hand\nHloModule m\n\nENTRY e {\n  ROOT a = f32[] parameter(0)\n}\n"
    (tmp_path / "whole.hlo").write_text(whole)
    (tmp_path / "cut.hlo").write_text(whole[:-12])
    assert hloscope("diff", tmp_path / "whole.hlo", tmp_path / "whole.hlo")[::2] == (0, "")
    for arguments in (["cut.hlo"], ["cut.hlo", "cut.hlo"], ["whole.hlo", "cut.hlo"]):
        answer = hloscope("diff", *(tmp_path / one for one in arguments))
        assert answer.code == 2 and answer.out == "" and answer.err.count("\n") == 1
        assert "cut.hlo:5: the text breaks off inside the ENTRY computation" in answer.err
    (tmp_path / "bare.hlo").write_text("e {\n  ROOT a = f32[2] constant({1, 2})\n}\n")
    assert hloscope("diff", tmp_path / "bare.hlo", tmp_path / "bare.hlo")[::2] == (0, "")
    (tmp_path / "bare.hlo").write_text("e {\n  a = f32[] parameter(0)\n  ROOT b = f32[] neg")
    answer = hloscope("diff", tmp_path / "bare.hlo")
    assert answer.code == 2 and answer.err.count("\n") == 1 and "a brace is not closed" in answer.err
    (row,) = hloscope("ls", tmp_path / "cut.hlo", "--json").json["rows"]
    assert "breaks off" in row["note"]
    (row,) = hloscope("ls", tmp_path / "whole.hlo", "--json").json["rows"]
    assert row["note"] is None


def test_a_stage_that_cannot_be_read_is_not_called_equal(hloscope: Hloscope, fixtures: Path, tmp_path: Path) -> None:
    dump, ledger = tmp_path / "dump", tmp_path / "run.ledger"
    shutil.copytree(fixtures / "dumps/cpu", dump)
    rows = hloscope("passes", dump, "--json", "--filter", "changed").json["rows"]
    stage = int(rows[0]["index"])
    (dump / str(rows[0]["file"])).write_bytes(bytes(range(256)))
    assert hloscope("import", dump, "-o", ledger).code == 0
    for path in (dump, ledger):
        answer = hloscope("diff", path, "--stage", stage)
        assert answer.code == 2 and answer.out == "" and "it cannot be compared" in answer.err
        assert hloscope("diff", path, "--from", stage - 1, "--to", stage + 1).code == 1


@pytest.mark.parametrize(
    ("cut", "arguments"),
    [
        ("after_optimizations", ["buffers", "D"]),
        ("after_optimizations", ["buffers", "D", "--what-if", "donate:0", "--prove"]),
        ("after_optimizations", ["run", "D", "--stage", "-1"]),
        ("before_optimizations", ["run", "D", "--stage", "0"]),
        ("before_optimizations", ["replay", "D"]),
        ("before_optimizations", ["compile", "D", "-o", "O"]),
        ("before_optimizations", ["compile", "D", "--engine", "xla", "-o", "O"]),
        ("0001.fusion.after_fusion.before_dce", ["fusion", "D"]),
    ],
)
def test_a_stage_that_breaks_off_is_named_with_file_and_place(
    hloscope: Hloscope, tmp_path: Path, cut: str, arguments: list[str]
) -> None:
    text = "HloModule f, is_scheduled=true\n\nENTRY e {\n  a = f32[4] parameter(0)\n  ROOT b = f32[4] negate(a)\n}\n"
    names = ("before_optimizations", "0000.fusion.after_pipeline-start.before_fusion",
             "0001.fusion.after_fusion.before_dce", "cpu_after_optimizations")  # fmt: skip
    dump = tmp_path / "dump"
    dump.mkdir()
    for name in names:
        (dump / f"module_0001.f.{name}.txt").write_text(text[:-9] if name.endswith(cut) else text)
    given = {"D": str(dump), "O": str(tmp_path / "run.ledger")}
    answer = hloscope(*(given.get(one, one) for one in arguments))
    (file,) = (name for name in names if name.endswith(cut))
    last = answer.err.splitlines()[-1]
    assert answer.code == 2 and last.startswith(f"hloscope: {dump}/module_0001.f.{file}.txt:5:22: "), answer.err


@pytest.mark.parametrize("arguments", [["--stage", "999"], ["--stage", "1", "--from", "0"], ["--stage", "x"]])
def test_diff_of_stages_that_are_not_there(hloscope: Hloscope, dump: Path, arguments: list[str]) -> None:
    outcome = hloscope("diff", dump, *arguments)
    assert outcome.code == 2 and outcome.err.count("\n") == 1


# ---------------------------------------------------------------- why
def test_why_has_the_promised_keys(hloscope: Hloscope, dump: Path) -> None:
    with load(str(dump)) as run:
        name = next(run.search("", -1)).name
    answer = hloscope("why", dump, name, "--json").json
    promised = {
        "instruction", "source", "shape", "layout", "bytes", "fusion", "layout_chain", "buffer", "passes",
    }  # fmt: skip
    assert promised <= answer.keys()
    assert name in hloscope("why", dump, f"%{name}").out


def test_why_of_a_copy_gives_the_cause_that_copies_gives(hloscope: Hloscope, fixtures: Path) -> None:
    told = hloscope("copies", fixtures / "dumps/cpu", "--json").json["rows"][0]
    answer = hloscope("why", fixtures / "dumps/cpu", told["copy"], "--json").json
    assert answer["copy"] == {"operand": told["operand"], "cause": told["cause"]}
    assert told["cause"]["sentence"] in hloscope("why", fixtures / "dumps/cpu", told["copy"]).out
    assert hloscope("why", fixtures / "dumps/cpu", told["operand"], "--json").json["copy"] is None


def test_why_of_two_unknown_names_is_one_line(hloscope: Hloscope, dump: Path) -> None:
    outcome = hloscope("why", dump, "no_such_a", "no_such_b")
    assert outcome.code == 2 and "no_such_a" in outcome.err


def test_why_of_an_unknown_name(hloscope: Hloscope, dump: Path) -> None:
    assert hloscope("why", dump, "no_such_instruction").code == 2


# ---------------------------------------------------------------- bad input, for every command that takes a PATH
@pytest.mark.parametrize("command", [["passes"], ["diff"], ["ls"], ["why", "x"], ["sql", "select 1"]])
@pytest.mark.parametrize("what", ["missing", "empty", "no HLO", "binary", "truncated ledger", "rubbish text"])
def test_bad_input_is_one_line(hloscope: Hloscope, tmp_path: Path, command: list[str], what: str) -> None:
    path = tmp_path / "in.txt"
    if what in ("empty", "no HLO"):
        path.mkdir()
        if what == "no HLO":
            (path / "notes.md").write_text("nothing here")
    elif what == "binary":
        path.write_bytes(os.urandom(4096).replace(b"HloModule", b"") + b"\0\xff")
    elif what == "truncated ledger":
        path.write_bytes(b"SQLite format 3\0" + b"\0" * 20)
    elif what == "rubbish text":
        path.write_text("to be or not to be\n" * 100)
    outcome = hloscope(command[0], path, *command[1:])
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith(f"hloscope: {path}") and outcome.err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error(fixtures: Path) -> None:
    command = f"{sys.executable} -m hloscope.core.cli.main diff {fixtures / 'dumps/tpu'} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr == "" and done.stdout.count("\n") == 1


SMALL = """HloModule m

ENTRY e {
  p = f32[8]{0} parameter(0)
  a = f32[8]{0} negate(p)
  ROOT b = f32[8]{0} exponential(a)
}
"""


def test_a_module_that_does_not_fit_into_memory(
    hloscope: Hloscope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs a graph says so in one line; what needs none answers."""
    file = tmp_path / "m.hlo"
    file.write_text(SMALL)
    decided = hloscope("why", file, "a", "--json").json
    assert decided["fusion"] and not any("not worked out" in note for note in decided["notes"])
    monkeypatch.setattr("hloscope.core.text.reader._WORTH_ASKING", 0)
    assert hloscope("verify", file).code == 0
    monkeypatch.setattr("hloscope.core.text.reader.available_memory", lambda: 2000)
    for command in ("fusion", "copies", "buffers", "verify", "parse", "run"):
        outcome = hloscope(command, file)
        assert outcome.code == 2 and outcome.out == "" and outcome.err.count("\n") == 1, command
        assert "3 instructions take" in outcome.err and "2,000 bytes are free" in outcome.err
    monkeypatch.setattr("hloscope.core.views.why.MAX_DECIDED_BYTES", 10)
    monkeypatch.setattr("hloscope.core.views.copies.MAX_CHAIN_BYTES", 10)
    facts = hloscope("why", file, "a", "--json").json
    assert (facts["operands"], facts["users"], facts["fusion"]) == (["p"], ["b"], None)
    assert any("hloscope fusion does" in note for note in facts["notes"])


def test_memory_that_ends_is_one_line(hloscope: Hloscope, fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("hloscope.core.views.why.why", none_left)
    outcome = hloscope("why", fixtures / "dumps/cpu", "x")
    assert outcome.code == 2 and outcome.err.count("\n") == 1 and "out of memory" in outcome.err


def test_the_limits_of_a_process_count() -> None:
    program = "from hloscope.core.memory import available_memory as free; print(free())"
    limited = f"ulimit -v 1000000; exec {sys.executable} -c '{program}'"
    said = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=True, timeout=60).stdout
    assert 0 < int(said) < 1_024_000_000


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Path:
    """A directory with almost no room, where this machine lets us have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("cannot mount a small file system here")
    return folder


def test_a_full_disk(fixtures: Path, tiny_disk: Path) -> None:
    try:
        kept = tiny_disk / "kept.txt"
        kept.write_text("precious")
        done = child("import", fixtures / "dumps/tpu", "-o", tiny_disk / "run.ledger")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
        assert kept.read_text() == "precious"
    finally:
        subprocess.run(["umount", str(tiny_disk)], check=False)


@contextmanager
def no_file_above(size: int) -> Generator[None]:
    """Files of this process and its children end at `size` bytes, as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


DUMPS_AND_FAILS = """
import os, re, shutil, sys
folder = re.search("xla_dump_to=([^ ]+)", os.environ["XLA_FLAGS"])[1]
shutil.copytree(sys.argv[1], folder, dirs_exist_ok=True)
sys.exit(3)
"""


@pytest.mark.parametrize("command", ["import", "opt", "compile", "capture"])
def test_a_full_disk_without_root(
    hloscope: Hloscope, fixtures: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump, ledger = fixtures / "dumps/cpu_snapshot", tmp_path / "run.ledger"
    hlo = next(dump.glob("*before_optimizations.txt"))
    ledger.write_bytes(old := make_ledger(tmp_path / "old.ledger"))
    program = [sys.executable, "-c", DUMPS_AND_FAILS, str(dump)]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with no_file_above(24_000):
        done = {
            "import": lambda: hloscope("import", dump, "-o", ledger, "--force"),
            "opt": lambda: hloscope(
                "opt", "--pipeline", "cpu", hlo, "-o", tmp_path / "o", "--ledger", ledger, "--force"
            ),
            "compile": lambda: hloscope("compile", hlo, "-o", ledger, "--force"),
            "capture": lambda: hloscope("capture", "-o", ledger, "--force", "--", *program),
        }[command]()
    assert (done.code, done.out) == (2, "")
    assert "run.ledger: cannot " in done.err and done.err.count("\n") == 1, done.err
    assert ledger.read_bytes() == old
    kept = sorted(one.name for one in tmp_path.iterdir() if one.name not in ("run.ledger", "old.ledger"))
    if command == "capture":  # what the program did is not lost
        assert len(kept) == 1 and str(tmp_path / kept[0]) in done.err
        assert load(str(tmp_path / kept[0])).source.module
    else:
        assert kept == []


def make_ledger(path: Path) -> bytes:
    with LedgerWriter(path) as writer:
        writer.begin_module("m")
    return path.read_bytes()


def test_a_short_write_of_the_output_is_an_error(fixtures: Path, tmp_path: Path) -> None:
    hlo = max((fixtures / "dumps/cpu").glob("*before_optimizations.txt"))
    script = f"ulimit -f 4; exec {sys.executable} -m hloscope.core.cli.main parse {hlo} >{tmp_path / 'out'}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert (tmp_path / "out").stat().st_size == 4096 < hlo.stat().st_size
    assert (done.returncode, done.stderr) == (2, "hloscope: standard output: File too large\n")


SLOW_IMPORT = """
import sys, time
from hloscope.core.dumps import directory
original = directory.Dump.read_file
def slow(self, file, limit=None):
    print("reading", flush=True)
    time.sleep(0.05)
    return original(self, file, limit)
directory.Dump.read_file = slow
from hloscope.core.cli.main import main
main()
"""


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_in_the_middle_of_an_import(fixtures: Path, tmp_path: Path, number: int, word: str) -> None:
    ledger = tmp_path / "run.ledger"
    source = fixtures / "dumps/gpu"
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_IMPORT, "import", str(source), "-o", str(ledger)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(12):
        process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == f"hloscope: {word}\n"
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    with load(str(ledger)) as run:
        assert any("did not finish" in note for note in run.notes)
        assert 0 < len(run) < len(load(str(source)))
        assert run.stage_text(0)


def test_ctrl_c_before_there_is_a_command(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    done = child("ls", "x", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "hloscope: interrupted\n")


def test_a_killed_import_can_be_read(fixtures: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_IMPORT, "import", str(fixtures / "dumps/cpu_multi"), "-o", str(ledger)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(14):
        process.stdout.readline()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while not ledger.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with load(str(ledger)) as run:
        assert run.passes and run.stage_text(0)
        assert any("did not finish" in note for note in run.notes)
