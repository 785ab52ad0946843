"""A compile as the replays need it: stages by pass name, each as a fresh graph, and the compiler's own reports.

A dump and an opened run (a ledger too) both give it, so that a replay is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import DumpError
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from hloscope.core.dumps.directory import Module
    from hloscope.core.hlo.module import HloModule


@dataclass(frozen=True, slots=True)
class StageName:
    """One snapshot of the module."""

    index: int
    """Position among the stages."""
    pipeline: str
    pass_name: str
    """The pass that it follows; ``pipeline-start``, ``before_optimizations`` or ``after_optimizations``."""
    next_pass: str | None = None
    """The pass that the file says follows."""


class RealCompile(Protocol):
    """One module on its way through a compiler."""

    @property
    def path(self) -> str:
        """The path as the user gave it."""
        ...

    @property
    def label(self) -> str:
        """The module's name within the path."""
        ...

    @property
    def target(self) -> str | None:
        """``cpu``, ``gpu``, ``tpu`` or ``core``."""
        ...

    @property
    def stages(self) -> Sequence[StageName]:
        """The snapshots in the order of the compile."""
        ...

    def text(self, index: int) -> str:
        """The HLO text of a stage."""
        ...

    def module(self, index: int) -> HloModule:
        """A graph of the stage that the caller may change. Raises ParseError."""
        ...

    def report(self, kind: FileKind) -> str | None:
        """A text report that the compiler wrote (the first of that kind); None where there is none."""
        ...

    def proto(self, index: int) -> bytes | None:
        """The stage's serialized HloProto where it was dumped beside the text."""
        ...


class DumpCompile:
    """A module of a dump directory or archive as a `RealCompile`."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self.stages: Sequence[StageName] = [
            StageName(stage.index, stage.pipeline, stage.pass_name, stage.next_pass) for stage in module.stages
        ]

    @property
    def path(self) -> str:
        return self._module.dump.path

    @property
    def label(self) -> str:
        return self._module.label

    @property
    def target(self) -> str | None:
        return self._module.target

    def text(self, index: int) -> str:
        return self._module.stages[index].read_text()

    def module(self, index: int) -> HloModule:
        return load_module(self.text(index), path=self._module.stages[index].path)

    def report(self, kind: FileKind) -> str | None:
        for file in self._module.text_files_of(kind):
            return self._module.dump.read_file(file).decode("utf-8", "replace")
        return None

    def proto(self, index: int) -> bytes | None:
        return self._module.stages[index].proto()


@dataclass(frozen=True, slots=True)
class PassPair:
    """The stages around one run of a pass."""

    before: StageName
    after: StageName


def stages_around(compile_: RealCompile, is_pass: Callable[[str], bool] | str) -> list[PassPair]:
    """Every place where the dump shows the module before and after a pass of that name (or that `is_pass` accepts).

    The stage before is the nearest earlier snapshot, which is the pass's input wherever passes that are not dumped in
    between changed nothing (with ``.*`` XLA leaves out only those). Raises DumpError where the dump holds none.
    """
    wanted = is_pass if callable(is_pass) else is_pass.__eq__
    pairs = [
        PassPair(compile_.stages[index - 1], stage)
        for index, stage in enumerate(compile_.stages)
        if index and wanted(stage.pass_name)
    ]
    if not pairs:
        name = is_pass if isinstance(is_pass, str) else "such a pass"
        raise DumpError(f"{compile_.label}: no stage around {name} was dumped", path=compile_.path)
    return pairs
