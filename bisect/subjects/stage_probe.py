"""One probe of a dump: the verdict on a stage, or on a module made of two stages, in any process."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hloscope.bisect.journal import digest
from hloscope.bisect.search import Outcome
from hloscope.core.runtime.verdicts import DIFFERS, NOT_EVALUATED, StageTask, StageVerdict, array_digest, check_stage


@dataclass(frozen=True)
class StageProbe:
    """Asks whether a text computes what the first stage does."""

    task: StageTask
    question: str
    """Names the first stage, its inputs and the options."""
    reference: bytes | None = None
    """What the task's reference file holds, for a machine that does not see it."""

    @property
    def key(self) -> str:
        """Names the probe by content."""
        values = (f"{name} {array_digest(array)}" for name, array in sorted(self.task.values.items()))
        return digest(self.question, self.task.text, self.task.before, *values)

    def run(self) -> Outcome:
        """Evaluate and compare."""
        task = self.task
        if self.reference is not None and not Path(task.reference).exists():
            folder = Path(tempfile.gettempdir(), f"hloscope-{self.question}")
            (folder / "verdicts").mkdir(parents=True, exist_ok=True)
            place = folder / "reference"
            if not place.exists():
                with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
                    part.write(self.reference)
                Path(part.name).replace(place)
            task = replace(task, reference=str(place), cache=str(folder / "verdicts"))
        verdict = check_stage(task)
        # The journal keeps outcomes; the whole verdict travels in the detail.
        plain = {name: value for name, value in asdict(verdict).items() if name != "path"}
        detail = json.dumps(plain)
        if verdict.status == NOT_EVALUATED:
            return Outcome("unknown", detail)
        return Outcome("wrong" if verdict.status == DIFFERS else "right", detail)


def verdict_of(outcome: Outcome) -> StageVerdict:
    """The verdict that a probe's outcome holds; one that its worker died at was not evaluated."""
    try:
        found: dict[str, Any] = json.loads(outcome.detail)
    except ValueError:
        return StageVerdict(0, NOT_EVALUATED, reason=outcome.detail)
    for name in ("worst_index", "notes"):
        if found[name] is not None:
            found[name] = tuple(found[name])
    return StageVerdict(**found)
