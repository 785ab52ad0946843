"""``hloscope bisect``: from "the numbers changed" to the decision that changed them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from hloscope.bisect.settings import Ending, Given
from hloscope.core.cli.opening import module_option, say_notes
from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.errors import EvaluationError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from hloscope.bisect.bundle import Extras
    from hloscope.bisect.probing import Prober
    from hloscope.bisect.result import Answer, Culprit
    from hloscope.bisect.search import Step
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value
    from hloscope.core.views.data import Source
    from hloscope.core.views.run import Run


@click.command("bisect", epilog="Example: hloscope bisect module.hlo --plugin my_rules.py --pipeline cpu")
@click.argument("path", metavar="FILE/FILE.py:FUNCTION", required=False)
@click.option(
    "--engine",
    type=click.Choice(("core", "xla")),
    default="core",
    show_default=True,
    help="The compiler that is searched: ours, or the installed XLA:CPU.",
)
@click.option("--command", "user_command", metavar="COMMAND", help="Search the XLA that a program of yours uses.")
@click.option(
    "--against",
    metavar="B",
    help="A second dump of the same program, or for one module flags or another file of XLA:CPU: where they part, and "
    "which is wrong.",
)
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
@click.option("--over", metavar="jaxlib=A..B", help="Search releases of the compiler: where something changed.")
@click.option("--jobs", default=1, show_default=True, help="Probes at the same time, on the local cores.")
@click.option("--cluster", metavar="ADDRESS", help="Probes on a Dask cluster: the address of its scheduler.")
@click.option("--resume", is_flag=True, help="Go on where a killed run of this search was (the default).")
@click.option("--fresh", is_flag=True, help="Ask everything anew, also what a killed run of this search has found.")
@click.option("--timeout", type=float, metavar="SECONDS", help="Longest run of one probe (XLA, a command, our passes).")
@click.option("--arg", "shapes", metavar="SHAPE", multiple=True, help="Argument of a Pallas function, in order.")
@click.option("--report", metavar="FILE.md", help="Write the answer as Markdown, too.")
@click.option("--bundle", metavar="DIR", help="Write a folder for a bug report: module, inputs, results, report.")
@click.option("--no-reduce", is_flag=True, help="Do not make the bundle's module small.")
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
    over: str | None,
    jobs: int,
    cluster: str | None,
    resume: bool,
    fresh: bool,
    timeout: float | None,
    shapes: tuple[str, ...],
    report: str | None,
    bundle: str | None,
    no_reduce: bool,
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

    --over jaxlib=0.6.0..0.10.2 compiles the file with releases of the compiler, each in an environment of its own that
    is kept. FILE.py:FUNCTION is a Pallas kernel: what hardware may choose is searched.

    A search that is killed goes on where it was when the same command is given again. Exit 1 where something is wrong,
    0 where nothing differs.
    """
    from hloscope.bisect.journal import Journal, content_of
    from hloscope.bisect.probing import prober
    from hloscope.core.cli.outputs import check_outputs
    from hloscope.core.views.run import load

    if resume and fresh:
        raise UsageError("--resume and --fresh exclude each other")
    ending = Ending(as_json, bundle, not no_redact, force, report, not no_reduce)
    kernels = path.rpartition(":")[0] if path is not None and _PALLAS.match(path) else None
    files = [path, kernels, against, args_path, oracle, *plugin]
    check_outputs(force, ledger=ledger, files=[report], inputs=files)
    if bundle is not None:
        refuse_filled(bundle, force)
    settings = (
        path, engine, user_command, against, xla_flags, passes, pipeline, target, plugin, disable_passes, oracle,
        args_path, seed, cures, module, over, timeout, shapes, os.environ.get("XLA_FLAGS"),
    )  # fmt: skip
    started = (*files, *(word for text in (against, user_command, oracle) for word in _split(text)))
    question = (repr(settings), content_of(word for word in started if word), _installed())
    with Journal.for_question(*question, fresh=fresh) as journal, prober(journal, jobs, cluster) as probes:
        if user_command is not None:
            if path is not None:
                raise UsageError("--command takes no FILE")
            return _search_command(user_command, xla_flags, cures, timeout, probes, ending)
        if path is None:
            raise UsageError("name a FILE or a dump, or give --command")
        if _PALLAS.match(path):
            if plugin or passes or pipeline or disable_passes or against or over or args_path:
                raise UsageError("a Pallas kernel takes --arg, --target, --seed and nothing of a module", path=path)
            return _search_pallas(path, shapes, target, seed, probes, ending)
        if shapes:
            raise UsageError("--arg is for a Pallas kernel, FILE.py:FUNCTION", path=path)
        with load(path, module) as run:
            say_notes(run.notes)
            if len(run) > 1 and over is None:
                if passes is not None or pipeline is not None or plugin or disable_passes:
                    raise UsageError(
                        "--passes, --pipeline, --plugin, --disable-passes are for a single module", path=path
                    )
                if against is not None:
                    return _search_two(run, against, module, args_path, seed, probes, ending)
                return _search_dump(run, module, oracle, args_path, seed, probes, ending)
            data = run.stage_bytes(0)
            source = run.source
        given = Given(data, path, source, oracle, args_path, seed)
        if os.environ.get("XLA_FLAGS") and (against is not None or over is not None or engine == "xla"):
            say_notes(["XLA_FLAGS of the environment are for a program and not used here: --xla-flags are"])
        if against is not None:
            if passes is not None or pipeline is not None or plugin or disable_passes or over:
                raise UsageError("--against takes no passes, pipelines, plugins or --over", path=path)
            return _search_flags(given, against, xla_flags, timeout, probes, ending)
        if over is not None:
            if passes is not None or pipeline is not None or plugin or ledger is not None or disable_passes:
                raise UsageError("--over takes no --passes, --pipeline, --plugin, --disable-passes, --ledger")
            return _search_over(given, over, xla_flags, probes, ending)
        if engine == "xla":
            if passes is not None or pipeline is not None or plugin or ledger is not None:
                raise UsageError("--passes, --pipeline, --plugin and --ledger are for --engine core", path=path)
            return _search_xla(given, xla_flags, disable_passes, cures, timeout, probes, ending)
        if passes is not None and pipeline is not None:
            raise UsageError("--passes and --pipeline exclude each other")
        return _search_core(
            given, passes, pipeline, plugin, disable_passes, target, ledger, timeout, probes, ending
        )


