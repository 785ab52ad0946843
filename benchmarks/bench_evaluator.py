"""Time of evaluation against XLA:CPU, which compiles first, on the programs of a corpus.

    python benchmarks/bench_evaluator.py CORPUS [--programs REGEX] [--stage before_optimizations] [--no-xla]

CORPUS holds ``cpu/NAME/dump`` and ``cpu/NAME/oracle.npz``. Seconds of one read, one plan and evaluation (the best of
three), one compile by XLA:CPU and its best run of five; XLA:CPU runs in a child process.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import numpy as np

from hloscope.core.errors import HloscopeError
from hloscope.core.runtime import npz
from hloscope.core.runtime.compare import compare_all, rules_for
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.text import load_module
from hloscope.core.xla.execute import execute_hlo_text

STAGES = {"before": "*.before_optimizations.txt", "after": "*_after_optimizations.txt"}
ROW = "{:<36} {:>7} {:>8} {:>8} {:>9} {:>9} {:>8}  {}"


def measure(folder: Path, pattern: str, with_xla: bool) -> str | None:
    """One row of the table, None for a program without an oracle or with several devices."""
    oracle = folder / "oracle.npz"
    paths = sorted((folder / "dump").glob(pattern))
    if not oracle.exists() or len(paths) != 1:
        return None
    text = paths[0].read_text()
    started = time.perf_counter()
    module = load_module(text, path=str(paths[0]))
    read = time.perf_counter() - started
    if module.num_partitions * module.replica_count > 1:
        return None
    data = npz.read(oracle)
    best = float("inf")
    results: list[object] = []
    for _ in range(3):
        started = time.perf_counter()
        results = list(evaluate(module, data.inputs))
        best = min(best, time.perf_counter() - started)
    arrays = [result for result in results if isinstance(result, np.ndarray)]
    found = compare_all(data.outputs, arrays, rules_for(module))
    verdict = "within bounds" if all(one.within for one in found) else "OUT OF BOUNDS"
    compiled, ran, ratio = "", "", ""
    if with_xla:
        try:
            _, compile_seconds, run_seconds = execute_hlo_text(text, data.inputs, repeat=5)
            compiled, ran, ratio = f"{compile_seconds:.3f}", f"{run_seconds:.5f}", f"{best / run_seconds:.0f}x"
        except HloscopeError as error:
            verdict += f"; XLA:CPU: {str(error)[:60]}"
    return ROW.format(
        folder.name, module.instruction_count, f"{read:.3f}", f"{best:.3f}", compiled, ran, ratio, verdict
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--programs", default=".")
    parser.add_argument("--stage", choices=sorted(STAGES), default="before")
    parser.add_argument("--no-xla", action="store_true")
    options = parser.parse_args()
    headings = ("program", "instr", "read s", "eval s", "compile s", "XLA run s", "eval/run", "against the oracle")
    print(ROW.format(*headings))
    for folder in sorted((options.corpus / "cpu").iterdir()):
        if re.search(options.programs, folder.name):
            row = measure(folder, STAGES[options.stage], not options.no_xla)
            if row is not None:
                print(row, flush=True)


if __name__ == "__main__":
    main()
