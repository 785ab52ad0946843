"""Measures the pass machinery: microseconds a decision at the gate, and what the ledger costs a compile.

    python benchmarks/bench_passes.py [MODULE.txt] [--repeats N]

Without a module it compiles a made-up one of 4,000 instructions; off and on are measured in turn. *passes* is the
pipeline alone, the ledger's file included; *text to text* adds reading and printing, which with the ledger on reuses
the lines that the snapshots printed; *command* is ``hloscope opt`` as a user runs it.

A machine that others use is quiet for moments only, so processor time is added up from stretches (between two starts
or ends of passes), each with its best time over the repeats; commits of the ledger, whose place varies, are one more
stretch. Wall time is the best whole run. There is no second process or thread: processor time is all that is used.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hloscope.core.ledger import LedgerReader, LedgerWriter
from hloscope.core.passes.context import PassContext, PassRun
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.pipelines import compile_module
from hloscope.core.text import load_module, print_module

_DECISIONS = 20_000


@dataclass
class Times:
    """Seconds of one compile."""

    stretches: list[float]
    """Processor time: reading, making the ledger, the passes in parts, closing the ledger, printing."""
    commits: float
    """Processor time of commits, which the stretches leave out."""
    wall: tuple[float, float]
    """Of the passes, and from text to text."""
    events: int = 0
    size: int = 0


class _Clock:
    """Cuts processor time into stretches."""

    def __init__(self) -> None:
        self.stretches: list[float] = []
        self.commits = 0.0
        self._apart = 0.0
        self._last = time.process_time()

    def cut(self) -> None:
        """End a stretch and begin the next."""
        now = time.process_time()
        self.stretches.append(now - self._last - self._apart)
        self.commits += self._apart
        self._apart = 0.0
        self._last = time.process_time()

    def set_apart(self, seconds: float) -> None:
        """Count some of this stretch as a commit."""
        self._apart += seconds


class _Context(PassContext):
    def __init__(self, ledger: LedgerWriter | None, clock: _Clock) -> None:
        super().__init__(ledger)
        self._clock = clock

    def push_run(self, name: str, pipeline: str, *, is_pipeline: bool = False) -> PassRun:
        self._clock.cut()
        return super().push_run(name, pipeline, is_pipeline=is_pipeline)

    def pop_run(self, run: PassRun) -> None:
        self._clock.cut()
        super().pop_run(run)


class _Writer(LedgerWriter):
    def __init__(self, path: str, clock: _Clock) -> None:
        self._clock = clock
        super().__init__(path, force=True)

    def flush(self) -> None:
        start = time.process_time()
        super().flush()
        self._clock.set_apart(time.process_time() - start)


def made_up(instructions: int) -> str:
    """A module whose layers leave every pass something to do."""
    lines = ["HloModule bench", "", "ENTRY %main (p: f32[64,64]) -> f32[64,64] {"]
    lines.append("  %p = f32[64,64]{1,0} parameter(0)")
    last, layer = "p", 0
    while len(lines) < instructions:
        n = f"{layer}"
        metadata = f', metadata={{op_name="jit(step)/layer_{layer}/op" stack_frame_id={layer % 40 + 1}}}'
        lines += [
            f"  %zero.{n} = f32[] constant(0){metadata}",
            f"  %zeros.{n} = f32[64,64]{{1,0}} broadcast(%zero.{n}), dimensions={{}}{metadata}",
            f"  %add.{n} = f32[64,64]{{1,0}} add(%{last}, %zeros.{n}){metadata}",
            f"  %dot.{n} = f32[64,64]{{1,0}} dot(%add.{n}, %p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
            + metadata,
            f"  %tanh.{n} = f32[64,64]{{1,0}} tanh(%dot.{n}){metadata}",
            f"  %twice.{n} = f32[64,64]{{1,0}} tanh(%dot.{n}){metadata}",
            f"  %flat.{n} = f32[4096]{{0}} reshape(%twice.{n}){metadata}",
            f"  %square.{n} = f32[64,64]{{1,0}} reshape(%flat.{n}){metadata}",
            f"  %dead.{n} = f32[64,64]{{1,0}} exponential(%square.{n}){metadata}",
            f"  %next.{n} = f32[64,64]{{1,0}} multiply(%tanh.{n}, %square.{n}){metadata}",
        ]
        last, layer = f"next.{n}", layer + 1
    lines += [f"  ROOT %result = f32[64,64]{{1,0}} negate(%{last})", "}", ""]
    return "\n".join(lines)


def compile_once(text: str, pipeline: str, ledger_path: str | None) -> Times:
    """One compile from text to text."""
    gc.collect()
    begin = time.perf_counter()
    clock = _Clock()
    module = load_module(text)
    clock.cut()
    read = time.perf_counter()
    writer = None
    if ledger_path is not None:
        writer = _Writer(ledger_path, clock)
        writer.begin_module(module.name)
    clock.cut()
    compile_module(module, pipeline, _Context(writer, clock))
    clock.cut()
    if writer is not None:
        writer.close()
    clock.cut()
    compiled = time.perf_counter()
    print_module(module)
    clock.cut()
    wall = (compiled - read, time.perf_counter() - begin)
    if ledger_path is None:
        return Times(clock.stretches, clock.commits, wall)
    with LedgerReader(ledger_path) as reader:
        events = int(reader.connection.execute("SELECT count(*) FROM events").fetchone()[0])
    return Times(clock.stretches, clock.commits, wall, events, os.path.getsize(ledger_path))


def best(times: list[Times]) -> tuple[float, float]:
    """Processor time of the passes and from text to text."""
    quiet = [min(some) for some in zip(*(one.stretches for one in times), strict=True)]
    commits = min(one.commits for one in times)
    return sum(quiet[1:-1]) + commits, sum(quiet) + commits


def command_once(module: str, pipeline: str, output: str, ledger_path: str | None) -> tuple[float, float]:
    """Seconds of processor and wall time of one ``hloscope opt``."""
    words = [sys.executable, "-m", "hloscope.core.cli.main", "opt", "--pipeline", pipeline, module, "-o", output]
    words += ["--force"] if ledger_path is None else ["--force", "--ledger", ledger_path]
    begin = time.perf_counter()
    child = subprocess.Popen(words)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - begin


def gate_cost(make: Callable[[], PassContext]) -> float:
    """Microseconds for one question, answered yes and closed."""
    module = load_module(made_up(40))
    root = module.entry.root
    best = float("inf")
    for _ in range(3):
        ctx = make()
        start = time.process_time()
        for _ in range(_DECISIONS):
            step = ctx.gate("rule", root)
            if step:
                step.done()
        best = min(best, (time.process_time() - start) / _DECISIONS * 1e6)
    return best


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", nargs="?")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--pipeline", default="cpu")
    given = parser.parse_args()
    text = Path(given.module).read_text(encoding="utf-8") if given.module else made_up(4000)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.ledger")

        writers: list[LedgerWriter] = []

        def recording() -> PassContext:
            writers.append(LedgerWriter(os.path.join(folder, f"gate{len(writers)}.ledger")))
            writers[-1].begin_module("bench")
            return PassContext(writers[-1])

        print(f"gate, nobody looks  {gate_cost(PassContext):7.2f} µs a decision")
        print(f"gate, fuel set      {gate_cost(lambda: PassContext(fuel=Fuel({'': 1 << 60}))):7.2f} µs a decision")
        print(f"gate, ledger on     {gate_cost(recording):7.2f} µs a decision (encoding and writing included)")
        for writer in writers:
            writer.close()
        off: list[Times] = []
        on: list[Times] = []
        compile_once(text, given.pipeline, None)
        for _ in range(given.repeats):
            off.append(compile_once(text, given.pipeline, None))
            on.append(compile_once(text, given.pipeline, path))
        source = given.module or os.path.join(folder, "module.txt")
        if given.module is None:
            Path(source).write_text(text, encoding="utf-8")
        out = os.path.join(folder, "out.txt")
        commands: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
        for _ in range(given.repeats):
            commands[0].append(command_once(source, given.pipeline, out, None))
            commands[1].append(command_once(source, given.pipeline, out, path))
    count = load_module(text).instruction_count
    print(f"module              {count:7,} instructions, {on[0].events:,} events, ledger {on[0].size / 1024:,.0f} KiB")
    for at, label in enumerate(("passes", "text to text")):
        _show(label, best(off)[at], best(on)[at])
        _show("  wall", min(one.wall[at] for one in off), min(one.wall[at] for one in on))
    for at, label in enumerate(("command", "  wall")):
        _show(label, min(one[at] for one in commands[0]), min(one[at] for one in commands[1]))


def _show(label: str, off: float, on: float) -> None:
    print(f"{label:12}  ledger off {off * 1e3:8.1f} ms, on {on * 1e3:8.1f} ms: {100 * (on / off - 1):+5.1f} %")


if __name__ == "__main__":
    main()
