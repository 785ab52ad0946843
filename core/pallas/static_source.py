"""Pallas calls of a Python file by its text alone: nothing is imported and nothing runs.

``ast`` gives the call sites; literals, module-level constants and lambdas of arithmetic are evaluated by a small
evaluator of our own. What is computed, imported or passed in is not known here: the check that would need it is silent
for that operand, and the call says so.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hloscope.core.errors import Severity, UsageError
from hloscope.core.pallas.checks.finding import Finding
from hloscope.core.pallas.chips import GPUS, LANES, SUBLANES, TPUS
from hloscope.core.pallas.report import CallReport

CALLS = frozenset({"pallas_call"})
MOST_POINTS = 1 << 16
"""Largest literal grid over which an index map is evaluated."""


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


def scan_file(path: str, function: str | None, target: str | None) -> tuple[list[CallReport], list[Finding]]:
    """Calls and findings of a file. Raises ``UsageError`` where it cannot be read or is not Python."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError as error:
        raise UsageError((error.strerror or str(error)).lower(), path=path) from None
    return scan_text(text, path, function, target)


def scan_text(
    text: str, path: str, function: str | None = None, target: str | None = None
) -> tuple[list[CallReport], list[Finding]]:
    """Calls and findings of a text. Raises ``UsageError`` with the place where it is not Python."""
    try:
        tree = ast.parse(text, path)
    except SyntaxError as error:
        raise UsageError(f"not Python: {error.msg}", path=path, line=error.lineno, column=error.offset) from None
    except ValueError as error:
        raise UsageError(f"not Python: {error}", path=path) from None
    columns = Columns(text)
    sites = list(find_sites(tree))
    if function is not None:
        name = function.rpartition(".")[2]
        known = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        known |= {
            t.id for n in ast.walk(tree) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
        }
        if name not in known:
            raise UsageError(f"no function {function!r} in the file", path=path)
        reached = _reached(tree, name)
        sites = [site for site in sites if site.function in reached]
    reports = [_report(site, path) for site in sites]
    findings = [one for site in sites for one in _check(site, path, columns, target)]
    return reports, findings


