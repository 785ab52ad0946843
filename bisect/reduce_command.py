"""``hloscope reduce``: shrinks a module that still shows a fault."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from hloscope.core.cli.opening import module_option, say_notes
from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.cli.outputs import check_outputs
from hloscope.core.errors import CompileError, HloscopeError, UsageError

if TYPE_CHECKING:
    from hloscope.bisect.reduce import Reduced, Shows
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.interface import HloPass
    from hloscope.core.passes.registry import Registry
    from hloscope.core.runtime.evaluator import Array, Value


@click.command("reduce", epilog="Example: hloscope reduce bad.hlo --engine xla -o small.hlo")
@click.argument("path", metavar="IN")
@click.option("-o", "--output", required=True, metavar="OUT", help="Where the small module goes.")
@click.option(
    "--oracle",
    default="reference",
    show_default=True,
    metavar="reference/unoptimised/COMMAND",
    help="The fault is there where the compiled module differs from the evaluator (or, with --engine xla, from XLA:CPU "
    "without optimizations), or where a command on the module ends with 1 to 124 or crashes.",
)
@click.option("--engine", type=click.Choice(("core", "xla")), default="core", show_default=True, help="The compiler.")
@click.option("--passes", metavar="A,B", help="Passes of --engine core instead of its whole pipeline.")
@click.option("--pipeline", metavar="cpu/gpu", help="The pipeline of --engine core (cpu by default).")
@click.option("--plugin", metavar="FILE.py", multiple=True, help="Run a Python file that registers passes or rules.")
@click.option("--xla-flags", default="", metavar="FLAGS", help="Flags of --engine xla.")
@click.option("--message", metavar="REGEX", help="The fault is a compile that fails with this message instead.")
@click.option("--args", "args_path", metavar="ARGS.npz", help="Inputs of the module; random ones where left out.")
@click.option("--seed", default=0, show_default=True, help="Seed of random inputs.")
@click.option("--budget", default=400, show_default=True, help="Most candidates that are tried.")
@click.option("--fresh", is_flag=True, help="Ask everything anew, also what a killed run of this has found.")
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
    args_path: str | None,
    seed: int,
    budget: int,
    fresh: bool,
    force: bool,
    module: str | None,
    as_json: bool,
) -> int:
    """Shrink the module in IN while it still shows the fault, and write it to OUT.

    Results are dropped, instructions become parameters or are left out, fusions are laid open, sizes shrink; every
    candidate is a module that the verifier accepts. Of a dump the first stage is taken. Exit 1 where IN does not show
    the fault. Killed, the same command goes on where it was.
    """
    from hloscope.bisect.journal import Journal, content_of
    from hloscope.bisect.reduce import reduce_module, remembered
    from hloscope.core.errors import InternalError
    from hloscope.core.passes.registry import Registry
    from hloscope.core.runtime import npz
    from hloscope.core.text import load_module, print_module
    from hloscope.core.views.run import load
    from hloscope.core.xla.targets import package_version

    check_outputs(force, files=[output], inputs=[path, args_path, *plugin])
    registry = Registry()
    for file in plugin:
        registry.load_plugin(file)
    with load(path, module) as run:
        say_notes(run.notes)
        text, source = run.stage_text(0), run.source
    subject = load_module(text, path)
    inputs = inputs_of(subject, npz.read(args_path).inputs if args_path is not None else ())
    given = Inputs(seed, inputs)
    shows = shows_fault(oracle, engine, passes, pipeline, registry, xla_flags, message, given)
    settings = (oracle, engine, passes, pipeline, plugin, xla_flags, message, seed, args_path)
    files = (*plugin, *shlex.split(oracle), args_path or "")
    question = ("reduce", text, repr(settings), content_of(files), str(package_version("jaxlib")))
    with Journal.for_question(*question, fresh=fresh) as journal:
        try:
            found = reduce_module(subject, remembered(shows, journal), budget=budget, watch=progress(as_json))
        except InternalError as error:
            print(f"hloscope: {path}: {error}", file=sys.stderr)
            return 1
        small = print_module(found.module)
        write_whole(output, small)
    keys = {
        "before": found.before,
        "after": found.after,
        "out": output,
        "probes": found.probes,
        "steps": found.steps,
    }
    emit_object(keys, as_json, lambda: _show(found, output, small), source=source)
    return 0


def write_whole(path: str, text: str) -> None:
    """Whole or not at all, so that a kill leaves nothing in the way of the next try. Raises UsageError."""
    part = f"{path}.{os.getpid()}.part"
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            part = path  # a device or a pipe: a file put in its place would end it
        with open(part, "w", encoding="utf-8", errors="surrogateescape") as out:
            out.write(text)
        if part != path:
            os.replace(part, path)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror or error}", path=path) from None


@dataclass(frozen=True, slots=True)
class Inputs:
    """What candidates are run on."""

    seed: int = 0
    known: Mapping[str, Array] = field(default_factory=dict[str, "Array"])
    """Values of the original module's parameters by name: they stay with those that keep name and shape."""

    def of(self, candidate: HloModule) -> list[Value]:
        """A candidate's inputs, random ones where nothing is known."""
        from hloscope.core.runtime.inputs import inputs_for

        drawn = inputs_for(candidate.entry, self.seed)
        pairs = zip(candidate.entry.parameters, drawn, strict=True)
        return [_fitting(self.known.get(one.name), value) for one, value in pairs]


