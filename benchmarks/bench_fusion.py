"""Measures GPU fusion: deciding, the audit's guided replay, and multi-output fusion.

    python benchmarks/bench_fusion.py PATH [--device h100] [--repeats N]

PATH is a dump with a fusion decisions file, or the text of the module before ``priority-fusion``. Processor time, the
best of the repeats.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from hloscope.core.analysis.device import load_device
from hloscope.core.analysis.real_compile import DumpCompile
from hloscope.core.dumps.directory import open_dump
from hloscope.core.fusion.deciders import decide
from hloscope.core.fusion.gpu.audit import audit_gpu
from hloscope.core.fusion.gpu.multi_output_fusion import MultiOutputFusion
from hloscope.core.passes.context import PassContext
from hloscope.core.text import load_module


def timed(run: Callable[[], object]) -> float:
    """Processor seconds of one run."""
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    """Print one line a measurement."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("path", type=Path)
    options.add_argument("--device", default="h100")
    options.add_argument("--repeats", type=int, default=3)
    given = options.parse_args()
    if given.path.is_dir():
        compiles = [DumpCompile(one) for one in open_dump(given.path).modules]
        seconds = min(timed(lambda: [audit_gpu(one) for one in compiles]) for _ in range(given.repeats))
        print(f"{'audit':<22} {seconds:8.3f} s")
        return
    text = given.path.read_text(encoding="utf-8")
    device = load_device(given.device)
    count = load_module(text).instruction_count

    def deciding() -> float:
        module = load_module(text)
        return timed(lambda: decide(module, "gpu", device))

    def several() -> float:
        module = decide(load_module(text), "gpu", device).module
        return timed(lambda: MultiOutputFusion(given.device).run(module, PassContext(target="gpu")))

    for name, run in (("priority fusion", deciding), ("multi-output fusion", several)):
        seconds = min(run() for _ in range(given.repeats))
        print(f"{name:<22} {seconds:8.3f} s {seconds / count * 1e6:8.1f} us an instruction ({count:,})")


if __name__ == "__main__":
    main()
