"""What a text says literally of a ``pallas_call``, as the same values that a trace gives, so that the same checks can
look at it: index maps and windows over the grid, tiles, budgets of memory.

An operand whose array, block or index map the text does not give is left out, and with it every check that would need
it. Of the kernel nothing is read: an output counts as stored to at every step, which is what a TPU's pipeline does with
its block whatever the kernel does.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.core.errors import HloscopeError, UnsupportedError
from hloscope.core.pallas.accesses import Access, KernelFacts, RefId
from hloscope.core.pallas.blocks import BlockDim
from hloscope.core.pallas.call import Operand, PallasCall, Slots
from hloscope.core.pallas.checks import block_shapes, budgets, outputs, windows
from hloscope.core.pallas.checks.finding import Finding, Subject, points_text
from hloscope.core.pallas.chips import GPUS, TPUS, find_chip
from hloscope.core.pallas.grid import walk
from hloscope.core.pallas.index_map import Affine, unit
from hloscope.core.pallas.jaxpr import Array, Atom, Aval, Equation, Jaxpr, Literal, Slot, Span, itemsize_bits
from hloscope.core.pallas.static_names import (
    DEEPEST,
    Scope,
    Unknown,
    array_made,
    callee,
    elements,
    follow,
    number,
    parameter_names,
    shape_of,
    value_of,
)
from hloscope.core.pallas.static_sites import UNKNOWN_WORD, Site, Spec

if TYPE_CHECKING:
    from hloscope.core.pallas.static_source import Columns

MOST_POINTS = 1 << 14
"""Largest literal grid that is walked, and most values that one entry of an index map is computed for."""
MOST_OF_A_FILE = 1 << 16
"""Steps of all the grids of a file that are walked: a text is read at every keystroke."""
SMEM = 1 << 20
"""Bytes of scalar memory of a core of every TPU of ``TPUS``; jax's ``TpuInfo`` has the same for each."""
_INDEX = Aval("array", (), "int32")
_SPACES = frozenset({"vmem", "smem", "any", "hbm"})
_SCRATCH = frozenset({"VMEM", "SMEM"})
_WIDE = frozenset({"float64", "int64", "uint64", "complex128"})
"""What they are depends on whether jax keeps 64 bits."""
_KINDS = frozenset({"blocked", "squeezed", "element"})


def backend_of(site: Site, target: str | None) -> str | None:
    """The backend that its compiler parameters mean, or the target's where it has none."""
    if site.backend is not None or not site.given.closed or "compiler_params" in site.given.words:
        return site.backend
    return "tpu" if target in TPUS else None


def steps_of(site: Site) -> int:
    """Steps of a literal grid; 0 where it is none."""
    return math.prod(max(bound, 0) for bound in site.grid if bound is not None) if site.grid is not None else 0


def literal_findings(
    site: Site, path: str, columns: Columns, target: str | None, most: int = MOST_POINTS
) -> Iterator[Finding]:
    """What the checks of a traced call find in one, as far as its grid, blocks, index maps and arrays are literal.

    Grids of more than ``most`` steps are not walked: there index maps are held to their range only.
    """
    reader = _Reader(site, path, columns, target)
    if reader.backend == "tpu":
        yield from block_shapes.check_block_shapes(reader.subject(reader.shaped(), None))
    grid = reader.grid
    if grid is None:
        return
    if steps_of(site) > min(most, MOST_POINTS):
        yield from _far_ranges(reader, grid)
        return
    subject = reader.walked(grid)
    if subject is None:
        return
    checks: list[Callable[[Subject], Iterator[Finding]]] = [
        windows.check_grid, windows.check_range, windows.check_partial
    ]  # fmt: skip
    if site.given.closed and "input_output_aliases" not in site.given.words:
        checks.append(outputs.check_unwritten)
    if reader.backend in (None, "tpu") and target not in GPUS:
        checks.append(outputs.check_parallel)
    if reader.backend == "tpu":
        checks.append(outputs.check_semantics)
    if subject.chip is not None:
        checks.append(budgets.check_budgets)
    for check in checks:
        for one in check(subject):
            if one.code == "parallel-write-race":
                one = replace(one, severity="warning")  # the store may stand under a condition
            if one.code != "unsupported":
                yield one


