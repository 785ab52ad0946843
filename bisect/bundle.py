"""The folder that goes into a bug report: the module, its inputs, what was expected, the culprit, how to see it.

Names of files and operations are taken out of the metadata unless asked for, so that it can be shown to others.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import shlex
from dataclasses import dataclass, field
from difflib import unified_diff
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hloscope.bisect.oracles import evaluated
from hloscope.bisect.portable import portable
from hloscope.bisect.repro import Script, attempt, unusual
from hloscope.bisect.subjects.xla_names import ALWAYS_THERE
from hloscope.bisect.xla_tools import hlo_opt, kind_of, run_hlo_module
from hloscope.core.errors import HloscopeError, InternalError, UsageError
from hloscope.core.runtime import npz
from hloscope.core.runtime.evaluator import Token, leaves
from hloscope.core.text import load_module, print_module
from hloscope.core.version import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hloscope.bisect.result import Answer, Culprit
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value
    from hloscope.core.views.data import Source
    from hloscope.core.views.run import Run

_BRACES = r"\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\"|\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*\})*\}"
_METADATA = re.compile(rf"(?:,\s*| )metadata={_BRACES}")
_FRONTEND = re.compile(rf",\s*frontend_attributes={_BRACES}")
_PATH = re.compile(r"(?<![\w.<>:/])(?:~|\.{1,2})?(?:/[\w.@+-]+){2,}")
"""A path of two folders and more; what is left of it is the file's name."""
_TABLES = re.compile(r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)*\n?", re.M)
_HEADER = re.compile(r"^HloModule ([^\s,]+)", re.M)
_OPAQUE = re.compile(r'custom_call_target="(tpu_custom_call|__gpu\$xla\.gpu\.triton|triton_kernel_call)"')
"""Kernels whose text, names of files included, travels in a form that is not opened."""
MINIMAL = ("minimal_before.hlo", "minimal_after.hlo")
"""The guilty computation of a stage, and what it stands for."""
_NEEDED = frozenset(("flatten-call-graph", "layout-assignment", "copy-insertion", "hlo-memory-scheduler"))
"""Passes without which XLA:CPU makes nothing that can be run."""
MOST_PRINTED = 60
"""Lines of what the script prints that the report has."""
LEDGER_BYTES = 256 << 20
"""Stages of a module that are together larger are not written into a bundle's ledger."""

_FILES = (("module.hlo", ""), ("minimal.hlo", "reduced_"), ("minimal_", "minimal_"), ("a_minimal_", "a_minimal_"),
          ("b_minimal_", "b_minimal_"), ("a_", "a_"), ("b_", "b_"), ("", ""))  # fmt: skip
"""How a text is called -> what its files of arrays begin with; the first that fits."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What a bundle holds beside the answer's own files."""

    flags: Sequence[str] = ()
    """Flags of the real XLA that the fault was seen with."""
    jax: bool = False
    """Whether module.hlo shows the fault with the installed XLA:CPU."""
    smaller: Callable[[], HloModule | None] | None = None
    """Makes the module small, the fault kept; None where it does not get smaller."""
    ledger: Callable[[str], None] | None = None
    """Writes a ledger of the compile to a path."""
    arrays: Callable[[HloModule], tuple[Sequence[Value], Sequence[Array | Token]]] | None = None
    """Inputs of a module that was made small, and what is right for them."""
    core: bool = False
    """Whether our own compiler shows the fault."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further files by name: plugins, as they are."""
    tried: bool = False
    """Whether the script is run once with the installed jax, and what it prints told."""
    release: str | None = None
    """The jaxlib that shows it, where that is another than the installed one."""
    modules: Sequence[int] = ()
    """Number of the module that was searched, in each dump that was given."""


