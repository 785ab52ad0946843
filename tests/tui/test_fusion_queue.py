"""The queue of a fusion pass at any step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from hloscope.core.views.fusion import FusionRow
from hloscope.core.views.run import load
from hloscope.tui.fusion_queue import APART, FusionQueue


def row(
    step: int, producer: str, verdict: str, saves: float = 0.0, *, consumers: tuple[str, ...] = (),
    made: str | None = None, computation: str = "main",
) -> FusionRow:  # fmt: skip
    return FusionRow(
        pass_name="priority-fusion", step=step, producer=producer, consumers=consumers, verdict=verdict, code=None,
        reason=None, us_fused=1.0, us_unfused=1.0 + saves, bytes=None, fuel=None, origin="xla", made=made,
        computation=computation,
    )  # fmt: skip


def test_what_was_taken_out_or_fused_into_waits_no_longer_and_each_computation_has_its_own() -> None:
    rows = [
        row(0, "a", "priority", 3.0, computation="body"),
        row(1, "b", "priority", 2.0, computation="body"),
        row(2, "c", "priority", 1.0, computation="body"),
        row(3, "a", "fused", 3.0, consumers=("b",), made="fusion", computation="body"),
        row(4, "fusion", "priority", 2.5, computation="body"),
        row(5, "x", "priority", 0.5),
        row(6, "x", "refused"),
    ]
    queue = FusionQueue(rows)
    assert queue.known
    assert queue.after(2, 2) == (3, [("a", 3.0), ("b", 2.0)])
    assert queue.after(3, 9) == (1, [("c", 1.0)])
    assert queue.after(4, 9) == (2, [("fusion", 2.5), ("c", 1.0)])
    assert queue.after(5, 9) == (1, [("x", 0.5)])
    assert queue.after(6, 9) == (0, [])
    following = queue.following(0)
    # What comes out of the queue of another computation does not follow in this one.
    assert following is rows[3] and queue.following(3) is None and queue.following(5) is rows[6]
    assert queue.following(6) is None
    assert queue.about("b") == [rows[1], rows[3]] and queue.about("fusion") == [rows[3], rows[4]]


def test_what_would_lose_time_is_not_in_the_queue_and_an_inferred_refusal_takes_nothing_out() -> None:
    rows = [
        row(0, "a", "priority", 3.0),
        row(1, "b", "priority", -1.0),
        row(2, "a", "priority", -3.5),
        row(3, "c", "priority", 0.0),
        replace(row(3, "b", "refused", -1.0), origin="inferred"),
        row(4, "c", "fused", consumers=("d",), made="fusion"),
    ]
    queue = FusionQueue([*rows[:4], rows[5], rows[4]])
    assert queue.after(1, 9) == (1, [("a", 3.0)])
    assert queue.after(3, 9) == (1, [("c", 0.0)])
    assert queue.following(2) is rows[5]


def test_what_waits_is_told_by_how_much_it_changed_and_a_fusion_anew() -> None:
    rows = [
        row(0, "a", "priority", 3.0),
        row(1, "b", "priority", 2.0),
        row(2, "f", "priority", 1.0),
        row(3, "b", "fused", consumers=("f",), made="f"),
        row(4, "a", "priority", -0.5, consumers=("f",)),
        row(5, "f", "priority", 0.75),
    ]
    queue = FusionQueue(rows)
    assert queue.after(5, 9) == (2, [("a", 2.5), ("f", 0.75)])
    # The row that says so tells the change alone.
    assert [whole for row in rows if (whole := queue.whole(row)) is not None] == [2.5]


def test_the_compiler_takes_what_saves_most(fixtures: Path) -> None:
    with load(str(fixtures / "dumps" / "gpu_narrow")) as run:
        rows = sorted(run.fusion.rows, key=lambda one: one.step)
    queue = FusionQueue(rows)
    taken = 0
    for before, one in pairwise(rows):
        # A producer goes into all its readers at once; bitcasts go first, whatever they save.
        if one.verdict == "fused" and before.producer != one.producer and not one.producer.startswith("bitcast"):
            saved = dict(queue.after(one.step - 1, len(rows))[1])
            assert saved[one.producer] >= max(saved.values()) - 1e-3
            taken += 1
    assert taken > 3


def test_the_kept_states_change_no_answer() -> None:
    rows = [row(at, f"p{at % 700}", "priority" if at % 3 else "fused", float(at % 97)) for at in range(2 * APART + 9)]
    queue = FusionQueue(rows)
    for step in (0, 5, APART - 1, APART, APART + 1, 2 * APART + 8):
        waiting: dict[str, float] = {}
        for one in rows[: step + 1]:
            if one.verdict == "fused":
                waiting.pop(one.producer, None)
            else:
                waiting[one.producer] = waiting.get(one.producer, 0.0) + float(one.step % 97)
        count, top = queue.after(step, 3)
        assert count == len(waiting)
        assert [saved for _, saved in top] == sorted(waiting.values(), reverse=True)[:3]
