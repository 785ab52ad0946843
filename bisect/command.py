"""``hloscope bisect``: from "the numbers changed" to the decision that changed them."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from hloscope.core.cli.opening import module_option, say_notes
from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hloscope.bisect.result import Answer, Culprit
    from hloscope.bisect.search import Step
    from hloscope.core.passes.interface import HloPass
    from hloscope.core.passes.registry import Registry
    from hloscope.core.views.data import Source
    from hloscope.core.views.run import Run


@click.command("bisect", epilog="Example: hloscope bisect module.hlo --plugin my_rules.py --pipeline cpu")
@click.argument("path", metavar="FILE", required=False)
@click.option(
    "--engine",
    type=click.Choice(("core", "xla")),
    default="core",
    show_default=True,
    help="The compiler that is searched: ours, or the installed XLA:CPU.",
)
@click.option("--command", "user_command", metavar="COMMAND", help="Search the XLA that a program of yours uses.")
@click.option("--against", metavar="B", help="A second dump of the same program: where they part, and which is wrong.")
@click.option("--xla-flags", default="", metavar="FLAGS", help="Flags of every probe of the real XLA.")
@click.option("--passes", metavar="A,B", help="The passes to search, in order, as hloscope opt takes them.")
@click.option("--pipeline", metavar="cpu/gpu", help="A backend's pipeline instead (cpu where neither is given).")
@click.option("--target", default="cpu", show_default=True, help="What the passes compile for.")
@click.option("--plugin", metavar="FILE.py", multiple=True, help="Run a Python file that registers passes or rules.")
@click.option("--disable-passes", metavar="F,…", help="Runs that are off in every probe.")
@click.option(
    "--oracle",
    default="reference",
    show_default=True,
    metavar="reference/FILE.npz/COMMAND",
    help="What is right: the evaluator on FILE, recorded outputs, or a command on each compiled module.",
)
@click.option("--args", "args_path", metavar="ARGS.npz", help="Inputs; random ones by --seed where this is left out.")
@click.option("--seed", default=0, show_default=True, help="Seed of random inputs.")
@click.option("--cures/--no-cures", default=True, help="Look for switches of the real XLA that make it right.")
@click.option("--bundle", metavar="DIR", help="Write a folder for a bug report: module, inputs, results, report.")
@click.option("--no-redact", is_flag=True, help="Keep source files and operation names in the bundle.")
@click.option("--ledger", metavar="RUN.ledger", help="Keep the ledger of the compile that shows the fault.")
@click.option("--force", is_flag=True, help="Overwrite the ledger or write into the bundle where it exists.")
@module_option
@json_option
def command(
    path: str | None,
    engine: str,
    user_command: str | None,
    against: str | None,
    xla_flags: str,
    passes: str | None,
    pipeline: str | None,
    target: str,
    plugin: tuple[str, ...],
    disable_passes: str | None,
    oracle: str,
    args_path: str | None,
    seed: int,
    cures: bool,
    bundle: str | None,
    no_redact: bool,
    ledger: str | None,
    force: bool,
    module: str | None,
    as_json: bool,
) -> int:
    """Find the pass, and within it the decision, after which a module computes something else.

    A dump (or ledger) of any compiler: its stages are evaluated, by halving, until the first wrong one is known, then
    what that stage changed is put back piece by piece until the smallest change is known that makes it wrong.

    A single HLO file: it is compiled with our own compiler many times, each time with fewer passes and then fewer
    rewrites, and evaluated. The answer names the rewrite (rule, instruction, fuel) and how to see it with hloscope opt.

    With --engine xla the file is compiled and run by the installed XLA:CPU; where the result is wrong, the stages that
    it dumped are searched, and switches that cure it are listed apart. --command does the same for any program, by
    XLA_FLAGS and its exit code: 0 right, 125 no answer, 1 to 124 wrong.

    Exit 1 where something is wrong, 0 where nothing differs.
    """
    from hloscope.core.cli.opening import refuse_existing
    from hloscope.core.views.run import find_definition, load

    ending = Ending(as_json, bundle, not no_redact, force)
    if user_command is not None:
        if path is not None:
            raise UsageError("--command takes no FILE")
        return _search_command(user_command, xla_flags, cures, ending)
    if path is None:
        raise UsageError("name a FILE or a dump, or give --command")
    if ledger is not None:
        refuse_existing(ledger, force)
    with load(path, module) as run:
        say_notes(run.notes)
        if len(run) > 1:
            if passes is not None or pipeline is not None or plugin or disable_passes:
                raise UsageError("--passes, --pipeline, --plugin, --disable-passes are for a single module", path=path)
            if against is not None:
                return _search_two(run, against, module, args_path, seed, ending)
            return _search_dump(run, oracle, args_path, seed, ending)
        if against is not None:
            raise UsageError("--against needs two dumps", path=path)
        data = run.stage_bytes(0)
        source = run.source
    if engine == "xla":
        if passes is not None or pipeline is not None or plugin or ledger is not None:
            raise UsageError("--passes, --pipeline, --plugin and --ledger are for --engine core", path=path)
        return _search_xla(data, path, source, oracle, args_path, seed, xla_flags, disable_passes, cures, ending)
    from hloscope.bisect.oracles import make_oracle
    from hloscope.bisect.subjects.core import CoreSearch, CoreSubject
    from hloscope.core.passes.flags import PassFlags
    from hloscope.core.passes.registry import Registry
    from hloscope.core.text import load_module

    registry = Registry()
    for file in plugin:
        registry.load_plugin(file)
    make = _pipeline(passes, pipeline, registry)
    subject_module = load_module(data.decode("utf-8", "surrogateescape"), path)
    flags = PassFlags(xla_disable_hlo_passes=tuple(disable_passes.split(",")) if disable_passes else ())
    subject = CoreSubject(subject_module, path, make, registry, flags, target)
    search = CoreSearch(
        subject, make_oracle(oracle, subject_module, args_path, seed), ledger, force, _progress()
    )
    answer = search.run()

    def line(one: Culprit) -> int | None:
        place = find_definition(data, one.instruction, 0) if one.instruction is not None else None
        return place.line + 1 if place is not None else None

    return _finish(answer, source, line, ending)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer is given."""

    as_json: bool
    bundle: str | None
    redact: bool
    force: bool


