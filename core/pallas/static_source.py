"""Pallas calls of a Python file by its text alone: nothing is imported and nothing runs.

tree-sitter gives the call sites (``python_reader.py``); literals, module-level constants and lambdas of arithmetic are
evaluated by a small evaluator of our own. What is computed, imported or passed in is not known here: the check that
would need it is silent for that operand, and the call says so. So it is for statements that are half typed.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hloscope.core.errors import Severity, UsageError
from hloscope.core.pallas.checks.finding import Finding
from hloscope.core.pallas.checks.grid_axes import unused_words
from hloscope.core.pallas.chips import GPUS, LANES, SUBLANES, TPUS
from hloscope.core.pallas.interpret.primitives import clamped
from hloscope.core.pallas.python_reader import read_python
from hloscope.core.pallas.report import CallReport
from hloscope.core.pallas.static_axes import unused_dimensions
from hloscope.core.pallas.static_calls import MOST_POINTS, literal_findings
from hloscope.core.pallas.static_sites import Scope, Site, Spec, Unknown, find_sites, reached_from, value_of


def scan_file(path: str, function: str | None, target: str | None) -> tuple[list[CallReport], list[Finding]]:
    """Calls and findings of a file. Raises ``UsageError`` where it cannot be read or is not Python."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError as error:
        raise UsageError((error.strerror or str(error)).lower(), path=path) from None
    return scan_text(text, path, function, target)


def scan_text(
    text: str, path: str, function: str | None = None, target: str | None = None, *, half_typed: bool = False
) -> tuple[list[CallReport], list[Finding]]:
    """Calls and findings of a text.

    With ``half_typed``, statements that are no Python take nothing from the others, and have no findings. Raises
    ``UsageError`` with the place of one otherwise.
    """
    reading = read_python(text)
    if reading.faults and not half_typed:
        _complain(text, path)
    tree = reading.tree
    columns = Columns(text)
    sites = list(find_sites(reading))
    if function is not None:
        name = function.rpartition(".")[2]
        known = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        known |= {
            t.id for n in ast.walk(tree) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
        }
        if name not in known:
            raise UsageError(f"no function {function!r} in the file", path=path)
        reached = reached_from(tree, name)
        sites = [site for site in sites if site.function in reached]
    reports = [_report(site, path) for site in sites]
    whole = [site for site in sites if not reading.doubtful(site.node.lineno, site.node.end_lineno or site.node.lineno)]
    findings: list[Finding] = []
    for site in whole:
        found = list(_check(site, path, columns, target))
        raced = {(one.line, one.column) for one in found if one.code == "parallel-write-race"}
        findings += found
        findings += [
            one
            for one in literal_findings(site, path, columns, target)
            if one.code != "parallel-write-race" or (one.line, one.column) not in raced
        ]
    return reports, findings


def _complain(text: str, path: str) -> None:
    """Says what is wrong in Python's own words, which users know; nothing where only the grammar is behind Python."""
    try:
        ast.parse(text, path)
    except SyntaxError as error:
        raise UsageError(f"not Python: {error.msg}", path=path, line=error.lineno, column=error.offset) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"not Python: {error or 'nested too deeply'}", path=path) from None


class Columns:
    """Columns in characters: the tree counts UTF-8 bytes."""

    def __init__(self, text: str) -> None:
        self._lines = re.split(r"\r\n?|\n", text.removeprefix("\ufeff"))

    def of(self, line: int, offset: int) -> int:
        """The 1-based column of a byte offset."""
        source = self._lines[line - 1] if 0 < line <= len(self._lines) else ""
        if source.isascii():
            return offset + 1
        return len(source.encode("utf-8", "replace")[:offset].decode("utf-8", "ignore")) + 1


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
            function=site.function, call_line=site.node.lineno,
        )  # fmt: skip

    for kind, specs in (("input", site.inputs), ("output", site.outputs)):
        for number, spec in enumerate(specs or ()):
            array = _array_shape(site, kind, number)
            yield from _check_map(site, spec, f"{kind} {number}", array, finding)
            if backend == "tpu" and spec.shape is not None and spec.space not in ("smem", "any", "hbm"):
                yield from _check_tiles(spec, f"{kind} {number}", array, finding)
    yield from _check_parallel(site, target, finding)
    if target not in GPUS:
        place = next((word.value for word in site.node.keywords if word.arg == "grid"), site.node)
        for dim, bound in unused_dimensions(site):
            yield finding("unused-grid-axis", unused_words(dim, bound, len(site.outputs or ())), place)
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
                index = value_of(entry, names, scope)
            except Unknown:
                continue
            blocks = -(-extent // size) if size else 0
            if not 0 <= index < blocks:
                whole = max(blocks, 1) * size
                instead = clamped(index * size, size, whole) // size
                yield finding(
                    "index-map-out-of-range",
                    f"at grid point {point} the index map of {title} gives block {index} of {blocks} in dimension"
                    f" {dim}: interpret=True{', counting from the end,' if index < 0 else ''} silently uses block"
                    f" {instead} again",
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
