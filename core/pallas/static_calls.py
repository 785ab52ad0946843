"""What a text says literally of a ``pallas_call``, as the same values that a trace gives, so that the same checks can
look at it: windows over the grid, budgets of memory.

An operand whose array, block or index map the text does not give is left out, and with it every check that would need
it. Of the kernel nothing is read: an output counts as stored to at every step, which is what a TPU's pipeline does with
its block whatever the kernel does.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.core.errors import HloscopeError, UnsupportedError
from hloscope.core.pallas.accesses import Access, KernelFacts, RefId
from hloscope.core.pallas.blocks import BlockDim
from hloscope.core.pallas.call import Operand, PallasCall, Slots
from hloscope.core.pallas.checks import budgets, outputs, windows
from hloscope.core.pallas.checks.finding import Finding, Subject
from hloscope.core.pallas.chips import GPUS, TPUS, find_chip
from hloscope.core.pallas.grid import walk
from hloscope.core.pallas.jaxpr import Array, Atom, Aval, Equation, Jaxpr, Literal, Slot, Span, itemsize_bits
from hloscope.core.pallas.static_sites import Scope, Site, Spec, Unknown, array_made, follow, value_of

if TYPE_CHECKING:
    from hloscope.core.pallas.static_source import Columns

MOST_POINTS = 1 << 16
"""Largest literal grid over which an index map is evaluated."""
SMEM = 1 << 20
"""Bytes of scalar memory of a core of every TPU of ``TPUS``; jax's ``TpuInfo`` has the same for each."""
_INDEX = Aval("array", (), "int32")
_SPACES = frozenset({"vmem", "smem", "any", "hbm", "semaphore"})
_SCRATCH = frozenset({"VMEM", "SMEM"})


def literal_findings(site: Site, path: str, columns: Columns, target: str | None) -> Iterator[Finding]:
    """What the checks of a traced call find in one whose grid, blocks and arrays are literal."""
    subject = _Reader(site, path, columns, target).subject()
    if subject is None:
        return
    checks: list[Callable[[Subject], Iterator[Finding]]] = [windows.check_grid, windows.check_partial]
    if "input_output_aliases" not in _given(site):
        checks.append(outputs.check_unwritten)
    if subject.backend in (None, "tpu") and target not in GPUS:
        checks.append(outputs.check_parallel)
    for check in checks:
        for one in check(subject):
            if one.code == "parallel-write-race":
                one = replace(one, severity="warning")  # the store may stand under a condition
            if one.code != "unsupported":
                yield one
    if subject.chip is not None:
        yield from (one for one in budgets.check_budgets(subject) if one.code != "unsupported")


def _given(site: Site) -> dict[str, ast.expr]:
    """Keywords of the call and of its ``grid_spec``."""
    given = {word.arg: word.value for word in site.node.keywords if word.arg}
    spec = follow(given.get("grid_spec"), site.scope or Scope())
    if isinstance(spec, ast.Call):
        given |= {word.arg: word.value for word in spec.keywords if word.arg and word.arg not in given}
    return given