def _finish(answer: Answer, source: Source | None, line: Callable[[Culprit], int | None], ending: Ending) -> int:
    """Write the bundle where one is wanted, print the answer, and return the exit code."""
    if ending.bundle is not None and answer.fault:
        from hloscope.bisect.bundle import write_bundle

        words = ["bisect", *(shlex.quote(word) for word in _words())]
        write_bundle(ending.bundle, answer, source, words, redact=ending.redact, force=ending.force)
    keys = {
        "verdict": answer.verdict,
        "culprits": [_culprit_keys(one, line(one)) for one in answer.culprits],
        "cures": answer.cures,
        "probes": answer.probes,
        "evidence": answer.evidence,
        "reduced": None,
        "bundle": ending.bundle if answer.fault else None,
    }
    emit_object(keys, ending.as_json, lambda: _show(answer, line), source=source)
    if ending.bundle is not None and answer.fault and not ending.as_json:
        click.echo(f"  {ending.bundle}: the bundle; report.md in it says how to see it")
    return 1 if answer.fault else 0


def _words() -> list[str]:
    """The command line after ``bisect``."""
    return sys.argv[sys.argv.index("bisect") + 1 :] if "bisect" in sys.argv else []


def _search_command(user_command: str, xla_flags: str, cures: bool, ending: Ending) -> int:
    """A user's own program as what is searched."""
    from hloscope.bisect.subjects.xla import CommandSearch

    answer = CommandSearch(user_command, shlex.split(xla_flags), cures=cures, watch=_progress()).run()
    return _finish(answer, None, lambda _: None, ending)


def _search_xla(
    data: bytes,
    path: str,
    source: Source,
    oracle: str,
    args_path: str | None,
    seed: int,
    xla_flags: str,
    disable_passes: str | None,
    cures: bool,
    ending: Ending,
) -> int:
    """The installed XLA:CPU on one module as what is searched."""
    from hloscope.bisect.subjects.xla import XlaSearch, unoptimised
    from hloscope.core.runtime import npz
    from hloscope.core.runtime.evaluator import Token, Value, leaves
    from hloscope.core.runtime.inputs import inputs_for
    from hloscope.core.text import load_module
    from hloscope.core.views.run import find_definition

    text = data.decode("utf-8", "surrogateescape")
    module = load_module(text, path)
    recorded = npz.read(oracle) if oracle.endswith(".npz") else None
    if recorded is None and oracle not in ("reference", "unoptimised"):
        raise UnsupportedError(f"--oracle {oracle}: --engine xla takes reference, unoptimised or an .npz")
    args: Sequence[Value] = npz.read(args_path).inputs if args_path is not None else ()
    if not args and recorded is not None:
        args = recorded.inputs
    args = args or inputs_for(module.entry, seed)
    expected = recorded.outputs if recorded is not None else None
    if oracle == "unoptimised":
        expected = unoptimised(text, [leaf for one in args for leaf in leaves(one) if not isinstance(leaf, Token)])
    disabled = tuple(disable_passes.split(",")) if disable_passes else ()
    flags = shlex.split(xla_flags)
    answer = XlaSearch(module, text, path, args, expected, flags, disabled, cures, _progress()).run()

    def line(one: Culprit) -> int | None:
        place = find_definition(data, one.instruction, 0) if one.instruction is not None else None
        return place.line + 1 if place is not None else None

    return _finish(answer, source, line, ending)


