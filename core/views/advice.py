"""What a reader of one text may want to know though nothing is wrong: dead code, copies, padding, narrow sums.

Found from the index alone, without building a graph. The rows of ``ADVICE`` say what each is; none is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hloscope.core.errors import Diagnostic, HloscopeError, Severity
from hloscope.core.hlo.attributes import CONTROL
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.hlo.shape import Shape
from hloscope.core.views.exact_values import DIGITS, exact

if TYPE_CHECKING:
    from hloscope.core.text.module_index import ModuleIndex

Found = Iterator[tuple[int, str, tuple[int, ...]]]
"""(instruction, sentence, other instructions that belong to it)."""

PADDING_SHARE = 0.5
"""A tiled array of which more than this share is padding is worth a word."""
PADDING_BYTES = 64 << 10
NARROW_TERMS = 512
"""Sums of more terms than this lose digits in a type of 11 bits or fewer."""
_NARROW = frozenset({"bf16", "f16", "f8e4m3", "f8e4m3fn", "f8e5m2", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz"})
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,\s]*)\}")
_REDUCED = re.compile(r"dimensions=\{([\d,\s]*)\}")


@dataclass(frozen=True, slots=True)
class Advice:
    """One kind of advice."""

    code: str
    severity: Severity
    find: Callable[[ModuleIndex, Iterable[int]], Found]
    """Of these instructions; of dead ones also what then is dead with them."""


@lru_cache(maxsize=4096)
def _shape(text: str) -> Shape | None:
    try:
        return Shape.parse(text)
    except (HloscopeError, ValueError):
        return None


def _array(index: ModuleIndex, i: int) -> Shape | None:
    found = _shape(index.shape_text(i))
    return found if found is not None and found.is_array else None


def _dead(index: ModuleIndex, among: Iterable[int]) -> Found:
    """What nothing uses, and what only that uses; XLA keeps what another instruction waits for."""
    dead: dict[int, bool] = {}
    waiting = [i for i in among if not index.users(i)]
    while waiting:
        i = waiting.pop()
        if i in dead or not _can_go(index, i):
            continue
        users = index.users(i)
        if any(user not in dead for user in users):
            continue
        dead[i] = bool(users)
        waiting += (one for one in dict.fromkeys(index.operands(i)) if one >= 0)
    for i in sorted(dead):
        name = f"%{index.name(i)}"
        yield i, f"only what nothing uses reads {name}" if dead[i] else f"nothing uses {name}", ()


def _can_go(index: ModuleIndex, i: int) -> bool:
    known = OPCODES.get(index.opcode(i))
    if known is None or known.side_effect or known.name in ("parameter", "custom-call", "call", "while"):
        return False
    if known.collective or known.asynchronous or i == index.computation(index.computation_of(i)).root:
        return False
    return CONTROL not in index.attributes_text(i) and i not in index.control_predecessors


def _copies(index: ModuleIndex, among: Iterable[int]) -> Found:
    for i in among:
        if index.opcode(i) != "copy":
            continue
        operands = index.operands(i)
        shape = _array(index, i)
        if shape is None or not operands or operands[0] < 0 or shape.layout is None:
            continue
        before = _array(index, operands[0])
        if before is None or before.layout is None:
            continue
        if before.layout.minor_to_major != shape.layout.minor_to_major:
            moved = f"{shape.byte_size:,} bytes from {before.layout} to {shape.layout}"
            yield i, f"a layout copy: {moved} (hloscope copies says why)", (operands[0],)


def _round_trips(index: ModuleIndex, among: Iterable[int]) -> Found:
    for i in among:
        if index.opcode(i) != "convert":
            continue
        inner = index.operands(i)[:1]
        if not inner or inner[0] < 0 or index.opcode(inner[0]) != "convert":
            continue
        first = index.operands(inner[0])[:1]
        if not first or first[0] < 0:
            continue
        types = [_array(index, at) for at in (first[0], inner[0], i)]
        if any(one is None for one in types):
            continue
        a, b, c = (one.element_type for one in types if one is not None)
        if a == c and DIGITS.get(b, 0) < DIGITS.get(a, 0) and b in DIGITS and not exact(index, first[0], b):
            yield i, f"{a} goes through {b} and back: {DIGITS[a] - DIGITS[b]} bits are lost", (inner[0], first[0])


def _narrow_sums(index: ModuleIndex, among: Iterable[int]) -> Found:
    for i in among:
        opcode = index.opcode(i)
        if opcode not in ("dot", "reduce"):
            continue
        shape = _array(index, i)
        operands = index.operands(i)[:1]
        if shape is None or shape.element_type not in _NARROW or not operands or operands[0] < 0:
            continue
        operand = _array(index, operands[0])
        found = (_CONTRACTED if opcode == "dot" else _REDUCED).search(index.attributes_text(i))
        if operand is None or found is None:
            continue
        dims = [int(word) for word in found[1].split(",") if word.strip()]
        if opcode == "reduce" and not _adds(index, i):
            continue
        terms = 1
        for dim in dims:
            terms *= operand.dimensions[dim] if dim < operand.rank else 1
        if terms > NARROW_TERMS:
            yield i, f"sums {terms:,} terms and keeps the result as {shape.element_type}", ()


def _adds(index: ModuleIndex, i: int) -> bool:
    called = [one for one in index.called(i) if one >= 0]
    if not called:
        return False
    root = index.computation(called[0]).root
    return root >= 0 and index.opcode(root) == "add"


def _padding(index: ModuleIndex, among: Iterable[int]) -> Found:
    """Of arrays that have a buffer: not of values within a fusion, or within what is applied element by element."""
    in_memory: dict[int, bool] = {}
    for i in among:
        home = index.computation_of(i)
        if home not in in_memory:
            in_memory[home] = any(
                known is None or known.calls != "embedded"
                for known in (OPCODES.get(index.opcode(one)) for one in index.callers(home))
            ) or not index.callers(home)
        if not in_memory[home]:
            continue
        shape = _array(index, i)
        if shape is None or shape.layout is None or not shape.layout.tiles or not shape.dimensions:
            continue
        size, held = shape.byte_size, _tiled_bytes(shape)
        if held - size >= PADDING_BYTES and (held - size) / held > PADDING_SHARE:
            yield i, f"{held - size:,} of its {held:,} bytes are padding of tile {shape.layout}", ()


def _tiled_bytes(shape: Shape) -> int:
    """Bytes with the padding of the first tile, which makes nearly all of it."""
    assert shape.layout is not None
    order = [shape.dimensions[dim] for dim in reversed(shape.layout.minor_to_major)]
    tile = [max(1, one) for one in shape.layout.tiles[0]]
    if len(tile) > len(order):
        return shape.byte_size
    for at in range(1, len(tile) + 1):
        order[-at] = -(-order[-at] // tile[-at]) * tile[-at]
    held = 1
    for one in order:
        held *= one
    bits = shape.layout.element_size_in_bits or max(8, shape.type.bits)
    return held * bits // 8


ADVICE: tuple[Advice, ...] = (
    Advice("dead-instruction", "hint", _dead),
    Advice("layout-copy", "information", _copies),
    Advice("convert-round-trip", "information", _round_trips),
    Advice("narrow-sum", "information", _narrow_sums),
    Advice("padding", "information", _padding),
)
"""Every kind, in the order in which they are looked for."""


def advise(
    index: ModuleIndex, most: int = 500, *, among: Mapping[str, Iterable[int]] | None = None
) -> list[Diagnostic]:
    """Advice on a text, at most `most` of each kind, by place.

    With `among`, by code, only these instructions are looked at: which of what was said before is still so.
    """
    everything = range(index.instruction_count)
    out: list[Diagnostic] = []
    for kind in ADVICE:
        found = kind.find(index, everything if among is None else among.get(kind.code, ()))
        for number, (i, message, others) in enumerate(found):
            if number >= most:
                break
            start, end = index.name_span(i)
            line, column = index.position(start)
            end_line, end_column = index.position(end)
            related = tuple((*index.name_span(one), f"%{index.name(one)}") for one in others)
            out.append(
                Diagnostic(
                    message, line + 1, column + 1, end_line + 1, end_column + 1, kind.severity, kind.code, start, end,
                    related,
                )
            )  # fmt: skip
    return sorted(out, key=lambda one: one.offset)
