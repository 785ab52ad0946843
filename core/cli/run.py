"""``hloscope run``: evaluate a module on given or random inputs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from hloscope.core.cli.opening import module_option, opened, say_notes
from hloscope.core.cli.output import TableOptions, emit_object, emit_table, json_option
from hloscope.core.cli.outputs import check_outputs
from hloscope.core.cli.stage_texts import StageTexts
from hloscope.core.errors import CompileError, EvaluationError, HloscopeError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, EvaluationOptions
    from hloscope.core.runtime.one_stage import OneStage
    from hloscope.core.views.data import Source

ELIDED = ("error", "random")
_COLUMNS = ("shape", "dtype", "min", "max", "nan_count", "sha256")


@click.command(
    "run",
    epilog="Example: hloscope run dump/module_0001.jit_f.before_optimizations.txt --args oracle.npz -o out.npz",
)
@click.argument("path", metavar="IN")
@module_option
@click.option("--stage", type=int, default=0, show_default=True, help="Of a dump or ledger; -1 is the last.")
@click.option("--args", "args_path", metavar="ARGS.npz", help="Inputs in_000, in_001, …; random ones by default.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything that is random.")
@click.option("--engine", type=click.Choice(["reference", "xla"]), default="reference", show_default=True)
@click.option("--opaque", multiple=True, metavar="TARGET", help="Draw this custom call's results instead of computing.")
@click.option("--elided", type=click.Choice(ELIDED), default="error", show_default=True, help="Constants cut to {...}.")
@click.option("--step-limit", type=click.IntRange(min=1), default=1_000_000, help="Loop iterations before giving up.")
@click.option("-o", "output", metavar="OUT.npz", help="Write inputs and outputs here.")
@click.option("--force", is_flag=True, help="Replace an existing OUT.npz.")
@json_option
def command(
    path: str,
    module: str | None,
    stage: int,
    args_path: str | None,
    seed: int,
    engine: str,
    opaque: tuple[str, ...],
    elided: str,
    step_limit: int,
    output: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Evaluates a module, by default with the reference evaluator on random inputs, and sums up each result.

    IN is an HLO file, or a dump or ledger of which --stage is taken. A program for several devices runs on as many
    simulated ones; its inputs and results are whole arrays at every stage.
    """
    from hloscope.core.runtime import npz
    from hloscope.core.runtime.evaluator import EvaluationOptions
    from hloscope.core.runtime.one_stage import OneStage

    check_outputs(force, files=[output], inputs=[path, args_path])
    if engine == "xla" and opaque:
        raise UsageError("--opaque is for the reference engine")
    with opened(path, module) as run:
        source, number = run.source, run.resolve(stage)
        stages = StageTexts(run, 0, number)
        texts = stages.readers()
        where = run.stage_path(number)
        opened_stage = OneStage.of(texts, number, where)
        inputs = _inputs(opened_stage, args_path, seed, where)
        if engine == "xla":
            outputs = _on_xla(opened_stage.module, texts[number](), inputs, where)
        else:
            from hloscope.core.xla.kernel_ir import read_kernel

            options = EvaluationOptions(
                seed=seed, opaque=frozenset(opaque), elided=elided, step_limit=step_limit, kernels=read_kernel
            )
            outputs = _on_reference(opened_stage, texts[number](), inputs, where, options)
        say_notes(stages.notes)
    if output is not None:
        npz.write(output, inputs=inputs, outputs=outputs)
    _show([_row(array) for array in outputs], source, as_json)


def _inputs(stage: OneStage, args_path: str | None, seed: int, path: str) -> tuple[Array, ...]:
    from hloscope.core.runtime import npz

    given = None if args_path is None else npz.read(args_path).inputs
    try:
        return stage.inputs(given, seed)
    except (EvaluationError, UnsupportedError) as error:
        error.path = args_path or path
        raise


def _on_reference(
    stage: OneStage, text: str, inputs: Sequence[Array], path: str, options: EvaluationOptions
) -> list[Array]:
    try:
        found = stage.evaluate(inputs, options)
    except HloscopeError as error:
        _place(error, text, path)
        raise
    say_notes(found.notes)
    return found.outputs


def _place(error: HloscopeError, text: str, path: str) -> None:
    """Give an error the line of the instruction that it names."""
    name: Any = getattr(error, "instruction_name", None)
    error.path = error.path or path
    if isinstance(name, str) and error.line is None:
        found = re.search(rf"^[ \t]*(?:ROOT )?(%?{re.escape(name)}) = ", text, re.M)
        if found is not None:
            error.line = text.count("\n", 0, found.start(1)) + 1
            error.column = found.start(1) - text.rfind("\n", 0, found.start(1))


def _on_xla(program: HloModule, text: str, inputs: Sequence[Array], path: str) -> list[Array]:
    from hloscope.core.xla.execute import execute_hlo_text

    devices = program.num_partitions * program.replica_count
    if devices > 1:
        raise UsageError(f"the module is for {devices} devices; the xla engine runs it on one", path=path)
    try:
        outputs, _, _ = execute_hlo_text(text, list(inputs))
    except CompileError as error:
        error.path = error.path or path
        raise
    return list(outputs)


def _row(array: Array) -> dict[str, object]:
    """What is said of one result: extremes leave NaNs out; the digest is of the bytes in row-major order."""
    from hloscope.core.hlo.element_types import from_dtype

    element = from_dtype(array.dtype)
    low: float | int | bool | None = None
    high: float | int | bool | None = None
    nans = 0
    if element.is_integral or element.kind == "pred":
        if array.size:
            wide = array.astype(np.uint64 if element.name == "u64" else np.int64)
            low, high = int(wide.min()), int(wide.max())
    else:
        wide = array.astype(np.float64) if element.kind == "float" else np.abs(array)
        nan = np.isnan(wide)
        nans = int(np.count_nonzero(nan))
        if nans < array.size:
            low, high = float(wide[~nan].min()), float(wide[~nan].max())
    return {
        "shape": list(array.shape),
        "dtype": element.name,
        "min": low,
        "max": high,
        "nan_count": nans,
        "sha256": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest(),
    }


def _show(rows: Sequence[dict[str, object]], source: Source, as_json: bool) -> None:
    def show() -> None:
        emit_table([_readable(row) for row in rows], _COLUMNS, TableOptions())

    emit_object({"outputs": list(rows)}, as_json, show, source=source)


def _readable(row: dict[str, object]) -> dict[str, object]:
    shape = row["shape"]
    sizes = ",".join(map(str, shape)) if isinstance(shape, list) else ""
    return {**row, "shape": f"[{sizes}]", "sha256": str(row["sha256"])[:16]}
