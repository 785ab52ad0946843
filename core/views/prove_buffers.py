"""Questions about memory put to the real compiler: the program with and without the change, without a device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import CompileError, UsageError
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.element_types import ELEMENT_TYPES
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.shape import Shape
from hloscope.core.text.printer import print_module
from hloscope.core.views.real_target import real_target
from hloscope.core.views.run import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.module import HloModule
    from hloscope.core.views.run import Run

_KEEP_NARROW = "--xla_allow_excess_precision=false"
"""Without it a value that is narrowed and widened again stays wide."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Bytes that the real compiler needs, before and after."""

    change: str
    compiler: str
    total_before: int
    """Allocated bytes."""
    total_after: int
    peak_before: int
    """Bytes in use at the fullest step, by the compiler's own reports."""
    peak_after: int
    note: str = ""
    """What was changed in the program."""


def prove_changes(run: Run, changes: Sequence[str], named: str | None = None) -> list[Proof]:
    """Have the real compiler compile the run's program as it is and with each change.

    ``donate:N`` gives parameter N to the first free output of its shape. ``drop:NAME`` and ``dtype:NAME=TYPE`` need the
    place of the program that NAME comes from. A dropped value is made as before; its readers get its greatest element
    everywhere, so that only a number has to be kept. A value of another type is narrowed where it is made, and its
    readers widen it. `named` is the target asked for, where somebody named one.

    Raises UsageError for a change that cannot be made in the program, UnsupportedError where wheels are missing and
    CompileError where the compiler refuses the program or forgets the donation.
    """
    index = run.stage_index(-1)
    with real_target(run.source.target, run.report(FileKind.TARGET_CONFIG), named) as target:
        plain: dict[tuple[str, ...], tuple[str, int, int]] = {}
        proofs: list[Proof] = []
        for change in changes:
            kind, _, rest = change.partition(":")
            module = run.stage_module(0)
            flags = (_KEEP_NARROW,) if kind == "dtype" else ()
            donated: int | None = None
            if kind == "donate" and rest.isdigit():
                donated = int(rest)
                note = _donate(module, donated)
            elif kind in ("drop", "dtype"):
                name, _, type_name = rest.partition("=")
                row = index.find(name.partition("{")[0])
                op_name = index.op_name(row) if row is not None else None
                node = _in_program(module, name, op_name, run)
                note = _drop(node) if kind == "drop" else _narrow(node, type_name)
            else:
                raise UsageError(f"the compiler cannot be asked of {change!r}")
            if flags not in plain:
                plain[flags] = _compiled(print_module(run.stage_module(0)), target, flags)
            compiler, total, peak = plain[flags]
            _, new_total, new_peak = _compiled(print_module(module), target, flags, donated)
            proofs.append(Proof(change, compiler, total, new_total, peak, new_peak, note))
    return proofs


def _donate(module: HloModule, number: int) -> str:
    entry = module.entry
    if number >= len(entry.parameters):
        raise UsageError(f"there is no parameter {number}: the entry has {len(entry.parameters)}")
    shape = entry.parameters[number].shape.without_layout()
    inside = (module.attrs.get("input_output_alias") or "{}").strip()[1:-1].strip()
    taken = set(re.findall(r"\{([\d, ]*)\}\s*:\s*\(", inside))
    for index, part in entry.root.shape.leaves():
        place = ",".join(map(str, index))
        if part.without_layout() == shape and place not in taken:
            alias = f"{{{place}}}: ({number}, {{}}, must-alias)"
            attrs = {key: value for key, value in module.attrs.items() if key != "buffer_donor"}
            module.attrs = {**attrs, "input_output_alias": "{ " + ", ".join(filter(None, (inside, alias))) + " }"}
            return f"parameter {number} given to output {{{place}}}"
    raise UsageError(f"no output can take parameter {number}: none that is free has shape {shape}")


