"""One module over releases of the compiler: the first at which the result, the copies, the fusions or the peak change.

Every release has an environment of its own and compiles in a process of its own. Where the result changes, the stages
that the wrong side dumped are searched as those of any dump.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.bisect.journal import digest
from hloscope.bisect.precision import difference, excess_precision, moves
from hloscope.bisect.probing import Prober
from hloscope.bisect.result import Answer, Probe
from hloscope.bisect.search import Found, NoFault, Outcome, Step, first_wrong
from hloscope.bisect.subjects.dump import DumpSearch
from hloscope.bisect.subjects.versions import environment
from hloscope.bisect.subjects.xla_names import check_name, disabled_in
from hloscope.core.dumps.buffer_reports import read_buffer_assignment
from hloscope.core.errors import CompileError, HloscopeError
from hloscope.core.hlo.element_types import from_dtype
from hloscope.core.runtime import npz
from hloscope.core.runtime.compare import rules_for
from hloscope.core.runtime.evaluator import Token, evaluate, leaves
from hloscope.core.runtime.verdicts import ReplayOptions
from hloscope.core.text import load_module
from hloscope.core.views.run import load
from hloscope.core.xla.child import clean_environment, last_line
from hloscope.core.xla.flags import dump_flags, joined_flags

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.compare import Sensitivity
    from hloscope.core.runtime.evaluator import Array, Value

PROBE_SECONDS = 300.0
MEASURES = ("result", "copies", "fusions", "peak")
"""What is compared from release to release."""


@dataclass(slots=True)
class OverSearch:
    """One module, and releases in order."""

    module: HloModule
    text: str
    path: str
    args: Sequence[Value]
    versions: Sequence[str]
    expected: Sequence[Array] | None = None
    flags: Sequence[str] = ()
    watch: Callable[[Step], None] | None = None
    prober: Prober = field(default_factory=Prober)
    install: Callable[[str], str] = environment
    """Gives the Python that has a release."""
    release: str | None = None
    """The release whose stages were searched, once `run` has ended."""
    _steps: list[Step] = field(default_factory=list[Step])

    def run(self) -> Answer:
        """Search and answer. Raises what evaluating the module raises where nothing was expected."""
        inputs = [leaf for value in self.args for leaf in leaves(value) if not isinstance(leaf, Token)]
        expected = self.expected
        if expected is None:
            expected = [one for one in evaluate(self.module, self.args) if not isinstance(one, Token)]
        moved = moves(self.module, self.args)
        tasks = [
            VersionTask(self.text, tuple(inputs), tuple(expected), version, tuple(self.flags), self.install, moved)
            for version in self.versions
        ]
        for name in disabled_in(self.flags):
            check_name(name, "", self.install(self.versions[-1]))
        answer = Answer("no-difference")
        for measure in MEASURES:
            self._search(measure, tasks, answer)
        if answer.verdict == "no-difference" and not answer.evidence:
            answer.evidence.append(f"nothing changes from jaxlib {self.versions[0]} to {self.versions[-1]}")
        self._stages(tasks, inputs, expected, answer)
        answer.probes = [Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in self._steps]
        return answer

    def _search(self, measure: str, tasks: Sequence[VersionTask], answer: Answer) -> None:
        at = 0
        if measure != "result":
            # One that cannot be compiled, or tells nothing of it, is no beginning; what has been asked is known.
            told = [number for number, task in enumerate(tasks) if self._known(task, measure) is not None]
            if not told or told[0] == len(tasks) - 1:
                return
            at = told[0]
        first = self._known(tasks[at], measure)
        if first is None:
            answer.verdict = "cannot-tell"
            answer.evidence.append(f"jaxlib {self.versions[0]} gives no {measure}: {_say(self.prober.one(tasks[0]))}")
            return

        def judged(outcome: Outcome) -> Outcome:
            value = _measure(outcome, measure)
            if value is None:
                return Outcome("unknown", _say(outcome))
            return Outcome("right" if value == first else "wrong", value)

        def end_at(last: int) -> Found:
            return first_wrong(
                last - at,
                lambda place: judged(self.prober.one(tasks[at + place])),
                measure,
                self._saw,
                lambda places: [judged(one) for one in self.prober.ask([tasks[at + place] for place in places])],
                self.prober.ways,
            )

        # Where both ends agree, one that was asked for another measure may not.
        known = [n for n, task in enumerate(tasks) if n > at and self._known(task, measure) not in (None, first)]
        ends = [len(tasks) - 1] if measure == "result" else sorted({len(tasks) - 1, *known}, reverse=True)
        found: Found | None = None
        for last in ends:
            try:
                found = end_at(last)
                break
            except NoFault as error:
                if measure == "result":
                    said = f"the result is {first} with the first and the last release"
                    if error.where != "absent":
                        said = f"the last release gives no result: {error.outcome.detail}"
                    answer.evidence.append(said)
        if found is None:
            return
        unit = " bytes" if measure == "peak" else ""
        version, before, now = self.versions[at + found.position], self.versions[at + found.low], found.outcome.detail
        said = f"{measure}: {first}{unit} up to jaxlib {before}, {now} from {version} on"
        last = self._known(tasks[-1], measure)
        if last not in (None, now):
            said = (
                f"{measure}: {first}{unit} up to jaxlib {before}, {now} with {version}, {last} with {self.versions[-1]}"
            )
        answer.evidence.append(said)
        if not found.exact:
            answer.evidence.append(f"the releases between {before} and {version} gave no {measure}")
        answer.changes.append({"measure": measure, "before": before, "after": version, "was": first, "is": now})

    def _known(self, task: VersionTask, measure: str) -> str | None:
        """One measure of a release that has been asked, or is an end; None where it tells none."""
        if task.version not in (self.versions[0], self.versions[-1]) and self.prober.journal.seen(task.key) is None:
            return None
        return _measure(self.prober.one(task), measure)

    def _stages(
        self, tasks: Sequence[VersionTask], inputs: Sequence[Array], expected: Sequence[Array], answer: Answer
    ) -> None:
        """What went wrong, with the release nearest to the change that gives a wrong result."""
        change = next((one for one in answer.changes if one["measure"] == "result"), None)
        ends = (self.versions[0], self.versions[-1])
        names = ends if change is None else (change["before"], change["after"])
        bad = next((task for task in tasks if task.version in names and self.prober.one(task).kind == "wrong"), None)
        if bad is None:
            failed = next((t for t in tasks if t.version in names and self.prober.one(t).kind == "failed"), None)
            if failed is not None:
                self.release = failed.version
                answer.verdict = "compile-failure"
                answer.evidence.append(_say(self.prober.one(failed)))
                answer.texts["module.hlo"] = self.text
                answer.arrays["inputs.npz"] = (list(inputs), [])
                answer.arrays["expected.npz"] = ([], list(expected))
            return
        answer.texts["module.hlo"] = self.text
        answer.arrays["inputs.npz"] = (list(inputs), [])
        answer.arrays["expected.npz"] = ([], list(expected))
        self.release = bad.version
        journal = self.prober.journal
        begun = journal.begin()
        try:
            _, results = bad.execute(begun)
            journal.keep("whole", begun)
            with load(str(journal.folder / "whole")) as run:
                search = DumpSearch(run, inputs, results, ReplayOptions(workers=1), self._saw, self.prober)
                found = search.run()
        except HloscopeError as error:
            answer.verdict = "cannot-tell"
            answer.evidence.append(f"the stages of jaxlib {bad.version} cannot be evaluated: {error}")
            return
        answer.arrays["actual.npz"] = ([], results)
        answer.verdict = found.verdict if found.verdict != "no-difference" else "below-hlo"
        if answer.verdict == "below-hlo":
            said = excess_precision(self.text, inputs, expected, results)
            if said is not None:
                answer.verdict = "allowed-change"
                found.evidence.append(said)
        answer.culprits = [replace(one, file=f"jaxlib {bad.version}: {one.file}") for one in found.culprits]
        answer.evidence.append(f"with jaxlib {bad.version}: {_say(self.prober.one(bad))}")
        answer.evidence.extend(found.evidence)
        answer.texts |= {key: text for key, text in found.texts.items() if key not in answer.texts}

    def _saw(self, step: Step) -> None:
        self._steps.append(step)
        if self.watch is not None:
            self.watch(step)


def _measure(outcome: Outcome, name: str) -> str | None:
    """One measure of a release's probe; None where it has none."""
    if name == "result":
        return None if outcome.kind == "unknown" else outcome.kind
    try:
        found: dict[str, Any] = json.loads(outcome.detail)
    except ValueError:
        return None
    value = found.get(name)
    return None if value is None else str(value)


