"""An opened run as the replays of real decisions need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloscope.core.analysis.real_compile import StageName
from hloscope.core.errors import DumpError
from hloscope.core.text import load_module

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
        row, fault = self._run.outline[index], self._run.fault(index)
        if fault is not None:
            where = row.file or f"stage {index}"
            raise DumpError(f"{fault} (stage {index}, after {row.pass_name})", path=f"{self.path}/{where}")
        return load_module(self.text(index), path=f"{self.path}/{row.file}" if row.file else self.path)

    def report(self, kind: FileKind) -> str | None:
        return self._run.report(kind)

    def proto(self, index: int) -> bytes | None:
        return self._run.stage_proto(index)