@dataclass(frozen=True, slots=True)
class _Shaped:
    """An operand whose array and block are literal."""

    kind: str
    number: int
    spec: Spec
    array: Aval
    """Its element type is empty where the text does not give it."""
    dims: tuple[BlockDim, ...]
    buffers: int | None


class _Reader:
    """Reads one call."""

    def __init__(self, site: Site, path: str, columns: Columns, target: str | None) -> None:
        self.site, self.path, self.columns, self.target = site, path, columns, target
        self.scope = site.scope
        self.backend = backend_of(site, target)
        self.complete = True
        """Whether every operand is known."""
        self.grid: tuple[int, ...] | None = None
        """The grid where each bound is literal, and index maps get no more than its indices and what is prefetched."""
        if site.grid is not None and None not in site.grid and site.prefetch is not None:
            self.grid = tuple(bound for bound in site.grid if bound is not None)

    def shaped(self) -> list[Operand]:
        """Operands whose block can be held against the tiles of a TPU, whatever the grid and the index map are."""
        found: list[Operand] = []
        for one in self.all_shaped():
            if one.spec.mapped and one.spec.space in ("any", "hbm"):
                if tuple(dim.size for dim in one.dims) == one.array.shape:
                    continue  # whether it is the whole array depends on the map
            if any(dim.kind == "element" for dim in one.dims) or (len(one.dims) == 1 and not one.array.dtype):
                continue
            found.append(self.operand(one, _no_index_map(len(one.dims), 0)))
        return found

    def walked(self, grid: Sequence[int]) -> Subject | None:
        """The call with the operands whose windows are known at every step."""
        operands: list[Operand] = []
        for one in self.all_shaped():
            index_map = self.index_map(one, grid)
            if index_map is None:
                self.complete = False
            else:
                operands.append(self.operand(one, index_map))
        return self.subject(operands, grid)

    def subject(self, operands: Sequence[Operand], grid: Sequence[int] | None) -> Any:
        """What the checks look at."""
        site = self.site
        inputs = sum(one.kind == "input" for one in operands)
        scratch = self._scratch()
        compiler = self._compiler()
        refs = [*(one.ref for one in operands), *(scratch or ())]
        names = (*(one.name for one in operands), *(str(number) for number in range(len(scratch or ()))))
        kernel = Jaxpr((), (), tuple(range(len(refs))), (), (), dict(enumerate(refs)), names=names)
        words = None if UNKNOWN_WORD in site.semantics else site.semantics or None
        call = PallasCall(
            0, site.name, self._span(site.node), None, tuple(grid or ()), (),
            Slots(len(grid or ()), 0, 0, inputs, len(operands) - inputs, len(scratch or ())), tuple(operands), (),
            kernel, self.backend, compiler or {"dimension_semantics": words},
        )  # fmt: skip
        chip = None
        if self.complete and scratch is not None and compiler is not None and self.target in TPUS:
            chip = replace(find_chip(self.target or ""), smem=None if site.prefetch else SMEM)
        if grid is None:
            return Subject(self.path, call, self.backend, None, None, None, "not walked", function=site.function)
        try:
            schedule = walk(call)
        except UnsupportedError:
            return None
        always = np.ones(schedule.steps, bool)
        store = Equation("swap", (), (), (), {}, None, None)
        facts = KernelFacts(
            tuple(
                Access(
                    # By its number among all outputs: earlier ones may be left out.
                    "write", RefId(inputs + one.number, one.name, one.ref), None, store, None, always, 0, False, 0
                )
                for one in operands[inputs:]
            ),
            (),
        )  # fmt: skip
        return Subject(self.path, call, self.backend, chip, schedule, facts, function=site.function)

    def _span(self, node: ast.expr) -> Span:
        end = node.end_lineno or node.lineno
        return Span(
            self.path, self.site.function or "", node.lineno, self.columns.of(node.lineno, node.col_offset),
            end, self.columns.of(end, node.end_col_offset or 0),
        )  # fmt: skip

    def _each_shaped(self, kind: str) -> Iterator[_Shaped]:
        site = self.site
        if kind == "output":
            specs, shapes, arrays = site.outputs, site.shapes, site.results
        else:
            specs, shapes, arrays = site.inputs, site.operands, list(site.arguments)
        if not specs or not len(specs) == len(shapes) == len(arrays):
            self.complete = False
            return
        for position, (spec, shape, array) in enumerate(zip(specs, shapes, arrays, strict=True)):
            dtype = element_type(array, self.scope) or ""
            found = None if shape is None else self._sized(kind, position, spec, Aval("array", shape, dtype))
            if not dtype or found is None:
                self.complete = False
            if found is not None:
                yield found

    def _sized(self, kind: str, position: int, spec: Spec, array: Aval) -> _Shaped | None:
        if not spec.closed or (spec.space is not None and spec.space not in _SPACES):
            return None
        buffers = None
        if spec.buffers is not None:
            mode = follow(spec.buffers, self.scope)
            first = mode.args[0] if isinstance(mode, ast.Call) and len(mode.args) == 1 and not mode.keywords else None
            buffers = number(first, self.scope)
            if buffers is None:
                return None
        if spec.whole:
            dims = tuple(BlockDim("blocked", size) for size in array.shape)
        elif spec.shape is None or spec.kinds is None or len(spec.shape) != len(array.shape):
            return None
        else:
            sized = zip(spec.kinds, spec.shape, spec.padding, strict=True)
            dims = tuple(
                BlockDim(how, size, padding)
                for how, size, padding in sized
                if size is not None and size > 0 and padding is not None and how in _KINDS
            )
            if len(dims) != len(spec.shape):
                return None
        return _Shaped(kind, position, spec, array, dims, buffers)

    def all_shaped(self) -> Iterator[_Shaped]:
        """Inputs, then outputs, whose array and block are literal."""
        yield from self._each_shaped("input")
        yield from self._each_shaped("output")

    def operand(self, one: _Shaped, index_map: Jaxpr) -> Operand:
        kept = tuple(dim.size for dim in one.dims if dim.in_ref)
        spec = one.spec
        return Operand(
            one.kind, one.number, str(one.number), "", one.array, one.dims,
            Aval("ref", kept, one.array.dtype, spec.space or "default"), index_map,
            tuple(Slot(d) for d in range(len(one.dims))), one.buffers, self._span(spec.node),
            self._span(spec.index_map) if isinstance(spec.index_map, ast.Lambda) else None,
        )  # fmt: skip

    def index_map(self, one: _Shaped, grid: Sequence[int]) -> Jaxpr | None:
        """An index map as a table with a value for every step; None where the text does not give each."""
        rank = len(one.dims)
        if not one.spec.mapped:
            return _no_index_map(rank, len(grid))
        tables = self.tables(one, grid)
        if tables is None:
            return None
        consts: list[int] = []
        values: list[Array] = []
        atoms: list[Atom] = []
        for d, table in enumerate(tables):
            if table.size == 1:
                atoms.append(Literal(table.reshape(()), _INDEX))
                continue
            consts.append(1000 + d)
            values.append(np.broadcast_to(table, [max(bound, 0) for bound in grid]).reshape(-1))
            atoms.append(1000 + d)
        inputs = tuple(range(len(grid)))
        return Jaxpr(tuple(consts), tuple(values), inputs, (), tuple(atoms), dict.fromkeys((*inputs, *consts), _INDEX))

    def tables(self, one: _Shaped, grid: Sequence[int]) -> list[Array] | None:
        """The values of each result over the dimensions of the grid that it depends on, the others of length 1."""
        entries = self.entries(one, grid)
        if entries is None:
            return None
        names, scope, values = entries
        found: list[Array] = []
        for entry in values:
            table = _table(entry, names, grid, scope)
            if table is None:
                return None
            found.append(table)
        return found

    def entries(self, one: _Shaped, grid: Sequence[int]) -> tuple[list[str], Scope, list[ast.expr]] | None:
        """What an index map calls the grid's indices, the names that it sees, and its results; None where the text
        does not give one for each dimension."""
        mapped = one.spec.index_map
        if mapped is None:
            return None
        arguments = mapped.args
        taken = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or len(taken) < len(grid):
            return None
        entries = returned_entries(mapped, self.scope)
        if entries is None or len(entries) != len(one.dims):
            return None
        return taken[: len(grid)], names_seen_by(mapped, self.scope), entries

    def _scratch(self) -> list[Aval] | None:
        """Scratch memory; None where some of it is not known. Semaphores take no memory of the budgets."""
        written = self.site.given.words.get("scratch_shapes")
        if written is None:
            return [] if self.site.given.closed else None
        items = elements(written, self.scope)
        if items is None:
            return None
        found: list[Aval] = []
        for one in items:
            one = follow(one, self.scope)
            text = "" if one is None else ast.unparse(one)
            if "SemaphoreType." in text:
                continue
            if not isinstance(one, ast.Call) or callee(one, self.scope) not in _SCRATCH:
                return None
            words = {word.arg: word.value for word in one.keywords}
            shape = shape_of(words.get("shape", one.args[0] if one.args else None), self.scope)
            dtype = type_name(words.get("dtype", one.args[1] if len(one.args) > 1 else None), self.scope)
            if dtype is None or shape is None:
                return None
            found.append(Aval("ref", shape, dtype, callee(one, self.scope).lower()))
        return found

    def _compiler(self) -> dict[str, Any] | None:
        """The compiler parameters that the checks read; None where the text does not give them."""
        site = self.site
        words = None if UNKNOWN_WORD in site.semantics else site.semantics or None
        out: dict[str, Any] = {"dimension_semantics": words}
        params = follow(site.given.words.get("compiler_params"), self.scope)
        if params is None or isinstance(params, ast.Constant):
            return out if site.given.closed else None
        if not isinstance(params, ast.Call) or any(word.arg is None for word in params.keywords):
            return None
        limit = next((word.value for word in params.keywords if word.arg == "vmem_limit_bytes"), None)
        if limit is not None:
            bytes_ = number(limit, self.scope)
            if bytes_ is None:
                return None
            out["vmem_limit_bytes"] = bytes_
        return out