def _split(text: str | None) -> list[str]:
    """Words as a shell has them. Raises UsageError where a quote is not closed."""
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise UsageError(f"{text}: {str(error).lower()}") from error


def _flags(text: str) -> list[str]:
    """The flags of ``--xla-flags``. Raises UsageError for a word that is none: XLA would leave it out in silence."""
    flags = _split(text)
    wrong = next((word for word in flags if not word.startswith("--")), None)
    if wrong is not None:
        raise UsageError(f"--xla-flags: {wrong} is no flag, which begins with --")
    return flags


_PALLAS = re.compile(r".+\.py(?::[A-Za-z_]\w*)?$")


def refuse_filled(folder: str, force: bool) -> None:
    """Raises UsageError where a bundle's folder holds something: said before the search, not after it."""
    if not force and (os.path.isfile(folder) or (os.path.isdir(folder) and os.listdir(folder))):
        raise UsageError("exists already and is not empty", path=folder, hint="--force writes into it")


def _installed() -> str:
    """The compiler that a search of it depends on."""
    from hloscope.core.xla.targets import package_version

    return f"{package_version('jaxlib')} {package_version('numpy')}"


def _search_core(
    given: Given,
    passes: str | None,
    pipeline: str | None,
    plugin: tuple[str, ...],
    disable_passes: str | None,
    target: str,
    ledger: str | None,
    timeout: float | None,
    probes: Prober,
    ending: Ending,
) -> int:
    """Our own compiler on one module as what is searched."""
    from hloscope.bisect.bundle import redacted
    from hloscope.bisect.extras import Options, extras_of_core
    from hloscope.bisect.oracles import make_oracle
    from hloscope.bisect.reduce_command import Inputs, inputs_of
    from hloscope.bisect.subjects.core import CoreSearch
    from hloscope.bisect.subjects.core_probe import Recipe
    from hloscope.core.passes.registry import Registry, split_passes
    from hloscope.core.runtime import npz

    registry = Registry()
    texts: list[tuple[str, str]] = []
    for file in plugin:
        registry.load_plugin(file)
        with open(file, encoding="utf-8") as opened:
            texts.append((file, opened.read()))
    if passes is not None and not split_passes(passes):
        raise UsageError("--passes names no pass")
    disabled = tuple(disable_passes.split(",")) if disable_passes else ()
    hidden = ending.bundle is not None and ending.redact
    text, path = (redacted(given.text), "module.hlo") if hidden else (given.text, given.path)
    recipe = Recipe(text, path, passes, pipeline, tuple(texts), disabled, target, timeout)
    subject = recipe.subject(registry)
    if passes is None and not disabled:
        _refuse_late(subject.module, given)
    with _placed(given.data, given.path):
        judge = make_oracle(given.oracle, subject.module, given.args_path, given.seed)
    with TemporaryDirectory(prefix="hloscope-bisect-") as folder:
        # Elsewhere first: a kill leaves nothing in the way of the next try.
        kept = os.path.join(folder, "run.ledger") if ledger is not None or ending.bundle is not None else None
        answer = CoreSearch(subject, judge, kept, ending.force, _progress(), probes).run()
        if ledger is not None and kept is not None and os.path.exists(kept):
            shutil.copyfile(kept, f"{ledger}.part")
            os.replace(f"{ledger}.part", ledger)
        answer.culprits = [replace(one, file=given.path) for one in answer.culprits]
        extras = None
        if ending.bundle is not None and answer.fault:
            args = npz.read(given.args_path).inputs if given.args_path is not None else ()
            plugins = {os.path.basename(one): said for one, said in texts}
            extras = extras_of_core(
                answer, subject.module, given, Inputs(given.seed, inputs_of(subject.module, args)), probes, ending,
                Options(passes, pipeline, registry, disabled, plugins), kept,
            )  # fmt: skip
        return _finish(answer, given.source, given.line, ending, extras)


