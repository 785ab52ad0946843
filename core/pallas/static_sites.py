"""The ``pallas_call`` sites of a Python text and what the names around them stand for. Nothing is imported or run.

Literals, constants and arithmetic on them are evaluated by a small evaluator of our own. A name that is bound twice, in
a branch, by a pattern, or in a statement that is half typed is not known.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hloscope.core.pallas.python_reader import Reading

CALLS = frozenset({"pallas_call"})
ARRAYS = frozenset({"ShapeDtypeStruct", "ones", "zeros", "empty", "full"})
"""Calls whose first argument is the shape of what they make."""

UNKNOWN_WORD = "?"


class Unknown(Exception):
    """An expression whose value the text does not give."""


@dataclass(slots=True)
class Spec:
    """A ``BlockSpec`` in the text."""

    node: ast.Call
    shape: tuple[int | None, ...] | None
    """Entries that are numbers; 0 for squeezed ones, None for those that are not known."""
    index_map: ast.Lambda | ast.FunctionDef | None
    space: str | None
    kinds: tuple[str, ...] | None = None


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
    """Shapes of operands that are parameters whose defaults are literal shapes."""
    semantics: tuple[str, ...] = ()
    """A word for each dimension, `UNKNOWN_WORD` for one that the text does not give."""
    backend: str | None = None
    scope: Scope | None = None
    """The names around it, for readers that ask for more."""


@dataclass(slots=True)
class Scope:
    """Names whose values the text gives."""

    values: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict[str, ast.FunctionDef])
    defaults: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    """Defaults of the parameters of the functions around."""
    called_with: dict[int, list[ast.expr]] = field(default_factory=dict[int, list[ast.expr]])
    """Identity of a ``pallas_call(…)`` -> what its result is applied to."""
    repeated: set[str] = field(default_factory=set[str])
    reading: Reading | None = None
    """The text, which knows the statements whose values are not to be trusted."""


def find_sites(reading: Reading) -> Iterator[Site]:
    """Every ``pallas_call`` of a file, in order."""
    found: list[Site] = []
    _visit(reading.tree, None, _scope_of(reading.tree.body, Scope(reading=reading)), found)
    yield from sorted(found, key=lambda site: (site.node.lineno, site.node.col_offset))


def _scope_of(body: Sequence[ast.stmt], outer: Scope, parameters: ast.arguments | None = None) -> Scope:
    scope = Scope(
        dict(outer.values), dict(outer.functions), dict(outer.defaults), outer.called_with, set(outer.repeated),
        outer.reading,
    )  # fmt: skip
    local: set[str] = set()
    if parameters is not None:
        _bind_parameters(parameters, scope)
        local.update(_parameter_names(parameters))
    for node in _straight(body):
        doubtful = outer.reading is not None and outer.reading.doubtful(node.lineno, node.end_lineno or node.lineno)
        for name, value in _bindings(node):
            if name in local:
                scope.repeated.add(name)  # assigned twice: the text alone does not say which holds
            else:
                scope.repeated.discard(name)
            local.add(name)
            scope.defaults.pop(name, None)
            if value is not None and not doubtful:
                scope.values[name] = value
            else:
                scope.values.pop(name, None)
        if isinstance(node, ast.FunctionDef):
            scope.functions.pop(node.name, None)
            if not doubtful:
                scope.functions[node.name] = node
    return scope


def _parameter_names(parameters: ast.arguments) -> list[str]:
    rest = [one for one in (parameters.vararg, parameters.kwarg) if one is not None]
    return [one.arg for one in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs, *rest)]


def _bind_parameters(parameters: ast.arguments, scope: Scope) -> None:
    """Parameters hide the names around; their defaults are kept, for shapes."""
    for name in _parameter_names(parameters):
        scope.values.pop(name, None)
        scope.defaults.pop(name, None)
        scope.repeated.discard(name)
    positional = [one.arg for one in (*parameters.posonlyargs, *parameters.args)]
    given = parameters.defaults
    # Half typed, there may be more defaults than parameters before them.
    scope.defaults.update(zip(positional[max(0, len(positional) - len(given)) :], given, strict=False))
    for one, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=False):
        if default is not None:
            scope.defaults[one.arg] = default


def _straight(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run one after the other: the suite of a ``with`` is one of them, that of an ``if`` is not."""
    for node in body:
        yield node
        if isinstance(node, ast.With | ast.AsyncWith):
            yield from _straight(node.body)