def write_bundle(
    folder: str,
    answer: Answer,
    source: Source | None,
    words: Sequence[str],
    *,
    redact: bool = True,
    force: bool = False,
    extras: Extras | None = None,
) -> list[str]:
    """Write the bundle and return its files. Raises UsageError where the folder holds something already."""
    if os.path.isdir(folder) and os.listdir(folder) and not force:
        raise UsageError("exists already and is not empty", path=folder, hint="--force writes into it")
    place = os.path.abspath(folder)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    # Beside its place, and moved whole: a kill leaves nothing in the way of the next try.
    with TemporaryDirectory(prefix=".hloscope-bundle-", dir=os.path.dirname(place)) as part:
        written = _fill(part, answer, source, words, redact, extras or Extras())
        os.makedirs(place, exist_ok=True)
        if not os.listdir(place):
            os.rmdir(place)
            os.rename(part, place)
            os.makedirs(part)  # what the block removes
            os.chmod(place, 0o777 & ~_umask())
            return written
        for name in written:
            os.replace(os.path.join(part, name), os.path.join(place, name))
    return written


def _fill(
    folder: str, answer: Answer, source: Source | None, words: Sequence[str], redact: bool, extras: Extras
) -> list[str]:
    """Write the files of a bundle."""
    written: list[str] = []

    def put(name: str, text: str) -> None:
        with open(os.path.join(folder, name), "w", encoding="utf-8", errors="surrogateescape") as out:
            out.write(text)
        written.append(name)

    cut = answer.minimal() if answer.minimal is not None else None
    if cut is not None:
        answer.texts |= dict(zip(MINIMAL, (cut.before, cut.after), strict=True))
        for name, group in (("inputs", cut.inputs), ("expected", cut.expected), ("actual", cut.actual)):
            answer.arrays[f"minimal_{name}.npz"] = (group, []) if name == "inputs" else ([], group)
        whole = load_module(answer.texts["after.hlo"]).instruction_count
        answer.reduced = {"before": whole, "after": cut.instructions, "probes": 0}
    texts = {name: redacted(text) if redact else text for name, text in answer.texts.items()}
    small = extras.smaller() if extras.smaller is not None else None
    if small is not None:
        texts["minimal.hlo"] = redacted(print_module(small)) if redact else print_module(small)
        _add_small(answer, small, extras)
    for begin in ("", "a_", "b_"):
        if f"{begin}after.hlo" in texts and not (extras.jax and not begin):
            _see(answer, texts[f"{begin}after.hlo"], begin)
    for name, text in texts.items():
        put(name, text)
    if {"before.hlo", "after.hlo"} <= set(texts):
        before, after = (texts[name].splitlines() for name in ("before.hlo", "after.hlo"))
        put("change.diff", "\n".join(unified_diff(before, after, "before.hlo", "after.hlo", lineterm="", n=2)) + "\n")
    for name, (inputs, outputs) in answer.arrays.items():
        npz.write(os.path.join(folder, name), inputs=inputs, outputs=outputs)
        written.append(name)
    runnable = extras.jax and "module.hlo" in texts
    for name, text in extras.files.items():
        put(name, text)
    notes = _script(answer, texts, source, extras, put)
    if small is not None and extras.core:
        notes.append("`minimal.hlo` shows the fault with our own compiler; XLA:CPU gives what is expected of it")
    if extras.files:
        notes.append(f"{', '.join(f'`{name}`' for name in extras.files)}: the plugin as it is, its names with it")
    printed = attempt(folder) if extras.tried and "repro.py" in written else None
    if extras.tried and "repro.py" in written and printed is None:
        notes.append("jax is not installed where this was made: the script was not tried")
    if extras.ledger is not None:
        extras.ledger(os.path.join(folder, "run.ledger"))
    if os.path.exists(os.path.join(folder, "run.ledger")):
        written.append("run.ledger")
    put("environment.json", json.dumps(_environment(source), indent=1) + "\n")
    if any(_OPAQUE.search(text) for text in texts.values()) and redact:
        answer.evidence.append("kernels in backend_config are not opened: they may hold names of source files")
    if redact:
        words = by_number(words, extras.modules, notes)
    told = report(answer, source, words, written, extras=extras if runnable or extras.core else None, notes=notes)
    said = "\n".join([*told, *_printed(printed)]) + "\n"
    put("report.md", _nameless(said, source, answer) if redact else said)
    return written


