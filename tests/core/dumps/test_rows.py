"""The pass timeline: what changed, who announced it, and how long it took."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope.core.cli import main
from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.importer import import_dump
from hloscope.core.dumps.passlog import PassRun, parse_log, parse_metadata, pass_runs
from hloscope.core.dumps.rows import TimelineRow, every_change_dumped, timeline
from hloscope.core.dumps.textproto import parse_textproto
from hloscope.core.views.run import load
from hloscope.core.views.summary import own_times

HloText = Callable[..., str]
WriteDump = Callable[[dict[str, str | bytes]], Path]


def rows_of(path: Path, module: str | None = None) -> list[TimelineRow]:
    with open_dump(path) as dump:
        chosen = dump.select(module)[0]
        return list(timeline(chosen, runs=pass_runs(dump).get(chosen, ())))


def unannounced(path: Path) -> dict[str, str]:
    return {f"{row.pipeline}/{row.pass_name}": row.unannounced for row in rows_of(path) if row.unannounced}


@pytest.mark.parametrize("case", ["cpu", "gpu", "tpu", "cpu_multi", "gpu_narrow"])
def test_rows_start_and_end_with_the_bookends(fixtures: Path, case: str) -> None:
    rows = rows_of(fixtures / "dumps" / case)
    assert rows[0].pass_name == "before_optimizations" and rows[0].changed is False and rows[0].pipeline == ""
    assert "after_optimizations" in [row.pass_name for row in rows[-2:]]
    assert [row.index for row in rows] == list(range(len(rows)))
    for before, after in zip(rows, rows[1:], strict=False):
        assert after.instructions_before == before.instructions_after
        assert after.changed or after.instructions_after == before.instructions_after


def test_with_every_pass_dumped_a_file_is_the_report_of_its_pass(fixtures: Path) -> None:
    rows = {row.pass_name: row for row in rows_of(fixtures / "dumps" / "cpu")}
    assert rows["algsimp"].changed and rows["algsimp"].announced and rows["algsimp"].unannounced is None
    assert rows["call-inliner"].instructions_before == 46 and rows["call-inliner"].instructions_after == 37


def test_changes_that_nobody_announced_have_a_range(fixtures: Path) -> None:
    tpu = unannounced(fixtures / "dumps" / "tpu")
    assert tpu["Phase_1_pre-layout_assignment_passes/pipeline-start"].startswith("bitcast_dtypes_expander … ")
    assert tpu["/after_codegen"] == "after_optimizations … after_codegen"


@pytest.mark.parametrize("case", ["cpu", "gpu"])
def test_that_a_module_was_scheduled_is_no_change_that_nobody_announced(fixtures: Path, case: str) -> None:
    changed = [row.pass_name for row in rows_of(fixtures / "dumps" / case) if row.changed and not row.announced]
    assert changed == ["pipeline-start"] and unannounced(fixtures / "dumps" / case) == {}


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ({"attributes": ', frontend_attributes={a="b"}'}, {}),
        ({"attributes": ", is_scheduled=true"}, {}),
        ({"attributes": ", num_partitions=2"}, {"q/pipeline-start": "b … q/pipeline-start"}),
        ({"layout": "{0:T(256)}"}, {"q/pipeline-start": "b … q/pipeline-start"}),
        ({"constant": "3"}, {"q/pipeline-start": "b … q/pipeline-start"}),
    ],
)
def test_only_what_changes_the_program_counts(
    write_dump: WriteDump, hlo: HloText, after: dict[str, str], found: dict[str, str]
) -> None:
    files: dict[str, str | bytes] = {
        "module_0001.f.before_optimizations.txt": hlo(),
        "module_0001.f.0000.p.after_pipeline-start.before_a.txt": hlo(),
        "module_0001.f.0001.p.after_a.before_b.txt": hlo(),
        "module_0001.f.0002.q.after_pipeline-start.before_c.txt": hlo(**after),
    }
    assert unannounced(write_dump(files)) == found


def test_the_order_of_lines_counts_once_both_are_scheduled(write_dump: WriteDump, hlo: HloText) -> None:
    plain, scheduled = hlo(), hlo(attributes=", is_scheduled=true")

    def turned(text: str) -> str:
        lines = text.split("\n")
        lines[3:5] = reversed(lines[3:5])
        return "\n".join(lines)

    def found(before: str, after: str) -> bool:
        files: dict[str, str | bytes] = {
            "module_0001.f.before_optimizations.txt": before,
            "module_0001.f.0000.p.after_pipeline-start.before_a.txt": after,
        }
        return bool(unannounced(write_dump(files)))

    def with_two(text: str, *order: int) -> str:
        """The same with two further computations in an order."""
        head, body = text.split("\n", 1)
        return "\n\n".join([head, *(f"%c.{one} {{\n  %k.{one} = f32[] constant({one})\n}}" for one in order)]) + body

    assert turned(plain) != plain
    assert not found(with_two(scheduled, 1, 2), with_two(scheduled, 2, 1))
    assert found(with_two(scheduled, 1, 2), with_two(scheduled, 3, 1))
    assert not found(plain, turned(scheduled)) and found(scheduled, turned(scheduled))


def test_without_any_pass_dumped_nothing_was_to_be_announced(write_dump: WriteDump, hlo: HloText) -> None:
    files: dict[str, str | bytes] = {
        "module_0001.f.before_optimizations.txt": hlo(),
        "module_0001.f.cpu_after_optimizations.txt": hlo(opcode="multiply"),
    }
    with open_dump(write_dump(files)) as dump:
        assert not every_change_dumped(dump.select(None)[0])


def test_a_narrow_dump_names_a_pass_only_where_it_follows_directly(fixtures: Path) -> None:
    rows = {(row.pipeline, row.pass_name): row for row in rows_of(fixtures / "dumps" / "gpu_narrow")}
    direct, ranged = rows["fusion", "priority-fusion"], rows["fusion", "dce"]
    assert direct.announced and direct.unannounced is None
    assert ranged.announced is False and ranged.unannounced == "cse … dce"


def test_steps_inside_a_pass_are_rows_of_their_own(fixtures: Path) -> None:
    inside = [row for row in rows_of(fixtures / "dumps" / "tpu") if row.pipeline == "tpu-tiling-rewriter"]
    assert inside[0].pass_name == "before_tiling_rewriter" and inside[0].changed and inside[0].announced


def test_equal_text_is_no_change_though_a_file_was_written(write_dump: WriteDump, hlo: HloText) -> None:
    rows = rows_of(
        write_dump(
            {
                "module_0001.f.before_optimizations.txt": hlo(),
                "module_0001.f.0000.p.after_pipeline-start.before_a.txt": hlo(),
                "module_0001.f.0001.p.after_a.before_b.txt": hlo(),
                "module_0001.f.0002.p.after_b.before_pipeline-end.txt": hlo(opcode="multiply"),
                "module_0001.f.0003.q.after_pipeline-start.before_c.txt": hlo(opcode="subtract"),
                "module_0001.f.cpu_after_optimizations.txt": hlo(opcode="subtract"),
            }
        )
    )
    assert [row.changed for row in rows] == [False, False, False, True, True, False]
    assert [row.unannounced for row in rows] == [None, None, None, None, "p/pipeline-end … q/pipeline-start", None]
    assert [row.snapshot_stage for row in rows] == [0, 1, 2, 3, 4, 5]


def test_a_snapshot_without_text_leaves_the_one_before_in_force(write_dump: WriteDump, hlo: HloText) -> None:
    rows = rows_of(
        write_dump(
            {
                "module_0001.f.before_optimizations.txt": hlo(),
                "module_0001.f.0001.p.after_a.before_b.txt": "",
                "module_0001.f.0002.p.after_b.before_c.txt": hlo()[:-3],
                "module_0001.f.0003.p.after_c.before_d.txt": hlo(),
                "module_0001.f.0004.p.after_d.before_e.txt": hlo(opcode="subtract")[:-3],
                "module_0001.f.0005.p.after_e.before_pipeline-end.txt": hlo(opcode="subtract"),
            }
        )
    )
    assert rows[1].changed is None and rows[1].fault == "the file is empty" and rows[1].snapshot_stage == 0
    assert rows[2].changed is None and "closing brace" in (rows[2].fault or "") and rows[2].snapshot_stage == 2
    assert [row.changed for row in rows[3:]] == [False, None, True]
    assert len({row.instructions_after for row in rows}) == 1


def test_a_first_snapshot_that_breaks_off_leaves_the_next_one_undecided(write_dump: WriteDump, hlo: HloText) -> None:
    rows = rows_of(
        write_dump(
            {
                "module_0001.f.before_optimizations.txt": hlo()[:-3],
                "module_0001.f.0001.p.after_a.before_b.txt": hlo(),
                "module_0001.f.0002.p.after_b.before_c.txt": hlo(),
            }
        )
    )
    assert [row.changed for row in rows] == [None, None, False]


def test_times_from_the_log_of_the_cpu_compiler(fixtures: Path) -> None:
    rows = rows_of(fixtures / "dumps" / "cpu_logged")
    assert len(rows) > 150
    timed = [row for row in rows if row.ns is not None]
    assert len(timed) > 100 and all(row.ns is not None and row.ns >= 1000 and row.start_us for row in timed)
    algsimp = next(row for row in rows if row.pass_name == "algsimp" and row.changed)
    assert algsimp.stage is not None and algsimp.ns
    unchanged = next(row for row in rows if row.pass_name == "all-reduce-promotion")
    assert unchanged.changed is False and unchanged.file is None
    names = [row.pass_name for row in rows]
    assert names[-1] == "after_optimizations"
    steps = [name for name in names if name.startswith("after_adding")]
    assert names.index("copy-insertion") == names.index(steps[-1]) + 1 if steps else True


def test_times_from_the_metadata_of_the_gpu_compiler(fixtures: Path) -> None:
    rows = rows_of(fixtures / "dumps" / "gpu_metadata")
    assert len(rows) > 250
    fusion = next(row for row in rows if row.pass_name == "priority-fusion")
    assert fusion.changed and fusion.announced and fusion.ns and fusion.pass_id and fusion.stage is not None
    ids = [row.pass_id for row in rows if row.pass_id is not None]
    assert len(ids) == len(set(ids)) > 250
    stages = [row.stage for row in rows if row.stage is not None]
    assert stages == sorted(stages)


def test_nested_pipelines_end_after_what_they_hold() -> None:
    entries = [
        (1, "pipeline-start", "outer", 0, 1),
        (2, "inner", "outer", 1, 9),
        (3, "pipeline-start", "inner", 1, 2),
        (4, "dce", "inner", 2, 8),
        (5, "dce", "outer", 9, 9),
    ]
    text = "\n".join(
        f'pass_metadata {{ pass_id: {number} pass_name: "{name}" pipeline_name: "{pipeline}"'
        f" start_timestamp_usec: {start} end_timestamp_usec: {end} }}"
        for number, name, pipeline, start, end in entries
    )
    assert [run.pass_id for run in parse_metadata(parse_textproto(text))] == [1, 3, 4, 2, 5]


def test_a_pass_that_runs_a_pipeline_of_another_name_is_one_row_and_owns_what_the_start_shows(
    write_dump: WriteDump, hlo: HloText, capsys: pytest.CaptureFixture[str]
) -> None:
    start, cleaned, end = hlo(opcode="multiply"), hlo(opcode="subtract"), hlo(opcode="subtract", sharding=" ")
    steps = {
        "0000.spmd-partitioner.after_pipeline-start.before_spmd-partitioning": hlo(),
        "0001.spmd-cleanup.after_pipeline-start.before_dce": start,
        "0002.spmd-cleanup.after_dce.before_pipeline-end": cleaned,
        "0003.spmd-partitioner.after_spmd-partitioning.before_dce": end,
    }
    files: dict[str, str | bytes] = {f"module_0001.f.{step}.txt": text for step, text in steps.items()}
    entries = [
        ("pipeline-start", "spmd-partitioner", "false", 0, 1, 0),
        ("spmd-partitioning", "spmd-partitioner", "true", 1, 9, 3),
        ("pipeline-start", "spmd-cleanup", "false", 3, 3, 1), ("dce", "spmd-cleanup", "true", 4, 8, 2),
        ("dce", "spmd-partitioner", "false", 9, 9, None), ("pipeline-start", "q", "false", 9, 9, None),
    ]  # fmt: skip
    told = "".join(
        f'pass_metadata {{ pass_id: {number} pass_name: "{name}" pipeline_name: "{pipeline}" module_changed: {changed}'
        f" start_timestamp_usec: {begin} end_timestamp_usec: {until}"
        + (f' dump_filenames: "d/{list(files)[file]}"' if file is not None else "")
        + " }\n"
        for number, (name, pipeline, changed, begin, until, file) in enumerate(entries, 1)
    )
    path = write_dump(files)
    for ids in ([None] * 4, [1, 3, 4, 2, 5, 6]):
        rows = rows_of(path)
        assert [row.pass_id for row in rows] == ids
        assert [row.changed for row in rows[:4]] == [False, True, True, True]
        assert {row.announced for row in rows[1:4]} == {True} and {row.unannounced for row in rows} == {None}
        write_dump({"module_0001.f.metadata.textproto": told})
    assert rows_of(path)[3].ns == 8000
    for source in (str(path), str(path / "../run.ledger")):
        if source.endswith(".ledger"):
            import_dump(path, source)
        with load(source) as run:
            assert [row.inside for row in run.passes] == [None, "spmd-partitioning", *[None] * 4]
            made = next(one for one in run.why("multiply.4", stage=1).passes if one.what == "appeared")
            assert made.among == "spmd-partitioning … spmd-partitioning"
            assert [row.ns for row in own_times(run.passes)] == [1000, 0, 4000, 4000, 0, 0]
    assert main.run(["diff", str(path), "--stage", "3"]) == 0
    assert "rows 1 to 2 are steps of spmd-partitioning; all that it changed: --from 0" in capsys.readouterr().err
    # That the pass reported nothing is told by its file not being there: then nobody announced the change.
    (path / "module_0001.f.metadata.textproto").unlink()
    (path / next(name for name in files if "after_spmd-partitioning" in name)).unlink()
    assert list(unannounced(path)) == ["spmd-cleanup/pipeline-start"]


def test_a_stage_that_is_lost_is_told_by_the_gap_in_the_numbers(
    write_dump: WriteDump, hlo: HloText, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["p.after_pipeline-start.before_a", "p.after_a.before_c", "p.after_c.before_d", "p.after_f.before_g"]
    texts = [hlo(), hlo(opcode="multiply"), hlo(opcode="multiply", constant="3"), hlo(opcode="subtract")]
    files: dict[str, str | bytes] = {
        "module_0001.f.before_optimizations.txt": hlo(),
        "module_0001.f.debug_options": 'xla_dump_hlo_pass_re: ".*"\n',
    }
    files.update({f"module_0001.f.{at:04}.{name}.txt": text for at, (name, text) in enumerate(zip(names, texts))})
    path = write_dump(files)
    log = [
        line("Running HLO pass pipeline on module f: p"),
        line("Dumping " + list(files)[2] + " to /d", file="dump.cc:1"),
    ]
    for name in "abcdefg":
        log += [line(f"  HLO pass {name}")]
        log += [line(f"Dumping {file} to /d", file="dump.cc:1") for file in files if f"after_{name}." in file]
        log += [line(f"HLO pass: {name} time: 5 us (5 us) (cumulative: 1 ms)")]

    def found(source: Path | str) -> tuple[dict[str, tuple[bool | None, str | None]], str | None]:
        with load(str(source)) as run:
            rows = {row.pass_name: (row.changed, row.unread or row.unannounced) for row in run.passes}
            return rows, run.lost_note

    whole, note = found(path)
    assert whole["f"] == (True, None) and note is None
    # The start of the first pipeline and a pass that follows the stage before at once are not in doubt.
    (path / list(files)[4]).unlink()
    told = "the stage numbered 0002 is not there: what its pass did shows in the next one"
    for source in (path, path / "../a.ledger"):
        if source != path:
            assert import_dump(path, source).notes == ("module_0001.f: " + told,)
        rows, note = found(source)
        assert rows["a"] == (True, None) and rows["f"] == (True, "c … f") and note == told
    assert main.run(["diff", str(path), "--stage", "3"]) == 1
    assert "note: the work of any pass from c to f: a stage between is not there" in capsys.readouterr().err
    # A log names the file: then it is known which pass reported a change, and that the others did not.
    write_dump({"hloscope_pass_log.txt": "\n".join(log)})
    assert found(path)[0] == {
        "before_optimizations": (False, None), "pipeline-start": (False, None), "a": (True, None), "b": (False, None),
        "c": (True, None), "d": (False, None), "e": (False, None), "f": (True, "c … f"), "g": (False, None),
    }  # fmt: skip
    # Nobody saw how many instructions there were after it, until the next stage.
    assert main.run(["passes", str(path), "--jsonl"]) == 0
    told_rows = {row["pass"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    counts = ("instructions_before", "instructions_after", "delta")
    assert {name: tuple(told_rows[name][key] for key in counts) for name in "bcdf"} == {
        "b": (4, 4, 0), "c": (4, None, None), "d": (None, None, 0), "f": (4, 4, 0)
    }  # fmt: skip
    # One without that line leaves each of them in doubt.
    write_dump({"hloscope_pass_log.txt": "\n".join(one for one in log if "0002" not in one)})
    rows = found(path)[0]
    assert [rows[name][0] for name in "abcdefg"] == [True, None, None, None, None, True, False]
    assert rows["f"][1] == "b … f"


def line(text: str, *, thread: int = 7, at: int = 0, file: str = "hlo_pass_pipeline.cc:303") -> str:
    return f"I1129 21:26:20.{at:06d}    {thread} {file}] {text}"


def test_two_threads_in_one_log_are_kept_apart() -> None:
    log: list[str] = []
    for at, thread in ((100, 1), (200, 2)):
        log += [
            line(
                f"Dumping module_000{thread}.f.before_optimizations.txt to /a to b", thread=thread, file="dump.cc:233"
            ),
            line("Running HLO pass pipeline on module f: the passes", thread=thread, at=at),
            line("  HLO pass dce", thread=thread, at=at + 1),
        ]
    log += [
        "unrelated output",
        line("HLO pass: dce time: 1.15 ms (1146 us) (cumulative: 1 ms)", thread=1, at=900),
        line("HLO pass: dce time: 5 us (5 us) (cumulative: 1 ms)", thread=2, at=901),
    ]
    runs = parse_log(log, year=2026)
    assert set(runs) == {("/a to b", 1, "f"), ("/a to b", 2, "f")}
    assert [(run.name, run.pipeline, run.ns) for run in runs["/a to b", 1, "f"]] == [
        ("pipeline-start", "the passes", None),
        ("dce", "the passes", 1_146_000),
    ]
    assert runs["/a to b", 2, "f"][1].ns == 5000


@pytest.mark.parametrize("length", [208, 221])
def test_a_name_that_is_too_long_for_some_files_is_one_module(write_dump: WriteDump, hlo: HloText, length: int) -> None:
    """XLA leaves it out of a file's name of more than 255 characters, with which the first file here is lost."""
    name = "n" * length
    steps = ["0000.async-collective.after_pipeline-start.before_a", "0001.async-collective.after_a.before_b"]
    parts = {"before_optimizations.txt": hlo(), **{f"{step}.txt": hlo() for step in steps},
             "obj-file.wrapped_reduce-window_kernel_module.o": "", "debug_options": ""}  # fmt: skip
    full = {f"module_0002.{name}.{part}": text for part, text in parts.items()}
    files: dict[str, str | bytes] = {
        one if len(one) <= 255 else one.replace(f".{name}", ""): text for one, text in full.items()
    }
    assert 0 < sum(name not in one for one in files) < len(files)
    log = [
        line(f"Dumping {list(files)[0]} to /d", file="dump.cc:233"),
        line(f"Running HLO pass pipeline on module {name}: async-collective"),
        line(f"Dumping {list(files)[1]} to /d", file="dump.cc:233"),
        line("  HLO pass a"),
        line(f"Dumping {list(files)[2]} to /d", file="dump.cc:233"),
        line("HLO pass: a time: 7 us (7 us) (cumulative: 1 ms)"),
    ]
    if length == 208:
        del files[next(iter(files))]
    path = write_dump({**files, "hloscope_pass_log.txt": "\n".join(log)})
    with open_dump(path) as dump:
        assert [(module.name, len(module.files)) for module in dump.modules] == [(name, len(files))]
    rows = [row for row in rows_of(path) if row.pipeline]
    assert [(row.pass_name, row.changed, row.instructions_before, row.ns, row.stage is None) for row in rows] == [
        ("pipeline-start", False, 4, None, False), ("a", False, 4, 7000, False),
    ]  # fmt: skip


def test_a_log_that_breaks_off_keeps_the_pass_that_was_running() -> None:
    log = [
        line("Dumping module_0001.f.before_optimizations.txt to /d", file="dump.cc:233"),
        line("Running HLO pass pipeline on module f: p"),
        line("  HLO pass fusion", at=5),
    ]
    (runs,) = parse_log(log, year=2026).values()
    assert runs[-1] == PassRun("fusion", "p", start_us=runs[-1].start_us) and runs[-1].ns is None
