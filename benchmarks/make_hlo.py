"""Makes synthetic HLO text of a wanted size that XLA's own parser accepts.

    python benchmarks/make_hlo.py 300000 > big.txt
    python benchmarks/make_hlo.py 300000 --stages 3 --changed 0.01 --out DIR

The text has what optimized dumps have: stack frame tables, metadata, fused computations, reductions, tuple shapes with
index comments, layouts, an ENTRY of most of the instructions. Equal arguments give equal text.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from pathlib import Path

_SHAPES = ("f32[64,256]{1,0}", "bf16[64,256]{1,0}", "f32[8,128,64]{2,1,0}", "s32[1024]{0}")
_UNARY = ("negate", "abs", "copy")
_BINARY = ("add", "multiply", "maximum", "minimum", "subtract")
_FUSED = 5
"""Instructions of a fused computation."""


def make_module(instructions: int, *, seed: int = 0, percent: bool = True, metadata: bool = True) -> str:
    """A scheduled module of exactly `instructions` instructions (at least 40) over all computations."""
    rng = random.Random(seed)
    mark = "%" if percent else ""
    lines = [f"HloModule jit_synthetic_{instructions}, is_scheduled=true, replica_count=1", ""]
    if metadata:
        lines += _tables()
    lines += [
        f"{mark}sum (x: f32[], y: f32[]) -> f32[] {{",
        f"  {mark}x = f32[] parameter(0)",
        f"  {mark}y = f32[] parameter(1)",
        f"  ROOT {mark}s = f32[] add({mark}x, {mark}y)",
        "}",
        "",
    ]
    left = instructions - 3
    fusions = max(0, (left - 20) // 20)
    fused: list[str] = []
    for k in range(fusions):
        shape = _SHAPES[k % len(_SHAPES)]
        bare = shape.split("{")[0]
        name = f"fused_computation.{k}"
        lines += [
            f"{mark}{name} (param_0.{k}: {bare}, param_1.{k}: {bare}) -> {bare} {{",
            f"  {mark}param_0.{k} = {shape} parameter(0)",
            f"  {mark}param_1.{k} = {shape} parameter(1)",
            f"  {mark}mul.{k} = {shape} multiply({mark}param_0.{k}, {mark}param_1.{k}){_meta(rng, 'mul', metadata)}",
            f"  {mark}neg.{k} = {shape} negate({mark}mul.{k}){_meta(rng, 'neg', metadata)}",
            f"  ROOT {mark}add.f{k} = {shape} add({mark}neg.{k}, {mark}param_0.{k}){_meta(rng, 'add', metadata)}",
            "}",
            "",
        ]
        fused.append(name)
        left -= _FUSED
    bare_shapes = [shape.split("{")[0] for shape in _SHAPES]
    signature = ", ".join(f"p{k}: {shape}" for k, shape in enumerate(bare_shapes))
    result = ", ".join(bare_shapes)
    lines.append(f"ENTRY {mark}main ({signature}) -> ({result}) {{")
    live: list[list[str]] = [[f"p{k}"] for k in range(len(_SHAPES))]
    lines += [f"  {mark}p{k} = {shape} parameter({k})" for k, shape in enumerate(_SHAPES)]
    lines.append(f"  {mark}zero = f32[] constant(0)")
    left -= len(_SHAPES) + 2
    pending = list(enumerate(fused))
    pending.reverse()
    for n in range(left):
        k = rng.randrange(len(_SHAPES))
        if pending and (rng.random() < 0.12 or left - n <= len(pending)):
            number, name = pending.pop()
            k = number % len(_SHAPES)
            a, b = rng.choice(live[k][-40:]), rng.choice(live[k][-40:])
            text = f"fusion({mark}{a}, {mark}{b}), kind=kLoop, calls={mark}{name}{_meta(rng, 'fusion', metadata)}"
            new = f"fusion.{n}"
        elif rng.random() < 0.03:
            a = rng.choice(live[0][-40:])
            text = f"reduce({mark}{a}, {mark}zero), dimensions={{0,1}}, to_apply={mark}sum{_meta(rng, 'sum', metadata)}"
            lines.append(f"  {mark}reduce.{n} = f32[] {text}")
            continue
        elif rng.random() < 0.4:
            opcode = rng.choice(_UNARY)
            text = f"{opcode}({mark}{rng.choice(live[k][-40:])}){_meta(rng, opcode, metadata)}"
            new = f"{opcode}.{n}"
        else:
            opcode = rng.choice(_BINARY)
            a, b = rng.choice(live[k][-40:]), rng.choice(live[k][-40:])
            text = f"{opcode}({mark}{a}, {mark}{b}){_meta(rng, opcode, metadata)}"
            new = f"{opcode}.{n}"
        lines.append(f"  {mark}{new} = {_SHAPES[k]} {text}")
        live[k].append(new)
    outputs = ", ".join(mark + names[-1] for names in live)
    lines.append(f"  ROOT {mark}result = ({', '.join(_SHAPES)}) tuple({outputs})")
    lines += ["}", ""]
    return "\n".join(lines)


def change_module(text: str, fraction: float, *, seed: int = 1) -> str:
    """The text with about `fraction` of its lines changed as passes change them: another opcode, or another name."""
    rng = random.Random(seed)
    renamed: dict[str, str] = {}
    lines = text.split("\n")
    for k, line in enumerate(lines):
        found = re.match(r"  %?((?:add|multiply|maximum)\.\d+) = ", line)
        if found is None or rng.random() >= fraction * 3:
            continue
        if rng.random() < 0.5:
            lines[k] = line.replace(" add(", " subtract(", 1).replace(" multiply(", " add(", 1)
        else:
            renamed[found[1]] = f"{found[1]}.clone"
    if not renamed:
        return "\n".join(lines)
    word = re.compile(r"(?<![\w.\-])(?:add|multiply|maximum)\.\d+(?![\w.\-])")
    return word.sub(lambda m: renamed.get(m[0], m[0]), "\n".join(lines))


def _meta(rng: random.Random, word: str, wanted: bool) -> str:
    if not wanted:
        return ""
    return f', metadata={{op_name="jit(step)/layer_{rng.randrange(48)}/{word}" stack_frame_id={rng.randrange(1, 60)}}}'


def _tables() -> list[str]:
    lines = ["FileNames", '1 "train.py"', '2 "model.py"', "", "FunctionNames"]
    lines += [f'{k} "layer_{k}"' for k in range(1, 61)]
    lines += ["", "FileLocations"]
    lines += [
        f"{k} {{file_name_id={1 + k % 2} function_name_id={k} line={10 * k} end_line={10 * k} column=4 end_column=30}}"
        for k in range(1, 61)
    ]
    lines += ["", "StackFrames"]
    lines += [f"{k} {{file_location_id={k} parent_frame_id={max(1, k // 2)}}}" for k in range(1, 61)]
    return [*lines, "", ""]


def main() -> None:
    """Write one module to the standard output, or several stages to a directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("instructions", type=int)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--changed", type=float, default=0.01, help="part of the lines that a stage changes")
    parser.add_argument("--short", action="store_true", help="no percent signs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="directory for a dump of all stages")
    args = parser.parse_args()
    text = make_module(args.instructions, seed=args.seed, percent=not args.short)
    if args.out is None:
        sys.stdout.write(text)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    stem = f"module_0000.jit_synthetic_{args.instructions}"
    (args.out / f"{stem}.before_optimizations.txt").write_text(text)
    for k in range(args.stages):
        text = change_module(text, args.changed, seed=args.seed + k + 1)
        name = f"{stem}.{k:04d}.synthetic.after_pass-{k}.before_pass-{k + 1}.txt"
        (args.out / name).write_text(text)
    (args.out / f"{stem}.cpu_after_optimizations.txt").write_text(text)


if __name__ == "__main__":
    main()
