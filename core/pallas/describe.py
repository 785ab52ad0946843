"""Turns what jax traced into a plain description: the half of the tracing child that knows jax's objects.

Used by ``child_trace.py`` alone, inside the child process; jax is imported where it is needed. Variables, types and
places in the source become numbers, parameters become JSON values, and every ``pallas_call`` becomes one entry with its
grid, blocks, index maps and kernel. Nothing is pickled, and nothing of it runs in the process that reads it.

Lines are 1-based, columns 1-based in characters (jax counts UTF-8 bytes from 0).
Sources: ``jax-ml/jax:jax/_src/pallas/core.py#GridMapping``, ``jax/_src/state/indexing.py#NDIndexer``.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import enum
import functools
import importlib
import inspect
import json
import math
import os
import re
from typing import Any

from hloscope.core.pallas.child_pipelines import MOST_PIPELINE_STEPS, coming_back
from hloscope.core.pallas.mesh_kernels import as_pallas_call, run_state_as_call

LARGEST_ARGUMENT = 64 << 20
"""Most bytes of an argument's value that are written down; larger ones are described by shape alone."""
LARGEST_CONSTANT = 64 << 20


PIPELINE_STARTS = frozenset({"run_scoped", "cond", "scan", "while"})
"""Primitives of which one is the outermost that ``emit_pipeline`` makes."""


class Slot:
    """Stands for one dynamic leaf of a parameter tree."""

    def __init__(self, index: int) -> None:
        self.index = index


