"""``hloscope reduce``: shrinks a module that still shows a fault."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from hloscope.core.cli.opening import module_option, refuse_existing, say_notes
from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.errors import CompileError, HloscopeError, UsageError

if TYPE_CHECKING:
    from hloscope.bisect.reduce import Reduced, Shows
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.interface import HloPass
    from hloscope.core.passes.registry import Registry


@click.command("reduce", epilog="Example: hloscope reduce bad.hlo --engine xla -o small.hlo")
@click.argument("path", metavar="IN")
@click.option("-o", "--output", required=True, metavar="OUT", help="Where the small module goes.")
@click.option(
    "--oracle",
    default="reference",
    show_default=True,
    metavar="reference/COMMAND",
    help="The fault is there where the compiled module differs from the evaluator, or where a command on the module "
    "ends with 1 to 124.",
)
@click.option("--engine", type=click.Choice(("core", "xla")), default="core", show_default=True, help="The compiler.")
@click.option("--passes", metavar="A,B", help="Passes of --engine core instead of its whole pipeline.")
@click.option("--pipeline", metavar="cpu/gpu", help="The pipeline of --engine core (cpu by default).")
@click.option("--plugin", metavar="FILE.py", multiple=True, help="Run a Python file that registers passes or rules.")
@click.option("--xla-flags", default="", metavar="FLAGS", help="Flags of --engine xla.")
@click.option("--message", metavar="REGEX", help="The fault is a compile that fails with this message instead.")
@click.option("--seed", default=0, show_default=True, help="Seed of random inputs.")
@click.option("--budget", default=400, show_default=True, help="Most candidates that are tried.")
@click.option("--force", is_flag=True, help="Overwrite OUT where it exists.")
@module_option
@json_option
def command(
    path: str,
    output: str,
    oracle: str,
    engine: str,
    passes: str | None,
    pipeline: str | None,
    plugin: tuple[str, ...],
    xla_flags: str,
    message: str | None,
    seed: int,
    budget: int,
    force: bool,
    module: str | None,
    as_json: bool,
) -> int:
    """Shrink the module in IN while it still shows the fault, and write it to OUT.

    Results are dropped, instructions become parameters or are left out, fusions are laid open, sizes shrink; every
    candidate is a module that the verifier accepts. Of a dump the first stage is taken. Exit 1 where IN does not show
    the fault.
    """
    from hloscope.bisect.reduce import reduce_module
    from hloscope.core.errors import InternalError
    from hloscope.core.passes.registry import Registry
    from hloscope.core.text import load_module, print_module
    from hloscope.core.views.run import load

    refuse_existing(output, force)
    registry = Registry()
    for file in plugin:
        registry.load_plugin(file)
    with load(path, module) as run:
        say_notes(run.notes)
        text, source = run.stage_text(0), run.source
    subject = load_module(text, path)
    shows = _shows(oracle, engine, passes, pipeline, registry, xla_flags, message, seed)
    try:
        found = reduce_module(subject, shows, budget=budget, watch=_progress(as_json))
    except InternalError as error:
        print(f"hloscope: {path}: {error}", file=sys.stderr)
        return 1
    small = print_module(found.module)
    with open(output, "w", encoding="utf-8", errors="surrogateescape") as out:
        out.write(small)
    keys = {
        "before": found.before,
        "after": found.after,
        "out": output,
        "probes": found.probes,
        "steps": found.steps,
    }
    emit_object(keys, as_json, lambda: _show(found, output, small), source=source)
    return 0


def _shows(
    oracle: str,
    engine: str,
    passes: str | None,
    pipeline: str | None,
    registry: Registry,
    xla_flags: str,
    message: str | None,
    seed: int,
) -> Shows:
    if oracle != "reference":
        from hloscope.bisect.oracles import CommandOracle

        judge = CommandOracle(oracle).judge
        return lambda candidate: judge(candidate).kind in ("wrong", "failed")
    pattern = None if message is None else _pattern(message)
    if engine == "xla":
        return _xla(shlex.split(xla_flags), pattern, seed)
    return _core(passes, pipeline, registry, pattern, seed)


def _pattern(message: str) -> re.Pattern[str]:
    try:
        return re.compile(message)
    except re.error as error:
        raise UsageError(f"--message {message!r} is not a regular expression: {error}") from None


def _xla(flags: Sequence[str], pattern: re.Pattern[str] | None, seed: int) -> Shows:
    """The installed XLA:CPU fails with the message, or gives other values than the evaluator."""
    from hloscope.core.runtime.evaluator import Token, leaves
    from hloscope.core.runtime.inputs import inputs_for
    from hloscope.core.text import print_module
    from hloscope.core.xla.execute import execute_hlo_text

    def shows(candidate: HloModule) -> bool:
        given = inputs_for(candidate.entry, seed)
        arrays = [leaf for value in given for leaf in leaves(value) if not isinstance(leaf, Token)]
        try:
            have, _, _ = execute_hlo_text(print_module(candidate), arrays, flags=flags, timeout=120)
        except CompileError as error:
            return pattern is not None and pattern.search(error.message) is not None
        return pattern is None and _differs(candidate, candidate, given, have)

    return shows


def _core(
    passes: str | None, pipeline: str | None, registry: Registry, pattern: re.Pattern[str] | None, seed: int
) -> Shows:
    """Our own compile raises with the message, or makes a module that computes something else."""
    from hloscope.core.passes.context import PassContext
    from hloscope.core.passes.pipelines import compile_module, transforms_pipeline, whole_pipeline
    from hloscope.core.runtime.evaluator import Token, evaluate
    from hloscope.core.runtime.inputs import inputs_for

    def made() -> list[HloPass]:
        if passes is not None:
            return transforms_pipeline(registry.make_all(passes), registry)
        return whole_pipeline(pipeline or "cpu", registry)

    made()  # a wrong name is said before anything runs

    def shows(candidate: HloModule) -> bool:
        compiled = candidate.clone()
        try:
            compile_module(compiled, made(), PassContext(), registry)
        except (Exception, SystemExit) as error:
            return pattern is not None and pattern.search(f"{type(error).__name__}: {error}") is not None
        if pattern is not None:
            return False
        given = inputs_for(candidate.entry, seed)
        have = [one for one in evaluate(compiled, given) if not isinstance(one, Token)]
        return _differs(candidate, candidate, given, have)

    return shows


def _differs(module: HloModule, original: HloModule, given: Sequence[object], have: Sequence[object]) -> bool:
    """Whether results are out of bounds against what the evaluator makes of the module."""
    from typing import Any, cast

    from hloscope.core.runtime.compare import compare_all, rules_for
    from hloscope.core.runtime.evaluator import Token, evaluate

    try:
        want = [one for one in evaluate(original, cast("Any", given)) if not isinstance(one, Token)]
    except HloscopeError:
        return False
    if len(want) != len(have):
        return True
    return not all(one.within for one in compare_all(want, cast("Any", have), rules_for(module)))


def _progress(as_json: bool) -> Callable[[Reduced, str], None] | None:
    if as_json or not sys.stderr.isatty():
        return None

    def show(found: Reduced, what: str) -> None:
        click.echo(f"  {found.after} of {found.before} instructions after {found.probes} probes: {what}", err=True)

    return show


def _show(found: Reduced, output: str, text: str) -> None:
    click.secho(f"{found.before} → {found.after} instructions, {found.probes} probes: {output}", bold=True)
    lines = [line for line in text.split("\n") if line]
    for line in lines[:40]:
        print(line)
    if len(lines) > 40:
        print(f"… {len(lines) - 40} more lines in {os.path.basename(output)}")
