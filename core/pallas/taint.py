"""Where the padding of a partial last block goes: from the loads of it, through the kernel, to what is stored.

A value is tainted *along* axes: beyond some position of such an axis its elements come from padding. Elementwise
operations keep that, a select or a product with a mask made from an iota takes it away, and a reduction, contraction or
scan over a tainted axis makes every element of its result garbage (*spoilt*, remembered with the statement that did
it). Spoilt values that are stored are a finding; values tainted along an axis that the output's own padding cuts off
are not. Operations that are not known spoil nothing and are listed instead: the analysis then says that it cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hloscope.core.pallas.index_map import INLINED
from hloscope.core.pallas.jaxpr import Atom, Equation, Indexer, Jaxpr, Literal, Slice, Span

PURE_ELEMENTWISE = frozenset(
    "neg sin cos tan asin acos atan sinh cosh tanh exp exp2 log log1p expm1 sqrt rsqrt cbrt abs sign floor ceil round "
    "logistic square reciprocal erf erf_inv erfc integer_pow not population_count clz stop_gradient copy multiple_of "
    "add sub mul div rem max min pow atan2 nextafter and or xor shift_left shift_right_logical add_any "
    "reduce_precision shift_right_arithmetic eq ne lt le gt ge clamp convert_element_type is_finite".split()
)
REDUCTIONS = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin".split()
)
SCANS = frozenset("cumsum cumprod cummax cummin cumlogsumexp sort top_k".split())


@dataclass(frozen=True, slots=True)
class Taint:
    """What is known of one value."""

    axes: frozenset[int] = frozenset()
    """Axes along which elements come from padding."""
    source: str = ""
    """The operand whose padding it is."""
    spoilt: tuple[Equation, Span | None] | None = None
    """The statement that mixed padding into every element."""
    masks: bool = False
    """Whether it tells positions apart: made from an iota, so that selecting by it may cut padding off."""

    @property
    def clean(self) -> bool:
        """Whether no padding is in it."""
        return not self.axes and self.spoilt is None


CLEAN = Taint()


@dataclass(frozen=True, slots=True)
class Leak:
    """Padding that is stored where it is kept."""

    source: str
    spoiler: tuple[Equation, Span | None] | None
    """The statement that mixed it in; None where padding is stored as it is."""
    store: Equation
    store_at: Span | None
    target: int
    """Position of the reference among the kernel's inputs."""


@dataclass(slots=True)
class _Flow:
    refs: dict[int, int]
    """Variable -> position among the kernel's inputs, for references."""
    padded: Mapping[int, tuple[frozenset[int], str]]
    """Position -> (axes of the reference that hold padding, its name)."""
    left_out: frozenset[int] = frozenset()
    """Identities of loads whose padding gets nowhere."""
    memory: dict[int, Taint] = field(default_factory=dict[int, Taint])
    """Scratch and outputs: what was stored there."""
    leaks: list[Leak] = field(default_factory=list[Leak])
    unknown: list[tuple[Equation, Span | None]] = field(default_factory=list[tuple[Equation, Span | None]])


def padding_leaks(
    kernel: Jaxpr,
    padded: Mapping[int, tuple[frozenset[int], str]],
    outputs: Mapping[int, frozenset[int]],
    left_out: frozenset[int] = frozenset(),
) -> tuple[list[Leak], list[tuple[Equation, Span | None]]]:
    """Stores that keep padding, and statements that stop the analysis.

    ``padded`` gives for each padded input its reference's padded axes; ``outputs`` for each output the axes of its
    reference whose overhang is dropped when the block is written back. ``left_out`` are identities of loads which a
    select leaves out wherever their block holds padding.
    """
    flow = _Flow({variable: position for position, variable in enumerate(kernel.inputs)}, padded, left_out)
    for _ in range(3):  # what one step leaves in scratch or outputs is there in the next one
        before = dict(flow.memory)
        flow.leaks, flow.unknown = [], []
        _walk(flow, kernel, {}, None, outputs)
        if flow.memory == before:
            break
    seen: set[tuple[int, object]] = set()
    unique: list[Leak] = []
    for leak in flow.leaks:
        key = (leak.target, leak.spoiler[1] if leak.spoiler else leak.store_at)
        if key not in seen:
            seen.add(key)
            unique.append(leak)
    return unique, flow.unknown


def _walk(
    flow: _Flow, jaxpr: Jaxpr, given: Mapping[int, Taint], outer: Span | None, outputs: Mapping[int, frozenset[int]]
) -> list[Taint]:
    known: dict[int, Taint] = dict(given)

    def read(atom: Atom) -> Taint:
        return CLEAN if isinstance(atom, Literal) else known.get(atom, CLEAN)

    for equation in jaxpr.equations:
        place = equation.place or outer
        results = _step(flow, equation, [read(atom) for atom in equation.inputs], place, jaxpr, outputs)
        for variable, taint in zip(equation.outputs, results, strict=True):
            if variable is not None:
                known[variable] = taint
    return [read(atom) for atom in jaxpr.outputs]


