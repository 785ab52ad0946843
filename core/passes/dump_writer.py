"""Writes a compile as XLA's dump directory: the same file names, the same choice of what is written.

A pass dump is written when the module matches, either pass name around the point matches, and the pipeline matches;
with the pattern ``.*`` exactly, only passes that changed the module are. The step number in the name advances with
each file that is written. Files are created, never overwritten, unless that was asked for.
Source: ``openxla/xla:xla/service/dump.cc#DumpHloModuleBetweenPassesIfEnabled``, ``xla/hlo/ir/hlo_module_metadata.cc``.
"""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.dumps.filenames import DumpName, FileKind, Point
from hloscope.core.errors import DumpError, UsageError
from hloscope.core.hlo.attributes import quote
from hloscope.core.text.printer import DEFAULT, PrintOptions, print_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassRun
    from hloscope.core.passes.flags import PassFlags

_UNSAFE = re.compile(r"[/\\\[\] ]")
_REPORT_ENDS: Mapping[FileKind, str] = MappingProxyType(
    {
        FileKind.BUFFER_ASSIGNMENT: "-buffer-assignment.txt",
        FileKind.BUFFER_VALUES: "-buffer-assignment-values.txt",
        FileKind.LIVE_RANGE: "-live-range.txt",
        FileKind.MEMORY_USAGE: "-memory-usage-report.txt",
    }
)
SAID_TO_CHANGE = frozenset(("layout-assignment",))
"""Passes that report a change in XLA whatever they did, so that every dump has them."""
EVERY_CHANGE = ".*"
"""The one pattern that leaves unchanged passes out."""


