"""``layout-assignment``: gives every array a dimension order, and adds copies where two orders meet.

Rounds of propagation, at least two: in the first, computations find their own layouts; in the second they are held to
what their callers and callees found. Layouts that are there already are not cleared before: some rules read them.
Source: ``openxla/xla:xla/service/layout_assignment.cc#RunImpl``, ``xla/service/cpu/cpu_layout_assignment.cc``,
``xla/backends/gpu/transforms/layout_assignment.cc``.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.device import device_names
from hloscope.core.errors import InternalError, UnsupportedError, UsageError, VerifyError
from hloscope.core.hlo.shape import Shape
from hloscope.core.layout.backend import Backend
from hloscope.core.layout.conditions import GENERIC_GPUS, gpu_backend, of_flags
from hloscope.core.layout.constraints import BEGINNING_PRIORITY, DEFAULT_PRIORITY, GIVEN_PRIORITY, ComputationConstraint
from hloscope.core.layout.copies import CopyMade, Writer
from hloscope.core.layout.cpu import CpuBackend
from hloscope.core.layout.malformed import told_by_the_verifier
from hloscope.core.layout.mandatory import (
    ROUNDS,
    add_custom_calls,
    add_mandatory,
    entry_any_set,
    note_channels,
    settle_interfaces,
)
from hloscope.core.layout.orders import map_leaves, order_of, with_leaf_layout, with_order
from hloscope.core.layout.prepare import prepare
from hloscope.core.layout.propagation import propagate
from hloscope.core.layout.state import EntryLayout, LayoutState

if TYPE_CHECKING:
    from collections.abc import Generator

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.layout import Layout
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import ShapeIndex
    from hloscope.core.passes.context import PassContext

TPUS = ("tpu", "v5e")
"""Targets whose layout assignment is not public."""

MAX_ROUNDS = 20
"""Rounds after which input/output aliasing counts as unsolvable."""


@dataclass(frozen=True)
class LayoutAssignment:
    """The pass."""

    backend: str = ""
    """``cpu``, ``gpu``, a GPU's name or ``base`` (XLA's rules without a backend's own); empty means the target's."""

    name = "layout-assignment"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Assign layouts. Raises UnsupportedError for a target whose constraints are not known, VerifyError for a
        module that cannot be laid out."""
        backend = of_flags(ctx.flags).on(backend_of(self.backend or ctx.target))
        return assign_layouts(module, backend, ctx).changed