_BRANCHES = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.Try, ast.TryStar, ast.Match)


def _bindings(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Names that a statement binds, with the value where it is one; twice where it may be another after it."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            else:
                yield from ((name, None) for name in _stored(target))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, None
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((one.asname or one.name.partition(".")[0], None) for one in node.names)
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            if item.optional_vars is not None:
                yield from ((name, None) for name in _stored(item.optional_vars))
    elif isinstance(node, (*_BRANCHES, ast.AugAssign)):
        for name in _stored(node):
            yield name, None
            yield name, None
        return
    for inner in ast.walk(node) if isinstance(node, ast.Assign | ast.Expr | ast.Return) else ():
        if isinstance(inner, ast.NamedExpr):
            yield inner.target.id, None
            yield inner.target.id, None


def _stored(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and inner.name:
            yield inner.name


def _visit(node: ast.AST, function: str | None, scope: Scope, found: list[Site]) -> None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for decorator in node.decorator_list:
            # @partial(pl.pallas_call, …) hands the function below to the call.
            call = _bound_call(decorator)
            if call is not None:
                call.args.insert(0, ast.Name(node.name, ast.Load()))
                found.append(_site(call, function or node.name, scope))
            else:
                _visit(decorator, function, scope, found)
        scope = _scope_of(node.body, scope, node.args)
        function = function or node.name
    if isinstance(node, ast.Call):
        call, bound = _applied(node)
        if isinstance(node.func, ast.Call) and _callee(node.func) in CALLS:
            scope.called_with[id(node.func)] = node.args
        if call is not None:
            if bound is not None:
                scope.called_with[id(call)] = bound
            found.append(_site(call, function, scope))
            for child in (*call.args, *call.keywords, *(bound or ())):
                _visit(child, function, scope, found)
            return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and child in node.decorator_list):
            _visit(child, function, scope, found)


def _applied(node: ast.Call) -> tuple[ast.Call | None, list[ast.expr] | None]:
    """The ``pallas_call`` that a call is, ``partial(pl.pallas_call, …)`` too, and what its result is applied to."""
    if _callee(node) in CALLS:
        return node, None
    if (alone := _bound_call(node)) is not None:
        return alone, None
    if (inner := _bound_call(node.func)) is not None:
        inner.args.extend(node.args)
        return inner, None
    if isinstance(node.func, ast.Call) and (inner := _bound_call(node.func.func)) is not None:
        inner.args.extend(node.func.args)
        return inner, node.args
    return None, None


def _bound_call(node: ast.expr) -> ast.Call | None:
    """``partial(pl.pallas_call, …)`` as the call that it is part of."""
    if not isinstance(node, ast.Call) or _callee(node) != "partial" or not node.args:
        return None
    first = node.args[0]
    name = first.attr if isinstance(first, ast.Attribute) else first.id if isinstance(first, ast.Name) else ""
    if name not in CALLS:
        return None
    return ast.copy_location(ast.Call(first, list(node.args[1:]), list(node.keywords)), node)


def _callee(node: ast.Call) -> str:
    called = node.func
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _site(node: ast.Call, function: str | None, scope: Scope) -> Site:
    given = {word.arg: word.value for word in node.keywords if word.arg}
    spec = follow(given.get("grid_spec"), scope)
    prefetch: int | None = 0
    if isinstance(spec, ast.Call):
        given |= {word.arg: word.value for word in spec.keywords if word.arg and word.arg not in given}
        if _callee(spec) == "PrefetchScalarGridSpec":
            prefetch = _number(given.get("num_scalar_prefetch"), scope)
    elif "grid_spec" in given:
        prefetch = None
    kernel = _kernel_name(node.args[0] if node.args else given.get("kernel"), scope)
    name = given.get("name")
    title = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else kernel or "pallas_call"
    out_shape = given.get("out_shape", node.args[1] if len(node.args) > 1 else None)
    params = follow(given.get("compiler_params"), scope)
    semantics: tuple[str, ...] = ()
    backend = None
    if isinstance(params, ast.Call):
        owner = params.func.value if isinstance(params.func, ast.Attribute) else None
        hint = ast.unparse(owner).lower() if owner is not None else _callee(params).lower()
        backend = "triton" if "triton" in hint else "tpu" if "tpu" in hint else None
        words = next((w.value for w in params.keywords if w.arg == "dimension_semantics"), None)
        semantics = tuple(_word(one, scope) for one in getattr(follow(words, scope), "elts", []))
    known_grid = "grid" in given or spec is None
    return Site(
        node, function, kernel, str(title), _grid(given.get("grid"), scope) if known_grid else None, prefetch,
        _specs(given.get("in_specs"), scope), _specs(given.get("out_specs"), scope),
        _shapes(out_shape, scope), _operand_shapes(node, scope), semantics, backend, scope,
    )  # fmt: skip


def _word(node: ast.expr, scope: Scope) -> str:
    """What is said of a dimension, as a string or a member of jax's enumeration."""
    node = follow(node, scope) or node
    if isinstance(node, ast.Attribute) and node.attr.isupper():
        return node.attr.lower()
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else UNKNOWN_WORD


def follow(node: ast.expr | None, scope: Scope, depth: int = 0) -> ast.expr | None:
    """What a name stands for; the expression itself where it is none, or where the text does not say."""
    while isinstance(node, ast.Name) and depth < 8 and node.id not in scope.repeated and node.id in scope.values:
        node, depth = scope.values[node.id], depth + 1
    return node


def _kernel_name(node: ast.expr | None, scope: Scope) -> str | None:
    node = follow(node, scope)
    if isinstance(node, ast.Call) and _callee(node) == "partial" and node.args:
        node = node.args[0]
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _grid(node: ast.expr | None, scope: Scope) -> tuple[int | None, ...] | None:
    if node is None:
        return ()
    node = follow(node, scope)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_number(one, scope) for one in node.elts)
    found = _number(node, scope)
    return None if found is None else (found,)