def _far_ranges(reader: _Reader, grid: Sequence[int]) -> Iterator[Finding]:
    """A grid that is too large to walk: each entry of a map by itself, in closed form or over the dimensions that it
    depends on."""
    where = reader.subject((), None)
    for one in reader.all_shaped():
        entries = reader.entries(one, grid)
        if entries is None or any(dim.kind == "element" for dim in one.dims):
            continue
        names, scope, values = entries
        for d, entry in enumerate(values):
            dim, extent = one.dims[d], one.array.shape[d]
            blocks = -(-extent // dim.size) if dim.kind == "blocked" else extent
            found = _first_outside(entry, names, grid, scope, blocks)
            if found is not None:
                point, index = found
                operand = reader.operand(one, _no_index_map(len(one.dims), len(grid)))
                yield where.finding(
                    "index-map-out-of-range",
                    f"at grid point {points_text(point)} the index map of {operand.title} gives block {index} of"
                    f" {blocks} in dimension {d}",
                    operand.place,
                )
                break


def _first_outside(
    entry: ast.expr, names: Sequence[str], grid: Sequence[int], scope: Scope, blocks: int
) -> tuple[tuple[int, ...], int] | None:
    """A grid point at which an entry of a map names a block that is none of ``blocks``, and that block."""
    form = _affine(entry, names, scope)
    if form is not None:
        low, high = form.range(grid)
        if low >= 0 and high < blocks:
            return None
        return form.corner(grid, greatest=low >= 0), high if low >= 0 else low
    table = _table(entry, names, grid, scope)
    if table is None:
        return None
    bad = np.argwhere((table < 0) | (table >= blocks))
    if not len(bad):
        return None
    point = tuple(map(int, bad[0]))
    return point, int(table[point])


def _affine(node: ast.expr, names: Sequence[str], scope: Scope, depth: int = 0) -> Affine | None:
    """An expression of the grid's indices as an affine function of them; None where it is not one."""
    if isinstance(node, ast.Name) and node.id in names:
        return unit(names.index(node.id), len(names))
    value = number(node, scope)
    if value is not None:
        return Affine(value, (0,) * len(names))
    if not isinstance(node, ast.BinOp) or depth > DEEPEST:
        return None
    left, right = (_affine(one, names, scope, depth + 1) for one in (node.left, node.right))
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left + right.scaled(-1)
    if isinstance(node.op, ast.Mult) and (left.is_constant or right.is_constant):
        return right.scaled(left.constant) if left.is_constant else left.scaled(right.constant)
    return None


def names_seen_by(function: ast.Lambda | ast.FunctionDef, scope: Scope) -> Scope:
    """The names around a lambda; none for one that stands outside of the function whose names these are."""
    first, last = scope.lines
    if not isinstance(function, ast.Lambda) or not first <= function.lineno <= last:
        return Scope()
    return scope.without(parameter_names(function.args))


def returned_entries(function: ast.Lambda | ast.FunctionDef, scope: Scope) -> list[ast.expr] | None:
    """What an index map returns, one expression for each dimension; None where that is not seen.

    A single expression counts as one value only where it is arithmetic on the map's own parameters and numbers.
    """
    result: ast.expr | None
    if isinstance(function, ast.Lambda):
        result = function.body
    else:
        only = function.body[-1] if len(function.body) == 1 or _only_documented(function) else None
        result = only.value if isinstance(only, ast.Return) else None
    if result is None:
        return None
    seen = names_seen_by(function, scope)
    items = elements(result, seen) if not isinstance(result, ast.Name) else None
    if items is not None:
        return items
    own = {one.arg for one in (*function.args.posonlyargs, *function.args.args)}
    for node in ast.walk(result):
        if isinstance(node, ast.Name) and node.id not in own and number(node, seen) is None:
            return None
        if not isinstance(node, ast.Name | ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop
                          | ast.expr_context):  # fmt: skip
            return None
    return [result]


def _only_documented(function: ast.FunctionDef) -> bool:
    """Whether all but a docstring is one statement."""
    first = function.body[0]
    return len(function.body) == 2 and isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)


