"""Measures the optimizer against XLA:CPU: the module just before layout assignment, ours against the real one.

    python benchmarks/bench_optimizer.py [NAME…] [--keep DIR] [--no-values] [--diff] [--layers 2,4,8]
                                         [--programs FILE.py]

Programs are the single-device CPU dumps of the corpus (``HLOSCOPE_CORPUS``, else ``../shared/corpus``) and the jax
functions of ``optimizer_programs.py``. For each: instructions of XLA's stage and ours and their ratio, the distance of
the opcode histograms (sum of differences over XLA's count), whether the counts of contractions, loops and collectives
agree, whether the evaluator's values agree, seconds of our pipeline (processor time) and of XLA:CPU's whole compile.
``--keep`` remembers what XLA did between runs; ``--diff`` prints the opcodes that differ; ``--layers`` compiles
unrolled networks of growing depth to show that the time is linear.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.module import HloModule
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.pipelines import compile_module, cut_before, named_pipeline
from hloscope.core.passes.registry import Registry
from hloscope.core.runtime.compare import compare_all, join_rules, rules_for
from hloscope.core.runtime.evaluator import Array, Token, evaluate
from hloscope.core.runtime.inputs import moderate_inputs
from hloscope.core.text import load_module
from hloscope.core.xla.compile import compile_function, compile_hlo_text

EXACT = ("dot", "convolution", "while", "all-reduce", "all-gather", "all-to-all", "reduce-scatter",
         "collective-permute")  # fmt: skip
"""Opcodes whose counts must agree."""
_NUMBER = re.compile(r"\.(\d{4})\..*\.after_([^.]*(?:\.[^.]*)?)\.before_(.*)\.txt$")
_STAGE = "layout-assignment"


@dataclass
class Program:
    """One program, what XLA made of it before layout assignment, and how long XLA took in all."""

    name: str
    before: str
    stage: str
    seconds: float


def stage_of(folder: Path, module: str = "") -> str | None:
    """Text of the last stage before layout assignment in a full dump; None where the dump does not hold it."""
    files = sorted(f for f in folder.glob("module_*.txt") if _NUMBER.search(f.name) and module in f.name)
    held = [f for f in files if f.name.endswith(f".before_{_STAGE}.txt")]
    if held:
        return held[-1].read_text("utf-8")
    last: Path | None = None
    for file in files:
        if f"after_{_STAGE}." in file.name:
            return None if last is None else last.read_text("utf-8")
        last = file
    return None


def compiled(name: str, before: str, keep: Path | None, stage: str | None) -> Program:
    """The program with XLA's stage and time; both are measured unless they are remembered."""
    key = hashlib.sha256(before.encode()).hexdigest()[:16]
    memory = None if keep is None else keep / f"{name}-{key}.json"
    if memory is not None and memory.is_file():
        held = json.loads(memory.read_text("utf-8"))
        return Program(name, before, held["stage"], held["seconds"])
    with tempfile.TemporaryDirectory() as folder:
        seconds = compile_hlo_text(before, dump_to=Path(folder, "time"), pass_re="^none$", proto=False).seconds
        if stage is None:
            compile_hlo_text(before, dump_to=Path(folder, "all"), proto=False)
            stage = stage_of(Path(folder, "all"))
    if stage is None:
        raise SystemExit(f"{name}: XLA's dump holds no stage before {_STAGE}")
    if memory is not None:
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps({"stage": stage, "seconds": seconds}), "utf-8")
    return Program(name, before, stage, seconds)


def corpus_programs(wanted: list[str], keep: Path | None) -> list[Program]:
    """The single-device CPU programs of the corpus, each once."""
    root = Path(os.environ.get("HLOSCOPE_CORPUS") or Path(__file__).resolve().parents[2] / "shared" / "corpus")
    found: dict[str, Program] = {}
    for folder in sorted((root / "cpu").iterdir()) if root.is_dir() else ():
        name, _, variant = folder.name.partition("__")
        if name in found or (wanted and name not in wanted) or variant.startswith(("disable", "multi", "unopt")):
            continue
        before = next((folder / "dump").glob("*before_optimizations.txt"), None)
        if before is None:
            continue
        text = before.read_text("utf-8")
        if re.search(r"num_partitions=(?!1\b)\d+", text.partition("\n")[0]):
            continue
        whole = "pass_re=.*" in (folder / "case.json").read_text("utf-8")
        narrow = any((folder / "dump").glob(f"*before_{_STAGE}.txt"))
        stage = stage_of(folder / "dump") if whole or narrow else None
        found[name] = compiled(name, text, keep, stage)
    return list(found.values())


def own_programs(wanted: list[str], keep: Path | None, path: Path) -> list[Program]:
    """The functions of ``optimizer_programs.py`` (or of another file), traced by jax."""
    names = re.findall(r"^def ([a-z]\w*)\(", path.read_text("utf-8"), re.M) if path.is_file() else []
    found: list[Program] = []
    for name in names:
        if wanted and name not in wanted:
            continue
        key = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        memory = None if keep is None else keep / f"{name}-{key}.hlo"
        if memory is not None and memory.is_file():
            text = memory.read_text("utf-8")
        else:
            with tempfile.TemporaryDirectory() as folder:
                compile_function(f"{path}:{name}", dump_to=folder, pass_re="^none$", proto=False)
                dumped = [f for f in Path(folder).glob("*before_optimizations.txt") if f"jit_{name}." in f.name]
                text = dumped[0].read_text("utf-8")
            if memory is not None:
                memory.parent.mkdir(parents=True, exist_ok=True)
                memory.write_text(text, "utf-8")
        found.append(compiled(name, text, keep, None))
    return found


