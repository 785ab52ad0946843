"""A dump read into a ledger."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.fusion_decisions import parse_fusion_dump
from hloscope.core.dumps.importer import import_dump
from hloscope.core.dumps.rows import timeline
from hloscope.core.errors import DumpError, LedgerError, ParseError
from hloscope.core.ledger.queries import LedgerReader
from hloscope.core.ledger.snapshots import SnapshotReader
from hloscope.core.ledger.store import open_ledger

HloText = Callable[..., str]
WriteDump = Callable[[dict[str, str | bytes]], Path]
FIRST_LOST = "module_0001.f: the stage numbered 0000 is not there: what its pass did shows in the next one"


@pytest.mark.parametrize("case", ["cpu", "gpu", "tpu", "gpu_narrow", "cpu_logged", "gpu_metadata", "cpu_multi"])
def test_the_ledger_says_what_the_dump_says(fixtures: Path, tmp_path: Path, case: str) -> None:
    path, ledger = fixtures / "dumps" / case, tmp_path / "run.ledger"
    report = import_dump(path, ledger)
    with open_dump(path) as dump, LedgerReader(ledger) as reader:
        assert report.files == dump.file_count and report.modules == len(dump.modules)
        assert report.stages == sum(len(module.stages) for module in dump.modules)
        # Those dumps were thinned out: of cpu_multi only stages without a number are there.
        lost = [f"{module.label}: {module.lost_note}" for module in dump.modules if module.lost]
        assert report.not_understood == () and list(report.notes) == lost and bool(lost) == (case != "cpu_multi")
        stored = reader.modules()
        assert [module.name for module in stored] == [module.name for module in dump.modules]
        assert reader.runs()[0].complete and reader.runs()[0].target == case.split("_")[0]
        if case == "gpu_narrow":
            # Later questions of a ledger are answered as those of its dump: what thunks wait for, and flags.
            assert "kCustomKernel" in (reader.report(stored[0].id, "thunks") or "")
            assert "xla_" in (reader.report(stored[0].id, "debug_options") or "")
        connection = open_ledger(ledger)
        snapshots = SnapshotReader(connection)
        for module, entry in zip(dump.modules[:2], stored, strict=False):
            passes = reader.passes(entry.id)
            if case not in ("cpu_logged", "gpu_metadata"):
                rows = list(timeline(module))
                assert [one.pass_name for one in passes] == [row.pass_name for row in rows]
                assert [one.changed for one in passes] == [row.changed for row in rows]
                assert [one.unannounced for one in passes] == [row.unannounced for row in rows]
                assert [one.instructions_after for one in passes] == [row.instructions_after for row in rows]
                assert [one.file for one in passes] == [row.file for row in rows]
            for one in passes:
                if one.file is not None and one.snapshot is not None:
                    text = next(stage for stage in module.stages if stage.path == one.file).read_bytes()
                    assert snapshots.text(one.snapshot).encode() == text
        connection.close()


def test_fusion_decisions_become_events_of_the_compiler(fixtures: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    import_dump(fixtures / "dumps" / "gpu_narrow", ledger)
    with LedgerReader(ledger) as reader:
        events = [stored for stored in reader.events() if stored.event.type_name == "fusion_decision"]
        passes = {one.id: one.pass_name for one in reader.passes(reader.modules()[0].id)}
    verdicts = {stored.event.verdict for stored in events}
    assert verdicts == {"fused", "ineligible", "priority"}
    assert {passes[stored.row] for stored in events if stored.row is not None} == {"priority-fusion"}
    assert {stored.event.origin for stored in events} == {"xla"}
    refused = next(stored.event for stored in events if stored.event.verdict == "ineligible")
    assert refused.code and refused.numbers["reason"]


def test_fusion_dump_steps() -> None:
    events = parse_fusion_dump(
        """
        fusion_steps { update_priority { producer_name: "a" consumer_names: "b" consumer_names: "c"
                                         us_fused: 1.5 us_unfused: 3 } }
        fusion_steps { producer_ineligible { producer_name: "d" reason: "the consumer is not fusible" } }
        fusion_steps { fusion { fusion_name: "fusion.1" producer_name: "a" consumer_name: "b" } }
        """
    )
    assert [(event.step, event.subject, event.verdict, event.consumers) for event in events] == [
        (0, "a", "priority", ("b", "c")),
        (1, "d", "ineligible", ()),
        (2, "a", "fused", ("b",)),
    ]
    assert (events[0].us_fused, events[0].us_unfused) == (1.5, 3.0)
    assert events[1].code == "the_consumer_is_not_fusible"
    with pytest.raises(ParseError):
        parse_fusion_dump("fusion_steps { fusion {")


def test_unannounced_changes_become_events(write_dump: WriteDump, hlo: HloText, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "module_0001.f.before_optimizations.txt": hlo(),
        "module_0001.f.0000.p.after_pipeline-start.before_a.txt": hlo(),
        "module_0001.f.0001.p.after_a.before_b.txt": hlo(opcode="multiply"),
        "module_0001.f.0002.q.after_pipeline-start.before_c.txt": hlo(opcode="subtract"),
    }
    ledger = tmp_path / "run.ledger"
    import_dump(write_dump(files), ledger)
    with LedgerReader(ledger) as reader:
        (event,) = [stored.event for stored in reader.events() if stored.event.type_name == "unannounced_change"]
    assert event.origin == "inferred"
    assert event.numbers["after_pass"] == "a" and event.numbers["before_pass"] == "c"


def test_what_passes_did_that_were_not_dumped_is_no_event(fixtures: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    import_dump(fixtures / "dumps" / "gpu_narrow", ledger)
    with LedgerReader(ledger) as reader:
        assert not [one for one in reader.events() if one.event.type_name == "unannounced_change"]
        assert sum(entry.unannounced is not None for entry in reader.passes(reader.modules()[0].id)) == 7


def test_damaged_files_are_noted_and_the_rest_is_imported(write_dump: WriteDump, hlo: HloText, tmp_path: Path) -> None:
    dump = write_dump(
        {
            "module_0001.f.before_optimizations.txt": hlo(),
            "module_0001.f.0001.p.after_a.before_b.txt": hlo(opcode="multiply")[:-30],
            "module_0001.f.0002.p.after_b.before_c.txt": "",
            "module_0001.f.0003.p.after_c.before_d.txt": os.urandom(64),
            "module_0001.f.cpu_after_optimizations.txt": hlo(opcode="multiply"),
            "module_0001.f.priority_fusion_dump.txt": "fusion_steps {",
            "module_0001.f.metadata.textproto": "pass_metadata {",
            "module_0001.f.what.is.this": "?",
            "notes.md": "?",
        }
    )
    ledger = tmp_path / "run.ledger"
    report = import_dump(dump, ledger)
    assert report.not_understood == ("module_0001.f.what.is.this", "notes.md")
    assert len(report.notes) == 6 and "0000 is not there" in report.notes[1]
    with LedgerReader(ledger) as reader:
        notes = {str(stored.event.numbers["file"]) for stored in reader.events()
                 if stored.event.type_name == "dump_note"}  # fmt: skip
        passes = reader.passes(reader.modules()[0].id)
    assert len(notes) == 7
    assert [one.changed for one in passes] == [False, None, None, None, True]
    assert passes[2].snapshot == passes[1].snapshot


def test_archives_import_like_directories(fixtures: Path, tmp_path: Path) -> None:
    packed = shutil.make_archive(str(tmp_path / "dump"), "gztar", fixtures / "dumps" / "cpu")
    plain = import_dump(fixtures / "dumps" / "cpu", tmp_path / "a.ledger")
    assert import_dump(packed, tmp_path / "b.ledger") == plain


def test_one_module_of_many(fixtures: Path, tmp_path: Path) -> None:
    report = import_dump(fixtures / "dumps" / "cpu_multi", tmp_path / "run.ledger", module="broadcast")
    assert report.modules == 2


def test_protos_alone_are_read_through_the_reader(write_dump: WriteDump, hlo: HloText, tmp_path: Path) -> None:
    dump = write_dump(
        {
            "module_0001.f.before_optimizations.hlo.pb": b"1",
            "module_0001.f.0001.p.after_a.before_b.hlo.pb": b"2",
            "module_0001.f.cpu_after_optimizations.hlo.pb": b"2",
        }
    )
    calls: list[int] = []

    def reader(protos: object) -> list[str]:
        assert isinstance(protos, list)
        calls.append(len(protos))
        return [hlo(constant=proto.decode()) for proto in protos]

    report = import_dump(dump, tmp_path / "run.ledger", proto_reader=reader)
    assert report.stages == 3 and report.notes == (FIRST_LOST,) and calls == [3]
    without = import_dump(dump, tmp_path / "other.ledger")
    assert without.stages == 0 and len(without.notes) == 4


def test_protos_between_texts_share_one_call_and_are_no_change_by_themselves(
    write_dump: WriteDump, hlo: HloText, tmp_path: Path
) -> None:
    options = ", num_partitions=1, allow_spmd_sharding_propagation_to_output={true}"
    files: dict[str, str | bytes] = {"module_0001.f.before_optimizations.txt": hlo(constant="{...}")}
    for step in range(1, 10):
        name = f"module_0001.f.{step:04}.p.after_a{step}.before_a{step + 1}"
        opcode = "subtract" if step > 5 else "add"
        text = hlo(constant="{...}", attributes=options, opcode=opcode)
        files.update({f"{name}.hlo.pb": opcode.encode()} if step % 2 else {f"{name}.txt": text})
    calls: list[int] = []

    def reader(protos: object) -> list[str]:
        assert isinstance(protos, list)
        calls.append(len(protos))
        if b"damaged" in protos:
            raise DumpError("not a readable HLO proto")
        return [hlo(constant="7", opcode=proto.decode()) for proto in protos]

    def changed(ledger: str) -> list[int]:
        with LedgerReader(tmp_path / ledger) as opened:
            return [index for index, row in enumerate(opened.passes(1)) if row.changed]

    dump = write_dump(files)
    report = import_dump(dump, tmp_path / "run.ledger", proto_reader=reader)
    assert report.notes == (FIRST_LOST,) and calls == [5] and changed("run.ledger") == [6]
    damaged = "module_0001.f.0003.p.after_a3.before_a4.hlo.pb"
    (dump / damaged).write_bytes(b"damaged")
    report = import_dump(dump, tmp_path / "other.ledger", proto_reader=reader)
    assert report.notes == (FIRST_LOST, f"{damaged}: not a readable HLO proto") and report.stages == 9
    assert changed("other.ledger") == [6]


def test_nothing_is_written_where_there_is_no_dump_or_a_ledger_already(fixtures: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    with pytest.raises(DumpError):
        import_dump(tmp_path / "missing", ledger)
    assert not ledger.exists()
    import_dump(fixtures / "dumps" / "cpu_multi", ledger, module="0")
    before = ledger.read_bytes()
    with pytest.raises(LedgerError):
        import_dump(fixtures / "dumps" / "cpu_multi", ledger)
    assert ledger.read_bytes() == before
    import_dump(fixtures / "dumps" / "cpu_multi", ledger, module="1", force=True)
    assert ledger.read_bytes() != before


def test_an_interrupted_import_leaves_what_was_committed(fixtures: Path, tmp_path: Path) -> None:
    """SIGINT arrives once a few modules are in; the ledger opens, holds them, and says that it is incomplete."""
    ledger, ready = tmp_path / "run.ledger", tmp_path / "ready"
    program = textwrap.dedent(
        f"""
        import time
        from pathlib import Path
        from hloscope.core.dumps.importer import import_dump
        def slow(done, total):
            if done == 8:
                Path({str(ready)!r}).touch()
                time.sleep(60)
        from hloscope.core.dumps import importer
        importer.MODULE_SECONDS = 0.0
        import_dump({str(fixtures / "dumps" / "cpu_multi")!r}, {str(ledger)!r}, progress=slow)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not ready.exists():
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert b"KeyboardInterrupt" in stderr
    with LedgerReader(ledger) as reader:
        assert not reader.runs()[0].complete
        modules = reader.modules()
        assert 3 <= len(modules) <= 5
        assert len(reader.passes(modules[0].id)) >= 1
        notes = [stored.event.sentence() for stored in reader.events() if stored.event.type_name == "dump_note"]
    assert any("interrupted" in note and "incomplete" in note for note in notes)


