"""A dump alone, from any back end: its stages are evaluated until the first wrong one is found, then what that changed.

A position at the first level is a stage: right where its results are those of the first one. At the second level the
places where the guilty stage parts from the one before it are put back, alone and together, until the smallest set is
known that makes the results right again.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from hloscope.bisect.journal import digest
from hloscope.bisect.minimal import Minimal, minimal_pair
from hloscope.bisect.narrow import Pairs, Seen, leaves_a_limit, pairs_of
from hloscope.bisect.probing import Prober
from hloscope.bisect.putback import (
    OPENED,
    Alignment,
    Border,
    Flat,
    Hybrid,
    Line,
    align,
    changed_lines,
    lay_open,
    put_back,
    take_back,
)
from hloscope.bisect.result import Answer, Culprit, Probe
from hloscope.bisect.search import NoFault, Outcome, Step, first_wrong, smallest_cure
from hloscope.bisect.structure import MEANING, refused, rewritten, shortened, unseen
from hloscope.bisect.subjects.stage_probe import StageProbe, verdict_of
from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.runtime import elided
from hloscope.core.runtime.compare import compare, rules_for
from hloscope.core.runtime.evaluator import bind, leaves
from hloscope.core.runtime.evaluator.values import Token
from hloscope.core.runtime.inputs import moderate_inputs
from hloscope.core.runtime.stage import Program, output_shardings, parameter_shardings, run_stage
from hloscope.core.runtime.verdicts import (
    DIFFERS,
    NOT_EVALUATED,
    Reference,
    ReplayOptions,
    StageTask,
    StageVerdict,
    evaluation,
)
from hloscope.core.text import load_module, print_module

if TYPE_CHECKING:
    from hloscope.bisect.safety import Unsafe
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array
    from hloscope.core.views.run import Run


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
        if self.inputs is not None or self.expected is not None or len(self.run_) < 2:
            return answer
        if answer.verdict == "allowed-change":
            # Rounding moves the results far, and small values hide a limit: other inputs may tell more.
            variants, turned = VARIANTS, False
        elif answer.verdict == "no-difference" or search.by_text:
            # Nor do the same inputs go into every branch, or meet in every comparison.
            variants, turned = VARIANTS[1:2], True
        else:
            return answer
        module = load_module(self.run_.stage_text(0))
        quick = not turned or len(self.run_) * _elements(module) > MOST_AGAIN
        for said, change in variants:
            with TemporaryDirectory(prefix="hloscope-bisect-") as folder:
                changed = self._changed(module, change, turned)
                other = replace(self, inputs=changed, quick=quick, chosen=True)
                search = _Search(other, Path(folder))
                again = search.run()
            if again.verdict == "wrong-stage" and not search.by_text:
                too = ", with integers and predicates turned round" if turned else ""
                again.evidence.insert(0, f"seen on inputs {said}{too}")
                return again
        return answer

    def _changed(self, module: HloModule, change: Callable[[Array], Array], turned: bool) -> list[Array]:
        """The random inputs, floating-point ones changed; where `turned`, integers of another sign and other preds."""
        given = moderate_inputs(module.entry, self.options.seed)
        arrays = [leaf for value in given for leaf in leaves(value) if not isinstance(leaf, Token)]

        def changed(one: Array) -> Array:
            if _is_float(one):
                return change(one.astype(np.float64)).astype(one.dtype)
            if not turned:
                return one
            return ~one if one.dtype == np.bool_ else (3 - one if one.dtype.kind == "i" else one)

        return [changed(one) for one in arrays]


VARIANTS: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("that are not centred at zero", lambda x: x + 1),
    ("that are small whole numbers, whose sums and products are exact", lambda x: np.clip(np.rint(4 * x), -8, 8)),
    ("16 times as large, which reach limits", lambda x: 16 * x),
    ("256 times as large, which reach limits", lambda x: 256 * x),
)
"""Other inputs where the usual ones leave it open, with what is said of them."""
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
            self._judge = StageJudge(self._texts, self._asked, self._folder)
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
            answer.evidence.append(f"{len(unknown)} of {len(self._stages)} stages cannot be evaluated: {reason}")
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
            answer.evidence.append(
                f"stage {number} ({row.pass_name}) {far}, but changes what an instruction of the same name and "
                "operands says"
            )
            made = self._made(found[0].instruction, position)
            if made is not None:
                answer.evidence.append(
                    f"%{found[0].instruction} is there since stage {made} ({self._run.outline[made].pass_name}): if "
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

    def _made(self, name: str, position: int) -> int | None:
        """The stage that made an instruction; None where the first one has it."""
        at = position
        while at and re.search(rf"(?m)^\s*(?:ROOT )?%?{re.escape(name)} = ", self._texts[self._stages[at - 1]]()):
            at -= 1
        return self._stages[at] if at else None

    def _hazards(self) -> list[str]:
        """What is unsafe in the final module's buffers, one sentence each."""
        from hloscope.core.views.hazards import hazard_sentences

        return hazard_sentences(self._run)

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
        answer.evidence.append(f"the results in question are not those of the first stage: {said}")
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
        answer.minimal = lambda: self._cut_out(found, earlier, number)
        chosen = self._smallest(found, earlier, number)
        if not chosen:
            answer.culprits.append(self._narrowed(culprit, found, earlier, number) or culprit)
            return
        lines = self._lines(chosen[0], found, earlier, number) if len(chosen) == 1 else []
        if len(lines) == 1 and _reads_as_before(lines[0]):
            answer.culprits.append(self._name_line(culprit, lines[0]))
            return
        alone = chosen[0].after if len(chosen) == 1 and len(found.cone(chosen[0])) == 1 else None
        narrowed = self._narrowed(
            culprit, found, earlier, number, None if alone is None or alone.called_computations else alone
        )
        if narrowed is not None:
            answer.culprits.append(narrowed)
            return
        if lines:
            cone = tuple(one.name for one in found.cone(chosen[0]))
            for line in lines:
                named = self._name_line(culprit, line)
                answer.culprits.append(named if _reads_as_before(line) else replace(named, produced=cone))
            return
        answer.culprits.extend(self._opened(culprit, border, found, earlier, number) for border in chosen)
        if len(chosen) > 1:
            answer.evidence.append(f"only all {len(chosen)} changes put back together make it right")

    def _smallest(self, found: Alignment, earlier: int, number: int) -> list[Border]:
        borders = found.borders

        def cured(members: frozenset[int]) -> Outcome:
            return self._judge.hybrid(found, [borders[at] for at in sorted(members)], earlier, number)

        chosen, _ = smallest_cure(len(borders), cured, "change", self._saw)
        if not chosen:
            self._answer.evidence.append(
                f"the {len(borders)} places where it parts from stage {earlier} put back do not make it right: what is "
                "wrong lies in the order or in what cannot be evaluated alone"
            )
        return [borders[at] for at in sorted(chosen)]

    def _lines(self, border: Border, found: Alignment, earlier: int, number: int) -> list[Line]:
        """Single lines inside a border that make it right when they are taken back; none where no line does."""
        lines = changed_lines(found, border)

        def cured(members: frozenset[int]) -> Outcome:
            return self._judge.lines(found, [lines[at] for at in sorted(members)], earlier, number)

        chosen, _ = smallest_cure(len(lines), cured, "line", self._saw)
        return [lines[at] for at in sorted(chosen)]

    def _narrowed(
        self, culprit: Culprit, found: Alignment, earlier: int, number: int, known: HloInstruction | None = None
    ) -> Culprit | None:
        """The first instruction that computes what the stage before did not; None where values do not tell.

        None, too, where that is true of the one that is `known`; if it is not, its reader may be what went wrong.
        """
        compared = self._compared(found, earlier, number)
        if compared is None:
            return None
        pairs, before, after, values, origin = compared
        if known is not None:
            same = [one for one in pairs.looked_at if origin(one) == known.name]
            if not same or any(one in pairs.fresh for one in same):
                return None
        tried = 0

        def cures(borders: Sequence[Border]) -> bool:
            nonlocal tried
            outcome = self._judge.mixed(lambda: put_back(pairs.found, borders), values)
            tried += 1
            self._saw(Step("value", tried - 1, max(tried, len(pairs.groups)), tried, outcome))
            return outcome.kind == "right"

        group = next((one for one in pairs.groups if cures(one)), None)
        if group is None:
            return None
        border = group[0]
        while len(group) == 1 and (deeper := pairs.deeper(border)) is not None and cures([deeper]):
            border = deeper
        self._answer.minimal = lambda: minimal_pair(pairs, border)
        cone = [origin(one) for one in pairs.cone(border.after)]
        now, was = _parts(_written(border.after, found.after, after), _written(border.before, found.before, before))
        old = before.names.get(border.before.name, border.before.name)
        sentence = f"%{cone[0]} is {now} where %{old} was {was}"
        sentence += "; what it reads has the values that it had" if len(cone) == 1 else ""
        return replace(culprit, instruction=cone[0], produced=tuple(dict.fromkeys(cone)), sentence=sentence)

    def _compared(
        self, found: Alignment, earlier: int, number: int
    ) -> tuple[Pairs, Flat, Flat, dict[str, Array], Callable[[HloInstruction], str]] | None:
        """The values of two stages, matched; None where they run on several devices. The last tells original names."""
        before, after = lay_open(found.before), lay_open(found.after)
        theirs, ours = self._moved(before, after, earlier, number)
        seen = self._judge.seen(before.module, theirs), self._judge.seen(after.module, ours)
        if seen[0] is None or seen[1] is None:
            return None

        def origin(one: HloInstruction) -> str:
            names = after.names if one.parent.module is after.module else before.names
            return names.get(one.name, one.name)

        pairs = pairs_of(before.module, after.module, seen[0], seen[1], origin)
        return pairs, before, after, {**theirs, **ours}, origin

    def _cut_out(self, found: Alignment, earlier: int, number: int) -> Minimal | None:
        """The computation of the named instruction and the one that it may stand for."""
        compared = self._compared(found, earlier, number)
        names = {one.instruction for one in self._answer.culprits}
        if compared is None:
            return None
        pairs, *_, origin = compared
        borders = [one for group in pairs.groups for one in group if origin(one.after) in names]
        return next((cut for one in borders if (cut := minimal_pair(pairs, one)) is not None), None)

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
        if not all(np.isfinite(one.astype(np.float64)).all() for one in self._judge.inputs if _is_float(one)):
            return False  # whoever gives NaN asks for it
        try:
            before, after = (lay_open(load_module(self._texts[one]())) for one in (earlier, number))
        except (HloscopeError, InternalError):
            return False
        theirs, ours = self._moved(before, after, earlier, number)
        seen = self._judge.seen(before.module, theirs), self._judge.seen(after.module, ours)
        if seen[0] is None or seen[1] is None:
            return False
        return leaves_a_limit(before.module, after.module, seen[0], seen[1], reached=self._asked.chosen)

    def _moved(self, before: Flat, after: Flat, earlier: int, number: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Values of elided constants of two stages that are laid open, by their names there."""
        found: list[dict[str, Array]] = []
        for flat, stage in ((before, earlier), (after, number)):
            known = self._judge.constants(stage)
            found.append({**known, **{new: known[old] for new, old in flat.names.items() if old in known}})
        return found[0], found[1]

    def _opened(self, culprit: Culprit, border: Border, found: Alignment, earlier: int, number: int) -> Culprit:
        """The place inside the fusions that a border is made of, where there are any and it can be found."""
        whole = self._name(culprit, border, found)
        if not any(one.opcode in OPENED for one in found.cone(border)):
            return whole
        before, after = lay_open(found.before), lay_open(found.after)
        opened = align(before.module, after.module)
        theirs, ours = self._moved(before, after, earlier, number)

        def cured(members: frozenset[int]) -> Outcome:
            chosen = [opened.borders[at] for at in sorted(members)]
            return self._judge.mixed(lambda: put_back(opened, chosen), {**theirs, **ours})

        chosen, _ = smallest_cure(len(opened.borders), cured, "opened fusion", self._saw)
        if len(chosen) != 1:
            return whole
        one = opened.borders[min(chosen)]
        inside = self._name(culprit, one, opened)
        if len(inside.produced) >= len(whole.produced) + sum(
            len(node.called_computations[0]) for node in found.cone(border) if node.opcode in OPENED
        ):
            return whole
        name = after.names.get(one.after.name, one.after.name)
        now, was = _parts(_written(one.after, found.after, after), _written(one.before, found.before, before))
        return replace(
            inside,
            instruction=name,
            produced=tuple(after.names.get(made, made) for made in inside.produced),
            sentence=f"%{name} is {now} where the stage before has {was} "
            f"(%{before.names.get(one.before.name, one.before.name)}); it is part of %{border.after.name}",
        )

    def _name(self, culprit: Culprit, border: Border, found: Alignment) -> Culprit:
        cone = found.cone(border)
        now, was = _parts(border.after, border.before)
        sentence = f"%{border.after.name} = {now} stands where %{border.before.name} = {was} stood"
        if len(cone) > 1:
            shown = ", ".join(f"%{one.name}" for one in cone[-4:])
            sentence += f"; it is computed by {len(cone)} changed instructions ({shown})"
        produced = tuple(one.name for one in cone)
        return replace(culprit, instruction=border.after.name, produced=produced, sentence=sentence)

    def _name_line(self, culprit: Culprit, line: Line) -> Culprit:
        now, was = _parts(line.after, line.before)
        sentence = f"%{line.after.name} is {now} where it was {was}"
        return replace(culprit, instruction=line.after.name, produced=(line.after.name,), sentence=sentence)

    def _saw(self, step: Step) -> None:
        step = replace(step, so_far=self._so_far)
        self._steps.append(step)
        if self._asked.watch is not None:
            self._asked.watch(step)


_UNSEEN = StageVerdict(0, "")


def judge_of(asked: DumpSearch, folder: Path) -> StageJudge:
    """What judges a search's stages; keeps its files in a folder. Raises what evaluating the first stage raises."""
    return StageJudge([_reader(asked.run_, number) for number in range(len(asked.run_))], asked, folder)


class StageJudge:
    """Evaluates stages, and modules made of two, on the program's inputs."""

    def __init__(self, texts: Sequence[Callable[[], str]], asked: DumpSearch, folder: Path) -> None:
        self._texts = texts
        self._before = ""
        self._before_values: dict[str, Array] = {}
        self._options = asked.options
        self._constants: dict[int, Mapping[str, Array]] = {}
        text = texts[asked.base]()
        first = load_module(text)
        values = self._values(asked.base)
        parameters = first.entry.parameters
        given = (
            moderate_inputs(first.entry, self._options.seed)
            if asked.inputs is None
            else bind([p.name for p in parameters], [p.shape for p in parameters], list(asked.inputs))
        )
        arrays = tuple(leaf for value in given for leaf in leaves(value) if not isinstance(leaf, Token))
        program = Program(arrays, tuple(parameter_shardings(first)))
        run = run_stage(first, program, options=evaluation(self._options, values))
        program = replace(
            program,
            output_shapes=tuple(x.shape for x in run.outputs),
            output_shardings=tuple(output_shardings(first, texts[asked.base + 1 :])),
        )
        rules = rules_for(first, self._options.factor)
        self._prober = asked.prober
        self._key = digest(text, *(one.tobytes() for one in arrays), repr(self._options))
        self._rules, self.outputs, self.inputs = rules, run.outputs, arrays
        self._program = program
        reference = Reference(program, run.outputs, run.kernels, rules, structural_hash(first), text, values)
        self._reference = str(folder / "reference")
        Path(self._reference).write_bytes(pickle.dumps(reference, protocol=pickle.HIGHEST_PROTOCOL))
        self._cache = folder / "verdicts"
        self._cache.mkdir()

    def against_recorded(self, expected: Sequence[Array]) -> str | None:
        """How the first stage's results differ from recorded ones; None where they agree."""
        if len(expected) != len(self.outputs):
            return f"{len(expected)} results are recorded, the program has {len(self.outputs)}"
        for number, (want, have) in enumerate(zip(expected, self.outputs, strict=True)):
            if want.shape != have.shape:
                return f"result {number} is recorded as {list(want.shape)}, the program gives {list(have.shape)}"
            one = compare(want, have, self._rules)
            if not one.within:
                return f"result {number}: {one}"
        return None

    def stage(self, number: int) -> StageVerdict:
        """The verdict on one stage."""
        return self.stages([number])[0]

    def stages(self, numbers: Sequence[int]) -> list[StageVerdict]:
        """The verdicts on several stages."""
        tasks: list[tuple[str, Mapping[str, Array]]] = []
        for number in numbers:
            text = self._texts[number]()
            tasks.append((text, self._values(number) if elided.ELIDED_MARK in text else {}))
        return self._check_all(tasks)

    def foreign(self, text: str, values: Mapping[str, Array]) -> StageVerdict:
        """The verdict on a stage of another compile; `values` are those of its elided constants by name."""
        return self._check(text, values if elided.ELIDED_MARK in text else {})

    def alone(self, number: int, earlier: int) -> StageVerdict:
        """The verdict on what a stage changed, on the values that the stage before it computes."""
        self.relative_to(earlier)
        try:
            return self._check(self._texts[number](), self._values(number))
        finally:
            self._before, self._before_values = "", {}

    def relative_to(self, earlier: int) -> None:
        """From now on, where bounds have to be wide, look at what is changed since a stage, on that stage's values."""
        self._before, self._before_values = self._texts[earlier](), dict(self._values(earlier))

    def hybrid(self, found: Alignment, chosen: Sequence[Border], earlier: int, number: int) -> Outcome:
        """What the later stage computes with some of its changes put back."""
        return self.mixed(lambda: put_back(found, chosen), self._of_both(earlier, number))

    def lines(self, found: Alignment, chosen: Sequence[Line], earlier: int, number: int) -> Outcome:
        """What the later stage computes with some of its lines as they were."""
        return self.mixed(lambda: take_back(found, chosen), self._of_both(earlier, number))

    def mixed(self, make: Callable[[], Hybrid], values: Mapping[str, Array]) -> Outcome:
        """What a module made of two stages computes; `values` are those of elided constants by name."""
        try:
            mixed = make()
            text = print_module(mixed.module)
        except InternalError as error:
            return Outcome("unknown", f"cannot be put back: {error}")
        taken = {name: values[old] for name, old in mixed.borrowed.items() if old in values}
        verdict = self._check(text, {**values, **taken})
        if verdict.status == NOT_EVALUATED:
            return Outcome("unknown", verdict.reason)
        return Outcome("wrong", verdict.reason) if verdict.status == DIFFERS else Outcome("right")

    def seen(self, module: HloModule, values: Mapping[str, Array]) -> Seen | None:
        """The values of a module's instructions in one run; None where it runs on several devices, or not at all."""
        if module.num_partitions * module.replica_count > 1:
            return None
        seen = Seen()
        if len(module.entry.parameters) == len(self.inputs):
            seen.parameters = dict(zip(module.entry.parameters, self.inputs, strict=True))
        options = replace(evaluation(self._options, values), observer=seen.observe)
        try:
            run_stage(module, self._program, options=options)
        except HloscopeError:
            return None
        return seen

    def constants(self, number: int) -> Mapping[str, Array]:
        """Values of a stage's elided constants by name."""
        return self._values(number)

    def _of_both(self, earlier: int, number: int) -> Mapping[str, Array]:
        return {**self._values(earlier), **self._values(number)}

    def _check(self, text: str, values: Mapping[str, Array]) -> StageVerdict:
        return self._check_all([(text, values)])[0]

    def _check_all(self, asked: Sequence[tuple[str, Mapping[str, Array]]]) -> list[StageVerdict]:
        reference = Path(self._reference).read_bytes() if self._prober.cluster else None
        cache, before, known = str(self._cache), self._before, self._before_values
        tasks = [
            StageProbe(
                StageTask(
                    text, self._reference, self._options, cache, dict(values), before=before, before_values=known
                ),
                self._key,
                reference,
            )
            for text, values in asked
        ]
        return [verdict_of(one) for one in self._prober.ask(tasks)]

    def _values(self, number: int) -> Mapping[str, Array]:
        """Values of a stage's elided constants; what no stage tells is drawn by the seed."""
        known = self._constants.get(number)
        if known is None:
            told = elided.known_in(self._texts, number, self._options.seed)
            parsed = load_module(self._texts[number]())
            drawn = elided.resolve(parsed, None, {}, self._options.seed).values
            known = self._constants[number] = {**drawn, **told}
        return known


def _moves(verdict: StageVerdict) -> tuple[object, ...]:
    """What two verdicts on the same results have in common."""
    return verdict.status, verdict.max_abs, verdict.max_ulp, verdict.output, verdict.worst_index


def _reads_as_before(line: Line) -> bool:
    """Whether a line reads nothing that it did not read: what is wrong is then the line itself."""
    return {one.name for one in line.after.operands} <= {one.name for one in line.before.operands}


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


def _written(one: HloInstruction, module: HloModule, flat: Flat) -> HloInstruction:
    """An instruction of a stage that was laid open, as it stands in the stage's file."""
    name = flat.names.get(one.name, one.name)
    named = [node for node in module.instructions() if node.name == name]
    return next((node for node in named if (node.opcode, node.shape) == (one.opcode, one.shape)), one)


def _parts(one: HloInstruction, other: HloInstruction) -> tuple[str, str]:
    """Two instructions in short, with the attributes in which they differ."""
    apart = [
        name
        for name, text in one.raw_attrs.items()
        if (name in MEANING or name == "index") and text != other.raw_attrs.get(name)
    ]

    def said(node: HloInstruction) -> str:
        if node.opcode == "constant":
            return f"constant({shortened(node.payload)})"
        operands = ", ".join(f"%{operand.name}" for operand in node.operands[:4])
        parts = [f"{node.opcode}({operands}{', …' if node.operand_count > 4 else ''})"]
        return ", ".join([*parts, *(f"{name}={node.raw_attrs[name]}" for name in apart if name in node.raw_attrs)])

    return said(one), said(other)


def _report(steps: Sequence[Step]) -> list[Probe]:
    return [Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in steps]


def _is_float(array: Array) -> bool:
    """Floating point, ml_dtypes' types too."""
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float"))