@contextmanager
def _placed(data: bytes, path: str) -> Generator[None]:
    """Gives an error of the evaluator's the file and the line of the instruction that it names."""
    from hloscope.core.views.run import find_definition

    try:
        yield
    except EvaluationError as error:
        name: object = getattr(error, "instruction_name", None)
        place = find_definition(data, name, 0) if isinstance(name, str) else None
        if place is not None and error.line is None:
            error.path, error.line = path, place.line + 1
        raise


def _refuse_late(module: HloModule, given: Given) -> None:
    """Raises UsageError for a module with which no pipeline can begin; that is no pass's fault."""
    from hloscope.core.views.run import find_definition

    late = next((one.name for one in module.instructions() if one.opcode == "bitcast"), None)
    if late is None:
        return
    place = find_definition(given.data, late, 0)
    raise UsageError(
        f"%{late} is a bitcast: the module is past layout assignment, before which a pipeline begins",
        path=given.path,
        line=place.line + 1 if place is not None else None,
        hint="--passes A,B,… names passes that come later",
    )


def _search_over(given: Given, over: str, xla_flags: str, probes: Prober, ending: Ending) -> int:
    """Releases of the compiler as what is searched."""
    from hloscope.bisect.bundle import Extras
    from hloscope.bisect.extras import dump_ledger
    from hloscope.bisect.subjects.over import OverSearch
    from hloscope.bisect.subjects.versions import versions_between
    from hloscope.bisect.subjects.xla_names import unused_shardings
    from hloscope.core.runtime import npz
    from hloscope.core.runtime.inputs import inputs_for
    from hloscope.core.text import load_module

    if given.oracle != "reference" and not given.oracle.endswith(".npz"):
        raise UnsupportedError(f"--oracle {given.oracle}: --over takes reference or an .npz")
    module = load_module(given.text, given.path)
    recorded = npz.read(given.oracle) if given.oracle.endswith(".npz") else None
    args: Sequence[Value] = npz.read(given.args_path).inputs if given.args_path is not None else ()
    args = args or (recorded.inputs if recorded is not None else ()) or inputs_for(module.entry, given.seed)
    expected = recorded.outputs if recorded is not None else None
    versions = versions_between(over)
    search = OverSearch(
        module, given.text, given.path, args, versions, expected, _flags(xla_flags), _progress(), probes
    )
    with _placed(given.data, given.path):
        answer = search.run()
    answer.evidence.extend(unused_shardings(given.text))
    extras = Extras(search.flags, True, None, dump_ledger(probes, "whole", ending), release=search.release)
    return _finish(answer, given.source, given.line, ending, extras)


