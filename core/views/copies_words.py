"""What is known of a copy that was not replayed, in words and numbers: its pass, its neighbours, and what it moves.

Layout assignment on CPU and GPU is replayed and tells causes with their constraints (`core.views.copies`). Every other
copy is told by the stage in which it first appears, by who defines and who reads the value, and by its shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.verifier.module_rules import entry_aliases
from hloscope.core.layout.orders import show_shape
from hloscope.core.layout.physical import physical_view

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

SPACES = {0: "the default memory", 1: "fast memory", 5: "host memory"}
"""Memory spaces that have one meaning; see `core.hlo.layout`."""

HOST = 5
_READERS = 3


def copied_shape(copy: HloInstruction) -> Shape:
    """Shape of the copied value."""
    return copy.shape.tuple_shapes[0] if copy.opcode == "copy-start" and copy.shape.is_tuple else copy.shape


def memory_space(shape: Shape) -> int:
    """0 where none is given."""
    return shape.layout.memory_space if shape.layout is not None else 0


def is_aliasing(copy: HloInstruction) -> bool:
    """Whether the only reader writes its result into this operand, and the copy changes no layout."""
    if len(copy.users) != 1 or show_shape(copy.shape) != show_shape(copy.operand(0).shape):
        return False
    user = copy.users[0]
    aliases = user.attr("output_to_operand_aliasing") or ()
    return any(user.operand(one.operand) is copy for one in aliases if one.operand < user.operand_count)


def told(kind: str, words: str, copy: HloInstruction, pipeline: str, pass_name: str) -> str:
    """The sentence of a copy that was not replayed."""
    parts = [_direction(copy) or words, what_moves(copy.operand(0).shape, copied_shape(copy))]
    if kind in ("layout", "tiling", "other", "reshape", "layout-normalization"):
        parts += [_definition(copy), _reader(copy)]
    elif kind == "copy-insertion":
        parts += [_insertion(copy), _reader(copy)]
    elif kind == "spmd":
        count = copy.parent.module.attrs.get("num_partitions") if copy.in_computation else None
        sharding = copy.raw_attrs.get("sharding")
        if sharding is not None:
            parts[0] = f"partitioning: the sharding {sharding} is asked for here, whatever data that moves"
        parts += [f"among {count} partitions" if count else "", _reader(copy)]
    elif kind in ("memory-space", "host-transfer"):
        parts.append(_wait(copy) if copy.opcode == "copy-start" else _reader(copy))
    where = f"{pipeline}/{pass_name}".lstrip("/")
    if where:
        stage = pass_name.startswith(("after_", "before_"))
        parts.append(f"first seen {'in' if stage else 'after'} {where}")
    return "; ".join(part for part in parts if part)


# ---------------------------------------------------------------- parts
def what_moves(source: Shape, target: Shape) -> str:
    """How the layouts of a copy's two sides differ, and the bytes that are stored; empty where none is an array."""
    if not source.is_array or not target.is_array:
        return ""
    out: list[str] = []
    a, b = source.layout, target.layout
    if a is not None and b is not None and a.minor_to_major != b.minor_to_major:
        old, new = a.minor_to_major[0], b.minor_to_major[0]
        sizes = target.dimensions
        if old != new and max(old, new) < len(sizes):
            out.append(f"the fastest dimension was {old} (size {sizes[old]}) and becomes {new} (size {sizes[new]})")
        else:
            out.append(f"dimension {old} stays the fastest, the slower ones change places")
    elif a is not None and b is not None and a.tiles != b.tiles:
        out.append(f"tiles {_tiles(a.tiles)} become {_tiles(b.tiles)}")
    elif memory_space(source) == memory_space(target):
        out.append("the same layout on both sides")
    out.append(_bytes(source, target))
    return ", ".join(one for one in out if one)


def _bytes(source: Shape, target: Shape) -> str:
    """Bytes that are stored, where tiles pad them."""
    try:
        one, other = physical_view(source), physical_view(target)
    except HloscopeError:
        return ""
    if not one.tiles and not other.tiles:
        return ""
    if one.bytes == other.bytes:
        return f"{one.bytes:,} bytes" + (f" with {one.padding_bytes:,} of padding" if one.padding_bytes else "")
    return f"{one.bytes:,} bytes with padding become {other.bytes:,}"


