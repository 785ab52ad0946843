"""One producer and one consumer: the decider's verdict on them, the numbers, and edits of the HLO that turn it round.

The pair is cut out into a small module of its own (with the producer's other users, which have a say); an edit counts
when the decider answers otherwise on the edited module. Nothing is guessed: every flip was tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import shape_bytes
from hloscope.core.analysis.cost_units import microseconds
from hloscope.core.analysis.device import load_device
from hloscope.core.analysis.elementwise import is_generally_fusible
from hloscope.core.errors import HloscopeError, UsageError
from hloscope.core.fusion.deciders import decide
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.module import HloModule
from hloscope.core.hlo.shape import Shape
from hloscope.core.hlo.verifier.verify import verify
from hloscope.core.text import load_module, print_module

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.fusion.decision import Decision

MAX_TRIES = 60
"""Edits that are tried."""
MAX_ROUNDS = 4
"""How far around a pair its surroundings are taken along, until it is decided as in its module."""
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]+)\]")
_TYPES = (("f32", "bf16"), ("bf16", "f32"), ("f16", "f32"), ("f64", "f32"))


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """The core's answer on a pair."""

    verdict: str
    """``fused``; ``refused``: this edge, or no benefit; ``ineligible``: another user of the producer refuses."""
    code: str | None = None
    reason: str | None = None
    numbers: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    change: str = ""
    """Which fact would have to be different."""
    refused_by: str | None = None
    """The other user that refuses."""


@dataclass(frozen=True, slots=True)
class Flip:
    """An edit after which the pair is fused."""

    change: str
    verdict: str
    code: str | None
    reason: str | None
    module: str
    """The edited pair as HLO text."""
    us_saved: float | None = None
    proven_by: tuple[str, ...] = ("core",)


NO_BENEFIT = "no_benefit"


def find_pair(module: HloModule, producer: str, consumer: str) -> tuple[HloInstruction, HloInstruction]:
    """The two instructions, outside of fusion bodies. Raises UsageError where they are not producer and reader."""
    found: dict[str, HloInstruction] = {}
    for computation in module.computations:
        if not computation.is_fusion:
            for one in computation.instructions:
                if one.name in (producer, consumer):
                    found[one.name] = one
    for name in (producer, consumer):
        if name not in found:
            raise UsageError(f"no instruction {name!r} before the fusion pass")
    a, b = found[producer], found[consumer]
    if a not in b.operands:
        other = f"{producer!r} reads {consumer!r}" if b in a.operands else f"{consumer!r} does not read {producer!r}"
        raise UsageError(f"{other}: give the producer first, then an instruction that reads it")
    return a, b


def judge(
    module: HloModule, producer: str, consumer: str, backend: str, device: DeviceDescription | None = None
) -> PairVerdict:
    """The verdict of a backend's decider on a pair; the module may be changed. Raises UsageError for no such pair."""
    a, b = find_pair(module, producer, consumer)
    if backend == "gpu":
        return _judge_gpu(module, a, b, device if device is not None else load_device())
    return _judge_by_running(module, producer, consumer, backend)


# ---------------------------------------------------------------- GPU
def _judge_gpu(module: HloModule, a: HloInstruction, b: HloInstruction, device: DeviceDescription) -> PairVerdict:
    from hloscope.core.fusion.gpu.can_fuse import (
        ONLY_BITCASTS,
        can_fuse,
        can_fuse_constant,
        is_fusible,
        is_fusible_bitcast,
    )
    from hloscope.core.fusion.gpu.kernels import explain
    from hloscope.core.fusion.gpu.model import GpuModel

    model = GpuModel(device)
    model.number(module)
    numbers: dict[str, object] = {"bytes": shape_bytes(a.shape) if a.shape.is_array else None, "users": a.user_count}
    if a.opcode == "constant":
        decision = can_fuse_constant(a, b, device)
        return _verdict(decision, numbers)
    if is_fusible_bitcast(b):
        return PairVerdict("refused", "consumer_is_a_bitcast", can_fuse(a, b, model).reason, numbers, "see its users")
    decision = can_fuse(a, b, model)
    if is_fusible(a) and is_fusible(b):
        numbers |= {"producer": explain(model.run_time(a)), "consumer": explain(model.run_time(b))}
    if not decision:
        return _verdict(decision, numbers)
    numbers["fused"] = explain(model.pair(a, b))
    if is_fusible_bitcast(a):
        return PairVerdict("fused", None, None, numbers)
    asked = [user for user in a.users if not is_fusible_bitcast(user)]
    for user in asked:
        other = can_fuse(a, user, model)
        if not other:
            made = _verdict(other, numbers)
            return PairVerdict("ineligible", made.code, made.reason, made.numbers, made.change, user.name)
    if not asked:
        return PairVerdict("ineligible", None, ONLY_BITCASTS, numbers)
    unfused, fused = model.estimate(a, a.users)
    numbers |= {"us_unfused": microseconds(unfused), "us_fused": microseconds(fused)}
    numbers["us_saved"] = microseconds(unfused - fused)
    if unfused < fused:
        return PairVerdict(
            "refused",
            NO_BENEFIT,
            "fusing it into all its users would take longer than keeping it apart",
            numbers,
            "less computed or read again in the users",
        )
    return PairVerdict("fused", None, None, numbers)