def _search_pallas(
    path: str, shapes: tuple[str, ...], target: str, seed: int, probes: Prober, ending: Ending
) -> int:
    """A Pallas kernel as what is searched."""
    from hloscope.bisect.subjects.pallas import PallasSearch
    from hloscope.core.pallas.tracing import trace_file

    file, _, function = path.rpartition(":") if not path.endswith(".py") else (path, "", "")
    trace = trace_file(file, function or None, args=shapes)
    chip = None if target == "cpu" else target
    answer = PallasSearch(trace, chip, seed, watch=_progress(), journal=probes.journal).run()
    return _finish(answer, None, lambda culprit: culprit.line, ending)


def _finish(
    answer: Answer,
    source: Source | None,
    line: Callable[[Culprit], int | None],
    ending: Ending,
    extras: Extras | None = None,
) -> int:
    """Write the bundle where one is wanted, print the answer, and return the exit code."""
    if ending.bundle is not None and answer.fault:
        from hloscope.bisect.bundle import Extras, write_bundle

        words = ["bisect", *(shlex.quote(word) for word in _words())]
        extras = replace(extras or Extras(), tried=True)
        write_bundle(ending.bundle, answer, source, words, redact=ending.redact, force=ending.force, extras=extras)
    if ending.report is not None:
        from hloscope.bisect.bundle import report
        from hloscope.bisect.reduce_command import write_whole

        words = ["bisect", *(shlex.quote(word) for word in _words())]
        write_whole(ending.report, "\n".join(report(answer, source, words, [], line)) + "\n")
    keys = {
        "verdict": answer.verdict,
        "culprits": [_culprit_keys(one, line(one)) for one in answer.culprits],
        "cures": answer.cures,
        "pair": answer.pair,
        "changes": answer.changes,
        "probes": answer.probes,
        "evidence": answer.evidence,
        "reduced": answer.reduced,
        "bundle": ending.bundle if answer.fault else None,
    }
    emit_object(keys, ending.as_json, lambda: _show(answer, line), source=source)
    if ending.report is not None and not ending.as_json:
        click.echo(f"  {ending.report}: the answer as Markdown")
    if ending.bundle is not None and answer.fault and not ending.as_json:
        click.echo(f"  {ending.bundle}: the bundle; report.md in it says how to see it")
    return 1 if answer.fault else 0


def _words() -> list[str]:
    """The command line after ``bisect``."""
    return sys.argv[sys.argv.index("bisect") + 1 :] if "bisect" in sys.argv else []


def _search_command(
    user_command: str, xla_flags: str, cures: bool, timeout: float | None, probes: Prober, ending: Ending
) -> int:
    """A user's own program as what is searched."""
    from hloscope.bisect.bundle import Extras
    from hloscope.bisect.extras import dump_ledger
    from hloscope.bisect.subjects.xla import COMMAND_SECONDS, CommandSearch

    seconds = timeout or COMMAND_SECONDS
    search = CommandSearch(user_command, _flags(xla_flags), seconds, cures, _progress(), probes)
    return _finish(search.run(), None, lambda _: None, ending, Extras(ledger=dump_ledger(probes, "whole", ending)))


