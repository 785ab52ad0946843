"""Runs over real dumps of the three backends, over ledgers made of them, and over single files."""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hloscope.core.cli import main
from hloscope.core.dumps.importer import import_dump
from hloscope.core.errors import DumpError, HloscopeError, LedgerError, ParseError, UnsupportedError, UsageError
from hloscope.core.ledger.queries import LedgerReader
from hloscope.core.ledger.record import LedgerWriter
from hloscope.core.views.inputs import SNIFFED_BYTES
from hloscope.core.views.modules import list_path
from hloscope.core.views.run import CancelledError, Run, diff_runs, load

BACKENDS = ("cpu", "gpu", "tpu")

MODULE = """\
HloModule tiny

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %n = f32[4]{0} negate(%p), metadata={op_name="jit(f)/neg" source_file="f.py" source_line=7}
  ROOT %a = f32[4]{0} add(%n, %p)
}
"""


@pytest.fixture(params=BACKENDS)
def dump(request: pytest.FixtureRequest, fixtures: Path) -> Path:
    return fixtures / "dumps" / str(request.param)


@pytest.fixture
def run(dump: Path) -> Iterator[Run]:
    with load(str(dump)) as opened:
        yield opened


@pytest.fixture
def ledger(dump: Path, tmp_path: Path) -> Path:
    path = tmp_path / "run.ledger"
    import_dump(dump, path)
    return path


# ---------------------------------------------------------------- dumps and ledgers
def test_a_dump_is_its_first_to_its_last_stage(run: Run, dump: Path) -> None:
    assert run.source.kind == "dump"
    assert run.source.target == dump.name
    assert run.source.module.startswith("jit_")
    assert run.passes[0].pass_name == "before_optimizations"
    assert [row.index for row in run.passes] == list(range(len(run)))
    assert "after_optimizations" in {row.pass_name for row in run.passes[-4:]}


def test_the_outline_and_the_timeline_have_the_same_rows(run: Run) -> None:
    outline = [(row.pipeline, row.pass_name, row.file) for row in run.outline]
    assert outline == [(row.pipeline, row.pass_name, row.file) for row in run.passes]


