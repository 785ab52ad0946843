"""The answer of a bisection: a verdict with its evidence, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hloscope.bisect.minimal import Minimal
    from hloscope.core.runtime.evaluator import Array

Verdict = Literal[
    "wrong-stage", "unsafe-buffers", "below-hlo", "allowed-change", "compile-failure", "not-deterministic",
    "wrong-input", "no-difference", "cannot-tell",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Culprit:
    """What made the difference, as closely as it is known."""

    file: str
    """The module that was compiled."""
    pass_name: str
    pipeline: str
    occurrence: int
    """0-based run of the pass in the compile."""
    stage: int | None = None
    """Row of the timeline after which the module is wrong."""
    fuel: int | None = None
    """``--fuel PASS=N`` with this N shows the fault, with one less it does not; None where the pass asks no gate."""
    decision: str | None = None
    """Identity of the decision: the same whatever else is switched off."""
    rule: str | None = None
    instruction: str | None = None
    """What the decision rewrote."""
    line: int | None = None
    """1-based line of that instruction in `file`; None where a pass made it."""
    produced: tuple[str, ...] = ()
    sentence: str = ""
    """The event, in words."""

    @property
    def counted(self) -> str:
        """``, decision N``, counted from 0 as runs and the fuel of events are; empty where no gate decides it. A
        kernel's choices are counted as its evidence counts them."""
        if self.fuel is None:
            return ""
        return f", choice {self.fuel}" if self.pipeline == "pallas" else f", decision {self.fuel - 1}"


@dataclass(frozen=True, slots=True)
class Probe:
    """One try, as it is reported."""

    level: str
    low: int
    high: int
    tried: int
    outcome: str
    detail: str


@dataclass(slots=True)
class Answer:
    """A verdict and what it stands on."""

    verdict: Verdict
    culprits: list[Culprit] = field(default_factory=list[Culprit])
    evidence: list[str] = field(default_factory=list[str])
    """What was seen, one sentence each."""
    probes: list[Probe] = field(default_factory=list[Probe])
    cures: list[str] = field(default_factory=list[str])
    """Switches that make the fault go away; not the same as guilt."""
    pair: tuple[str, ...] = ()
    """Runs of passes that show the fault only together, ``pipeline/pass:occurrence`` in order; empty where one does."""

    changes: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """Over versions: what changed between which two, with what it was and is."""

    reduced: dict[str, int] | None = None
    """Instructions before and after, and probes, where the module was made smaller for a bundle."""

    texts: dict[str, str] = field(default_factory=dict[str, str])
    """Files for a bundle: HLO and differences, by name."""
    arrays: dict[str, tuple[list[Array], list[Array]]] = field(
        default_factory=dict[str, "tuple[list[Array], list[Array]]"]
    )
    """Files of arrays for a bundle, inputs and outputs, by name."""

    minimal: Callable[[], Minimal | None] | None = None
    """Cuts the guilty computation of a stage out, for a bundle; None where no stage is wrong on values."""

    @property
    def fault(self) -> bool:
        """Whether something is wrong."""
        return self.verdict not in ("no-difference", "allowed-change")

    @property
    def headline(self) -> str:
        """The verdict, and with it what has changed although no result has."""
        measures = [one["measure"] for one in self.changes if one["measure"] != "result"]
        if self.verdict != "no-difference" or not measures:
            return self.verdict
        return f"{self.verdict} in the results; changed: {', '.join(measures)}"
