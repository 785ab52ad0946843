"""Pallas calls of a Python file by its text alone: nothing is imported and nothing runs.

tree-sitter gives the call sites (``python_reader.py``); literals, module-level constants and lambdas of arithmetic are
evaluated by a small evaluator of our own. What is computed, imported or passed in is not known here: the check that
would need it is silent for that operand, and the call says so. So it is for statements that are half typed.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hloscope.core.errors import Severity, UsageError
from hloscope.core.pallas.blocks import SPELLING, BlockDim
from hloscope.core.pallas.checks.finding import Finding
from hloscope.core.pallas.checks.grid_axes import unused_words
from hloscope.core.pallas.chips import GPUS
from hloscope.core.pallas.python_reader import read_python
from hloscope.core.pallas.report import CallReport
from hloscope.core.pallas.static_axes import stores_whole, unused_dimensions
from hloscope.core.pallas.static_calls import (
    MOST_OF_A_FILE,
    MOST_POINTS,
    backend_of,
    literal_findings,
    returned_entries,
    steps_of,
)
from hloscope.core.pallas.static_sites import UNKNOWN_WORD, Site, Spec, find_sites

MOST_LINES = 8
"""Lines of calls that one finding names."""


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
    reports = [_report(site, path, columns) for site in sites]
    whole = [
        site
        for site in sites
        if not site.wrapped and not reading.doubtful(site.node.lineno, site.node.end_lineno or site.node.lineno)
    ]
    findings = list(_unknown(whole, path, columns))
    left = MOST_OF_A_FILE
    for site in whole:
        found = list(_check(site, path, columns, target))
        raced = {(one.line, one.column) for one in found if one.code == "parallel-write-race"}
        findings += found
        findings += [
            one
            for one in literal_findings(site, path, columns, target, left)
            if one.code != "parallel-write-race" or (one.line, one.column) not in raced
        ]
        left -= steps_of(site) if steps_of(site) <= min(left, MOST_POINTS) else 0
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

    def end_of(self, node: ast.expr) -> int:
        """The 1-based column behind an expression, or behind its first line where it goes on."""
        if node.end_lineno == node.lineno:
            return self.of(node.lineno, node.end_col_offset or 0)
        source = self._lines[node.lineno - 1] if 0 < node.lineno <= len(self._lines) else ""
        return len(source.rstrip()) + 1


# -- what is told


def _report(site: Site, path: str, columns: Columns) -> CallReport:
    known = site.grid is not None and None not in site.grid
    rows: list[Mapping[str, Any]] = []
    for kind, specs in (("input", site.inputs), ("output", site.outputs)):
        for number, spec in enumerate(specs or ()):
            whole = (_array_shape(site, kind, number) or ()) if spec.whole else ()
            block = [dimension_text(spec, d) for d in range(len(spec.shape or ()))] or list(map(str, whole))
            rows.append(
                {"name": f"{kind} {number}", "kind": kind, "block": block,
                 "array": _array_text(site, kind, number), "space": spec.space or "default", "blocks": None}
            )  # fmt: skip
    return CallReport(
        name=site.name, function=site.function, file=path, line=site.node.lineno, grid=site.grid,
        steps=math.prod(n for n in site.grid or () if n is not None) if known else None, backend=site.backend,
        operands=tuple(rows), column=columns.of(site.node.lineno, site.node.col_offset),
        end_column=columns.end_of(site.node),
    )  # fmt: skip


def dimension_text(spec: Spec, dim: int) -> str:
    """A dimension of a block as it may be written, with ``?`` for what the text does not give."""
    assert spec.shape is not None and spec.kinds is not None
    kind, value, padding = spec.kinds[dim], spec.shape[dim], spec.padding[dim]
    if value is None:
        return "?" if kind == "blocked" else f"{SPELLING[kind]}(?)"
    return str(BlockDim(kind, value, padding or (0, 0)))


def _array_text(site: Site, kind: str, number: int) -> str | None:
    shape = _array_shape(site, kind, number)
    return None if shape is None else f"[{','.join(map(str, shape))}]"


def _array_shape(site: Site, kind: str, number: int) -> tuple[int, ...] | None:
    """The shape of an operand where the text gives it."""
    known, specs = (site.shapes, site.outputs) if kind == "output" else (site.operands, site.inputs)
    return known[number] if specs is not None and len(known) == len(specs) else None


def _check(site: Site, path: str, columns: Columns, target: str | None) -> Iterator[Finding]:
    backend = backend_of(site, target)

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
            if spec.closed:
                yield from _check_map(site, spec, f"{kind} {number}", _array_shape(site, kind, number), finding)
    yield from _check_parallel(site, backend, target, finding)
    if target not in GPUS:
        place = site.given.words.get("grid", site.node)
        for dim, bound in unused_dimensions(site):
            yield finding("unused-grid-axis", unused_words(dim, bound, len(site.outputs or ())), place)


def _check_map(site: Site, spec: Spec, title: str, array: tuple[int, ...] | None, finding: Any) -> Iterator[Finding]:
    """Numbers of arguments, results and dimensions, which jax asks to agree."""
    place = spec.index_map if isinstance(spec.index_map, ast.Lambda) else spec.node
    if array is not None and spec.shape is not None and len(array) != len(spec.shape):
        yield finding(
            "trace-refused",
            f"the block of {title} has {len(spec.shape)} dimensions and the array {list(array)} has {len(array)}",
            spec.node,
        )
    mapped = spec.index_map
    if mapped is None:
        return
    arguments = mapped.args
    taken = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    if site.grid is not None and site.prefetch is not None and not arguments.vararg:
        given, required = len(site.grid) + site.prefetch, len(taken) - len(arguments.defaults)
        if not required <= given <= len(taken):
            extra = f" and {site.prefetch} prefetched operands" if site.prefetch else ""
            plural = "" if len(taken) == 1 else "s"
            yield finding(
                "trace-refused",
                f"the index map of {title} takes {len(taken)} argument{plural}, and the grid has"
                f" {len(site.grid)} dimensions{extra}",
                place,
            )
            return
    entries = returned_entries(mapped, site.scope)
    if entries is not None and spec.shape is not None and len(entries) != len(spec.shape):
        yield finding(
            "trace-refused",
            f"the index map of {title} returns {len(entries)} values for a block of {len(spec.shape)} dimensions",
            place,
        )


def _unknown(sites: Sequence[Site], path: str, columns: Columns) -> Iterator[Finding]:
    """One finding for all calls of which some part is computed, at the first of them."""
    told: list[tuple[Site, str]] = []
    for site in sites:
        missing = (
            ("grid", site.grid is None or None in site.grid),
            ("in_specs", site.inputs is None),
            ("out_specs", site.outputs is None),
        )
        what = " and ".join(word for word, gone in missing if gone)
        if what:
            told.append((site, what))
    if not told:
        return
    from hloscope.core.pallas.checks.registry import CODES

    (site, what), others = told[0], told[1:]
    lines = list(dict.fromkeys(str(one.node.lineno) for one, _ in others))
    shown = ", ".join(lines[:MOST_LINES]) + (" …" if len(lines) > MOST_LINES else "")
    call = "call" if len(others) == 1 else "calls"
    more = f" (and parts of {len(others)} other {call}, line{'s'[: len(lines) > 1]} {shown})" if others else ""
    node = site.node
    end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
    title = "this pallas_call" if site.name == "pallas_call" else site.name
    verb = "is" if what == "grid" and not others else "are"
    yield Finding(
        "unsupported", CODES["unsupported"].severity,
        f"{what} of {title}{more} {verb} computed: --trace gives the exact blocks",
        path, node.lineno, columns.of(node.lineno, node.col_offset), end_line, columns.of(end_line, end),
        call=site.name, function=site.function, call_line=node.lineno,
    )  # fmt: skip


def _check_parallel(site: Site, backend: str | None, target: str | None, finding: Any) -> Iterator[Finding]:
    """Grid dimensions that run in any order and that an output's index map ignores.

    On a TPU the pipeline writes each step's block back. Elsewhere the kernel is asked for a store to all of its block.
    """
    if site.grid is None or site.outputs is None or site.prefetch is None:
        return
    rank = len(site.grid)
    unsaid = backend is None and target in GPUS and site.given.closed and not site.mentions_tpu
    gpu = backend in ("triton", "mosaic_gpu") or unsaid
    if gpu and backend != "triton" and UNKNOWN_WORD in site.semantics:
        return
    if backend == "triton":
        dims = list(range(rank))
    elif gpu:
        dims = [d for d in range(rank) if site.semantics[d : d + 1] != ("sequential",)]
    else:
        dims = [d for d, word in enumerate(site.semantics[:rank]) if word == "parallel"]
    for number, spec in enumerate(site.outputs):
        mapped = spec.index_map
        if mapped is None or spec.space in ("any", "hbm", "gmem", UNKNOWN_WORD) or mapped.args.vararg is not None:
            continue
        taken = [a.arg for a in (*mapped.args.posonlyargs, *mapped.args.args)]
        body = mapped.body if isinstance(mapped, ast.Lambda) else mapped
        if spec.shape is None or (gpu and not stores_whole(site, number)):
            continue
        used = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)} if isinstance(body, ast.expr) else {
            node.id for one in body.body for node in ast.walk(one) if isinstance(node, ast.Name)
        }  # fmt: skip
        for d in dims:
            bound = site.grid[d]
            if d < len(taken) and taken[d] not in used and bound is not None and bound > 1:
                yield finding(
                    "parallel-write-race",
                    f"the index map of output {number} ignores {taken[d]}, so that every step of dimension {d} writes"
                    " the same block, and these steps run in any order or at once",
                    mapped if isinstance(mapped, ast.Lambda) else spec.node,
                    "warning",
                )


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
