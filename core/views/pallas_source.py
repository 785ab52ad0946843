"""What the text of a Python file says of its Pallas calls: grid, blocks, index maps, scratch, and bytes where they can
be worked out. Nothing is imported or run.

Half-typed text keeps its other statements, and of the half-typed one what is there.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hloscope.core.pallas.checks.budgets import tiled_bytes
from hloscope.core.pallas.jaxpr import itemsize_bits
from hloscope.core.pallas.python_reader import read_python
from hloscope.core.pallas.static_calls import element_type, type_name
from hloscope.core.pallas.static_names import Scope, elements, follow, shape_of
from hloscope.core.pallas.static_sites import Site, Spec, find_sites
from hloscope.core.pallas.static_source import Columns, dimension_text

T = TypeVar("T")
_SCRATCH = frozenset({"VMEM", "SMEM", "ANY", "HBM", "MemorySpace", "SemaphoreType", "GMEM", "TMEM", "Barrier"})
_FAST = {"vector": ("default", "vmem"), "shared": ("default", "smem"), "": ()}
"""Memory spaces that count, by the fast memory."""


@dataclass(frozen=True, slots=True)
class Place:
    """A part of the text: lines and columns are 1-based, columns in characters, the end is not part of it."""

    line: int
    column: int
    end_line: int
    end_column: int

    def has(self, line: int, column: int) -> bool:
        """Whether a character is in it."""
        return (self.line, self.column) <= (line, column) < (self.end_line, self.end_column)

    def within(self, other: Place) -> bool:
        """Whether all of it is in another one."""
        return other.has(self.line, self.column) and self.end <= other.end

    @property
    def end(self) -> tuple[int, int]:
        """Line and column behind it."""
        return self.end_line, self.end_column


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """One operand's or result's ``BlockSpec``."""

    title: str
    place: Place
    """Of the spec."""
    array: str | None
    """Shape and element type of the whole array; None where the text does not give the shape."""
    block: str
    index_map: str | None
    """Its source."""
    space: str
    bytes: int | None
    """Of one block."""
    held: int | None
    """In a TPU's vector memory: tiles padded, two blocks unless there is only one."""


@dataclass(frozen=True, slots=True)
class ScratchFacts:
    """One scratch shape."""

    place: Place
    text: str
    space: str
    bytes: int | None
    held: int | None


@dataclass(slots=True)
class PallasFacts:
    """One ``pallas_call``."""

    name: str
    place: Place
    """Of the call."""
    grid_spec: Place | None
    """Of the call that makes its ``grid_spec``, which may stand elsewhere; None where it has none."""
    grid: tuple[int | None, ...] | None
    steps: int | None
    semantics: tuple[str, ...]
    memory: str | None
    """``vector`` or ``shared``: the fast memory that blocks are copied to; None where the compiler decides."""
    blocks: list[BlockFacts] = field(default_factory=list[BlockFacts])
    scratch: list[ScratchFacts] = field(default_factory=list[ScratchFacts])

    @property
    def total(self) -> tuple[int, int]:
        """Bytes of fast memory, as far as the text gives them, and how many parts it does not give."""
        here = _FAST[self.memory or ""]
        held: list[int | None] = [one.held for one in self.blocks if one.space in here]
        held += [one.held for one in self.scratch if one.space in here]
        return sum(one for one in held if one is not None), held.count(None)


def pallas_facts(text: str) -> list[PallasFacts]:
    """Every ``pallas_call`` of a text that is Python, in order; half-typed ones as far as they go."""
    try:
        columns = Columns(text)
        return [_facts(site, columns) for site in find_sites(read_python(text))]
    except (ValueError, RecursionError):
        return []


def _place(node: ast.expr, columns: Columns) -> Place:
    end_line, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return Place(node.lineno, columns.of(node.lineno, node.col_offset), end_line, columns.of(end_line, end))