def _verdict(decision: Decision, numbers: Mapping[str, object]) -> PairVerdict:
    verdict = "fused" if decision else "refused"
    return PairVerdict(verdict, decision.code, decision.reason, {**numbers, **decision.numbers}, decision.change)


# ---------------------------------------------------------------- other back ends
def _judge_by_running(module: HloModule, producer: str, consumer: str, backend: str) -> PairVerdict:
    a, _ = find_pair(module, producer, consumer)
    opcode, fusible = a.opcode, is_generally_fusible(a)
    holds: dict[str, set[str]] = {}
    last: PairVerdict | None = None
    for one in decide(module, backend).decisions:
        reader = one.consumers[0] if one.consumers else ""
        inside = holds.get(reader, {reader})
        if one.subject == producer and consumer in inside:
            numbers: dict[str, object] = {"bytes": one.bytes, "step": one.step}
            last = PairVerdict(one.verdict or "", one.code, one.reason, numbers)
            if one.verdict == "fused":
                return last
        if one.verdict == "fused" and one.made is not None:
            holds[one.made] = inside | holds.get(one.subject or "", {one.subject or ""})
    if last is None and not fusible:
        return PairVerdict("refused", "not_fusible", f"a {opcode} cannot be part of a fusion")
    if last is None:
        return PairVerdict("refused", "not_asked", "the pass never asked about this edge")
    return last


# ---------------------------------------------------------------- the pair alone
def cut_out(module: HloModule, producer: str, consumer: str, rounds: int = 0) -> HloModule:
    """A module of the producer, all its users, and `rounds` times the users of these. Names stay.

    Whatever else they read is a parameter; what is read outside, or by nobody, is part of the result.
    """
    a, _ = find_pair(module, producer, consumer)
    near = {a, *a.users}
    for _ in range(rounds):
        near.update([user for one in near for user in one.users if user.opcode not in ("tuple", "get-tuple-element")])
    kept = [one for one in a.parent.post_order() if one in near]
    made = HloModule("pair")
    callees: dict[HloComputation, HloComputation] = {}
    for one in kept:
        for computation in one.called_computations:
            _bring(computation, made, callees)
    entry = HloComputation("pair_entry")
    made.add_computation(entry, entry=True)
    copies: dict[HloInstruction, HloInstruction] = {}
    outside = list(dict.fromkeys(operand for one in kept for operand in one.operands if operand not in near))
    numbered = 0
    for one in outside:
        if one.opcode == "constant":
            copies[one] = entry.add(one.clone_with(), keep_name=True)
        else:
            parameter = HloInstruction("parameter", one.shape, name=one.name, payload=str(numbered))
            copies[one] = entry.add(parameter, keep_name=True)
            numbered += 1
    for one in kept:
        clone = one.clone_with(operands=[copies[operand] for operand in one.operands])
        for key, group in one.called.items():
            clone.set_called(key, tuple(callees[each] for each in group))
        for key in ("metadata", "sharding", "control-predecessors"):
            clone.set_attr(key, None)
        copies[one] = entry.add(clone, keep_name=True)
    results = [copies[one] for one in kept if not one.users or any(user not in near for user in one.users)]
    entry.set_root(entry.add(HloInstruction("tuple", Shape.tuple_([one.shape for one in results]), results)))
    return made


