"""Makes dump directories of a wanted size, for measuring and for trying things at scale.

    python benchmarks/make_dumps.py modules 10000 OUT
    python benchmarks/make_dumps.py stages 300000 20 OUT

``modules`` writes many small modules as a long training job does: few names, each compiled again and again for other
shapes, some of them the same program twice. ``stages`` writes one module with many large snapshots, of which every
other differs from the one before in one instruction of a hundred. Equal arguments give equal files.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from make_hlo import change_module, make_module

_NAMES = 400
_PASSES = (
    "algsimp",
    "cse",
    "dce",
    "layout-assignment",
    "fusion",
    "copy-insertion",
    "constant_folding",
    "reshape-mover",
)
_MODULE = """HloModule {name}, entry_computation_layout={{(f32[{rows},{inner}]{{1,0}}, f32[{inner},{columns}]{{1,0}})\
->f32[{rows},{columns}]{{1,0}}}}, num_partitions={partitions}

FileNames
1 "train.py"

FunctionNames
1 "step"

FileLocations
1 {{file_name_id=1 function_name_id=1 line={line} end_line={line} column=4 end_column=30}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}


ENTRY %main.{number} (x.1: f32[{rows},{inner}], w.1: f32[{inner},{columns}]) -> f32[{rows},{columns}] {{
  %x.1 = f32[{rows},{inner}]{{1,0}} parameter(0), metadata={{op_name="x"}}
  %w.1 = f32[{inner},{columns}]{{1,0}} parameter(1), metadata={{op_name="w"}}
  %dot.1 = f32[{rows},{columns}]{{1,0}} dot(%x.1, %w.1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, \
metadata={{op_name="jit(step)/dot_general" stack_frame_id=1}}
{body}  ROOT %tanh.1 = f32[{rows},{columns}]{{1,0}} tanh(%{last}), metadata={{op_name="tanh" stack_frame_id=1}}
}}
"""
_OPTIONS = 'xla_dump_to: "/dump"\nxla_dump_hlo_pass_re: ".*"\nxla_dump_hlo_as_text: true\nxla_cpu_opt_level: {level}\n'


def small_module(rng: random.Random, number: int) -> str:
    """Text of one module of a few dozen instructions."""
    rows, inner, columns = (8 * rng.randint(1, 64) for _ in range(3))
    last, lines = "dot.1", []
    for step in range(rng.randint(4, 40)):
        opcode = rng.choice(("negate", "exponential", "abs", "tanh"))
        name = f"{opcode}.{step + 2}"
        lines.append(f"  %{name} = f32[{rows},{columns}]{{1,0}} {opcode}(%{last})\n")
        last = name
    return _MODULE.format(
        name=f"jit_step_{number % _NAMES}", number=number, rows=rows, inner=inner, columns=columns,
        partitions=rng.choice((1, 1, 1, 8)), line=rng.randint(1, 900), body="".join(lines), last=last,
    )  # fmt: skip


def make_modules(count: int, out: Path) -> None:
    """Writes ``count`` modules of eight files each."""
    rng = random.Random(0)
    out.mkdir(parents=True, exist_ok=True)
    text = small_module(rng, 0)
    for number in range(count):
        if rng.random() > 0.1 or number < _NAMES:
            text = small_module(rng, number)
        prefix = f"module_{number:04d}.jit_step_{number % _NAMES}"
        files = {"before_optimizations.txt": text, "cpu_after_optimizations.txt": text.replace("abs", "sign")}
        for step, (after, before) in enumerate(zip(("pipeline-start", *_PASSES[:2]), _PASSES, strict=False)):
            files[f"{step:04d}.simplification.after_{after}.before_{before}.txt"] = text
        files["cpu_after_optimizations-buffer-assignment.txt"] = "BufferAssignment:\n"
        files["cpu_after_optimizations-memory-usage-report.txt"] = "Memory Space: default (color=0)\n"
        files["debug_options"] = _OPTIONS.format(level=rng.choice((2, 3)))
        for suffix, content in files.items():
            (out / f"{prefix}.{suffix}").write_text(content)


def make_stages(instructions: int, stages: int, out: Path) -> None:
    """Writes one module of ``instructions`` instructions with ``stages`` snapshots."""
    out.mkdir(parents=True, exist_ok=True)
    text = make_module(instructions)
    prefix = "module_0001.jit_synthetic"
    (out / f"{prefix}.before_optimizations.txt").write_text(text)
    for step in range(stages - 2):
        after, before = _PASSES[step % len(_PASSES)], _PASSES[(step + 1) % len(_PASSES)]
        if step % 2:
            text = change_module(text, 0.01, seed=step)
        else:
            after = "pipeline-start"
        (out / f"{prefix}.{step:04d}.pipeline-{step // 2}.after_{after}.before_{before}.txt").write_text(text)
    (out / f"{prefix}.cpu_after_optimizations.txt").write_text(text)
    (out / f"{prefix}.debug_options").write_text(_OPTIONS.format(level=3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    modules = kinds.add_parser("modules")
    modules.add_argument("count", type=int)
    modules.add_argument("out", type=Path)
    stages = kinds.add_parser("stages")
    stages.add_argument("instructions", type=int)
    stages.add_argument("count", type=int)
    stages.add_argument("out", type=Path)
    given = parser.parse_args()
    if given.kind == "modules":
        make_modules(given.count, given.out)
    else:
        make_stages(given.instructions, given.count, given.out)


if __name__ == "__main__":
    main()
