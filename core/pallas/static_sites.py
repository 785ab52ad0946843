"""The ``pallas_call`` sites of a Python text, with what the names around them stand for (``static_names.py``)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hloscope.core.pallas.python_reader import Reading
from hloscope.core.pallas.static_names import (
    Scope,
    array_shape,
    binds,
    callee,
    class_scope,
    elements,
    follow,
    full_name,
    function_scope,
    module_scope,
    number,
)

CALLS = frozenset({"pallas_call"})
UNKNOWN_WORD = "?"
LAMBDA = "<lambda>"
"""What Python, and so jax, calls a kernel without a name."""
DIMENSIONS = ("Blocked", "Squeezed", "Element", "BoundedSlice", "Indirect")
"""Kinds of block dimension as ``jax.experimental.pallas`` spells them."""
KINDS = {"Blocked": "blocked", "Squeezed": "squeezed", "Element": "element", "BoundedSlice": "bounded_slice",
         "Indirect": "indirect"}  # fmt: skip
"""The same as ``blocks.BlockDim`` names them."""


@dataclass(slots=True)
class Spec:
    """A ``BlockSpec`` in the text."""

    node: ast.expr
    shape: tuple[int | None, ...] | None
    """Elements of a block by dimension, 1 for squeezed ones, None for those that are not known; None where not even
    their number is."""
    index_map: ast.Lambda | ast.FunctionDef | None
    """None where there is none, or where it is not seen: ``mapped`` tells."""
    space: str | None
    """The memory space; None where none is named, `UNKNOWN_WORD` where it is not known."""
    kinds: tuple[str, ...] | None = None
    padding: tuple[tuple[int, int] | None, ...] = ()
    """Padding by dimension, None where it is not known."""
    mapped: bool = False
    """Whether the spec has an index map."""
    whole: bool = False
    """Whether it has no block shape, so that a block is the array."""
    buffers: ast.expr | None = None
    """Its ``pipeline_mode``."""
    closed: bool = True
    """Whether nothing is handed on with ``*`` or ``**``."""


@dataclass(slots=True)
class Given:
    """The arguments of a call by keyword."""

    words: Mapping[str, ast.expr]
    closed: bool
    """Whether there are no others."""


@dataclass(slots=True)
class Site:
    """A ``pallas_call`` in the text."""

    node: ast.Call
    function: str | None
    """The function around it."""
    kernel: str | None
    name: str
    grid: tuple[int | None, ...] | None
    prefetch: int | None
    inputs: list[Spec] | None
    outputs: list[Spec] | None
    shapes: list[tuple[int, ...] | None]
    """Shapes of outputs where they are literal."""
    operands: list[tuple[int, ...] | None]
    """Shapes of operands that are parameters whose defaults are literal shapes; none where their places are not
    known."""
    given: Given
    scope: Scope
    """The names around it, for readers that ask for more."""
    semantics: tuple[str, ...] = ()
    """A word for each dimension, `UNKNOWN_WORD` for one that the text does not give."""
    backend: str | None = None
    """``tpu``, ``triton`` or ``mosaic_gpu``, where the compiler parameters say."""
    wrapped: bool = False
    """Whether the text does not show all of the call: ``partial(pl.pallas_call, …)`` by itself, to which more may be
    given, or a function of that name that is not jax's."""

    @property
    def mentions_tpu(self) -> bool:
        """Whether the call itself names something of ``jax.experimental.pallas.tpu``."""
        words = (node for node in ast.walk(self.node) if isinstance(node, ast.Attribute))
        return any("tpu." in full_name(one, self.scope).lower() for one in words)

    @property
    def results(self) -> list[ast.expr | None]:
        """What ``out_shape`` lists, names followed."""
        written = self.given.words.get("out_shape")
        items = elements(written, self.scope)
        return [follow(written, self.scope)] if items is None else [follow(one, self.scope) for one in items]

    @property
    def arguments(self) -> list[ast.expr]:
        """What the call's result is applied to, without what is prefetched; none where places are not known."""
        given = self.scope.called_with.get(id(self.node), [])
        if self.prefetch is None or any(isinstance(one, ast.Starred) for one in given):
            return []
        return given[self.prefetch :]


def find_sites(reading: Reading) -> Iterator[Site]:
    """Every ``pallas_call`` of a file, in order."""
    found: list[Site] = []
    uses: _Uses = {}
    _visit(reading.tree, None, module_scope(reading), found, uses)
    _tie_uses(found, uses)
    yield from sorted(found, key=lambda site: (site.node.lineno, site.node.col_offset))


