"""What ``hloscope pallas`` answers: calls with their blocks and schedule, findings, and what was run.

``analyse`` is the one entry for readers (the command line, the dashboard, the language server). Without ``trace`` the
file is only parsed; with it the function is traced in a child process; with ``interpret`` its kernels are run under
instruments too. Every answer says what it proves and what it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.ledger import LedgerWriter
from hloscope.core.ledger.events import PallasFinding
from hloscope.core.pallas.accesses import SPACES, kernel_facts
from hloscope.core.pallas.call import PallasCall, Program
from hloscope.core.pallas.causes import beside_causes, joined, ordered
from hloscope.core.pallas.checks.finding import Finding, Subject
from hloscope.core.pallas.checks.kernel_slices import LEFT_TO_A_RUN
from hloscope.core.pallas.checks.registry import CODES, check_call
from hloscope.core.pallas.checks.undecided import said_once
from hloscope.core.pallas.chips import Chip, find_chip
from hloscope.core.pallas.grid import Schedule, walk
from hloscope.core.pallas.interpret.generic import known_operands
from hloscope.core.pallas.jaxpr import Array, Span, statements
from hloscope.core.pallas.tracing import Trace, trace_file

MOST_STEPS_SHOWN = 64
"""Grid steps whose fetches are listed one by one."""
MOST_RUNS_SHOWN = 16
"""Runs of one call whose blocks are shown, where they depend on what it is given."""
DEFAULT_SPACES: Mapping[tuple[str, str], str] = {
    ("default", "tpu"): "VMEM",
    ("default", "triton"): "global memory: a window onto the array",
    ("default", "mosaic_gpu"): "shared memory",
}
"""(memory space, backend) -> what it means there, where the backend picks."""
CHECKED_BY_A_RUN = "was checked for this input alone"


@dataclass(frozen=True, slots=True)
class Rung:
    """One way of looking at a kernel: what it proves, and what it cannot."""

    name: str
    """``static``, ``trace``, ``generic``, ``tpu`` or ``gpu``."""
    proves: str
    cannot: str
    seeds: tuple[int, ...] = ()
    """Seeds of the orders that were run; the same seed gives the same order again."""
    call: str | None = None
    outcome: str | None = None
    """What running it gave: ``done``, ``fault`` or ``unsupported``."""
    function: str | None = None
    """The user's function that makes the call."""
    line: int | None = None
    """Line of the call."""
    turn: int = 1
    """Which run of the call it is, where the program makes the call several times."""


STATIC = Rung(
    "static",
    "what the text says by itself: literal grids, block shapes and index maps",
    "anything that is computed, imported or passed in",
)
TRACED = Rung(
    "trace",
    "the grid, every block of every step, and what the traced kernel does to memory at each step",
    "values: what depends on data is listed as unsupported; whether a compiler takes the kernel",
)