def _add_small(answer: Answer, small: HloModule, extras: Extras) -> None:
    """The inputs of the module that was made small, and what is right for them."""
    if extras.arrays is None:
        return
    try:
        given, right = extras.arrays(small)
    except (HloscopeError, InternalError):
        return
    inputs = [leaf for value in given for leaf in leaves(value) if not isinstance(leaf, Token)]
    answer.arrays["reduced_inputs.npz"] = (inputs, [])
    answer.arrays["reduced_expected.npz"] = ([], [one for one in right if not isinstance(one, Token)])


def _printed(lines: Sequence[str] | None) -> Iterator[str]:
    """What the script said, for the report."""
    if lines is not None:
        yield from ("", "## What `python repro.py` prints with the versions in environment.json", "```")
        yield from (line[:300] for line in lines[:MOST_PRINTED])
        if len(lines) > MOST_PRINTED:
            yield f"… {len(lines) - MOST_PRINTED} more lines"
        yield "```"


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def _script(
    answer: Answer, texts: Mapping[str, str], source: Source | None, extras: Extras, put: Callable[[str, str], None]
) -> list[str]:
    """Write the script, and texts for XLA:CPU in place of those that it does not take. Returns what to say of them."""
    runs: dict[str, tuple[str, str, str | None]] = {}
    more: list[str] = []
    notes: list[str] = []
    shown = ("module.hlo", "minimal.hlo") if extras.jax else ()
    order = sorted(texts, key=lambda name: ("minimal" not in name, list(texts).index(name)))
    for name in order:
        begin = next(files for start, files in _FILES if name.startswith(start))
        inputs, right, seen = (f"{begin}{what}.npz" for what in ("inputs", "expected", "actual"))
        if not {inputs, right} <= set(answer.arrays):
            continue
        wrong = name == "module.hlo" if extras.jax else name.endswith("after.hlo")
        files = (inputs, right, seen if wrong and seen in answer.arrays else None)
        run = name
        try:
            made = portable(texts[name], native=bool(shown) and name in shown)
        except HloscopeError as error:
            notes.append(f"`{name}` is for reading only, XLA:CPU is not asked to run it: {error.message}")
            continue
        if made.changes:
            run = f"{name.removesuffix('.hlo')}.cpu.hlo"
            put(run, made.text)
            notes.append(f"`{run}` is `{name}` as XLA:CPU takes it: {'; '.join(made.changes)}")
        runs[run] = files
        if shown and name not in shown:
            more.append(run)
    if not runs:
        if {"before.hlo", "after.hlo"} <= set(texts) and "inputs.npz" not in answer.arrays:
            notes.append(
                "no input that was tried makes `before.hlo` and `after.hlo` give other values: there is no script to "
                "run, `change.diff` shows what is wrong"
            )
        return notes
    types = {name: unusual({"in": ins, "out": outs}) for name, (ins, outs) in answer.arrays.items()}
    flags = " ".join(extras.flags) if extras.jax else _without_guilty(answer, source, extras)
    put("repro.py", Script(runs, [one for one in runs if one not in more], flags, types).text())
    return notes


def _without_guilty(answer: Answer, source: Source | None, extras: Extras) -> str:
    """Flags with which the stage before, compiled again, is not made wrong by the same pass."""
    if extras.core or kind_of(source.target if source is not None else None) != "cpu":
        return " ".join(extras.flags)
    kept = _NEEDED | ALWAYS_THERE
    names = dict.fromkeys(one.pass_name for one in answer.culprits if one.fuel is None and one.pass_name not in kept)
    return " ".join([*extras.flags, *([f"--xla_disable_hlo_passes={','.join(names)}"] if names else [])])