_Uses = dict[int, list[tuple[Scope, list[ast.expr]]]]
"""Identity of a ``pallas_call(…)`` that has a name -> what the name is called with, and the names there."""


def _tie_uses(found: Sequence[Site], uses: _Uses) -> None:
    """Ties ``f = pl.pallas_call(…)`` to ``f(x)`` of the same function, where every such call gives it the same."""
    for site in found:
        # another function, a lambda or a comprehension may mean something else by the names
        here = [given for scope, given in uses.get(id(site.node), ()) if scope is site.scope]
        if here and len({tuple(map(ast.dump, given)) for given in here}) == 1 and not site.wrapped:
            site.scope.called_with[id(site.node)] = here[0]
            site.operands = [array_shape(one, site.scope) for one in site.arguments]


def _visit(node: ast.AST, function: str | None, scope: Scope, found: list[Site], uses: _Uses) -> None:
    if isinstance(node, ast.ClassDef):
        inside = class_scope(node, scope)
        for child in ast.iter_child_nodes(node):
            methods = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            _visit(child, function, scope if methods else inside, found, uses)
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for decorator in node.decorator_list:
            # @partial(pl.pallas_call, …) hands the function below to the call.
            call = _bound_call(decorator)
            if call is not None:
                call.args.insert(0, ast.Name(node.name, ast.Load()))
                around = scope.copy()
                if isinstance(node, ast.FunctionDef):
                    around.functions[node.name] = node
                found.append(_site(call, function or node.name, around))
            else:
                _visit(decorator, function, scope, found, uses)
        scope = function_scope(node, scope, outermost=function is None)
        function = function or node.name
    own = binds(node)
    if own is not None:
        scope = scope.without(own)
    if isinstance(node, ast.Call):
        call, bound, partial = _applied(node)
        if isinstance(node.func, ast.Name):
            made = follow(node.func, scope)
            if isinstance(made, ast.Call) and callee(made) in CALLS:
                uses.setdefault(id(made), []).append((scope, _arguments(node)))
        if isinstance(node.func, ast.Call) and callee(node.func) in CALLS:
            scope.called_with[id(node.func)] = _arguments(node)
        if call is not None:
            if bound is not None:
                scope.called_with[id(call)] = bound
            site = _site(call, function, scope)
            site.wrapped = site.wrapped or partial
            found.append(site)
            for child in (*call.args, *call.keywords, *(bound or ())):
                _visit(child, function, scope, found, uses)
            return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and child in node.decorator_list):
            _visit(child, function, scope, found, uses)


def _applied(node: ast.Call) -> tuple[ast.Call | None, list[ast.expr] | None, bool]:
    """The ``pallas_call`` that a call is, ``partial(pl.pallas_call, …)`` too, what its result is applied to, and
    whether it is not called yet."""
    if callee(node) in CALLS:
        return node, None, False
    if (alone := _bound_call(node)) is not None:
        return alone, None, True
    if (inner := _bound_call(node.func)) is not None:
        return _joined(inner, node), None, False
    if isinstance(node.func, ast.Call) and (inner := _bound_call(node.func.func)) is not None:
        return _joined(inner, node.func), _arguments(node), False
    return None, None, False


def _arguments(node: ast.Call) -> list[ast.expr]:
    """What a call's result is applied to; a keyword, which it does not take, makes the places unknown."""
    return [ast.Starred(node.func, ast.Load())] if node.keywords else node.args


def _joined(inner: ast.Call, outer: ast.Call) -> ast.Call:
    """What ``partial`` holds and what is given to it: later words replace earlier ones."""
    later = {word.arg for word in outer.keywords}
    words = [word for word in inner.keywords if word.arg is None or word.arg not in later]
    joined = ast.Call(inner.func, [*inner.args, *outer.args], [*words, *outer.keywords])
    return ast.copy_location(joined, inner)


def _bound_call(node: ast.expr) -> ast.Call | None:
    """``partial(pl.pallas_call, …)`` as the call that it is part of."""
    if not isinstance(node, ast.Call) or callee(node) != "partial" or not node.args:
        return None
    first = node.args[0]
    name = first.attr if isinstance(first, ast.Attribute) else first.id if isinstance(first, ast.Name) else ""
    if name not in CALLS:
        return None
    return ast.copy_location(ast.Call(first, list(node.args[1:]), list(node.keywords)), node)


