"""The verdict on one stage of a replay: what a worker process is given, what it does, and what it answers.

Verdicts are kept by content: the first stage and its inputs, the stage, the options and the evaluator's own code.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hloscope.core.errors import EvaluationError, HloscopeError, UnsupportedError
from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.runtime import elided
from hloscope.core.runtime.compare import Comparison, Rules, Sensitivity, compare, join_rules, rules_for
from hloscope.core.runtime.evaluator import Array, EvaluationOptions
from hloscope.core.runtime.evaluator.custom_calls import KERNELS
from hloscope.core.runtime.evaluator.values import TooLargeError
from hloscope.core.runtime.regions import Given, RegionVerdict, check_regions
from hloscope.core.runtime.shrink import shrink
from hloscope.core.runtime.stage import (
    Program,
    StageRun,
    arguments_of,
    check_outputs,
    run_stage,
)
from hloscope.core.runtime.value_path import Step
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator.values import KernelReader


FastEngine: TypeAlias = Callable[[str, Sequence[Array]], "list[Array]"]
_NOT_FAST = frozenset(
    {"async-start", "bitcast", "custom-call", "domain", "fusion", "infeed", "outfeed", "recv", "rng", "send",
     "rng-get-and-update-state", "set-dimension-size"}
)  # fmt: skip
"""What other engines read in a way of their own, or not at all: layouts, fusions, calls, what is random or outside."""

REFERENCE, SAME, AGREES, DIFFERS, NOT_EVALUATED = "reference", "same-bits", "agrees", "differs", "not-evaluated"
"""What is said of a stage."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to replay."""

    seed: int = 0
    """Seed of inputs that are not given, of opaque kernels' results and of constants that no stage has."""
    opaque: frozenset[str] = frozenset()
    """Further custom-call targets that are not computed: their results are drawn, their operands compared."""
    workers: int = 0
    """Processes; 0 is one for each core, 1 works in this one."""
    step_limit: int = 1_000_000
    """Loop iterations of one stage."""
    factor: float = 1.0
    """Multiplies the bounds."""
    cache: str | None = None
    """Folder of verdicts; None keeps them for this replay only."""
    kernels: KernelReader | None = None
    """Reads the kernels that custom calls carry, in a worker process; without it their results are drawn."""
    fast: FastEngine | None = None
    """Another engine that evaluates a text on arrays, tried first: where it agrees with the first stage that is the
    verdict, where it does not, or cannot, the reference evaluator decides. A function of a module, for the workers."""
    regions: bool = False
    """Evaluate nothing whole: only what each stage changed. Done anyway where a stage cannot be evaluated whole."""


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """How one stage compares with the first."""

    index: int
    status: str
    """``reference``, ``same-bits``, ``agrees``, ``differs`` or ``not-evaluated``."""
    max_abs: float | None = None
    """Largest difference of any element; None where nothing was compared."""
    max_ulp: int | None = None
    """The same in values of the element type."""
    worst_index: tuple[int, ...] | None = None
    """Where a difference is largest against its bound."""
    output: int | None = None
    """The flattened result that it is in; None for an opaque kernel's operand."""
    reason: str = ""
    """Why it was not evaluated, or the worst difference in words."""
    same_as: int | None = None
    """The earlier stage of equal structural hash whose verdict this is."""
    notes: tuple[str, ...] = ()
    """What was assumed, one sentence each."""
    widened: bool = False
    """Whether it agrees only because rounding errors were seen to move the results as far: a weaker verdict."""
    how: str = "whole"
    """``whole``; ``region``, where only what changed since the stage before was evaluated; or ``not-checked``."""
    devices: int = 1
    """Simulated devices that it ran on."""
    seconds: float = 0.0
    """Time of evaluation; 0 for a verdict from the cache."""
    hash: str = ""
    """Structural hash."""
    path: tuple[Step, ...] = ()
    """Of the first stage that differs: the elements that fed the worst one, from it backwards."""


@dataclass(frozen=True)
class Reference:
    """What a worker compares with; written once, read by every worker."""

    program: Program
    outputs: list[Array]
    kernels: dict[str, list[Array]]
    rules: Rules
    key: str
    text: str
    """The first stage, for whoever has to find out what rounding errors do to it."""
    values: Mapping[str, Array]
    """Its elided constants."""


@dataclass(frozen=True)
class StageTask:
    text: str
    reference: str
    options: ReplayOptions
    cache: str
    values: Mapping[str, Array] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()
    before: str = ""
    """The stage before, for whoever has to look at the change alone."""
    before_values: Mapping[str, Array] = field(default_factory=dict)
    """Its elided constants."""


