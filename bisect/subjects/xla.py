"""The real XLA:CPU as what is searched: a module that it compiles wrongly, or a user's own program.

Every probe is a process of its own: the compiler may crash or hang, and it reads its flags once. What is found by
switching passes off is called a cure, never a culprit: a pass may only make another one's fault visible. Guilt is shown
by evaluating the stages that the failing compile dumped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hloscope.bisect.result import Answer, Culprit, Probe, Verdict
from hloscope.bisect.search import Outcome, Step, single_cures
from hloscope.bisect.subjects.dump import DumpSearch
from hloscope.core.dumps.directory import open_dump
from hloscope.core.errors import CompileError, DumpError, HloscopeError, UsageError
from hloscope.core.runtime.compare import compare, rules_for
from hloscope.core.runtime.evaluator import Token, evaluate, leaves
from hloscope.core.runtime.verdicts import ReplayOptions
from hloscope.core.views.run import load
from hloscope.core.xla.execute import execute_hlo_text
from hloscope.core.xla.flags import dump_flags, joined_flags

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.compare import Rules
    from hloscope.core.runtime.evaluator import Array, Value

SWITCHES: tuple[tuple[str, str], ...] = (
    ("--xla_backend_optimization_level=0", "LLVM's optimizer off"),
    ("--xla_cpu_enable_fast_math=false", "no fast-math"),
    ("--xla_allow_excess_precision=false", "every rounding as written"),
    ("--xla_llvm_disable_expensive_passes=true", "LLVM's vectorizers and unroller off"),
    ("--xla_cpu_use_fusion_emitters=false", "the older loop emitters"),
)
"""Flags that change numerics or code generation, with what each one does."""
PROBE_SECONDS = 300.0
"""Longest compile and run of one probe, in seconds."""
UNOPTIMISED = ("--xla_backend_optimization_level=0", "--xla_cpu_enable_fast_math=false")


@dataclass(slots=True)
class XlaSearch:
    """One module compiled and run by the installed XLA:CPU."""

    module: HloModule
    text: str
    path: str
    args: Sequence[Value]
    expected: Sequence[Array] | None = None
    """What is right; what the evaluator makes of the module where this is None."""
    flags: Sequence[str] = ()
    """Flags of every probe."""
    disabled: Sequence[str] = ()
    """Passes that are off in every probe."""
    cures: bool = True
    """Look for switches that make the fault go away, too."""
    watch: Callable[[Step], None] | None = None
    _steps: list[Step] = field(default_factory=list[Step])

    def run(self) -> Answer:
        """Search and answer. Raises what evaluating the module raises where nothing was expected."""
        inputs = [leaf for value in self.args for leaf in leaves(value) if not isinstance(leaf, Token)]
        rules = rules_for(self.module)
        expected = self.expected
        if expected is None:
            expected = [one for one in evaluate(self.module, self.args) if not isinstance(one, Token)]
        probe = _Probe(self.text, inputs, expected, rules, self.flags)
        with TemporaryDirectory(prefix="hloscope-bisect-") as folder:
            first = probe.judge(disabled=self.disabled, extra=dump_flags(folder))
            self._saw(Step("whole", 0, 1, 1, first))
            passes = _passes_of(folder)
            self._check_names(passes)
            results = probe.results
            answer = self._judge(probe, first, inputs, folder)
        if answer.fault:
            answer.texts["module.hlo"] = self.text
            answer.arrays["inputs.npz"] = (inputs, [])
            answer.arrays["expected.npz"] = ([], list(expected))
            if results is not None:
                answer.arrays["actual.npz"] = ([], results)
        if self.cures and answer.fault and answer.verdict != "not-deterministic":
            self._find_cures(probe, passes, answer)
        answer.probes = [Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in self._steps]
        return answer

    def _check_names(self, passes: Sequence[str]) -> None:
        """XLA takes any name for a pass to switch off; a misspelt one would make a probe say nothing."""
        from difflib import get_close_matches

        for name in self.disabled:
            if passes and name not in passes and name not in _ALWAYS_THERE:
                near = get_close_matches(name, passes, 2)
                hint = f"did you mean {' or '.join(near)}?" if near else "hloscope passes on a dump lists them"
                raise UsageError(f"this compile runs no pass {name!r}", hint=hint)

    def _judge(self, probe: _Probe, first: Outcome, inputs: Sequence[Array], folder: str) -> Answer:
        if first.kind == "right":
            return Answer("no-difference", evidence=["XLA:CPU gives what is expected"])
        if first.kind == "failed":
            last = _last_pass(folder)
            answer = Answer("compile-failure", evidence=[first.detail])
            if last is not None:
                answer.evidence.append(f"the last stage that was dumped is after {last}")
            return answer
        results = probe.results
        again = probe.judge(disabled=self.disabled)
        self._saw(Step("again", 0, 1, 1, again))
        if results is None or probe.results is None or not _alike(results, probe.results):
            return Answer(
                "not-deterministic",
                evidence=[f"the same compile gave {first.detail} and then {again.detail or again.kind}"],
            )
        answer = self._over_stages(results, inputs, folder)
        answer.evidence.insert(0, f"XLA:CPU differs from what is expected: {first.detail}")
        return answer

    def _over_stages(self, results: Sequence[Array], inputs: Sequence[Array], folder: str) -> Answer:
        try:
            with load(folder) as run:
                answer = DumpSearch(run, inputs, results, ReplayOptions(workers=1), self._saw).run()
        except HloscopeError as error:
            return Answer("cannot-tell", evidence=[f"the stages of the compile cannot be evaluated: {error}"])
        if answer.verdict == "no-difference":
            # The executable agrees with the stages: then what was expected is not what the module says.
            verdict: Verdict = "wrong-input"
            answer.evidence.append("the evaluator and the executable agree: the module itself computes something else")
            answer.verdict = verdict
        return answer

    def _find_cures(self, probe: _Probe, passes: Sequence[str], answer: Answer) -> None:
        names = [name for name in passes if name not in self.disabled and name not in _ALWAYS_THERE]
        found, _ = single_cures(
            names, lambda group: probe.judge(disabled=(*self.disabled, *group)), "passes off", self._saw
        )
        answer.cures.extend(f"--xla_disable_hlo_passes={','.join(group)}" for group in found)
        for flag, meaning in SWITCHES:
            outcome = probe.judge(disabled=self.disabled, extra=(flag,))
            self._saw(Step("switch", 0, 1, 1, outcome))
            if outcome.kind == "right":
                answer.cures.append(f"{flag} ({meaning})")
        if answer.cures:
            answer.evidence.append("a switch that cures is no proof of guilt: it may only hide what another pass does")

    def _saw(self, step: Step) -> None:
        self._steps.append(step)
        if self.watch is not None:
            self.watch(step)


_ALWAYS_THERE = frozenset({"pipeline-start", "before_optimizations", "after_optimizations"})


class _Probe:
    """Compiles and runs one module with given switches, and compares."""

    def __init__(
        self, text: str, inputs: Sequence[Array], expected: Sequence[Array], rules: Rules, flags: Sequence[str]
    ) -> None:
        self._text = text
        self._inputs = inputs
        self._expected = expected
        self._rules = rules
        self._flags = flags
        self.results: list[Array] | None = None
        """Of the last probe that ran."""

    def judge(self, *, disabled: Sequence[str] = (), extra: Sequence[str] = ()) -> Outcome:
        """Right, wrong by how much, or how the compiler failed."""
        flags = [*self._flags, *extra]
        if disabled:
            flags.append(f"--xla_disable_hlo_passes={','.join(disabled)}")
        self.results = None
        try:
            self.results, _, _ = execute_hlo_text(self._text, self._inputs, flags=flags, timeout=PROBE_SECONDS)
        except CompileError as error:
            return Outcome("failed", error.message)
        if len(self.results) != len(self._expected):
            return Outcome("wrong", f"{len(self.results)} outputs where {len(self._expected)} are expected")
        for number, (want, have) in enumerate(zip(self._expected, self.results, strict=True)):
            one = compare(want, have, self._rules)
            if not one.within:
                return Outcome("wrong", f"output {number}: {one}")
        return Outcome("right")


def unoptimised(text: str, inputs: Sequence[Array]) -> list[Array]:
    """What XLA:CPU gives with its optimizations off. Raises CompileError."""
    return execute_hlo_text(text, inputs, flags=UNOPTIMISED, timeout=PROBE_SECONDS)[0]


def _alike(a: Sequence[Array], b: Sequence[Array]) -> bool:
    return len(a) == len(b) and all(compare(x, y).same_bits for x, y in zip(a, b, strict=True))


def _passes_of(folder: str) -> list[str]:
    """Passes that the dump shows to have changed something, in order of their first run."""
    try:
        with open_dump(folder) as dump:
            found = [stage.pass_name for module in dump.modules[:1] for stage in module.stages]
    except DumpError:
        return []
    return [name for name in dict.fromkeys(found) if name not in _ALWAYS_THERE]


def _last_pass(folder: str) -> str | None:
    found = _passes_of(folder)
    return found[-1] if found else None


# ---------------------------------------------------------------- a user's own program
@dataclass(slots=True)
class CommandSearch:
    """A program that fails or gives a wrong result with some of XLA's passes on.

    It is run with ``XLA_FLAGS``; its exit code is read as ``git bisect run`` does: 0 right, 125 no answer, 1 to 124
    wrong, anything else a failure.
    """

    command: str
    flags: Sequence[str] = ()
    timeout: float = 1800.0
    cures: bool = True
    """Look for switches that make the fault go away, too."""
    watch: Callable[[Step], None] | None = None
    _steps: list[Step] = field(default_factory=list[Step])

    def run(self) -> Answer:
        """Search and answer. Raises UsageError where the command cannot be run."""
        with TemporaryDirectory(prefix="hloscope-bisect-") as folder:
            first = self._probe((), dump_flags(folder))
            self._saw(Step("whole", 0, 1, 1, first))
            answer = self._first(first)
            passes = self._all_passes(folder)
            if answer is None:
                answer = self._over_stages(folder)
                answer.evidence.insert(0, f"the program fails: {first.detail}")
        if self.cures and answer.fault:
            self._cure(passes, answer)
        answer.probes = [Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in self._steps]
        return answer

    def _first(self, first: Outcome) -> Answer | None:
        if first.kind == "right":
            return Answer("no-difference", evidence=["the program ends with exit code 0"])
        if first.kind == "unknown":
            return Answer("cannot-tell", evidence=["the program says that it has no answer (exit code 125)"])
        return None

    def _over_stages(self, folder: str) -> Answer:
        """The stages of the largest modules, evaluated on random inputs: the user's own are not known."""
        answer = Answer("cannot-tell")
        try:
            with open_dump(folder) as dump:
                count = len(dump.modules)
        except DumpError:
            answer.evidence.append("the program compiled nothing that was dumped")
            return answer
        checked = 0
        for number in range(min(count, MODULES)):
            try:
                with load(folder, str(number)) as run:
                    found = DumpSearch(run, None, None, ReplayOptions(workers=1), self._saw).run()
                    name = run.source.module
            except HloscopeError:
                continue
            if found.verdict == "wrong-stage":
                found.evidence.insert(0, f"module {name}, on random inputs:")
                return replace_files(found, name)
            checked += found.verdict in ("no-difference", "allowed-change")
        answer.evidence.append(
            f"the stages of {checked} of {count} modules compute the same on random inputs: the fault shows only on "
            "the program's own values, or lies below HLO"
        )
        return answer

    def _cure(self, passes: Sequence[str], answer: Answer) -> None:
        found, _ = single_cures(passes, lambda group: self._probe(group, ()), "passes off", self._saw)
        answer.cures.extend(f"--xla_disable_hlo_passes={','.join(group)}" for group in found)
        for flag, meaning in SWITCHES:
            outcome = self._probe((), (flag,))
            self._saw(Step("switch", 0, 1, 1, outcome))
            if outcome.kind == "right":
                answer.cures.append(f"{flag} ({meaning})")
        if answer.cures:
            answer.evidence.append("a switch that cures is no proof of guilt: it may only hide what another pass does")

    def _all_passes(self, folder: str) -> list[str]:
        try:
            with open_dump(folder) as dump:
                found = [stage.pass_name for module in dump.modules[:MODULES] for stage in module.stages]
        except DumpError:
            return []
        return [name for name in dict.fromkeys(found) if name not in _ALWAYS_THERE]

    def _probe(self, disabled: Sequence[str], extra: Sequence[str]) -> Outcome:
        flags = [*self.flags, *extra]
        if disabled:
            flags.append(f"--xla_disable_hlo_passes={','.join(disabled)}")
        env = dict(os.environ)
        env["XLA_FLAGS"] = joined_flags(env.get("XLA_FLAGS"), flags)
        env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        try:
            done = subprocess.run(
                self.command, shell=True, env=env, capture_output=True, text=True, timeout=self.timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome("failed", f"it did not end within {self.timeout:g} s")
        except OSError as error:
            raise UsageError(f"the command cannot run: {error}") from error
        last = (done.stderr or done.stdout).strip().rsplit("\n", 1)[-1]
        said = f"exit code {done.returncode}" + (f": {last[:200]}" if last else "")
        if done.returncode == 0:
            return Outcome("right")
        if done.returncode == 125:
            return Outcome("unknown", said)
        return Outcome("wrong" if 0 < done.returncode < 125 else "failed", said)

    def _saw(self, step: Step) -> None:
        self._steps.append(step)
        if self.watch is not None:
            self.watch(step)


MODULES = 8
"""Largest modules of a program whose stages are evaluated."""


def replace_files(answer: Answer, module: str) -> Answer:
    """The culprits with the module's name before their files."""

    def named(one: Culprit) -> Culprit:
        return replace(one, file=f"{module}: {one.file}")

    answer.culprits = [named(one) for one in answer.culprits]
    return answer