class _Reader:
    """Reads one call."""

    def __init__(self, site: Site, path: str, columns: Columns, target: str | None) -> None:
        self.site, self.path, self.columns, self.target = site, path, columns, target
        self.scope = site.scope if site.scope is not None else Scope()
        self.given = _given(site)
        self.complete = True
        """Whether every operand is known."""

    def subject(self) -> Subject | None:
        """The call; None where its grid is not known, or where keywords come from elsewhere (``**``)."""
        site = self.site
        if site.grid is None or None in site.grid or any(word.arg is None for word in site.node.keywords):
            return None
        grid = tuple(bound for bound in site.grid if bound is not None)
        steps = math.prod(max(bound, 0) for bound in grid)
        if steps > MOST_POINTS or site.prefetch is None:
            return None
        inputs, results = list(self._operands("input", grid)), list(self._operands("output", grid))
        scratch = self._scratch()
        compiler = self._compiler()
        backend = site.backend
        if backend is None and "compiler_params" not in self.given and self.target in TPUS:
            backend = "tpu"
        operands = (*inputs, *results)
        refs = [*(one.ref for one in operands), *(scratch or ())]
        names = (*(one.name for one in operands), *(str(number) for number in range(len(scratch or ()))))
        kernel = Jaxpr((), (), tuple(range(len(refs))), (), (), dict(enumerate(refs)), names=names)
        call = PallasCall(
            0, site.name, self._span(site.node), None, grid, (),
            Slots(len(grid), 0, 0, len(inputs), len(results), len(scratch or ())), operands, (), kernel, backend,
            compiler or {"dimension_semantics": site.semantics},
        )  # fmt: skip
        chip = None
        if self.complete and scratch is not None and compiler is not None and self.target in TPUS:
            chip = replace(find_chip(self.target or ""), smem=None if site.prefetch else SMEM)
        try:
            schedule = walk(call)
        except UnsupportedError:
            return None
        always = np.ones(schedule.steps, bool)
        store = Equation("swap", (), (), (), {}, None, None)
        facts = KernelFacts(
            tuple(
                Access(
                    "write", RefId(len(inputs) + one.number, one.name, one.ref), None, store, None, always, 0, False, 0
                )
                for one in results
            ),
            (),
        )  # fmt: skip
        return Subject(self.path, call, backend, chip, schedule, facts, function=site.function)

    def _span(self, node: ast.expr) -> Span:
        end = node.end_lineno or node.lineno
        return Span(
            self.path, self.site.function or "", node.lineno, self.columns.of(node.lineno, node.col_offset),
            end, self.columns.of(end, node.end_col_offset or 0),
        )  # fmt: skip

    def _operands(self, kind: str, grid: Sequence[int]) -> Iterator[Operand]:
        site, scope = self.site, self.scope
        if kind == "output":
            specs, shapes = site.outputs, site.shapes
            written = self.given.get("out_shape", site.node.args[1] if len(site.node.args) > 1 else None)
            written = follow(written, scope)
            arrays = written.elts if isinstance(written, ast.Tuple | ast.List) else [written]
        else:
            skip = site.prefetch or 0
            specs, shapes = site.inputs, site.operands[skip:]
            arrays = list(scope.called_with.get(id(site.node), ()))[skip:]
        if (
            not specs
            or not len(specs) == len(shapes) == len(arrays)
            or any(isinstance(one, ast.Starred) for one in arrays)
        ):
            self.complete = False
            return
        for number, (spec, shape, array) in enumerate(zip(specs, shapes, arrays, strict=True)):
            dtype = element_type(array, scope)
            found = None
            if shape is not None and dtype is not None:
                found = self._operand(kind, number, spec, Aval("array", shape, dtype), grid)
            if found is None:
                self.complete = False
            else:
                yield found

    def _operand(self, kind: str, number: int, spec: Spec, array: Aval, grid: Sequence[int]) -> Operand | None:
        given = {word.arg: word.value for word in spec.node.keywords}
        mapped = given.get("index_map", spec.node.args[1] if len(spec.node.args) > 1 else None)
        shape = given.get("block_shape", spec.node.args[0] if spec.node.args else None)
        if None in given or ("memory_space" in given and spec.space not in _SPACES):
            return None
        buffers = None
        if "pipeline_mode" in given:
            mode = follow(given["pipeline_mode"], self.scope)
            try:
                buffers = value_of(mode.args[0], {}, self.scope) if isinstance(mode, ast.Call) else None
            except (Unknown, IndexError):
                buffers = None
            if not isinstance(buffers, int):
                return None
        if shape is None:
            dims = tuple(BlockDim("blocked", size) for size in array.shape)
        elif spec.shape is None or spec.kinds is None:
            return None
        else:
            dims = tuple(
                BlockDim(how, size)
                for how, size in zip(spec.kinds, spec.shape, strict=True)
                if size is not None and size > 0 and how in ("blocked", "squeezed")
            )
            if len(dims) != len(spec.shape):
                return None
        if len(dims) != len(array.shape):
            return None
        index_map = _no_index_map(len(dims), len(grid)) if mapped is None else _tabulated(spec, len(dims), grid)
        if index_map is None:
            return None
        kept = tuple(dim.size for dim in dims if dim.in_ref)
        place = self._span(spec.node)
        return Operand(
            kind, number, str(number), "", array, dims, Aval("ref", kept, array.dtype, spec.space or "default"),
            index_map, tuple(Slot(d) for d in range(len(dims))), buffers, place,
            self._span(spec.index_map) if isinstance(spec.index_map, ast.Lambda) else None,
        )  # fmt: skip

    def _scratch(self) -> list[Aval] | None:
        """Scratch memory; None where some of it is not known. Semaphores take no memory of the budgets."""
        written = follow(self.given.get("scratch_shapes"), self.scope)
        if written is None:
            return []
        if not isinstance(written, ast.Tuple | ast.List):
            return None
        found: list[Aval] = []
        for one in written.elts:
            one = follow(one, self.scope)
            text = "" if one is None else ast.unparse(one)
            if "SemaphoreType." in text:
                continue
            name = text.partition("(")[0].rpartition(".")[2]
            if not isinstance(one, ast.Call) or name not in _SCRATCH:
                return None
            words = {word.arg: word.value for word in one.keywords}
            dims = follow(words.get("shape", one.args[0] if one.args else None), self.scope)
            dtype = _type_name(words.get("dtype", one.args[1] if len(one.args) > 1 else None), self.scope)
            if dtype is None or not isinstance(dims, ast.Tuple | ast.List):
                return None
            try:
                shape = tuple(int(value_of(size, {}, self.scope)) for size in dims.elts)
            except Unknown:
                return None
            found.append(Aval("ref", shape, dtype, name.lower()))
        return found

    def _compiler(self) -> dict[str, Any] | None:
        """The compiler parameters that the checks read; None where the text does not give them."""
        out: dict[str, Any] = {"dimension_semantics": self.site.semantics}
        if "compiler_params" not in self.given:
            return out
        params = follow(self.given["compiler_params"], self.scope)
        if not isinstance(params, ast.Call) or any(word.arg is None for word in params.keywords):
            return None
        limit = next((word.value for word in params.keywords if word.arg == "vmem_limit_bytes"), None)
        if limit is not None:
            try:
                out["vmem_limit_bytes"] = value_of(limit, {}, self.scope)
            except Unknown:
                return None
        return out