class DumpWriter:
    """The dump of one module into one directory.

    Raises UsageError for a pattern that is no regular expression, DumpError where the directory cannot be made or
    holds a dump of this module already and `force` is not set.
    """

    def __init__(
        self, directory: str, flags: PassFlags, module_name: str, *, module_id: int = 0, target: str = "cpu",
        prefix: str | None = None, force: bool = False,
    ) -> None:  # fmt: skip
        self.root = directory
        self.directory = directory
        """Where the files go: the root, or the module's folder in it."""
        if flags.xla_dump_hlo_to_subfolder:
            process = sanitize(f"{platform.node()}_{os.getpid()}")
            self.directory = os.path.join(directory, sanitize(module_name), process)
        self.module_id = module_id
        self._module_name = sanitize(module_name)
        self._flags = flags
        if prefix is None:
            prefix = "cpu_" if target == "cpu" else "gpu_" if target.startswith("gpu") else ""
        self._after = f"{prefix}{Point.AFTER.value}"
        """Name of the last dump point; `prefix` is what stands before it, such as ``sm_9.0a_gpu_``."""
        self._force = force
        self._print = replace(
            DEFAULT if flags.xla_dump_hlo_as_long_text else PrintOptions.short(),
            metadata=not flags.xla_dump_disable_metadata, large_constants=flags.xla_dump_large_constants,
        )  # fmt: skip
        self._flags_told = False
        self._step = 0
        self._written: list[str] = []
        self._timestamp: int | None = None
        module_re = _pattern("xla_dump_hlo_module_re", flags.xla_dump_hlo_module_re)
        self._pass_re = _pattern("xla_dump_hlo_pass_re", flags.xla_dump_hlo_pass_re)
        self._pipeline_re = _pattern("xla_dump_hlo_pipeline_re", flags.xla_dump_hlo_pipeline_re)
        wanted = module_re is None or module_re.search(module_name) is not None
        over = 0 < flags.xla_dump_max_hlo_modules <= module_id
        self.enabled = flags.xla_enable_dumping and wanted and not over
        """False where the flags leave this module out."""
        if self.enabled:
            self._prepare()

    def _prepare(self) -> None:
        prefix = f"module_{self.module_id:04d}."
        try:
            os.makedirs(self.directory, exist_ok=True)
            taken = [name for name in os.listdir(self.directory) if name.startswith(prefix)]
        except OSError as error:
            raise DumpError(error.strerror or str(error), path=self.directory) from error
        if taken and not self._force:
            raise DumpError(
                f"holds a dump of module {self.module_id} already ({min(taken)})", path=self.directory,
                hint="name another directory, or --force to overwrite",
            )  # fmt: skip
        self._timestamp = time.time_ns() // 1000 if self._flags.xla_dump_include_timestamp else None

    @property
    def written(self) -> tuple[str, ...]:
        """Names of all files written so far, in order."""
        return tuple(self._written)

    # ---------------------------------------------------------------- what is written
    def wants_pass(self, changed: bool, name: str = "") -> bool:
        """Whether a pass with this report may be written at all."""
        said = changed or name in SAID_TO_CHANGE
        return self._pass_re is not None and (said or self._flags.xla_dump_hlo_pass_re != EVERY_CHANGE)

    def write_pass(self, module: HloModule, pipeline: str, after: str, before: str) -> tuple[str, ...]:
        """Write the module between two passes; the names of the files (none where the patterns leave it out)."""
        if not self.enabled or self._pass_re is None:
            return ()
        if not (self._pass_re.search(after) or self._pass_re.search(before)):
            return ()
        if self._pipeline_re is not None and not self._pipeline_re.search(pipeline):
            return ()
        name = self._name(
            point=Point.STEP, step=self._step, pipeline=sanitize(pipeline), after=sanitize(after),
            before=sanitize(before),
        )  # fmt: skip
        self._step += 1
        return (self._write(name, self._text(module)),)

    def write_inside(self, module: HloModule, pass_name: str, step_name: str) -> tuple[str, ...]:
        """Write the module within a pass that has steps of its own, where the pass matches."""
        if not self.enabled or self._pass_re is None or not self._pass_re.search(pass_name):
            return ()
        name = DumpName(
            FileKind.STAGE, timestamp_us=self._timestamp, module_id=self.module_id, module_name=self._module_name,
            point=Point.INSIDE, step=self._step, pipeline=sanitize(pass_name), bookend=sanitize(step_name),
            extension=".txt",
        )  # fmt: skip
        self._step += 1
        return (self._write(name, self._text(module)),)

    def write_before(self, module: HloModule) -> tuple[str, ...]:
        """Write the module as it came."""
        return self._bookend(module, "before_optimizations", Point.BEFORE)

    def write_after(self, module: HloModule) -> tuple[str, ...]:
        """Write the module as it goes."""
        return self._bookend(module, self._after, Point.AFTER)

    def write_report(self, kind: FileKind, text: str) -> str | None:
        """Write a report on the final module beside it; its file's name, None where the flags leave this module out.

        `kind` is one of the four memory reports.
        """
        if not self.enabled:
            return None
        name = DumpName(
            kind, timestamp_us=self._timestamp, module_id=self.module_id, module_name=self._module_name,
            point=Point.AFTER, bookend=self._after, extension=_REPORT_ENDS[kind],
        )  # fmt: skip
        return self._write(name, text)

    def write_metadata(self, runs: Iterable[PassRun]) -> tuple[str, ...]:
        """Write every run with its times, where the flag asks for it. Times are microseconds since 1970."""
        if not self.enabled or not self._flags.xla_dump_module_metadata:
            return ()
        lines = [f"canonical_module_id: {self.module_id}", f"original_module_id: {self.module_id}"]
        for run in runs:
            lines.append("pass_metadata {")
            lines.append(f"  pass_id: {run.pass_id}")
            lines.append(f"  pass_name: {quote(run.name)}")
            lines.append(f"  pipeline_name: {quote(run.pipeline)}")
            lines.extend(f"  dump_filenames: {quote(os.path.join(self.directory, name))}" for name in run.files)
            if run.changed:
                lines.append("  module_changed: true")
            lines.append(f"  module_id: {self.module_id}")
            lines.append(f"  start_timestamp_usec: {run.started_us}")
            if run.ended_us is not None:
                lines.append(f"  end_timestamp_usec: {run.ended_us}")
            lines.append("}")
        name = DumpName(FileKind.METADATA, module_id=self.module_id, suffix="metadata", extension=".textproto")
        return (self._write(name, "\n".join(lines) + "\n"),)

    # ---------------------------------------------------------------- files
    def _bookend(self, module: HloModule, bookend: str, point: Point) -> tuple[str, ...]:
        if not self.enabled:
            return ()
        return (self._write(self._name(point=point, bookend=bookend), self._text(module)), *self._write_flags())

    def _write_flags(self) -> tuple[str, ...]:
        """The flags that are not as XLA has them by default, once."""
        if self._flags_told:
            return ()
        self._flags_told = True
        flags = replace(self._flags, xla_dump_to=self.root).changed
        name = DumpName(
            FileKind.DEBUG_OPTIONS, module_id=self.module_id, module_name=self._module_name, suffix="debug_options",
            extension="",
        )  # fmt: skip
        return (self._write(name, "".join(f"{flag}: {value}\n" for flag, value in flags)),)

    def _text(self, module: HloModule) -> str:
        return print_module(module, self._print)

    def _name(
        self, *, point: Point, bookend: str | None = None, step: int | None = None, pipeline: str | None = None,
        after: str | None = None, before: str | None = None,
    ) -> DumpName:  # fmt: skip
        return DumpName(
            FileKind.STAGE, timestamp_us=self._timestamp, module_id=self.module_id, module_name=self._module_name,
            point=point, bookend=bookend, step=step, pipeline=pipeline, after=after, before=before, extension=".txt",
        )  # fmt: skip

    def _write(self, name: DumpName, text: str) -> str:
        file = name.format()
        path = os.path.join(self.directory, file)
        try:
            with open(path, "w" if self._force else "x", encoding="utf-8", errors="surrogateescape") as out:
                out.write(text)
        except FileExistsError as error:
            raise DumpError("exists already", path=path, hint="--force to overwrite") from error
        except OSError as error:
            raise DumpError(error.strerror or str(error), path=path) from error
        self._written.append(file)
        return file


def sanitize(name: str) -> str:
    """A name as it stands in file names: separators, brackets and blanks become underscores."""
    return _UNSAFE.sub("_", name)


def _pattern(flag: str, text: str) -> re.Pattern[str] | None:
    if not text:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{flag} is no regular expression: {error} in {text!r}") from error
