"""The pass machinery: rows and ids, filters, honesty, fixed points, the gate with its fuel, and dumps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hloscope.core import load
from hloscope.core.dumps.filenames import parse_name
from hloscope.core.errors import DumpError, InternalError, LedgerError, UsageError, VerifyError
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.module import HloModule
from hloscope.core.ledger import LedgerReader, LedgerWriter
from hloscope.core.ledger.declare import Event
from hloscope.core.ledger.events import (
    FixpointEnded,
    FuelExhausted,
    InvariantFailed,
    PassFailed,
    PassSkipped,
    RewriteDecision,
    SilentChange,
)
from hloscope.core.ledger.record import NullLedger
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.dump_writer import DumpWriter
from hloscope.core.passes.filters import FilterEntry, HloPassFilter, Invocation
from hloscope.core.passes.flags import PassFlags
from hloscope.core.passes.fuel import Fuel, parse_fuel
from hloscope.core.passes.gate import DecisionFilter, Question, Refusal
from hloscope.core.passes.interface import HloPass
from hloscope.core.passes.invariants import HloVerifier
from hloscope.core.passes.pipeline import HloPassFix, HloPassPipeline
from hloscope.core.passes.pipelines import compile_module
from hloscope.core.text import load_module, print_module

NEGATES = """HloModule negates

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %a = f32[4]{0} negate(%p)
  %b = f32[4]{0} negate(%a)
  %c = f32[4]{0} negate(%b)
  ROOT %d = f32[4]{0} negate(%c)
}
"""


def entry(body: str) -> HloModule:
    """A module whose entry computation has these lines."""
    return load_module("HloModule test\n\nENTRY %main {\n" + body.strip("\n") + "\n}\n")


@dataclass(frozen=True)
class Does:
    """A pass that runs a function, which says whether it changed the module."""

    name: str
    action: Callable[[HloModule, PassContext], bool] = lambda module, ctx: False
    is_pipeline: bool = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        return self.action(module, ctx)


@dataclass(frozen=True)
class NegatePairs:
    """-(-x) → x, one decision a pair."""

    name: str = "negate-pairs"
    is_pipeline: bool = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        changed = False
        for computation in module.computations:
            for one in computation:
                if not one.in_computation or one.opcode != "negate" or one.operand(0).opcode != "negate":
                    continue
                step = ctx.gate("pair", one)
                if step:
                    computation.replace(one, one.operand(0).operand(0))
                    step.done()
                    changed = True
        return changed


def adds_negate(module: HloModule, ctx: PassContext) -> bool:
    """Changes what the module computes, every time, and says so."""
    computation = module.entry
    root = computation.root
    computation.set_root(computation.add(HloInstruction("negate", root.shape, [root])))
    return True


@dataclass
class ListLedger(NullLedger):
    """Keeps rows and events in lists."""

    enabled: bool = True
    rows: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    events: list[Event] = field(default_factory=list[Event])
    texts: list[str] = field(default_factory=list[str])

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def begin_pass(
        self, name: str, *, pipeline: str = "", xla_pass_id: int | None = None, instructions: int | None = None
    ) -> int:
        self.rows.append({"pass": name, "pipeline": pipeline, "id": xla_pass_id, "before": instructions})
        return len(self.rows) - 1

    def end_pass(
        self,
        row: int,
        *,
        changed: bool | None,
        instructions: int | None = None,
        snapshot: int | None = None,
        fuel_used: int | None = None,
        file: str | None = None,
        next_pass: str | None = None,
        ns: int | None = None,
        unannounced: str | None = None,
    ) -> None:
        self.rows[row].update(changed=changed, after=instructions, snapshot=snapshot, fuel=fuel_used, next=next_pass)

    def add_snapshot_lines(self, lines: Iterable[str]) -> int:
        self.texts.append("\n".join(lines))
        return len(self.texts) - 1

    def decisions(self) -> list[RewriteDecision]:
        return [event for event in self.events if isinstance(event, RewriteDecision)]


def loaded() -> HloModule:
    return load_module(NEGATES)


def nested(leaf: Callable[[str], HloPass]) -> HloPassPipeline:
    """outer {a, inner {b, a}, a}"""
    return HloPassPipeline("outer", [leaf("a"), HloPassPipeline("inner", [leaf("b"), leaf("a")]), leaf("a")])


def idle(name: str) -> HloPass:
    return Does(name)


# ---------------------------------------------------------------- rows and ids
def test_ids_count_rows_in_the_order_in_which_they_open() -> None:
    ctx = PassContext()
    nested(idle).run(loaded(), ctx)
    assert [(run.pass_id, run.pipeline, run.name, run.occurrence) for run in ctx.runs] == [
        (1, "outer", "pipeline-start", 0),
        (2, "outer", "a", 0),
        (3, "outer", "inner", 0),
        (4, "inner", "pipeline-start", 1),
        (5, "inner", "b", 0),
        (6, "inner", "a", 1),
        (7, "outer", "a", 2),
    ]


@pytest.mark.parametrize("method", ["begin_pass", "end_pass"])
def test_a_full_disk_inside_a_nested_pipeline_is_its_own_error(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    ledger = ListLedger()
    whole = getattr(ledger, method)

    def fails(*given: object, **more: object) -> object:
        if ledger.rows and ledger.rows[-1]["pass"] == "b":
            raise LedgerError("the disk is full")
        return whole(*given, **more)

    monkeypatch.setattr(ledger, method, fails)
    with pytest.raises(LedgerError, match="the disk is full"):
        nested(idle).run(loaded(), PassContext(ledger))


def test_a_fixed_point_around_a_pipeline_starts_it_each_round() -> None:
    ctx = PassContext()
    module = loaded()
    pipeline = HloPassPipeline("outer", [HloPassFix(HloPassPipeline("loop", [NegatePairs()]))])
    assert pipeline.run(module, ctx)
    assert module.entry.root.opcode == "parameter"
    assert [run.name for run in ctx.runs] == [
        "pipeline-start", "loop", "pipeline-start", "negate-pairs", "pipeline-start", "negate-pairs"
    ]  # fmt: skip
    assert [run.changed for run in ctx.runs if run.name == "negate-pairs"] == [True, False]


def test_a_fixed_point_around_a_pass_is_one_row() -> None:
    ctx = PassContext()
    HloPassPipeline("outer", [HloPassFix(NegatePairs())]).run(loaded(), ctx)
    assert [run.name for run in ctx.runs] == ["pipeline-start", "negate-pairs"]


def test_rows_say_what_comes_next_and_snapshots_follow_changes() -> None:
    ledger = ListLedger()
    module = loaded()
    compile_module(module, [HloPassPipeline("p", [NegatePairs(), Does("idle")])], PassContext(ledger))
    assert [(row["pass"], row["changed"], row["next"]) for row in ledger.rows] == [
        ("before_optimizations", False, "p"),
        ("pipeline-start", False, "negate-pairs"),
        ("negate-pairs", True, "idle"),
        ("idle", False, "pipeline-end"),
        ("after_optimizations", False, None),
    ]
    assert [row["snapshot"] for row in ledger.rows] == [0, None, 1, None, 2]
    assert (ledger.rows[2]["before"], ledger.rows[2]["after"], ledger.rows[2]["fuel"]) == (5, 1, 2)
    assert ledger.texts[0] == print_module(loaded())
    assert ledger.texts[1] == ledger.texts[2] == print_module(module)


def test_adding_after_a_run_is_an_error() -> None:
    pipeline = HloPassPipeline("p", [])
    pipeline.run(loaded(), PassContext())
    with pytest.raises(InternalError, match="after the pipeline has run"):
        pipeline.add(Does("late"))
    with pytest.raises(InternalError, match="after the pipeline has run"):
        pipeline.add_invariant_checker(Does("late"))


def test_disabling_everything_leaves_no_row() -> None:
    ctx = PassContext(flags=PassFlags(xla_disable_all_hlo_passes=True))
    assert not HloPassPipeline("p", [Does("a", adds_negate)]).run(loaded(), ctx)
    assert ctx.runs == []
    old = PassContext(flags=PassFlags(xla_disable_all_hlo_passes=True, compat_rev_a=True))
    assert not HloPassPipeline("p", [Does("a", adds_negate)]).run(loaded(), old)
    assert [run.name for run in old.runs] == ["pipeline-start"]


def test_passes_before_the_starting_one_do_nothing() -> None:
    ctx = PassContext(flags=PassFlags(xla_run_hlo_passes_starting_from="b"))
    nested(lambda name: Does(name, adds_negate)).run(loaded(), ctx)
    leaves = [(run.pass_id, run.name, run.changed) for run in ctx.runs if run.name in ("a", "b")]
    assert leaves == [(2, "a", False), (5, "b", True), (6, "a", True), (7, "a", True)]


# ---------------------------------------------------------------- filters
def skipped(flags: PassFlags) -> list[int]:
    """Ids of the runs of the nested pipeline that a filter skips."""
    ctx = PassContext(flags=flags)
    nested(idle).run(loaded(), ctx)
    assert [run.pass_id for run in ctx.runs] == list(range(1, len(ctx.runs) + 1))
    return [run.pass_id for run in ctx.runs if run.skipped is not None]


@pytest.mark.parametrize(
    ("entries", "ids"),
    [
        (("a",), [2, 6, 7]),
        (("b",), [5]),
        (("@6",), [6]),
        (("@4",), []),  # a pipeline-start row is no pass
        (("a:0",), [2]),
        (("a:1",), [6]),
        (("a:2",), [7]),
        (("a:3",), []),
        (("outer/a",), [2, 7]),
        (("outer/a:1",), [7]),
        (("inner/a:0",), [6]),
        (("inner/a:1",), []),
        (("inner:0",), [3]),
        (("inner",), [3]),  # skipped whole: what it holds never runs
        (("a:0", "b"), [2, 5]),
        (("outer",), [2, 3, 4]),  # a plain name is also the pipeline around: 4 is the last pass of outer
    ],
)
def test_disabled_runs_keep_their_ids(entries: tuple[str, ...], ids: list[int]) -> None:
    assert skipped(PassFlags(xla_disable_hlo_passes=entries)) == ids


@pytest.mark.parametrize(
    ("entries", "ids"),
    [
        (("a",), [5]),
        (("inner",), [2, 7]),
        (("a:1",), [2, 5, 7]),
        (("@7",), [2, 5, 6]),
        (("inner/b",), [2, 6, 7]),
    ],
)
def test_enabling_only_some_enters_every_pipeline(entries: tuple[str, ...], ids: list[int]) -> None:
    assert skipped(PassFlags(xla_enable_hlo_passes_only=entries)) == ids


def test_a_skipped_run_counts_dumps_nothing_and_is_recorded() -> None:
    ledger = ListLedger()
    ctx = PassContext(ledger, flags=PassFlags(xla_disable_hlo_passes=("a:1",)))
    nested(lambda name: Does(name, adds_negate)).run(loaded(), ctx)
    assert [run.changed for run in ctx.runs if run.name == "a"] == [True, False, True]
    events = [event for event in ledger.events if isinstance(event, PassSkipped)]
    assert [(event.pass_name, event.occurrence, event.filter, event.code) for event in events] == [
        ("a", 1, "a:1", "disabled")
    ]


def test_the_older_filter_leaves_no_row_and_shifts_ids() -> None:
    ctx = PassContext(flags=PassFlags(xla_disable_hlo_passes=("a",), compat_rev_a=True))
    nested(idle).run(loaded(), ctx)
    assert [(run.pass_id, run.name) for run in ctx.runs] == [
        (1, "pipeline-start"), (2, "inner"), (3, "pipeline-start"), (4, "b")
    ]  # fmt: skip
    only = PassContext(flags=PassFlags(xla_enable_hlo_passes_only=("outer", "b"), compat_rev_a=True))
    nested(idle).run(loaded(), only)
    assert [run.name for run in only.runs if run.name in ("a", "b", "inner")] == ["a", "inner", "b", "a"]


def test_scope_counters_start_anew_when_a_pipeline_is_entered_again() -> None:
    pipeline = HloPassPipeline("outer", [HloPassFix(HloPassPipeline("loop", [NegatePairs()]))])
    ctx = PassContext(flags=PassFlags(xla_disable_hlo_passes=("loop/negate-pairs:0",)))
    pipeline.run(loaded(), ctx)
    assert [run.skipped for run in ctx.runs if run.name == "negate-pairs"] == ["loop/negate-pairs:0"]


@pytest.mark.parametrize("text", ["", "algsimp", "algsimp:0", "a/b", "a/b:2", "@0", "@42", "a/b/c"])
def test_filter_entries_that_are_read(text: str) -> None:
    assert FilterEntry.parse(text).text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algsimp:", "after ':'"),
        ("algsimp:x", "after ':'"),
        ("a:1:2", "after ':'"),
        ("@", "after '@'"),
        ("@x", "after '@'"),
    ],
)
def test_filter_entries_that_are_not(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"'{text}': expected an integer {message}")):
        FilterEntry.parse(text)


def test_filters_match_as_the_real_ones_do() -> None:
    def matches(flag: str, *run: object) -> bool:
        return HloPassFilter.from_flag(flag).match(Invocation(*run)) is not None  # type: ignore[arg-type]

    assert matches("algsimp", "dce", "algsimp", 5, 3, 1)
    assert not matches("opt/algsimp", "dce", "algsimp", 5, 3, 1)
    assert not matches("algsimp:0", "dce", "algsimp", 5, 0, 0)
    assert matches("algsimp:2", "algsimp", "simplification", 9, 2, 0)
    assert not matches("algsimp:2", "algsimp", "simplification", 9, 1, 2)
    assert matches("simplification/algsimp:2", "algsimp", "simplification", 5, 7, 2)
    assert not matches("simplification/algsimp:2", "algsimp", "simplification", 5, 2, 3)
    assert matches("@42", "anything", "anywhere", 42, 0, 0)


def test_both_filters_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot set both"):
        PassFlags(xla_disable_hlo_passes=("a",), xla_enable_hlo_passes_only=("b",))


def test_names_that_do_not_exist_are_refused_with_the_nearest() -> None:
    pipeline = [HloPassPipeline("p", [Does("a")])]
    disable = PassFlags(xla_disable_hlo_passes=("algsmip",))
    for flags in (disable, PassFlags(xla_enable_hlo_passes_only=("x/algsmip:1",))):
        with pytest.raises(UsageError):
            compile_module(loaded(), pipeline, PassContext(flags=flags))
    with pytest.raises(UsageError, match="did you mean algsimp"):
        compile_module(loaded(), pipeline, PassContext(fuel=Fuel.parse("algsmip=1")))
    with pytest.raises(UsageError, match="starting_from"):
        compile_module(loaded(), pipeline, PassContext(flags=PassFlags(xla_run_hlo_passes_starting_from="nope")))


def test_flags_are_read_as_text() -> None:
    flags = PassFlags().parse("--xla_disable_hlo_passes=a,b:1 --xla_dump_hlo_pass_re='x y' --check_reports")
    assert flags.xla_disable_hlo_passes == ("a", "b:1")
    assert (flags.xla_dump_hlo_pass_re, flags.check_reports) == ("x y", True)
    wrong_words = ("--xla_disable_hlo_pases=a", "--check_reports=maybe", "check_reports", "--xla_dump_max_hlo_modules=")
    for wrong in wrong_words:
        with pytest.raises(UsageError):
            PassFlags().parse(wrong)


# ---------------------------------------------------------------- honesty, checkers, failures
@pytest.mark.parametrize("nesting", [0, 1])
def test_a_silent_change_is_fatal_where_that_is_asked_for(nesting: int) -> None:
    def silently(module: HloModule, ctx: PassContext) -> bool:
        adds_negate(module, ctx)
        return False

    pipeline = HloPassPipeline("inner", [Does("liar", silently)])
    outer = HloPassPipeline("outer", [pipeline]) if nesting else pipeline
    flags = PassFlags(xla_unsupported_crash_on_hlo_pass_silent_hlo_change=True)
    with pytest.raises(VerifyError, match="pass 'liar' in pipeline 'inner' reported that it did not change"):
        outer.run(loaded(), PassContext(flags=flags))


def test_a_change_that_is_none_is_fatal_where_that_is_asked_for() -> None:
    flags = PassFlags(xla_unsupported_crash_on_hlo_pass_noop_change=True)
    boasts = Does("boaster", lambda module, ctx: True)
    with pytest.raises(VerifyError, match="pass 'boaster' in pipeline 'p' reported that it changed"):
        HloPassPipeline("p", [boasts]).run(loaded(), PassContext(flags=flags))


def test_dishonest_reports_are_recorded_without_a_crash() -> None:
    ledger = ListLedger()
    liar = Does("liar", lambda module, ctx: not adds_negate(module, ctx))
    passes = [Does("boaster", lambda module, ctx: True), liar, NegatePairs()]
    HloPassPipeline("p", passes).run(loaded(), PassContext(ledger, flags=PassFlags(check_reports=True)))
    found = [event for event in ledger.events if isinstance(event, SilentChange)]
    assert [(event.pass_name, event.reported, event.code) for event in found] == [
        ("boaster", True, "noop_change"), ("liar", False, "silent_change")
    ]  # fmt: skip


def test_a_change_without_a_report_is_in_the_timeline(tmp_path: Path) -> None:
    def back_and_forth(module: HloModule, ctx: PassContext) -> bool:
        root = module.entry.root
        made = module.entry.add(HloInstruction("negate", root.shape, [root]))
        module.entry.remove(made)
        return False

    passes = [
        Does("tries", back_and_forth),
        Does("liar", lambda module, ctx: not adds_negate(module, ctx)),
        Does("idle"),
    ]
    path = tmp_path / "silent.ledger"
    with LedgerWriter(path) as ledger:
        ledger.begin_module("negates")
        ctx = PassContext(ledger)
        compile_module(loaded(), [HloPassPipeline("p", passes)], ctx)
    assert [run.name for run in ctx.runs if run.touched] == ["tries", "liar"]
    rows = {row.pass_name: row for row in load(str(path)).passes}
    assert (rows["tries"].changed, rows["tries"].unannounced) == (False, None)
    assert (rows["liar"].changed, rows["liar"].unannounced) == (True, "liar … idle")
    with LedgerReader(path) as reader:
        query = "SELECT data ->> 'pass_name', data ->> 'reported' FROM events WHERE type = 'silent_change'"
        assert [tuple(row) for row in reader.sql(query).rows] == [("liar", 0)]


def test_checkers_run_at_the_start_and_after_changes_only() -> None:
    calls: list[str] = []

    def check(module: HloModule, ctx: PassContext) -> bool:
        calls.append(ctx.runs[-1].name if ctx.runs else "")
        return False

    pipeline = HloPassPipeline("p", [Does("idle"), NegatePairs(), Does("idle")], [Does("checker", check)])
    ctx = PassContext()
    pipeline.run(loaded(), ctx)
    assert calls == ["", "negate-pairs"]
    assert "checker" not in [run.name for run in ctx.runs]


def test_a_checker_names_the_pass_that_ran_last() -> None:
    def breaks(module: HloModule, ctx: PassContext) -> bool:
        root = module.entry.root
        module.entry.set_root(module.entry.add(HloInstruction("reshape", root.shape.with_dimensions((5,)), [root])))
        return True

    ledger = ListLedger()
    ctx = PassContext(ledger)
    pipeline = HloPassPipeline("outer", [HloPassPipeline("inner", [Does("breaker", breaks)], [HloVerifier()])])
    with pytest.raises(VerifyError, match="another number of elements.*failed after breaker"):
        pipeline.run(loaded(), ctx)
    found = [event for event in ledger.events if isinstance(event, InvariantFailed)]
    assert [(event.checker, event.after_pass) for event in found] == [("hlo-verifier", "breaker")]
    assert ctx.runs[-1].changed is True  # the pass itself was fine by its own account


def test_a_checker_must_not_change_the_graph() -> None:
    pipeline = HloPassPipeline("p", [], [Does("bad-checker", adds_negate)])
    with pytest.raises(InternalError, match="must not change the graph.*bad-checker.*after pipeline-start"):
        pipeline.run(loaded(), PassContext())


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
def test_an_interrupted_compile_leaves_a_ledger_with_the_open_row(tmp_path: Path, error: BaseException) -> None:
    def fails(module: HloModule, ctx: PassContext) -> bool:
        adds_negate(module, ctx)
        raise error

    path = tmp_path / "run.ledger"
    pipeline = [HloPassPipeline("outer", [NegatePairs(), HloPassPipeline("inner", [Does("fails", fails)])])]
    with pytest.raises(type(error)), LedgerWriter(path) as ledger:
        ledger.begin_module("negates")
        compile_module(loaded(), pipeline, PassContext(ledger))
    with LedgerReader(path) as reader:
        query = "SELECT pass FROM passes WHERE changed IS NULL ORDER BY id"
        assert [tuple(row) for row in reader.connection.execute(query)] == [("inner",), ("fails",)]
        events = reader.connection.execute("SELECT pass, code FROM events WHERE type='pass_failed'").fetchall()
        code = "interrupted" if isinstance(error, KeyboardInterrupt) else "ValueError"
        assert [tuple(row) for row in events] == [("fails", code)]
        done = reader.connection.execute("SELECT count(*) FROM passes WHERE pass='negate-pairs' AND changed").fetchone()
        assert done[0] == 1


def test_failures_are_in_the_statistics() -> None:
    def fails(module: HloModule, ctx: PassContext) -> bool:
        raise VerifyError("no")

    ctx = PassContext()
    with pytest.raises(VerifyError):
        HloPassPipeline("p", [Does("idle"), Does("fails", fails)]).run(loaded(), ctx)
    assert dict(ctx.stats["fails"].errors) == {"VerifyError": 1}
    assert ctx.stats["idle"].runs == 1
    assert ctx.runs[-1].error == "VerifyError: no"


# ---------------------------------------------------------------- fixed points
def flips(module: HloModule, ctx: PassContext) -> bool:
    """Never done: the root is negated and un-negated in turn."""
    computation = module.entry
    if computation.root.opcode == "negate" and computation.root.operand(0).opcode == "negate":
        computation.replace(computation.root, computation.root.operand(0).operand(0))
        return True
    root = computation.root
    first = computation.add(HloInstruction("negate", root.shape, [root]))
    computation.set_root(computation.add(HloInstruction("negate", root.shape, [first])))
    return True


def test_a_fixed_point_gives_up_after_25_rounds_and_reports_no_change() -> None:
    rounds: list[int] = []
    ledger = ListLedger()

    def counts(module: HloModule, ctx: PassContext) -> bool:
        rounds.append(1)
        return adds_negate(module, ctx)

    ctx = PassContext(ledger)
    assert not HloPassPipeline("p", [HloPassFix(Does("endless", counts))]).run(loaded(), ctx)
    assert len(rounds) == 25
    assert any("25" in warning for warning in ctx.warnings)
    assert [(e.pass_name, e.iterations, e.code) for e in ledger.events if isinstance(e, FixpointEnded)] == [
        ("endless", 25, "limit")
    ]
    assert ledger.texts, "the module that it left is kept although no change is reported"


def test_the_limit_can_be_fatal_and_is_reported_where_reports_are_checked() -> None:
    fatal = PassFlags(xla_unsupported_crash_on_hlo_pass_fix_max_iterations=True)
    with pytest.raises(VerifyError, match="fixed point within 4"):
        HloPassFix(Does("endless", adds_negate), limit=4).run(loaded(), PassContext(flags=fatal))
    honest = PassFlags(xla_unsupported_crash_on_hlo_pass_silent_hlo_change=True)
    assert HloPassFix(Does("endless", adds_negate), limit=4).run(loaded(), PassContext(flags=honest))


def test_a_cycle_is_noted() -> None:
    text = "HloModule m\n\nENTRY e {\n  ROOT p = f32[4]{0} parameter(0)\n}\n"
    ledger = ListLedger()
    ctx = PassContext(ledger, flags=PassFlags(xla_hlo_pass_fix_detect_cycles=True))
    HloPassFix(Does("flips", flips), limit=6).run(load_module(text), ctx)
    notes = [(e.code, e.iterations) for e in ledger.events if isinstance(e, FixpointEnded)]
    assert notes == [("cycle", 2), ("limit", 6)]


# ---------------------------------------------------------------- the gate and fuel
def chain(length: int) -> HloModule:
    lines = ["  p = f32[] parameter(0)"]
    for i in range(length):
        lines.append(f"  {'ROOT ' if i == length - 1 else ''}n{i} = f32[] negate({'p' if i == 0 else f'n{i - 1}'})")
    return entry("\n".join(lines))


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 9])
def test_fuel_permits_exactly_the_first_rewrites(limit: int) -> None:
    ledger = ListLedger()
    module = chain(8)
    ctx = PassContext(ledger, Fuel.parse(f"negate-pairs={limit}"))
    HloPassPipeline("p", [NegatePairs()]).run(module, ctx)
    verdicts = [(event.fuel, event.verdict) for event in ledger.decisions()]
    assert [ordinal for ordinal, _ in verdicts] == list(range(len(verdicts)))
    assert [ordinal for ordinal, verdict in verdicts if verdict == "applied"] == list(range(min(limit, 4)))
    refused = [event for event in ledger.decisions() if event.verdict == "refused"]
    assert all(event.code == "fuel_exhausted" for event in refused)
    outs = [event for event in ledger.events if isinstance(event, FuelExhausted)]
    assert [event.limit for event in outs] == ([limit] if refused else [])
    assert ctx.runs[-1].applied == min(limit, 4)


def test_fuel_counts_across_runs_of_one_name() -> None:
    module = chain(8)
    ledger = ListLedger()
    ctx = PassContext(ledger, Fuel.parse("negate-pairs=2"))
    inner = HloPassPipeline("p", [NegatePairs(), NegatePairs()])
    inner.run(module, ctx)
    assert [event.occurrence for event in ledger.decisions()] == [0, 0, 0, 0, 0, 1, 1, 1][: len(ledger.decisions())]
    assert sum(event.verdict == "applied" for event in ledger.decisions()) == 2
    assert [event.fuel for event in ledger.decisions()] == list(range(len(ledger.decisions())))


def test_the_same_fuel_gives_the_same_module() -> None:
    texts: set[str] = set()
    for _ in range(3):
        module = chain(9)
        HloPassPipeline("p", [NegatePairs()]).run(module, PassContext(fuel=Fuel.parse("negate-pairs=2")))
        texts.add(print_module(module))
    assert len(texts) == 1


@pytest.mark.parametrize("text", ["", "a", "a=", "a=x", "=3", "a=1=2", "a=-1", "a=1,", "a=1,b"])
def test_fuel_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        parse_fuel(text)


def test_fuel_is_read_from_several_texts() -> None:
    assert parse_fuel(["a=1,b=2", "a=3"]) == {"a": 3, "b": 2}


def test_fuel_that_nobody_asked_for_is_reported() -> None:
    fuel = Fuel.parse("negate-pairs=5,dce=1")
    ctx = PassContext(fuel=fuel)
    result = compile_module(loaded(), [HloPassPipeline("p", [NegatePairs()])], ctx)
    assert fuel.unused() == ("dce",)
    assert result.warnings == ("fuel for dce was never asked for",)


def test_a_filter_that_matched_nothing_is_reported() -> None:
    ctx = PassContext(flags=PassFlags(xla_disable_hlo_passes=("negate-pairs:3", "p")))
    result = compile_module(loaded(), [HloPassPipeline("p", [NegatePairs()])], ctx)
    assert result.warnings == ("filter entry 'negate-pairs:3' matched no pass",)


def decisions(module: HloModule, *handlers: DecisionFilter) -> list[RewriteDecision]:
    ledger = ListLedger()
    HloPassPipeline("p", [NegatePairs()]).run(module, PassContext(ledger, handlers=handlers))
    return ledger.decisions()


def test_ordinals_can_be_allowed_and_refused() -> None:
    free = decisions(chain(8))
    only = decisions(chain(8), DecisionFilter("allow", "negate-pairs", ordinals=range(1, 2)))
    assert [event.verdict for event in free] == ["applied"] * 4
    assert [event.fuel for event in only if event.verdict == "applied"] == [1]
    without = decisions(chain(8), DecisionFilter("refuse", ordinals=range(0, 1)))
    assert without[0].verdict == "refused" and without[0].code == "filtered"
    assert all(event.verdict == "applied" for event in without[1:])
    other = decisions(chain(8), DecisionFilter("refuse", "some-other-pass", ordinals=range(0, 99)))
    assert [event.verdict for event in other] == ["applied"] * 4


def test_an_identity_survives_the_refusal_of_another_decision() -> None:
    free = decisions(entry(TWO_CHAINS))
    assert [event.subject for event in free] == ["b", "y"]
    first, second = (event.identity for event in free)
    assert first and second and first != second
    without = decisions(entry(TWO_CHAINS), DecisionFilter("refuse", identities=frozenset({first})))
    assert [(event.identity, event.verdict) for event in without] == [(first, "refused"), (second, "applied")]
    only = decisions(entry(TWO_CHAINS), DecisionFilter("allow", identities=frozenset({second})))
    assert [(event.identity, event.verdict) for event in only] == [(first, "refused"), (second, "applied")]


TWO_CHAINS = """
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  a = f32[] negate(p)
  b = f32[] negate(a)
  x = f32[] negate(q)
  y = f32[] negate(x)
  ROOT s = f32[] add(b, y)
