"""Measures layout assignment: seconds and microseconds an instruction, with the ledger off and on, and the list order.

    python benchmarks/bench_layout.py STAGE.txt [--backend cpu] [--repeats N]

STAGE is the module before ``layout-assignment``. Processor time, the best of the repeats.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hloscope.core.layout.assignment import assign_layouts, backend_of
from hloscope.core.layout.list_order import ListOrder
from hloscope.core.ledger import LedgerWriter
from hloscope.core.passes.context import PassContext
from hloscope.core.text import load_module


def best(repeats: int, run: Callable[[], float]) -> float:
    """Least processor time of several runs."""
    return min(run() for _ in range(repeats))


def main() -> None:
    """Print one line a measurement."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("stage")
    options.add_argument("--backend", default="cpu")
    options.add_argument("--repeats", type=int, default=3)
    given = options.parse_args()
    text = Path(given.stage).read_text(encoding="utf-8")
    count = load_module(text).instruction_count

    def plain(remember: bool) -> float:
        module = load_module(text)
        start = time.process_time()
        assign_layouts(module, backend_of(given.backend), PassContext(target=given.backend), remember=remember)
        return time.process_time() - start

    def recorded() -> float:
        module = load_module(text)
        with tempfile.TemporaryDirectory() as folder, LedgerWriter(Path(folder, "run.ledger")) as ledger:
            ledger.begin_module(module.name)
            start = time.process_time()
            assign_layouts(module, backend_of(given.backend), PassContext(ledger, target=given.backend))
            return time.process_time() - start

    def order() -> float:
        module = load_module(text)
        start = time.process_time()
        ListOrder([text]).restore(module)
        return time.process_time() - start

    for name, run in (
        ("ledger off", lambda: plain(False)),
        ("with lost requests", lambda: plain(True)),
        ("ledger on", recorded),
        ("list order, one stage", order),
    ):
        seconds = best(given.repeats, run)
        print(f"{name:<22} {seconds:8.3f} s {seconds / count * 1e6:8.1f} us an instruction ({count:,})")


if __name__ == "__main__":
    main()
