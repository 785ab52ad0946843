"""One probe of our own compiler: a compile with some runs skipped and some decisions refused, and what it makes.

Everything here can be pickled, so that the probe may be made in another process or on another machine.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from hloscope.bisect.journal import digest
from hloscope.bisect.running import Overrun, limited
from hloscope.bisect.safety import (
    Unsafe,
    assigned_wrongly,
    control_edges,
    first_new,
    layout_faults,
    lost_orders,
    shares_wrongly,
)
from hloscope.bisect.search import Outcome
from hloscope.bisect.subjects.core_child import JUDGING, Heard, child
from hloscope.core.errors import HloscopeError
from hloscope.core.passes.context import PassContext, PassRun
from hloscope.core.passes.flags import PassFlags
from hloscope.core.passes.gate import DecisionFilter, GateHandler, Question, Refusal
from hloscope.core.passes.pipelines import check_names, compile_module, transforms_pipeline, whole_pipeline
from hloscope.core.passes.registry import Registry
from hloscope.core.text import load_module, print_module

if TYPE_CHECKING:
    from hloscope.bisect.oracles import Oracle
    from hloscope.core.buffers.allocation import BufferAssignment
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.ledger import LedgerWriter
    from hloscope.core.passes.interface import HloPass

_MANY = 1 << 62


class WatchedContext(PassContext):
    """A compile whose control edges are watched from pass to pass: fusion hides from the final module what was lost."""

    _module: HloModule | None = None
    trail: list[tuple[str, str]] | None = None
    """Where it is a list, it gets each run with the digest of the module after it."""
    note: Callable[[object], None] | None = None
    """Told of every run that begins."""
    stop: tuple[int, str, str] | None = None
    """Number and name of a run that has been seen not to end, and how."""

    def push_run(self, name: str, pipeline: str, *, is_pipeline: bool = False) -> PassRun:
        """Begin a run, unless it is the one that does not end."""
        run = super().push_run(name, pipeline, is_pipeline=is_pipeline)
        if self.note is not None and not is_pipeline:
            self.note(("run", run.pass_id, name))
        if self.stop is not None and self.stop[:2] == (run.pass_id, name):
            super().pop_run(run)
            run.error = self.stop[2]
            raise Overrun(self.stop[2])
        return run

    def watch(self, module: HloModule) -> None:
        """Look at the module before the first pass, and from then on after each that changes it."""
        self.lost: list[Unsafe] = []
        self._module, self._edges = module, control_edges(module)

    def pop_run(self, run: PassRun) -> None:
        """End a run."""
        super().pop_run(run)
        if self._module is not None and not run.is_pipeline and (run.changed or run.touched):
            self.lost += lost_orders(self._edges, self._module)
            self._edges = control_edges(self._module)
        if self._module is not None and self.trail is not None and not run.is_pipeline:
            name = f"{run.pipeline}/{run.name}:{run.occurrence}" if run.pipeline else f"{run.name}:{run.occurrence}"
            self.trail.append((name, digest(print_module(self._module))))


@dataclass(frozen=True)
class CoreSubject:
    """One module, the passes to run on it, and how they are set."""

    module: HloModule
    """Left as it is: every compile works on a copy."""
    path: str
    """The file it was read from."""
    pipeline: Callable[[], list[HloPass]]
    """Makes the passes anew; a pipeline runs once."""
    registry: Registry
    flags: PassFlags
    target: str = "cpu"
    recipe: Recipe | None = None
    """How another process makes the same subject; None where only this one can."""
    timeout: float | None = None
    """Longest compile, and judgement of what it made, in seconds; None for any."""
    memo: dict[str, Outcome] = field(default_factory=dict[str, Outcome], compare=False)
    """Judgements of compiled modules by their content."""
    apart: bool = False
    """Whether a compile is made in another process first, which can be killed where Python cannot stop it."""

    def without(self, *entries: str) -> CoreSubject:
        """The same with more switched off, each a pass or one of its runs (``name:K``)."""
        flags = replace(self.flags, xla_disable_hlo_passes=(*self.flags.xla_disable_hlo_passes, *entries))
        recipe = None if self.recipe is None else replace(self.recipe, disabled=flags.xla_disable_hlo_passes)
        return replace(self, flags=flags, recipe=recipe, memo=self.memo)

    def compile(
        self,
        *,
        skip: Iterable[int] = (),
        handlers: Iterable[GateHandler] = (),
        ledger: LedgerWriter | None = None,
        trail: list[tuple[str, str]] | None = None,
        note: Callable[[object], None] | None = None,
    ) -> tuple[HloModule, PassContext, Outcome | None]:
        """Compile a copy with some pass runs skipped and some decisions refused; `trail` gets what each run made.

        `note` is told of each run as it begins.

        Returns the module, the context with its runs, and a failed outcome where a pass or a checker raised.
        """
        module = self.module.clone()
        skip, handlers = tuple(skip), tuple(handlers)
        entries = tuple(f"@{number}" for number in skip)
        flags = replace(self.flags, xla_disable_hlo_passes=(*self.flags.xla_disable_hlo_passes, *entries))
        context = WatchedContext(ledger, None, flags, self.target, handlers=handlers)
        context.watch(module)
        context.trail, context.note = trail, note
        context.stop = self._stop(skip, handlers)
        try:
            with limited(self.timeout):
                compile_module(module, self.pipeline(), context, self.registry)
        except Overrun as error:
            return module, context, Outcome("failed", f"{_where(context, '')}{error}")
        except HloscopeError as error:
            return module, context, Outcome("failed", str(error))
        except (Exception, SystemExit) as error:
            # A pass that crashes is an outcome of the probe, not an end of the search.
            return module, context, Outcome("failed", f"{_where(context)}{type(error).__name__}: {error}")
        return module, context, None

    def heard(self, skip: Iterable[int], run: PassRun) -> tuple[Heard, ...]:
        """What a run has asked the gate before it had to be ended from outside; nothing where it was not."""
        if run.error is None or not self.apart or self.recipe is None or self.timeout is None:
            return ()
        return child().heard(self.recipe, Choice(tuple(skip)), (run.pass_id, run.name), self.timeout)

    def _stop(self, skip: tuple[int, ...], handlers: Sequence[GateHandler]) -> tuple[int, str, str] | None:
        """The run at which such a compile has to be ended from outside; None where it comes to its end."""
        if not self.apart or self.recipe is None or self.timeout is None:
            return None
        refused = [one for one in handlers if isinstance(one, DecisionFilter) and one.ordinals is not None]
        refuse = next(((one.pass_name, one.ordinals.start) for one in refused if one.pass_name and one.ordinals), None)
        said = child().compile(self.recipe, Choice(skip, refuse), self.timeout)
        if said.outcome is None or said.stopped is None:
            return None
        number, name = said.stopped
        return number, name, said.outcome.detail.removeprefix(f"{name} ")


def _where(context: PassContext, verb: str = "raised ") -> str:
    failed = [run for run in context.runs if run.error is not None and not run.is_pipeline]
    return f"{failed[-1].name} {verb}" if failed else ""


@dataclass(frozen=True)
class Recipe:
    """A subject as texts."""

    text: str
    path: str
    passes: str | None
    pipeline: str | None
    plugins: tuple[tuple[str, str], ...] = ()
    """Path and content of each plugin file."""
    disabled: tuple[str, ...] = ()
    target: str = "cpu"
    timeout: float | None = None
    """Longest compile, and judgement of what it made, in seconds; None for any."""

    def registry(self) -> Registry:
        """The registry with the plugins loaded. Raises UsageError where one cannot be."""
        registry = Registry()
        for path, text in self.plugins:
            try:
                with open(path, encoding="utf-8") as file:
                    same = file.read() == text
            except OSError:
                same = False
            if same:
                registry.load_plugin(path)
                continue
            # Another machine: the file has travelled as its text.
            with tempfile.TemporaryDirectory(prefix="hloscope-") as folder:
                copy = os.path.join(folder, os.path.basename(path))
                with open(copy, "w", encoding="utf-8") as out:
                    out.write(text)
                registry.load_plugin(copy)
        return registry

    def subject(self, registry: Registry | None = None) -> CoreSubject:
        """The subject. Raises a HloscopeError for text and names that cannot be read."""
        table = self.registry() if registry is None else registry
        passes, pipeline = self.passes, self.pipeline

        def make() -> list[HloPass]:
            if passes is None:
                return whole_pipeline(pipeline or "cpu", table)
            return transforms_pipeline(table.make_all(passes), table)

        flags = PassFlags(xla_disable_hlo_passes=self.disabled)
        # A wrong name is said before anything runs.
        check_names(make(), PassContext(None, None, flags, self.target), table)
        module = load_module(self.text, self.path)
        apart = self.timeout is not None
        return CoreSubject(module, self.path, make, table, flags, self.target, self, self.timeout, apart=apart)


@lru_cache(maxsize=4)
def subject_of(recipe: Recipe) -> CoreSubject:
    """The subject, made once, whose compiles are made here."""
    return replace(recipe.subject(), apart=False)


@dataclass(frozen=True)
class Choice:
    """What one probe leaves out."""

    off: tuple[int, ...] = ()
    """Ids of the runs that are skipped."""
    refuse: tuple[str, int] | None = None
    """A pass, and the first of its decisions that is refused."""
    is_there: tuple[int, str] | None = None
    """A run that the probe is about: where another one has its id, the probe says nothing."""
    again: int = 0
    """Tells repeats of one probe apart."""

    @property
    def key(self) -> str:
        """Names the choice."""
        return digest(repr(self))


@dataclass(frozen=True)
class CoreJudge:
    """Says of a compiled module whether it is right: its values first, then what values do not show."""

    oracle: Oracle
    values_only: bool = False
    """Look at nothing but what the oracle says."""
    known: tuple[Unsafe, ...] = ()
    """What is wrong with the module as it came."""

    def judge(self, subject: CoreSubject, module: HloModule, context: PassContext) -> Outcome:
        """The judgement; the same for the same content."""
        changed = {run.name for run in context.runs if run.changed}
        layouts, copied = "layout-assignment" in changed, "copy-insertion" in changed
        text = print_module(module)
        assignment = _assignment_of(context)
        lost = context.lost if isinstance(context, WatchedContext) else []
        key = digest(text, str(layouts), str(copied), _places_text(assignment), repr(lost))
        found = subject.memo.get(key)
        if found is None:
            found = self._judge(subject, module, layouts, copied, assignment, lost)
            subject.memo[key] = found
        return found

    def _judge(
        self,
        subject: CoreSubject,
        module: HloModule,
        layouts: bool,
        copied: bool,
        assignment: BufferAssignment | None,
        lost: Sequence[Unsafe],
    ) -> Outcome:
        seen = self.oracle.judge(module)
        if seen.kind != "right" or self.values_only:
            return seen
        unsafe = [*lost, *lost_orders(subject.module, module)]
        if layouts:
            unsafe += layout_faults(module)
        new = first_new(unsafe, self.known)
        if new is None:
            shared = (
                assigned_wrongly(assignment)  # what the compile itself came to
                if assignment is not None
                else shares_wrongly(module, subject.target, copied=copied)
            )
            new = first_new(shared, self.known)
        return seen if new is None else Outcome("wrong", new.sentence, aspect=new.kind)


def _assignment_of(context: PassContext) -> BufferAssignment | None:
    from hloscope.core.buffers.allocation import BufferAssignment

    return context.assignment if isinstance(context.assignment, BufferAssignment) else None


def _places_text(assignment: BufferAssignment | None) -> str:
    if assignment is None:
        return ""
    return repr([(value.short(), one.index, chunk) for value, one, chunk in assignment.placed()])


@dataclass(frozen=True)
class CoreTask:
    """One probe."""

    source: CoreSubject | Recipe
    choice: Choice
    judge: CoreJudge

    @property
    def key(self) -> str:
        """Names the probe within its search."""
        flags = self.source.disabled if isinstance(self.source, Recipe) else self.source.flags.xla_disable_hlo_passes
        return digest(self.choice.key, *flags)

    def run(self) -> Outcome:
        """Compile and judge; in another process where there is a limit."""
        recipe = self.source if isinstance(self.source, Recipe) else self.source.recipe
        if recipe is not None and recipe.timeout is not None:
            said = child().ask(recipe, self.choice, self.judge, recipe.timeout)
            if said.outcome is not None:
                return said.outcome
        subject = subject_of(self.source) if isinstance(self.source, Recipe) else self.source
        found = probe(subject, self.choice, self.judge)
        assert found is not None
        return found


@dataclass(frozen=True)
class _Listener:
    """A handler that refuses nothing and passes on what one run asks."""

    note: Callable[[object], None]
    pass_id: int

    def decide(self, question: Question) -> Refusal | None:
        """Listen, and let it pass."""
        if question.pass_id == self.pass_id:
            name = None if question.instruction is None else question.instruction.name
            self.note(("heard", Heard(question.ordinal, question.identity, question.rule, name)))
        return None


def probe(
    subject: CoreSubject,
    choice: Choice,
    judge: CoreJudge | None,
    note: Callable[[object], None] | None = None,
    listen: int | None = None,
) -> Outcome | None:
    """Compile and judge here. Without a judge: the outcome of a compile that failed, else None.

    `note` is told how far it has come, also what the run with the number `listen` asks the gate.
    """
    handlers: tuple[GateHandler, ...] = ()
    if listen is not None and note is not None:
        handlers = (_Listener(note, listen),)
    elif choice.refuse is not None:
        handlers = (DecisionFilter("refuse", choice.refuse[0], range(choice.refuse[1], _MANY)),)
    if choice.again:
        subject.memo.clear()
    module, context, failed = subject.compile(skip=choice.off, handlers=handlers, note=note)
    if choice.is_there is not None:
        number, name = choice.is_there
        if number > len(context.runs) or context.runs[number - 1].name != name:
            return Outcome("unknown", f"run {number} is not {name} any more")
    if failed is not None or judge is None:
        return failed
    if note is not None:
        note(("phase", JUDGING))
    try:
        with limited(subject.timeout):
            return judge.judge(subject, module, context)
    except Overrun as error:
        return Outcome("failed", f"{JUDGING} {error}")
