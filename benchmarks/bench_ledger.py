"""Measures the ledger: CPU time an event, a pass and a text cost, and the size of a ledger against its dump.

    python benchmarks/bench_ledger.py [DIRECTORY]

DIRECTORY holds dump directories at any depth (default: $HLOSCOPE_CORPUS). A dump directory is one with stage files.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hloscope.core.dumps.importer import import_dump
from hloscope.core.ledger import LedgerReader, LedgerWriter, NullLedger, Recorder, RewriteDecision

_STAGE = re.compile(r"(?:\d+\.)?module_\d+\..*(?:\.after_.*|(?:before|after)_optimizations)\.txt")
_EVENTS = 40_000
_REPEATS = 5


def _record(ledger: Recorder) -> float:
    """Microseconds for building and emitting one event, as a pass does, encoding and writing included."""
    row = ledger.begin_pass("algsimp")
    start = time.process_time()
    for number in range(_EVENTS):
        if ledger.enabled:
            ledger.emit(
                RewriteDecision(
                    subject=f"add.{number % 3000}", computation="main", verdict="applied", fuel=number,
                    pass_name="algsimp", rule="add-zero", produced=("multiply.7",),
                )
            )  # fmt: skip
    ledger.end_pass(row, changed=True)
    if isinstance(ledger, LedgerWriter):
        ledger.flush()
    return (time.process_time() - start) / _EVENTS * 1e6


def _build() -> float:
    """Microseconds for building one event without recording it."""
    start = time.process_time()
    for number in range(_EVENTS):
        RewriteDecision(
            subject=f"add.{number % 3000}", computation="main", verdict="applied", fuel=number,
            pass_name="algsimp", rule="add-zero", produced=("multiply.7",),
        )  # fmt: skip
    return (time.process_time() - start) / _EVENTS * 1e6


def _events(folder: Path) -> None:
    off = min(_record(NullLedger()) for _ in range(_REPEATS))
    build = min(_build() for _ in range(_REPEATS))
    path = folder / "events.ledger"
    with LedgerWriter(path) as writer:
        writer.begin_module("m")
        on = min(_record(writer) for _ in range(_REPEATS))
        start = time.process_time()
        for _ in range(2000):
            writer.end_pass(writer.begin_pass("dce", pipeline="simplification"), changed=False)
        passes = (time.process_time() - start) / 2000 * 1e6
    print(f"event, ledger off   {off:8.2f} us")
    print(f"event, ledger on    {on:8.2f} us   (of which building it {build:.2f})")
    print(f"pass row            {passes:8.2f} us")
    print(f"bytes an event      {path.stat().st_size / (_EVENTS * _REPEATS):8.1f}")


def _dumps(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        if any(_STAGE.fullmatch(name) for name in names):
            yield Path(folder)


def _corpus(root: Path, folder: Path) -> None:
    heads = f"{'dump kB':>9}{'rows':>7}{'ledger kB':>10}{'of dump':>9}{'B/row':>9}{'MB/s':>7}{'read MB/s':>10}"
    print(f"\n{'dump':48}{heads}")
    path = folder / "dump.ledger"
    total = [0, 0]
    over: list[str] = []
    for dump in sorted(_dumps(root)):
        size = sum(one.stat().st_size for one in dump.rglob("*") if one.is_file())
        start = time.process_time()
        import_dump(dump, path, force=True)
        importing = time.process_time() - start
        with LedgerReader(path) as reader:
            start = time.process_time()
            rows = [row for module in reader.modules() for row in reader.passes(module.id)]
            text_bytes = sum(len(reader.snapshots.text(row.snapshot)) for row in rows if row.snapshot is not None)
            reading = time.process_time() - start
        ledger = path.stat().st_size
        total[0] += size
        total[1] += ledger
        name = str(dump.relative_to(root)).removesuffix("/dump")
        if ledger > 0.05 * size:
            over.append(f"{name} ({size / 1e3:.0f} kB, {len(rows)} rows)")
        print(
            f"{name:48}{size / 1e3:9.0f}{len(rows):7}{ledger / 1e3:10.1f}{ledger / size:9.1%}"
            f"{ledger / len(rows):9.0f}{size / importing / 1e6:7.1f}{text_bytes / reading / 1e6:10.0f}"
        )
    if total[0]:
        print(f"{'all':48}{total[0] / 1e3:9.0f}{'':7}{total[1] / 1e3:10.1f}{total[1] / total[0]:9.1%}")
    print("above 5%: " + (", ".join(over) or "none"))


def main() -> int:
    """Print every measurement."""
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("HLOSCOPE_CORPUS")
    with tempfile.TemporaryDirectory() as folder:
        _events(Path(folder))
        if given is None:
            print("no directory of dumps given: sizes are not measured")
        else:
            _corpus(Path(given), Path(folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
