"""The real XLA:CPU as what is searched: a module that it compiles wrongly, or a user's own program.

Every probe is a process of its own: the compiler may crash or hang, and it reads its flags once. What is found by
switching passes off is called a cure, never a culprit: a pass may only make another one's fault visible. Guilt is shown
by evaluating the stages that the failing compile dumped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import comb
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hloscope.bisect.journal import content_of, digest
from hloscope.bisect.licence import permitted
from hloscope.bisect.precision import difference, excess_precision, fused_products, moves
from hloscope.bisect.probing import Prober
from hloscope.bisect.result import Answer, Culprit, Probe, Verdict
from hloscope.bisect.running import run_command
from hloscope.bisect.search import NoFault, Outcome, Step, confidence, first_wrong, single_cures
from hloscope.bisect.subjects.dump import NOT_THE_FIRST, DumpSearch
from hloscope.bisect.subjects.xla_names import check_flags, check_name, disabled_in, last_stage, passes_of, runs_of
from hloscope.bisect.warm import WARM
from hloscope.core.dumps.directory import open_dump
from hloscope.core.errors import CompileError, DumpError, HloscopeError
from hloscope.core.runtime import npz
from hloscope.core.runtime.compare import rules_for
from hloscope.core.runtime.evaluator import Token, evaluate, leaves
from hloscope.core.runtime.verdicts import ReplayOptions
from hloscope.core.views.run import load
from hloscope.core.xla.execute import execute_hlo_text
from hloscope.core.xla.flags import dump_flags, joined_flags

if TYPE_CHECKING:
    from hloscope.bisect.journal import Journal
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.compare import Rules, Sensitivity
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
COMMAND_SECONDS = 1800.0
"""Longest run of a user's program, in seconds."""
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
    prober: Prober = field(default_factory=Prober)
    timeout: float = PROBE_SECONDS
    """Longest compile and run of one probe, in seconds."""
    _steps: list[Step] = field(default_factory=list[Step])
    _understood: bool | None = None
    """Whether this XLA can switch off one run of a pass; None until it was tried."""

    def run(self) -> Answer:
        """Search and answer. Raises what evaluating the module raises where nothing was expected."""
        inputs = [leaf for value in self.args for leaf in leaves(value) if not isinstance(leaf, Token)]
        rules = rules_for(self.module)
        expected = self.expected
        if expected is None:
            expected = [one for one in evaluate(self.module, self.args) if not isinstance(one, Token)]
        task = XlaTask(self.text, tuple(inputs), tuple(expected), rules, tuple(self.flags), timeout=self.timeout)
        place = str(self.prober.journal.folder / "whole")
        first, results = dumped_run(task.off(self.disabled), "whole", self.prober.journal)
        if first.kind == "wrong" and results is not None:
            task = replace(task, moved=moves(self.module, self.args))
            first = replace(task.compared(results), digest=first.digest)
        self._saw(Step("whole", 0, 1, 1, first))
        passes = passes_of(place)
        for name in (*self.disabled, *disabled_in(self.flags, os.environ.get("XLA_FLAGS"))):
            check_name(name, place)
        answer = self._judge(task, first, results, inputs, place)
        if answer.fault:
            answer.texts["module.hlo"] = self.text
            answer.arrays["inputs.npz"] = (inputs, [])
            answer.arrays["expected.npz"] = ([], list(expected))
            if results is not None:
                answer.arrays["actual.npz"] = ([], results)
        if self.cures and answer.fault and answer.verdict != "not-deterministic":
            self._find_cures(task, passes, answer, place)
        answer.probes = [Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in self._steps]
        return answer

    def _judge(
        self, task: XlaTask, first: Outcome, results: list[Array] | None, inputs: Sequence[Array], folder: str
    ) -> Answer:
        base = task.off(self.disabled)
        more = self.prober.ask([replace(base, again=number) for number in range(1, REPEATS)])
        for outcome in more:
            self._saw(Step("again", 0, 1, 1, outcome))
        unlike = [one for one in more if (one.kind, one.digest) != (first.kind, first.digest)]
        if first.kind == "right":
            unlike = [one for one in unlike if one.kind != "right"]  # other bits within bounds are no fault
        if unlike:
            told = [first, *more]
            kinds = ", ".join(
                f"{sum(one.detail == said for one in told)} times {said or 'right'}"
                for said in dict.fromkeys(one.detail for one in told)
            )
            if len({one.detail for one in told}) == 1 and first.kind == "wrong":
                kinds += ", in other elements each time"
            return Answer(
                "not-deterministic",
                evidence=[
                    f"the same compile, run {len(told)} times, gave {kinds}: nobody is accused. At 95 % confidence it "
                    f"gives another result than the first in at least {_at_least(len(unlike), len(more)):.0%} of runs"
                ],
            )
        if first.kind == "right":
            said = f"XLA:CPU gives what is expected, {len(more) + 1} times: {confidence(len(more) + 1)}"
            if first.detail:
                return Answer("allowed-change", evidence=[said, f"within what rounding may do: {first.detail}"])
            return Answer("no-difference", evidence=[said])
        if first.kind == "failed":
            return failure(self.path, first, folder)
        answer = self._over_stages(results or [], inputs, folder)
        if answer.verdict == "below-hlo" and results is not None:
            said = excess_precision(self.text, inputs, task.expected, results)
            if said is not None:
                answer.verdict = "allowed-change"
                answer.evidence.append(said)
            else:
                fine, said = self._permitted(base, results)
                if fine:
                    answer.verdict = "allowed-change"
                more_said = [said, None if fine else fused_products(folder)]
                answer.evidence.extend(one for one in more_said if one)
        if self.expected is None:
            # The first stage's results are what is expected, so that line says the same again.
            answer.evidence = [said for said in answer.evidence if not said.startswith(NOT_THE_FIRST)]
        answer.evidence.insert(0, f"XLA:CPU differs from what is expected: {first.detail}")
        answer.evidence.append(f"{len(more) + 1} compiles gave the same bits: {confidence(len(more) + 1)}")
        return answer

    def _permitted(self, task: XlaTask, results: Sequence[Array]) -> tuple[bool, str]:
        """Whether the flags permit what differs, and what says so."""

        def right_with(flags: Sequence[str]) -> bool:
            outcome = self.prober.one(task.plus(flags))
            self._saw(Step("permission", 0, 1, 1, outcome))
            return outcome.kind == "right"

        return permitted(task.flags, right_with, self.module, self.args, task.expected, results, task.rules, task.moved)

    def _over_stages(self, results: Sequence[Array], inputs: Sequence[Array], folder: str) -> Answer:
        try:
            with load(folder) as run:
                search = DumpSearch(run, inputs, results, ReplayOptions(workers=1), self._saw, self.prober)
                answer = search.run()
        except HloscopeError as error:
            return Answer("cannot-tell", evidence=[f"the stages of the compile cannot be evaluated: {error}"])
        if answer.verdict == "no-difference":
            # The executable agrees with the stages: then what was expected is not what the module says.
            verdict: Verdict = "wrong-input"
            answer.evidence.append("the evaluator and the executable agree: the module itself computes something else")
            answer.verdict = verdict
        return answer

    def _find_cures(self, task: XlaTask, passes: Sequence[str], answer: Answer, folder: str) -> None:
        names = [name for name in dict.fromkeys(passes) if name not in self.disabled]

        def off(group: Sequence[str]) -> XlaTask:
            return task.off((*self.disabled, *group))

        found, _ = single_cures(
            names,
            lambda group: self.prober.one(off(group)),
            "passes off",
            self._saw,
            many=lambda groups: self.prober.ask([off(one) for one in groups]),
            ways=self.prober.ways,
        )
        answer.cures.extend(f"--xla_disable_hlo_passes={','.join(group)}" for group in found)
        if len(found) == 1 and len(found[0]) > 1:
            answer.evidence.append(f"no pass cures alone; {' and '.join(found[0])} do together")
        tasks = [replace(task.off(self.disabled), flags=(*task.flags, flag)) for flag, _ in SWITCHES]
        for (flag, meaning), outcome in zip(SWITCHES, self.prober.ask(tasks), strict=True):
            self._saw(Step("switch", 0, 1, 1, outcome))
            if outcome.kind == "right":
                answer.cures.append(f"{flag} ({meaning})")
        alone = [group[0] for group in found if len(group) == 1]
        self._one_run(task, alone, answer, folder)
        self._fuel(task, alone, answer)
        if answer.cures:
            answer.evidence.append("a switch that cures is no proof of guilt: it may only hide what another pass does")

    def _fuel(self, task: XlaTask, names: Sequence[str], answer: Answer) -> None:
        """Of curing passes that honour XLA's fuel (few do; it is tried): the decision with which the fault begins."""
        for name in names[:MOST_FUELLED]:

            def fuelled(amount: int, name: str = name) -> Outcome:
                return self.prober.one(task.off(self.disabled).plus([f"--xla_fuel={name}={amount}"]))

            if fuelled(0).kind != "right":
                continue
            most = 1
            while most < MOST_FUEL and fuelled(most).kind == "right":
                most *= 4
            try:
                found = first_wrong(most, fuelled, f"fuel {name}", self._saw)
            except NoFault:
                continue
            answer.cures.append(f"--xla_fuel={name}={found.position - 1}")
            answer.evidence.append(f"with {found.position} decisions of {name} it is wrong, with one less it is right")

    def _one_run(self, task: XlaTask, names: Sequence[str], answer: Answer, folder: str) -> None:
        """Which run of a curing pass it is, where this XLA can switch off one run: tried, not read from a version."""
        runs = [(name, at) for name in names for at in range(runs_of(folder, name)) if runs_of(folder, name) > 1]
        for name, at in runs[:MOST_RUNS]:
            entry = f"{name}:{at}"
            if self._understood is None:
                self._understood = self._probe_forms(task, name, folder)
                if not self._understood:
                    answer.evidence.append("this XLA switches passes off by name only: which run it is stays open")
            if not self._understood:
                return
            outcome = self.prober.one(task.off((*self.disabled, entry)))
            self._saw(Step("one run off", 0, 1, 1, outcome))
            if outcome.kind == "right":
                answer.cures.append(f"--xla_disable_hlo_passes={entry}")

    def _probe_forms(self, task: XlaTask, name: str, folder: str) -> bool:
        """Whether ``pass:0`` takes away one run of a pass: seen in the stages of a compile with it."""
        with TemporaryDirectory(prefix="hloscope-bisect-") as other:
            task.off((*self.disabled, f"{name}:0")).plus(dump_flags(other)).judge()
            return 0 < runs_of(other, name) < runs_of(folder, name)

    def _saw(self, step: Step) -> None:
        self._steps.append(step)
        if self.watch is not None:
            self.watch(step)