def _step(
    flow: _Flow,
    equation: Equation,
    operands: Sequence[Taint],
    place: Span | None,
    jaxpr: Jaxpr,
    outputs: Mapping[int, frozenset[int]],
) -> Sequence[Taint]:
    name = equation.primitive
    count = len(equation.outputs)
    if name in ("get", "masked_load", "swap", "masked_swap", "addupdate"):
        return _memory(flow, equation, operands, place, outputs)
    if name in ("cond", "scan", "while", "run_scoped") or name in INLINED:
        return _nested(flow, equation, operands, place, outputs)
    if name == "iota":
        return [Taint(masks=True)]
    if all(one.clean for one in operands):
        masks = any(one.masks for one in operands)
        return [Taint(masks=masks)] * count
    spoilt = next((one for one in operands if one.spoilt is not None), None)
    if name == "select_n":
        if operands[0].masks and operands[0].clean:
            kept = next((one for one in operands[1:] if one.spoilt is not None), None)
            return [CLEAN if kept is None else kept]
        return [_joined(operands)]
    if name in PURE_ELEMENTWISE:
        return [_joined(operands)] * count
    if spoilt is not None:
        return [spoilt] * count
    source = next(one for one in operands if not one.clean)
    if name == "broadcast_in_dim":
        dims = equation.params["broadcast_dimensions"]
        return [Taint(frozenset(dims[axis] for axis in source.axes), source.source)]
    if name == "transpose":
        order = equation.params["permutation"]
        return [Taint(frozenset(new for new, old in enumerate(order) if old in source.axes), source.source)]
    if name in ("squeeze", "expand_dims", "reshape"):
        moved = _reshaped(equation, source, jaxpr)
        if moved is not None:
            return [moved]
    if name in REDUCTIONS:
        axes = set(equation.params["axes"])
        if axes & source.axes:
            return [Taint(source=source.source, spoilt=(equation, place))] * count
        keep = [d for d in range(max((*source.axes, *axes), default=0) + 1) if d not in axes]
        return [Taint(frozenset(keep.index(axis) for axis in source.axes), source.source)] * count
    if name in SCANS:
        axis = equation.params.get("axis", equation.params.get("dimension", -1))
        if axis in source.axes or axis == -1:
            return [Taint(source=source.source, spoilt=(equation, place))] * count
        return [source] * count
    if name == "dot_general":
        return [_dot(equation, operands, place, jaxpr)]
    if name == "concatenate":
        return [_joined(operands)]
    flow.unknown.append((equation, place))
    return [CLEAN] * count


def _joined(operands: Sequence[Taint]) -> Taint:
    spoilt = next((one for one in operands if one.spoilt is not None), None)
    if spoilt is not None:
        return spoilt
    axes = frozenset(axis for one in operands for axis in one.axes)
    return Taint(
        axes, next((one.source for one in operands if one.source), ""), masks=any(one.masks for one in operands)
    )


def _dot(equation: Equation, operands: Sequence[Taint], place: Span | None, jaxpr: Jaxpr) -> Taint:
    (left, right), (left_batch, right_batch) = equation.params["dimension_numbers"]
    result: set[int] = set()
    source = ""
    offset = len(left_batch)
    for atom, taint, contracted, batch in zip(
        equation.inputs, operands, (left, right), (left_batch, right_batch), strict=True
    ):
        if taint.axes & set(contracted):
            return Taint(source=taint.source, spoilt=(equation, place))
        source = source or taint.source
        rank = len((atom.aval if isinstance(atom, Literal) else jaxpr.avals[atom]).shape)
        free = [d for d in range(rank) if d not in contracted and d not in batch]
        for axis in taint.axes:
            result.add(batch.index(axis) if axis in batch else offset + free.index(axis))
        offset += len(free)
    return Taint(frozenset(result), source)


def _reshaped(equation: Equation, source: Taint, jaxpr: Jaxpr) -> Taint | None:
    """Tainted axes through a reshape that only adds or drops dimensions of 1."""
    atom = equation.inputs[0]
    before = atom.aval.shape if isinstance(atom, Literal) else jaxpr.avals[atom].shape
    after = equation.out_avals[0].shape
    if [n for n in before if n != 1] != [n for n in after if n != 1]:
        return None
    places = [d for d, n in enumerate(after) if n != 1]
    number = -1
    moved: set[int] = set()
    for d, n in enumerate(before):
        if n != 1:
            number += 1
            if d in source.axes:
                moved.add(places[number])
    return Taint(frozenset(moved), source.source)