@dataclass(frozen=True, slots=True)
class CallReport:
    """One call in plain data."""

    name: str
    function: str | None
    """The user's function that makes the call."""
    file: str
    line: int
    grid: tuple[int | None, ...] | None
    """Bounds; None for one that is not known, and for a grid that is not known at all."""
    steps: int | None
    """Times that the kernel runs."""
    backend: str | None
    operands: tuple[Mapping[str, Any], ...]
    scratch: tuple[str, ...] = ()
    bytes_moved: int | None = None
    schedule: tuple[Mapping[str, Any], ...] = ()
    """The first steps: which operands are fetched anew and which are written back after it."""
    kernel_arguments: tuple[str, ...] = ()
    primitive_operands: tuple[str, ...] = ()
    index_map_arguments: tuple[str, ...] = ()
    traced: bool = False
    column: int = 1
    """Column of the call."""
    end_column: int = 1
    """Column behind the call, or behind the last character of its first line."""
    turn: int = 1
    """Which run of the call it shows, where its blocks are known by running alone."""
    device: int | None = None
    """The device whose run it shows, where devices have other blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """One run of a call: what it was given, and whether its plain order came to the end."""

    call: int
    """Number of the call."""
    function: str | None
    turn: int
    operands: tuple[Array | None, ...]
    """Grid bounds and scalar prefetch operands."""
    finished: bool
    device: int | None = None
    """The device, where devices were given other values."""


@dataclass(frozen=True, slots=True, eq=False)
class _Looked:
    """One call, and what is said of it."""

    program: Program
    subject: Subject
    report: CallReport
    findings: list[Finding]


@dataclass(slots=True)
class PallasReport:
    """The answer for one file."""

    path: str
    calls: list[CallReport] = field(default_factory=list[CallReport])
    findings: list[Finding] = field(default_factory=list[Finding])
    rungs: list[Rung] = field(default_factory=list[Rung])
    jax: str | None = None
    target: str | None = None

    @property
    def has_errors(self) -> bool:
        """Whether some finding is an error."""
        return any(one.severity == "error" for one in self.findings)


def analyse(
    path: str,
    function: str | None = None,
    *,
    target: str | None = None,
    trace: bool = False,
    interpret: bool = False,
    args: Sequence[str] = (),
    seed: int = 0,
    runs: int = 4,
    recorder: LedgerWriter | None = None,
    timeout: float = 60.0,
) -> PallasReport:
    """Looks at the Pallas calls of a file.

    ``runs`` is how many orders of steps and copies each call is interpreted in, beginning with ``seed``; ``timeout``
    how many seconds each interpreter of a call may take. ``recorder``
    is given every finding, and every step of the plain run of each call, as events. Raises
    ``UsageError`` for a file, function, target or shape that cannot be used, ``CompileError`` where the tracing child
    fails.
    """
    if target is not None:
        find_chip(target)
    if not trace and not interpret:
        from hloscope.core.pallas.static_source import scan_file

        calls, findings = scan_file(path, function, target)
        report = PallasReport(path, calls, ordered(beside_causes(findings)), [STATIC], target=target)
        record_findings(report, recorder)
        return report
    traced = trace_file(path, function, args=args, lower=target)
    ran: list[Ran] = []
    findings: list[Finding] = []
    rungs: list[Rung] = []
    if interpret:
        from hloscope.core.pallas.interpret.session import interpret_trace

        findings, rungs = interpret_trace(
            traced, target, seed=seed, runs=runs, recorder=recorder, timeout=timeout, ran=ran
        )
    report = analyse_trace(traced, target, ran)
    refused = [program.function for program in traced.programs if program.refused is not None]
    if (function is None and report.calls) or (refused and not args):
        from hloscope.core.pallas.untraced import untraced_findings

        places = [(one.file, one.line) for one in report.calls]
        refusals = [one for one in report.findings if one.code == "trace-refused"]
        by_text = untraced_findings(path, function, target, places, refusals, refused)
        report.findings = ordered([*report.findings, *by_text])
    if interpret:
        report.findings = joined(report.findings, findings)
        report.rungs.extend(rungs)
    else:
        report.findings = beside_causes(report.findings)
    report.findings = said_once(ordered(report.findings))
    record_findings(report, recorder)
    return report


def record_findings(report: PallasReport, recorder: LedgerWriter | None) -> None:
    """Writes findings into a ledger, under a module of their own."""
    if recorder is None or not recorder.enabled:
        return
    recorder.begin_module(f"findings of {report.path}")
    for one in report.findings:
        recorder.emit(
            PallasFinding(
                code=one.code, kernel=one.call or "", severity=one.severity, message=one.message, file=one.file,
                line=one.line, column=one.column,
            )
        )  # fmt: skip


def analyse_trace(traced: Trace, target: str | None = None, ran: Sequence[Ran] = ()) -> PallasReport:
    """Static findings about everything that a trace holds.

    ``ran`` are runs of its calls: one whose blocks depend on what it is given is looked at again for each of them, and
    what a run has checked is not said to be open.
    """
    report = PallasReport(traced.path, rungs=[TRACED], jax=traced.jax, target=target)
    chip = find_chip(target, traced.chips) if target is not None else None
    for program in traced.programs:
        if program.refused is not None:
            report.findings.append(_refused(traced.path, program))
        report.findings.extend(_other_kernels(traced.path, program))
    for program, call, operands in calls_of(traced):
        looked = _looked(traced, program, call, chip, operands)
        mine = [one for one in ran if (one.call, one.function) == (call.number, program.function)]
        if mine and _depends_on_operands(looked.subject):
            _by_run(report, traced, looked, chip, mine)
            continue
        report.calls.append(looked.report)
        checked = bool(mine) and all(one.finished for one in mine)
        report.findings.extend(_checked(one) if checked else one for one in looked.findings)
    if not report.calls and not report.findings:
        report.findings.append(_nothing(traced))
    report.findings = ordered(report.findings)
    return report


def _looked(
    traced: Trace,
    program: Program,
    call: PallasCall,
    chip: Chip | None,
    operands: Sequence[Array | None],
    turn: int = 1,
) -> _Looked:
    subject = subject_of(traced, program, call, chip, operands)
    return _Looked(program, subject, replace(call_report(subject, program.function), turn=turn), check_call(subject))


def _depends_on_operands(subject: Subject) -> bool:
    """Whether the grid or the blocks of some operand are not known before the call runs."""
    return subject.schedule is None or bool(subject.schedule.refused)


def _by_run(report: PallasReport, traced: Trace, looked: _Looked, chip: Chip | None, ran: Sequence[Ran]) -> None:
    """A call's blocks and findings for what each of its runs was given; a finding of several runs is told once."""
    call, told = looked.subject.call, set[tuple[object, ...]]()
    inputs = [None] * call.slots.inputs
    for one in ran[:MOST_RUNS_SHOWN]:
        again = _looked(traced, looked.program, call, chip, [*one.operands, *inputs], one.turn)
        report.calls.append(replace(again.report, device=one.device))
        for finding in again.findings:
            key = (finding.code, finding.file, finding.line, finding.column, finding.origin)
            if (*key, finding.message) in told or (key in told and finding.code != "unsupported"):
                continue
            told |= {key, (*key, finding.message)}
            where = f"in run {one.turn} of the call: " if one.turn > 1 else ""
            where += f"on device {one.device}: " if one.device is not None else ""
            said = replace(finding, message=where + finding.message)
            report.findings.append(_checked(said) if one.finished else said)
    if len(ran) > MOST_RUNS_SHOWN:
        text = f"blocks of {len(ran) - MOST_RUNS_SHOWN:,} more runs of the call are not shown"
        report.findings.append(looked.subject.finding("unsupported", text))