MOST_FUELLED = 3
"""Curing passes that are tried with fuel."""
MOST_FUEL = 4096
"""Most decisions of a pass of the real XLA that are told apart."""
MOST_RUNS = 8
"""Single runs of curing passes that are switched off one by one."""
REPEATS = 3
"""Compiles and runs of the whole thing before anybody is accused."""
_FAILED_AFTER = re.compile(r"Failed after ([\w.-]+)")
_NAMED = re.compile(r"%([\w.-]+) = ")


def dumped_run(task: XlaTask, name: str, journal: Journal) -> tuple[Outcome, list[Array] | None]:
    """A compile and run that is dumped to a journal's folder, and its results if any; kept for a resumed search."""
    place = str(journal.folder / name)
    asked = f"{name} {task.key}"
    known = journal.get(asked) if journal.kept(name) is not None else None
    saved = os.path.join(place, "hloscope-results.npz")
    if known is not None:
        return known, (npz.read(saved).outputs if os.path.exists(saved) else None)
    begun = journal.begin()
    outcome, results = task.plus(dump_flags(begun)).judge()
    if results is not None:
        npz.write(os.path.join(begun, os.path.basename(saved)), outputs=results)
    check_flags(outcome.detail, task.flags)
    journal.put(asked, outcome)
    journal.keep(name, begun)
    return outcome, results


