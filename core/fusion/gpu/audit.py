"""Agreement of our priority fusion with the steps that XLA:GPU recorded.

Two runs are compared. The first has the text alone: its first scores are compared producer by producer, and the edges
that it fuses. The second is given what text has lost (the order of users, the picks among equal priorities), and is
compared step by step and with the fusions in the stage after the pass. Its order of users goes on to multi-output
fusion; the rewriters of dots and of normalizations need nothing but their stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.agreement import Agreement, Section
from hloscope.core.analysis.device import device_of, load_device, parse_device
from hloscope.core.analysis.real_compile import stages_around
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.dumps.fusion_decisions import PASS_NAME, fusion_events
from hloscope.core.dumps.textproto import parse_textproto
from hloscope.core.errors import DumpError, HloscopeError
from hloscope.core.fusion.gpu.gemm_fusion import run_gemm_fusion
from hloscope.core.fusion.gpu.multi_output_fusion import run_multi_output_fusion
from hloscope.core.fusion.gpu.priority_fusion import run_priority_fusion
from hloscope.core.fusion.gpu.replay import (
    DumpGuide,
    count_equal,
    describe,
    initial_scores,
    reason_class,
    recorded_steps,
    same_time,
)
from hloscope.core.fusion.gpu.softmax_rewriter import run_softmax_rewriter
from hloscope.core.fusion.gpu.user_orders import after_cse, renamed
from hloscope.core.hlo.hashing import computation_hash
from hloscope.core.passes.context import PassContext
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.analysis.real_compile import RealCompile
    from hloscope.core.fusion.gpu.priority_fusion import Step
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule

WORST = 4
"""Reasons that are named where their F1 is below 1."""
TIME_TOLERANCE = 0.005
"""Relative difference up to which two times agree."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a compile says about its priority fusion."""

    text: str
    """The module before the pass."""
    device: DeviceDescription
    steps: list[Step]
    """Empty where the compiler wrote none."""
    fault: str | None = None
    """Why what it wrote cannot be read."""


def recorded(compile_: RealCompile) -> Recorded:
    """The pass's input, device and steps. Raises DumpError where the dump shows no input of it."""
    report = compile_.report(FileKind.FUSION_DECISIONS)
    config = compile_.report(FileKind.TARGET_CONFIG)
    fault = None
    try:
        message = None if report is None else parse_textproto(report, path=compile_.path)
    except HloscopeError as error:
        message, fault = None, f"the recorded decisions cannot be read ({error.message})"
    if message is not None:
        text = message.text("hlo_module_before_fusion")
        info = message.messages("gpu_device_info")
        device = device_of(message, path=compile_.path) if info else _device(config)
        steps = recorded_steps(fusion_events(message))
        if text is not None:
            return Recorded(text, device, steps)
        return Recorded(compile_.text(stages_around(compile_, PASS_NAME)[0].before.index), device, steps)
    before = stages_around(compile_, PASS_NAME)[0].before.index
    return Recorded(compile_.text(before), _device(config), [], fault)


def _device(config: str | None) -> DeviceDescription:
    return load_device() if config is None else parse_device(config)


def audit_gpu(compile_: RealCompile) -> Section:
    """Figures ``verdicts``, ``reasons``, ``times``, ``pairs``, ``precision``, ``steps``, ``groups`` and ``kinds``.

    Beside them ``gemm``, ``softmax`` and ``multi_output``: the fusions after those passes, where the dump has the
    stages. Raises DumpError where the dump does not show the module before ``priority-fusion``.
    """
    known = recorded(compile_)
    notes: list[str] = []
    figures: dict[str, Agreement] = {}
    plain = load_module(known.text, path=compile_.path)
    names = {one.name for one in plain.instructions()}
    edges = _edges(plain)
    alone = run_priority_fusion(plain, PassContext(target="gpu"), known.device)
    guided, outcome = plain, alone
    if known.steps:
        figures |= _scores(alone.steps, known.steps, names)
        figures |= _pairs(fused_edges(alone.steps, edges), fused_edges(known.steps, edges))
        guided = load_module(known.text, path=compile_.path)
        outcome = run_priority_fusion(guided, PassContext(target="gpu"), known.device, guide=DumpGuide(known.steps))
        equal, different = count_equal(outcome.steps, known.steps)
        notes.extend(_reason_notes(alone.steps, outcome.steps, known.steps, names))
        if figures["times"].agree < figures["times"].total:
            ordered = _scores(outcome.steps, known.steps, names)["times"]
            notes.append(
                f"times: {ordered.agree:,} of {ordered.total:,} with the order of users read from the dump: pairs that "
                "look alike share one tiling, that of the first user asked"
            )
        steps = figures["steps"] = Agreement()
        for subject, ours, real in different:
            steps.add(subject, ours, real, equal=False)
        steps.agree += equal
        steps.total += equal
    else:
        why = known.fault or "the compiler recorded no decisions"
        notes.append(f"{why}: only the fusions after the pass are compared")
    try:
        after = compile_.module(stages_around(compile_, PASS_NAME)[0].after.index)
    except DumpError as error:
        notes.append(error.message)
        return Section(figures, tuple(notes))
    figures |= fusion_agreement(guided, after)
    users = after_cse(after, renamed(outcome.users, guided, after))
    figures |= _other_passes(compile_, known.device, users)
    return Section(figures, tuple(notes))


