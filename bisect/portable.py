"""A module as XLA:CPU takes it, whatever it was compiled for: no layouts, tiles or memory spaces, fusions laid open.

What a bitcast does hangs on layouts, so it becomes the transposes and the reshape that it stands for. Copies that run
beside other work become plain ones, and names that XLA's parser takes for types get an underscore.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hloscope.bisect.putback import OPENED, lay_open
from hloscope.core.errors import UnsupportedError
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.layout import Layout
from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.rules.base import Builder
from hloscope.core.runtime.evaluator import layout as memory
from hloscope.core.text import load_module, print_module

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule

_TYPE = re.compile(r"(?:pred|token|opaque|tuple|bf16|[suc]\d+|f\d\w*)\Z")
_SAME = frozenset(
    {
        "AssumeGatherIndicesInBound", "LayoutConstraint", "Pin", "Unpin", "Sharding", "annotate_device_placement",
        "MoveToHost", "MoveToDevice", "GatherScatterIndicesBitpacked", "xla.sdy.FuncResultSharding",
    }
)  # fmt: skip
"""Custom calls that leave values as they are."""
_BESIDE = frozenset({"copy-start", "copy-done", "async-start", "async-update", "async-done"})
_DROPPED = ("backend_config", "frontend_attributes", "sharding", "origin", "statistics", "metadata")
MOST_CHECKED = 1 << 20
"""Elements of a tiled bitcast that is worked out element by element."""


@dataclass(frozen=True, slots=True)
class Portable:
    """A text for XLA:CPU, and how it was made."""

    text: str
    changes: tuple[str, ...]
    """What is not as it was; empty where the module is as it came."""


def portable(text: str, *, native: bool) -> Portable:
    """The module for XLA:CPU; as it is where nothing stands in the way. `native`: XLA:CPU has run it as it is.

    Raises UnsupportedError for what cannot be said without layouts or on one device.
    """
    module = load_module(text)
    devices = module.num_partitions * module.replica_count
    if devices > 1:
        raise UnsupportedError(f"it is for {devices} devices")
    needs = [] if native else _needs(module)
    bad = [one.name for one in module.instructions() if _TYPE.match(one.name)]
    if not needs and not bad:
        return Portable(text, ())
    changes = list(needs)
    if needs:
        module = lay_open(module).module
        _drop_unused(module)
        for computation in module.computations:
            _rewrite(computation)
        for one in module.instructions():
            one.drop_all_control_dependencies()
            one.shape = one.shape.without_layout()
            for key in _DROPPED:
                if key in one.raw_attrs and (key != "backend_config" or one.opcode != "custom-call"):
                    one.set_attr(key, None)
        module.set_schedule(None)
        module.attrs.clear()
    for one in list(module.instructions()):
        if _TYPE.match(one.name):
            one.rename(f"{one.name}_")
    if bad:
        names = ", ".join(f"%{name}" for name in bad[:4])
        changes.append(f"names that XLA takes for types ({names}{', …' if len(bad) > 4 else ''}) have an underscore")
    return Portable(print_module(module), tuple(changes))


def _needs(module: HloModule) -> list[str]:
    """What keeps XLA:CPU from taking a stage of a compile, its own late ones too, in words."""
    found: list[str] = []
    every = list(module.instructions())
    if any(one.opcode in OPENED for one in every):
        found.append("fusions and calls are laid open")
    leaves = [leaf for one in every for _, leaf in one.shape.leaves() if leaf.is_array]
    if any(not _plain(leaf) for leaf in leaves):
        found.append("layouts, tiles and memory spaces are left out; bitcasts are written as transposes and reshapes")
    if any(one.opcode in _BESIDE for one in every):
        found.append("copies and calls that run beside other work are plain ones")
    if any(_target(one) in (*_SAME, "AllocateBuffer") for one in every):
        found.append("custom calls that leave values as they are are left out, and fresh buffers hold zeros")
    return found


def _target(one: HloInstruction) -> str:
    return (one.raw_attrs.get("custom_call_target") or "").strip('"') if one.opcode == "custom-call" else ""


def _plain(shape: Shape) -> bool:
    """Whether elements lie row by row in the memory that everything is in."""
    return shape.layout is None or shape.layout == Layout.descending(shape.rank)


def _drop_unused(module: HloModule) -> None:
    while unused := [one for one in module.computations if not one.is_entry and not one.callers]:
        for one in unused:
            module.remove_computation(one)


def _rewrite(computation: HloComputation) -> None:
    """Put in place what has meaning without layouts and agents."""
    for one in computation.post_order():
        new: HloInstruction | None = None
        if one.opcode == "bitcast":
            new = _bitcast(computation, one)
        elif one.opcode == "copy-done" and one.operand(0).opcode == "copy-start":
            new = computation.add(HloInstruction("copy", one.shape, [one.operand(0).operand(0)], name=one.name))
        elif one.opcode == "custom-call" and _target(one) in _SAME and one.shape.is_array:
            new = computation.add(HloInstruction("copy", one.shape, [one.operand(0)], name=one.name))
        elif one.opcode == "custom-call" and _target(one) == "AllocateBuffer" and one.shape.is_array:
            build = Builder(one)
            zero = build.scalar(one.shape.type.name, 0)
            new = build.make("broadcast", one.shape, [zero], {"dimensions": ()}, name=one.name)
        elif one.opcode == "async-done":
            start = one.operand(0)
            while start.opcode == "async-update":
                start = start.operand(0)
            if start.opcode == "async-start":
                (body,) = start.called_computations
                call = HloInstruction("call", one.shape, start.operands, name=one.name, called={"to_apply": body})
                new = computation.add(call)
        if new is not None:
            one.drop_all_control_dependencies()
            one.replace_all_uses_with(new)
    for one in reversed(computation.post_order()):
        gone = one.opcode in (*_BESIDE, "bitcast") or _target(one) in (*_SAME, "AllocateBuffer")
        if gone and not one.users and not one.is_root:
            one.drop_all_control_dependencies()
            computation.remove(one)


def _bitcast(home: HloComputation, one: HloInstruction) -> HloInstruction:
    """Same bytes, said with logical operations."""
    source, target = one.operand(0), one.shape
    if not source.shape.is_array or not target.is_array:
        raise UnsupportedError(f"%{one.name} is a bitcast of a tuple")
    if source.shape.type.bits != target.type.bits or source.shape.element_count != target.element_count:
        raise UnsupportedError(f"%{one.name} is a bitcast to another number of bits or elements")
    order, final = memory.major_to_minor(source.shape), memory.major_to_minor(target)
    if memory.tiles(source.shape) or memory.tiles(target):
        _check_tiles(one, order, final)
    dims = source.shape.dimensions
    made = source
    if order != tuple(range(len(dims))):
        shape = Shape.array(source.shape.type.name, [dims[d] for d in order])
        made = home.add(HloInstruction("transpose", shape, [made], attrs={"dimensions": order}, name=one.name))
    physical = [target.dimensions[d] for d in final]
    if list(made.shape.dimensions) != physical:
        shape = Shape.array(source.shape.type.name, physical)
        made = home.add(HloInstruction("reshape", shape, [made], name=one.name))
    if final != tuple(range(target.rank)):
        back = tuple(int(d) for d in np.argsort(np.asarray(final, np.int64)))
        shape = Shape.array(source.shape.type.name, target.dimensions)
        made = home.add(HloInstruction("transpose", shape, [made], attrs={"dimensions": back}, name=one.name))
    if source.shape.type != target.type:
        made = home.add(HloInstruction("bitcast-convert", target.without_layout(), [made], name=one.name))
    if made is source:
        made = home.add(HloInstruction("copy", target.without_layout(), [made], name=one.name))
    return made


def _check_tiles(one: HloInstruction, order: tuple[int, ...], final: tuple[int, ...]) -> None:
    """Raises UnsupportedError where tiles make a bitcast something else than transposes and a reshape."""
    source, target = one.operand(0).shape, one.shape
    if source.element_count > MOST_CHECKED:
        raise UnsupportedError(f"%{one.name} is a bitcast of {source.element_count:,} elements in tiles")
    numbers = np.arange(1, source.element_count + 1).reshape(source.dimensions)
    try:
        really = memory.from_physical(memory.to_physical(numbers, source), target)
    except (ValueError, IndexError):
        really = None
    plain = numbers.transpose(order).reshape([target.dimensions[d] for d in final])
    if really is None or not np.array_equal(really, plain.transpose(np.argsort(np.asarray(final, np.int64)))):
        raise UnsupportedError(f"%{one.name} is a bitcast that tiles make more than a reshape")
