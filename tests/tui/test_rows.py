"""What rows of screens are worked out from, without a screen."""

from __future__ import annotations

from hloscope.core.views.buffers import BufferRow, BufferValue
from hloscope.core.views.copies import CopyCause, CopyRow
from hloscope.core.views.data import SourceFrame
from hloscope.tui.content import Line
from hloscope.tui.findings import Fate, fate
from hloscope.tui.screens.base import line_of
from hloscope.tui.screens.buffers import fullest
from hloscope.tui.widgets.line_pane import matches


def copied(gone: str | None = None, inside: str | None = None) -> CopyRow:
    cause = CopyCause("layout", None, "because", 3, "layout-assignment")
    frames = (SourceFrame("model.py", 7, 1, "step"), SourceFrame("train.py", 2, 1, "main"))
    return CopyRow(
        copy="copy.1", computation="main", operand="x", from_layout="{0,1}", to_layout="{1,0}", bytes=64, times=1,
        cause=cause, source=frames, remedy=None, free=False, last_stage=3, gone=gone, inside=inside,
    )  # fmt: skip


def test_a_search_sees_the_whole_name_where_the_line_is_cut() -> None:
    lines = [Line("  7  copy  a_very_long_na…", "", "a_very_long_name.88"), Line("copy.8", "", "copy.8"), Line("x")]
    assert matches(lines, r"^a_very_long_name\.88$") == [0]
    assert matches(lines, "COPY") == [0, 1]
    assert matches(lines, "nothing", frozenset({"copy.8"})) == [1]


def test_what_became_of_a_copy() -> None:
    assert fate(copied()) is Fate.RUNS
    assert fate(copied(inside="fusion.2")) is Fate.INSIDE
    assert fate(copied(gone="pipeline/layout_normalization")) is Fate.TRANSPOSE
    assert fate(copied(gone="pipeline/algsimp")) is Fate.REMOVED


def test_the_line_of_a_row_is_its_own_or_that_of_its_innermost_frame() -> None:
    assert line_of(copied()) == ("model.py", 7)
    assert line_of(SourceFrame("train.py", 2, 1, "main")) == ("train.py", 2)
    assert line_of(None) is None and line_of("text") is None


def test_an_allocation_is_fullest_where_most_of_it_is_lived_in() -> None:
    # The two of 30 bytes at step 5 lie over one another; at step 3 nothing does.
    values = [(0, 10, (0, 4)), (10, 30, (3, 5)), (10, 30, (5, 9)), (90, 8, None)]
    row = BufferRow(
        0, 128, 1, "temp",
        tuple(BufferValue(f"v{at}", "{}", size, offset, live) for at, (offset, size, live) in enumerate(values)),
    )  # fmt: skip
    assert fullest(row) == (3, 40)
    assert fullest(BufferRow(0, 8, 0, "parameter", ())) == (0, 0)
