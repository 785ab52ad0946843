"""How many stages of real dumps evaluate, and agree with the first stage of their program.

    python benchmarks/bench_stages.py CORPUS [--backends cpu,gpu,tpu] [--programs REGEX] [--every N] [--workers N]

CORPUS holds ``BACKEND/NAME/dump``. Each dump's largest module (with --all-modules, every one) is replayed on random
inputs. For each backend: stage files that evaluate and agree, and why the others do not.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from pathlib import Path

from hloscope.core.errors import HloscopeError
from hloscope.core.runtime.replay import DIFFERS, NOT_EVALUATED, ReplayOptions, replay
from hloscope.core.views.run import Run, load

ROW = "{:<42} {:>7} {:>7} {:>7} {:>7} {:>8}  {}"


def family(reason: str) -> str:
    """A reason without names and numbers, so that like reasons count together."""
    text = re.sub(r"%[^\s:,)]+", "%…", reason)
    text = re.sub(r"\b(?:[a-z]\w*)?\[[\d,]*\]", "[…]", text)
    return re.sub(r"\d[\d.e+-]*", "N", text)[:110]


def picked(count: int, every: int) -> list[int]:
    """Every so many stages, the first and the last among them."""
    return sorted({*range(0, count, every), count - 1})


def measure(run: Run, options: argparse.Namespace, totals: Counter[str], reasons: Counter[str]) -> str:
    """One row of the table."""
    numbers = picked(len(run), options.every)
    started = time.perf_counter()
    texts = [lambda i=i: run.stage_text(i) for i in numbers]
    try:
        found = replay(texts, ReplayOptions(workers=options.workers, cache=options.cache))
    except HloscopeError as error:
        totals["stages"] += len(numbers)
        totals["failed"] += len(numbers)
        reasons[family(str(error))] += len(numbers)
        return ROW.format(run.source.module, len(numbers), 0, 0, len(numbers), "", str(error)[:80])
    seconds = time.perf_counter() - started
    differ = [v for v in found.stages if v.status == DIFFERS]
    failed = [v for v in found.stages if v.status == NOT_EVALUATED]
    totals["stages"] += len(numbers)
    totals["failed"] += len(failed)
    totals["differ"] += len(differ)
    for one in (*differ, *failed):
        reasons[f"{one.status}: {family(one.reason)}"] += 1
    first = next(iter([*failed, *differ]), None)
    remark = "" if first is None else f"[{numbers[first.index]}] {first.status}: {first.reason[: options.width]}"
    agreeing = len(numbers) - len(differ) - len(failed)
    return ROW.format(
        run.source.module[:40], len(numbers), agreeing, len(differ), len(failed), f"{seconds:.1f}", remark
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--backends", default="cpu,gpu,tpu")
    parser.add_argument("--programs", default=".")
    parser.add_argument("--every", type=int, default=1, help="Only every so many stages.")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--all-modules", action="store_true")
    parser.add_argument("--cache", help="Folder of verdicts, kept between runs.")
    parser.add_argument("--width", type=int, default=150, help="Characters of a remark.")
    options = parser.parse_args()
    for backend in options.backends.split(","):
        totals: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        print(ROW.format(backend, "stages", "agree", "differ", "failed", "seconds", ""))
        for folder in sorted((options.corpus / backend).iterdir()):
            if not re.search(options.programs, folder.name):
                continue
            try:
                with load(str(folder / "dump")) as first:
                    modules = len(first.modules) if options.all_modules else 1
            except HloscopeError:
                continue
            for number in range(modules):
                with load(str(folder / "dump"), str(number)) as run:
                    if len(run):
                        print(f"{folder.name}/", measure(run, options, totals, reasons), sep="", flush=True)
        good = totals["stages"] - totals["failed"] - totals["differ"]
        share = good / totals["stages"] if totals["stages"] else 0.0
        print(f"{backend}: {good} of {totals['stages']} stages evaluate and agree ({share:.2%})")
        for reason, count in reasons.most_common(30):
            print(f"{count:7} {reason}")


if __name__ == "__main__":
    main()