def _checked(finding: Finding) -> Finding:
    """A finding that something is left to a run, after that run."""
    if finding.code != "unsupported" or not finding.message.endswith(LEFT_TO_A_RUN):
        return finding
    return replace(finding, message=finding.message.removesuffix(LEFT_TO_A_RUN) + CHECKED_BY_A_RUN)


def calls_of(traced: Trace) -> list[tuple[Program, PallasCall, list[Array | None]]]:
    """Every call with the function that makes it, and what is known of its operands without running."""
    found: list[tuple[Program, PallasCall, list[Array | None]]] = []
    for program in traced.programs:
        if program.jaxpr is None:
            continue
        values = [one.value for one in program.arguments]
        for number, operands in known_operands(program.jaxpr, values, traced.calls).items():
            found.append((program, traced.calls[number], operands))
    reached = {call.number for _, call, _ in found}
    for call in traced.calls:  # inside loops and branches: nothing is known of the operands
        if call.number not in reached and traced.programs:
            slots = call.slots
            owner = next((one for one in traced.programs if _makes(one, call.number)), traced.programs[-1])
            found.append((owner, call, [None] * (slots.dynamic + slots.prefetch + slots.inputs)))
    return sorted(found, key=lambda one: one[1].number)


def _makes(program: Program, number: int) -> bool:
    calls = (one for one, _, _ in statements(program.jaxpr)) if program.jaxpr is not None else ()
    return any(one.primitive == "pallas_call" and one.params["call"] == number for one in calls)


def subject_of(
    traced: Trace, program: Program, call: PallasCall, chip: Chip | None, operands: Sequence[Array | None]
) -> Subject:
    """What the checks of a call look at."""
    backend = backend_of(call, chip)
    bounds = [None if one is None else int(one) for one in operands[: call.slots.dynamic]]
    prefetch = tuple(operands[call.slots.dynamic : call.slots.dynamic + call.slots.prefetch])
    schedule: Schedule | None = None
    facts, reason = None, None
    try:
        if None in bounds:
            raise UnsupportedError("a grid bound is an operand whose value is not known without running")
        schedule = walk(call, bounds=[one for one in bounds if one is not None], prefetch=prefetch)
        facts = kernel_facts(call, schedule.points, prefetch)
    except UnsupportedError as error:
        reason = error.message
    if facts is None:
        facts = kernel_facts(call, np.zeros((1, len(call.grid)), np.int32), prefetch) if schedule is None else None
    return Subject(
        traced.path,
        call,
        backend,
        chip,
        schedule,
        facts,
        reason,
        traced.rules,
        program.lowering,
        prefetch,
        unused_outputs(program, call.number),
        program.function,
    )


def unused_outputs(program: Program, number: int) -> frozenset[int]:
    """Outputs of a call that the program does not use."""
    for equation, _, _ in statements(program.jaxpr) if program.jaxpr is not None else ():
        if equation.primitive == "pallas_call" and equation.params["call"] == number:
            return frozenset(k for k, variable in enumerate(equation.outputs) if variable is None)
    return frozenset()


def backend_of(call: PallasCall, chip: Chip | None) -> str | None:
    """The backend that would compile a call: what its compiler parameters say, else the target's own.

    A GPU without parameters is Mosaic GPU's, as in jax since 0.10.
    """
    if call.backend is not None or chip is None:
        return call.backend
    return "tpu" if chip.kind == "tpu" else "mosaic_gpu"