def backend_of(target: str) -> Backend:
    """The backend of a target: ``cpu``, ``base``, ``gpu``, or a GPU by its name or the file that describes it.

    Raises UnsupportedError, UsageError for a word that is none, ParseError for a file that describes no GPU.
    """
    word = target.lower()
    if word in ("cpu", "core"):
        return CpuBackend()
    if word == "base":
        return Backend()
    if word in TPUS:
        raise UnsupportedError("layout assignment for tpu is not open source", hint="backends are cpu, gpu and base")
    found = gpu_backend(word if word in GENERIC_GPUS else target)
    if found is None:
        raise UsageError(
            f"no layout backend {target!r}",
            hint=f"there are cpu, gpu, base, {', '.join(device_names())}, or a file that describes a GPU",
        )
    return found


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a run found."""

    changed: bool
    copies: tuple[CopyMade, ...]
    prepared: tuple[HloInstruction, ...]
    """Copies that were made before layouts were chosen."""
    state: LayoutState
    """Every constraint as it was in the last round."""


def assign_layouts(module: HloModule, backend: Backend, ctx: PassContext, *, remember: bool = False) -> Assignment:
    """Lay a module out, in place. With `remember`, requests that lost are kept beside those that won."""
    _refuse_what_is_not_known(module)
    with told_by_the_verifier(module), _without_collection():
        return _assign(module, backend, ctx, remember=remember)


@contextmanager
def _without_collection() -> Generator[None, None, None]:
    """All of the thousands of constraints stay; looking for garbage among them costs a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _assign(module: HloModule, backend: Backend, ctx: PassContext, *, remember: bool) -> Assignment:
    prepared = prepare(module)
    entry, written = entry_layout_of(module)
    _check_entry(module.entry, entry)
    computations = [one for one in module.post_order() if not _is_embedded_in_fusion(one)]
    state = LayoutState(module, backend, ctx, entry, computations, remember=remember)
    given = entry_any_set(entry)
    if given:
        state.interfaces[module.entry] = ComputationConstraint(
            module.entry, list(entry.parameters), entry.result, given=True, priority=GIVEN_PRIORITY
        )
    else:
        state.interfaces[module.entry] = ComputationConstraint(
            module.entry,
            [one.shape.with_default_layout() for one in module.entry.parameters],
            module.entry.root.shape.with_default_layout(),
            given=False,
            priority=DEFAULT_PRIORITY,
        )
    again, number = True, 0
    while again or number < ROUNDS:
        state.begin_round()
        for computation in computations:
            _run_on(state, computation)
        state.priority += 1
        again = _resolve_aliasing(state)
        number += 1
        if number > MAX_ROUNDS:
            raise VerifyError("inputs and outputs that share a buffer cannot be given one layout")
    writer = Writer(state)
    for computation in computations:
        writer.write(computation)
    writer.note_prepared(prepared)
    changed = writer.changed or bool(prepared)
    changed |= _write_entry_layout(state, written)
    return Assignment(changed, tuple(writer.made), tuple(prepared), state)


def is_past_layouts(module: HloModule) -> bool:
    """Whether a module has been through layout assignment: it is scheduled, or has fusions or bitcasts."""
    return module.is_scheduled or any(
        instruction.opcode in ("fusion", "bitcast")
        for computation in module.computations
        for instruction in computation.instructions
    )


def _run_on(state: LayoutState, computation: HloComputation) -> None:
    open_buffers = {
        buffer.id: buffer
        for instruction in computation.instructions
        for buffers in state.points_to.of(instruction).values()
        for buffer in buffers
        if buffer.shape.is_array and buffer.instruction is instruction
    }
    state.unconstrained.update(open_buffers)
    add_mandatory(state, computation)
    state.backend.constrain(state, computation)
    add_custom_calls(state, computation)
    propagate(state)
    for number in sorted(open_buffers):
        if number in state.unconstrained:
            buffer = open_buffers[number]
            if buffer.instruction.opcode == "constant":
                layout, rule = _literal_layout(buffer.instruction, buffer.index), "literal"
            else:
                layout, rule = state.backend.unconstrained_layout(buffer), "default"
            state.set_buffer(buffer, layout, state.request(rule, mandatory=False), gated=False)
            propagate(state)
    settle_interfaces(state, computation)
    note_channels(state, computation)


def _literal_layout(constant: HloInstruction, index: ShapeIndex) -> Layout:
    """The layout that the constant's elements are written in."""
    leaf = constant.shape.sub(index).with_default_layout()
    assert leaf.layout is not None
    return leaf.layout


def _is_embedded_in_fusion(computation: HloComputation) -> bool:
    return computation.is_fusion


def _refuse_what_is_not_known(module: HloModule) -> None:
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "bitcast" and not computation.is_fusion:
                raise VerifyError(f"%{instruction.name} is a bitcast, which has no meaning before layouts are assigned")


# ---------------------------------------------------------------- the entry
def entry_layout_of(module: HloModule) -> tuple[EntryLayout, bool]:
    """The entry's layout as the header gives it, and whether it does; else that of its instructions."""
    found = module.entry_layout()
    if found is not None:
        parameters, result = found
        return EntryLayout(list(parameters), result), True
    entry = module.entry
    return EntryLayout(
        [one.shape.with_default_layout() for one in entry.parameters], entry.root.shape.with_default_layout()
    ), False


