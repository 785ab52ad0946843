"""What the names of a Python text stand for, by the text alone. Nothing is imported or run.

Literals, constants and arithmetic on them are evaluated by a small evaluator of our own. A name that is bound twice, in
a branch, by a pattern, in a statement that is half typed, or whose value is changed in place is not known.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hloscope.core.pallas.python_reader import Reading

ARRAYS = frozenset({"ShapeDtypeStruct", "ones", "zeros", "empty", "full"})
"""Calls whose first argument is the shape of what they make."""
DEEPEST = 8
"""Names followed one after the other."""
MOST_ELEMENTS = 256
"""Longest list that ``[…] * n`` makes here."""

_CHANGES = frozenset(
    {"append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort", "update", "setdefault"}
)
_BRANCHES = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.Try, ast.TryStar, ast.Match)
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Unknown(Exception):
    """An expression whose value the text does not give."""


@dataclass(slots=True)
class Scope:
    """Names whose values the text gives."""

    values: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict[str, ast.FunctionDef])
    defaults: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    """Defaults of the parameters of the functions around."""
    imports: dict[str, str] = field(default_factory=dict[str, str])
    """Name -> the module, or the member of one, that was imported under it."""
    called_with: dict[int, list[ast.expr]] = field(default_factory=dict[int, list[ast.expr]])
    """Identity of a ``pallas_call(…)`` -> what its result is applied to."""
    repeated: set[str] = field(default_factory=set[str])
    changed: frozenset[str] = frozenset()
    """Names of the outermost function, or of the file, that some code of it binds from within or changes in place."""
    changes: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    """The same by the identity of each outermost function."""
    lines: tuple[int, int] = (0, 1 << 30)
    """First and last line of the innermost function: what lies in it sees these names."""
    reading: Reading | None = None
    """The text, which knows the statements whose values are not to be trusted."""

    def forget(self, name: str) -> None:
        """Takes a name to be unknown from here on."""
        for known in (self.values, self.functions, self.defaults, self.imports):
            known.pop(name, None)

    def without(self, names: Iterable[str]) -> Scope:
        """The scope of an expression that binds some names itself."""
        inner = self.copy()
        for name in names:
            inner.forget(name)
        return inner

    def copy(self) -> Scope:
        """A scope that can be added to."""
        return Scope(
            dict(self.values), dict(self.functions), dict(self.defaults), dict(self.imports), self.called_with,
            set(self.repeated), self.changed, self.changes, self.lines, self.reading,
        )  # fmt: skip


def module_scope(reading: Reading) -> Scope:
    """The names of a file."""
    changes: dict[int, frozenset[str]] = {}
    outer = Scope(reading=reading, changed=_changed_names(reading.tree, changes), changes=changes)
    return scope_of(reading.tree.body, outer)


def function_scope(node: ast.FunctionDef | ast.AsyncFunctionDef, outer: Scope, outermost: bool) -> Scope:
    """The names that the statements of a function see."""
    around = outer.copy()
    around.lines = (node.lineno, node.end_lineno or node.lineno)
    if outermost:
        around.changed = outer.changes.get(id(node), frozenset())
    for name in around.changed:
        around.values.pop(name, None)
        around.functions.pop(name, None)
    return scope_of(node.body, around, node.args)


def class_scope(node: ast.ClassDef, outer: Scope) -> Scope:
    """The names that the statements of a class see, which its methods do not."""
    return scope_of(node.body, outer)


def _changed_names(tree: ast.AST, changes: dict[int, frozenset[str]] | None) -> frozenset[str]:
    """Names that are declared ``global`` or ``nonlocal``, bound by ``:=``, or whose value is changed in place; those of
    each outermost function are put into ``changes``."""
    found: set[str] = set()
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name | ast.Constant | ast.arg):
            continue
        if changes is not None and isinstance(node, _FUNCTION):
            changes[id(node)] = inner = _changed_names(node, None)
            found |= inner
            continue
        if isinstance(node, ast.Subscript):
            if not isinstance(node.ctx, ast.Load):
                found.update(_root_of(node.value))
        elif isinstance(node, ast.Attribute):
            if node.attr in _CHANGES:
                found.update(_root_of(node.value))
        elif isinstance(node, ast.NamedExpr):
            found.add(node.target.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            found.update(node.names)
        todo.extend(ast.iter_child_nodes(node))
    return frozenset(found)


def _root_of(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def scope_of(body: Sequence[ast.stmt], outer: Scope, parameters: ast.arguments | None = None) -> Scope:
    """The names around, those of parameters, and those that statements bind."""
    scope = outer.copy()
    local: set[str] = set()
    if parameters is not None:
        _bind_parameters(parameters, scope)
        local.update(parameter_names(parameters))
    for node in _straight(body):
        doubtful = outer.reading is not None and outer.reading.doubtful(node.lineno, node.end_lineno or node.lineno)
        for name, value in _bindings(node):
            if name == "*":  # whatever a module has hides what was known
                for known in (*scope.values, *scope.functions, *scope.imports):
                    scope.forget(known)
                continue
            if name in local:
                scope.repeated.add(name)  # assigned twice: the text alone does not say which holds
            else:
                scope.repeated.discard(name)
            first = name not in local
            local.add(name)
            scope.forget(name)
            if isinstance(value, str):
                if first and not doubtful:
                    scope.imports[name] = value
                continue
            if doubtful or name in scope.changed:
                continue
            if isinstance(value, ast.expr):
                scope.values[name] = value
            elif isinstance(value, ast.FunctionDef) and first:
                scope.functions[name] = value
    return scope


def parameter_names(parameters: ast.arguments) -> list[str]:
    """All of them, in order."""
    rest = [one for one in (parameters.vararg, parameters.kwarg) if one is not None]
    return [one.arg for one in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs, *rest)]


def _bind_parameters(parameters: ast.arguments, scope: Scope) -> None:
    """Parameters hide the names around; their defaults are kept, for shapes."""
    for name in parameter_names(parameters):
        scope.forget(name)
        scope.repeated.discard(name)
    given = parameters.defaults
    kept = [one for one in (*given, *parameters.kw_defaults) if one is not None]
    reading = scope.reading
    if reading is not None and any(reading.doubtful(one.lineno, one.end_lineno or one.lineno) for one in kept):
        return  # half typed, a default may lack a part, or belong to another parameter
    positional = [one.arg for one in (*parameters.posonlyargs, *parameters.args)]
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


_Bound = ast.expr | ast.FunctionDef | str | None
"""A value, a function, what was imported; None for what is not known."""


def _bindings(node: ast.stmt) -> Iterator[tuple[str, _Bound]]:
    """Names that a statement binds, with the value where it is one; twice where it may be another after it."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _assigned(target, node.value)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    elif isinstance(node, (*_FUNCTION, ast.ClassDef)):
        # What a decorator makes of a function is not known.
        yield node.name, node if isinstance(node, ast.FunctionDef) and not node.decorator_list else None
    elif isinstance(node, ast.Import):
        yield from ((one.asname or one.name.partition(".")[0], _imported(one)) for one in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((one.asname or one.name, f"{node.module or ''}.{one.name}") for one in node.names)
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            if item.optional_vars is not None:
                yield from ((name, None) for name in stored(item.optional_vars))
    elif isinstance(node, (*_BRANCHES, ast.AugAssign, ast.Delete)):
        for name in stored(node):
            yield name, None
            yield name, None


def _imported(one: ast.alias) -> str:
    return one.name if one.asname else one.name.partition(".")[0]


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, _Bound]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List) and all(isinstance(one, ast.Name) for one in target.elts):
        # m, n = x.shape
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        if len(parts) == len(target.elts) and not any(isinstance(one, ast.Starred) for one in parts):
            yield from ((getattr(one, "id"), part) for one, part in zip(target.elts, parts, strict=True))
            return
        for number, one in enumerate(target.elts):
            part = ast.Subscript(value, ast.Constant(number, None, **_PLACE), ast.Load())
            yield getattr(one, "id"), ast.copy_location(part, value)
    else:
        yield from ((name, None) for name in stored(target))