def failure(path: str, first: Outcome, folder: str) -> Answer:
    """A crash, a hang or a refusal: by which pass, as far as the message or the last stage tells."""
    answer = Answer("compile-failure", evidence=[first.detail])
    last = last_stage(folder)
    named = _FAILED_AFTER.search(first.detail)
    touched = next((one for one in _NAMED.findall(first.detail)), None)
    if named is not None:
        runs = passes_of(folder)
        run = max(0, runs.count(named[1]) - 1)
        sentence = f"the verifier refuses what it made: {first.detail.rpartition('[hlo verifier]: ')[2][:400]}"
        answer.culprits.append(Culprit(path, named[1], "", run, instruction=touched, sentence=sentence))
    if last is not None and last[0] == "after_optimizations":
        answer.evidence.append("the last stage was dumped: all passes had run, code generation or the run itself fails")
    elif last is not None and named is not None and last[0] == named[1]:
        answer.evidence.append(f"the last stage that was dumped is the refused one, after {last[0]}")
    elif last is not None:
        where = f"the last stage that was dumped is after {last[0]}"
        answer.evidence.append(f"{where}; {last[1]} runs next" if last[1] else where)
    return answer


def _at_least(seen: int, runs: int) -> float:
    """The smallest rate that shows `seen` or more of `runs` at least once in twenty times (one-sided, by halving)."""
    low, high = 0.0, 1.0
    for _ in range(30):
        rate = (low + high) / 2
        more = sum(comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(seen, runs + 1))
        low, high = (rate, high) if more < 0.05 else (low, rate)
    return low


