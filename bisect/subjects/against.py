"""Two compiles of one program: where their stages part, where their values part, and which of the two is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hloscope.bisect.result import Answer
from hloscope.bisect.subjects.dump import DumpSearch
from hloscope.core.errors import HloscopeError
from hloscope.core.runtime.verdicts import ReplayOptions
from hloscope.core.views.compare import compare_runs

if TYPE_CHECKING:
    from hloscope.bisect.result import Culprit
    from hloscope.bisect.search import Step
    from hloscope.core.runtime.evaluator import Array
    from hloscope.core.views.compare import Compared
    from hloscope.core.views.run import Run


@dataclass(slots=True)
class AgainstSearch:
    """One comparison; both runs are of one program (two versions, two flag sets, two hosts)."""

    a: Run
    b: Run
    inputs: Sequence[Array] | None = None
    options: ReplayOptions = field(default_factory=ReplayOptions)
    watch: Callable[[Step], None] | None = None

    def run(self) -> Answer:
        """Search both and answer for the pair. Raises a HloscopeError where neither can be evaluated."""
        compared = compare_runs(self.a, self.b)
        found: list[tuple[str, Run, Answer]] = []
        failed: list[str] = []
        for name, one in (("A", self.a), ("B", self.b)):
            try:
                found.append((name, one, DumpSearch(one, self.inputs, None, self.options, self.watch).run()))
            except HloscopeError as error:
                failed.append(f"{name} cannot be evaluated: {error}")
        answer = self._joined(found)
        answer.evidence[:0] = [*_parts(compared), *failed]
        return answer

    def _joined(self, found: Sequence[tuple[str, Run, Answer]]) -> Answer:
        """The worse of two verdicts, with the culprits of both."""
        if not found:
            return Answer("cannot-tell")
        order = ("wrong-stage", "unsafe-buffers", "compile-failure", "cannot-tell", "allowed-change", "no-difference")
        worst = min(found, key=lambda one: order.index(one[2].verdict) if one[2].verdict in order else len(order))
        answer = Answer(worst[2].verdict)
        for name, run, one in found:
            answer.evidence.extend(f"{name}: {said}" for said in one.evidence)
            answer.probes.extend(one.probes)
            answer.texts |= {f"{name.lower()}_{key}": text for key, text in one.texts.items()}
            answer.arrays |= {f"{name.lower()}_{key}": arrays for key, arrays in one.arrays.items()}
            answer.culprits.extend(_within(culprit, run) for culprit in one.culprits)
        if len(found) == 2 and all(one.verdict == "no-difference" for _, _, one in found):
            answer.evidence.append(
                "each compute what their own first stage does: where they differ, no pass is at fault"
            )
        return answer


def _within(culprit: Culprit, run: Run) -> Culprit:
    return replace(culprit, file=f"{run.source.path}/{culprit.file}")


def _parts(compared: Compared) -> list[str]:
    first = compared.first
    if first is None:
        return ["their stages are the same as far as both have them"]
    said = f"their stages part at {first.pass_name} (stage {first.a} of A, {first.b} of B)"
    if first.between:
        said += f", after {', '.join(first.between)}"
    return [*compared.notes, said]
