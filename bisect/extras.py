"""What a bundle holds beside the answer: the module made small, and the ledger of the compile that shows the fault."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.bisect.bundle import Extras, stages_ledger
from hloscope.bisect.oracles import evaluated
from hloscope.bisect.reduce import reduce_module, remembered
from hloscope.bisect.reduce_command import progress, shows_fault
from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.passes.registry import Registry
from hloscope.core.runtime.evaluator import Token, leaves
from hloscope.core.text import print_module

if TYPE_CHECKING:
    from hloscope.bisect.probing import Prober
    from hloscope.bisect.reduce import Shows
    from hloscope.bisect.reduce_command import Inputs
    from hloscope.bisect.result import Answer
    from hloscope.bisect.settings import Ending, Given
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value

REDUCE_BUDGET = 150
"""Candidates that making a bundle's module small tries."""
_OPEN = ("not-deterministic", "wrong-input", "cannot-tell")
"""Verdicts with no fault that a smaller module could be held against."""


@dataclass(frozen=True, slots=True)
class Options:
    """How our own compiler was set."""

    passes: str | None
    pipeline: str | None
    registry: Registry
    disabled: Sequence[str] = ()
    plugins: Mapping[str, str] = field(default_factory=dict[str, str])
    """Plugin files by name."""


def extras_of_core(
    answer: Answer,
    module: HloModule,
    given: Given,
    inputs: Inputs,
    probes: Prober,
    ending: Ending,
    options: Options,
    kept: str | None,
) -> Extras:
    """Of a fault of our own compiler; `kept` is the ledger that the search has written."""
    message = "" if answer.verdict == "compile-failure" else None
    oracle = "reference" if given.oracle.endswith(".npz") or message is not None else given.oracle
    shows = shows_fault(
        oracle, "core", options.passes, options.pipeline, options.registry, "", message, inputs, options.disabled
    )

    def move(path: str) -> None:
        if kept is not None and os.path.exists(kept):
            shutil.move(kept, path)

    small = smaller(module, shows, answer, probes, ending)
    return Extras(smaller=small, ledger=move, arrays=_reference(inputs), core=True, files=options.plugins)


def extras_of_xla(
    answer: Answer,
    module: HloModule,
    oracle: str,
    flags: Sequence[str],
    inputs: Inputs,
    probes: Prober,
    ending: Ending,
) -> Extras:
    """Of a fault of the installed XLA:CPU."""
    message = "" if answer.verdict == "compile-failure" else None
    oracle = "unoptimised" if oracle == "unoptimised" and message is None else "reference"
    shows = shows_fault(oracle, "xla", None, None, Registry(), shlex.join(flags), message, inputs)
    small = smaller(module, shows, answer, probes, ending)
    arrays = _unoptimised(inputs) if oracle == "unoptimised" else _reference(inputs)
    return Extras(flags, True, small, dump_ledger(probes, "whole", ending), arrays=arrays)


def _reference(inputs: Inputs) -> Callable[[HloModule], tuple[Sequence[Value], Sequence[Array | Token]]]:
    """Of a small module: its inputs, and what the evaluator makes of them."""

    def made(module: HloModule) -> tuple[Sequence[Value], Sequence[Array | Token]]:
        given = inputs.of(module)
        return given, evaluated(module, given)

    return made


def _unoptimised(inputs: Inputs) -> Callable[[HloModule], tuple[Sequence[Value], Sequence[Array | Token]]]:
    """Of a small module: its inputs, and what XLA:CPU gives without optimizations."""

    def made(module: HloModule) -> tuple[Sequence[Value], Sequence[Array | Token]]:
        from hloscope.bisect.subjects.xla import unoptimised

        given = inputs.of(module)
        arrays = [leaf for value in given for leaf in leaves(value) if not isinstance(leaf, Token)]
        return given, unoptimised(print_module(module), arrays)

    return made


def smaller(
    module: HloModule, shows: Shows, answer: Answer, probes: Prober, ending: Ending
) -> Callable[[], HloModule | None] | None:
    """What makes a bundle's module small; None where nothing does."""
    if not ending.reduce or answer.verdict in _OPEN:
        return None

    watch = progress(ending.as_json)

    def make() -> HloModule | None:
        try:
            asked = remembered(shows, probes.journal)
            found = reduce_module(module, asked, budget=REDUCE_BUDGET, watch=watch)
        except (HloscopeError, InternalError) as error:
            answer.evidence.append(f"the module was not made smaller: {error}")
            return None
        answer.reduced = {"before": found.before, "after": found.after, "probes": found.probes}
        return found.module

    return make


def dump_ledger(probes: Prober, name: str, ending: Ending) -> Callable[[str], None]:
    """Writes the ledger of a compile that was dumped into a journal's folder."""
    from hloscope.core.views.run import load

    def write(path: str) -> None:
        try:
            with load(str(probes.journal.folder / name), "0") as run:
                stages_ledger(run, path, redact=ending.redact)
        except HloscopeError:
            return  # a compile that dumped nothing has no ledger

    return write