@dataclass(frozen=True)
class XlaTask:
    """Compiles and runs one module with given switches, and compares."""

    text: str
    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]
    rules: Rules
    flags: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    again: int = 0
    """Tells repeats of one probe apart."""
    timeout: float = PROBE_SECONDS
    moved: tuple[Sensitivity, ...] = ()
    """How far rounding errors move the results, where that is asked."""

    def off(self, names: Sequence[str]) -> XlaTask:
        """The same with passes off."""
        return replace(self, disabled=tuple(names))

    def plus(self, flags: Sequence[str]) -> XlaTask:
        """The same with further flags."""
        return replace(self, flags=(*self.flags, *flags))

    @property
    def key(self) -> str:
        """Names the probe within its search."""
        bounds = "moved" if self.moved else ""
        return digest(self.text, *self.flags, "off", *self.disabled, str(self.again), bounds)

    def run(self) -> Outcome:
        """Right, wrong by how much, or how the compiler failed."""
        return self.judge()[0]

    def judge(self) -> tuple[Outcome, list[Array] | None]:
        """The outcome, and the results where there are any."""
        flags = list(self.flags)
        if self.disabled:
            flags.append(f"--xla_disable_hlo_passes={','.join(self.disabled)}")
        try:
            results, _, _ = execute_hlo_text(
                self.text, self.inputs, flags=flags, timeout=self.timeout, start=WARM.start
            )
        except CompileError as error:
            return Outcome("failed", error.message), None
        return self.compared(results), results

    def compared(self, results: Sequence[Array]) -> Outcome:
        """Whether results are right; where they are only because rounding was seen to move them, the detail says so."""
        right, said = difference(self.expected, results, self.rules, self.moved)
        return Outcome("right" if right else "wrong", said, digest(*(one.tobytes() for one in results)))