@dataclass(frozen=True)
class RegionTask:
    before: str
    after: str
    options: ReplayOptions
    elided: tuple[Mapping[str, Array], Mapping[str, Array]]


# ---------------------------------------------------------------- one stage, in a worker
def check(task: StageTask | RegionTask) -> StageVerdict:
    """The verdict on one stage. Runs in a worker process."""
    return check_stage(task) if isinstance(task, StageTask) else check_region(task)


def lost(_task: StageTask | RegionTask, reason: str) -> StageVerdict:
    """The verdict where the worker died."""
    return StageVerdict(0, NOT_EVALUATED, reason=reason, how="not-checked")


def check_region(task: RegionTask) -> StageVerdict:
    """The verdict on what one stage changed since the one before."""
    started = time.perf_counter()
    try:
        before, after = load_module(task.before), load_module(task.after)
        hashed = structural_hash(after)
        options = task.options
        try:
            found = _regions(before, after, options, task.elided)
        except TooLargeError:
            smaller = shrink(task.before, task.after)
            if smaller is None:
                raise
            constants = [
                elided.resolve(module, None, {}, options.seed).values for module in (smaller.before, smaller.after)
            ]
            found = _regions(smaller.before, smaller.after, options, (constants[0], constants[1]))
            if smaller.moved and not found.within:
                raise UnsupportedError(
                    f"too large as it is; with smaller dimensions ({smaller}) the two sides disagree, which may come "
                    "from positions that moved with them"
                ) from None
            found.notes.append(f"too large as it is: evaluated with smaller dimensions ({smaller})")
    except HloscopeError as error:
        return StageVerdict(0, NOT_EVALUATED, reason=str(error), how="not-checked")
    seconds = time.perf_counter() - started
    note = f"{found.computed} changed instructions were evaluated on {found.borders} shared values"
    notes = (note, f"{found.widened} levels of them were computed, too") if found.widened else (note,)
    notes += tuple(found.notes)
    worst = max(found.comparisons, key=lambda item: (not item[1].within, excess(item[1])), default=None)
    if worst is None:
        return StageVerdict(0, SAME, 0.0, 0, how="region", notes=notes, seconds=seconds, hash=hashed)
    same = all(one.same_bits for _, one in found.comparisons)
    status = SAME if same else AGREES if found.within else DIFFERS
    return StageVerdict(
        0,
        status,
        max_abs=max(one.max_abs for _, one in found.comparisons),
        max_ulp=max(one.max_ulp for _, one in found.comparisons),
        worst_index=worst[1].worst_index,
        reason="" if same else f"%{worst[0]}: {worst[1]}",
        widened=status == AGREES and not found.firm,
        how="region",
        notes=notes,
        seconds=seconds,
        hash=hashed,
    )


def _regions(
    before: HloModule,
    after: HloModule,
    options: ReplayOptions,
    values: tuple[Mapping[str, Array], Mapping[str, Array]],
) -> RegionVerdict:
    return check_regions(
        before, after, seed=options.seed, factor=options.factor, opaque=options.opaque, elided=values
    )  # fmt: skip


def check_stage(task: StageTask) -> StageVerdict:
    """The verdict on one stage, from the cache where it is known. Runs in a worker process."""
    reference = _read_reference(task.reference)
    try:
        module = load_module(task.text)
    except HloscopeError as error:
        return StageVerdict(0, NOT_EVALUATED, reason=str(error), how="not-checked")
    hashed = structural_hash(module)
    key = blake2b(digest_size=16)
    for part in (
        reference.key,
        hashed,
        task.before,
        *(array_digest(task.values[name]) for name in sorted(task.values)),
    ):
        key.update(part.encode())
    file = Path(task.cache) / f"{key.hexdigest()}.json"
    known = _read_verdict(file)
    if known is not None:
        return replace(known, hash=hashed, seconds=0.0)
    notes = [f"%{name} is random: no stage has its values" for name in task.drawn]
    started = time.perf_counter()
    quick = _by_fast_engine(task, reference, module)
    if quick is not None:
        verdict = replace(quick, hash=hashed, seconds=time.perf_counter() - started)
        _write_verdict(file, verdict)
        return verdict
    try:
        run = run_stage(
            module,
            reference.program,
            options=evaluation(task.options, task.values),
            reference=reference.outputs,
        )
        check_outputs(reference.outputs, run)
    except HloscopeError as error:
        verdict = StageVerdict(0, NOT_EVALUATED, reason=str(error), how="not-checked", notes=tuple(notes))
    else:
        rules = join_rules(reference.rules, rules_for(module, task.options.factor))
        verdict = _judge(reference, run, rules, notes, None)
        if verdict.status == DIFFERS:
            # Only then is it worth more runs to see how firm the result is.
            moved = _sensitivities(task, reference)
            verdict = _judge(reference, run, rules, notes, moved)
            if verdict.status == DIFFERS and rules.narrowest != reference.rules.narrowest:
                # The compiler went down to a narrower type here and there: what that costs only this stage shows.
                own = _moves(module, run, reference, evaluation(task.options, task.values))
                verdict = _judge(reference, run, rules, notes, _both(moved, own))
        if verdict.widened and task.before:
            verdict = _second_look(task, reference, module, verdict)
        invented = _invented(task, reference, run)
        if invented and verdict.status == DIFFERS and verdict.how == "whole":
            reason = f"its results hang on {invented}, which the first stage does not have: they are drawn"
            verdict = StageVerdict(0, NOT_EVALUATED, reason=reason, how="not-checked", notes=verdict.notes)
    verdict = replace(verdict, hash=hashed, seconds=time.perf_counter() - started)
    _write_verdict(file, verdict)
    return verdict