def _in_program(module: HloModule, name: str, op_name: str | None, run: Run) -> HloInstruction:
    """What made a value of the final module in the program as it was written: by its operation's name and its shape."""
    bare, brace, rest = name.partition("{")
    final = run.stage_module(-1).find_instruction(bare)
    if final is None:
        raise UsageError(f"no instruction {bare!r} in the scheduled module")
    index = tuple(int(part) for part in rest.rstrip("}").split(",") if part.strip().isdigit()) if brace else ()
    part = final.shape.sub(index)
    if not index and part.is_tuple:
        arrays = [one for _, one in part.leaves() if one.is_array]
        part = max(arrays, key=lambda one: one.byte_size) if arrays else part
    fitting = [
        one
        for one in module.instructions()
        if one.shape.is_array
        and one.shape.element_count == part.element_count
        and one.opcode not in ("parameter", "constant", "get-tuple-element")
    ]
    exact = [one for one in fitting if op_name is not None and one.metadata.op_name == op_name]
    found = exact or [one for one in fitting if one.name == bare]
    found = [one for one in found if one.shape.element_type == part.element_type] or found
    if not found:
        shape = part.without_layout()
        raise UsageError(f"{name} cannot be found in the program: no {shape} there has its operation name")
    return found[-1]


def _drop(node: HloInstruction) -> str:
    """Let all readers of a value have its greatest element (its sum, where it is complex) in every place."""
    computation, shape = node.parent, node.shape
    if not shape.rank or node.is_root:
        raise UsageError(f"{node.name} of the program is a result or one number: it cannot be dropped")
    scalar = Shape.array(shape.element_type, ())
    users = node.users
    reducer = HloComputation("one_of_two")
    pair = [reducer.add(HloInstruction("parameter", scalar, payload=str(number))) for number in range(2)]
    combine = "add" if shape.element_type.startswith("c") else "or" if shape.element_type == "pred" else "maximum"
    reducer.set_root(reducer.add(HloInstruction(combine, scalar, pair)))
    computation.module.add_computation(reducer, first=True)
    first = computation.add(HloInstruction("constant", scalar, payload=_zero(shape)))
    every = tuple(range(shape.rank))
    one = computation.add(
        HloInstruction("reduce", scalar, [node, first], attrs={"dimensions": every}, called={"to_apply": reducer})
    )
    spread = computation.add(HloInstruction("broadcast", shape, [one], attrs={"dimensions": ()}))
    for user in users:
        node.replace_use_with(user, spread)
    return f"{node.name} of the program is read as one number"


def _zero(shape: Shape) -> str:
    if shape.element_type.startswith("c"):
        return "(0, 0)"
    return "false" if shape.element_type == "pred" else "0"


def _narrow(node: HloInstruction, type_name: str) -> str:
    """Convert a value to another type where it is made, and back where it is read."""
    found = ELEMENT_TYPES.get(type_name)
    if found is None or not found.bits:
        raise UsageError(f"{type_name!r} is no element type with a size")
    if node.is_root:
        raise UsageError(f"{node.name} of the program is its result: its type is the caller's")
    users, computation = node.users, node.parent
    narrow = computation.add(HloInstruction("convert", Shape.array(type_name, node.shape.dimensions), [node]))
    back = computation.add(HloInstruction("convert", node.shape, [narrow]))
    for user in users:
        node.replace_use_with(user, back)
    return f"{node.name} of the program is converted to {type_name} and back"


def _compiled(text: str, target: str, flags: Sequence[str], donated: int | None = None) -> tuple[str, int, int]:
    """Compiler, allocated bytes and peak of a program."""
    from hloscope.core.xla.compile import compile_hlo_text

    with TemporaryDirectory(prefix="hloscope-") as folder:
        dump = str(Path(folder) / "dump")
        result = compile_hlo_text(text, dump_to=dump, target=target, pass_re="^$", flags=flags)
        with load(dump) as run:
            if run.report(FileKind.BUFFER_ASSIGNMENT) is None:
                raise CompileError("the compiler wrote no buffer report")
            memory = run.buffers.memory
        kept = any(one.parameter == donated and one.donated for one in memory.allocations)
        if donated is not None and not kept:
            raise CompileError(f"the compiler did not keep the donation of parameter {donated}")
        return f"jaxlib {result.jaxlib} for {result.target}", memory.total_bytes, memory.peak[1]