def _other_passes(
    compile_: RealCompile, device: DeviceDescription, users: Mapping[str, Sequence[str]]
) -> dict[str, Agreement]:
    """The fusions after each other fusion pass of which the dump shows the stages; its input is the real one."""
    found: dict[str, Agreement] = {}
    for figure, name, run in _OTHERS:
        try:
            around = stages_around(compile_, name)[0]
        except DumpError:
            continue  # it changed nothing, or was not dumped
        ours = compile_.module(around.before.index)
        run(ours, PassContext(target="gpu"), device, users)
        found[figure] = fusion_agreement(ours, compile_.module(around.after.index))["groups"]
    return found


def _gemm(module: HloModule, ctx: PassContext, device: DeviceDescription, users: Mapping[str, Sequence[str]]) -> None:
    del users
    run_gemm_fusion(module, ctx, device)


def _softmax(
    module: HloModule, ctx: PassContext, device: DeviceDescription, users: Mapping[str, Sequence[str]]
) -> None:
    del users
    run_softmax_rewriter(module, ctx, device)


_OTHERS: tuple[tuple[str, str, Callable[..., object]], ...] = (
    ("gemm", "triton-gemm-rewriter", _gemm),
    ("softmax", "triton-softmax-rewriter", _softmax),
    ("multi_output", "multi_output_fusion", run_multi_output_fusion),
)


# ---------------------------------------------------------------- scores
def _scores(ours: Sequence[Step], real: Sequence[Step], names: set[str]) -> dict[str, Agreement]:
    verdicts, reasons, times = Agreement(), Agreement(), Agreement()
    mine, theirs = initial_scores(ours), initial_scores(real)
    for name, step in theirs.items():
        if name not in names:
            continue
        own = mine.get(name)
        verdicts.add(name, "not scored" if own is None else own.kind, step.kind)
        if own is None:
            continue
        if "ineligible" in (own.kind, step.kind):
            reasons.add(name, reason_class(own.reason) or own.kind, reason_class(step.reason) or step.kind)
        else:
            equal = same_time(own.us_fused, step.us_fused, TIME_TOLERANCE) and same_time(
                own.us_unfused, step.us_unfused, TIME_TOLERANCE
            )
            times.add(name, describe(own), describe(step), equal=equal)
    return {"verdicts": verdicts, "reasons": reasons, "times": times}


def _reason_notes(alone: Sequence[Step], guided: Sequence[Step], real: Sequence[Step], names: set[str]) -> list[str]:
    """F1 of the reasons; of several users that refuse the first counts, which the text does not tell."""
    plain, ordered = (reason_matrix(one, real, names) for one in (alone, guided))
    score, with_order = macro_f1(plain), macro_f1(ordered)
    if score is None or with_order is None:
        return []
    low = sorted((found, reason) for reason, found in f1_of(plain).items() if found < 1)
    worst = "".join(f"; {found:.2f} {reason!r}" for found, reason in low[:WORST])
    return [
        f"reasons: macro-averaged F1 {score:.4f} over {len(f1_of(plain))} reasons from the text alone, "
        f"{with_order:.4f} with the order of users read from the dump{worst}"
    ]