def _no_index_map(rank: int, indices: int) -> Jaxpr:
    zero = Literal(np.zeros((), np.int32), _INDEX)
    inputs = tuple(range(indices))
    return Jaxpr((), (), inputs, (), (zero,) * rank, dict.fromkeys(inputs, _INDEX))


def _tabulated(spec: Spec, rank: int, grid: Sequence[int]) -> Jaxpr | None:
    """An index map as a table with a value for every step; None where the text does not give each."""
    mapped = spec.index_map
    if mapped is None:
        return None
    arguments = mapped.args
    taken = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or len(taken) < len(grid):
        return None
    body: ast.expr | None
    if isinstance(mapped, ast.Lambda):
        body = mapped.body
    else:
        only = mapped.body[0] if len(mapped.body) == 1 else None
        body = only.value if isinstance(only, ast.Return) else None
    entries = body.elts if isinstance(body, ast.Tuple) else [body]
    if len(entries) != rank:
        return None
    scope, consts, values = Scope(), [], []
    atoms: list[Atom] = []
    for d, entry in enumerate(entries):
        table = _table(entry, taken[: len(grid)], grid, scope)
        if table is None:
            return None
        if isinstance(entry, ast.Constant):
            atoms.append(Literal(np.asarray(entry.value, np.int64), _INDEX))
            continue
        consts.append(1000 + d)
        values.append(table)
        atoms.append(1000 + d)
    inputs = tuple(range(len(grid)))
    return Jaxpr(tuple(consts), tuple(values), inputs, (), tuple(atoms), dict.fromkeys((*inputs, *consts), _INDEX))


def _table(entry: ast.expr | None, names: Sequence[str], grid: Sequence[int], scope: Scope) -> Array | None:
    """The values of one result, in the order of the steps; computed once for each value of what it depends on."""
    if entry is None:
        return None
    used = {node.id for node in ast.walk(entry) if isinstance(node, ast.Name)}
    own = [max(bound, 0) if name in used else 1 for name, bound in zip(names, grid, strict=True)]
    out = np.zeros(own, np.int64)
    try:
        for point in np.ndindex(*own):
            value = value_of(entry, dict(zip(names, map(int, point), strict=True)), scope)
            if not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
                return None
            out[point] = value
    except Unknown:
        return None
    return np.broadcast_to(out, [max(bound, 0) for bound in grid]).reshape(-1)


def element_type(array: ast.expr | None, scope: Scope, depth: int = 0) -> str | None:
    """Element type of a ``ShapeDtypeStruct(shape, dtype)``, and of the like; None where the text does not give it."""
    made = array_made(array, scope)
    if made is None:
        return None
    given = {word.arg: word.value for word in made.keywords}
    place = 2 if ast.unparse(made.func).endswith("full") else 1
    return _type_name(given.get("dtype", made.args[place] if len(made.args) > place else None), scope, depth)


def _type_name(node: ast.expr | None, scope: Scope, depth: int = 0) -> str | None:
    node = follow(node, scope)
    if isinstance(node, ast.Attribute) and node.attr == "dtype" and depth < 8:
        # As the array of that name has it, or the default of the parameter.
        return element_type(node.value, scope, depth + 1)
    name = None
    if isinstance(node, ast.Attribute):
        name = node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value
    if name is None:
        return None
    try:
        itemsize_bits(name)
    except (HloscopeError, KeyError, ValueError):
        return None
    return name
