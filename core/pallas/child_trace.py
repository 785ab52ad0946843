"""Child script: import a Python file, trace functions of it with jax, and answer what every ``pallas_call`` would run.

The request names the file, the function (None for every one whose defaults give its shapes), shapes of arguments, the
target whose lowering is tried, and whether the installed jax's tables of rules and chips are wanted. The answer is
version ``VERSION`` of the description that ``describe.py`` makes.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import json
import os
import re
import runpy
import sys
import traceback
from typing import Any

from hloscope.core.pallas import describe, mesh_kernels
from hloscope.core.pallas.describe import Writer

VERSION = 1
DTYPES = {
    "pred": "bool_", "bool": "bool_", "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16",
    "c64": "complex64", "c128": "complex128", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
    **{f"s{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
}  # fmt: skip
SHAPE = re.compile(r"^\s*([a-z][a-z0-9]*)\s*\[([0-9,\s]*)\](?:\{[^}]*\})?\s*$")
RULE_TABLES = (
    ("tpu_sc", "mosaic", "lowering_rules"),
    ("triton", "triton", "triton_lowering_rules"),
    ("mosaic_gpu", "mosaic_gpu", "mosaic_lowering_rules"),
)
"""(public package to import first, folder of its lowering, name of the table): importing registers rules."""
DEVICE_KINDS = {
    "v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5p", "v6e": "TPU v6 lite", "v7x": "TPU7x",
}  # fmt: skip


class Told(Exception):
    """A fault of the request, to be shown in one line."""

    def __init__(self, message: str, *, usage: bool = True, path: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.answer = {"error": message, "usage": usage, "path": path, "line": line}


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request: dict[str, Any] = json.load(file)
    try:
        answer = answer_request(request)
    except Told as told:
        answer = told.answer
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(answer, file)


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    import jax

    allow_missing_absl()
    info = importlib.import_module("jax._src.source_info_util")
    for mine in (__file__, describe.__file__, mesh_kernels.__file__):
        info.register_exclusion(mine)
    # Kernels that jax ships are somebody's kernels too: their lines are what a finding is about.
    info.register_inclusion(os.path.join(os.path.dirname(jax.__file__), "experimental", "pallas", "ops") + os.sep)
    writer = Writer(request["path"])
    writer.watch_block_specs()
    writer.watch_calls()
    writer.watch_pipelines()
    module = load_file(request["path"])
    names = [request["function"]] if request.get("function") else traceable(request["path"], module)
    if not names:
        raise Told("no function of the file can be traced without arguments: name one as FILE.py:FUNCTION with --arg")
    programs: list[dict[str, Any]] = []
    for name in names:
        programs.append(trace_function(writer, request, module, name))
    answer: dict[str, Any] = {
        "version": VERSION,
        "jax": jax.__version__,
        "programs": programs,
        "calls": writer.calls,
        "avals": writer.avals,
        "spans": writer.spans,
    }
    if request.get("facts"):
        answer["rules"] = lowering_rules()
        answer["chips"] = chip_facts()
    return answer


# -- the user's file and its arguments


def load_file(path: str) -> dict[str, Any]:
    folder, name = module_of(path)
    sys.path.insert(0, folder)
    try:
        if name is not None:
            return vars(importlib.import_module(name))
        return runpy.run_path(path, run_name="hloscope_program")
    except SystemExit as error:
        raise Told(f"the file ends with {error!r} when it is imported", path=path) from None
    except BaseException as error:
        raise Told(f"importing the file failed: {first_line(error)}", **user_frame(error, path)) from None


def module_of(path: str) -> tuple[str, str | None]:
    """Folder to import from, and the dotted name of a file in a package, whose relative imports need it; else None."""
    folder, stem = os.path.split(os.path.splitext(path)[0])
    parts = [stem]
    levels = _levels(path)
    while os.path.isfile(os.path.join(folder, "__init__.py")) or len(parts) <= levels:
        folder, parent = os.path.split(folder)
        if not parent:
            break
        parts.insert(0, parent)
    if len(parts) == 1:
        return folder or ".", None
    return folder or ".", ".".join(parts[:-1] if stem == "__init__" else parts)


def _levels(path: str) -> int:
    """How many folders up the file's relative imports reach."""
    try:
        with open(path, encoding="utf-8") as opened:
            tree = ast.parse(opened.read())
    except (OSError, SyntaxError, ValueError):
        return 0  # importing it will tell
    return max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)