def _search_xla(
    given: Given,
    xla_flags: str,
    disable_passes: str | None,
    cures: bool,
    timeout: float | None,
    probes: Prober,
    ending: Ending,
) -> int:
    """The installed XLA:CPU on one module as what is searched."""
    from hloscope.bisect.extras import extras_of_xla
    from hloscope.bisect.reduce_command import Inputs, inputs_of
    from hloscope.bisect.subjects.xla import PROBE_SECONDS, XlaSearch, unoptimised
    from hloscope.bisect.subjects.xla_names import unused_shardings
    from hloscope.core.runtime import npz
    from hloscope.core.runtime.evaluator import Token, leaves
    from hloscope.core.runtime.inputs import inputs_for
    from hloscope.core.text import load_module

    text, oracle = given.text, given.oracle
    module = load_module(text, given.path)
    recorded = npz.read(oracle) if oracle.endswith(".npz") else None
    if recorded is None and oracle not in ("reference", "unoptimised"):
        raise UnsupportedError(f"--oracle {oracle}: --engine xla takes reference, unoptimised or an .npz")
    args: Sequence[Value] = npz.read(given.args_path).inputs if given.args_path is not None else ()
    if not args and recorded is not None:
        args = recorded.inputs
    args = args or inputs_for(module.entry, given.seed)
    expected = recorded.outputs if recorded is not None else None
    if oracle == "unoptimised":
        expected = unoptimised(text, [leaf for one in args for leaf in leaves(one) if not isinstance(leaf, Token)])
    disabled = tuple(disable_passes.split(",")) if disable_passes else ()
    search = XlaSearch(
        module, text, given.path, args, expected, _flags(xla_flags), disabled, cures, _progress(), probes,
        timeout or PROBE_SECONDS,
    )  # fmt: skip
    with _placed(given.data, given.path):
        answer = search.run()
    answer.evidence.extend(unused_shardings(text))
    extras = None
    if ending.bundle is not None and answer.fault:
        flags = [*search.flags, *([f"--xla_disable_hlo_passes={disable_passes}"] if disabled else [])]
        inputs = Inputs(given.seed, inputs_of(module, args))
        extras = extras_of_xla(answer, module, oracle, flags, inputs, probes, ending)
    return _finish(answer, given.source, given.line, ending, extras)


def _search_flags(
    given: Given, against: str, xla_flags: str, timeout: float | None, probes: Prober, ending: Ending
) -> int:
    """Two compiles of XLA:CPU as what is searched: with further flags, or of another file."""
    from hloscope.bisect.bundle import Extras
    from hloscope.bisect.extras import dump_ledger
    from hloscope.bisect.subjects.against import FlagsSearch
    from hloscope.bisect.subjects.xla import PROBE_SECONDS, XlaTask
    from hloscope.bisect.subjects.xla_names import unused_shardings
    from hloscope.core.runtime import npz
    from hloscope.core.runtime.compare import rules_for
    from hloscope.core.runtime.evaluator import Token, evaluate, leaves
    from hloscope.core.runtime.inputs import inputs_for
    from hloscope.core.runtime.verdicts import ReplayOptions
    from hloscope.core.text import load_module
    from hloscope.core.views.run import load

    if given.oracle != "reference":
        raise UnsupportedError(f"--oracle {given.oracle}: --against compares with the evaluator")
    words = _split(against)
    flags = [word for word in words if word.startswith("--")]
    files = [word for word in words if not word.startswith("--")]
    if len(files) > 1:
        raise UsageError(f"--against {against}: one file, flags, or a file and flags")
    text = given.text
    if files:
        with load(files[0]) as there:
            if len(there) > 1:
                raise UsageError("--against needs two dumps, or a module and what it is compiled against",
                                 path=given.path)  # fmt: skip
            text = there.stage_text(0)
    module = load_module(given.text, given.path)
    args: Sequence[Value] = npz.read(given.args_path).inputs if given.args_path is not None else ()
    args = args or inputs_for(module.entry, given.seed)
    inputs = tuple(leaf for value in args for leaf in leaves(value) if not isinstance(leaf, Token))
    second = module if text == given.text else load_module(text, files[0])
    if [one.shape for one in second.entry.parameters] != [one.shape for one in module.entry.parameters]:
        raise UsageError(f"takes other parameters than {given.path}", path=files[0])

    def computed(one: HloModule, data: bytes, path: str) -> tuple[Array, ...]:
        with _placed(data, path):
            return tuple(value for value in evaluate(one, args) if not isinstance(value, Token))

    expected = computed(module, given.data, given.path)
    base = tuple(_flags(xla_flags))
    task = XlaTask(given.text, inputs, expected, rules_for(module), base, timeout=timeout or PROBE_SECONDS)
    there = text.encode("utf-8", "surrogateescape")
    other_expected = expected if second is module else computed(second, there, files[0])
    other = XlaTask(text, inputs, other_expected, rules_for(second), (*base, *flags), timeout=task.timeout)
    options = ReplayOptions(seed=given.seed, workers=1)
    answer = FlagsSearch(task, other, module, second, args, options, _progress(), probes).run()
    answer.evidence.extend(unused_shardings(given.text))
    if answer.fault:
        answer.texts["module.hlo"] = given.text
        answer.arrays["inputs.npz"] = (list(inputs), [])
        answer.arrays["expected.npz"] = ([], list(expected))
    extras = Extras([*base, *flags], True, None, dump_ledger(probes, "whole-b", ending))
    return _finish(answer, given.source, lambda _: None, ending, extras)