def _invented(task: StageTask, reference: Reference, run: StageRun) -> str:
    """What is drawn in a stage and not in the first one, in words: a difference then says nothing of the stage.

    A pass may make a kernel of an operation (libtpu's ``gmm`` of a ragged dot) or fold a constant that no text shows.
    """
    kernels = sorted({name.split(" ")[0] for name in run.kernels if name not in reference.kernels})
    constants = [name for name in task.drawn if name not in reference.values]
    parts = [f"results of {', '.join(kernels)}"] if kernels else []
    parts += [f"values of %{', %'.join(constants[:3])}"] if constants else []
    return " and ".join(parts)


def _by_fast_engine(task: StageTask, reference: Reference, module: HloModule) -> StageVerdict | None:
    """The verdict where the fast engine agrees with the first stage; None where the reference evaluator has to look."""
    if task.options.fast is None or module.num_partitions * module.replica_count > 1 or reference.kernels:
        return None
    if task.values or any(node.opcode in _NOT_FAST for node in module.instructions()):
        return None
    try:
        outputs = task.options.fast(task.text, reference.program.inputs)
    except (HloscopeError, OSError, ValueError):
        return None
    shapes = [(x.shape, x.dtype) for x in outputs]
    if shapes != [(x.shape, x.dtype) for x in reference.outputs]:
        return None
    rules = join_rules(reference.rules, rules_for(module, task.options.factor))
    verdict = _judge(reference, StageRun(outputs), rules, ["evaluated by the fast engine"], None)
    return verdict if verdict.status in (SAME, AGREES) else None


def _second_look(task: StageTask, reference: Reference, module: HloModule, verdict: StageVerdict) -> StageVerdict:
    """Where results agree within wide bounds only: what the stage itself changed, on the values of the stage before.

    What rounding did to the stages before does not count then, so that a small fault shows.
    """
    if module.num_partitions * module.replica_count > 1:
        return verdict
    options = task.options
    try:
        before = load_module(task.before)
        arguments = arguments_of(before, reference.program)
        given = Given(before, module, arguments, KERNELS | options.opaque)
        observed = replace(evaluation(options, task.before_values), observer=given.observe)
        run_stage(before, reference.program, options=observed)
        found = check_regions(
            before, module, seed=options.seed, factor=options.factor, opaque=options.opaque,
            elided=(task.before_values, task.values), given=given,
        )  # fmt: skip
    except HloscopeError as error:
        return replace(verdict, notes=(*verdict.notes, f"its change alone could not be looked at: {error}"))
    if found.within:
        note = "on the values of the stage before, its change alone agrees"
        return replace(verdict, notes=(*verdict.notes, note), widened=not found.firm)
    name, worst = max(found.comparisons, key=lambda item: (not item[1].within, excess(item[1])))
    return replace(
        verdict,
        status=DIFFERS,
        how="region",
        widened=False,
        max_abs=worst.max_abs,
        max_ulp=worst.max_ulp,
        worst_index=worst.worst_index,
        output=None,
        reason=f"%{name}, on the values of the stage before: {worst}",
    )


NOISY_RUNS = 2
"""Runs with rounding errors that show how firm a result is."""


Sensitivities = tuple[list[Sensitivity], dict[str, list[Sensitivity]]]


def _sensitivities(task: StageTask, reference: Reference) -> Sensitivities:
    """How far rounding errors move the first stage's results and what its kernels are given; found once, and kept."""
    path = Path(task.reference + ".sensitivity")
    if path.exists():
        with open(path, "rb") as file:
            found: Sensitivities = pickle.load(file)
        return found
    first = StageRun(reference.outputs, reference.kernels)
    outputs, kernels = _moves(load_module(reference.text), first, reference, evaluation(task.options, reference.values))
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(pickle.dumps((outputs, kernels), protocol=pickle.HIGHEST_PROTOCOL))
    temporary.replace(path)
    return outputs, kernels