class Columns:
    """Columns in characters: ``ast`` counts UTF-8 bytes."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def of(self, line: int, offset: int) -> int:
        """The 1-based column of a byte offset."""
        source = self._lines[line - 1] if 0 < line <= len(self._lines) else ""
        return (offset if source.isascii() else len(source.encode()[:offset].decode("utf-8", "ignore"))) + 1


# -- reading the text


def find_sites(tree: ast.Module) -> Iterator[Site]:
    """Every ``pallas_call`` of a file, in order."""
    found: list[Site] = []
    _visit(tree, None, _scope_of(tree.body, Scope()), found)
    yield from sorted(found, key=lambda site: (site.node.lineno, site.node.col_offset))


def _scope_of(body: Sequence[ast.stmt], outer: Scope) -> Scope:
    scope = Scope(
        dict(outer.values), dict(outer.functions), dict(outer.defaults), outer.called_with, set(outer.repeated)
    )
    local: set[str] = set()
    for node in body:
        for name, value in _bindings(node):
            if name in local:
                scope.repeated.add(name)  # assigned twice: the text alone does not say which holds
            else:
                scope.repeated.discard(name)
            local.add(name)
            if value is not None:
                scope.values[name] = value
            else:
                scope.values.pop(name, None)
        if isinstance(node, ast.FunctionDef):
            scope.functions[node.name] = node
    return scope


def _bindings(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            else:
                for inner in ast.walk(target):
                    if isinstance(inner, ast.Name):
                        yield inner.id, None
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    elif isinstance(node, ast.AugAssign | ast.For | ast.With | ast.While | ast.If | ast.Try):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id, None
                yield inner.id, None


def _visit(node: ast.AST, function: str | None, scope: Scope, found: list[Site]) -> None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        scope = _scope_of(node.body, scope)
        names = [a.arg for a in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs)]
        for name in names:
            scope.values.pop(name, None)
            scope.defaults.pop(name, None)
        positional = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        given = node.args.defaults
        scope.defaults.update(zip(positional[len(positional) - len(given) :], given, strict=True))
        function = function or node.name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and _callee(node.func) in CALLS:
        scope.called_with[id(node.func)] = node.args
    if isinstance(node, ast.Call) and _callee(node) in CALLS:
        found.append(_site(node, function, scope))
    for child in ast.iter_child_nodes(node):
        _visit(child, function, scope, found)


def _callee(node: ast.Call) -> str:
    called = node.func
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _site(node: ast.Call, function: str | None, scope: Scope) -> Site:
    given = {word.arg: word.value for word in node.keywords if word.arg}
    spec = _follow(given.get("grid_spec"), scope)
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
    params = _follow(given.get("compiler_params"), scope)
    semantics: tuple[str, ...] = ()
    backend = None
    if isinstance(params, ast.Call):
        owner = params.func.value if isinstance(params.func, ast.Attribute) else None
        hint = ast.unparse(owner).lower() if owner is not None else _callee(params).lower()
        backend = "triton" if "triton" in hint else "tpu" if "tpu" in hint else None
        words = next((w.value for w in params.keywords if w.arg == "dimension_semantics"), None)
        semantics = tuple(
            e.value
            for e in getattr(_follow(words, scope), "elts", [])
            if isinstance(e, ast.Constant) and isinstance(e.value, str)
        )
    known_grid = "grid" in given or spec is None
    return Site(
        node, function, kernel, str(title), _grid(given.get("grid"), scope) if known_grid else None, prefetch,
        _specs(given.get("in_specs"), scope), _specs(given.get("out_specs"), scope),
        _shapes(out_shape, scope), _operand_shapes(node, scope), semantics, backend, scope,
    )  # fmt: skip


def _follow(node: ast.expr | None, scope: Scope, depth: int = 0) -> ast.expr | None:
    while isinstance(node, ast.Name) and depth < 8 and node.id not in scope.repeated and node.id in scope.values:
        node, depth = scope.values[node.id], depth + 1
    return node


def _kernel_name(node: ast.expr | None, scope: Scope) -> str | None:
    node = _follow(node, scope)
    if isinstance(node, ast.Call) and _callee(node) == "partial" and node.args:
        node = node.args[0]
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _grid(node: ast.expr | None, scope: Scope) -> tuple[int | None, ...] | None:
    if node is None:
        return ()
    node = _follow(node, scope)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_number(one, scope) for one in node.elts)
    found = _number(node, scope)
    return None if found is None else (found,)


def _specs(node: ast.expr | None, scope: Scope) -> list[Spec] | None:
    node = _follow(node, scope)
    entries = node.elts if isinstance(node, ast.Tuple | ast.List) else [node] if node is not None else []
    found: list[Spec] = []
    for entry in entries:
        entry = _follow(entry, scope)
        if not isinstance(entry, ast.Call) or not _callee(entry).endswith("BlockSpec"):
            return None
        found.append(_spec(entry, scope))
    return found


def _spec(node: ast.Call, scope: Scope) -> Spec:
    given = {word.arg: word.value for word in node.keywords if word.arg}
    shape = given.get("block_shape", node.args[0] if node.args else None)
    mapped = _follow(given.get("index_map", node.args[1] if len(node.args) > 1 else None), scope)
    if isinstance(mapped, ast.Name):
        function: Any = scope.functions.get(mapped.id)
    else:
        function = mapped if isinstance(mapped, ast.Lambda) else None
    space = given.get("memory_space")
    dims: tuple[int | None, ...] | None = None
    kinds: list[str] = []
    shape = _follow(shape, scope)
    if isinstance(shape, ast.Tuple | ast.List):
        values: list[int | None] = []
        for entry in shape.elts:
            kind = "blocked"
            inner = _follow(entry, scope)
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
    node = _follow(node, scope)
    entries = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    found: list[tuple[int, ...] | None] = []
    for entry in entries:
        entry = _follow(entry, scope)
        shape: tuple[int, ...] | None = None
        if isinstance(entry, ast.Call) and _callee(entry) == "ShapeDtypeStruct":
            given = {word.arg: word.value for word in entry.keywords}
            dims = _follow(given.get("shape", entry.args[0] if entry.args else None), scope)
            if isinstance(dims, ast.Tuple | ast.List):
                numbers = [_number(one, scope) for one in dims.elts]
                if None not in numbers:
                    shape = tuple(n for n in numbers if n is not None)
        found.append(shape)
    return found


def _operand_shapes(node: ast.Call, scope: Scope) -> list[tuple[int, ...] | None]:
    found: list[tuple[int, ...] | None] = []
    for operand in scope.called_with.get(id(node), ()):
        default = scope.defaults.get(operand.id) if isinstance(operand, ast.Name) else None
        stored = isinstance(operand, ast.Name) and (operand.id in scope.values or operand.id in scope.repeated)
        found.extend([None] if default is None or stored else _shapes(default, scope)[:1])
    return found


def _number(node: ast.expr | None, scope: Scope) -> int | None:
    try:
        value = _value(node, {}, scope)
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


def _value(node: ast.expr | None, names: Mapping[str, int], scope: Scope, depth: int = 0) -> Any:
    """The value of an expression of integers. Raises ``Unknown``."""
    if node is None or depth > 40:
        raise Unknown
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        if node.id in names:
            return names[node.id]
        if node.id in scope.values and node.id not in scope.repeated:
            return _value(scope.values[node.id], names, scope, depth + 1)
        raise Unknown
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names, scope, depth + 1)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = (_value(one, names, scope, depth + 1) for one in (node.left, node.right))
        try:
            return _OPERATORS[type(node.op)](left, right)
        except (ZeroDivisionError, ValueError, OverflowError):
            raise Unknown from None
    if isinstance(node, ast.Call) and _callee(node) in _FUNCTIONS and not node.keywords:
        values = [_value(one, names, scope, depth + 1) for one in node.args]
        try:
            return int(_FUNCTIONS[_callee(node)](*values))
        except (TypeError, ZeroDivisionError, ValueError):
            raise Unknown from None
    raise Unknown


def _reached(tree: ast.Module, name: str) -> set[str | None]:
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


# -- what is told


def _report(site: Site, path: str) -> CallReport:
    known = site.grid is not None and None not in site.grid
    rows: list[Mapping[str, Any]] = []
    for kind, specs in (("input", site.inputs), ("output", site.outputs)):
        for number, spec in enumerate(specs or ()):
            rows.append(
                {"name": f"{kind} {number}", "kind": kind,
                 "block": [_dim_text(spec, d) for d in range(len(spec.shape or ()))],
                 "array": _array_text(site, kind, number), "space": spec.space or "default", "blocks": None}
            )  # fmt: skip
    return CallReport(
        name=site.name, function=site.function, file=path, line=site.node.lineno, grid=site.grid,
        steps=math.prod(n for n in site.grid or () if n is not None) if known else None, backend=site.backend,
        operands=tuple(rows),
    )  # fmt: skip


def _dim_text(spec: Spec, dim: int) -> str:
    assert spec.shape is not None and spec.kinds is not None
    value = spec.shape[dim]
    return "None" if spec.kinds[dim] == "squeezed" else "?" if value is None else str(value)


def _array_text(site: Site, kind: str, number: int) -> str | None:
    shape = _array_shape(site, kind, number)
    return None if shape is None else f"[{','.join(map(str, shape))}]"


def _array_shape(site: Site, kind: str, number: int) -> tuple[int, ...] | None:
    """The shape of an operand where the text gives it."""
    known = site.shapes if kind == "output" else site.operands[site.prefetch or 0 :]
    return known[number] if number < len(known) else None


def _check(site: Site, path: str, columns: Columns, target: str | None) -> Iterator[Finding]:
    backend = site.backend or ("tpu" if target in TPUS else None)

    def finding(code: str, message: str, node: ast.AST, severity: Severity | None = None) -> Finding:
        from hloscope.core.pallas.checks.registry import CODES

        known = CODES[code]
        line, end_line = getattr(node, "lineno", 1), getattr(node, "end_lineno", 1)
        return Finding(
            code, severity or known.severity, message, path, line, columns.of(line, getattr(node, "col_offset", 0)),
            end_line, columns.of(end_line, getattr(node, "end_col_offset", 0)), call=site.name, fix=known.fix,
        )  # fmt: skip

    for kind, specs in (("input", site.inputs), ("output", site.outputs)):
        for number, spec in enumerate(specs or ()):
            array = _array_shape(site, kind, number)
            yield from _check_map(site, spec, f"{kind} {number}", array, finding)
            if backend == "tpu" and spec.shape is not None and spec.space not in ("smem", "any", "hbm"):
                yield from _check_tiles(spec, f"{kind} {number}", array, finding)
    yield from _check_parallel(site, target, finding)
    if site.inputs is None or site.outputs is None or site.grid is None or None in (site.grid or ()):
        what = [
            word
            for word, missing in (
                ("grid", site.grid is None or None in (site.grid or ())),
                ("in_specs", site.inputs is None),
                ("out_specs", site.outputs is None),
            )
            if missing
        ]
        yield finding(
            "unsupported",
            f"{' and '.join(what)} of {site.name} are computed: --trace gives the exact blocks",
            site.node,
        )


def _check_map(site: Site, spec: Spec, title: str, array: tuple[int, ...] | None, finding: Any) -> Iterator[Finding]:
    mapped = spec.index_map
    if mapped is None:
        return
    arguments = mapped.args
    plain = not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs)
    taken = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    required = len(taken) - len(arguments.defaults)
    if site.grid is not None and site.prefetch is not None and plain:
        given = len(site.grid) + site.prefetch
        if not required <= given <= len(taken):
            extra = f" and {site.prefetch} prefetched operands" if site.prefetch else ""
            yield finding(
                "trace-refused",
                f"the index map of {title} takes {len(taken)} arguments, and the grid has"
                f" {len(site.grid)} dimensions{extra}",
                mapped if isinstance(mapped, ast.Lambda) else spec.node,
            )
            return
    result = mapped.body if isinstance(mapped, ast.Lambda) else _returned(mapped)
    if result is None:
        return
    entries = result.elts if isinstance(result, ast.Tuple) else [result]
    place = mapped if isinstance(mapped, ast.Lambda) else spec.node
    if any(isinstance(one, ast.Starred) for one in entries):
        return
    if not isinstance(result, ast.Tuple | ast.List | ast.Constant | ast.BinOp) and (
        not isinstance(result, ast.Name) or result.id not in taken
    ):
        return
    if spec.shape is not None and len(entries) != len(spec.shape):
        yield finding(
            "trace-refused",
            f"the index map of {title} returns {len(entries)} values for a block of {len(spec.shape)} dimensions",
            place,
        )
        return
    if array is not None and spec.shape is not None and len(array) != len(spec.shape):
        yield finding(
            "trace-refused",
            f"the block of {title} has {len(spec.shape)} dimensions and the array {list(array)} has {len(array)}",
            spec.node,
        )
        return
    yield from _check_range(site, spec, title, array, entries, taken, place, finding)


def _returned(function: ast.FunctionDef) -> ast.expr | None:
    return function.body[0].value if len(function.body) == 1 and isinstance(function.body[0], ast.Return) else None


def _check_range(
    site: Site, spec: Spec, title: str, array: tuple[int, ...] | None, entries: Sequence[ast.expr],
    taken: Sequence[str], place: ast.AST, finding: Any,
) -> Iterator[Finding]:  # fmt: skip
    grid = site.grid
    if array is None or spec.shape is None or spec.kinds is None or grid is None or None in grid or site.prefetch:
        return
    bounds = [n for n in grid if n is not None]
    if math.prod(bounds) > MOST_POINTS:
        return
    scope = Scope()
    for point in itertools.product(*map(range, bounds)):
        names = dict(zip(taken, point, strict=False))
        for dim, (entry, kind, size, extent) in enumerate(zip(entries, spec.kinds, spec.shape, array, strict=True)):
            if size is None or kind not in ("blocked", "squeezed"):
                continue
            try:
                index = _value(entry, names, scope)
            except Unknown:
                continue
            blocks = -(-extent // size) if size else 0
            if not 0 <= index < blocks:
                yield finding(
                    "index-map-out-of-range",
                    f"at grid point {point} the index map of {title} gives block {index} of {blocks} in dimension"
                    f" {dim}: interpret=True silently uses the last block again",
                    place,
                )
                return


def _check_tiles(spec: Spec, title: str, array: tuple[int, ...] | None, finding: Any) -> Iterator[Finding]:
    shape = spec.shape or ()
    if len(shape) < 2:
        return
    for dim, tile in ((-1, LANES), (-2, SUBLANES)):
        size = shape[dim]
        if size is None or size % tile == 0 or (array is not None and array[dim] == size):
            continue
        whole = f"the array has {array[dim]}" if array is not None else "it is taken only where the array has as many"
        yield finding(
            "block-shape",
            f"{size} in dimension {len(shape) + dim} of the block of {title} is no multiple of {tile}, and {whole}",
            spec.node,
            "error" if array is not None else "warning",
        )


def _check_parallel(site: Site, target: str | None, finding: Any) -> Iterator[Finding]:
    """Grid dimensions that run in any order and that an output's index map ignores."""
    if site.grid is None or site.outputs is None:
        return
    rank = len(site.grid)
    gpu = site.backend == "triton" or (site.backend is None and target in GPUS)
    dims = range(rank) if gpu else [d for d, word in enumerate(site.semantics[:rank]) if word == "parallel"]
    for number, spec in enumerate(site.outputs):
        if spec.index_map is None or spec.space in ("any", "hbm"):
            continue
        taken = [a.arg for a in (*spec.index_map.args.posonlyargs, *spec.index_map.args.args)]
        body = spec.index_map.body if isinstance(spec.index_map, ast.Lambda) else _returned(spec.index_map)
        if body is None:
            continue
        used = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
        for d in dims:
            if d < len(taken) and taken[d] not in used and (site.grid[d] is None or (site.grid[d] or 0) > 1):
                yield finding(
                    "parallel-write-race",
                    f"the index map of output {number} ignores {taken[d]}, so that every step of dimension {d} writes"
                    " the same block, and these steps run in any order or at once",
                    spec.index_map if isinstance(spec.index_map, ast.Lambda) else spec.node,
                    "warning",
                )
