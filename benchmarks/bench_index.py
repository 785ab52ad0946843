"""Time and memory of the columnar index, of the object graph and of stage diffs, against jaxlib's parser.

    PYTHONPATH=typings python benchmarks/bench_index.py [--sizes 10000,100000,1000000] [--corpus DIR] [--repeat 3]

Every row is one process of its own: CPU seconds are the best of the repeats, memory is what the process grew by while
it made the index (`peak_mb`) or the graph (`graph_b`, bytes an instruction). `ratio` and `graph_ratio` are jaxlib's
parse time over the index's and the graph's; above 1 ours is the faster.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from make_hlo import change_module, make_module


def measure(text: str, repeat: int, with_jaxlib: bool) -> dict[str, float]:
    """One text: index, jaxlib's parse, lazy columns, and a diff against a copy with 1% changed."""
    from hloscope.core.text import parse_module
    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.core.views.diff import diff_indexes

    before = _peak()
    index = ModuleIndex.from_text(text)
    grown = _peak() - before
    out: dict[str, float] = {"instructions": index.instruction_count, "mb": len(text) / 1e6, "peak_mb": grown}
    out["index_s"] = _best(lambda: ModuleIndex.from_text(text), repeat)
    out["bytes"] = index.nbytes / max(1, index.instruction_count)
    start = time.process_time()
    index.users(0)
    index.find("nothing of that name")
    index.position(0)
    out["lazy_s"] = time.process_time() - start
    out["bytes_all"] = index.nbytes / max(1, index.instruction_count)
    if with_jaxlib:
        from jaxlib import _hlo  # pyright: ignore

        parse: Callable[[str], object] = _hlo.hlo_module_from_text  # pyright: ignore
        out["jaxlib_s"] = _best(lambda: parse(text), repeat)
        out["ratio"] = out["jaxlib_s"] / out["index_s"]
    before = _peak()
    module, _ = parse_module(text)
    out["graph_b"] = (_peak() - before) * 2**20 / max(1, index.instruction_count)
    del module
    out["graph_s"] = _best(lambda: parse_module(text), repeat)
    if with_jaxlib:
        out["graph_ratio"] = out["jaxlib_s"] / out["graph_s"]
    other = ModuleIndex.from_text(change_module(text, 0.01))
    start = time.process_time()
    diff = diff_indexes(index, other)
    out["diff_s"] = time.process_time() - start
    out["changes"] = len(diff.added) + len(diff.removed) + len(diff.modified) + len(diff.renamed)
    start = time.process_time()
    diff_indexes(index, ModuleIndex.from_text(text + "\n"))
    out["same_s"] = time.process_time() - start - out["index_s"]
    return out


def _best(work: Callable[[], object], repeat: int) -> float:
    times: list[float] = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def _peak() -> float:
    """Most memory that this process has held so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print one row a size and one a corpus file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--corpus", type=Path, help="also the largest HLO files below this directory")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-jaxlib", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        text = make_module(int(args.one)) if args.one.isdigit() else Path(args.one).read_text()
        print(json.dumps(measure(text, args.repeat, not args.no_jaxlib)))
        return
    items = [size for size in args.sizes.split(",") if size]
    if args.corpus is not None:
        files = (p for p in args.corpus.rglob("*.txt") if p.open(errors="replace").read(9) == "HloModule")
        items += [str(p) for p in sorted(files, key=lambda p: -p.stat().st_size)[: args.files]]
    keys = ("instructions", "mb", "jaxlib_s", "index_s", "ratio", "bytes", "bytes_all", "lazy_s", "peak_mb", "graph_s",
            "graph_ratio", "graph_b", "diff_s", "changes", "same_s")  # fmt: skip
    print("  ".join(f"{key:>12}" for key in keys), " input")
    for item in items:
        command = [sys.executable, __file__, "--one", item, "--repeat", str(args.repeat)]
        command += ["--no-jaxlib"] if args.no_jaxlib else []
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            print(f"{item}: {run.stderr.strip().splitlines()[-1:]}")
            continue
        row: dict[str, float] = json.loads(run.stdout)
        print("  ".join(f"{row.get(key, float('nan')):12.3f}" for key in keys), f" {Path(item).name[-60:]}", flush=True)


if __name__ == "__main__":
    main()