def _see(answer: Answer, text: str, begin: str) -> None:
    """Put what the stage that is wrong gives among the arrays, where it is not known yet and can be evaluated."""
    given = answer.arrays.get(f"{begin}inputs.npz")
    if given is None or f"{begin}actual.npz" in answer.arrays:
        return
    try:
        found = [one for one in evaluated(load_module(text), given[0]) if not isinstance(one, Token)]
    except (HloscopeError, InternalError):
        return
    answer.arrays[f"{begin}actual.npz"] = ([], found)


def _nameless(text: str, source: Source | None, answer: Answer) -> str:
    """A report without folders, the user, the machine, and the names of the modules."""
    modules = {found[1] for one in answer.texts.values() for found in _HEADER.finditer(one)}
    modules |= {source.module} if source is not None and source.module else set()
    text = _PATH.sub(lambda found: found[0].rsplit("/", 1)[1], text)
    text = re.sub(r"(?<![\w.<>:/])[\w.@+-]+(?:/[\w.@+-]+)*/([\w.@+-]+\.(?:hlo|txt|npz|py|sh|ledger|md)\b)", r"\1", text)
    for name, plain in ((os.path.expanduser("~"), "~"), (platform.node(), "host"), (_user(), "user")):
        if len(name) > 2 and name not in ("root", "user", "host"):
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", plain, text)
    for name in sorted(modules, key=len, reverse=True):
        if len(name) > 2 and name != "module":
            text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)", "module", text)
    return text


def by_number(words: Sequence[str], modules: Sequence[int], notes: list[str]) -> list[str]:
    """A command line whose ``--module`` has a number for what may be the module's name, or a part of it.

    Where two dumps number it otherwise it is left out, and the notes say which it is.
    """
    kept: list[str] = []
    number = str(modules[0]) if len(set(modules)) == 1 else None
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name != "--module" or not modules:
            kept.append(word)
            continue
        if not equals:
            next(rest, None)
        if number is not None:
            kept += [f"--module={number}"] if equals else ["--module", number]
        else:
            notes.append(f"the module is number {' of the first dump, '.join(map(str, modules))} of the second")
    return kept


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def redacted(text: str) -> str:
    """HLO text without source files, operation names, frontend attributes and the module's name."""
    return _HEADER.sub("HloModule module", _TABLES.sub("", _FRONTEND.sub("", _METADATA.sub("", text))))


def stages_ledger(run: Run, path: str, *, redact: bool) -> None:
    """Write the stages of a run to a ledger, without names and paths where `redact` is set."""
    from hloscope.core.dumps.importer import import_dump

    if sum(len(run.stage_bytes(number)) for number in range(len(run))) > LEDGER_BYTES:
        return
    with TemporaryDirectory(prefix="hloscope-bundle-") as folder:
        rows = run.outline
        for number, row in enumerate(rows):
            text = run.stage_text(number)
            following = row.next_pass or (rows[number + 1].pass_name if number + 1 < len(rows) else "pipeline-end")
            place = f"{row.pipeline or 'pipeline'}.after_{row.pass_name}.before_{following}"
            name = f"module_0001.module.{number:04d}.{place}.txt"
            with open(os.path.join(folder, name), "w", encoding="utf-8", errors="surrogateescape") as out:
                out.write(redacted(text) if redact else text)
        import_dump(folder, path, force=True, source="the stages of the compile that shows the fault")


