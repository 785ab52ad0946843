"""The pass pipeline: nested lists of passes, with the checks, ledger rows, filters and dumps around each run.

Order of events around one pass: hash (where reports are checked), ledger row opened, filter, run, report checked, dump,
row closed, invariant checkers (only after a change). The row opens before the decision to skip, so that pass ids stay
what they are when something is switched off. Instructions that a rewrite unlinks leave the module at once here, so
there is no clean-up after a pass. Source: ``openxla/xla:xla/hlo/pass/hlo_pass_pipeline.cc#RunPassesInternal``,
``hlo_pass_fix.h``.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, cast

from hloscope.core.errors import HloscopeError, InternalError, UsageError, VerifyError
from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.ledger.events import (
    FixpointEnded,
    InvariantFailed,
    PassFailed,
    PassSkipped,
    SilentChange,
)
from hloscope.core.passes.filters import Invocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext, PassRun
    from hloscope.core.passes.interface import HloPass

PIPELINE_START = "pipeline-start"
PIPELINE_END = "pipeline-end"


class HloPassPipeline:
    """An ordered list of passes, and of checkers that look at the module after each change."""

    is_pipeline = True

    def __init__(self, name: str, passes: Iterable[HloPass] = (), checkers: Iterable[HloPass] = ()) -> None:
        self.name = name
        self._passes: list[HloPass] = list(passes)
        self._checkers: list[HloPass] = list(checkers)
        self._run_called = False

    def __repr__(self) -> str:
        return f"{self.name} {{{', '.join(map(repr, self._passes))}}}"

    @property
    def passes(self) -> Sequence[HloPass]:
        """The passes in order."""
        return tuple(self._passes)

    @property
    def checkers(self) -> Sequence[HloPass]:
        """The invariant checkers in order."""
        return tuple(self._checkers)

    def add(self, one: HloPass) -> HloPass:
        """Append a pass and return it. Raises InternalError once the pipeline has run."""
        if self._run_called:
            raise InternalError("a pass cannot be added after the pipeline has run")
        self._passes.append(one)
        return one

    def add_invariant_checker(self, checker: HloPass) -> HloPass:
        """Append an invariant checker and return it. Raises InternalError once the pipeline has run."""
        if self._run_called:
            raise InternalError("an invariant checker cannot be added after the pipeline has run")
        self._checkers.append(checker)
        return checker

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Run everything and say whether any pass changed the module.

        Raises what a pass or checker raises (the ledger row of that pass stays open), VerifyError for a dishonest
        report where a flag asks for that, and UsageError for filters that cannot be read.
        """
        self._run_called = True
        flags = ctx.flags
        rev_a = flags.compat_rev_a
        if flags.xla_disable_all_hlo_passes and not rev_a:
            return False
        passes = self._enabled_rev_a(ctx) if rev_a else self._passes
        if ctx.ledger.enabled and not ctx.is_running:
            ctx.instruction_count(module, again=True)
        self._check_invariants(module, ctx, PIPELINE_START)
        self._record_start(module, ctx, passes)
        changed = False
        seen_here: Counter[str] = Counter()
        for i, one in enumerate(passes):
            following = passes[i + 1].name if i + 1 < len(passes) else PIPELINE_END
            changed |= self._run_one(module, ctx, one, following, seen_here)
        return changed

    # ---------------------------------------------------------------- one pass
    def _run_one(
        self, module: HloModule, ctx: PassContext, one: HloPass, following: str, seen_here: Counter[str]
    ) -> bool:
        flags, ledger = ctx.flags, ctx.ledger
        check = flags.crash_on_report or flags.check_reports
        hash_before = structural_hash(module) if check else ""
        run = ctx.push_run(one.name, self.name, is_pipeline=one.is_pipeline)
        run.started_us = time.time_ns() // 1000
        versions = None if one.is_pipeline else _versions(module)
        count = ctx.instruction_count(module) if ledger.enabled else None
        row = ledger.begin_pass(one.name, pipeline=self.name, xla_pass_id=run.pass_id, instructions=count)
        try:
            in_pipeline = seen_here[one.name]
            seen_here[one.name] += 1
            if not flags.compat_rev_a and self._skipped(ctx, one, run, in_pipeline):
                changed = False
            else:
                started = time.perf_counter_ns()
                changed = _run_gated(one, module, ctx)
                run.ns = time.perf_counter_ns() - started
                if changed and not one.is_pipeline:
                    module.sort_computations()
                elif versions is not None and versions != _versions(module):
                    run.touched = True
                if check:
                    self._check_report(module, ctx, one, changed, hash_before)
                if ctx.dumps is not None and ctx.dumps.wants_pass(changed, one.name):
                    run.files = ctx.dumps.write_pass(module, self.name, one.name, following)
        except BaseException as error:
            self._record_failure(ctx, one, run, error)
            ctx.pop_run(run)
            raise
        run.changed = changed
        run.ended_us = time.time_ns() // 1000
        if ledger.enabled:
            shown = ctx.shown
            snapshot = ctx.snapshot(module) if (changed and not one.is_pipeline) or run.touched else None
            silent = not changed and None not in (shown, snapshot) and snapshot != shown
            if silent and not check:
                ledger.emit(SilentChange(pass_name=one.name, pipeline=self.name, reported=False, code="silent_change"))
            ledger.end_pass(
                row,
                changed=changed or silent,
                instructions=ctx.instruction_count(module, again=(changed and not one.is_pipeline) or run.touched),
                snapshot=snapshot,
                fuel_used=None if one.is_pipeline else run.applied,
                file=run.files[0] if run.files else None,
                next_pass=following,
                ns=run.ns if run.skipped is None else None,
                unannounced=f"{one.name} … {following}" if silent else None,
            )
        ctx.pop_run(run)
        if changed:
            self._check_invariants(module, ctx, one.name)
        if not one.is_pipeline:
            stats = ctx.stats_of(one.name)
            stats.runs += run.skipped is None
            stats.changed += changed
            stats.ns += run.ns
        return changed

    def _skipped(self, ctx: PassContext, one: HloPass, run: PassRun, in_pipeline: int) -> bool:
        disable, enable = ctx.flags.disable_filter, ctx.flags.enable_filter
        if not disable and not enable:
            return False
        invocation = Invocation(one.name, self.name, run.pass_id, run.occurrence, in_pipeline)
        entry = (disable or enable).match(invocation)
        if entry is not None:
            ctx.filters_used.add(entry.text)
        if disable:
            reason = None if entry is None else ("disabled", entry.text)
        else:
            # Pipelines are always entered: what they hold is decided run by run.
            reason = ("not_enabled", "") if entry is None and not one.is_pipeline else None
        if reason is None:
            return False
        run.skipped = reason[1] or "xla_enable_hlo_passes_only"
        if ctx.ledger.enabled:
            ctx.ledger.emit(
                PassSkipped(
                    code=reason[0], pass_name=one.name, pipeline=self.name, occurrence=run.occurrence,
                    filter=run.skipped,
                )
            )  # fmt: skip
        return True

    def _check_report(self, module: HloModule, ctx: PassContext, one: HloPass, changed: bool, hash_before: str) -> None:
        flags = ctx.flags
        hash_after = structural_hash(module)
        if (hash_before != hash_after) == changed or (changed and getattr(one, "text_only", False)):
            return
        if ctx.ledger.enabled:
            ctx.ledger.emit(
                SilentChange(
                    pass_name=one.name, pipeline=self.name, reported=changed, hash_before=hash_before,
                    hash_after=hash_after, code="noop_change" if changed else "silent_change",
                )
            )  # fmt: skip
        if changed and flags.xla_unsupported_crash_on_hlo_pass_noop_change:
            raise VerifyError(
                f"pass '{one.name}' in pipeline '{self.name}' reported that it changed the HLO but the hash of HLO"
                f" was not updated ({hash_before})"
            )
        if not changed and flags.xla_unsupported_crash_on_hlo_pass_silent_hlo_change:
            raise VerifyError(
                f"pass '{one.name}' in pipeline '{self.name}' reported that it did not change the HLO but the hash of"
                f" HLO was changed from {hash_before} to {hash_after}"
            )

    # ---------------------------------------------------------------- around the passes
    def _record_start(self, module: HloModule, ctx: PassContext, passes: Sequence[HloPass]) -> None:
        run = ctx.push_run(PIPELINE_START, self.name)
        run.started_us = time.time_ns() // 1000
        following = passes[0].name if passes else PIPELINE_END
        row = ctx.ledger.begin_pass(PIPELINE_START, pipeline=self.name, xla_pass_id=run.pass_id)
        try:
            if ctx.dumps is not None:
                run.files = ctx.dumps.write_pass(module, self.name, PIPELINE_START, following)
        finally:
            ctx.pop_run(run)
        run.changed = False
        run.ended_us = time.time_ns() // 1000
        ctx.ledger.end_pass(row, changed=False, file=run.files[0] if run.files else None, next_pass=following)

    def _check_invariants(self, module: HloModule, ctx: PassContext, after: str) -> None:
        for checker in self._checkers:
            try:
                changed = checker.run(module, ctx)
            except HloscopeError as error:
                _invariant_failed(ctx, checker, after, error.message)
                error.message = f"{error.message}; failed after {after}"
                raise
            if changed:
                _invariant_failed(ctx, checker, after, "invariant checkers must not change the graph")
                raise InternalError(
                    f"invariant checkers must not change the graph: {checker.name} did; failed after {after}"
                )

    def _record_failure(self, ctx: PassContext, one: HloPass, run: PassRun, error: BaseException) -> None:
        message = str(error) or type(error).__name__
        run.error = f"{type(error).__name__}: {message}"
        if not one.is_pipeline:
            ctx.stats_of(one.name).errors[type(error).__name__] += 1
        if ctx.failure is error:
            return  # the pass inside has said it
        ctx.failure = error
        if ctx.ledger.enabled:
            code = "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
            ctx.ledger.emit(PassFailed(code=code, pass_name=one.name, pipeline=self.name, message=message))

    def _enabled_rev_a(self, ctx: PassContext) -> Sequence[HloPass]:
        flags = ctx.flags
        if flags.xla_disable_all_hlo_passes or self.name in flags.xla_disable_hlo_passes:
            return ()
        names = {one.name for one in self._passes} | {self.name}
        ctx.filters_used.update(names.intersection((*flags.xla_disable_hlo_passes, *flags.xla_enable_hlo_passes_only)))
        if flags.xla_disable_hlo_passes:
            return [one for one in self._passes if one.name not in flags.xla_disable_hlo_passes]
        only = flags.xla_enable_hlo_passes_only
        if only and self.name not in only:
            return [one for one in self._passes if one.name in only]
        return self._passes