def _tiles(tiles: tuple[tuple[int, ...], ...]) -> str:
    return "none" if not tiles else " then ".join("×".join(str(d) if d > 0 else "*" for d in tile) for tile in tiles)


def _direction(copy: HloInstruction) -> str:
    """What a change of memory space is called; empty where there is none."""
    source, target = memory_space(copy.operand(0).shape), memory_space(copied_shape(copy))
    if source == target:
        return ""
    word = {(0, 1): "prefetch: ", (1, 0): "eviction: ", (0, HOST): "offload: ", (HOST, 0): "back from the host: "}
    return f"{word.get((source, target), '')}the value moves from {_space(source)} to {_space(target)}"


def _space(number: int) -> str:
    known = SPACES.get(number)
    return f"memory space {number}" if known is None else f"{known}, S({number})"


def _definition(copy: HloInstruction) -> str:
    operand = copy.operand(0)
    if operand.opcode == "parameter":
        where = "the program" if operand.parent.is_entry else f"%{operand.parent.name}"
        return f"the value is parameter {operand.payload} of {where}, whose layout is set from outside"
    return f"%{operand.name} ({operand.opcode}) defines the value"


def _reader(copy: HloInstruction) -> str:
    if copy.is_root:
        return f"it is the result of %{copy.parent.name}"
    readers = copy.users
    if not readers:
        return "nothing reads it"
    first = readers[0]
    if first.opcode == "tuple" and len(readers) == 1:
        return _through_tuple(copy, first)
    names = ", ".join(f"%{one.name} ({one.opcode})" for one in readers[:_READERS])
    more = f" and {len(readers) - _READERS} more" if len(readers) > _READERS else ""
    return f"read by {names}{more}"


def _through_tuple(copy: HloInstruction, holder: HloInstruction) -> str:
    place = next(number for number, one in enumerate(holder.operands) if one is copy)
    if holder.is_root:
        callers = holder.parent.callers
        loop = next((one for one in callers if one.opcode == "while"), None)
        if loop is not None:
            return f"it is element {place} of what one turn of the loop %{loop.name} hands to the next"
        return f"it is element {place} of the result of %{holder.parent.name}"
    loop = next((one for one in holder.users if one.opcode == "while"), None)
    if loop is not None:
        return f"it is element {place} of the state with which the loop %{loop.name} starts"
    return f"it is element {place} of %{holder.name}"


def _insertion(copy: HloInstruction) -> str:
    """Why the value may not lie where it lies, as far as its definition tells."""
    operand = copy.operand(0)
    if operand.opcode == "constant":
        return f"%{operand.name} is a constant, whose buffer may not be written"
    if operand.opcode == "parameter" and operand.parent.is_entry:
        return _parameter(operand)
    others = [one for one in operand.users if one is not copy]
    if others:
        names = ", ".join(f"%{one.name}" for one in others[:_READERS])
        return (
            f"%{operand.name} has {len(others)} other readers: {names}"
            if len(others) > 1
            else (f"%{operand.name} is also read by {names}")
        )
    return ""


def _parameter(parameter: HloInstruction) -> str:
    number = int(parameter.payload or 0)
    aliases = entry_aliases(parameter.parent.module.attrs.get("input_output_alias", "{}")) or []
    given = [one for one in aliases if one.parameter == number]
    if not given:
        return f"%{parameter.name} is parameter {number} of the program, whose buffer belongs to the caller"
    places = ", ".join("{" + ",".join(map(str, one.output_index)) + "}" for one in given[:_READERS])
    return f"%{parameter.name} is parameter {number}, donated to result {places}, and read after that is written"


def _wait(start: HloInstruction) -> str:
    """Who waits for an asynchronous copy, and how much stands between."""
    done = next((one for one in start.users if one.opcode == "copy-done"), None)
    if done is None:
        return ""
    out = f"%{done.name} waits for it"
    module = start.parent.module
    if module.is_scheduled:
        order = {one: number for number, one in enumerate(start.parent.instructions)}
        between = order[done] - order[start] - 1
        out += f", {between} instructions later in the schedule"
    readers = [one for one in done.users]
    if readers:
        out += f", for %{readers[0].name} ({readers[0].opcode})" + (
            f" and {len(readers) - 1} more" if len(readers) > 1 else ""
        )
    return out
