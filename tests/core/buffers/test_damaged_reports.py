"""Reports that a killed compile cut off, or that belong to another, are told and left aside; the answer stays right."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope.core.buffers.hazards import Hazard
from hloscope.core.views.run import load

CASE = "cpu_donated_sgd"


def damaged(fixtures: Path, folder: Path, report: str, change: Callable[[str], str]) -> str:
    shutil.copytree(fixtures / "buffers" / CASE, folder)
    (path,) = folder.glob(f"*{report}.txt")
    path.write_text(change(path.read_text()))
    return str(folder)


def other(fixtures: Path, report: str) -> str:
    (path,) = (fixtures / "buffers" / "cpu_while_rotate").glob(f"*{report}.txt")
    return path.read_text()


@pytest.mark.parametrize(
    ("report", "change", "note"),
    [
        (
            "-buffer-assignment",
            lambda text: text[: len(text) // 2].rstrip("\n") + " value: <3 ",
            "cannot be read, line",
        ),
        ("-buffer-assignment", lambda _: "", "the report on buffers is empty"),
        ("-live-range", lambda text: text[: text.index("Live ranges at")], "live ranges is cut off"),
        ("-live-range", lambda text: text[: text.index("BufferLiveRange") + 24], "cannot be read, line"),
        ("-buffer-assignment-values", lambda text: text[: text.rindex("<")], "values is cut off, 1 values are missing"),
        ("-buffer-assignment", None, "buffers is another module's"),
        ("-live-range", None, "live ranges is another module's"),
        ("-buffer-assignment-values", None, "values is another module's"),
    ],
)
def test_what_cannot_be_used_is_computed(
    report: str, change: Callable[[str], str] | None, note: str, fixtures: Path, tmp_path: Path
) -> None:
    path = damaged(fixtures, tmp_path / "dump", report, change or (lambda _: other(fixtures, report)))
    with load(str(fixtures / "buffers" / CASE)) as right, load(path) as run:
        wanted, found = right.buffers.map(), run.buffers.map()
    assert any(note in one for one in found.notes), found.notes
    assert not wanted.notes
    assert (found.peak_bytes, found.total_bytes, found.profile) == (
        wanted.peak_bytes, wanted.total_bytes, wanted.profile,
    )  # fmt: skip


def hazards(path: str) -> list[Hazard]:
    with load(path) as run:
        return [one for one in run.buffers.hazards() if one.severity == "error"]


def test_a_donated_value_that_the_report_ends_too_early(fixtures: Path, tmp_path: Path) -> None:
    """It is one of a buffer of two, the parameter and what is written over it."""

    def shorten(text: str) -> str:
        lines = text.split("\n")
        place = next(n for n, one in enumerate(lines) if one.startswith("    w.1{}:") or one.startswith("    p0.1{}:"))
        name, _, ends = lines[place].partition("{}:")
        lines[place] = f"{name}{{}}:{ends.split('-')[0]}-{ends.split('-')[0]}"
        return "\n".join(lines)

    found = hazards(damaged(fixtures, tmp_path / "dump", "-live-range", shorten))
    assert [one.code for one in found] == ["live_range_too_short"]
