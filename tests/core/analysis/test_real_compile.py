"""A dump and the ledger made of it answer the replays alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.analysis.agreement import KEPT, Agreement
from hloscope.core.analysis.real_compile import DumpCompile, stages_around
from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.dumps.importer import import_dump
from hloscope.core.errors import DumpError
from hloscope.core.views.real_compile import RunCompile
from hloscope.core.views.run import load

HEADER = "HloModule jit_f\n\nENTRY %main (x: f32[4]) -> f32[4] {\n  %x = f32[4]{0} parameter(0)\n"
BEFORE = HEADER + "  ROOT %y = f32[4]{0} add(%x, %x)\n}\n"
AFTER = HEADER + "  ROOT %z = f32[4]{0} negate(%x)\n}\n"
REPORT = "BufferAssignment:\nallocation 0: size 16, output shape is |f32[4]|:\n"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir()
    stem = "module_0001.jit_f"
    files = {
        f"{stem}.before_optimizations.txt": BEFORE,
        f"{stem}.0001.pipe.after_layout-assignment.before_dce.txt": AFTER,
        f"{stem}.cpu_after_optimizations.txt": AFTER,
        f"{stem}.cpu_after_optimizations-buffer-assignment.txt": REPORT,
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_a_ledger_keeps_what_the_replays_read(dump: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    import_dump(str(dump), str(ledger))
    with open_dump(str(dump)) as opened, load(str(ledger)) as run:
        direct, stored = DumpCompile(opened.modules[0]), RunCompile(run)
        for compile_ in (direct, stored):
            (pair,) = stages_around(compile_, "layout-assignment")
            assert (pair.before.pass_name, pair.after.pass_name) == ("before_optimizations", "layout-assignment")
            assert compile_.module(pair.before.index).entry.root.opcode == "add"
            assert compile_.module(pair.after.index).entry.root.opcode == "negate"
            assert compile_.report(FileKind.BUFFER_ASSIGNMENT) == REPORT
            assert compile_.report(FileKind.LIVE_RANGE) is None
            assert compile_.target == "cpu"


def test_a_pass_that_was_not_dumped_is_said(dump: Path) -> None:
    with open_dump(str(dump)) as opened, pytest.raises(DumpError, match="no stage around priority-fusion"):
        stages_around(DumpCompile(opened.modules[0]), "priority-fusion")


def test_agreement_counts_and_keeps_the_first_disagreements() -> None:
    figure = Agreement()
    assert figure.share is None
    assert figure.add("a", 1, 1) and not figure.add("b", 1, 2, note="order lost")
    for number in range(2 * KEPT):
        figure.add(f"c{number}", 0, 1)
    assert (figure.agree, figure.total) == (1, 2 + 2 * KEPT)
    assert len(figure.first_disagreements) == KEPT and figure.first_disagreements[0].note == "order lost"
    both = Agreement(agree=1, total=1)
    both.merge(figure)
    assert (both.agree, both.total, len(both.first_disagreements)) == (2, 3 + 2 * KEPT, KEPT)
