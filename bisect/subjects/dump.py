"""A dump alone, from any back end: its stages are evaluated until the first wrong one is found, then what that changed.

A position at the first level is a stage: right where its results are those of the first one. At the second level the
places where the guilty stage parts from the one before it are put back, alone and together, until the smallest set is
known that makes the results right again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from hloscope.bisect.instruction import InstructionSearch
from hloscope.bisect.judge import StageJudge
from hloscope.bisect.narrow import leaves_a_limit
from hloscope.bisect.probing import Prober
from hloscope.bisect.putback import (
    align,
    lay_open,
)
from hloscope.bisect.reaching import TURNED, VARIANTS, Reaching, has_short_exponents, is_float, ordinary, varied
from hloscope.bisect.result import Answer, Culprit, Probe
from hloscope.bisect.safety import Unsafe
from hloscope.bisect.search import NoFault, Outcome, Step, first_wrong
from hloscope.bisect.structure import origin_of, refused, rewritten, unseen
from hloscope.bisect.witness import Witness, by_own_pass
from hloscope.core.errors import HloscopeError, InternalError, ParseError
from hloscope.core.runtime.verdicts import (
    DIFFERS,
    NOT_EVALUATED,
    ReplayOptions,
    StageVerdict,
)
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from hloscope.bisect.putback import Alignment
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array
    from hloscope.core.views.run import Run


NOT_THE_FIRST = "the results in question are not those of the first stage"
"""How the evidence begins where recorded results are not what the first stage computes."""


@dataclass(slots=True)
class DumpSearch:
    """One bisection of a dump."""

    run_: Run
    inputs: Sequence[Array] | None = None
    """Whole arrays in the order of the entry parameters; random ones by the seed where this is None."""
    expected: Sequence[Array] | None = None
    """Recorded results; the first stage is right by definition where this is None."""
    options: ReplayOptions = field(default_factory=ReplayOptions)
    watch: Callable[[Step], None] | None = None
    prober: Prober = field(default_factory=Prober)
    quick: bool = False
    """Look no farther where the last stage computes the right thing."""
    chosen: bool = False
    """The inputs were chosen here and may reach limits: a stage that no longer goes there is not wrong."""
    base: int = 0
    """The row that the later ones are held against."""

    def run(self) -> Answer:
        """Search and answer. Raises a HloscopeError where the first stage cannot be read or evaluated."""
        with TemporaryDirectory(prefix="hloscope-bisect-") as folder:
            search = _Search(self, Path(folder))
            answer = search.run()
        if self.inputs is not None and answer.verdict == "wrong-stage" and not (self.chosen or self.base):
            return self._beyond_nan(answer)
        if self.inputs is not None or self.expected is not None or len(self.run_) < 2:
            return answer
        if answer.verdict == "allowed-change":
            # Rounding moves the results far, and small values hide a limit: other inputs may tell more.
            variants, turned = VARIANTS, False
        elif answer.verdict == "no-difference" or search.by_text:
            # Nor do the same inputs go into every branch, or meet in every comparison.
            variants, turned = TURNED, True
        else:
            return answer
        with TemporaryDirectory(prefix="hloscope-bisect-") as folder:
            judge = judge_of(self, Path(folder))
        module = load_module(self.run_.stage_text(0))
        quick = not turned or len(self.run_) * _elements(module) > MOST_AGAIN
        if turned and has_short_exponents(module):
            variants = variants[:-1]
        tried: list[Sequence[Array]] = []
        for said, change in variants:
            tried.append([varied(one, change, turned) for one in judge.inputs])
            again = self._again(tried[-1], quick, f"{said}{', with integers and predicates turned round' * turned}")
            if again is not None:
                return again
        if turned and not quick and not self.quick:
            stages = _distinct(self.run_)
            chosen = dict.fromkeys((stages[0], stages[len(stages) // 2], stages[-1]))
            reaching = Reaching(judge, {one: self.run_.stage_text(one) for one in chosen}, tried)
            for said, inputs in reaching.others():
                again = self._again(inputs, quick, said)
                if again is not None:
                    return again
            answer.evidence.extend(reaching.left_out())
        return answer

    def _beyond_nan(self, answer: Answer) -> Answer:
        """The answer on given inputs with NaN or infinities: a sound rewrite may stop the search before the fault.

        x * convert(p) is a select, but not of an infinity. So finite values are tried in their place; where these show
        nothing, the stages behind the wrong one are held against it, and what is wrong there is told, too.
        """
        given = self.inputs or ()
        stage = answer.culprits[0].stage if answer.culprits else None
        if stage is None or all(np.isfinite(one.astype(np.float64)).all() for one in given if is_float(one)):
            return answer
        source = np.random.default_rng(self.options.seed)
        finite = [ordinary(one, source) for one in given]
        name = self.run_.outline[stage].pass_name
        again = self._again(
            finite, False, "with ordinary values in place of those that are NaN, infinite or near that", chosen=False
        )
        if again is not None:
            if again.culprits and again.culprits[0].stage != stage:
                again.evidence.insert(
                    1,
                    f"on the inputs as they are stage {stage} ({name}) differs before it, where there are NaN or "
                    "infinities: it may be sound on what is finite",
                )
            return again
        with TemporaryDirectory(prefix="hloscope-bisect-") as folder:
            try:
                rest = _Search(replace(self, base=stage), Path(folder)).run()
            except HloscopeError:
                return answer
        answer.evidence.append(f"stage {stage} ({name}) differs on NaN or infinities only")
        if rest.verdict == "wrong-stage":
            answer.evidence.append(f"the stages after it were held against stage {stage}: one of them is wrong, too")
            answer.evidence.extend(rest.evidence)
            answer.culprits.extend(rest.culprits)
        return answer

    def _again(self, inputs: Sequence[Array], quick: bool, said: str, *, chosen: bool = True) -> Answer | None:
        """The answer on other inputs, where they show a stage that computes something else."""
        with TemporaryDirectory(prefix="hloscope-bisect-") as folder:
            search = _Search(replace(self, inputs=inputs, quick=quick, chosen=chosen), Path(folder))
            again = search.run()
        if again.verdict != "wrong-stage" or search.by_text:
            return None
        again.evidence.insert(0, f"seen on inputs {said}")
        return again


MOST_AGAIN = 1 << 25
"""Elements of all stages together that are worth evaluating a second time where nothing differed; of more, the last
stage alone is."""


def _elements(module: HloModule) -> int:
    return sum(leaf.element_count for one in module.instructions() for _, leaf in one.shape.leaves() if leaf.is_array)


class _Search:
    def __init__(self, asked: DumpSearch, folder: Path) -> None:
        self._asked = asked
        self._run = asked.run_
        self._folder = folder
        self._steps: list[Step] = []
        self._texts: list[Callable[[], str]] = [_reader(asked.run_, number) for number in range(len(asked.run_))]
        self._stages = [number for number in _distinct(asked.run_) if not asked.base or number >= asked.base]
        self._verdicts: dict[int, StageVerdict] = {}
        self._answer = Answer("cannot-tell")
        self.by_text = False
        """Whether a line is accused that no value tells from what it was: one that a value tells goes before it."""
        self._so_far = ""

    def run(self) -> Answer:
        answer = self._answer
        try:
            self._judge = judge_of(self._asked, self._folder)
        finally:
            answer.probes = _report(self._steps)
        if self._asked.expected is not None:
            said = self._judge.against_recorded(self._asked.expected)
            if said is not None:
                return self._end_without_stage(said)
        if len(self._stages) < 2:
            answer.verdict, answer.evidence = "no-difference", ["there is only one stage: nothing changed the module"]
            return answer
        try:
            found = first_wrong(
                len(self._stages) - 1, self._probe, "stage", self._saw, self._probe_all, self._asked.prober.ways
            )
        except NoFault as error:
            at = self._linear(error)
            if at is None:
                return answer
        else:
            at = found.position
            if not found.exact:
                if self._refused(range(found.low + 1, at)):
                    answer.probes = _report(self._steps)
                    return answer
                answer.evidence.append(
                    f"stages {self._stages[found.low] + 1} to {self._stages[at] - 1} could not be evaluated: the "
                    "change lies among them"
                )
        self._guilty(at)
        if self._answer is answer:
            answer.probes = _report(self._steps)
        return self._answer

    # ---------------------------------------------------------------- stages
    def _probe(self, position: int) -> Outcome:
        verdict = self._verdict(position)
        if verdict.status == NOT_EVALUATED:
            return Outcome("unknown", verdict.reason)
        if verdict.status == DIFFERS:
            return Outcome("wrong", verdict.reason)
        return Outcome("right", "within what rounding errors were seen to do" if verdict.widened else "")

    def _probe_all(self, positions: Sequence[int]) -> list[Outcome]:
        """Several stages at once."""
        numbers = [self._stages[one] for one in positions]
        self._verdicts |= dict(zip(numbers, self._judge.stages(numbers), strict=True))
        return [self._probe(one) for one in positions]

    def _verdict(self, position: int) -> StageVerdict:
        number = self._stages[position]
        if number not in self._verdicts:
            self._verdicts[number] = self._judge.stage(number)
        return self._verdicts[number]

    def _linear(self, error: NoFault) -> int | None:
        """The ends agree (or the last stage tells nothing): look at every stage, since a fault may not last."""
        answer = self._answer
        if error.where == "everywhere":
            answer.verdict = "cannot-tell"
            answer.evidence.append(f"the first stage does not agree with itself: {error.outcome.detail}")
            return None
        if self._asked.quick:
            answer.verdict = "no-difference"
            return None
        unknown: list[int] = []
        if self._asked.prober.ways > 1:
            self._probe_all(range(1, len(self._stages)))
        for position in range(1, len(self._stages)):
            outcome = self._probe(position)
            self._saw(Step("stage", position - 1, len(self._stages) - 1, position, outcome, one_by_one=True))
            if outcome.kind == "wrong":
                if unknown and self._refused(range(1, position)):
                    break
                last = self._verdicts.get(self._stages[-1], _UNSEEN).status
                answer.evidence.append(
                    "the last stage cannot be evaluated"
                    if last == NOT_EVALUATED
                    else "the last stage does not show it: a later stage computes the right thing again"
                )
                return position
            if outcome.kind == "unknown":
                unknown.append(self._stages[position])
        answer.probes = _report(self._steps)
        if answer.culprits or (unknown and self._refused(range(1, len(self._stages)))):
            return None
        if unknown:
            reason = self._verdicts[unknown[0]].reason
            where = f"stage {unknown[0]} ({self._run.outline[unknown[0]].file or self._run.source.path})"
            among = f"{len(unknown)} of {len(self._stages)} stages"
            answer.evidence.append(f"{among} cannot be evaluated: {where}: {reason}")
        widened = [number for number, verdict in self._verdicts.items() if verdict.widened]
        if len(unknown) == len(self._stages) - 1:
            return None
        closer = self._closer() if widened else None
        if closer is not None:
            return closer
        self._nothing_wrong(widened)
        return None

    def _closer(self) -> int | None:
        """Where bounds had to be wide: the first stage whose own change is out of bounds on the values before it.

        What rounding did to the stages before does not count there. Only stages that moved the results are looked at.
        """
        for position in range(1, len(self._stages)):
            verdict, before = self._verdict(position), self._verdict(position - 1) if position > 1 else None
            if not verdict.widened or (before is not None and _moves(before) == _moves(verdict)):
                continue
            closer = self._judge.alone(self._stages[position], self._stages[position - 1])
            outcome = Outcome("wrong" if closer.status == DIFFERS else "right", closer.reason)
            self._saw(Step("change alone", position - 1, len(self._stages) - 1, position, outcome, one_by_one=True))
            if closer.status == DIFFERS:
                self._verdicts[self._stages[position]] = closer
                self._judge.relative_to(self._stages[position - 1])
                self._answer.evidence.append(
                    "the results stay within what rounding errors were seen to do; the change alone does not"
                )
                return position
        return None

    def _refused(self, positions: Sequence[int]) -> bool:
        """Whether one of some stages is no valid module although the stage before is; it is accused then."""
        for position in positions:
            texts = (self._texts[self._stages[position - 1]](), self._texts[self._stages[position]]())
            try:
                found = refused(load_module(texts[0]), load_module(texts[1]))
            except HloscopeError:
                continue
            if found:
                self._accuse(position, found)
                return True
        return False

    def _nothing_wrong(self, widened: list[int]) -> None:
        answer = self._answer
        checked = sum(one.status != NOT_EVALUATED for one in self._verdicts.values()) + 1
        answer.evidence.insert(0, f"all {checked} distinct stages that were evaluated compute the same")
        findings = self._hazards()
        if findings:
            answer.verdict = "unsafe-buffers"
            answer.evidence.extend(findings)
        elif widened:
            answer.verdict = "allowed-change"
            verdict = self._verdicts[min(widened)]
            answer.evidence.append(
                f"stage {min(widened)} is the first that is off by more than one rounding explains, but not by more "
                f"than rounding errors were seen to do: {verdict.reason}"
            )
        elif self._verdicts.get(self._stages[-1], _UNSEEN).status == NOT_EVALUATED:
            answer.evidence.append("the last stage is among them: what is compiled in the end is not cleared")
        else:
            answer.verdict = "no-difference"
        if not findings:
            self._structure()

    def _structure(self) -> None:
        """Where values tell nothing: what neighbouring stages show without being evaluated."""
        before = None
        rows = self._run.outline
        assigned = next((at for at, row in enumerate(rows) if row.pass_name == "layout-assignment"), len(rows))
        for position, number in enumerate(self._stages):
            had_layouts = number - 1 >= assigned  # the row before, whose text the stage before has
            try:
                after = load_module(self._texts[number]())
            except HloscopeError:
                before = None
                continue
            if before is not None and not self._asked.quick:
                found = rewritten(before, after)
                found += unseen(before, after, layouts=had_layouts, pass_name=rows[number].pass_name)
                if found:
                    self._accuse(position, found)
                    return
            before = after

    def _accuse(self, position: int, found: Sequence[Unsafe]) -> None:
        """The first stage that shows something wrong without a wrong value."""
        answer = self._answer
        made = self._made(found[0].instruction, position) if found[0].kind == "value" else None
        wrong = self._made_wrong(max(made or 1, 1), position, found[0]) if found[0].kind == "value" else None
        if wrong is not None:
            position, found = wrong[0], [wrong[1]]
        number = self._stages[position]
        row = self._run.outline[number]
        occurrence = sum(one.pass_name == row.pass_name for one in self._run.outline[:number])
        answer.verdict = "wrong-stage" if found[0].kind != "module" else "compile-failure"
        if found[0].kind == "module":
            answer.evidence.append(f"stage {number} ({row.pass_name}) is no valid module, and the stage before is")
        elif found[0].kind == "value":
            self.by_text = True
            moved = self._verdicts.get(number, _UNSEEN).max_abs
            far = "moves the results no farther than rounding could" if moved else "moves no result on these inputs"
            says = "but changes what an instruction of the same name and operands says"
            if wrong is not None:
                says = "but makes an instruction say what nothing in the stage before does"
            answer.evidence.append(f"stage {number} ({row.pass_name}) {far}, {says}")
            if made and wrong is None:
                since = self._stages[made]
                answer.evidence.append(
                    f"%{found[0].instruction} is there since stage {since} ({self._run.outline[since].pass_name}): if "
                    "what that made of it was wrong, this stage mends it"
                )
        else:
            answer.evidence.append(f"stage {number} ({row.pass_name}) is wrong in what evaluation cannot see")
        for one in found[:4]:
            answer.culprits.append(
                Culprit(
                    row.file or self._run.source.path, row.pass_name, row.pipeline, occurrence, stage=number,
                    instruction=one.instruction, produced=(one.instruction,), sentence=one.sentence,
                )
            )  # fmt: skip
        answer.texts |= {"before.hlo": self._texts[self._stages[position - 1]](), "after.hlo": self._texts[number]()}

    def _made_wrong(self, made: int, position: int, found: Unsafe) -> tuple[int, Unsafe] | None:
        """The position that made a line wrong, and the finding there, where a later stage only sets it right again."""
        try:
            stages = [load_module(self._texts[self._stages[one]]()) for one in range(made - 1, position + 1)]
        except HloscopeError:
            return None
        at = origin_of(stages, found)
        if at is None:
            return None
        name = self._run.outline[self._stages[position]].pass_name
        sentence = f"{found.sentence} after stage {self._stages[position]} ({name}), which sets it right"
        return made - 1 + at, Unsafe("value", found.instruction, sentence)

    def _made(self, name: str, position: int) -> int | None:
        """The position of the stage that made an instruction; None where the first one has it."""
        at = position
        while at and re.search(rf"(?m)^\s*(?:ROOT )?%?{re.escape(name)} = ", self._texts[self._stages[at - 1]]()):
            at -= 1
        return at or None

    def _hazards(self) -> list[str]:
        """What is unsafe in the final module's buffers, one sentence each."""
        from hloscope.core.views.hazards import hazard_sentences

        try:
            return hazard_sentences(self._run)
        except ParseError as error:
            error.path = self._run.outline[-1].file or error.path  # one unreadable stage does not end a search
            self._answer.evidence.append(f"the final module's buffers were not looked at: {error}")
            return []

    def _end_without_stage(self, said: str) -> Answer:
        """The recorded results are not what the first stage computes: the fault lies before or behind the stages."""
        answer = self._answer
        wrong = None
        for position in range(1, len(self._stages)):
            outcome = self._probe(position)
            self._saw(Step("stage", position - 1, len(self._stages) - 1, position, outcome, one_by_one=True))
            if outcome.kind == "wrong":
                wrong = position
                break
        answer.evidence.append(f"{NOT_THE_FIRST}: {said}")
        if wrong is not None:
            self._guilty(wrong)
        elif self._refused(range(1, len(self._stages))):
            pass
        elif any(one.status == NOT_EVALUATED for one in self._verdicts.values()):
            answer.evidence.append("not every stage could be evaluated, so the stages are not cleared")
        else:
            findings = self._hazards()
            answer.verdict = "unsafe-buffers" if findings else "below-hlo"
            answer.evidence.append("every stage computes what the first one does")
            answer.evidence.extend(findings or ["no hazard was found in the final module's buffers"])
        answer.probes = _report(self._steps)
        return answer

    # ---------------------------------------------------------------- what the guilty stage changed
    def _guilty(self, position: int) -> None:
        answer = self._answer
        number, earlier = self._stages[position], self._stages[position - 1]
        while earlier and self._verdicts.get(earlier, _UNSEEN).status in (NOT_EVALUATED, DIFFERS):
            position -= 1
            earlier = self._stages[position - 1]
        verdict = self._verdicts[number]
        if self._leaves_a_limit(earlier, number):
            rest = self._after_limit(number)
            name = self._run.outline[number].pass_name
            answer.evidence.append(
                f"stage {number} ({name}) does not overflow where the stage before does, and differs there: "
                f"{verdict.reason}"
            )
            if rest is None or not rest.fault:
                answer.verdict = "allowed-change"
                return
            rest.evidence[:0] = [*answer.evidence, f"the stages after it are held against stage {number}"]
            rest.probes[:0] = _report(self._steps)
            self._answer = rest
            return
        row = self._run.outline[number]
        answer.texts |= {"before.hlo": self._texts[earlier](), "after.hlo": self._texts[number]()}
        answer.texts["first.hlo"] = self._texts[0]()
        answer.arrays["inputs.npz"] = (list(self._judge.inputs), [])
        answer.arrays["expected.npz"] = ([], list(self._judge.outputs))
        answer.verdict = "wrong-stage"
        self._so_far = f"stage {number} ({row.pass_name}) is wrong"
        answer.evidence.append(f"stage {number} ({row.pass_name}) computes something else: {verdict.reason}")
        occurrence = sum(one.pass_name == row.pass_name for one in self._run.outline[:number])
        culprit = Culprit(row.file or self._run.source.path, row.pass_name, row.pipeline, occurrence, stage=number)
        if self._verdicts[number].widened:
            answer.verdict = "allowed-change"
        try:
            found = align(load_module(self._texts[earlier]()), load_module(self._texts[number]()))
        except (HloscopeError, InternalError) as error:
            answer.evidence.append(f"what it changed cannot be taken apart: {error}")
            answer.culprits.append(culprit)
            return
        inside = InstructionSearch(self._judge, found, earlier, number, answer, self._saw)
        answer.minimal = inside.cut_out
        answer.culprits.extend(inside.culprits(culprit, self._witnesses(position, found, earlier, number)))

    def _witnesses(self, position: int, found: Alignment, earlier: int, number: int) -> Iterator[Witness]:
        """Modules that are right and differ in little from the guilty one, or from a later one that has its fault."""
        mended = self._mended(position)
        if mended is not None:
            wrong, right = self._stages[mended - 1], self._stages[mended]
            name = self._run.outline[right].pass_name
            modules = [load_module(self._texts[one]()) for one in (right, wrong)]
            yield Witness(modules[0], right, modules[1], wrong, f"stage {right} ({name}) says it as it should be")
        name, target = self._run.outline[number].pass_name, self._run.source.target or "cpu"
        yield from by_own_pass(name, found.before, earlier, found.after, number, target)

    def _mended(self, position: int) -> int | None:
        """A later stage that is right where the one before it is wrong, by halving; None where the last is not."""
        low, high = position, len(self._stages) - 1
        if low >= high or self._probe(high).kind != "right":
            return None
        while high - low > 1:
            middle = (low + high) // 2
            outcome = self._probe(middle)
            self._saw(Step("mended", low, high, middle, outcome))
            low, high = (low, middle) if outcome.kind == "right" else (middle, high)
        return high if self._probe(low).kind == "wrong" else None

    def _after_limit(self, number: int) -> Answer | None:
        """What the stages after one are, held against that one; None where it runs on other inputs."""
        own, first = (load_module(self._texts[one]()).entry.parameters for one in (number, self._asked.base))
        if self._asked.expected is not None or [one.shape for one in own] != [one.shape for one in first]:
            return None
        place = self._folder / "rest"
        place.mkdir()
        search = _Search(replace(self._asked, base=number, inputs=self._judge.inputs), place)
        found = search.run()
        self.by_text |= search.by_text
        return found

    def _leaves_a_limit(self, earlier: int, number: int) -> bool:
        if not all(np.isfinite(one.astype(np.float64)).all() for one in self._judge.inputs if is_float(one)):
            return False  # whoever gives NaN asks for it
        try:
            modules = [load_module(self._texts[one]()) for one in (earlier, number)]
            if rewritten(modules[0], modules[1]):
                return False  # no rewrite that computes less is a line that says another thing
            before, after = (lay_open(one) for one in modules)
        except (HloscopeError, InternalError):
            return False
        seen = self._judge.seen_of(earlier, before), self._judge.seen_of(number, after)
        if seen[0] is None or seen[1] is None:
            return False
        return leaves_a_limit(before.module, after.module, seen[0], seen[1], reached=self._asked.chosen)

    def _saw(self, step: Step) -> None:
        step = replace(step, so_far=self._so_far)
        self._steps.append(step)
        if self._asked.watch is not None:
            self._asked.watch(step)


_UNSEEN = StageVerdict(0, "")


def judge_of(asked: DumpSearch, folder: Path) -> StageJudge:
    """What judges a search's stages; keeps its files in a folder. Raises what evaluating the first stage raises."""
    texts = [_reader(asked.run_, number) for number in range(len(asked.run_))]
    return StageJudge(texts, folder, asked.inputs, asked.options, asked.prober, asked.base)


def _moves(verdict: StageVerdict) -> tuple[object, ...]:
    """What two verdicts on the same results have in common."""
    return verdict.status, verdict.max_abs, verdict.max_ulp, verdict.output, verdict.worst_index


def _reader(run: Run, number: int) -> Callable[[], str]:
    return lambda: run.stage_text(number)


def _distinct(run: Run) -> list[int]:
    """Rows whose text differs from the row before, the first one included."""
    found: list[int] = []
    last: bytes | None = None
    for number in range(len(run)):
        digest = run.stage_digest(number)
        if digest != last:
            found.append(number)
        last = digest
    return found


def _report(steps: Sequence[Step]) -> list[Probe]:
    return [Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in steps]
