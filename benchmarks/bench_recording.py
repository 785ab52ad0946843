"""What the ledger costs a compile, as a user meets it: seconds with the ledger off and on, measured in turn.

    python benchmarks/bench_recording.py [MODULE.txt …] [--pairs N | --instructions]

*opt* is ``hloscope opt --pipeline cpu`` as a process, *compile* all pipelines through buffer assignment as a process
(``hloscope compile`` itself has no form without a ledger), *in process* the same without the start of Python and
without reading the text. Without modules it takes a transformer block's training step, traced with jax, and a made-up
module. Wall time and processor time, the best and the median of N pairs; the load of the machine stands beside them,
since wall time says little on a busy one. `--instructions` counts, with valgrind's cachegrind, what the processor does
in *compile* instead, and in its compiling alone: that does not depend on the load. There the commits, which come at
fixed times, are as much further apart as the run is slower.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from hloscope.core.ledger import LedgerWriter
from hloscope.core.ledger.record import COMMIT_GAP_NS
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.pipelines import compile_module, whole_pipeline
from hloscope.core.passes.registry import Registry
from hloscope.core.text import load_module

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench_passes import made_up

Spent = tuple[float, float]
"""Seconds of wall time and of processor time."""


def block() -> str:
    """A transformer block with loss and gradients, as jax hands it to XLA."""
    import jax
    import jax.numpy as jnp

    def loss(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        def norm(v: jax.Array) -> jax.Array:
            return (v - v.mean(-1, keepdims=True)) * jax.lax.rsqrt(v.var(-1, keepdims=True) + 1e-5)

        h = norm(x)
        q, k, v = ((h @ p[name]).reshape(2, 16, 4, 16) for name in ("q", "k", "v"))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4.0)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(2, 16, 64) @ p["o"]
        x = x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]
        return (norm(x) ** 2).mean()

    sizes = {**dict.fromkeys("qkvo", (64, 64)), "up": (64, 256), "down": (256, 64)}
    params = {name: jnp.zeros(size) for name, size in sizes.items()}
    step = jax.jit(lambda p, x: jax.tree.map(lambda a, g: a - 0.1 * g, p, jax.grad(loss)(p, x)))
    return step.lower(params, jnp.zeros((2, 16, 64))).as_text(dialect="hlo")


def compile_once(text: str, ledger: str | None, *, slowed: int = 1) -> Spent:
    """A whole compile in this process, which runs so many times slower than it would; the ledger is made within."""
    module = load_module(text)
    gc.collect()
    wall, used = time.perf_counter(), time.process_time()
    writer = None
    if ledger is not None:
        writer = LedgerWriter(ledger, force=True, commit_gap_ns=slowed * COMMIT_GAP_NS)
        writer.begin_module(module.name)
    compile_module(module, whole_pipeline("cpu", Registry()), PassContext(writer))
    if writer is not None:
        writer.close()
    return time.perf_counter() - wall, time.process_time() - used


def process_once(words: Sequence[str]) -> Spent:
    """A child process from its start to its end."""
    begin = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {child.returncode}")
    return time.perf_counter() - begin, used.ru_utime + used.ru_stime


def compare(label: str, once: Callable[[str | None], Spent], ledger: str, pairs: int) -> None:
    """Print one row."""
    once(ledger)
    off: list[Spent] = []
    on: list[Spent] = []
    for number in range(pairs):
        # Each goes first in every second pair, so that neither has the warmer caches.
        for path in (None, ledger) if number % 2 else (ledger, None):
            (off if path is None else on).append(once(path))
    cells: list[str] = []
    for at, kind in enumerate(("wall", "processor")):
        for name, pick in (("best", min), ("median", median)):
            a, b = pick([one[at] for one in off]), pick([one[at] for one in on])
            cells.append(f"{kind} {name} {a * 1e3:6.0f} -> {b * 1e3:6.0f} ms {100 * (b / a - 1):+5.1f} %")
    print(f"{label:10}  " + "; ".join(cells))


_SLOWED = 50
"""How many times longer a run takes under cachegrind."""


def instructions(words: Sequence[str]) -> int:
    """What a child process did, in instructions of the processor."""
    counting = ["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={os.devnull}"]
    # The same order of sets in every run, and no threads that spin.
    alike = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([*counting, *words], env=alike, capture_output=True, text=True, check=False)
    found = re.search(r"I +refs: +([\d,]+)", run.stderr)
    if run.returncode or found is None:
        raise SystemExit(run.stderr)
    return int(found[1].replace(",", ""))


def count(path: str, ledger: str) -> None:
    """Print the rows in instructions."""
    child = [sys.executable, os.path.abspath(__file__), "--child", path]
    start, off, on = (instructions([*child, at, str(times)]) for at, times in (("", 0), ("", 1), (ledger, 1)))
    for label, a, b in (("compile", off, on), ("in process", off - start, on - start)):
        print(f"{label:10}  instructions {a / 1e6:8,.0f} -> {b / 1e6:8,.0f} M {100 * (b / a - 1):+5.1f} %")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        path, ledger, *times = given.child
        text = Path(path).read_text(encoding="utf-8")
        if times == ["0"]:
            load_module(text)
        else:
            compile_once(text, ledger or None, slowed=_SLOWED if times else 1)
        return
    with tempfile.TemporaryDirectory() as folder:
        modules: list[str] = given.modules
        if not modules:
            for name, text in (("block", block()), ("made-up", made_up(2000))):
                modules.append(os.path.join(folder, f"{name}.txt"))
                Path(modules[-1]).write_text(text, encoding="utf-8")
        ledger, out = os.path.join(folder, "run.ledger"), os.path.join(folder, "out.txt")
        for path in modules:
            text = Path(path).read_text(encoding="utf-8")
            load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
            print(f"{os.path.basename(path)}: {load_module(text).instruction_count:,} instructions, {load}")
            if given.instructions:
                count(path, ledger)
                continue
            words = "-m hloscope.core.cli.main opt --pipeline cpu --force -o".split()
            opt = [sys.executable, *words, out, path]
            child = [sys.executable, os.path.abspath(__file__), "--child", path]
            rows: tuple[tuple[str, Callable[[str | None], Spent]], ...] = (
                ("opt", lambda at, w=opt: process_once(w if at is None else [*w, "--ledger", at])),
                ("compile", lambda at, w=child: process_once([*w, at or ""])),
                ("in process", lambda at, t=text: compile_once(t, at)),
            )
            for label, once in rows:
                compare(label, once, ledger, given.pairs)


if __name__ == "__main__":
    main()
