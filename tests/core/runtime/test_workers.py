"""Work in several processes: what they answer, what happens where one dies, and how Ctrl-C ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hloscope.core.runtime.workers import Pool, WorkerFailedError

SLOW = """HloModule slow

body {
  p = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  x = f32[] get-tuple-element(p), index=1
  y = f32[] KIND(x)
  ROOT r = (s32[], f32[]) tuple(j, y)
}

cond {
  p = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(1000000000)
  ROOT c = pred[] compare(i, n), direction=LT
}

ENTRY e {
  x = f32[] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[]) tuple(zero, x)
  w = (s32[], f32[]) while(t), condition=cond, body=body
  ROOT r = f32[] get-tuple-element(w), index=1
}
"""


def twice(number: int) -> int:
    """What the workers do: some numbers end the worker."""
    if number == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 14:
        raise ZeroDivisionError("a bug")
    return 2 * number


def gone(number: int, reason: str) -> int:
    assert "killed" in reason
    return -number


def test_answers_come_with_their_places_and_a_dead_worker_costs_one_task() -> None:
    with Pool(twice, gone, 2) as pool:
        answers = dict(pool.map((place, 10 + place) for place in range(4)))
        assert answers == {0: 20, 1: 22, 2: 24, 3: -13}
        with pytest.raises(WorkerFailedError, match="a bug"):
            dict(pool.map(iter([(0, 14)])))


@pytest.mark.parametrize("whole_group", [True, False], ids=["the group", "the command alone"])
def test_interrupting_a_replay_ends_it_and_its_workers(tmp_path: Path, whole_group: bool) -> None:
    folder = tmp_path / "dump"
    folder.mkdir()
    stages = ["before_optimizations", "0001.p.after_a.before_b", "0002.p.after_b.before_c", "cpu_after_optimizations"]
    for number, stage in enumerate(stages):
        # The first ends at once; the others never do.
        kind = ("negate", "cosine", "sine", "tanh")[number]
        text = SLOW.replace("KIND", kind)
        path = folder / f"module_0001.slow.{stage}.txt"
        path.write_text(text if number else text.replace("1000000000", "2"))
    replay = subprocess.Popen(
        [sys.executable, "-m", "hloscope.core.cli.main", "replay", str(folder), "--no-cache", "--workers", "2",
         "--step-limit", "2000000000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        workers = _children(replay.pid, 2)
        time.sleep(0.5)
        started = time.monotonic()
        (os.killpg if whole_group else os.kill)(replay.pid, signal.SIGINT)
        out, err = replay.communicate(timeout=20)
        assert time.monotonic() - started < 10
        assert (replay.returncode, out, err) == (130, "", "hloscope: interrupted\n")
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    finally:
        replay.kill()


def _children(parent: int, count: int) -> list[int]:
    """The processes that a process has started, once there are so many."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    if not children.exists():
        pytest.skip("no /proc")
    for _ in range(400):
        found = [int(word) for word in children.read_text().split()]
        if len(found) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{count} workers have not started")