class Writer:
    """Numbers variables, types and places, and turns jax's objects into plain values."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.calls: list[dict[str, Any]] = []
        self.avals: list[dict[str, Any]] = []
        self.spans: list[list[Any]] = []
        self.first_call = 0
        self._aval_index: dict[str, int] = {}
        self._span_index: dict[str, int] = {}
        self._variables: dict[Any, int] = {}
        self._lines: dict[str, list[str]] = {}
        self._trees: dict[str, ast.Module | None] = {}
        self._specs: list[dict[str, Any]] = []
        self._first_places: dict[Any, int | None] = {}
        self._made: dict[str, set[int]] = {}
        """File and line of a kernel -> where a ``pallas_call`` of it was made."""
        self._pipelines: dict[int, dict[str, Any]] = {}
        """Place of a call of what ``emit_pipeline`` gave -> what became of its output blocks."""
        self._enclosing: tuple[int | None, int | None] = (None, None)
        """Places of the equation that is being described."""
        self._blamed: tuple[Exception, int] | None = None
        """A refusal, and the spec or index map that it is about."""
        self._info = importlib.import_module("jax._src.source_info_util")
        self._core = importlib.import_module("jax._src.core")
        self._pallas = importlib.import_module("jax._src.pallas.core")
        self._indexing = importlib.import_module("jax._src.state.indexing")
        self._state = importlib.import_module("jax._src.state.types")

    # places

    def span(self, file: str, function: str, line: int, column: int, end_line: int, end_column: int) -> int:
        """Number of a place; columns are jax's, counted in bytes from 0."""
        place = [file, function, line, self._characters(file, line, column), end_line,
                 self._characters(file, end_line, end_column)]  # fmt: skip
        return self._intern(place)

    def _intern(self, place: list[Any]) -> int:
        key = repr(place)
        if key not in self._span_index:
            self._span_index[key] = len(self.spans)
            self.spans.append(place)
        return self._span_index[key]

    def _characters(self, file: str, line: int, column: int) -> int:
        if file not in self._lines:
            try:
                with open(file, encoding="utf-8", errors="replace") as opened:
                    self._lines[file] = opened.read().split("\n")
            except OSError:
                self._lines[file] = []
        lines = self._lines[file]
        if column < 0 or not 0 < line <= len(lines) or lines[line - 1].isascii():
            return max(0, column) + 1
        return len(lines[line - 1].encode()[:column].decode("utf-8", "ignore")) + 1

    def frames(self, source: Any) -> tuple[int | None, int | None]:
        """The innermost place of the user's code, and the innermost one in the file asked about."""
        inner = None
        for frame in self._info.user_frames(source.traceback) if source is not None else ():
            place = self.span(frame.file_name, frame.function_name, frame.start_line, frame.start_column,
                              frame.end_line, frame.end_column)  # fmt: skip
            inner = place if inner is None else inner
            if frame.file_name == self.path:
                return inner, place
        return inner, None

    def error_span(self, error: BaseException, path: str) -> int | None:
        """The innermost place of the user's file in an exception's traceback, with columns where Python has them."""
        found: tuple[Any, int] | None = None
        seen = 0
        chain: BaseException | None = error
        while chain is not None and seen < 8 and found is None:
            if self._blamed is not None and self._blamed[0] is chain:
                return self._blamed[1]
            step = chain.__traceback__
            while step is not None:
                if step.tb_frame.f_code.co_filename == path:
                    found = (step.tb_frame.f_code, step.tb_lasti)
                step = step.tb_next
            chain, seen = chain.__cause__ or chain.__context__, seen + 1
        return self._code_span(*found) if found is not None else None

    def _code_span(self, code: Any, lasti: int) -> int | None:
        try:
            line, end_line, column, end_column = list(code.co_positions())[lasti // 2]
        except (IndexError, ValueError):
            return None
        if line is None:
            return None
        return self.span(code.co_filename, code.co_qualname, line, column or 0, end_line or line, end_column or 0)

    # block specs keep no position: note where each was made

    def watch_block_specs(self) -> None:
        spec_type = self._pallas.BlockSpec
        made, convert = spec_type.__init__, spec_type.to_block_mapping
        writer = self

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            mapped = getattr(self.index_map, "index_map", self.index_map)
            self.hloscope_place = writer._caller()
            if mapped is not None:
                # jax makes copies of specs: the place is where this index map was first put into one
                self.hloscope_place = writer._first_places.setdefault(mapped, self.hloscope_place)

        def to_block_mapping(self: Any, origin: Any, *args: Any, **kwargs: Any) -> Any:
            mapped = writer._function_place(getattr(self.index_map, "index_map", self.index_map))
            entry: dict[str, Any] = {
                "origin": str(origin), "spec": getattr(self, "hloscope_place", None), "map": mapped, "name": None,
            }  # fmt: skip
            try:
                mapping = convert(self, origin, *args, **kwargs)
            except Exception as error:
                writer._blame(error, entry["spec"], entry["map"])
                raise
            entry["name"] = str(mapping.index_map_jaxpr.jaxpr.debug_info.func_src_info)
            writer._specs.append(entry)
            return mapping

        spec_type.__init__ = init
        spec_type.to_block_mapping = to_block_mapping

    # a call may be made in one place and called in another, as under shard_map

    def watch_calls(self) -> None:
        public = importlib.import_module("jax.experimental.pallas")
        util = importlib.import_module("jax._src.api_util")
        original = public.pallas_call

        @functools.wraps(original)
        def pallas_call(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            place = self._caller()
            if place is not None:
                self._made.setdefault(source_line(util.fun_sourceinfo(kernel)), set()).add(place)
            return original(kernel, *args, **kwargs)

        vars(public)["pallas_call"] = pallas_call

    # a pipeline inside a kernel is loops and copies once it is traced

    def watch_pipelines(self) -> None:
        public = importlib.import_module("jax.experimental.pallas.tpu")
        source = importlib.import_module("jax._src.pallas.mosaic.pipeline")
        original = source.emit_pipeline

        @functools.wraps(original)
        def emit_pipeline(body: Any, *args: Any, **kwargs: Any) -> Any:
            run = original(body, *args, **kwargs)

            @functools.wraps(run)
            def pipeline(*refs: Any, **more: Any) -> Any:
                place = self._caller()
                if place is not None:
                    try:
                        self._pipelines[place] = self._pipeline(body, kwargs)
                    except Exception as error:  # the user's index map may raise anything
                        refused = f"an index map needs what only a run knows ({type(error).__name__})"
                        self._pipelines[place] = {"refused": refused, "outputs": [], "body": None}
                return run(*refs, **more)

            return pipeline

        for module in (public, source):
            vars(module)["emit_pipeline"] = emit_pipeline

    def _pipeline(self, body: Any, words: dict[str, Any]) -> dict[str, Any]:
        """The output blocks of a pipeline that come back, step by step; the grid is walked here, by its index maps."""
        specs = words.get("out_specs", ())
        specs = specs if isinstance(specs, tuple | list) else (specs,)
        mapped = [(number, one) for number, one in enumerate(specs) if getattr(one, "index_map", None) is not None]
        grid = words.get("grid", ())
        refused = None
        if not all(isinstance(bound, int) for bound in grid):
            refused = "a bound of its grid is not a number"
        elif words.get("core_axis") is not None or words.get("core_axis_name") is not None:
            refused = "its grid is dealt out to cores"
        elif math.prod(grid) > MOST_PIPELINE_STEPS:
            refused = f"its grid has more than {MOST_PIPELINE_STEPS:,} steps"
        outputs: list[dict[str, Any]] = []
        for number, spec in mapped if refused is None else ():
            mapping = getattr(spec.index_map, "index_map", spec.index_map)
            steps = coming_back(mapping, grid)
            outputs.append({
                "number": number, "steps": steps, "spec": {"$span": getattr(spec, "hloscope_place", None)},
                "map": {"$span": self._function_place(mapping)},
                "block": [int(one) for one in spec.block_shape or () if isinstance(one, int)],
            })  # fmt: skip
        return {
            "refused": refused if mapped else None,
            "outputs": outputs,
            "body": {"$span": self._lines_of_code(body)},
        }

    def _lines_of_code(self, function: Any) -> int | None:
        """First to last line of a function, with those of the functions inside it."""
        while hasattr(function, "func"):
            function = function.func
        code = getattr(function, "__code__", None)
        if code is None:
            return None
        lines, todo = [code.co_firstlineno], [code]
        while todo:
            one = todo.pop()
            lines += [line for _, _, line in one.co_lines() if line is not None]
            todo += [inner for inner in one.co_consts if inspect.iscode(inner)]
        return self.span(code.co_filename, code.co_qualname, min(lines), 0, max(lines), 0)

    def begin_function(self) -> None:
        """What was made for other functions is not this one's."""
        self.first_call = len(self.calls)
        self._made.clear()

    def _blame(self, error: Exception, spec: int | None, mapped: int | None) -> None:
        """A refusal of a spec or index map belongs there, unless it comes from a statement of the user's in the map."""
        step = error.__traceback__.tb_next if error.__traceback__ is not None else None
        while step is not None:
            if self._info.is_user_filename(step.tb_frame.f_code.co_filename):
                return
            step = step.tb_next
        place = spec if str(error).lower().startswith("block shape") else mapped if mapped is not None else spec
        if place is not None:
            self._blamed = (error, place)

    def _caller(self) -> int | None:
        frame = inspect.currentframe()
        while frame is not None:
            name = frame.f_code.co_filename
            if name != __file__ and not name.startswith("<") and self._info.is_user_filename(name):
                return self._code_span(frame.f_code, frame.f_lasti)
            frame = frame.f_back
        return None

    def _function_place(self, function: Any) -> int | None:
        """The lambda or ``def`` of an index map."""
        while hasattr(function, "func"):
            function = function.func
        code = getattr(function, "__code__", None) or getattr(getattr(function, "__call__", None), "__code__", None)
        if code is None or not self._info.is_user_filename(code.co_filename):
            return None
        positions = [p for p in code.co_positions() if p[0] is not None and p[2] is not None]
        # instructions that belong to no expression have an empty range at column 0
        body = [(p[0], p[2]) for p in positions if (p[2], p[3]) != (0, 0)] or [(code.co_firstlineno, 0)]
        node = self._definition(code.co_filename, code.co_firstlineno, min(body))
        if node is None:
            return self.span(code.co_filename, code.co_qualname, code.co_firstlineno, 0, code.co_firstlineno, 0)
        return self.span(code.co_filename, code.co_qualname, node.lineno, node.col_offset, node.end_lineno or 0,
                         node.end_col_offset or 0)  # fmt: skip

    def _definition(self, file: str, line: int, inside: tuple[int, int]) -> Any:
        if file not in self._trees:
            try:
                with open(file, encoding="utf-8") as opened:
                    self._trees[file] = ast.parse(opened.read())
            except (OSError, SyntaxError, ValueError):
                self._trees[file] = None
        best = None
        for node in ast.walk(self._trees[file] or ast.Module(body=[], type_ignores=[])):
            if isinstance(node, ast.Lambda | ast.FunctionDef) and node.lineno == line:
                start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
                if isinstance(node, ast.FunctionDef) or start <= inside <= end:
                    if best is None or (best.lineno, best.col_offset) < start:
                        best = node
        return best

    # types and values

    def aval(self, aval: Any) -> int:
        described = self._describe(aval)
        key = json.dumps(described, sort_keys=True)
        if key not in self._aval_index:
            self._aval_index[key] = len(self.avals)
            self.avals.append(described)
        return self._aval_index[key]

    def _describe(self, aval: Any) -> dict[str, Any]:
        inner = getattr(aval, "inner_aval", None)
        if inner is not None:
            return {**self._describe(inner), "kind": "ref", "space": space_name(getattr(aval, "memory_space", None))}
        shape = getattr(aval, "shape", None)
        if shape is None or getattr(aval, "dtype", None) is None:
            return {"kind": "other", "text": str(aval), "shape": [], "dtype": "none"}
        return {"kind": "array", "shape": [int(d) if isinstance(d, int) else str(d) for d in shape],
                "dtype": dtype_name(aval.dtype)}  # fmt: skip

    def array(self, value: Any) -> dict[str, Any]:
        import numpy as np

        found = np.asarray(value)
        described = {"dtype": dtype_name(found.dtype), "shape": list(found.shape)}
        if found.nbytes > LARGEST_CONSTANT or found.dtype == object:
            return {**described, "data": None}
        return {**described, "data": base64.b64encode(np.ascontiguousarray(found).tobytes()).decode("ascii")}

    def value_of(self, leaf: Any) -> dict[str, Any]:
        """An argument: its type, and its value where it is an array that is small enough."""
        import jax

        if isinstance(leaf, jax.ShapeDtypeStruct):
            return {"shape": list(leaf.shape), "dtype": dtype_name(leaf.dtype), "data": None}
        described = self.array(leaf) if getattr(leaf, "nbytes", 8) <= LARGEST_ARGUMENT else None
        return described or {"shape": list(leaf.shape), "dtype": dtype_name(leaf.dtype), "data": None}

    def variable(self, var: Any) -> int:
        if var not in self._variables:
            self._variables[var] = len(self._variables)
        return self._variables[var]

    def atom(self, atom: Any) -> Any:
        if isinstance(atom, self._core.Literal):
            return {"lit": self.array(atom.val), "aval": self.aval(atom.aval)}
        return self.variable(atom)

    # equations

    def closed(self, closed: Any) -> dict[str, Any]:
        return {**self.jaxpr(closed.jaxpr), "const_values": [self.constant(value) for value in closed.consts]}

    def constant(self, value: Any) -> dict[str, Any]:
        try:
            return self.array(value)
        except Exception:
            return {"dtype": "none", "shape": [], "data": None}

    def jaxpr(self, jaxpr: Any) -> dict[str, Any]:
        debug = getattr(jaxpr, "debug_info", None)
        return {
            "consts": [[self.variable(v), self.aval(v.aval)] for v in jaxpr.constvars],
            "in": [[self.variable(v), self.aval(v.aval)] for v in jaxpr.invars],
            "eqns": [self.equation(eqn) for eqn in jaxpr.eqns],
            "out": [self.atom(atom) for atom in jaxpr.outvars],
            "function": str(getattr(debug, "func_src_info", "") or ""),
            "names": [str(name) for name in getattr(debug, "arg_names", None) or ()],
        }

    def equation(self, eqn: Any) -> dict[str, Any]:
        name = eqn.primitive.name
        inner, outer = self.frames(eqn.source_info)
        if inner is None:  # what jax's own rules make, as the loop of a vmap, is where the statement is that it is for
            inner, outer = self._enclosing
        kept, self._enclosing = self._enclosing, (inner, outer)
        try:
            return self._equation(eqn, name, inner, outer)
        finally:
            self._enclosing = kept

    def _equation(self, eqn: Any, name: str, inner: int | None, outer: int | None) -> dict[str, Any]:
        called = eqn.params if name == "pallas_call" else as_pallas_call(eqn) if name == "mpmd_map" else None
        pure = run_state_as_call(eqn) if name == "run_state" else None
        if called is not None:
            name, params = "pallas_call", {"call": self.pallas_call(called, inner, outer)}
        elif pure is not None:
            name, params = "closed_call", {"call_jaxpr": {"$jaxpr": self.closed(pure)}}
        else:
            params = {key: self.parameter(key, value) for key, value in eqn.params.items()}
            if name in PIPELINE_STARTS and inner in self._pipelines:
                params["pipeline"] = self._pipelines[inner]
        drop = self._core.DropVar
        return {
            "p": name,
            "in": [self.atom(atom) for atom in eqn.invars],
            "out": [None if isinstance(v, drop) else self.variable(v) for v in eqn.outvars],
            "out_avals": [self.aval(v.aval) for v in eqn.outvars],
            "params": params,
            "at": inner,
            "via": outer,
        }

    def parameter(self, key: str, value: Any) -> Any:
        if key in ("tree", "args_tree") and hasattr(value, "unflatten"):
            return {"$tree": self.tree(value.unflatten([Slot(i) for i in range(value.num_leaves)]))}
        return self.plain(value)

    def plain(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if isinstance(value, float):
            return {"$float": repr(value)}
        if isinstance(value, enum.Enum):
            return {"$enum": type(value).__name__, "name": value.name}
        if isinstance(value, self._core.ClosedJaxpr):
            return {"$jaxpr": self.closed(value)}
        if isinstance(value, self._core.Jaxpr):
            return {"$jaxpr": self.jaxpr(value)}
        if hasattr(value, "axis_names") and hasattr(value, "shape_tuple"):
            return [[str(name), int(size)] for name, size in value.shape_tuple]
        if type(value).__name__ in ("P", "PartitionSpec"):
            return [self.plain(one) for one in value]
        if isinstance(value, tuple | list) and hasattr(value, "_fields"):
            fields = {name: self.plain(getattr(value, name)) for name in getattr(value, "_fields")}
            return {"$record": type(value).__name__, "fields": fields}
        if isinstance(value, tuple | list):
            return [self.plain(item) for item in value]
        if isinstance(value, dict):
            return {"$map": [[self.plain(key), self.plain(item)] for key, item in value.items()]}
        if type(value).__module__.split(".")[0] in ("numpy", "ml_dtypes") and hasattr(value, "dtype"):
            return {"$array": self.array(value)}
        if hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "addressable_data"):
            return {"$array": self.array(value)}
        if is_dtype(value):
            return {"$dtype": dtype_name(value)}
        if isinstance(value, self._core.AbstractValue):
            return {"$aval": self.aval(value)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: self.plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return {"$record": type(value).__name__, "fields": fields}
        return {"$opaque": type(value).__name__}

    def tree(self, value: Any) -> Any:
        """A parameter tree of references and indexers; dynamic leaves are numbers of operands."""
        if isinstance(value, Slot):
            return {"$slot": value.index}
        if isinstance(value, self._state.TransformedRef):
            return {"$ref": self.tree(value.ref), "transforms": [self.tree(one) for one in value.transforms]}
        if isinstance(value, self._indexing.NDIndexer):
            return {"$index": [self.tree(one) for one in value.indices], "shape": [self.tree(d) for d in value.shape],
                    "int_shape": [self.tree(d) for d in value.int_indexer_shape]}  # fmt: skip
        if isinstance(value, self._indexing.Slice):
            return {"$slice": [self.tree(value.start), self.tree(value.size), value.stride]}
        kind = type(value).__name__
        if kind.endswith("Transform") or kind.endswith("Ref"):
            fields: dict[str, Any] = {}
            if dataclasses.is_dataclass(value):
                fields = {field.name: self.tree(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return {"$transform": kind, "fields": fields}
        if isinstance(value, tuple | list):
            return [self.tree(item) for item in value]
        if isinstance(value, dict):
            return {"$map": [[self.plain(key), self.tree(item)] for key, item in value.items()]}
        return self.plain(value)

    # calls

    def pallas_call(self, params: Any, at: int | None, via: int | None) -> int:
        mapping = params["grid_mapping"]
        kernel = params["jaxpr"]
        made = self._made.get(source_line(kernel.debug_info.func_src_info), set())
        if len(made) == 1:
            (at,) = made
            via = at if self.spans[at][0] == self.path else via
        grid = [int(d) if isinstance(d, int) else None for d in mapping.grid]
        number = len(self.calls)
        kept, self._enclosing = self._enclosing, (None, None)  # the kernel's statements are not the call's
        described: dict[str, Any] = {}
        self.calls.append(described)
        described |= {
            "name": params.get("name") or str(kernel.debug_info.func_src_info).split(" at ")[0],
            "at": at,
            "via": via,
            "kernel_at": self._source_place(str(kernel.debug_info.func_src_info)),
            "grid": grid,
            "grid_names": [str(name) for name in mapping.grid_names] if mapping.grid_names else None,
            "vmapped": [int(d) for d in mapping.vmapped_dims],
            "index_operands": mapping.num_index_operands,
            "inputs": mapping.num_inputs,
            "outputs": mapping.num_outputs,
            "scratch": mapping.num_scratch_operands,
            "blocks": [self.block(block) for block in mapping.block_mappings],
            "out_avals": [self.aval(aval) for aval in params["out_avals"]],
            "aliases": [[int(i), int(o)] for i, o in params["input_output_aliases"]],
            "kernel": self.jaxpr(kernel),
            "compiler": self.compiler(params.get("compiler_params")),
            "mesh": None if params.get("mesh") is None else type(params["mesh"]).__name__,
        }
        self._enclosing = kept
        return number

    def compiler(self, params: Any) -> dict[str, Any] | None:
        if params is None:
            return None
        module = type(params).__module__
        backend = "triton" if ".triton" in module else "mosaic_gpu" if ".mosaic_gpu" in module else "tpu"
        fields: dict[str, Any] = {}
        if dataclasses.is_dataclass(params):
            fields = {field.name: self.plain(getattr(params, field.name)) for field in dataclasses.fields(params)}
        return {"backend": backend, "fields": fields}

    def block(self, block: Any) -> dict[str, Any]:
        source = str(block.index_map_jaxpr.jaxpr.debug_info.func_src_info)
        known = [one for one in self._specs if one["origin"] == str(block.origin) and one["name"] == source]
        place = known[-1] if known else {"spec": None, "map": self._source_place(source)}
        tree = block.index_map_out_tree
        leaves = tree.unflatten([Slot(i) for i in range(tree.num_leaves)])
        mode = block.pipeline_mode
        return {
            "origin": str(block.origin),
            "dims": [self.block_dim(dim) for dim in block.block_shape],
            "array": self.aval(block.array_aval),
            "ref": self.aval(block.transformed_block_aval),
            "index_map": self.closed(block.index_map_jaxpr),
            "index_tree": self.tree(tuple(leaves) if isinstance(leaves, tuple | list) else (leaves,)),
            "buffers": getattr(mode, "buffer_count", None),
            "lookahead": bool(getattr(mode, "use_lookahead", False)),
            "transforms": [type(one).__name__ for one in block.transforms],
            "spec_at": place["spec"],
            "map_at": place["map"],
        }

    def block_dim(self, dim: Any) -> dict[str, Any]:
        kind = type(dim).__name__
        described: dict[str, Any] = {"kind": "Blocked" if isinstance(dim, int) else kind}
        if kind != "Squeezed":
            described["size"] = int(dim if isinstance(dim, int) else dim.block_size)
        if kind == "Element":
            described["padding"] = [int(side) for side in getattr(dim, "padding")]
        return described

    def _source_place(self, source: str) -> int | None:
        """The place in ``NAME at FILE:LINE``."""
        match = re.search(r"^(.*) at (.+):([0-9]+)$", source)
        if match is None or not os.path.isfile(match[2]) or not self._info.is_user_filename(match[2]):
            return None
        node = self._definition(match[2], int(match[3]), (int(match[3]), 1 << 30))
        if isinstance(node, ast.FunctionDef):
            # "def name" alone: the whole body would paint the editor red
            line = self._lines_of(match[2], node.lineno)
            start = line.find("def ", node.col_offset) + len("def ")
            return self._intern([match[2], match[1], node.lineno, start + 1, node.lineno, start + 1 + len(node.name)])
        return self.span(match[2], match[1], int(match[3]), 0, int(match[3]), 0)

    def _lines_of(self, file: str, line: int) -> str:
        self._characters(file, line, 0)
        return self._lines[file][line - 1]


def source_line(source: Any) -> str:
    """``FILE:LINE`` of ``NAME at FILE:LINE``: the name is another where a call is given one."""
    return str(source).rpartition(" at ")[2]


def space_name(space: Any) -> str:
    name = getattr(space, "name", None) if isinstance(space, enum.Enum) else None
    return (name or str(space) if space is not None else "default").lower()


def is_dtype(value: Any) -> bool:
    import numpy as np

    if isinstance(value, np.dtype):
        return True
    return isinstance(value, type) and issubclass(value, np.generic) or hasattr(value, "_rules")


def dtype_name(dtype: Any) -> str:
    import numpy as np

    if hasattr(dtype, "_rules"):
        return str(getattr(dtype, "name", dtype))
    return str(np.dtype(dtype).name)