def test_a_long_module_is_committed_on_the_way(fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloscope.core.dumps.importer.COMMIT_SECONDS", 0.0)
    ledger = tmp_path / "run.ledger"
    seen: list[int] = []

    def look(done: int, total: int) -> None:
        if done in (1, 5):
            with LedgerReader(ledger) as reader:
                seen.append(len(reader.passes(1)))

    import_dump(fixtures / "dumps" / "cpu", ledger, progress=look)
    assert seen == [0, 4]


def test_reports_of_many_small_modules_cost_little(
    fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same module twenty times: what is kept of it beyond the first is a few hundred bytes."""
    first = fixtures / "dumps" / "cpu"
    names = [file for file in first.iterdir() if ".before_" not in file.name or "optimizations" in file.name]
    sizes: list[int] = []
    for copies in (1, 21):
        dump = tmp_path / str(copies)
        dump.mkdir()
        for number in range(copies):
            for file in names:
                (dump / file.name.replace("module_0000", f"module_{number:04d}")).write_bytes(file.read_bytes())
        monkeypatch.setattr("hloscope.core.dumps.importer.MODULE_SECONDS", 60.0)
        import_dump(dump, tmp_path / f"{copies}.ledger")
        sizes.append((tmp_path / f"{copies}.ledger").stat().st_size)
    assert sizes[1] - sizes[0] < 20 * 900


def test_every_case_of_the_corpus_imports_for_a_few_percent(corpus: Path, tmp_path: Path) -> None:
    dumped = stored = 0
    for case in sorted(corpus.glob("*/*__narrow/dump")) + sorted(corpus.glob("tpu/*_dma/dump")):
        ledger = tmp_path / f"{case.parent.name}.ledger"
        report = import_dump(case, ledger)
        assert report.not_understood == () and report.notes == ()
        dumped += sum(file.stat().st_size for file in case.rglob("*") if file.is_file())
        stored += ledger.stat().st_size
        ledger.unlink()
    assert stored < 0.06 * dumped