def _search_two(run: Run, against: str, module: str | None, args_path: str | None, seed: int, ending: Ending) -> int:
    """Two dumps of one program."""
    from hloscope.bisect.subjects.against import AgainstSearch
    from hloscope.core.cli.opening import same_module
    from hloscope.core.runtime import npz
    from hloscope.core.runtime.verdicts import ReplayOptions
    from hloscope.core.views.run import load

    with load(against, module if module is not None else same_module(run, against)) as second:
        say_notes(second.notes)
        given = npz.read(args_path).inputs if args_path is not None else None
        options = ReplayOptions(seed=seed, workers=1)
        answer = AgainstSearch(run, second, given or None, options, _progress()).run()
    return _finish(answer, run.source, lambda _: None, ending)


def _search_dump(run: Run, oracle: str, args_path: str | None, seed: int, ending: Ending) -> int:
    """The stages of a dump as what is searched."""
    from hloscope.bisect.subjects.dump import DumpSearch
    from hloscope.core.runtime import npz
    from hloscope.core.runtime.verdicts import ReplayOptions

    recorded = npz.read(oracle) if oracle.endswith(".npz") else None
    if recorded is None and oracle != "reference":
        raise UnsupportedError(f"--oracle {oracle}: the stages of a dump are judged by the evaluator or an .npz")
    if recorded is not None and not recorded.outputs:
        raise UsageError("holds no outputs (out_000, out_001, …)", path=oracle)
    given = npz.read(args_path).inputs if args_path is not None else (recorded.inputs if recorded is not None else None)
    answer = DumpSearch(
        run,
        given or None,
        recorded.outputs if recorded is not None else None,
        ReplayOptions(seed=seed, workers=1),
        _progress(),
    ).run()

    def line(one: Culprit) -> int | None:
        if one.instruction is None or one.stage is None:
            return None
        place = run.definition(one.stage, one.instruction)
        return place.line + 1 if place is not None else None

    return _finish(answer, run.source, line, ending)


def _pipeline(passes: str | None, pipeline: str | None, registry: Registry) -> Callable[[], list[HloPass]]:
    from hloscope.core.passes.pipelines import named_pipeline, transforms_pipeline

    if passes is not None and pipeline is not None:
        raise UsageError("--passes and --pipeline exclude each other")
    if passes is None:
        named_pipeline(pipeline or "cpu", registry)  # a wrong name is said before anything runs
        return lambda: named_pipeline(pipeline or "cpu", registry)
    if not registry.make_all(passes):
        raise UsageError("--passes names no pass")
    return lambda: transforms_pipeline(registry.make_all(passes), registry)


def _culprit_keys(culprit: Culprit, line: int | None) -> dict[str, object]:
    return {
        "file": culprit.file,
        "stage": culprit.stage,
        "pipeline": culprit.pipeline,
        "pass": culprit.pass_name,
        "occurrence": culprit.occurrence,
        "fuel": culprit.fuel,
        "decision": culprit.decision,
        "rule": culprit.rule,
        "instruction": culprit.instruction,
        "line": line,
        "produced": culprit.produced,
        "sentence": culprit.sentence,
    }


def _progress() -> Callable[[Step], None] | None:
    """Shows every probe on a terminal, where the answer goes to a pipe too."""
    if not sys.stderr.isatty():
        return None

    def show(step: Step) -> None:
        click.echo(
            f"  {step.level} {step.tried} of {step.low}..{step.high}: {step.outcome.kind}; "
            f"{step.remaining} more at most",
            err=True,
        )

    return show


def _show(answer: Answer, line: Callable[[Culprit], int | None]) -> None:
    click.secho(f"verdict: {answer.verdict}", bold=True)
    for one in answer.culprits:
        where = f"{one.pipeline}/{one.pass_name}" if one.pipeline else one.pass_name
        stage = f"stage {one.stage}, " if one.stage is not None else ""
        fuel = f", fuel {one.fuel}" if one.fuel is not None else ""
        click.echo(f"culprit: {stage}{where}, run {one.occurrence}{fuel}")
        if one.sentence:
            click.echo(f"  {one.sentence}")
        at = line(one)
        if at is not None:
            click.echo(f"  {one.file}:{at}: %{one.instruction}")
        if one.fuel is not None:
            click.echo(f"  see it: hloscope opt … --fuel {one.pass_name}={one.fuel}, right with ={one.fuel - 1}")
    for said in answer.evidence:
        click.echo(f"  {said}")
    for cure in answer.cures:
        click.echo(f"  cured by: {cure}")
    click.echo(f"  {len(answer.probes)} probe{'' if len(answer.probes) == 1 else 's'}")