def call_report(subject: Subject, function: str | None) -> CallReport:
    """A call in plain data."""
    call, schedule = subject.call, subject.schedule
    at = subject.place(call.at)
    piped = subject.backend != "triton"  # there a block is a window onto the array
    rows: list[Mapping[str, Any]] = []
    for position, operand in enumerate(call.operands):
        row: dict[str, Any] = {
            "name": operand.name,
            "kind": operand.kind,
            "origin": operand.origin,
            "array": str(operand.array),
            "block": [str(dim) for dim in operand.dims],
            "space": operand.space,
            "space_meaning": DEFAULT_SPACES.get((operand.space, subject.backend or ""), SPACES.get(operand.space)),
            "index_map": _place(operand.map_at),
            "spec": _place(operand.spec_at),
            "aliases": [n for s, n in call.aliases if operand.kind == "input" and s - call.slots.prefetch == position],
            "block_bytes": operand.block_bytes,
        }
        found = schedule.walks.get(position) if schedule is not None else None
        if found is not None and schedule is not None and schedule.steps:
            row |= {
                "blocks": len(found.first_of),
                "copied": found.copied and piped,
                "fetches": found.fetches if piped else 0,
                "reuses": found.steps - found.fetches if found.copied and piped else 0,
                "bytes_moved": found.bytes_moved if piped else 0,
                "revisited": len(found.revisited()),
                "out_of_range": len(found.beyond()),
                "partial": len(found.overhanging()),
            }
        elif schedule is not None:
            row |= {"blocks": None, "unsupported": schedule.refused.get(position)}
        rows.append(row)
    return CallReport(
        name=call.name,
        function=function,
        file=at.file,
        line=at.line,
        column=at.column,
        end_column=at.end_column,
        grid=schedule.grid if schedule is not None else call.grid,
        steps=schedule.steps if schedule is not None else steps_of(call),
        backend=subject.backend,
        operands=tuple(rows),
        scratch=tuple(map(str, call.scratch)),
        bytes_moved=schedule.bytes_moved if schedule is not None and piped else None,
        schedule=step_rows(schedule) if schedule is not None and piped else (),
        kernel_arguments=call.slots.kernel,
        primitive_operands=call.slots.primitive,
        index_map_arguments=call.slots.index_map,
        traced=True,
    )


def steps_of(call: PallasCall) -> int | None:
    """Times that the kernel runs, where no bound is an operand."""
    return None if call.static_grid is None else math.prod(call.static_grid)


def step_rows(schedule: Schedule, most: int = MOST_STEPS_SHOWN) -> tuple[Mapping[str, Any], ...]:
    """The first grid steps: what each fetches anew, what it uses again, and what is written back after it."""
    rows: list[Mapping[str, Any]] = []
    for step in range(min(schedule.steps, most)):
        fetched: list[str] = []
        reused: list[str] = []
        written: list[str] = []
        for found in schedule.walks.values():
            if not found.copied:
                continue
            text = f"{found.operand.name}{found.window(step)}"
            if found.operand.kind == "output":
                if found.moved(step):
                    written.append(text)
            else:
                (fetched if found.moved(step) else reused).append(text)
        rows.append(
            {
                "step": step,
                "point": list(schedule.point(step)),
                "fetched": fetched,
                "reused": reused,
                "written": written,
            }
        )
    return tuple(rows)


def _place(span: Span | None) -> dict[str, object] | None:
    if span is None:
        return None
    return {"file": span.file, "line": span.line, "column": span.column, "end_line": span.end_line,
            "end_column": span.end_column}  # fmt: skip


def _refused(path: str, program: Program) -> Finding:
    assert program.refused is not None
    at = program.refused.at or Span(path, program.function, 1, 1, 1, 1)
    return Finding(
        "trace-refused", CODES["trace-refused"].severity,
        f"tracing {program.function} failed: {program.refused.kind}: {program.refused.message[:600]}",
        at.file, at.line, at.column, at.end_line, at.end_column, origin="jax", function=program.function,
    )  # fmt: skip


OTHER_KERNELS = frozenset({"core_map", "mpmd_map"})
"""Primitives of kernels that are no ``pallas_call``: ``pl.kernel``, ``plgpu.kernel``, ``pl.core_map``."""


def _other_kernels(path: str, program: Program) -> list[Finding]:
    found: list[Finding] = []
    for equation, place, _ in statements(program.jaxpr) if program.jaxpr is not None else ():
        if equation.primitive in OTHER_KERNELS:
            at = place or Span(path, program.function, 1, 1, 1, 1)
            found.append(
                Finding(
                    "unsupported", CODES["unsupported"].severity,
                    f"a kernel that is no pallas_call and not over TensorCores ({equation.primitive}) is not looked at:"
                    " Mosaic GPU's and the SparseCore's memories and barriers are not modelled",
                    at.file, at.line, at.column, at.end_line, at.end_column, function=program.function,
                )
            )  # fmt: skip
    return found


def _nothing(traced: Trace) -> Finding:
    names = ", ".join(program.function for program in traced.programs)
    return Finding("unsupported", "information", f"no pallas_call was traced in {names}", traced.path, 1, 1, 1, 1)