def test_counts_are_those_of_the_index(run: Run) -> None:
    for row in run.passes[:: max(1, len(run) // 6)]:
        assert row.instructions_after == run.stage_index(row.index).instruction_count
    for before, after in zip(run.passes, run.passes[1:], strict=False):
        assert after.instructions_before == before.instructions_after


def test_an_unchanged_row_has_an_empty_diff(run: Run) -> None:
    assert any(row.changed for row in run.passes)
    for row in run.passes[1:]:
        if not row.changed:
            assert run.diff(row.index).empty, row


def test_a_ledger_shows_what_its_dump_shows(run: Run, ledger: Path) -> None:
    with load(str(ledger)) as stored:
        assert stored.source.kind == "ledger"
        assert stored.source.module == run.source.module
        assert [row.index for row in stored.passes] == [row.index for row in run.passes]
        for ours, theirs in zip(stored.passes, run.passes, strict=True):
            assert ours == theirs
        assert stored.stage_text(-1) == run.stage_text(-1)
        assert stored.stage_text(0) == run.stage_text(0)
        changed = next(row.index for row in run.passes if row.changed)
        assert stored.diff(changed) == run.diff(changed)
        assert stored.event_count == run.event_count
        assert stored.summary().opcodes == run.summary().opcodes


def test_diffs_are_kept_and_add_up(run: Run) -> None:
    changed = next(row.index for row in run.passes if row.changed)
    assert run.diff(changed) is run.diff(changed)
    assert run.diff(changed) == run.diff(changed - 1, changed)
    whole = run.diff(0, -1)
    assert (whole.from_index, whole.to_index) == (0, len(run) - 1)
    grown = len(whole.added) - len(whole.removed)
    assert grown == run.passes[-1].instructions_after - run.passes[0].instructions_after
    assert run.diff(0).empty


def test_stage_numbers_count_from_the_end_too(run: Run) -> None:
    assert run.stage_text(-1) == run.stage_text(len(run) - 1)
    assert run.stage(-1).text == run.stage_text(-1)
    for wrong in (len(run), -len(run) - 1):
        with pytest.raises(UsageError, match="numbered 0 to"):
            run.stage_text(wrong)


def test_opening_reads_no_stage(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hloscope.core.dumps.directory import Dump

    read: list[str] = []
    original = Dump.read_file

    def counting(self: Dump, file: object, limit: int | None = None) -> bytes:
        read.append(str(getattr(file, "path", file)))
        return original(self, file, limit)  # type: ignore[arg-type]

    monkeypatch.setattr(Dump, "read_file", counting)
    with load(str(dump)) as run:
        assert len(run.outline) > 5
        assert not [path for path in read if path.endswith("before_optimizations.txt") or ".after_" in path]
        run.diff(3)
        stages_read = {path for path in read if ".after_" in path or path.endswith("optimizations.txt")}
        assert len(stages_read) <= 2
    if dump.name == "gpu":
        read.clear()
        with load(str(dump)) as run:
            decided = run.fusion
            assert decided.how == "recorded" and len(decided.rows) > 5
            assert sum(".after_" in path or path.endswith("optimizations.txt") for path in read) <= 2
            every = run.events()
            assert [one for one in every if one.type == "fusion_decision"] == run.events(type="fusion_decision")
            assert len({one.id for one in every}) == len(every)
            assert [one.pass_index for one in every] == sorted(one.pass_index or 0 for one in every)


def test_equal_stages_share_one_index(run: Run) -> None:
    rows = [row for row in run.passes[1:] if run.stage_digest(row.index) == run.stage_digest(row.index - 1)]
    assert rows
    assert run.stage_index(rows[0].index) is run.stage_index(rows[0].index - 1)


def test_long_work_can_be_stopped_and_started_again(run: Run) -> None:
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    with pytest.raises(CancelledError):
        run.timeline(cancelled=cancelled)
    seen: list[int] = []
    rows = run.timeline(progress=lambda done, total: seen.append(done))
    assert seen == list(range(min(4, len(run)), len(run) + 1)) + [len(run)]  # what was read is not read again
    with load(run.source.path) as anew:
        assert rows == anew.passes


def test_progress_reaches_the_total(run: Run) -> None:
    seen: list[tuple[int, int]] = []
    run.timeline(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(run), len(run))


def test_threads_may_ask_at_once(run: Run) -> None:
    failed: list[BaseException] = []

    def ask(start: int) -> None:
        try:
            for index in range(start, len(run), 4):
                assert run.stage_text(index)
                run.diff(index)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_sql_works_on_a_dump_as_on_its_ledger(run: Run, ledger: Path) -> None:
    query = "SELECT stage, pass, changed FROM passes ORDER BY stage"
    with load(str(ledger)) as stored:
        assert run.sql(query).rows == stored.sql(query).rows
        with pytest.raises(LedgerError, match="only reading"):
            stored.sql("DELETE FROM pass_rows")


def test_the_summary_adds_up(run: Run) -> None:
    summary = run.summary()
    assert summary is run.summary()
    assert summary.passes == len(run.passes)
    assert summary.changed == sum(1 for row in run.passes if row.changed)
    assert summary.instructions_after == run.stage_index(-1).instruction_count
    assert summary.computations == run.stage_index(-1).computation_count
    histogram = dict(run.stage_index(-1).opcode_histogram())
    assert all(histogram[name] == count for name, count in summary.opcodes)


def test_it_shows_itself(run: Run) -> None:
    assert run.source.module in repr(run)
    assert "before_optimizations" in repr(run.stage(0))
    changed = next(row.index for row in run.passes if row.changed and row.index)
    summary, name = run.summary(), run.stage_index(-1).names[-1]
    for answer, said in (
        (run.buffers, f"{len(run.buffers.memory.allocations):,} allocations, {run.buffers.memory.total_bytes:,} bytes"),
        (run.buffers.map(), f"peak {run.buffers.map().peak_bytes:,}"),
        (run.copies, f"<copies: {len(run.copies.rows)}, "),
        (run.fusion, f"<fusion decisions: {len(run.fusion.rows)} ({run.fusion.how})"),
        (run.diff(changed), f"<diff of stages {changed - 1} and {changed}: "),
        (run.why(name), f"<why {name}: "),
        (summary, f"{summary.passes} passes, {summary.changed} changed it"),
    ):
        assert said in repr(answer) and len(repr(answer)) < 200 and "\n" not in repr(answer)
    assert getattr(run, "_repr_html_")().count("<tr>") > 3


# ---------------------------------------------------------------- modules
def test_the_largest_module_is_taken_and_said(fixtures: Path) -> None:
    with load(str(fixtures / "dumps/cpu_multi")) as run:
        sizes = [one.bytes for one in run.modules]
        assert sizes == sorted(sizes, reverse=True)
        assert run.source.module == run.modules[0].name
        assert any("took the largest" in note for note in run.notes)


@pytest.mark.parametrize(("spec", "name"), [("1", None), ("reduce_sum", "jit__reduce_sum"), ("^jit_add$", "jit_add")])
def test_a_module_is_picked_by_number_or_name(fixtures: Path, spec: str, name: str | None) -> None:
    with load(str(fixtures / "dumps/cpu_multi"), spec) as run:
        assert run.source.module == (name or run.modules[1].name)


@pytest.mark.parametrize("spec", ["99", "nothing_like_it", "("])
def test_a_module_that_is_not_there(fixtures: Path, spec: str) -> None:
    with pytest.raises(UsageError):
        load(str(fixtures / "dumps/cpu_multi"), spec)


def test_modules_of_a_ledger_have_the_same_order(fixtures: Path, tmp_path: Path) -> None:
    import_dump(fixtures / "dumps/cpu_multi", tmp_path / "l")
    with load(str(fixtures / "dumps/cpu_multi")) as dump, load(str(tmp_path / "l")) as ledger:
        with_stages = [one.name for one in dump.modules if one.bytes]
        assert [one.name for one in ledger.modules if one.bytes] == with_stages


# ---------------------------------------------------------------- why
def test_an_instruction_is_followed_through_the_passes(fixtures: Path) -> None:
    with load(str(fixtures / "dumps/cpu")) as run:
        for place in list(run.search(r"\) -> |= .* dot\(", 0, limit=3)):
            facts = run.why(place.name)
            assert facts.passes[0].what == "present"
            assert facts.first_stage == 0
            index = run.stage_index(facts.stage)
            at = index.find(facts.name)
            assert at is not None
            assert facts.users == tuple(index.name(one) for one in index.users(at))
            assert facts.source and facts.source[0].line > 0
            assert facts.bytes is not None


def test_histories_agree_with_the_stages(run: Run) -> None:
    names = [place.name for place in run.search("", len(run) // 2)]
    for name in names[:: max(1, len(names) // 8)]:
        facts = run.why(name)
        for step in facts.passes:
            if step.what != "removed":
                assert run.definition(step.index, step.name) is not None
            else:
                assert run.definition(step.index, step.name) is None
                assert run.definition(step.index - 1, step.name) is not None
        if facts.first_stage > 0:
            first = facts.passes[0]
            assert first.what == "appeared"
            assert run.definition(facts.first_stage - 1, first.name) is None


def test_a_name_that_is_not_there(run: Run) -> None:
    known = next(run.search("", -1)).name
    with pytest.raises(UsageError, match="did you mean"):
        run.why(known + "x")


def test_source_of_an_older_form(tmp_path: Path) -> None:
    path = tmp_path / "tiny.hlo"
    path.write_text(MODULE)
    facts = load(str(path)).why("n")
    assert (facts.source[0].file, facts.source[0].line) == ("f.py", 7)
    assert (facts.op_name, facts.users, facts.operands) == ("jit(f)/neg", ("a",), ("p",))
    assert (facts.shape, facts.layout, facts.bytes) == ("f32[4]", "{0}", 16)
    assert facts.layout_chain is not None and facts.layout_chain.definitions[0].layout == "{0}"


def test_find_gives_one_place_for_each_range_of_equal_lines(run: Run) -> None:
    name = next(run.search("parameter", 0)).name
    places = run.find(name)
    assert places[0].stage == 0
    for place in places:
        assert place.last_stage is not None and place.last_stage >= place.stage
        line = run.stage_text(place.stage).split("\n")[place.line]
        assert line.strip() == place.text
        assert run.stage_text(place.stage)[place.start :].startswith(place.text)


# ---------------------------------------------------------------- single files
@pytest.mark.parametrize("form", ["text", "gzip", "bare computation", "stdin"])
def test_one_file(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.hlo"
    text = MODULE.partition("\n\n")[2] if form == "bare computation" else MODULE
    data = gzip.compress(text.encode()) if form == "gzip" else text.encode()
    path.write_bytes(data)
    if form == "stdin":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with load("-" if form == "stdin" else str(path)) as run:
        assert len(run) == 1
        assert run.passes[0].instructions_after == 3
        assert run.stage_text(0) == text
        assert run.diff(0).empty
        assert run.events() == []
        with pytest.raises(UnsupportedError, match="ledger"):
            run.sql("select 1")


def test_two_files_differ_by_one_instruction(tmp_path: Path) -> None:
    (tmp_path / "a.hlo").write_text(MODULE)
    (tmp_path / "b.hlo").write_text(MODULE.replace("negate", "abs"))
    found = diff_runs(load(str(tmp_path / "a.hlo")), 0, load(str(tmp_path / "b.hlo")), 0)
    (change,) = (*found.added, *found.removed, *found.modified, *found.renamed)
    assert (change.name, change.what) == ("n", ("opcode",))


def test_instructions_in_the_place_of_operands_have_lines_of_their_own(tmp_path: Path) -> None:
    nested = (
        "HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n"
        "  ROOT r = f32[4] add(f32[4] negate(p), f32[4] multiply(f32[4] abs(p), p)), "
        'metadata={op_name="jit(f)/(add(x))"}\n}\n'
    )
    (tmp_path / "a.hlo").write_text(nested)
    (tmp_path / "b.hlo").write_text(nested.replace("abs(p)", "cosine(p)"))
    first, second = load(str(tmp_path / "a.hlo")), load(str(tmp_path / "b.hlo"))
    assert first.passes[0].instructions_after == 5
    index = first.stage_index(0)
    assert [index.opcode(row) for row in range(index.instruction_count)] == [
        "parameter", "negate", "abs", "multiply", "add",
    ]  # fmt: skip
    root = index.instruction_count - 1
    assert [index.opcode(row) for row in index.operands(root)] == ["negate", "multiply"]
    assert index.name(root) == "r"
    found = diff_runs(first, 0, second, 0)
    assert not found.empty
    # The name in the metadata is no instruction: such a text stays as it is.
    plain = nested.replace("f32[4] negate(p), f32[4] multiply(f32[4] abs(p), p)", "p, p")
    (tmp_path / "c.hlo").write_text(plain)
    assert load(str(tmp_path / "c.hlo")).stage_text(0) == plain


@pytest.mark.parametrize("form", ["tar", "tar.gz", "zip"])
def test_archives_are_read_in_place(fixtures: Path, tmp_path: Path, form: str) -> None:
    folder, path = fixtures / "dumps/cpu", tmp_path / f"dump.{form}"
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, f"dump/{file.name}")
    else:
        with tarfile.open(path, "w:gz" if form.endswith("gz") else "w") as archive:
            archive.add(folder, "dump")
    with load(str(path)) as packed, load(str(folder)) as plain:
        assert packed.passes == plain.passes
        assert packed.diff(2) == plain.diff(2)
    assert sorted(one.name for one in tmp_path.iterdir()) == [path.name]


# ---------------------------------------------------------------- what cannot be opened
def refused(path: Path | str) -> HloscopeError:
    with pytest.raises(HloscopeError) as caught:
        load(str(path))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return caught.value


def test_a_missing_path(tmp_path: Path) -> None:
    assert "no such file" in str(refused(tmp_path / "missing"))


def test_an_empty_directory(tmp_path: Path) -> None:
    assert "empty" in str(refused(tmp_path))


def test_a_directory_without_hlo(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("hello")
    assert "no HLO dump" in str(refused(tmp_path))


@pytest.mark.parametrize("data", [b"", b" \n\t\n"])
def test_an_empty_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f.hlo").write_bytes(data)
    assert isinstance(refused(tmp_path / "f.hlo"), ParseError)


def test_text_that_is_no_hlo_is_placed(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("\n\n  hello world\n")
    error = refused(tmp_path / "f.txt")
    assert (error.line, error.column) == (3, 3)


def test_a_binary_file(tmp_path: Path) -> None:
    (tmp_path / "f.hlo").write_bytes(bytes(range(256)) * 50)
    assert "binary" in str(refused(tmp_path / "f.hlo"))


def test_a_stray_byte_does_not_lose_the_text(tmp_path: Path) -> None:
    (tmp_path / "f.hlo").write_bytes(MODULE.encode() + b" " * SNIFFED_BYTES + b"// \xff\n")
    with load(str(tmp_path / "f.hlo")) as run:
        assert run.passes[0].instructions_after == 3


def test_a_module_without_instructions(tmp_path: Path) -> None:
    (tmp_path / "f.hlo").write_text("HloModule m\n")
    assert "no HLO instruction" in str(refused(tmp_path / "f.hlo"))


def test_damaged_gzip(tmp_path: Path) -> None:
    (tmp_path / "f.hlo.gz").write_bytes(gzip.compress(MODULE.encode())[:-20])
    assert "gzip" in str(refused(tmp_path / "f.hlo.gz"))


@pytest.mark.parametrize("head", ["", "HloModule m, "])
def test_a_hundred_megabytes_on_one_line(tmp_path: Path, head: str) -> None:
    path = tmp_path / "long.hlo"
    with path.open("w") as file:
        file.write(head)
        for _ in range(100):
            file.write("a" * 1_000_000)
    error = refused(path)
    assert isinstance(error, ParseError) and ("not HLO" in str(error) or "100,000,013 characters" in str(error))
    path.unlink()


def test_a_huge_line_is_refused_by_whatever_reads_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "HloModule m ENTRY e { a = f32[2] parameter(0) ROOT b = f32[2] negate(a) }"
    (tmp_path / "one.hlo").write_text(text)
    (tmp_path / "lines.hlo").write_text(text.replace(" a =", "\n a ="))
    for limit in (1000, 20):
        monkeypatch.setattr("hloscope.core.views.inputs.MAX_ONE_LINE_BYTES", limit)
        for command in ("parse", "verify", "run", "passes", "why"):
            for name in ("one.hlo", "lines.hlo"):
                capsys.readouterr()
                code = main.run([command, str(tmp_path / name), *(["b"] if command == "why" else [])])
                refused = name == "one.hlo" and limit == 20
                said = capsys.readouterr().err
                assert code == (2 if refused else 0), (command, name, said)
                assert ("73 characters are too many" in said) == refused


def test_a_packed_text_that_unpacks_beyond_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.hlo.gz"
    path.write_bytes(
        gzip.compress(b"HloModule m\n\nENTRY e {\n  ROOT a = f32[] parameter(0)\n}\n") + gzip.compress(b" " * 9000)
    )
    with load(str(path)) as run:
        assert run.passes[0].instructions_after == 1
    monkeypatch.setattr("hloscope.core.views.inputs.available_memory", lambda: 9000)
    assert "unpacks to more than 3,000 bytes" in str(refused(path))


def test_a_truncated_file_is_shown_as_far_as_it_goes(tmp_path: Path, fixtures: Path) -> None:
    source = next((fixtures / "dumps/cpu").glob("*before_optimizations.txt")).read_text()
    (tmp_path / "cut.hlo").write_text(source[: source.rindex("ROOT") - 5])
    with load(str(tmp_path / "cut.hlo")) as run:
        assert any("breaks off" in note for note in run.notes)
        assert run.passes[0].instructions_after > 0
        assert run.stage_index(0).errors


def test_a_truncated_stage_of_a_dump_is_noted(tmp_path: Path, dump: Path) -> None:
    with load(str(dump)) as whole:
        index = next(row.index for row in whole.passes if row.changed)
        damaged = whole.passes[index].file
    for file in dump.rglob("*"):
        if file.is_file():
            target = tmp_path / file.relative_to(dump)
            target.parent.mkdir(parents=True, exist_ok=True)
            data = file.read_bytes()
            target.write_bytes(data[: len(data) // 2] if str(file.relative_to(dump)) == damaged else data)
    with load(str(tmp_path)) as run:
        assert run.passes[index].file == damaged
        assert run.passes[index].changed is None and "breaks off" in (run.passes[index].fault or "")
        assert all(row.fault is None for row in run.passes if row.index != index)
        assert any(f"{damaged}: " in note and "breaks off" in note for note in run.notes)
        assert [event for event in run.events(pass_index=index) if "breaks off" in event.sentence]
        assert len(run.stage_text(index)) > 0
        run.diff(index)


def ledger_of(folder: Path, target: Path) -> bytes:
    import_dump(folder, target)
    return target.read_bytes()


def test_ledgers_that_cannot_be_read(tmp_path: Path, fixtures: Path) -> None:
    data = ledger_of(fixtures / "dumps/cpu_snapshot", tmp_path / "good")
    newer = bytearray(data)
    newer[60:64] = (99).to_bytes(4, "big")
    foreign = bytearray(data)
    foreign[68:72] = b"ABCD"
    for name, content, words in (
        ("newer", bytes(newer), "newer hloscope"),
        ("foreign", bytes(foreign), "not a ledger"),
        ("cut", data[: len(data) // 2], "cut off"),
    ):
        (tmp_path / name).write_bytes(content)
        error = refused(tmp_path / name)
        assert isinstance(error, LedgerError) and words in str(error)
    assert load(str(tmp_path / "good")).passes


def test_a_run_that_did_not_finish_says_where_it_was(tmp_path: Path) -> None:
    path = str(tmp_path / "run.ledger")
    with LedgerWriter(path) as writer:
        writer.flush()
        assert "no module yet" in str(refused(path))
        with LedgerReader(path) as reader:
            assert reader.sql("select count(*) from passes").rows == [(0,)]
        writer.begin_module("m")
        first = writer.begin_pass("start", pipeline="p")
        writer.end_pass(first, changed=False, instructions=1, snapshot=writer.add_snapshot("HloModule m"))
        writer.begin_pass("fusion", pipeline="p")
        writer.flush()
        with load(path) as run:
            assert len(run) == 1
            assert any("did not finish" in note and "began is p/fusion" in note for note in run.notes)
        assert any("did not finish" in note for note in list_path(path).notes)


def test_a_device_is_no_dump() -> None:
    assert isinstance(refused("/dev/null"), DumpError)


def test_a_single_file_is_named_by_its_dump_name_and_may_be_one_line(tmp_path: Path) -> None:
    text = "HloModule m\n\nENTRY %e (p: f32[]) -> f32[] {\n  %p = f32[] parameter(0)\n  ROOT %n = f32[] negate(%p)\n}\n"
    stage = tmp_path / "module_0000.m.0003.simplification.after_algsimp.before_dce.txt"
    stage.write_text(text)
    with load(str(stage)) as run:
        assert (run.passes[0].pipeline, run.passes[0].pass_name) == ("simplification", "algsimp")
        assert run.passes[0].next_pass == "dce"
    line = tmp_path / "one.hlo"
    line.write_text(text.replace("\n", " "))
    with load(str(line)) as run:
        assert run.passes[0].instructions_after == 2 and not run.notes
        assert run.why("n").operands == ("p",)
    mixed = text.replace("{\n", "{").replace(" }", "}").replace("\n}", "}")
    line.write_text(mixed)
    with load(str(line)) as run:
        assert run.passes[0].instructions_after == 2 and not run.notes and run.definition(0, "p") is not None
    assert list_path(str(line)).rows[0].instructions == 2
