"""Measures opening, listing, reading and importing large dumps: seconds and peak memory, each in a process of its own.

    python benchmarks/bench_dumps.py [--modules 10000] [--instructions 300000] [--stages 10]

Beside them stands ``du -s`` on the same directory, the least that anything costs that looks at every file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from make_dumps import make_modules, make_stages

_TASKS = {
    "open": "dump = open_dump(path)",
    "select": "open_dump(path).select()[0].stages[0].read_bytes(1000)",
    "list": "list_modules(open_dump(path))",
    "timeline": "list(timeline(open_dump(path).modules[0]))",
    "one stage": "open_dump(path).modules[0].stages[-1].read_text()",
    "import": "import_dump(path, path + '.ledger', force=True)",
}
_CHILD = """
import json, sys, time
from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.importer import import_dump
from hloscope.core.dumps.listing import list_modules
from hloscope.core.dumps.rows import timeline

def peak():
    # The high-water mark of this process alone; getrusage counts what the parent had when it forked.
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) >> 10

path, base = sys.argv[1], peak()
start, cpu = time.perf_counter(), time.process_time()
{task}
print(json.dumps([time.perf_counter() - start, time.process_time() - cpu,
                  peak(), base]))
"""


def measure(name: str, path: Path) -> None:
    """Runs one task in a child and prints its cost."""
    child = [sys.executable, "-c", _CHILD.format(task=_TASKS[name]), str(path)]
    done = subprocess.run(child, capture_output=True, text=True, check=True)
    wall, cpu, peak, base = json.loads(done.stdout)
    print(f"  {name:<10} {wall:8.2f} s  (cpu {cpu:.2f} s)  peak {peak} MB (of it {base} MB before the task)")


def du(path: Path) -> None:
    """Prints what ``du -s`` costs there."""
    start = time.perf_counter()
    done = subprocess.run(["du", "-s", str(path)], capture_output=True, text=True, check=True)
    kib = int(done.stdout.split()[0])
    print(f"  {'du -s':<10} {time.perf_counter() - start:8.2f} s  ({kib // 1024} MB)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=10_000)
    parser.add_argument("--instructions", type=int, default=300_000)
    parser.add_argument("--stages", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        many, large = Path(scratch, "many"), Path(scratch, "large")
        make_modules(given.modules, many)
        print(f"{given.modules} modules, {sum(1 for _ in many.iterdir())} files")
        du(many)
        for name in ("open", "select", "list", "import"):
            measure(name, many)
        make_stages(given.instructions, given.stages, large)
        print(f"one module, {given.stages} snapshots of {given.instructions} instructions")
        du(large)
        for name in ("open", "one stage", "list", "timeline", "import"):
            measure(name, large)
        ledger, dump = Path(f"{large}.ledger").stat().st_size, sum(file.stat().st_size for file in large.iterdir())
        print(f"  the ledger is {ledger / dump:.1%} of the dump ({ledger >> 20} of {dump >> 20} MB)")


if __name__ == "__main__":
    main()