def _say(outcome: Outcome) -> str:
    try:
        return str(json.loads(outcome.detail)["said"])
    except (ValueError, KeyError, TypeError):
        return outcome.detail


@dataclass(frozen=True)
class VersionTask:
    """Compiles and runs the module with one release."""

    text: str
    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]
    version: str
    flags: tuple[str, ...]
    install: Callable[[str], str]
    moved: tuple[Sensitivity, ...] = ()
    """How far rounding errors move the results."""

    @property
    def key(self) -> str:
        """Names the probe within its search."""
        return digest(self.version, *self.flags)

    def run(self) -> Outcome:
        """The result, and in the detail what else is measured."""
        with TemporaryDirectory(prefix="hloscope-bisect-") as folder:
            try:
                said, results = self.execute(folder)
            except CompileError as error:
                # One that cannot be installed, or given the module, says nothing of the compiler.
                silent = any(said in error.message for said in ("cannot be installed", "cannot be given"))
                return Outcome("unknown" if silent else "failed", error.message)
            counts = _counts(folder)
        told = {"said": said or "the expected result", **counts}
        return Outcome("wrong" if said else "right", json.dumps(told), digest(*(one.tobytes() for one in results)))

    def execute(self, folder: str) -> tuple[str, list[Array]]:
        """How the results differ (empty where they do not), and they themselves. Dumps into a folder.

        Raises CompileError where the release cannot be installed, refuses, crashes or hangs.
        """
        python = self.install(self.version)
        with TemporaryDirectory(prefix="hloscope-") as place:
            names = ("module.txt", "in.npz", "out.npz", "asked.json", "answer.json", "stderr")
            text, given, results, asked, answered, errors = (Path(place, name) for name in names)
            text.write_text(self.text, "utf-8", "surrogateescape")
            stored = [npz.to_storage(one, from_dtype(one.dtype)) for one in self.inputs]
            np.savez(given, allow_pickle=False, **{f"a{number}": one for number, one in enumerate(stored)})
            request = {"path": str(text), "inputs": str(given), "outputs": str(results),
                       "types": [one.dtype.name for one in self.inputs]}  # fmt: skip
            asked.write_text(json.dumps(request))
            env = clean_environment()
            env |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
            env["XLA_FLAGS"] = joined_flags(None, [*self.flags, *dump_flags(folder, proto=False)])
            for name in ("PYTHONPATH", "PYTHONHOME"):
                env.pop(name, None)
            script = str(Path(__file__).with_name("child_over.py"))
            with errors.open("wb") as stderr:
                try:
                    status = subprocess.run(
                        [python, "-P", script, str(asked), str(answered)],
                        env=env, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, timeout=PROBE_SECONDS,
                        check=False,
                    ).returncode  # fmt: skip
                except subprocess.TimeoutExpired:
                    raise CompileError(f"jaxlib {self.version} did not finish within {PROBE_SECONDS:g} s") from None
            if status != 0 or not answered.exists():
                said = last_line(errors.read_text("utf-8", "replace"))
                how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
                raise CompileError(f"jaxlib {self.version} {how}" + (f": {said}" if said else ""))
            answer: dict[str, Any] = json.loads(answered.read_text("utf-8"))
            if "refused" in answer:
                raise CompileError(f"jaxlib {self.version} cannot be given the module: {answer['refused']}")
            with np.load(results, allow_pickle=False) as file:
                arrays = [
                    npz.from_storage(file[f"a{number}"], from_dtype(np.dtype(_dtype(name))))
                    for number, name in enumerate(answer["types"])
                ]
        right, said = difference(self.expected, arrays, rules_for(load_module(self.text)), self.moved)
        return "" if right else said, arrays


def _dtype(name: str) -> Any:
    import ml_dtypes

    return getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name


def _counts(folder: str) -> dict[str, int | None]:
    """Copies and fusions of the last stage, and the bytes of its buffers; None for what the dump does not say."""
    try:
        with load(folder) as run:
            module = load_module(run.stage_text(len(run) - 1))
    except HloscopeError:
        return {"copies": None, "fusions": None, "peak": None}
    counts = Counter(one.opcode for one in module.instructions())
    copies = counts["copy"] + counts["copy-start"]
    return {"copies": copies, "fusions": counts["fusion"], "peak": _peak(folder)}


def _peak(folder: str) -> int | None:
    """Bytes of arguments, results and temporaries; releases of every age report them alike. None without a report."""
    total: int | None = None
    for report in Path(folder).glob("*after_optimizations-buffer-assignment.txt"):
        try:
            rows = read_buffer_assignment(report.read_text("utf-8", "replace"), path=str(report))
        except HloscopeError:
            return None
        total = (total or 0) + sum(one.size for one in rows if not one.constant and not one.thread_local)
    return total