def _specs(node: ast.expr | None, scope: Scope) -> list[Spec] | None:
    node = follow(node, scope)
    entries = node.elts if isinstance(node, ast.Tuple | ast.List) else [node] if node is not None else []
    found: list[Spec] = []
    for entry in entries:
        entry = follow(entry, scope)
        if not isinstance(entry, ast.Call) or not _callee(entry).endswith("BlockSpec"):
            return None
        found.append(_spec(entry, scope))
    return found


def _spec(node: ast.Call, scope: Scope) -> Spec:
    given = {word.arg: word.value for word in node.keywords if word.arg}
    shape = given.get("block_shape", node.args[0] if node.args else None)
    mapped = follow(given.get("index_map", node.args[1] if len(node.args) > 1 else None), scope)
    if isinstance(mapped, ast.Name):
        function: Any = scope.functions.get(mapped.id)
    else:
        function = mapped if isinstance(mapped, ast.Lambda) else None
    space = given.get("memory_space")
    dims: tuple[int | None, ...] | None = None
    kinds: list[str] = []
    shape = follow(shape, scope)
    if isinstance(shape, ast.Tuple | ast.List):
        values: list[int | None] = []
        for entry in shape.elts:
            kind = "blocked"
            inner = follow(entry, scope)
            if isinstance(inner, ast.Constant) and inner.value is None:
                kind, value = "squeezed", 1
            elif isinstance(inner, ast.Call) and _callee(inner) in ("Element", "BoundedSlice", "Indirect", "Blocked"):
                kind = _callee(inner).lower()
                value = _number(inner.args[0], scope) if inner.args else None
            elif isinstance(inner, ast.Call) and _callee(inner) == "Squeezed":
                kind, value = "squeezed", 1
            else:
                value = _number(entry, scope)
            values.append(value)
            kinds.append(kind)
        dims = tuple(values)
    named = space.attr if isinstance(space, ast.Attribute) else None
    return Spec(node, dims, function, named.lower() if named else None, tuple(kinds) if dims is not None else None)


