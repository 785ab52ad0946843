"""Every pass run of a compile with its times, from the two places that tell it.

* ``module_*.metadata.textproto`` (``--xla_dump_module_metadata``, XLA:GPU): one ``pass_metadata`` a run.
  Source: ``openxla/xla:xla/service/hlo.proto#HloPassMetadata``.
* The log of ``TF_CPP_VMODULE=hlo_pass_pipeline=1,dump=1`` (XLA:CPU and others): start and end of every pass, the
  pipelines, and the dump files in between, which say to which module the lines belong.
  Source: ``openxla/xla:xla/hlo/pass/hlo_pass_pipeline.cc#RunPassesInternal``.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hloscope.core.dumps.directory import Dump, Module
from hloscope.core.dumps.filenames import FileKind, Point, parse_name
from hloscope.core.dumps.nesting import PIPELINE_START
from hloscope.core.dumps.textproto import Message, parse_textproto

LOG_MODULES = "hlo_pass_pipeline=1,dump=1"
"""The value of ``TF_CPP_VMODULE`` that makes XLA log what ``parse_log`` reads."""


@dataclass(slots=True)
class PassRun:
    """One run of a pass as the compiler itself tells it."""

    name: str
    pipeline: str
    files: list[str] = field(default_factory=list)
    """Names of the dump files written right after it, without folders."""
    steps: list[str] = field(default_factory=list)
    """Names of the dump files written inside it."""
    changed: bool | None = None
    """What the pass reported; None where the log does not say."""
    start_us: int | None = None
    """Microseconds since the epoch."""
    ns: int | None = None
    """Run time in nanoseconds."""
    pass_id: int | None = None
    """XLA's number of the run."""


def sanitized(name: str) -> str:
    """A pass or file name as it stands in a file name: XLA's dump writer replaces spaces and separators."""
    return re.sub(r"[/\\\[\]? ]", "_", name)


def pass_runs(dump: Dump) -> dict[Module, list[PassRun]]:
    """The pass runs of every module that something tells them of; files that cannot be read are skipped."""
    found: dict[Module, list[PassRun]] = {}
    for module in dump.modules:
        for file in module.files_of(FileKind.METADATA):
            if file.path.endswith((".textproto", ".pbtxt")):
                text = dump.read_file(file).decode("utf-8", "replace")
                found[module] = parse_metadata(parse_textproto(text, path=file.path))
    for file in dump.shared_files:
        if file.kind is FileKind.PASS_LOG:
            logged = parse_log(dump.read_file(file).decode("utf-8", "replace").splitlines())
            for module in dump.modules:
                if module not in found and (runs := _runs_of(module, logged)):
                    found[module] = runs
    return found


ModuleKey = tuple[str, int, str]
"""(folder that the dump went to, XLA's module id, module name): two processes may use one id."""


def _runs_of(module: Module, logged: dict[ModuleKey, list[PassRun]]) -> list[PassRun]:
    ending = f"/{module.folder.strip('/')}" if module.folder else ""
    # Where all file names were too long to hold the module's the log has none for it.
    for wanted in (module.name, ""):
        for (folder, module_id, name), runs in logged.items():
            if module_id == module.id and name == wanted and folder.endswith(ending):
                return runs
    return []


def parse_metadata(message: Message) -> list[PassRun]:
    """The runs of a ``HloModuleMetadataProto``, in the order in which they ended (as dump files are numbered)."""
    runs: list[PassRun] = []
    for entry in message.messages("pass_metadata"):
        start, end = entry.integer("start_timestamp_usec"), entry.integer("end_timestamp_usec")
        runs.append(
            PassRun(
                name=entry.text("pass_name") or "",
                pipeline=entry.text("pipeline_name") or "",
                files=[name.rsplit("/", 1)[-1] for name in entry.texts("dump_filenames")],
                changed=entry.text("module_changed") == "true",
                start_us=start,
                ns=(end - start) * 1000 if start is not None and end is not None else None,
                pass_id=entry.integer("pass_id"),
            )
        )
    return _by_end(runs)


def _by_end(runs: list[PassRun]) -> list[PassRun]:
    """Runs in the order of their ends, from their order by start; times are too coarse to sort by.

    A run that a ``pipeline-start`` row follows holds that pipeline, and ends after it, where the pipeline has its name
    or began within its time: ``spmd-partitioning`` runs one called ``spmd-cleanup``.
    """
    ordered: list[PassRun] = []
    parents: list[tuple[PassRun, str]] = []
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        while parents and not _within(run, *parents[-1]):
            ordered.append(parents.pop()[0])
        if following is not None and _holds(run, following):
            parents.append((run, following.pipeline))
        else:
            ordered.append(run)
    ordered.extend(parent for parent, _ in reversed(parents))
    return ordered


def _holds(run: PassRun, following: PassRun) -> bool:
    """Whether the pipeline whose start comes right after a run's row was run by that run."""
    if following.name != PIPELINE_START or run.name == PIPELINE_START:
        return False
    if following.pipeline == run.name:
        return True
    if run.start_us is None or run.ns is None or following.start_us is None:
        return False
    return following.start_us < run.start_us + run.ns // 1000