_PLACE = {"lineno": 0, "col_offset": 0, "end_lineno": 0, "end_col_offset": 0}


def stored(node: ast.AST) -> Iterator[str]:
    """Names that are bound, or deleted, anywhere in it."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            yield inner.id
        elif isinstance(inner, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and inner.name:
            yield inner.name
        elif isinstance(inner, (*_FUNCTION, ast.ClassDef)):
            yield inner.name
        elif isinstance(inner, ast.Import | ast.ImportFrom):
            yield from (one.asname or one.name.partition(".")[0] for one in inner.names)


def binds(node: ast.AST) -> list[str] | None:
    """Names that an expression binds for itself; None for one that binds none."""
    if isinstance(node, ast.Lambda):
        return parameter_names(node.args)
    if isinstance(node, _COMPREHENSION):
        return [name for one in node.generators for name in stored(one.target)]
    return None


# -- values


def callee(node: ast.Call, scope: Scope | None = None) -> str:
    """The last word of what is called; with the names around, of what it was assigned from or imported as."""
    called: ast.expr | None = node.func
    if isinstance(called, ast.Name) and scope is not None:
        called = follow(called, scope)
    if isinstance(called, ast.Name):
        known = scope.imports.get(called.id) if scope is not None else None
        return called.id if known is None else known.rpartition(".")[2]
    return called.attr if isinstance(called, ast.Attribute) else ""


def full_name(node: ast.expr, scope: Scope) -> str:
    """A dotted name with what its first word was imported as."""
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value, scope)}.{node.attr}"
    if isinstance(node, ast.Name):
        return scope.imports.get(node.id, node.id)
    return ""


def follow(node: ast.expr | None, scope: Scope) -> ast.expr | None:
    """What a name stands for; the expression itself where it is none, or where the text does not say."""
    for _ in range(DEEPEST):
        if not isinstance(node, ast.Name) or node.id in scope.repeated or node.id not in scope.values:
            break
        node = scope.values[node.id]
    return node


def elements(node: ast.expr | None, scope: Scope, depth: int = 0) -> list[ast.expr] | None:
    """The elements of a tuple or list, sums and multiples of them too; None for what is none, or is not known."""
    node = follow(node, scope)
    if depth > DEEPEST:
        return None
    if isinstance(node, ast.Tuple | ast.List):
        found: list[ast.expr] = []
        for one in node.elts:
            inner = elements(one.value, scope, depth + 1) if isinstance(one, ast.Starred) else [one]
            if inner is None:
                return None
            found += inner
        return found
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        left, right = (elements(one, scope, depth + 1) for one in (node.left, node.right))
        if isinstance(node.op, ast.Add):
            return None if left is None or right is None else left + right
        items, times = (left, number(node.right, scope)) if left is not None else (right, number(node.left, scope))
        return None if items is None or times is None or len(items) * times > MOST_ELEMENTS else items * max(times, 0)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("tuple", "list"):
        return elements(node.args[0], scope, depth + 1) if len(node.args) == 1 and not node.keywords else None
    return None


def array_made(node: ast.expr | None, scope: Scope) -> ast.Call | None:
    """The call that makes an array of a written shape, by name or by a parameter's default; None for another value."""
    node = follow(node, scope)
    if isinstance(node, ast.Name) and node.id not in scope.repeated:
        node = scope.defaults.get(node.id)
    return node if isinstance(node, ast.Call) and callee(node, scope) in ARRAYS else None