def report(
    answer: Answer,
    source: Source | None,
    words: Sequence[str],
    files: Sequence[str],
    line: Callable[[Culprit], int | None] | None = None,
    *,
    extras: Extras | None = None,
    notes: Sequence[str] = (),
) -> Iterator[str]:
    """The answer as Markdown, line by line; `line` finds a culprit's line, `notes` are said of the files."""
    name = source.module if source is not None else "a program"
    yield f"# {answer.headline}: {name}"
    yield ""
    for one in answer.culprits:
        where = f"`{one.pipeline}/{one.pass_name}`" if one.pipeline else f"`{one.pass_name}`"
        stage = f", stage {one.stage}" if one.stage is not None else ""
        yield f"**Culprit:** {where}, run {one.occurrence}{stage}{one.counted}. {one.sentence}"
        at = one.line if line is None else line(one)
        if at is not None:
            yield ""
            yield f"Where: `{one.file}:{at}`"
        yield ""
    if answer.pair:
        yield f"**Pair:** the fault shows only where both `{answer.pair[0]}` and `{answer.pair[1]}` run."
        yield ""
    yield "## Evidence"
    yield from (f"- {said}" for said in answer.evidence)
    if answer.cures:
        yield ""
        yield "## Switches that cure it (no proof of guilt)"
        yield from (f"- `{cure}`" for cure in answer.cures)
    yield ""
    yield "## To see it"
    if extras is None and source is not None and "run.ledger" in files and "--oracle" not in " ".join(words):
        # The dump itself is not here, and redacted names of modules would pick another one of it.
        yield f"- `hloscope bisect run.ledger{' --args inputs.npz' if 'inputs.npz' in files else ''}`"
    else:
        yield f"- `hloscope {' '.join(words)}`"
    flags = " ".join(extras.flags) if extras is not None else ""
    env = f"XLA_FLAGS={shlex.quote(flags)} " if flags else ""
    small = [name for name in ("module.hlo", "minimal.hlo") if name in files]
    if extras is not None and extras.release is not None:
        yield f"- the release that shows it: `pip install jaxlib=={extras.release} jax=={extras.release} numpy`"
    if extras is not None and extras.jax and "repro.py" in files:
        yield f"- without hloscope: `{env}python repro.py` (jax on CPU)"
        for name in small[::-1]:
            yield f"- XLA's own tools, on inputs of their own: `{env}{run_hlo_module(name)}`"
    elif "repro.py" in files and MINIMAL[0] not in files:
        yield "- without hloscope: `python repro.py` (jax on CPU)"
    if {"repro.py", "before.hlo", "after.hlo"} <= set(files):
        if MINIMAL[0] in files:
            yield "- the guilty computation and what it stands for: `python repro.py` (jax on CPU)"
        off = _without_guilty(answer, source, extras or Extras())
        tool = f"XLA_FLAGS={shlex.quote(off)} " if off else ""
        tool += "python repro.py before.hlo after.hlo"
        yield f"- the two stages, as far as XLA:CPU takes them: `{tool}` (jax on CPU)"
    yield from (f"- {one}" for one in notes)
    if "minimal.hlo" in files:
        yield "- `minimal.hlo`: the smallest module found that still shows the fault"
    if "before.hlo" in files and answer.verdict == "wrong-stage" and not any(one.fuel for one in answer.culprits):
        for name in dict.fromkeys(one.pass_name for one in answer.culprits if one.pass_name not in ALWAYS_THERE):
            tool = hlo_opt(name, source.target if source is not None else None, "before.hlo")
            if tool is not None:
                yield f"- the one pass, with its default options: `{tool}`, and compare with `after.hlo`"
            else:
                yield f"- XLA's `hlo-opt` does not have the pass {name}"
    if "run.ledger" in files:
        yield "- `run.ledger`: every stage (an SQLite file; `hloscope ls run.ledger`)"
    if "change.diff" in files:
        yield "- `change.diff`: what the stage changed"
    yield ""
    yield "## Probes"
    yield "| level | range | tried | outcome |"
    yield "| --- | --- | --- | --- |"
    for probe in answer.probes:
        detail = f": {probe.detail[:120]}" if probe.detail else ""
        yield f"| {probe.level} | {probe.low}..{probe.high} | {probe.tried} | {probe.outcome}{detail} |"


def _environment(source: Source | None) -> dict[str, object]:
    from hloscope.core.xla.targets import package_version

    names = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "numpy")
    return {
        "hloscope": version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: found for name in names if (found := package_version(name)) is not None},
        "xla_build": source.xla_build if source is not None else None,
        "target": source.target if source is not None else None,
    }
