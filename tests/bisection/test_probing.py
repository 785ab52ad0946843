"""Who makes the probes: journals that outlive a kill, workers on cores and on a cluster, and those that die."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from hloscope.bisect.journal import Journal
from hloscope.bisect.probing import Prober, prober
from hloscope.bisect.search import Outcome, first_wrong, smallest_cure

HERE = Path(__file__).resolve().parent
PLUGIN = HERE / "planted.py"

TEXT = """HloModule chain

ENTRY %main (a: f32[4], b: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %b = f32[4]{0} parameter(1)
  %c = f32[4]{0} subtract(%a, %b)
  %d = f32[4]{0} multiply(%c, %b)
  %e = f32[4]{0} subtract(%d, %a)
  %f = f32[4]{0} subtract(%e, %b)
  ROOT %g = f32[4]{0} subtract(%f, %c)
}
"""
ORACLE = """
import os, pathlib, signal, sys
calls = pathlib.Path(sys.argv[1])
with open(calls, "a") as out:
    out.write("x")
if os.environ.get("KILL_AT") == str(len(calls.read_text())):
    os.kill(os.getppid(), signal.SIGKILL)
sys.exit(1 if "subtract(%b, %e)" in open(sys.argv[2]).read() else 0)
"""


def load_workers() -> Any:
    """The module of tasks, under a name that a worker can import by."""
    spec = spec_from_file_location("workers", HERE / "workers.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["workers"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    return load_workers()


def bisect(folder: Path, calls: Path, kill_at: int | None = None, *more: str) -> subprocess.CompletedProcess[str]:
    oracle = f"{shlex.quote(sys.executable)} {shlex.quote(str(folder / 'oracle.py'))} {shlex.quote(str(calls))} {{}}"
    words = ["bisect", str(folder / "chain.hlo"), "--plugin", str(PLUGIN), "--json", "--oracle", oracle]
    env = {**os.environ, "KILL_AT": str(kill_at)}
    return subprocess.run(
        [sys.executable, "-m", "hloscope.core.cli.main", *words, "--passes", "dce,swap-subtract{only=2},cse", *more],
        capture_output=True, text=True, env=env, timeout=120, check=False,
    )  # fmt: skip


def test_a_search_that_is_killed_goes_on_where_it_was(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "chain.hlo").write_text(TEXT)
    (tmp_path / "oracle.py").write_text(ORACLE)
    calls = tmp_path / "calls"
    for kill_at in (3, 9):
        done = bisect(tmp_path, calls, kill_at)
        assert done.returncode == -signal.SIGKILL
        assert len(calls.read_text()) == kill_at, "nothing is asked again"
        assert list(cache.glob("bisect/*/probes.jsonl"))
        # A line that a kill cut short is passed over.
        with open(next(cache.glob("bisect/*/probes.jsonl")), "a") as out:
            out.write('{"key": "half of a li')
    resumed = bisect(tmp_path, calls, None, "--resume")  # said aloud, the question is the same
    asked = len(calls.read_text())
    assert not list(cache.glob("bisect/*")), "nothing is left behind"
    fresh = bisect(tmp_path, tmp_path / "fresh")
    # The call that was under way at each kill is all that is made twice.
    assert asked == len((tmp_path / "fresh").read_text()) + 2
    first, second = (json.loads(one.stdout) for one in (resumed, fresh))
    assert resumed.returncode == fresh.returncode == 1
    assert first["culprits"] == second["culprits"] and first["culprits"][0]["instruction"] == "f"
    assert [one["outcome"] for one in first["probes"]] == [one["outcome"] for one in second["probes"]]
    both = bisect(tmp_path, calls, None, "--resume", "--fresh")
    assert both.returncode == 2 and both.stderr == "hloscope: --resume and --fresh exclude each other\n"


def test_a_probe_is_made_once() -> None:
    made: list[str] = []

    class Once:
        key = "one"

        def run(self) -> Outcome:
            made.append("x")
            return Outcome("right")

    with Journal.for_once() as journal:
        assert [one.kind for one in Prober(journal).ask([Once(), Once()])] == ["right", "right"]
        Prober(journal).one(Once())
    assert made == ["x"]


def test_another_question_has_another_journal() -> None:
    first, second = Journal.for_question("a", "b"), Journal.for_question("ab", "")
    assert first.folder != second.folder
    first.put("k", Outcome("wrong", "because"))
    assert Journal.for_question("a", "b").get("k") == Outcome("wrong", "because")
    assert Journal.for_question("a", "b", fresh=True).get("k") is None
    assert second.get("k") is None


def test_a_killed_search_that_nobody_takes_up_is_forgotten(cache: Path) -> None:
    abandoned = Journal.for_question("long ago")
    recent = Journal.for_question("yesterday")
    os.utime(abandoned.folder, (1, 1))
    Journal.for_question("now")
    assert not abandoned.folder.exists() and recent.folder.exists()


@pytest.mark.parametrize("ways", [1, 2, 3, 7, 40])
def test_several_probes_at_once_find_the_same_in_fewer_rounds(ways: int) -> None:
    source = random.Random(ways)
    for _ in range(40):
        count = source.randint(1, 300)
        culprit = source.randint(1, count)
        rounds: list[int] = []

        def probe(position: int, culprit: int = culprit) -> Outcome:
            return Outcome("wrong" if position >= culprit else "right")

        def many(positions: Any, rounds: list[int] = rounds) -> list[Outcome]:
            rounds.append(len(positions))
            assert len(set(positions)) == len(positions) <= max(2, ways)
            return [probe(one) for one in positions]

        assert first_wrong(count, probe, "pass", None, many, ways).position == culprit
        members = frozenset(source.sample(range(count), min(count, 2)))
        found, _ = smallest_cure(
            count,
            lambda one: Outcome("right" if members <= one else "wrong"),
            "change",
            None,
            lambda sets: [Outcome("right" if members <= one else "wrong") for one in sets],
            ways,
        )
        assert found == members


def test_workers_on_the_local_cores_and_one_that_dies(tasks: Any, tmp_path: Path) -> None:
    with Journal.for_once() as journal, prober(journal, jobs=2) as probes:
        found = probes.ask([tasks.Square(number) for number in range(5, 11)])
        assert [one.kind for one in found] == ["right"] * 3 + ["wrong"] * 3
        # One dies at its first try, one whenever it runs.
        outcomes = probes.ask([tasks.Deadly(str(tmp_path), 1), tasks.Square(20), tasks.Deadly(str(tmp_path), 2, 9)])
        assert [one.kind for one in outcomes] == ["right", "wrong", "failed"]
        assert "died" in outcomes[2].detail


@pytest.mark.slow
def test_a_cluster_whose_worker_is_killed(tasks: Any, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    started = time.monotonic()
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1", protocol="tcp"
    ) as cluster:
        with Journal.for_once() as journal, prober(journal, cluster=cluster.scheduler_address) as probes:
            assert probes.ways == 2 and probes.cluster
            wanted = [tasks.Square(number) for number in range(12)]
            outcomes = probes.ask([*wanted[:6], tasks.Deadly(str(tmp_path), 1), *wanted[6:]])
        assert [one.detail for one in outcomes] == [*map(str, range(6)), "1", *map(str, range(6, 12))]
        assert len(list(tmp_path.glob("1.*"))) == 2, "the killed one cost a second try and nothing else"
    assert time.monotonic() - started < 120


def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hloscope.core.cli.main import run

    pytest.importorskip("distributed")
    (tmp_path / "chain.hlo").write_text(TEXT)
    assert run(["bisect", str(tmp_path / "chain.hlo"), "--cluster", "tcp:nonsense"]) == 2
    assert "--cluster tcp:nonsense: no scheduler answers" in capsys.readouterr().err