def _shapes(node: ast.expr | None, scope: Scope) -> list[tuple[int, ...] | None]:
    node = follow(node, scope)
    entries = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    found: list[tuple[int, ...] | None] = []
    for entry in entries:
        found.append(_array_shape(entry, scope))
    return found


def _array_shape(node: ast.expr | None, scope: Scope, depth: int = 0) -> tuple[int, ...] | None:
    """The shape of an array that is made here, or that the default of a parameter is."""
    array = array_made(node, scope)
    if array is None or depth > 8:
        return None
    given = {word.arg: word.value for word in array.keywords}
    dims = follow(given.get("shape", array.args[0] if array.args else None), scope)
    if isinstance(dims, ast.Attribute) and dims.attr == "shape":
        return _array_shape(dims.value, scope, depth + 1)
    if isinstance(dims, ast.Tuple | ast.List):
        numbers = [_number(one, scope) for one in dims.elts]
        return None if None in numbers else tuple(n for n in numbers if n is not None)
    one = _number(dims, scope)
    return None if one is None else (one,)


def array_made(node: ast.expr | None, scope: Scope) -> ast.Call | None:
    """The call that makes an array of a written shape, by name or by a parameter's default; None for another value."""
    node = follow(node, scope)
    if isinstance(node, ast.Name) and node.id not in scope.repeated:
        node = scope.defaults.get(node.id)
    return node if isinstance(node, ast.Call) and _callee(node) in ARRAYS else None


def _operand_shapes(node: ast.Call, scope: Scope) -> list[tuple[int, ...] | None]:
    return [_array_shape(operand, scope) for operand in scope.called_with.get(id(node), ())]


def _number(node: ast.expr | None, scope: Scope) -> int | None:
    try:
        value = value_of(node, {}, scope)
    except Unknown:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_OPERATORS: Mapping[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b if 0 <= b <= 64 else _unknown(),
    ast.LShift: lambda a, b: a << b if 0 <= b <= 64 else _unknown(), ast.RShift: lambda a, b: a >> b,
    ast.BitAnd: lambda a, b: a & b, ast.BitOr: lambda a, b: a | b, ast.BitXor: lambda a, b: a ^ b,
}  # fmt: skip
_FUNCTIONS: Mapping[str, Any] = {
    "min": min, "minimum": min, "max": max, "maximum": max, "abs": abs, "rem": math.fmod,
    "cdiv": lambda a, b: -(-a // b), "div": lambda a, b: int(a / b),
}  # fmt: skip


def _unknown() -> Any:
    raise Unknown


def value_of(node: ast.expr | None, names: Mapping[str, int], scope: Scope, depth: int = 0) -> Any:
    """The value of an expression of integers. Raises ``Unknown``."""
    if node is None or depth > 40:
        raise Unknown
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        if node.id in names:
            return names[node.id]
        if node.id in scope.values and node.id not in scope.repeated:
            return value_of(scope.values[node.id], names, scope, depth + 1)
        raise Unknown
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value_of(node.operand, names, scope, depth + 1)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = (value_of(one, names, scope, depth + 1) for one in (node.left, node.right))
        try:
            return _OPERATORS[type(node.op)](left, right)
        except (ZeroDivisionError, ValueError, OverflowError):
            raise Unknown from None
    if isinstance(node, ast.Call) and _callee(node) in _FUNCTIONS and not node.keywords:
        values = [value_of(one, names, scope, depth + 1) for one in node.args]
        try:
            return int(_FUNCTIONS[_callee(node)](*values))
        except (TypeError, ZeroDivisionError, ValueError):
            raise Unknown from None
    raise Unknown


def reached_from(tree: ast.Module, name: str) -> set[str | None]:
    """Functions of the file that one function calls, by name, and itself."""
    bodies = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    bodies_of: dict[str, ast.AST] = dict(bodies)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    bodies_of.setdefault(target.id, node)
    todo, seen = [name], {name}
    while todo:
        current = bodies_of.get(todo.pop())
        for node in ast.walk(current) if current is not None else ():
            if isinstance(node, ast.Name) and node.id in bodies_of and node.id not in seen:
                seen.add(node.id)
                todo.append(node.id)
    return set(seen)