def traceable(path: str, module: dict[str, Any]) -> list[str]:
    """Functions that the file itself defines and whose parameters all have defaults that give shapes."""
    found: list[tuple[int, str]] = []
    for name, value in module.items():
        inner = inspect.unwrap(value) if callable(value) else None
        code = getattr(inner, "__code__", None)
        if code is None or name.startswith("_") or code.co_filename != path or inspect.isclass(value):
            continue
        parameters = inspect.signature(value).parameters.values()
        if not parameters or any(parameter.default is parameter.empty for parameter in parameters):
            continue
        if not any(is_shape(parameter.default) for parameter in parameters):
            continue
        found.append((code.co_firstlineno, name))
    return [name for _, name in sorted(found)]


def is_shape(value: Any) -> bool:
    import jax

    return any(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in jax.tree_util.tree_leaves(value))


def find_function(path: str, module: dict[str, Any], name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
        if found is None:
            raise Told(f"no function {name!r} in the file", path=path)
    if not callable(found):
        raise Told(f"{name!r} is not a function", path=path)
    return found


def arguments(path: str, name: str, function: Any, given: list[str]) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """Positional and keyword arguments as shapes, and the static ones (numbers, texts, functions) as they are."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    args: list[Any] = [abstract(text) for text in given]
    kwargs: dict[str, Any] = {}
    for position, parameter in enumerate(parameters):
        if position < len(given) or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            raise Told(
                f"parameter {parameter.name!r} of {name} has no default that gives its shape: name it with"
                f" --arg 'f32[8,128]' ({position + 1} in order)",
                path=path,
            )
        if not is_shape(parameter.default):
            continue  # the function's own default is used
        # by position as long as no parameter was left out, so that the arguments keep the order of the signature
        if parameter.kind is not parameter.KEYWORD_ONLY and len(args) == position:
            args.append(parameter.default)
        else:
            kwargs[parameter.name] = parameter.default
    return args, kwargs, parameters


def abstract(text: str) -> Any:
    import jax

    match = SHAPE.match(text)
    dtype = match and DTYPES.get(match[1])
    if match is None or dtype is None:
        raise Told(f"--arg {text!r} is no shape, such as f32[8,128]")
    dims = tuple(int(part) for part in match[2].split(",") if part.strip())
    return jax.ShapeDtypeStruct(dims, getattr(jax.numpy, dtype))


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def user_frame(error: BaseException, path: str) -> dict[str, Any]:
    """The innermost line of the user's file in a traceback, or where a syntax error is."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return {"path": path, "line": error.lineno}
    return {"path": path, "line": innermost_line(error, path)}


def innermost_line(error: BaseException | None, path: str) -> int | None:
    line = None
    seen = 0
    while error is not None and seen < 8:
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == path and frame.lineno is not None:
                line = frame.lineno
        error, seen = error.__cause__ or error.__context__, seen + 1
    return line


# -- tracing


def trace_function(writer: Writer, request: dict[str, Any], module: dict[str, Any], name: str) -> dict[str, Any]:
    import jax

    path = request["path"]
    function = find_function(path, module, name)
    args, kwargs, _ = arguments(path, name, function, request.get("args", []))
    program: dict[str, Any] = {"function": name, "refused": None, "lowering": None}
    # what a finding of a refused call would point at
    writer.begin_function()
    try:
        try:
            closed = jax.make_jaxpr(function)(*args, **kwargs)
        except ValueError as error:
            if "Unsupported TPU device kind" not in str(error):
                raise
            # the function asks which chip it is for: the target, else a v5e
            del writer.calls[writer.first_call :]
            wanted = str(request.get("lower"))
            with as_device(wanted if wanted in DEVICE_KINDS else "v5e"):
                closed = jax.make_jaxpr(function)(*args, **kwargs)
    except Exception as error:
        program["refused"] = {"kind": type(error).__name__, "message": whole_message(error),
                              "at": writer.error_span(error, path)}  # fmt: skip
        return program
    program["jaxpr"] = writer.closed(mesh_kernels.without_references(closed))
    program["arguments"] = [writer.value_of(leaf) for leaf in jax.tree_util.tree_leaves((args, kwargs))]
    if request.get("lower"):
        program["lowering"] = try_lowering(writer, request["lower"], function, args, kwargs, path)
    return program


def as_device(target: str) -> Any:
    """A context in which jax believes that it compiles for a TPU of that kind."""
    sharding = importlib.import_module("jax.sharding")
    device = sharding.AbstractDevice(device_kind=DEVICE_KINDS[target], num_cores=1, platform="tpu")
    return sharding.use_abstract_mesh(sharding.AbstractMesh((), (), abstract_device=device))


def whole_message(error: BaseException) -> str:
    """Its words on one line; of one that has none, where it was raised."""
    words = " ".join(str(error).split())[:2000]
    frames = traceback.extract_tb(error.__traceback__)
    if words or not frames:
        return words or "without a message"
    file = re.sub(r".*[\\/](?:site|dist)-packages[\\/]", "", frames[-1].filename)
    return f"without a message, raised in {file}:{frames[-1].lineno} ({frames[-1].name})"


def try_lowering(writer: Writer, target: str, function: Any, args: Any, kwargs: Any, path: str) -> dict[str, Any]:
    """What jax's own lowering for a platform says, without a device. Its refusals are the reference of ours."""
    import jax

    platform = "tpu" if target in DEVICE_KINDS else "cuda"
    jitted = function if hasattr(function, "trace") else jax.jit(function)
    answer: dict[str, Any] = {"platform": platform, "ok": True, "kind": None, "message": None, "at": None}
    try:
        if platform == "tpu":
            with as_device(target):
                jitted.trace(*args, **kwargs).lower(lowering_platforms=("tpu",))
        else:
            importlib.import_module("jax.experimental.pallas.triton")
            importlib.import_module("jax.experimental.pallas.mosaic_gpu")
            jitted.trace(*args, **kwargs).lower(lowering_platforms=("cuda",))
    except Exception as error:
        answer |= {"ok": False, "kind": type(error).__name__, "message": whole_message(error),
                   "at": writer.error_span(error, path)}  # fmt: skip
    return answer


def lowering_rules() -> dict[str, list[str]]:
    """Names of the primitives that each backend of the installed jax implements."""
    found: dict[str, list[str]] = {}
    for package, source, table in RULE_TABLES:
        try:
            importlib.import_module(f"jax.experimental.pallas.{package}")
            rules = getattr(importlib.import_module(f"jax._src.pallas.{source}.lowering"), table)
        except ImportError:
            continue  # this jax lacks the backend or what it needs; the checks then say that they cannot decide
        if package == "tpu_sc":
            for core, primitives in rules.items():
                found[f"tpu:{core.name.lower()}"] = sorted({primitive.name for primitive in primitives})
        elif package == "mosaic_gpu":
            found[package] = sorted({primitive.name for primitives in rules.values() for primitive in primitives})
        else:
            found[package] = sorted({primitive.name for primitive in rules})
    return found


def allow_missing_absl() -> None:
    """jax's Mosaic GPU package imports absl for its logger alone and does not require it."""
    if importlib.util.find_spec("absl") is not None:
        return
    import logging
    import types

    stand_in = types.ModuleType("absl")
    stand_in.logging = logging  # type: ignore[attr-defined]
    sys.modules["absl"] = stand_in


def chip_facts() -> dict[str, dict[str, Any]]:
    """The table of TPU chips in the installed jax, read through an abstract device of each kind."""
    info = importlib.import_module("jax.experimental.pallas.tpu").get_tpu_info
    found: dict[str, dict[str, Any]] = {}
    for name in DEVICE_KINDS:
        try:
            with as_device(name):
                facts = info()
        except Exception:
            continue  # a chip that this jax does not know
        found[name] = {
            field.name: getattr(facts, field.name)
            for field in dataclasses.fields(facts)
            if isinstance(getattr(facts, field.name), int)
        }
    return found


if __name__ == "__main__":
    main()