def _facts(site: Site, columns: Columns) -> PallasFacts:
    scope = site.scope
    known = site.grid is not None and None not in site.grid
    steps = math.prod(n for n in site.grid or () if n is not None) if known else None
    source = ast.unparse(site.node)
    memory = "vector"
    if site.backend == "triton":
        memory = None
    elif site.backend == "mosaic_gpu" or (site.backend is None and ("plgpu." in source or "mosaic_gpu" in source)):
        memory = "shared"
    given = site.given.words
    spec = follow(given.get("grid_spec"), scope)
    around = _place(spec, columns) if isinstance(spec, ast.Call) else None
    out = PallasFacts(site.name, _place(site.node, columns), around, site.grid, steps, site.semantics, memory)
    results, arrays = site.results, site.arguments
    for kind, specs in (("input", site.inputs), ("output", site.outputs)):
        for number, one in enumerate(specs or ()):
            if kind == "output":
                shape, array = _at(site.shapes, number), _at(results, number)
            else:
                shape, array = _at(site.operands, number), _at(arrays, number)
            place, kind_of = _place(one.node, columns), element_type(array, scope)
            out.blocks.append(_block(f"{kind} {number}", place, one, shape, kind_of, memory, steps))
    for one in elements(given.get("scratch_shapes"), scope) or ():
        one = follow(one, scope) or one
        out.scratch.append(_scratch(one, _place(one, columns), memory, scope))
    return out


def _block(
    title: str,
    place: Place,
    spec: Spec,
    shape: tuple[int, ...] | None,
    kind: str | None,
    memory: str | None,
    steps: int | None,
) -> BlockFacts:
    dims = shape if spec.whole else spec.shape
    inside = None
    if dims is not None and None not in dims:
        squeezed = spec.kinds or ("",) * len(dims)
        inside = [n for n, how in zip(dims, squeezed, strict=True) if n is not None and how != "squeezed"]
    size = None if inside is None or kind is None else math.prod(inside) * itemsize_bits(kind) // 8
    held = size
    if memory == "vector" and inside is not None and kind is not None and spec.space in (None, "vmem"):
        whole = spec.whole or steps == 1 or tuple(dims or ()) == shape
        held = tiled_bytes(inside, kind) * (1 if whole else 2)
    words = [dimension_text(spec, d) for d in range(len(spec.shape or ()))]
    block = f"({', '.join(words)}{',' if len(words) == 1 else ''})"
    if spec.shape is None:
        block = "the whole array" if spec.whole else "not known here"
    array = None if shape is None else f"{kind or '?'}[{','.join(map(str, shape))}]"
    mapped = None if spec.index_map is None else _map_text(spec.index_map)
    return BlockFacts(title, place, array, block, mapped, spec.space or "default", size, held)


def _map_text(function: ast.Lambda | ast.FunctionDef) -> str:
    if isinstance(function, ast.Lambda):
        return ast.unparse(function)
    returned = next((one.value for one in function.body if isinstance(one, ast.Return) and one.value), None)
    value = "…" if returned is None else ast.unparse(returned)
    return f"{function.name}({ast.unparse(function.args)}): {value}"


def _scratch(node: ast.expr, place: Place, memory: str | None, scope: Scope) -> ScratchFacts:
    text = ast.unparse(node)
    if not isinstance(node, ast.Call):
        kind, size = ("semaphore", 0) if "Semaphore" in text else ("?", None)
        return ScratchFacts(place, text, kind, size, None)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if "Semaphore" in text or name == "Barrier":
        return ScratchFacts(place, text, "semaphore", 0, 0)
    given = {word.arg: word.value for word in node.keywords}
    dims = shape_of(given.get("shape", node.args[0] if node.args else None), scope)
    kind = type_name(given.get("dtype", node.args[1] if len(node.args) > 1 else None), scope)
    size = None if dims is None or kind is None else math.prod(dims) * itemsize_bits(kind) // 8
    space = name.lower() if name in _SCRATCH else "?"
    held = tiled_bytes(dims, kind) if space == "vmem" and dims is not None and kind is not None else size
    return ScratchFacts(place, text, space, size, held)


def _at(items: Sequence[T], number: int) -> T | None:
    return items[number] if number < len(items) else None


__all__ = ["BlockFacts", "PallasFacts", "Place", "ScratchFacts", "pallas_facts"]