def unoptimised(text: str, inputs: Sequence[Array]) -> list[Array]:
    """What XLA:CPU gives with its optimizations off. Raises CompileError."""
    return execute_hlo_text(text, inputs, flags=UNOPTIMISED, timeout=PROBE_SECONDS, start=WARM.start)[0]


# ---------------------------------------------------------------- a user's own program
@dataclass(slots=True)
class CommandSearch:
    """A program that fails or gives a wrong result with some of XLA's passes on.

    It is run with ``XLA_FLAGS``; its exit code is read as ``git bisect run`` does: 0 right, 125 no answer, 1 to 124
    wrong, anything else a failure.
    """

    command: str
    flags: Sequence[str] = ()
    timeout: float = COMMAND_SECONDS
    cures: bool = True
    """Look for switches that make the fault go away, too."""
    watch: Callable[[Step], None] | None = None
    prober: Prober = field(default_factory=Prober)
    _steps: list[Step] = field(default_factory=list[Step])

    def run(self) -> Answer:
        """Search and answer. Raises UsageError where the command cannot be run."""
        journal = self.prober.journal
        folder = str(journal.folder / "whole")
        first = journal.get("whole") if journal.kept("whole") is not None else None
        if first is None:
            place = journal.begin()
            first = self._task((), dump_flags(place)).run()
            journal.put("whole", first)
            journal.keep("whole", place)
        check_flags(first.detail, [*os.environ.get("XLA_FLAGS", "").split(), *self.flags])
        self._saw(Step("whole", 0, 1, 1, first))
        for name in disabled_in(self.flags, os.environ.get("XLA_FLAGS")):
            check_name(name, folder)
        passes = list(dict.fromkeys(passes_of(folder, MODULES)))
        answer = self._first(first)
        if answer is None:
            answer = self._repeated(first) or self._failing(first, folder)
            answer.evidence.insert(0, f"the program fails: {first.detail}")
        if self.cures and answer.fault and answer.verdict != "not-deterministic":
            self._cure(passes, answer)
        answer.probes = [Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in self._steps]
        return answer

    def _repeated(self, first: Outcome) -> Answer | None:
        """The answer where the program does not fail every time."""
        more = self.prober.ask([self._task((), (), number) for number in range(1, REPEATS)])
        for outcome in more:
            self._saw(Step("again", 0, 1, 1, outcome))
        unlike = [one for one in more if one.kind != first.kind]
        if not unlike:
            return None
        told = "; ".join(dict.fromkeys(one.detail or "exit code 0" for one in (first, *unlike)))
        return Answer(
            "not-deterministic",
            evidence=[
                f"{len(unlike)} of {len(more)} repeats ended otherwise ({told}): nobody is accused. At 95 % confidence "
                f"it ends otherwise in at least {_at_least(len(unlike), len(more)):.0%} of runs"
            ],
        )

    def _first(self, first: Outcome) -> Answer | None:
        if first.kind == "right":
            # Whoever asks has seen it fail: once is no proof that it does not.
            said = f"the program ends with exit code 0, {REPEATS} times: {confidence(REPEATS)}"
            return self._repeated(first) or Answer("no-difference", evidence=[said])
        if first.kind == "unknown":
            return Answer("cannot-tell", evidence=["the program says that it has no answer (exit code 125)"])
        return None

    def _failing(self, first: Outcome, folder: str) -> Answer:
        """The program fails every time: by a crash, a hang or a refusal of XLA's, or with a wrong result."""
        refused = _FAILED_AFTER.search(first.detail) is not None
        if first.kind != "failed" and not refused:
            return self._over_stages(folder)
        answer = failure("the program", first, folder)
        answer.evidence = answer.evidence[1:]  # the program's own words are told already
        if not refused and last_stage(folder) is None:
            # No compile of XLA's was begun, so it is not known to be the compiler's.
            answer.verdict = "cannot-tell"
            answer.evidence = ["the program compiled nothing that was dumped"]
        return answer

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
        without: list[str] = []
        unsafe: Answer | None = None
        for number in range(min(count, MODULES)):
            try:
                with load(folder, str(number)) as run:
                    found = DumpSearch(run, None, None, ReplayOptions(workers=1), self._saw).run()
                    name = run.source.module
            except HloscopeError as error:
                without.append(f"module {number} of the dump: {error.message}")
                continue
            if found.fault and found.verdict not in ("cannot-tell", "wrong-input"):
                found.evidence.insert(0, f"module {name}, on random inputs:")
                if found.verdict == "wrong-stage":
                    return replace_files(found, name)
                unsafe = unsafe or replace_files(found, name)  # a wrong value, of whichever module, says more
            elif found.fault:
                without.append(f"module {name}: {'; '.join(found.evidence)}")
            else:
                checked += 1
        if unsafe is not None:
            return unsafe
        answer.evidence.append(
            f"the stages of {checked} of {count} modules compute the same on random inputs, and their buffers share no "
            "memory that they must not: the fault shows only on the program's own values, or lies below HLO"
        )
        if count > MODULES:
            without.append(f"{count - MODULES} smaller modules were not looked at")
        answer.evidence.extend(without)
        return answer

    def _cure(self, passes: Sequence[str], answer: Answer) -> None:
        found, _ = single_cures(
            passes,
            lambda group: self.prober.one(self._task(group, ())),
            "passes off",
            self._saw,
            many=lambda groups: self.prober.ask([self._task(one, ()) for one in groups]),
            ways=self.prober.ways,
        )
        answer.cures.extend(f"--xla_disable_hlo_passes={','.join(group)}" for group in found)
        if len(found) == 1 and len(found[0]) > 1:
            answer.evidence.append(f"no pass cures alone; {' and '.join(found[0])} do together")
        outcomes = self.prober.ask([self._task((), (flag,)) for flag, _ in SWITCHES])
        for (flag, meaning), outcome in zip(SWITCHES, outcomes, strict=True):
            self._saw(Step("switch", 0, 1, 1, outcome))
            if outcome.kind == "right":
                answer.cures.append(f"{flag} ({meaning})")
        if answer.cures:
            answer.evidence.append("a switch that cures is no proof of guilt: it may only hide what another pass does")

    def _task(self, disabled: Sequence[str], extra: Sequence[str], again: int = 0) -> CommandTask:
        flags = [*self.flags, *extra]
        if disabled:
            flags.append(f"--xla_disable_hlo_passes={','.join(disabled)}")
        return CommandTask(self.command, tuple(flags), self.timeout, again)

    def _saw(self, step: Step) -> None:
        self._steps.append(step)
        if self.watch is not None:
            self.watch(step)


@dataclass(frozen=True)
class CommandTask:
    """One run of a user's program."""

    command: str
    flags: tuple[str, ...]
    timeout: float
    again: int = 0

    @property
    def key(self) -> str:
        """Names the run within its search: the command, and what is in the files that it names."""
        return digest(content_of(self.command.split()), *self.flags, str(self.again))

    def run(self) -> Outcome:
        """Run it. Raises UsageError where it cannot be."""
        env = dict(os.environ)
        env["XLA_FLAGS"] = joined_flags(env.get("XLA_FLAGS"), self.flags)
        env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        return run_command(self.command, timeout=self.timeout, env=env)


MODULES = 8
"""Largest modules of a program whose stages are evaluated."""


def replace_files(answer: Answer, module: str) -> Answer:
    """The culprits with the module's name before their files."""

    def named(one: Culprit) -> Culprit:
        return replace(one, file=f"{module}: {one.file}")

    answer.culprits = [named(one) for one in answer.culprits]
    return answer
