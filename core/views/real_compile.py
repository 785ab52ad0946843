"""An opened run as the replays of real decisions need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloscope.core.analysis.real_compile import StageName
from hloscope.core.errors import HloscopeError

if TYPE_CHECKING:
    from hloscope.core.dumps.filenames import FileKind
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.views.run import Run


class RunCompile:
    """A `hloscope.core.analysis.real_compile.RealCompile` on a run; stage numbers are the run's rows."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.stages: Sequence[StageName] = [
            StageName(index, row.pipeline, row.pass_name, row.next_pass) for index, row in enumerate(run.outline)
        ]

    @property
    def path(self) -> str:
        return self._run.source.path

    @property
    def label(self) -> str:
        return self._run.source.module

    @property
    def target(self) -> str | None:
        return self._run.source.target

    def text(self, index: int) -> str:
        return self._run.stage_text(index)

    def module(self, index: int) -> HloModule:
        try:
            return self._run.stage_module(index)
        except HloscopeError as error:
            error.message += f" (stage {index}, after {self._run.outline[index].pass_name})"
            raise

    def report(self, kind: FileKind) -> str | None:
        return self._run.report(kind)

    def proto(self, index: int) -> bytes | None:
        return self._run.stage_proto(index)
