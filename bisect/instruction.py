"""Which instruction makes a stage wrong: what it changed is put back, alone and together, until the results are right.

The guilty stage and the one before it are walked in step; the places where they part are put back until the smallest
set is known that cures. Inside it single lines are taken back, values of both stages are matched, and fusions are laid
open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hloscope.bisect.minimal import Minimal, minimal_pair
from hloscope.bisect.narrow import Pairs, first_to_cure, pairs_of
from hloscope.bisect.putback import OPENED, Border, Flat, Line, align, changed_lines, lay_open, put_back
from hloscope.bisect.result import Answer
from hloscope.bisect.search import Outcome, Step, smallest_cure
from hloscope.bisect.structure import MEANING, shortened
from hloscope.core.errors import HloscopeError, InternalError

if TYPE_CHECKING:
    from hloscope.bisect.judge import StageJudge
    from hloscope.bisect.putback import Alignment
    from hloscope.bisect.result import Culprit
    from hloscope.bisect.witness import Witness
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array


@dataclass(frozen=True, slots=True)
class InstructionSearch:
    """The search inside one guilty stage."""

    judge: StageJudge
    found: Alignment
    """The stage before, and the guilty one."""
    earlier: int
    number: int
    """Their numbers."""
    answer: Answer
    """Gets evidence, and the computation that a bundle cuts out."""
    saw: Callable[[Step], None]

    def culprits(self, stage: Culprit, witnesses: Iterable[Witness] = ()) -> list[Culprit]:
        """The guilty instructions; the stage alone, as it was given, where none can be told.

        `witnesses` are asked where the stage before does not tell one instruction from what it stood for.
        """
        told, firm = self._told(stage)
        if firm:
            return told
        mine = {one.name for one in self.found.after.instructions()}
        fewest = min((len(one.produced) for one in told if one.instruction is not None), default=1 << 30)
        for witness in witnesses:
            try:
                found = align(witness.right, witness.wrong)
            except (HloscopeError, InternalError):
                continue
            answer = Answer("wrong-stage")
            other = InstructionSearch(
                self.judge, found, witness.right_stage, witness.wrong_stage, answer, self._saw_beside
            )
            answer.culprits, sure = other._told(stage)
            named = [one for one in answer.culprits if one.instruction in mine]
            if len(named) == len(answer.culprits) == 1 and (sure or len(named[0].produced) < fewest):
                self.answer.minimal = answer.minimal or other.cut_out
                self.answer.evidence.append(f"told from what it reads by a module that is right: {witness.said}")
                return named
        return told

    def _saw_beside(self, step: Step) -> None:
        self.saw(replace(step, level=f"{step.level} beside a right one"))

    def _told(self, stage: Culprit) -> tuple[list[Culprit], bool]:
        """The guilty instructions, and whether what they stood for tells that it is they and nothing else."""
        chosen = self._smallest()
        if not chosen:
            narrowed = self._narrowed(stage)
            return ([stage], False) if narrowed is None else ([narrowed[0]], narrowed[1])
        lines = self._lines(chosen)
        if len(lines) == 1 and _reads_as_before(lines[0]):
            return [self._name_line(stage, lines[0])], True
        alone = chosen[0].after if len(chosen) == 1 and len(self.found.cone(chosen[0])) == 1 else None
        narrowed = self._narrowed(stage, None if alone is None or alone.called_computations else alone)
        if narrowed is not None:
            return [narrowed[0]], narrowed[1]
        if lines and len(chosen) == 1:
            cone = tuple(one.name for one in self.found.cone(chosen[0]))
            named = [(line, self._name_line(stage, line)) for line in lines]
            return [one if _reads_as_before(line) else replace(one, produced=cone) for line, one in named], False
        if len(chosen) > 1:
            self.answer.evidence.append(f"only all {len(chosen)} changes put back together make it right")
        firm = alone is not None and _same_kind(alone, chosen[0].before)
        return [self._opened(stage, border) for border in chosen], firm

    def cut_out(self) -> Minimal | None:
        """The computation of the named instruction and the one that it may stand for."""
        compared = self._compared()
        if compared is None:
            return None
        names = {one.instruction for one in self.answer.culprits}
        borders = [one for group in compared.pairs.groups for one in group if compared.origin(one.after) in names]
        return next((cut for one in borders if (cut := minimal_pair(compared.pairs, one)) is not None), None)

    def _smallest(self) -> list[Border]:
        borders = self.found.borders

        def cured(members: frozenset[int]) -> Outcome:
            return self.judge.hybrid(self.found, [borders[at] for at in sorted(members)], self.earlier, self.number)

        chosen, _ = smallest_cure(len(borders), cured, "change", self.saw)
        if not chosen:
            self.answer.evidence.append(
                f"the {len(borders)} places where it parts from stage {self.earlier} put back do not make it right: "
                "what is wrong lies in the order or in what cannot be evaluated alone"
            )
        return [borders[at] for at in sorted(chosen)]

    def _lines(self, borders: Sequence[Border]) -> list[Line]:
        """Single lines inside borders that make it right when they are taken back; none where no line does.

        One computation that several borders call has one line for all of them.
        """
        every = {line.after: line for border in borders for line in changed_lines(self.found, border)}
        lines = list(every.values())

        def cured(members: frozenset[int]) -> Outcome:
            return self.judge.lines(self.found, [lines[at] for at in sorted(members)], self.earlier, self.number)

        chosen, _ = smallest_cure(len(lines), cured, "line", self.saw)
        return [lines[at] for at in sorted(chosen)]

    def _narrowed(self, stage: Culprit, known: HloInstruction | None = None) -> tuple[Culprit, bool] | None:
        """The first instruction that computes what the stage before did not, and whether it is surely that one.

        None where values do not tell, and where that is true of the one that is `known`: if it is not, its reader may
        be what went wrong.
        """
        compared = self._compared()
        if compared is None:
            return None
        pairs, origin = compared.pairs, compared.origin
        if known is not None:
            same = [one for one in pairs.looked_at if origin(one) == known.name]
            if not same or any(one in pairs.fresh for one in same):
                return None

        def cures(borders: Sequence[Border], level: str = "value") -> bool:
            nonlocal tried
            outcome = self.judge.mixed(lambda: put_back(pairs.found, borders), compared.constants)
            tried += 1
            self.saw(Step(level, tried - 1, max(tried, len(pairs.groups)), tried, outcome))
            return outcome.kind == "right"

        tried = 0
        group = first_to_cure(pairs, cures)
        if group is None:
            return None
        border = group[0]
        while len(group) == 1 and (deeper := pairs.deeper(border)) is not None and cures([deeper], "operand"):
            border = deeper
        self.answer.minimal = lambda: minimal_pair(pairs, border)
        cone = [origin(one) for one in pairs.cone(border.after)]
        now, was = _parts(
            _written(border.after, self.found.after, compared.after),
            _written(border.before, self.found.before, compared.before),
        )
        old = compared.before.names.get(border.before.name, border.before.name)
        sentence = f"%{cone[0]} is {now} where %{old} was {was}"
        sentence += "; what it reads has the values that it had" if len(cone) == 1 else ""
        firm = len(cone) == 1 and _same_kind(border.after, border.before)
        return replace(stage, instruction=cone[0], produced=tuple(dict.fromkeys(cone)), sentence=sentence), firm

    def _compared(self) -> _Compared | None:
        """The values of the two stages, matched; None where they run on several devices."""
        before, after = lay_open(self.found.before), lay_open(self.found.after)
        theirs = self.judge.seen_of(self.earlier, before)
        ours = self.judge.seen_of(self.number, after)
        if theirs is None or ours is None:
            return None
        constants = {**self.judge.moved(self.earlier, before), **self.judge.moved(self.number, after)}
        made = _Compared(before, after, constants)
        made.pairs = pairs_of(before.module, after.module, theirs, ours, made.origin)
        return made

    def _opened(self, stage: Culprit, border: Border) -> Culprit:
        """The place inside the fusions that a border is made of, where there are any and it can be found."""
        found = self.found
        whole = _name(stage, border, found)
        if not any(one.opcode in OPENED for one in found.cone(border)):
            return whole
        before, after = lay_open(found.before), lay_open(found.after)
        opened = align(before.module, after.module)
        constants = {**self.judge.moved(self.earlier, before), **self.judge.moved(self.number, after)}

        def cured(members: frozenset[int]) -> Outcome:
            chosen = [opened.borders[at] for at in sorted(members)]
            return self.judge.mixed(lambda: put_back(opened, chosen), constants)

        chosen, _ = smallest_cure(len(opened.borders), cured, "opened fusion", self.saw)
        if len(chosen) != 1:
            return whole
        one = opened.borders[min(chosen)]
        inside = _name(stage, one, opened)
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

    def _name_line(self, stage: Culprit, line: Line) -> Culprit:
        now, was = _parts(line.after, line.before)
        sentence = f"%{line.after.name} is {now} where it was {was}"
        return replace(stage, instruction=line.after.name, produced=(line.after.name,), sentence=sentence)


@dataclass(slots=True)
class _Compared:
    """Two stages laid open, with their values."""

    before: Flat
    after: Flat
    constants: dict[str, Array]
    """Elided ones of both."""
    pairs: Pairs = field(init=False)

    def origin(self, one: HloInstruction) -> str:
        """The name of an instruction where it was not laid open."""
        names = (self.after if one.parent.module is self.after.module else self.before).names
        return names.get(one.name, one.name)


def _name(stage: Culprit, border: Border, found: Alignment) -> Culprit:
    cone = found.cone(border)
    now, was = _parts(border.after, border.before)
    sentence = f"%{border.after.name} = {now} stands where %{border.before.name} = {was} stood"
    if len(cone) > 1:
        shown = ", ".join(f"%{one.name}" for one in cone[-4:])
        sentence += f"; it is computed by {len(cone)} changed instructions ({shown})"
    produced = tuple(one.name for one in cone)
    return replace(stage, instruction=border.after.name, produced=produced, sentence=sentence)


def _same_kind(one: HloInstruction, other: HloInstruction) -> bool:
    """Whether two do the same operation, with nothing inside that could be wrong instead of them."""
    return one.opcode == other.opcode and not one.called_computations


def _reads_as_before(line: Line) -> bool:
    """Whether a line reads nothing that it did not read: what is wrong is then the line itself."""
    return {one.name for one in line.after.operands} <= {one.name for one in line.before.operands}


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