def optimize(text: str) -> tuple[HloModule, float]:
    """Our module before layout assignment, and the processor seconds that the passes took."""
    module = load_module(text)
    registry = Registry()
    pipelines = named_pipeline("cpu", registry)
    try:
        pipelines = cut_before(pipelines, _STAGE)
    except HloscopeError:
        pass  # the pipeline ends there
    start = time.process_time()
    compile_module(module, pipelines, PassContext(), registry)
    return module, time.process_time() - start


def histogram(module: HloModule) -> Counter[str]:
    """Instructions by opcode, over all computations."""
    return Counter(one.opcode for one in module.instructions())


def values_agree(before: HloModule, after: HloModule) -> str:
    """``yes``, or in a few words what is wrong."""
    args = moderate_inputs(before.entry, 3)
    try:
        expected, got = evaluate(before, args), evaluate(after, args)
    except HloscopeError as error:
        return f"? {error.message[:40]}"
    rules = join_rules(rules_for(before), rules_for(after))
    bad = [i for i, one in enumerate(compare_all(arrays(expected), arrays(got), rules)) if not one.within]
    return "yes" if not bad else f"NO {bad[:4]}"


def arrays(values: list[Array | Token]) -> list[Array]:
    """The arrays among results."""
    return [one for one in values if not isinstance(one, Token)]


def row(program: Program, values: bool, diff: bool) -> bool:
    """Measure and print one line; whether it meets the aims."""
    theirs = histogram(load_module(program.stage))
    try:
        module, seconds = optimize(program.before)
    except HloscopeError as error:
        print(f"{program.name:24} FAILED {error.message}")
        return False
    ours = histogram(module)
    total, count = sum(theirs.values()), sum(ours.values())
    distance = sum(abs(ours[k] - theirs[k]) for k in {*ours, *theirs}) / total
    exact = [f"{k} {ours[k]}/{theirs[k]}" for k in EXACT if ours[k] != theirs[k]]
    same = values_agree(load_module(program.before), module) if values else "-"
    print(
        f"{program.name:24} {sum(histogram(load_module(program.before)).values()):6} {total:6} {count:6}"
        f" {count / total:6.3f} {100 * distance:6.1f}% {', '.join(exact) or 'same':14} {same:5} {seconds:7.3f}"
        f" {program.seconds:7.3f} {seconds / program.seconds:5.2f}",
        flush=True,
    )
    if diff:
        for key in sorted({*ours, *theirs}, key=lambda k: -abs(ours[k] - theirs[k])):
            if ours[key] != theirs[key]:
                print(f"    {key:24} ours {ours[key]:5} XLA {theirs[key]:5} {ours[key] - theirs[key]:+}")
    return count <= 1.1 * total and distance <= 0.05 and not exact and not same.startswith("NO")


_LOWER = """
import inspect, runpy, sys
import jax
function = runpy.run_path(sys.argv[1])["layered_transformer"]
args = [one.default for one in inspect.signature(function).parameters.values()]
print(jax.jit(function).lower(*args).as_text(dialect="hlo"))
"""


def layered(layers: int) -> str:
    """HLO of an unrolled network of so many layers, forward and backward; jax writes it in a child process."""
    path = Path(__file__).with_name("optimizer_programs.py")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "programs.py")
        copy.write_text(path.read_text("utf-8").replace("LAYERS = 2", f"LAYERS = {layers}"), "utf-8")
        child = subprocess.run(
            [sys.executable, "-c", _LOWER, str(copy)], capture_output=True, text=True, check=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
    return child.stdout


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--no-values", action="store_true")
    parser.add_argument("--diff", action="store_true")
    parser.add_argument("--layers")
    parser.add_argument("--programs", type=Path, default=Path(__file__).with_name("optimizer_programs.py"))
    given = parser.parse_args()
    print(f"{'program':24} {'before':>6} {'XLA':>6} {'ours':>6} {'ratio':>6} {'histo':>7} {'exact counts':14} "
          f"{'equal':5} {'ours s':>7} {'XLA s':>7} {'share':>5}")  # fmt: skip
    met = 0
    programs = [*corpus_programs(given.names, given.keep), *own_programs(given.names, given.keep, given.programs)]
    for program in programs:
        met += row(program, not given.no_values, given.diff)
    print(f"{met} of {len(programs)} meet all aims")
    for layers in map(int, given.layers.split(",")) if given.layers else ():
        text = layered(layers)
        module, seconds = optimize(text)
        count = load_module(text).instruction_count
        print(f"layers {layers:3}: {count:6} -> {module.instruction_count:6} instructions, {seconds:7.3f} s,"
              f" {1e6 * seconds / count:6.1f} µs each")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