class HloPassFix:
    """A pass or pipeline repeated until it changes nothing.

    At the limit it stops, notes that, and reports *no change* (so that a fixed point around it ends too), except where
    reports are checked.
    """

    def __init__(self, inner: HloPass, limit: int = 25) -> None:
        if limit < 1:
            raise UsageError(f"a fixed point needs a limit of at least 1 iteration, got {limit}")
        self.inner = inner
        self.limit = limit
        """Iterations at most."""

    def __repr__(self) -> str:
        return f"*[{self.inner!r}]"

    @property
    def name(self) -> str:
        """The name of what is repeated."""
        return self.inner.name

    @property
    def is_pipeline(self) -> bool:
        """Whether a pipeline is repeated."""
        return self.inner.is_pipeline

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Repeat. Raises VerifyError at the limit where a flag asks for that."""
        flags = ctx.flags
        changed = False
        seen: dict[str, int] = {}
        if flags.xla_hlo_pass_fix_detect_cycles:
            seen[structural_hash(module)] = 0
        noted = False
        for iteration in range(1, self.limit + 1):
            if not self.inner.run(module, ctx):
                return changed
            changed = True
            if flags.xla_hlo_pass_fix_detect_cycles and not noted:
                now = structural_hash(module)
                if now in seen:
                    noted = True
                    self._note(ctx, "cycle", iteration, f"returned to the module of iteration {seen[now]}")
                seen.setdefault(now, iteration)
        if flags.xla_unsupported_crash_on_hlo_pass_fix_max_iterations:
            raise VerifyError(f"pass '{self.name}' did not reach a fixed point within {self.limit} iterations")
        self._note(ctx, "limit", self.limit, f"still changed the module after {self.limit} iterations")
        ctx.current.touched = True
        return flags.xla_unsupported_crash_on_hlo_pass_silent_hlo_change or flags.check_reports

    def _note(self, ctx: PassContext, code: str, iterations: int, what: str) -> None:
        ctx.warnings.append(f"{self.name} {what}")
        if ctx.ledger.enabled:
            ctx.ledger.emit(FixpointEnded(code=code, pass_name=self.name, iterations=iterations))


def pass_names(one: HloPass) -> Iterator[str]:
    """Names of a pass and of everything in it, checkers left out."""
    yield one.name
    inner = one.inner if isinstance(one, HloPassFix) else one
    if isinstance(inner, HloPassPipeline):
        for child in inner.passes:
            yield from pass_names(child)


def _versions(module: HloModule) -> tuple[object, ...]:
    """What an edit of the module moves on; taking it costs no look at instructions."""
    return (*module.computations, *[one.version for one in module.computations], id(module.attrs))


def _run_gated(one: HloPass, module: HloModule, ctx: PassContext) -> bool:
    """Run a pass unless ``xla_run_hlo_passes_starting_from`` has not been met yet."""
    if not ctx.started and not one.is_pipeline:
        if one.name != ctx.flags.xla_run_hlo_passes_starting_from:
            return False
        ctx.started = True
    changed = cast("object", one.run(module, ctx))  # a plugin may return anything
    if not isinstance(changed, bool):
        raise UsageError(f"pass {one.name} must say whether it changed the module: run returned {changed!r}")
    return changed


def _invariant_failed(ctx: PassContext, checker: HloPass, after: str, message: str) -> None:
    if ctx.ledger.enabled:
        ctx.ledger.emit(InvariantFailed(checker=checker.name, after_pass=after, message=message))