def array_shape(node: ast.expr | None, scope: Scope, depth: int = 0) -> tuple[int, ...] | None:
    """The shape of an array that is made here, or that the default of a parameter is."""
    array = array_made(node, scope)
    if array is None or depth > DEEPEST:
        return None
    given = {word.arg: word.value for word in array.keywords}
    return shape_of(given.get("shape", array.args[0] if array.args else None), scope, depth)


def shape_of(node: ast.expr | None, scope: Scope, depth: int = 0) -> tuple[int, ...] | None:
    """A tuple of numbers, one number, or ``x.shape`` of an array that is known."""
    node = follow(node, scope)
    if isinstance(node, ast.Attribute) and node.attr == "shape":
        return array_shape(node.value, scope, depth + 1) if depth <= DEEPEST else None
    items = elements(node, scope)
    if items is None:
        one = number(node, scope, depth)
        return None if one is None else (one,)
    numbers = [number(one, scope, depth) for one in items]
    return None if None in numbers else tuple(n for n in numbers if n is not None)


def number(node: ast.expr | None, scope: Scope, depth: int = 0) -> int | None:
    """The value of an expression that is an integer; None where the text does not give it."""
    try:
        value = value_of(node, {}, scope, depth)
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
    if isinstance(node, ast.Subscript):
        return _element(node, names, scope, depth)
    if isinstance(node, ast.Call) and callee(node, scope) in _FUNCTIONS and not node.keywords:
        if isinstance(node.func, ast.Name) and node.func.id in scope.functions:
            raise Unknown
        values = [value_of(one, names, scope, depth + 1) for one in node.args]
        try:
            return int(_FUNCTIONS[callee(node, scope)](*values))
        except (TypeError, ZeroDivisionError, ValueError, OverflowError):
            raise Unknown from None
    raise Unknown


def _element(node: ast.Subscript, names: Mapping[str, int], scope: Scope, depth: int) -> Any:
    """``x.shape[0]``, or an element of a tuple that is written."""
    place = value_of(node.slice, names, scope, depth + 1)
    held = follow(node.value, scope)
    items: Sequence[Any] | None
    if isinstance(held, ast.Attribute) and held.attr == "shape":
        items = array_shape(held.value, scope, depth + 4)
    else:
        items = elements(held, scope)
    if items is None or not -len(items) <= place < len(items):
        raise Unknown
    found = items[place]
    return found if isinstance(found, int) else value_of(found, {}, scope, depth + 4)