def _bring(computation: HloComputation, made: HloModule, callees: dict[HloComputation, HloComputation]) -> None:
    if computation in callees:
        return
    for one in computation.instructions:
        for inner in one.called_computations:
            _bring(inner, made, callees)
    twin = HloComputation(computation.name)
    made.add_computation(twin, keep_name=True)
    computation.clone_into(twin, callees)
    callees[computation] = twin


# ---------------------------------------------------------------- edits
def flips(
    module: HloModule, producer: str, consumer: str, backend: str, device: DeviceDescription | None = None
) -> tuple[list[Flip], str | None]:
    """Edits of the pair after which it is fused, and a note where none could be looked for."""
    wanted = judge(module.clone(), producer, consumer, backend, device)
    text = ""
    alone: HloModule | None = None
    for rounds in range(MAX_ROUNDS):
        try:
            candidate = cut_out(module, producer, consumer, rounds)
            text = print_module(candidate)
            base = judge(load_module(text), producer, consumer, backend, device)
        except HloscopeError as error:
            return [], f"the pair cannot be cut out of its module: {error.message}"
        if (base.verdict, base.code) == (wanted.verdict, wanted.code):
            alone = candidate
            break
    if alone is None:
        return [], "the pair alone is decided otherwise than in its module, so no edits of it were tried"
    found: list[Flip] = []
    asked = 0
    for tries, (change, edited) in enumerate(_edits(text, alone, producer, consumer)):
        if tries >= MAX_TRIES:
            break
        try:
            candidate = load_module(edited)
            if verify(candidate, first_only=True):
                continue
            answer = judge(candidate, producer, consumer, backend, device)
        except HloscopeError:
            continue
        asked += 1
        if answer.verdict == "fused":
            saved = answer.numbers.get("us_saved")
            saved = saved if isinstance(saved, float) else None
            found.append(Flip(change, answer.verdict, answer.code, answer.reason, edited, saved))
    if not found:
        return [], f"{asked} edits of users, element types and sizes were tried, and none turns it round"
    return found, None


def _edits(text: str, module: HloModule, producer: str, consumer: str) -> Iterator[tuple[str, str]]:
    """Small edits, the mildest first: users removed, element types, sizes of dimensions."""
    a, b = find_pair(module, producer, consumer)
    others = [one.name for one in a.users if one is not b]
    if others:
        yield f"only %{consumer} reads %{producer} (its other users removed)", _without(text, others)
        if len(others) > 1:
            for name in others:
                yield f"%{name} does not read %{producer}", _without(text, [name])
    kinds = {found[1] for found in _SHAPE.finditer(text)}
    for old, new in _TYPES:
        if old in kinds:
            yield f"{old} becomes {new} in both", re.sub(rf"\b{old}\[", f"{new}[", text)
    sizes = sorted({int(size) for found in _SHAPE.finditer(text) for size in found[2].split(",")}, reverse=True)
    for size in sizes:
        if size == 1:
            continue
        for other in (8, max(1, size // 4), size * 4, 1):
            if other != size:
                yield f"dimensions of size {size} have size {other}", _resized(text, size, other)


def _without(text: str, names: list[str]) -> str:
    """The pair without some users of the producer."""
    module = load_module(text)
    entry = module.entry
    root = entry.root
    left = [one for one in root.operands if one.name not in names]
    new = entry.add(HloInstruction("tuple", Shape.tuple_([one.shape for one in left]), left))
    entry.set_root(new)
    entry.remove(root)
    for one in entry.instructions:
        if one.name in names and not one.user_count:
            entry.remove(one)
    for one in entry.instructions:
        if one.opcode == "constant" and not one.user_count:
            entry.remove(one)
    return print_module(module)


def _resized(text: str, size: int, other: int) -> str:
    def shape(found: re.Match[str]) -> str:
        dims = [str(other) if dim == str(size) else dim for dim in found[2].split(",")]
        return f"{found[1]}[{','.join(dims)}]"

    header = re.sub(r"entry_computation_layout=\{.*?\}(?=[,\n])", "", text, count=1)
    made = _SHAPE.sub(shape, header)
    made = re.sub(rf"\[0:{size}\]", f"[0:{other}]", made)
    return re.sub(rf"(dynamic_slice_sizes=\{{[^}}]*)\b{size}\b", rf"\g<1>{other}", made)