def _nested(
    flow: _Flow,
    equation: Equation,
    operands: Sequence[Taint],
    place: Span | None,
    outputs: Mapping[int, frozenset[int]],
) -> Sequence[Taint]:
    name, params = equation.primitive, equation.params
    count = len(equation.outputs)

    def enter(inner: Jaxpr, atoms: Sequence[Atom], taints: Sequence[Taint], skip: Sequence[int] = ()) -> list[Taint]:
        variables = [v for v in (*inner.consts, *inner.inputs) if v not in skip] if skip else [*inner.inputs]
        given: dict[int, Taint] = {}
        for variable, atom, taint in zip(variables, atoms, taints, strict=False):
            given[variable] = taint
            if not isinstance(atom, Literal) and atom in flow.refs:
                flow.refs[variable] = flow.refs[atom]
        return _walk(flow, inner, given, place, outputs)

    if name == "cond":
        branches = [
            enter(one, equation.inputs[1:], operands[1:]) for one in cast("Sequence[Jaxpr]", params["branches"])
        ]
        return [_joined(column) for column in zip(*branches, strict=True)]
    if name == "run_scoped":
        inner = cast("Jaxpr", params["jaxpr"])
        for variable in inner.inputs:
            flow.refs[variable] = -variable - 1
        closed = Jaxpr((), (), (*inner.consts,), inner.equations, inner.outputs, inner.avals)
        return enter(closed, equation.inputs, operands)
    if name == "scan":
        inner = cast("Jaxpr", params["jaxpr"])
        consts, carried = int(params["num_consts"]), int(params["num_carry"])
        state = list(operands)
        results: list[Taint] = [CLEAN] * count
        for _ in range(3):
            elements = [
                Taint(frozenset(a - 1 for a in one.axes if a), one.source, one.spoilt)
                for one in state[consts + carried :]
            ]
            results = enter(inner, equation.inputs, [*state[: consts + carried], *elements])
            merged = [_joined([a, b]) for a, b in zip(state[consts : consts + carried], results[:carried], strict=True)]
            if merged == state[consts : consts + carried]:
                break
            state[consts : consts + carried] = merged
        stacked = [Taint(frozenset(a + 1 for a in one.axes), one.source, one.spoilt) for one in results[carried:]]
        return [*state[consts : consts + carried], *stacked]
    if name == "while":
        first, second = int(params["cond_nconsts"]), int(params["body_nconsts"])
        state = list(operands[first + second :])
        body = cast("Jaxpr", params["body_jaxpr"])
        for _ in range(3):
            results = enter(body, equation.inputs[first:], [*operands[first : first + second], *state])
            merged = [_joined([a, b]) for a, b in zip(state, results, strict=True)]
            if merged == state:
                break
            state = merged
        return state
    inner_call = params.get("jaxpr") or params.get("call_jaxpr")
    if isinstance(inner_call, Jaxpr):
        return enter(inner_call, equation.inputs, operands)
    flow.unknown.append((equation, place))
    return [CLEAN] * count


def _memory(
    flow: _Flow,
    equation: Equation,
    operands: Sequence[Taint],
    place: Span | None,
    outputs: Mapping[int, frozenset[int]],
) -> Sequence[Taint]:
    count = len(equation.outputs)
    for kind, atom, transforms, value in _accesses(equation, operands):
        if isinstance(atom, Literal) or atom not in flow.refs:
            continue
        position = flow.refs[atom]
        if kind == "read":
            if position in flow.padded:
                if id(equation) in flow.left_out:
                    return [CLEAN] * count
                axes, name = flow.padded[position]
                kept = _visible(axes, transforms)
                return [Taint(kept, name)] if kept is not None else [CLEAN]
            return [flow.memory.get(position, CLEAN)] * count
        if value.clean:
            continue  # what was there before stays possible: the store may be partial or under a condition
        if position in outputs:
            lost = outputs[position]
            if value.spoilt is not None or not value.axes <= lost:
                flow.leaks.append(Leak(value.source, value.spoilt, equation, place, position))
        flow.memory[position] = _joined([flow.memory.get(position, CLEAN), value])
    return [CLEAN] * count


def _accesses(equation: Equation, operands: Sequence[Taint]) -> Iterator[tuple[str, Atom, Sequence[Any], Taint]]:
    name, inputs = equation.primitive, equation.inputs
    if name == "get":
        yield "read", inputs[0], equation.params["tree"], CLEAN
    elif name in ("swap", "addupdate"):
        yield "write", inputs[0], equation.params["tree"], operands[1]
    elif name == "masked_load":
        ref, transforms, mask, _ = equation.params["args_tree"]
        taint = operands[mask.index] if mask is not None else CLEAN
        if not taint.masks:
            yield "read", inputs[ref.index], transforms, CLEAN
    elif name == "masked_swap":
        ref, transforms, value, _ = equation.params["args_tree"]
        yield "write", inputs[ref.index], transforms, operands[value.index]


def _visible(axes: frozenset[int], transforms: Sequence[Any]) -> frozenset[int] | None:
    """Padded axes of what a load gives; None where a partial slice may leave the padding out."""
    if not transforms:
        return axes
    if len(transforms) != 1 or not isinstance(transforms[0], Indexer) or transforms[0].int_shape:
        return None
    kept: set[int] = set()
    out = 0
    for dim, (entry, extent) in enumerate(zip(transforms[0].indices, transforms[0].shape, strict=True)):
        if isinstance(entry, Slice):
            if dim in axes:
                if entry.start != 0 or entry.size != extent:
                    return None
                kept.add(out)
            out += 1
        elif dim in axes:
            return None
    return frozenset(kept)