def _within(run: PassRun, parent: PassRun, inner: str) -> bool:
    """Whether a run began within its possible parent, which holds pipeline `inner`."""
    if run.start_us is None or parent.start_us is None or parent.ns is None:
        return run.pipeline != parent.pipeline
    end = parent.start_us + parent.ns // 1000
    return run.start_us < end or (run.start_us == end and run.pipeline == inner)


_LINE = re.compile(
    r"^[VIWEF](?P<month>[0-9]{2})(?P<day>[0-9]{2}) (?P<h>[0-9]{2}):(?P<m>[0-9]{2}):(?P<s>[0-9]{2})\.(?P<us>[0-9]{6})"
    r"\s+(?P<thread>[0-9]+) (?P<file>hlo_pass_pipeline|dump)\.cc:[0-9]+\] ?(?P<text>.*)$"
)
_PIPELINE = re.compile(r"^Running HLO pass pipeline on module (?P<module>.*?): (?P<name>.*)$")
_START = re.compile(r"^\s*HLO pass (?P<name>.*)$")
_END = re.compile(r"^\s*HLO pass: (?P<name>.*) time: (?P<shown>[^(]*)\((?P<us>[0-9]+) us\)")
_FILE = re.compile(r"^Dumping (?P<name>.+?\.(?:txt|hlo\.pb|hlo\.pb\.gz|riegeli|dot|html|url))(?: to (?P<folder>.*))?$")


def is_log_line(line: str) -> bool:
    """Whether a line of a program's stderr is one that ``parse_log`` reads (or a neighbour from the same switch)."""
    return _LINE.match(line) is not None


class _Thread:
    """The compile that one thread is in the middle of."""

    def __init__(self) -> None:
        self.key: ModuleKey | None = None
        self.ended: list[PassRun] = []
        """Finished runs, in the order in which they ended."""
        self.open: list[PassRun] = []
        self.pipelines: list[str] = [""]


def parse_log(lines: Iterable[str], *, year: int | None = None) -> dict[ModuleKey, list[PassRun]]:
    """The pass runs of each module in a log, ordered by their ends; other lines are passed over.

    ``year`` completes the log's dates, which have none; by default the current one.
    """
    runs: dict[ModuleKey, list[PassRun]] = defaultdict(list)
    threads: dict[str, _Thread] = defaultdict(_Thread)
    for at, thread_id, text in _log_lines(lines, year or time.localtime().tm_year):
        thread = threads[thread_id]
        if (match := _FILE.match(text)) is not None:
            _on_file(thread, runs, match["name"], match["folder"] or "")
        elif (match := _PIPELINE.match(text)) is not None:
            thread.pipelines = [*thread.pipelines[: len(thread.open) + 1], match["name"]]
            thread.ended.append(PassRun(PIPELINE_START, match["name"], changed=False, start_us=at))
        elif (match := _END.match(text)) is not None:
            _on_end(thread, match["name"], int(match["us"]))
        elif (match := _START.match(text)) is not None:
            thread.open.append(PassRun(match["name"], thread.pipelines[-1], start_us=at))
    for thread in threads.values():
        _finish(thread, runs)
    return dict(runs)


def _log_lines(lines: Iterable[str], year: int) -> Iterator[tuple[int, str, str]]:
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        month, day, hour, minute, second = (int(match[part]) for part in ("month", "day", "h", "m", "s"))
        # The log is in the local time of the machine that compiled.
        at = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
        yield int(at) * 1_000_000 + int(match["us"]), match["thread"], match["text"]


def _on_end(thread: _Thread, name: str, microseconds: int) -> None:
    while thread.open:
        run = thread.open.pop()
        del thread.pipelines[len(thread.open) + 2 :]
        thread.ended.append(run)
        if run.name == name:
            run.ns = microseconds * 1000
            return


def _finish(thread: _Thread, runs: dict[ModuleKey, list[PassRun]]) -> None:
    """Hands what the thread has seen to the module that it was compiling."""
    if thread.key is not None:
        runs[thread.key].extend(thread.ended)
        runs[thread.key].extend(reversed(thread.open))
    thread.ended = []
    thread.open = []
    thread.pipelines = [""]


def _on_file(thread: _Thread, runs: dict[ModuleKey, list[PassRun]], path: str, folder: str) -> None:
    name = parse_name(sanitized(path.rsplit("/", 1)[-1]))
    if name.module_id is None:
        return
    key = (folder.rstrip("/"), name.module_id, name.module_name or "")
    known = thread.key
    if known is None or (key[:2] == known[:2] and not known[2]):
        thread.key = key
    elif key != known and not (key[:2] == known[:2] and not key[2]):  # a long file name leaves the module's out
        _finish(thread, runs)
        thread.key = key
    file = name.format()
    if name.point is Point.INSIDE:
        if thread.open:
            thread.open[-1].steps.append(file)
    elif name.point is Point.STEP and name.kind is FileKind.STAGE:
        for run in (*reversed(thread.open), *reversed(thread.ended)):
            if sanitized(run.name) == name.after and sanitized(run.pipeline) == name.pipeline:
                run.files.append(file)
                return