def _search_two(
    run: Run, against: str, module: str | None, args_path: str | None, seed: int, probes: Prober, ending: Ending
) -> int:
    """Two dumps of one program."""
    from hloscope.bisect.bundle import Extras, stages_ledger
    from hloscope.bisect.subjects.against import AgainstSearch
    from hloscope.core.cli.opening import same_module
    from hloscope.core.runtime import npz
    from hloscope.core.runtime.verdicts import ReplayOptions
    from hloscope.core.views.run import load
    from hloscope.core.xla.kernel_ir import read_kernel

    with load(against, module if module is not None else same_module(run, against)) as second:
        say_notes(second.notes)
        given = npz.read(args_path).inputs if args_path is not None else None
        options = ReplayOptions(seed=seed, workers=1, kernels=read_kernel)
        answer = AgainstSearch(run, second, given or None, options, _progress(), probes).run()
        named = [one.file for one in answer.culprits]
        guilty = second if named and all(one.startswith(f"{against}/") for one in named) else run
        numbers = [_numbered(one, module) for one in (run, second)] if module is not None else []
        extras = Extras(ledger=lambda path: stages_ledger(guilty, path, redact=ending.redact), modules=numbers)
        return _finish(answer, run.source, lambda _: None, ending, extras)


def _numbered(run: Run, module: str | None) -> int:
    """Which of its dump's modules a run shows."""
    from hloscope.core.views.choosing import choose

    return choose(run.modules, module, run.source.path)[0]


def _search_dump(
    run: Run, module: str | None, oracle: str, args_path: str | None, seed: int, probes: Prober, ending: Ending
) -> int:
    """The stages of a dump as what is searched."""
    from hloscope.bisect.bundle import Extras, stages_ledger
    from hloscope.bisect.subjects.dump import DumpSearch
    from hloscope.core.runtime import npz
    from hloscope.core.runtime.verdicts import ReplayOptions
    from hloscope.core.xla.kernel_ir import read_kernel

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
        ReplayOptions(seed=seed, workers=1, kernels=read_kernel),
        _progress(),
        probes,
    ).run()

    def line(one: Culprit) -> int | None:
        if one.instruction is None or one.stage is None:
            return None
        place = run.definition(one.stage, one.instruction)
        return place.line + 1 if place is not None else None

    number = _numbered(run, module)
    extras = Extras(ledger=lambda path: stages_ledger(run, path, redact=ending.redact), modules=[number])
    return _finish(answer, run.source, line, ending, extras)


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
            f"{step.remaining} more at most{f'; so far: {step.so_far}' if step.so_far else ''}",
            err=True,
        )

    return show


def _show(answer: Answer, line: Callable[[Culprit], int | None]) -> None:
    click.secho(f"verdict: {answer.headline}", bold=True)
    for one in answer.culprits:
        where = f"{one.pipeline}/{one.pass_name}" if one.pipeline else one.pass_name
        stage = f"stage {one.stage}, " if one.stage is not None else ""
        click.echo(f"culprit: {stage}{where}, run {one.occurrence}{one.counted}")
        if one.sentence:
            click.echo(f"  {one.sentence}")
        at = line(one)
        if at is not None:
            click.echo(f"  {one.file}:{at}: %{one.instruction}" if one.instruction else f"  {one.file}:{at}")
        if one.fuel is not None and one.pipeline != "pallas":
            without = f"{one.pass_name}={one.fuel - 1}"
            right = "right" if f"--fuel {without}" in answer.cures else "left out"
            click.echo(f"  see it: hloscope opt … --fuel {one.pass_name}={one.fuel}, {right} with ={one.fuel - 1}")
    if answer.pair:
        click.echo(f"pair: {' and '.join(answer.pair)}: the fault shows only where both run")
    for said in answer.evidence:
        click.echo(f"  {said}")
    for cure in answer.cures:
        click.echo(f"  cured by: {cure}")
    click.echo(f"  {len(answer.probes)} probe{'' if len(answer.probes) == 1 else 's'}")