def _moves(module: HloModule, exact: StageRun, reference: Reference, options: EvaluationOptions) -> Sensitivities:
    runs = [
        run_stage(module, reference.program, options=replace(options, noise=number), reference=reference.outputs)
        for number in range(NOISY_RUNS)
    ]
    outputs = [Sensitivity.of(x, [run.outputs[i] for run in runs]) for i, x in enumerate(exact.outputs)]
    kernels = {
        name: [Sensitivity.of(x, [run.kernels[name][i] for run in runs]) for i, x in enumerate(operands)]
        for name, operands in exact.kernels.items()
        if all(name in run.kernels for run in runs)
    }
    return outputs, kernels


def _both(a: Sensitivities, b: Sensitivities) -> Sensitivities:
    """The larger moves of two programs with the same results."""
    outputs = [x.joined(y) for x, y in zip(a[0], b[0], strict=True)]
    kernels = dict(a[1])
    for name, moves in b[1].items():
        if name in kernels and [x.moved.shape for x in kernels[name]] == [y.moved.shape for y in moves]:
            kernels[name] = [x.joined(y) for x, y in zip(kernels[name], moves, strict=True)]
    return outputs, kernels


def _judge(
    reference: Reference, run: StageRun, rules: Rules, notes: list[str], moved: Sensitivities | None
) -> StageVerdict:
    found: list[tuple[int | None, str, Comparison]] = []
    notes = list(notes)
    for number, (expected, actual) in enumerate(zip(reference.outputs, run.outputs, strict=True)):
        firm = None if moved is None else moved[0][number]
        found.append((number, f"result {number}", compare(expected, actual, rules, firm)))
    for name, operands in reference.kernels.items():
        given = run.kernels.get(name)
        if given is None or [x.shape for x in given] != [x.shape for x in operands]:
            notes.append(f"what {name} is given has another form than in the first stage: not compared")
            continue
        for number, (expected, actual) in enumerate(zip(operands, given, strict=True)):
            firm = moved[1][name][number] if moved is not None and name in moved[1] else None
            found.append((None, f"operand {number} of {name}", compare(expected, actual, rules, firm)))
    notes += run.notes
    if moved is not None:
        notes.append("bounds are widened to what rounding errors alone were seen to do")
    if not found:
        return StageVerdict(0, SAME, 0.0, 0, reason="it has no results", notes=tuple(notes), devices=run.devices)
    worst = max(found, key=lambda item: (not item[2].within, excess(item[2])))
    status = SAME if all(c.same_bits for _, _, c in found) else AGREES if worst[2].within else DIFFERS
    return StageVerdict(
        0,
        status,
        max_abs=max(c.max_abs for _, _, c in found),
        max_ulp=max(c.max_ulp for _, _, c in found),
        worst_index=worst[2].worst_index,
        output=worst[0],
        reason="" if status == SAME else f"{worst[1]}: {worst[2]}",
        notes=tuple(notes),
        devices=run.devices,
        widened=moved is not None and status == AGREES,
    )


def excess(one: Comparison) -> float:
    return one.max_abs / one.bound if one.bound else one.max_abs


def evaluation(options: ReplayOptions, values: Mapping[str, Array]) -> EvaluationOptions:
    return EvaluationOptions(
        seed=options.seed,
        step_limit=options.step_limit,
        opaque=options.opaque,
        kernels=options.kernels,
        elided=lambda node: values[node.name],
    )


# ---------------------------------------------------------------- keys and files
def array_digest(array: Array) -> str:
    state = blake2b(f"{array.dtype.name}{array.shape}".encode(), digest_size=16)
    state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


@contextmanager
def _quiet() -> Generator[None, None, None]:
    """A cache that cannot be written is no reason to stop."""
    try:
        yield
    except OSError:
        pass


def _read_reference(path: str) -> Reference:
    with open(path, "rb") as file:
        found = pickle.load(file)
    if not isinstance(found, Reference):
        raise EvaluationError("the reference of the replay is damaged", path=path)
    return found


def _read_verdict(path: Path) -> StageVerdict | None:
    try:
        stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
        stored["notes"] = tuple(stored["notes"])
        stored["path"] = ()
        stored["worst_index"] = None if stored["worst_index"] is None else tuple(stored["worst_index"])
        return StageVerdict(**stored)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_verdict(path: Path, verdict: StageVerdict) -> None:
    with _quiet():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(verdict)), "utf-8")
        temporary.replace(path)