_POSITIONS = {
    "pallas_call": ("kernel", "out_shape"),
    "GridSpec": ("grid", "in_specs", "out_specs", "scratch_shapes"),
    "PrefetchScalarGridSpec": ("num_scalar_prefetch", "grid", "in_specs", "out_specs", "scratch_shapes"),
    "BlockSpec": ("block_shape", "index_map", "pipeline_mode"),
}
"""Call -> names of its arguments by place."""


def given_to(node: ast.Call, what: str) -> Given:
    """The arguments of a call of that name."""
    known = list(zip(_POSITIONS[what], node.args, strict=False))
    closed = not any(isinstance(one, ast.Starred) for one in node.args)
    words = dict(known) if closed else {}
    words |= {word.arg: word.value for word in node.keywords if word.arg}
    return Given(words, closed and all(word.arg for word in node.keywords) and len(node.args) <= len(_POSITIONS[what]))


def _site(node: ast.Call, function: str | None, scope: Scope) -> Site:
    given = given_to(node, "pallas_call")
    words, closed = dict(given.words), given.closed
    prefetch: int | None = 0 if closed or "grid" in words else None
    spec = follow(words.get("grid_spec"), scope)
    if isinstance(spec, ast.Call) and callee(spec, scope).endswith("GridSpec"):
        prefetched = callee(spec, scope) == "PrefetchScalarGridSpec"
        inner = given_to(spec, "PrefetchScalarGridSpec" if prefetched else "GridSpec")
        words |= {word: value for word, value in inner.words.items() if word not in words}
        closed = closed and inner.closed and callee(spec, scope) in _POSITIONS
        prefetch = number(words.get("num_scalar_prefetch"), scope) if prefetched else 0
    elif spec is not None and not (isinstance(spec, ast.Constant) and spec.value is None):
        closed, prefetch = False, None
    kernel = words.get("kernel")
    name = words.get("name")
    title = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
    site = Site(
        node, function, _kernel_name(kernel, scope), title or _title(kernel, scope),
        _grid(words.get("grid"), scope) if closed or "grid" in words else None, prefetch,
        _specs(words.get("in_specs"), scope, closed), _specs(words.get("out_specs"), scope, closed), [], [],
        Given(words, closed), scope,
    )  # fmt: skip
    site.shapes = [array_shape(one, scope) for one in site.results]
    site.operands = [array_shape(one, scope) for one in site.arguments]
    site.semantics, site.backend = _compiler(site)
    site.wrapped = not _of_jax(node.func, scope)
    return site


def _of_jax(called: ast.expr, scope: Scope) -> bool:
    """Whether a ``pallas_call`` is the one of ``jax.experimental.pallas``, as far as names tell."""
    root = called
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name) or root.id in scope.values or root.id in scope.functions:
        return False
    module = full_name(called, scope).rpartition(".")[0]
    return module.rpartition(".")[2] in ("pl", "pallas", "") or module.startswith("jax.")


def _compiler(site: Site) -> tuple[tuple[str, ...], str | None]:
    """What is said of the dimensions, and the backend that the compiler parameters belong to."""
    rank, scope = len(site.grid or ()), site.scope
    unknown = (UNKNOWN_WORD,) * rank
    written = site.given.words.get("compiler_params")
    params = follow(written, scope)
    if params is None or isinstance(params, ast.Constant):
        return () if site.given.closed else unknown, None
    if not isinstance(params, ast.Call):
        return unknown, None
    hint = full_name(follow(params.func, scope) or params.func, scope).lower().rpartition(".")
    hint = (hint[0] or hint[2]).rpartition("pallas.")[2]
    backend = next((name for name in ("triton", "mosaic_gpu", "tpu") if name in hint), None)
    words = next((w.value for w in params.keywords if w.arg == "dimension_semantics"), None)
    if words is None:
        plain = (
            all(word.arg for word in params.keywords) and not params.args and callee(params, scope).endswith("Params")
        )
        return () if plain else unknown, backend
    listed = elements(words, scope)
    return unknown if listed is None else tuple(_word(one, scope) for one in listed), backend


def _word(node: ast.expr, scope: Scope) -> str:
    """What is said of a dimension, as a string or a member of jax's enumeration."""
    node = follow(node, scope) or node
    if isinstance(node, ast.Attribute) and node.attr.isupper():
        return node.attr.lower()
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else UNKNOWN_WORD


