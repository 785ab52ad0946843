"""Dimensions of a grid on which, by the text alone, nothing depends: no index map names them, and the kernel's body is
seen to ask for none of their program ids and to carry nothing from one step to the next.

What is not seen is taken for a use: a kernel or an index map from elsewhere, a call of something unknown, a reference
that is handed on, an output that is read.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from hloscope.core.pallas.static_names import Unknown, value_of
from hloscope.core.pallas.static_sites import UNKNOWN_WORD, Site, Spec

_LIBRARIES = frozenset({"jnp", "jax", "lax", "pl", "pltpu", "plgpu", "np", "math", "functools", "numpy"})
"""Names that modules go by; what is called of others may be anything."""
_EFFECT = re.compile(r"prng|semaphore|copy|dma|barrier|callback|debug|core_map|run_state|pipeline|^store$|^swap$")
_LIKES = frozenset({"zeros_like", "ones_like", "full_like", "empty_like"})
"""They ask no more of a reference than its shape."""
_SHAPES = frozenset({"shape", "dtype", "ndim", "size"})


class _Uncertain(Exception):
    """Something that may depend on any dimension."""


def unused_dimensions(site: Site) -> Iterator[tuple[int, int]]:
    """Each unused dimension with its bound. Steps of a parallel dimension that is unused race, which is said elsewhere;
    so it is on a GPU, where all are parallel."""
    grid, inputs, outputs = site.grid, site.inputs, site.outputs
    if grid is None or inputs is None or outputs is None or site.prefetch is None or not site.given.closed:
        return
    if site.backend in ("triton", "mosaic_gpu"):
        return
    left = {d for d, bound in enumerate(grid) if bound is not None and bound > 1}
    left -= {d for d, word in enumerate(site.semantics) if "parallel" in word or word == UNKNOWN_WORD}
    if not left or "input_output_aliases" in site.given.words:
        return
    try:
        for spec in (*inputs, *outputs):
            left -= _named(spec, len(grid))
        if left:
            left -= _Kernel(site, len(grid)).asked
    except _Uncertain:
        return
    yield from ((dim, grid[dim] or 0) for dim in sorted(left))


def _named(spec: Spec, rank: int) -> set[int]:
    """Dimensions that an index map uses."""
    mapped = spec.index_map
    if mapped is None:
        if spec.mapped or not spec.closed:
            raise _Uncertain
        return set()
    if mapped.args.vararg is not None:
        taken = [one.arg for one in mapped.args.args]
        if _names(mapped.body) & {mapped.args.vararg.arg}:
            raise _Uncertain
    else:
        taken = [one.arg for one in (*mapped.args.posonlyargs, *mapped.args.args)]
    used = _names(mapped.body)
    return {d for d, name in enumerate(taken[:rank]) if name in used}


def _names(body: ast.AST | list[ast.stmt]) -> set[str]:
    nodes = body if isinstance(body, list) else [body]
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


class _Kernel:
    """What the body of a site's kernel depends on. Raises _Uncertain where that is not seen."""

    def __init__(self, site: Site, rank: int) -> None:
        self.asked = set[int]()
        """Dimensions whose program id it asks for."""
        self._rank = rank
        self._scope = site.scope
        self._seen = set[str]()
        kernel = self._scope.functions.get(site.kernel or "")
        if kernel is None or kernel.args.vararg is not None or kernel.args.kwarg is not None:
            raise _Uncertain
        references = {one.arg for one in (*kernel.args.posonlyargs, *kernel.args.args)}
        self._read(kernel, references)

    def _read(self, function: ast.FunctionDef, references: set[str]) -> None:
        nodes = list(ast.walk(function))
        local = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        local |= {one.arg for one in nodes if isinstance(one, ast.arg)}
        local |= {one.name for one in nodes if isinstance(one, ast.FunctionDef)}
        local -= {one.arg for one in function.args.kwonlyargs}
        handed = {id(one) for one in nodes if isinstance(one, ast.Name) and one.id in references}
        stored, loaded = set[str](), set[str]()
        for node in nodes:
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in references:
                handed.discard(id(node.value))
                (stored if isinstance(node.ctx, ast.Store) else loaded).add(node.value.id)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
                loaded |= _names(node.target.value)
            elif isinstance(node, ast.Attribute) and node.attr in _SHAPES:
                handed.discard(id(node.value))
            elif isinstance(node, ast.Call):
                if _last(node.func) in _LIKES:
                    handed.difference_update(map(id, node.args))
                self._call(node, local)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in local:
                self._name(node.id)
            elif isinstance(node, ast.Global | ast.Nonlocal):
                raise _Uncertain
        if handed or stored & loaded:
            raise _Uncertain

    def _name(self, name: str) -> None:
        """A name from around the kernel: a function whose body is read, a number, or what a library has."""
        if name in _LIBRARIES:
            return
        function = self._scope.functions.get(name)
        if function is not None:
            if name not in self._seen:
                self._seen.add(name)
                self._read(function, {one.arg for one in (*function.args.posonlyargs, *function.args.args)})
            return
        value = self._scope.values.get(name)
        if value is None:
            if not hasattr(builtins, name):
                raise _Uncertain
        elif not isinstance(value, ast.Constant) and not (
            isinstance(value, ast.Attribute) and _root(value) in _LIBRARIES
        ):
            try:
                value_of(value, {}, self._scope)
            except Unknown:
                raise _Uncertain from None

    def _call(self, node: ast.Call, local: set[str]) -> None:
        name, root = _last(node.func), _root(node.func)
        if _EFFECT.search(name) or not isinstance(node.func, ast.Name | ast.Attribute | ast.Call):
            raise _Uncertain
        if name in ("program_id", "num_programs"):
            given = next((one.value for one in node.keywords if one.arg == "axis"), node.args[0] if node.args else None)
            try:
                axis = value_of(given, {}, self._scope)
            except Unknown:
                raise _Uncertain from None
            self.asked |= {axis} if isinstance(axis, int) and 0 <= axis < self._rank else set(range(self._rank))
        elif isinstance(node.func, ast.Attribute) and root is not None and root not in _LIBRARIES and root not in local:
            raise _Uncertain


def stores_whole(site: Site, output: int) -> bool:
    """Whether the kernel, as its text is seen, always stores to all of an output's block."""
    kernel = site.scope.functions.get(site.kernel or "")
    first = site.given.words.get("kernel")
    if kernel is None or site.inputs is None or site.prefetch is None or not isinstance(first, ast.Name):
        return False
    names = [one.arg for one in (*kernel.args.posonlyargs, *kernel.args.args)]
    place = site.prefetch + len(site.inputs) + output
    if place >= len(names) or (not site.inputs and len(names) != len(site.outputs or ())):
        return False
    for one in kernel.body:
        targets = one.targets if isinstance(one, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                all_of_it = isinstance(target.slice, ast.Constant) and target.slice.value is ...
                if target.value.id == names[place] and all_of_it:
                    return True
    return False


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _root(node: ast.expr) -> str | None:
    """The name that a chain of attributes begins with; None where it is the value of something else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
