"""What holds of the module as a whole: entry layout, schedule, aliasing, donors, all-reduces, original values.

Source: ``openxla/xla:xla/service/hlo_verifier.cc#VerifyEntryComputationLayout, #VerifyLayoutConstrainedAllReduce,
#VerifyOriginalValue``, ``xla/hlo/ir/hlo_schedule.cc#Verify``, ``xla/hlo/ir/hlo_input_output_alias_config.cc#Verify``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.attributes import braced, parse_ints, split_top
from hloscope.core.hlo.shape import UNBOUNDED
from hloscope.core.hlo.verifier.context import index_text, sub_shape
from hloscope.core.hlo.verifier.equality import EXACT, LOOSE_ENTRY
from hloscope.core.hlo.verifier.findings import Broken, describe
from hloscope.core.hlo.verifier.layouts import layout_fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape, ShapeIndex
    from hloscope.core.hlo.verifier.context import Context


@dataclass(frozen=True, slots=True)
class EntryAlias:
    """An output of the module that lives in a parameter's buffer."""

    output_index: ShapeIndex
    parameter: int
    parameter_index: ShapeIndex
    must: bool


_ALIAS = re.compile(r"\{([\d,\s]*)\}\s*:\s*(?:\(\s*(-?\d+)\s*(?:,\s*\{([\d,\s]*)\}\s*)?(?:,\s*([\w-]+)\s*)?\)|(-?\d+))")
_DONOR = re.compile(r"\(\s*(-?\d+)\s*,\s*\{([\d,\s]*)\}\s*\)")


def entry_aliases(text: str) -> list[EntryAlias] | None:
    """The header's ``input_output_alias``, None where it cannot be read."""
    out: list[EntryAlias] = []
    for part in split_top(braced(text)):
        found = _ALIAS.fullmatch(part.strip())
        if found is None:
            return None
        number = found[2] if found[2] is not None else found[5]
        out.append(EntryAlias(parse_ints(found[1]), int(number), parse_ints(found[3] or ""), found[4] == "must-alias"))
    return out


# ---------------------------------------------------------------- entry layout
def entry_layout_faults(context: Context) -> Iterator[Broken]:
    """`VerifyEntryComputationLayout`."""
    entry = context.module.entry
    layout = context.entry_layout()
    if isinstance(layout, str):
        yield Broken("layout-invalid", f"entry_computation_layout cannot be read: {layout}")
        return
    parameters, result = layout
    for shape in (result, *parameters):
        for _, leaf in shape.leaves():
            fault = layout_fault(leaf)
            if fault is not None:
                yield Broken("layout-invalid", fault)
                return
    if not context.same(entry.root.shape, result, LOOSE_ENTRY):
        yield Broken(
            "entry-result",
            f"Shape of the root instruction of entry computation ({context.text(entry.root.shape)}) should be "
            f"compatible to one specified in module's entry computation layout ({context.text(result)})",
            entry.root,
        )
    if len(entry.parameters) != len(parameters):
        yield Broken(
            "entry-parameters",
            f"Number of parameters in entry computation layout ({len(parameters)}) must be same as number of "
            f"parameters of entry computation ({len(entry.parameters)})",
        )
        return
    for i, (parameter, shape) in enumerate(zip(entry.parameters, parameters, strict=True)):
        if not context.same(parameter.shape, shape, LOOSE_ENTRY):
            yield Broken(
                "entry-parameters",
                f"Shape of the entry computation parameter {i} is {context.text(parameter.shape)} should be compatible "
                f"to the one specified in module's entry computation layout {context.text(shape)}",
                parameter,
            )
    for alias in entry_aliases(context.module.attrs.get("input_output_alias", "{}")) or ():
        if not alias.must or not 0 <= alias.parameter < len(parameters):
            continue
        out = sub_shape(result, alias.output_index)
        come = sub_shape(parameters[alias.parameter], alias.parameter_index)
        if out is not None and come is not None and not EXACT(out, come):
            yield Broken(
                "entry-alias",
                f"Shape and memory space of the result at index {index_text(alias.output_index)} ({context.text(out)}) "
                f"must be the same as the shape and memory spaceof aliased parameter {alias.parameter} at index "
                f"{index_text(alias.parameter_index)} ({context.text(come)})",
            )


# ---------------------------------------------------------------- schedule
def schedule_faults(context: Context) -> Iterator[Broken]:
    """`HloSchedule::Verify`: the list order of every live computation that is not fused."""
    if not context.module.is_scheduled:
        return
    for computation in context.module.computations:
        if computation.is_fusion or (not computation.is_entry and not computation.callers):
            continue
        done: set[HloInstruction] = set()
        for node in computation.instructions:
            for operand in dict.fromkeys(node.operands):
                if operand not in done:
                    yield Broken(
                        "schedule-order",
                        f"Instruction {node.name} is not scheduled after its operand {operand.name}",
                        node,
                    )
            for before in node.control_predecessors:
                if before not in done:
                    yield Broken(
                        "schedule-order",
                        f"Instruction {node.name} is not scheduled after its control predecessor {before.name}",
                        node,
                    )
            done.add(node)