def _kernel(node: ast.expr | None, scope: Scope) -> ast.expr | None:
    node = follow(node, scope)
    while isinstance(node, ast.Call) and callee(node, scope) == "partial" and node.args:
        node = follow(node.args[0], scope)
    return node


def _kernel_name(node: ast.expr | None, scope: Scope) -> str | None:
    node = _kernel(node, scope)
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _title(node: ast.expr | None, scope: Scope) -> str:
    if isinstance(_kernel(node, scope), ast.Lambda):
        return LAMBDA
    return _kernel_name(node, scope) or "pallas_call"


def _grid(node: ast.expr | None, scope: Scope) -> tuple[int | None, ...] | None:
    if node is None:
        return ()
    items = elements(node, scope)
    if items is not None:
        return tuple(number(one, scope) for one in items)
    found = number(node, scope)
    return None if found is None else (found,)


def _specs(node: ast.expr | None, scope: Scope, closed: bool) -> list[Spec] | None:
    if node is None:
        return [] if closed else None
    if _no_block(follow(node, scope)):
        return []
    items = elements(node, scope)
    found: list[Spec] = []
    for entry in [node] if items is None else items:
        entry = follow(entry, scope)
        if entry is not None and _no_block(entry):
            found.append(Spec(entry, None, None, None, whole=True))
            continue
        if not isinstance(entry, ast.Call) or not callee(entry, scope).endswith("BlockSpec"):
            return None
        found.append(_spec(entry, scope))
    return found


def _no_block(node: ast.expr | None) -> bool:
    """Whether it is ``pl.no_block_spec``, which stands for the whole array."""
    return isinstance(node, ast.Attribute) and node.attr == "no_block_spec"


def _spec(node: ast.Call, scope: Scope) -> Spec:
    given = given_to(node, "BlockSpec")
    words = given.words
    mapped = follow(words.get("index_map"), scope)
    function = mapped if isinstance(mapped, ast.Lambda) else None
    if isinstance(mapped, ast.Name):
        function = scope.functions.get(mapped.id)
    space = _none_if_none(words.get("memory_space"))
    named = None
    if space is not None:
        known = follow(space, scope)
        named = known.attr.lower() if isinstance(known, ast.Attribute) and known.attr.isupper() else UNKNOWN_WORD
    shape = _none_if_none(follow(words.get("block_shape"), scope))
    out = Spec(
        node, None, function, named, mapped=_none_if_none(mapped) is not None, whole=shape is None and given.closed,
        buffers=_none_if_none(words.get("pipeline_mode")), closed=given.closed and callee(node, scope) == "BlockSpec",
    )  # fmt: skip
    if isinstance(shape, ast.Attribute) and shape.attr == "shape":
        sizes = array_shape(shape.value, scope)
        dims = None if sizes is None else [("blocked", size, (0, 0)) for size in sizes]
    else:
        items = elements(shape, scope)
        dims = None if items is None else [_dimension(one, scope) for one in items]
    if dims is not None:
        out.kinds, out.shape = tuple(one[0] for one in dims), tuple(one[1] for one in dims)
        out.padding = tuple(one[2] for one in dims)
    return out


def _none_if_none(node: ast.expr | None) -> ast.expr | None:
    return None if isinstance(node, ast.Constant) and node.value is None else node


def _dimension(node: ast.expr, scope: Scope) -> tuple[str, int | None, tuple[int, int] | None]:
    """Kind, elements and padding of a block dimension, by a number, None, or what ``pl`` calls it."""
    inner = follow(node, scope)
    if isinstance(inner, ast.Constant) and inner.value is None:
        return "squeezed", 1, (0, 0)
    if isinstance(inner, ast.Attribute | ast.Name) and full_name(inner, scope).endswith(".squeezed"):
        return "squeezed", 1, (0, 0)
    if not isinstance(inner, ast.Call) or callee(inner, scope) not in DIMENSIONS:
        return "blocked", number(node, scope), (0, 0)
    kind = KINDS[callee(inner, scope)]
    if kind == "squeezed":
        return kind, 1, (0, 0)
    words = {word.arg: word.value for word in inner.keywords}
    size = number(words.get("block_size", inner.args[0] if inner.args else None), scope)
    written = words.get("padding", inner.args[1] if len(inner.args) > 1 else None)
    if written is None:
        return kind, size, (0, 0)
    both = [number(one, scope) for one in elements(written, scope) or ()]
    low, high = both if len(both) == 2 else (None, None)
    return kind, size, None if low is None or high is None else (low, high)