"""


def test_a_product_is_known_by_its_origin_and_not_by_its_name() -> None:
    def squares(module: HloModule, ctx: PassContext) -> bool:
        changed = False
        for one in module.entry:
            if one.opcode == "negate":
                step = ctx.gate("to-subtract", one)
                if step:
                    new = module.entry.add(HloInstruction("subtract", one.shape, [one.operand(0), one.operand(0)]))
                    module.entry.replace(one, new)
                    step.done(new)
                    changed = True
        return changed

    def touches(module: HloModule, ctx: PassContext) -> bool:
        for one in module.entry:
            if one.opcode == "subtract":
                ctx.gate("look", one).done()
        return False

    def run(*handlers: DecisionFilter) -> dict[str, tuple[str, str]]:
        ledger = ListLedger()
        pipeline = HloPassPipeline("p", [Does("first", squares), Does("second", touches)])
        pipeline.run(entry(TWO_CHAINS), PassContext(ledger, handlers=handlers))
        made = [event for event in ledger.decisions() if event.rule == "to-subtract"]
        origins = {name: str(event.subject) for event in made for name in event.produced}
        looks = [event for event in ledger.decisions() if event.rule == "look"]
        return {str(event.identity): (str(event.subject), origins[str(event.subject)]) for event in looks}

    free = run()
    cut = run(DecisionFilter("refuse", "first", ordinals=range(0, 1)))
    assert len(free) == 4 and len(cut) == 3
    for identity, (_, origin) in cut.items():
        assert free[identity][1] == origin
    assert any(free[identity][0] != name for identity, (name, _) in cut.items()), "names did shift"


def test_handlers_see_every_question_and_the_first_refusal_counts() -> None:
    class Watcher:
        def __init__(self, refusal: Refusal | None) -> None:
            self.seen: list[Question] = []
            self.refusal = refusal

        def decide(self, question: Question) -> Refusal | None:
            self.seen.append(question)
            return self.refusal

    watcher, stopper, late = Watcher(None), Watcher(Refusal("because", "of this")), Watcher(None)
    ledger = ListLedger()
    ctx = PassContext(ledger, handlers=[watcher, stopper, late])
    module = loaded()
    assert not HloPassPipeline("p", [NegatePairs()]).run(module, ctx)
    assert [q.ordinal for q in watcher.seen] == [0, 1, 2]
    assert late.seen == []
    assert {(e.verdict, e.code, e.detail) for e in ledger.decisions()} == {("refused", "because", "of this")}
    ctx.remove_handler(stopper)
    assert HloPassPipeline("p", [NegatePairs()]).run(module, ctx)


def test_a_step_records_once_and_says_when_a_rewrite_failed() -> None:
    ledger = ListLedger()

    def fails(module: HloModule, ctx: PassContext) -> bool:
        root = module.entry.root
        with ctx.gate("fine", root) as step:
            new = module.entry.add(HloInstruction("negate", root.shape, [root]))
            step.done(new)
        with ctx.gate("broken", root):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        HloPassPipeline("p", [Does("fails", fails)]).run(loaded(), PassContext(ledger))
    assert [(e.rule, e.verdict, e.produced, e.subject, e.computation) for e in ledger.decisions()] == [
        ("fine", "applied", ("negate",), "d", "main"),
        ("broken", "failed", (), "d", "main"),
    ]
    assert [e.message for e in ledger.events if isinstance(e, PassFailed)] == ["no"]


def test_without_ledger_and_handlers_nothing_is_built() -> None:
    ctx = PassContext()
    module = loaded()
    steps = [ctx.gate("rule", one) for one in module.entry]
    assert all(steps) and all(step is steps[0] and step.question is None for step in steps)


# ---------------------------------------------------------------- dumps
def dumped(tmp_path: Path, flags: PassFlags, target: str = "cpu") -> list[str]:
    module = loaded()
    writer = DumpWriter(str(tmp_path / "dump"), flags, module.name, target=target)
    ctx = PassContext(flags=flags, dumps=writer)
    inner = HloPassPipeline("inner part", [Does("idle"), NegatePairs()])
    result = compile_module(module, [HloPassPipeline("outer", [Does("first", adds_negate), inner, Does("last")])], ctx)
    folder = tmp_path / "dump"
    found = sorted(one.name for one in folder.iterdir()) if folder.exists() else []
    assert sorted(result.files) == found
    return [name.removeprefix("module_0000.negates.") for name in found]


BOOKENDS = ["before_optimizations.txt", "cpu_after_optimizations.txt", "debug_options"]


def test_dot_star_writes_starts_and_changes(tmp_path: Path) -> None:
    assert dumped(tmp_path, PassFlags(xla_dump_hlo_pass_re=".*")) == [
        "0000.outer.after_pipeline-start.before_first.txt",
        "0001.outer.after_first.before_inner_part.txt",
        "0002.inner_part.after_pipeline-start.before_idle.txt",
        "0003.inner_part.after_negate-pairs.before_pipeline-end.txt",
        "0004.outer.after_inner_part.before_last.txt",
        *BOOKENDS,
    ]


def test_any_other_pattern_writes_unchanged_passes_too(tmp_path: Path) -> None:
    names = dumped(tmp_path, PassFlags(xla_dump_hlo_pass_re=".+"))
    assert [name for name in names if "after_idle" in name] == ["0003.inner_part.after_idle.before_negate-pairs.txt"]
    assert [name for name in names if "after_last" in name] == ["0006.outer.after_last.before_pipeline-end.txt"]


def test_either_side_of_a_point_matches_and_the_step_counts_files(tmp_path: Path) -> None:
    assert dumped(tmp_path, PassFlags(xla_dump_hlo_pass_re="^idle$")) == [
        "0000.inner_part.after_pipeline-start.before_idle.txt",
        "0001.inner_part.after_idle.before_negate-pairs.txt",
        *BOOKENDS,
    ]


def test_pipelines_and_modules_are_chosen(tmp_path: Path) -> None:
    names = dumped(tmp_path, PassFlags(xla_dump_hlo_pass_re=".*", xla_dump_hlo_pipeline_re="inner"))
    assert [name for name in names if name[0] == "0"] == [
        "0000.inner_part.after_pipeline-start.before_idle.txt",
        "0001.inner_part.after_negate-pairs.before_pipeline-end.txt",
    ]
    none = tmp_path / "none"
    none.mkdir()
    assert dumped(none, PassFlags(xla_dump_hlo_pass_re=".*", xla_dump_hlo_module_re="^other")) == []
    assert not (none / "dump").exists()


def test_no_pass_pattern_means_bookends_only(tmp_path: Path) -> None:
    assert dumped(tmp_path, PassFlags(), target="gpu") == [
        "before_optimizations.txt", "debug_options", "gpu_after_optimizations.txt",
    ]  # fmt: skip


def test_names_are_read_back_and_metadata_lists_every_run(tmp_path: Path) -> None:
    flags = PassFlags(xla_dump_hlo_pass_re=".*", xla_dump_module_metadata=True, xla_dump_include_timestamp=True)
    dumped(tmp_path, flags)
    names = sorted(one.name for one in (tmp_path / "dump").iterdir())
    stages = [parse_name(name) for name in names if name.endswith(".txt")]
    assert {stage.module_name for stage in stages} == {"negates"}
    assert len({stage.timestamp_us for stage in stages}) == 1 and stages[0].timestamp_us
    text = (tmp_path / "dump" / "module_0000.metadata.textproto").read_text()
    assert re.findall(r"pass_id: (\d+)", text) == [str(i) for i in range(1, 8)]
    assert text.count("module_changed: true") == 3
    assert text.count("start_timestamp_usec") == text.count("end_timestamp_usec") == 7
    assert "after_first.before_inner_part" in text


def test_stages_hold_the_module_at_that_point(tmp_path: Path) -> None:
    dumped(tmp_path, PassFlags(xla_dump_hlo_pass_re=".*"))
    folder = tmp_path / "dump"
    before = (folder / "module_0000.negates.before_optimizations.txt").read_text()
    first = (folder / "module_0000.negates.0001.outer.after_first.before_inner_part.txt").read_text()
    assert before == print_module(loaded())
    assert load_module(first).instruction_count == 6


def test_a_dump_is_not_overwritten(tmp_path: Path) -> None:
    dumped(tmp_path, PassFlags())
    path = tmp_path / "dump" / "module_0000.negates.before_optimizations.txt"
    path.write_text("mine")
    with pytest.raises(DumpError, match="--force"):
        DumpWriter(str(tmp_path / "dump"), PassFlags(), "negates")
    assert path.read_text() == "mine"
    writer = DumpWriter(str(tmp_path / "dump"), PassFlags(), "negates", force=True)
    writer.write_before(loaded())
    assert path.read_text() != "mine"


def test_dump_directories_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpError):
        DumpWriter(str(tmp_path / "file"), PassFlags(), "m")
    with pytest.raises(UsageError, match="xla_dump_hlo_pass_re is no regular expression"):
        DumpWriter(str(tmp_path / "dump"), PassFlags(xla_dump_hlo_pass_re="("), "m")


class ReturnsNothing:
    """A pass that forgets to say whether it changed the module."""

    name = "forgetful"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        return None  # type: ignore[return-value]


def test_a_pass_that_does_not_say_whether_it_changed_the_module_is_a_clear_error() -> None:
    module = load_module("HloModule m\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n")
    with pytest.raises(UsageError, match="forgetful must say whether it changed the module"):
        HloPassPipeline("p", [ReturnsNothing()]).run(module, PassContext())