# ---------------------------------------------------------------- aliasing and donors
def alias_faults(context: Context) -> Iterator[Broken]:
    """`HloInputOutputAliasConfig::Verify` and `HloBufferDonorConfig::Verify`."""
    layout = context.entry_layout()
    if isinstance(layout, str):
        return  # reported with the layout
    parameters, result = layout
    aliases = entry_aliases(context.module.attrs.get("input_output_alias", "{}"))
    if aliases is None:
        yield Broken("alias-config", "input_output_alias cannot be read")
        aliases = []
    seen: set[tuple[int, ShapeIndex]] = set()
    for alias in aliases:
        fault = _alias_fault(context, alias, parameters, result, seen)
        if fault is not None:
            yield Broken("alias-config", fault)
        seen.add((alias.parameter, alias.parameter_index))
    yield from _donor_faults(context, parameters, seen)


def _alias_fault(
    context: Context,
    alias: EntryAlias,
    parameters: tuple[Shape, ...],
    result: Shape,
    seen: set[tuple[int, ShapeIndex]],
) -> str | None:
    what = f"alias of output {index_text(alias.output_index)} and parameter {alias.parameter}"
    if not 0 <= alias.parameter < len(parameters):
        return f"entry->num_parameters() > alias.parameter_number failed: {what}"
    come = sub_shape(parameters[alias.parameter], alias.parameter_index)
    if come is None:
        return f"IndexIsValid(param_shape, alias.parameter_index) failed: {what} {index_text(alias.parameter_index)}"
    out = sub_shape(result, alias.output_index)
    if out is None:
        return f"IndexIsValid(output_shape, output_index) failed: {what}"
    if not come.is_array:
        return f"param_subshape.IsArray() failed: {what}: {come}"
    if not out.is_array:
        return f"output_subshape.IsArray() failed: {what}: {out}"

    def size(shape: Shape) -> int:
        if shape.is_unbounded:
            return UNBOUNDED
        return context.options.shape_size(shape) if context.options.layout_sensitive else 0

    if size(come) != size(out):
        return (
            f"Expected aliased input {alias.parameter} at index {index_text(alias.parameter_index)} and output at "
            f"index {index_text(alias.output_index)} to have the same size. Input sub-shape is {come} with size "
            f"{size(come)}, output sub-shape is {out} with size {size(out)}"
        )
    if (alias.parameter, alias.parameter_index) in seen:
        return f"an input is aliased twice: {what} {index_text(alias.parameter_index)}"
    return None


def _donor_faults(
    context: Context, parameters: tuple[Shape, ...], aliased: set[tuple[int, ShapeIndex]]
) -> Iterator[Broken]:
    text = context.module.attrs.get("buffer_donor")
    if text is None:
        return
    for part in split_top(braced(text)):
        found = _DONOR.fullmatch(part.strip())
        if found is None:
            yield Broken("buffer-donor", f"buffer_donor cannot be read: {part}")
            continue
        number, index = int(found[1]), parse_ints(found[2])
        what = f"donor ({number}, {index_text(index)})"
        if not 0 <= number < len(parameters):
            yield Broken("buffer-donor", f"donor.param_number < entry->num_parameters() failed: {what}")
            continue
        shape = sub_shape(parameters[number], index)
        if shape is None:
            yield Broken("buffer-donor", f"IndexIsValid(param_shape, donor.param_index) failed: {what}")
        elif not shape.is_array:
            yield Broken("buffer-donor", f"param_subshape.IsArray() failed: {what}: {shape}")
        elif (number, index) in aliased:
            yield Broken(
                "buffer-donor",
                f"Input {number} at index {index_text(index)} is registered as a buffer donor. However, it is also in "
                "the input output alias config.",
            )


# ---------------------------------------------------------------- all-reduces and original values
def late_faults(context: Context) -> Iterator[Broken]:
    """`VerifyLayoutConstrainedAllReduce` and `VerifyOriginalValue`."""
    constrained: bool | None = None
    origins: list[HloInstruction] = []
    for node in context.module.instructions():
        if "origin" in node.raw_attrs:
            origins.append(node)
        if node.opcode not in ("all-reduce", "all-reduce-start"):
            continue
        own = bool(node.attr("constrain_layout"))
        if constrained is None:
            constrained = own
        elif constrained is not own:
            yield Broken(
                "all-reduce-layout",
                "HloModule has a mix of layout constrained and unconstrained AllReduce instructions.",
                node,
            )
            break
    for node in origins:
        text = (node.raw_attrs.get("origin") or "").strip()
        if "synthetic_call" in text:
            continue
        mine = {index for index, _ in node.shape.leaves()}
        told = original_leaves(text)
        if told is not None and told != mine:
            only = [", ".join(index_text(i) for i in sorted(a - b)) for a, b in ((mine, told), (told, mine))]
            yield Broken(
                "original-value",
                f"Mismatched tuple structure in shape and original value. Instruction: {describe(node)} Shape indices "
                f"in shape only: {{{only[0]}}} Shape indices in original value only: {{{only[1]}}}",
                node,
            )


def original_leaves(text: str) -> set[ShapeIndex] | None:
    """Leaf indices of an original value such as ``{({"a" {0}}, {"b"})}``, None where it cannot be read."""
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")):
        return None
    out: set[ShapeIndex] = set()

    def walk(part: str, index: ShapeIndex) -> bool:
        part = part.strip()
        if part.startswith("(") and part.endswith(")"):
            inside = part[1:-1].strip()
            return all(walk(p, (*index, i)) for i, p in enumerate(split_top(inside)))
        out.add(index)
        return not part or part.startswith("{") or part.startswith('"')

    return out if walk(body[1:-1], ()) else None