def _check_entry(entry: HloComputation, layout: EntryLayout) -> None:
    if len(layout.parameters) != len(entry.parameters):
        raise VerifyError(
            f"the entry layout has {len(layout.parameters)} parameters, the entry {len(entry.parameters)}"
        )
    pairs = zip(layout.parameters, (one.shape for one in entry.parameters), strict=True)
    for number, (wanted, shape) in enumerate(pairs):
        if not wanted.static().compatible(shape.static()):
            raise VerifyError(f"entry parameter {number} is {shape}, its layout is of {wanted}")
    if not layout.result.static().compatible(entry.root.shape.static()):
        raise VerifyError(f"the entry result is {entry.root.shape}, its layout is of {layout.result}")


def _resolve_aliasing(state: LayoutState) -> bool:
    """Parameters and results that share a buffer share a layout; returns whether another round is needed."""
    from hloscope.core.hlo.verifier.module_rules import entry_aliases

    module = state.module
    aliases = entry_aliases(module.attrs.get("input_output_alias", "{}"))
    if not aliases:
        return False
    entry, interface, changed = module.entry, state.interface(module.entry), False
    for alias in aliases:
        number, index, out = alias.parameter, alias.parameter_index, alias.output_index
        parameter_given = order_of(state.given.parameters[number].sub(index)) is not None
        if parameter_given and order_of(state.given.result.sub(out)) is not None:
            continue
        parameter = state.array_layout(entry.parameters[number], index)
        result = state.array_layout(entry.root, out)
        if parameter is None or result is None:
            raise InternalError("an aliased value of the entry has no layout")
        if parameter.minor_to_major == result.minor_to_major:
            continue
        changed = True
        chosen = parameter if parameter_given else result
        for target in (state.entry_layout, interface):
            target.parameters[number] = with_leaf_layout(target.parameters[number], index, chosen)
            target.result = with_leaf_layout(target.result, out, chosen)
    return changed


def _write_entry_layout(state: LayoutState, written: bool) -> bool:
    """Fill what the entry layout left open, and write it into the header where that changes it."""
    entry = state.module.entry
    parameters = [
        _filled(wanted, one.shape) for wanted, one in zip(state.entry_layout.parameters, entry.parameters, strict=True)
    ]
    result = _filled(state.entry_layout.result, entry.root.shape)
    if written and parameters == state.given.parameters and result == state.given.result:
        return False
    text = f"{{{Shape.tuple_(parameters)}->{result}}}"
    changed = state.module.attrs.get("entry_computation_layout") != text
    attrs = dict(state.module.attrs)
    if "entry_computation_layout" in attrs:
        attrs["entry_computation_layout"] = text
        state.module.attrs = attrs
    else:
        state.module.attrs = {**_before(attrs), "entry_computation_layout": text, **_after(attrs)}
    return changed


_FIRST_ATTRIBUTES = ("is_scheduled", "input_output_alias", "buffer_donor", "alias_passthrough_params")


def _before(attrs: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in attrs.items() if k in _FIRST_ATTRIBUTES}


def _after(attrs: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in attrs.items() if k not in _FIRST_ATTRIBUTES}


def _filled(wanted: Shape, shape: Shape) -> Shape:
    """`wanted` with the layouts that were found where it has none; memory spaces stay."""
    if all(leaf.layout is not None or not leaf.is_array or not leaf.dimensions for _, leaf in wanted.leaves()):
        return wanted

    def leaf_of(index: ShapeIndex, leaf: Shape) -> Shape:
        found = shape.sub(index).layout
        return leaf if leaf.layout is not None or found is None else with_order(leaf, found)

    return map_leaves(wanted, leaf_of)


__all__ = [
    "BEGINNING_PRIORITY",
    "Assignment",
    "LayoutAssignment",
    "assign_layouts",
    "backend_of",
    "entry_layout_of",
    "is_past_layouts",
]