def reason_matrix(ours: Sequence[Step], real: Sequence[Step], names: set[str]) -> Counter[tuple[str, str]]:
    """How often which reason (or none) of ours meets which of the compiler's, in first scores."""
    mine = initial_scores(ours)
    matrix: Counter[tuple[str, str]] = Counter()
    for name, step in initial_scores(real).items():
        own = mine.get(name)
        if name in names and own is not None and "ineligible" in (own.kind, step.kind):
            matrix[reason_class(own.reason), reason_class(step.reason)] += 1
    return matrix


def f1_of(matrix: Counter[tuple[str, str]]) -> dict[str, float]:
    """F1 of each real reason. Keys of the matrix are (ours, real)."""
    found: dict[str, float] = {}
    for one in {real for _, real in matrix}:
        ours = sum(count for (a, _), count in matrix.items() if a == one)
        real = sum(count for (_, b), count in matrix.items() if b == one)
        found[one] = 2 * matrix[one, one] / (ours + real)
    return found


def macro_f1(matrix: Counter[tuple[str, str]]) -> float | None:
    """F1 of the real reasons, averaged; None where there is none."""
    each = f1_of(matrix)
    return sum(each.values()) / len(each) if each else None


# ---------------------------------------------------------------- pairs
def _edges(module: HloModule) -> dict[str, tuple[str, ...]]:
    """Operand names by instruction name, outside of fusion bodies."""
    return {
        one.name: tuple(operand.name for operand in one.operands)
        for computation in module.computations
        if not computation.is_fusion
        for one in computation.instructions
    }


def fused_edges(steps: Sequence[Step], edges: dict[str, tuple[str, ...]]) -> set[tuple[str, str]]:
    """Edges (producer, consumer) of the input whose ends came into one fusion."""
    members: dict[str, frozenset[str]] = {}
    found: set[tuple[str, str]] = set()
    for step in steps:
        if step.kind != "fused":
            continue
        consumer = step.consumers[0]
        above = members.get(step.producer, frozenset((step.producer,)))
        below = members.get(consumer, frozenset((consumer,)))
        for name in below:
            found.update((operand, name) for operand in edges.get(name, ()) if operand in above)
        members[step.made or consumer] = above | below
    return found


def _pairs(ours: set[tuple[str, str]], real: set[tuple[str, str]]) -> dict[str, Agreement]:
    recall, precision = Agreement(), Agreement()
    for producer, consumer in sorted(real):
        recall.add(f"{producer} -> {consumer}", "fused" if (producer, consumer) in ours else "apart", "fused")
    for producer, consumer in sorted(ours):
        precision.add(f"{producer} -> {consumer}", "fused", "fused" if (producer, consumer) in real else "apart")
    return {"pairs": recall, "precision": precision}


# ---------------------------------------------------------------- groups
def fusion_agreement(ours: HloModule, real: HloModule) -> dict[str, Agreement]:
    """Fusions of both modules by computation: bodies matched whatever their names, and the kinds of those matched."""
    groups, kinds = Agreement(), Agreement()
    mine, theirs = _fusions(ours), _fusions(real)
    for home, wanted in theirs.items():
        left = list(mine.get(home, ()))
        for name, kind, digest in wanted:
            same = [one for one in left if one[2] == digest]
            match = next((one for one in same if one[:2] == (name, kind)), None)
            match = match or next((one for one in same if one[1] == kind), same[0] if same else None)
            groups.add(name, "no such fusion" if match is None else "fused", "fused")
            if match is not None:
                left.remove(match)
                kinds.add(name, match[1], kind)
        for name, _, _ in left:
            groups.add(name, "fused", "no such fusion")
    return {"groups": groups, "kinds": kinds}


def _fusions(module: HloModule) -> dict[str, list[tuple[str, str, bytes]]]:
    found: dict[str, list[tuple[str, str, bytes]]] = {}
    done: dict[HloComputation, bytes] = {}
    for computation in module.post_order():
        computation_hash(computation, done)
    for computation in module.computations:
        if computation.is_fusion:
            continue
        for one in computation.instructions:
            if one.opcode == "fusion":
                entry = (one.name, str(one.attr("kind")), done[one.callee()])
                found.setdefault(computation.name, []).append(entry)
    return found
