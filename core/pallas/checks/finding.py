"""What a check returns: one finding with its place, and what a check is given to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hloscope.core.errors import Diagnostic, Severity
from hloscope.core.pallas.accesses import KernelFacts
from hloscope.core.pallas.call import Lowering, PallasCall
from hloscope.core.pallas.chips import Chip
from hloscope.core.pallas.grid import Schedule
from hloscope.core.pallas.jaxpr import NO_JOINTS, Array, Joint, Span


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at; lines and columns are 1-based, the end exclusive."""

    code: str
    """Stable key, listed in ``registry.CODES``."""
    severity: Severity
    message: str
    """One sentence with the numbers."""
    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    call: str | None = None
    """Name of the call."""
    fix: str | None = None
    """What would put it right."""
    origin: str = "core"
    """``core``: our own arithmetic; ``jax``: what jax's lowering said."""
    related: tuple[tuple[Span, str], ...] = ()
    """Other places that belong to it, and what is there."""
    function: str | None = None
    """The user's function that makes the call: a spec may be shared by several."""
    call_line: int | None = None
    """Line of the call."""
    about: str = ""
    """The memory that it concerns by its name, or the order that it depends on; empty where that explains nothing."""
    joints: frozenset[Joint] = NO_JOINTS
    """What ties it to others that tell of the same fault."""

    @property
    def span(self) -> Span:
        """Its place."""
        return Span(self.file, "", self.line, self.column, self.end_line, self.end_column)

    @property
    def of_call(self) -> tuple[str | None, int | None, str | None]:
        """The call that it belongs to."""
        return self.function, self.call_line, self.call

    def diagnostic(self) -> Diagnostic:
        """The same for the language server."""
        return Diagnostic(
            self.message, self.line, self.column, self.end_line, self.end_column, severity=self.severity, code=self.code
        )


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What the checks of one call look at."""

    path: str
    """The file that was traced, as the user named it."""
    call: PallasCall
    backend: str | None
    """``tpu``, ``triton`` or ``mosaic_gpu``; None where neither the call nor a target says."""
    chip: Chip | None
    schedule: Schedule | None
    """None where the grid is not known; ``grid_refused`` then says why."""
    facts: KernelFacts | None
    grid_refused: str | None = None
    rules: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    lowering: Lowering | None = None
    prefetch: Sequence[Array | None] = ()
    unused: frozenset[int] = frozenset()
    """Outputs that the program drops, as kernels do that use outputs for scratch."""
    function: str | None = None
    """The user's function that makes the call."""

    def place(self, *spans: Span | None) -> Span:
        """The first of the places that is known; the call's own, or the top of the file, in the end."""
        for span in (*spans, self.call.at, self.call.kernel_at):
            if span is not None:
                return span
        return Span(self.path, "", 1, 1, 1, 1)

    def finding(
        self,
        code: str,
        message: str,
        *spans: Span | None,
        severity: Severity | None = None,
        fix: str | None = None,
        origin: str = "core",
        related: Sequence[tuple[Span | None, str]] = (),
        about: str = "",
        joints: frozenset[Joint] = NO_JOINTS,
    ) -> Finding:
        """A finding of that code at the first place that is known."""
        from hloscope.core.pallas.checks.registry import CODES, FIXES

        at = self.place(*spans)
        known = CODES[code]
        return Finding(
            code, severity or known.severity, message, at.file, at.line, at.column, at.end_line, at.end_column,
            call=self.call.name, fix=fix or FIXES.get((code, self.backend or ""), known.fix), origin=origin,
            related=tuple((span, text) for span, text in related if span is not None),
            function=self.function, call_line=self.call.at.line if self.call.at is not None else None, about=about,
            joints=joints,
        )  # fmt: skip


def points_text(grid_point: Sequence[int]) -> str:
    """A grid point in words."""
    return "(" + ", ".join(map(str, grid_point)) + ("," if len(grid_point) == 1 else "") + ")"