def _no_index_map(rank: int, indices: int) -> Jaxpr:
    zero = Literal(np.zeros((), np.int32), _INDEX)
    inputs = tuple(range(indices))
    return Jaxpr((), (), inputs, (), (zero,) * rank, dict.fromkeys(inputs, _INDEX))


def _table(entry: ast.expr, names: Sequence[str], grid: Sequence[int], scope: Scope) -> Array | None:
    """The values of one result; computed once for each value of what it depends on."""
    used = {node.id for node in ast.walk(entry) if isinstance(node, ast.Name)}
    own = [max(bound, 0) if name in used else 1 for name, bound in zip(names, grid, strict=True)]
    if math.prod(own) > MOST_POINTS:
        return None
    out = np.zeros(own, np.int64)
    try:
        for point in np.ndindex(*own):
            value = value_of(entry, dict(zip(names, map(int, point), strict=True)), scope)
            if not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
                return None
            out[point] = value
    except Unknown:
        return None
    return out


def element_type(array: ast.expr | None, scope: Scope, depth: int = 0) -> str | None:
    """Element type of a ``ShapeDtypeStruct(shape, dtype)``, and of the like; None where the text does not give it."""
    made = array_made(array, scope)
    if made is None:
        return None
    given = {word.arg: word.value for word in made.keywords}
    place = 2 if callee(made, scope) == "full" else 1
    return type_name(given.get("dtype", made.args[place] if len(made.args) > place else None), scope, depth)


def type_name(node: ast.expr | None, scope: Scope, depth: int = 0) -> str | None:
    """The element type that an expression names; None for one of 64 bits, which jax keeps only where it is told to."""
    node = follow(node, scope)
    if isinstance(node, ast.Attribute) and node.attr == "dtype" and depth < 8:
        # As the array of that name has it, or the default of the parameter.
        return element_type(node.value, scope, depth + 1)
    name = None
    if isinstance(node, ast.Attribute):
        name = node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value
    if name is None or name in _WIDE:
        return None
    try:
        itemsize_bits(name)
    except (HloscopeError, KeyError, ValueError):
        return None
    return name