def _fitting(known: Array | None, drawn: Value) -> Value:
    shape, dtype = getattr(drawn, "shape", None), getattr(drawn, "dtype", None)
    return known if known is not None and (known.shape, known.dtype) == (shape, dtype) else drawn


def inputs_of(module: HloModule, values: Sequence[Value]) -> dict[str, Array]:
    """Arrays by the name of their parameter; what is no array is left out."""
    from hloscope.core.runtime.evaluator import Token

    pairs = zip(module.entry.parameters, values, strict=False)
    return {one.name: value for one, value in pairs if not isinstance(value, (tuple, list, Token))}


def shows_fault(
    oracle: str,
    engine: str,
    passes: str | None,
    pipeline: str | None,
    registry: Registry,
    xla_flags: str,
    message: str | None,
    inputs: Inputs,
    disabled: Sequence[str] = (),
) -> Shows:
    """What says whether a candidate still has the fault. Raises UsageError for what cannot be used."""
    if oracle.endswith(".npz"):
        raise UsageError(f"--oracle {oracle}: recorded results fit one module, and a smaller one has others")
    if oracle == "unoptimised" and engine != "xla":
        raise UsageError("--oracle unoptimised is for --engine xla")
    if oracle not in ("reference", "unoptimised") and message is not None:
        raise UsageError("--message is what a compile fails with; a command as --oracle looks for it by itself")
    if oracle not in ("reference", "unoptimised"):
        from hloscope.bisect.oracles import CommandOracle

        judge = CommandOracle(oracle).judge
        return lambda candidate: judge(candidate).kind in ("wrong", "failed")
    pattern = None if message is None else _pattern(message)
    if engine == "xla":
        return _xla(shlex.split(xla_flags), pattern, inputs, oracle == "unoptimised")
    return _core(passes, pipeline, registry, pattern, inputs, disabled)


def _pattern(message: str) -> re.Pattern[str]:
    try:
        return re.compile(message)
    except re.error as error:
        raise UsageError(f"--message {message!r} is not a regular expression: {error}") from None


def _xla(flags: Sequence[str], pattern: re.Pattern[str] | None, inputs: Inputs, unoptimised: bool) -> Shows:
    """The installed XLA:CPU fails with the message, or gives other values than the evaluator or itself unoptimised."""
    from hloscope.bisect.subjects.xla import UNOPTIMISED
    from hloscope.bisect.warm import WARM
    from hloscope.core.runtime.compare import compare_all, rules_for
    from hloscope.core.runtime.evaluator import Token, leaves
    from hloscope.core.text import print_module
    from hloscope.core.xla.execute import execute_hlo_text

    def shows(candidate: HloModule) -> bool:
        given = inputs.of(candidate)
        arrays = [leaf for value in given for leaf in leaves(value) if not isinstance(leaf, Token)]
        try:
            have, _, _ = execute_hlo_text(print_module(candidate), arrays, flags=flags, timeout=120, start=WARM.start)
        except CompileError as error:
            return pattern is not None and pattern.search(error.message) is not None
        if pattern is not None:
            return False
        if not unoptimised:
            return _differs(candidate, candidate, given, have)
        try:
            want, _, _ = execute_hlo_text(
                print_module(candidate), arrays, flags=UNOPTIMISED, timeout=120, start=WARM.start
            )
        except CompileError:
            return False
        return not all(one.within for one in compare_all(want, have, rules_for(candidate)))

    return shows


def _core(
    passes: str | None,
    pipeline: str | None,
    registry: Registry,
    pattern: re.Pattern[str] | None,
    inputs: Inputs,
    disabled: Sequence[str],
) -> Shows:
    """Our own compile raises with the message, or makes a module that computes something else."""
    from hloscope.bisect.oracles import evaluated
    from hloscope.core.passes.context import PassContext
    from hloscope.core.passes.flags import PassFlags
    from hloscope.core.passes.pipelines import compile_module, transforms_pipeline, whole_pipeline
    from hloscope.core.runtime.evaluator import Token

    flags = PassFlags(xla_disable_hlo_passes=tuple(disabled))

    def made() -> list[HloPass]:
        if passes is not None:
            return transforms_pipeline(registry.make_all(passes), registry)
        return whole_pipeline(pipeline or "cpu", registry)

    made()  # a wrong name is said before anything runs

    def shows(candidate: HloModule) -> bool:
        compiled = candidate.clone()
        try:
            compile_module(compiled, made(), PassContext(None, None, flags), registry)
        except (Exception, SystemExit) as error:
            return pattern is not None and pattern.search(f"{type(error).__name__}: {error}") is not None
        if pattern is not None:
            return False
        given = inputs.of(candidate)
        try:
            have = [one for one in evaluated(compiled, given) if not isinstance(one, Token)]
        except HloscopeError:
            return False  # nobody knows what it computes
        return _differs(candidate, candidate, given, have)

    return shows


def _differs(module: HloModule, original: HloModule, given: Sequence[object], have: Sequence[object]) -> bool:
    """Whether results are out of bounds against what the evaluator makes of the module."""
    from typing import Any, cast

    from hloscope.bisect.oracles import evaluated
    from hloscope.core.runtime.compare import compare_all, rules_for
    from hloscope.core.runtime.evaluator import Token

    try:
        want = [one for one in evaluated(original, cast("Any", given)) if not isinstance(one, Token)]
    except HloscopeError:
        return False
    if len(want) != len(have):
        return True
    return not all(one.within for one in compare_all(want, cast("Any", have), rules_for(module)))


def progress(as_json: bool) -> Callable[[Reduced, str], None] | None:
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
