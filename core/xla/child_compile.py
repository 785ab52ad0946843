"""Child script: compile one program with the real XLA, dumps on.

The request names the program (``hlo``: a text file, ``stablehlo``: an MLIR file, or ``function``: ``FILE.py:NAME``) and
the target; ``XLA_FLAGS`` is in the environment already. Answers with versions, seconds and the module's name. Imports
nothing of hloscope. How each target is reached without a device is in the comments below.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import runpy
import sys
import time
import traceback
from typing import Any

DTYPES = {
    "pred": "bool_", "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16",
    "c64": "complex64", "c128": "complex128", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
    "f8e4m3b11fnuz": "float8_e4m3b11fnuz", "f8e4m3": "float8_e4m3", "f8e3m4": "float8_e3m4",
    "f4e2m1fn": "float4_e2m1fn",
    **{f"s{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
}  # fmt: skip
V5E_GRIDS = (("2x2", 4), ("2x4", 8), ("4x4", 16), ("4x8", 32), ("8x8", 64), ("8x16", 128), ("16x16", 256))
"""Topologies of a v5e by the number of their chips."""
SHAPE = re.compile(r"^\s*([a-z][a-z0-9]*)\s*\[([0-9,\s]*)\](?:\{[^}]*\})?\s*$")


class Told(Exception):
    """A fault of the request, to be shown in one line."""

    def __init__(self, message: str, *, usage: bool = True, path: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.answer = {"error": message, "usage": usage, "path": path, "line": line}


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request: dict[str, Any] = json.load(file)
    try:
        answer = compile_request(request)
    except Told as told:
        answer = told.answer
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(answer, file)


def compile_request(request: dict[str, Any]) -> dict[str, object]:
    import jax

    # The compiler records the Python stack of every instruction: it starts in the user's file.
    importlib.import_module("jax._src.source_info_util").register_exclusion(__file__)
    if request.get("x64"):
        jax.config.update("jax_enable_x64", True)
    devices = target_devices(request)
    started = time.perf_counter()
    if request["kind"] == "function":
        name = compile_function(request, devices)
    else:
        name = compile_text(request, devices)
    return {
        "seconds": time.perf_counter() - started,
        "module": name,
        "jax": jax.__version__,
        "jaxlib": importlib.import_module("jaxlib").__version__,
        "platform": str(devices[0].client.platform_version),
    }


def target_devices(request: dict[str, Any]) -> list[Any]:
    """The devices compiled for: real ones of this CPU, or those of a topology that nobody owns."""
    import jax

    target = request["target"]
    if target == "cpu":
        return list(jax.local_devices(backend="cpu"))
    from jax.experimental import topologies

    wanted = max(1, int(request.get("devices", 1)))
    if target == "v5e":
        grid = next((grid for grid, size in V5E_GRIDS if size >= wanted), V5E_GRIDS[-1][0])
        return list(topologies.get_topology_desc(platform="tpu", topology_name=f"v5e:{grid}").devices)
    config: str = request["config"]
    shape = f"1x1x{wanted}"
    for _ in range(40):
        try:
            return list(
                topologies.get_topology_desc(
                    platform="cuda", topology_name="h100", target_config=config, topology=shape
                ).devices
            )
        except Exception as error:
            # A field that this build does not know fails the whole text, with its name in the message.
            unknown = re.search(r'no field named "?(\w+)|"(\w+)"', str(error))
            field = unknown and (unknown[1] or unknown[2])
            smaller = without_field(config, field) if field else config
            if smaller == config:
                raise
            config = smaller
    raise Told("the GPU description does not fit this build", usage=False)


def without_field(config: str, field: str) -> str:
    """A text proto without the lines (or the block) of one field."""
    config = re.sub(rf"^[ \t]*{field}[ \t]*:[^\n]*\n", "", config, flags=re.MULTILINE)
    return re.sub(rf"^([ \t]*){field}[ \t]*\{{.*?^\1\}}[ \t]*\n", "", config, flags=re.MULTILINE | re.DOTALL)


def compile_text(request: dict[str, Any], devices: list[Any]) -> str:
    """Compiles HLO text or StableHLO as it is. Source: ``jaxlib/_jax.pyi``, ``jaxlib/_hlo.pyi``."""
    jax_mlir = importlib.import_module("jax._src.interpreters.mlir")
    xla_client = importlib.import_module("jax._src.lib").xla_client
    jaxlib_mlir = importlib.import_module("jaxlib._jax").mlir
    with open(request["path"], "rb") as file:
        data = file.read()
    name = ""
    if request["kind"] == "hlo":
        hlo = importlib.import_module("jaxlib._hlo")
        try:
            module = hlo.hlo_module_from_text(data.decode("utf-8"))
        except Exception as error:
            raise Told(f"XLA does not read it: {told_by_xla(error)}", usage=False) from None
        name = module.name
        program: Any = jaxlib_mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
    else:
        program = data if data[:4] == b"ML\xefR" else data.decode("utf-8")
    if request.get("layouts"):
        program = with_layouts(program, *request["layouts"])
    replicas, partitions = int(request.get("replicas", 1)), int(request.get("partitions", 1))
    if len(devices) < replicas * partitions:
        raise Told(f"the module wants {replicas * partitions} devices, the target has {len(devices)}")
    options = compile_options(xla_client, devices, replicas, partitions, request.get("shardy", False))
    chosen = xla_client.DeviceList(tuple(devices[: replicas * partitions]))
    client = devices[0].client
    try:
        if request["target"] == "cpu":
            client.compile_and_load(program, chosen, options)
        else:
            with jax_mlir.make_ir_context():
                client.compile(importlib.import_module("jax._src.lib.mlir").ir.Module.parse(program), chosen, options)
    except Exception as error:
        raise Told(told_by_xla(error), usage=False) from None
    return name


def with_layouts(program: Any, arguments: list[str], results: list[str]) -> Any:
    """The program with layouts of the entry (``{0,1}``, ``default`` or ``auto``), as jax marks them; unchanged where
    their number does not fit. Conversion to StableHLO loses what the HLO text says of them."""
    ir = importlib.import_module("jax._src.lib.mlir").ir
    with importlib.import_module("jax._src.interpreters.mlir").make_ir_context():
        module = ir.Module.parse(program)
        main = next(one for one in module.body.operations if str(one.attributes["sym_name"]) == '"main"')
        kind = ir.TypeAttr(main.attributes["function_type"]).value
        for name, modes, count in (
            ("arg_attrs", arguments, len(kind.inputs)), ("res_attrs", results, len(kind.results))
        ):  # fmt: skip
            if len(modes) != count:
                return program
            known = list(main.attributes[name]) if name in main.attributes else [{}] * count
            made = []
            for attrs, mode in zip(known, modes, strict=True):
                entries = {one.name: one.attr for one in attrs} if attrs else {}
                made.append(ir.DictAttr.get({**entries, "mhlo.layout_mode": ir.StringAttr.get(mode)}))
            main.attributes[name] = ir.ArrayAttr.get(made)
        return str(module)


def told_by_xla(error: Exception) -> str:
    """An error of XLA on one line: without its status, and with the line that holds the position."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else (lines[0] if lines else type(error).__name__)
    return re.sub(r"^[A-Z_]+: ", "", text)


def compile_options(xla_client: Any, devices: list[Any], replicas: int, partitions: int, shardy: bool) -> Any:
    import numpy as np

    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = replicas, partitions
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = replicas, partitions
    build.use_spmd_partitioning = partitions > 1
    build.use_shardy_partitioner = shardy and partitions > 1
    ids = np.array([device.id for device in devices[: replicas * partitions]]).reshape(replicas, partitions)
    options.device_assignment = xla_client.DeviceAssignment.create(ids)
    return options


def compile_function(request: dict[str, Any], devices: list[Any]) -> str:
    import jax

    path, name = request["path"], request["function"]
    function = load_function(path, name)
    sharding = None if request["target"] == "cpu" else jax.sharding.SingleDeviceSharding(devices[0])
    args, kwargs = arguments(path, name, function, request.get("args", []), sharding)
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    try:
        lowered = jitted.lower(*args, **kwargs)
    except Exception as error:
        raise Told(f"tracing {name} failed: {first_line(error)}", **user_frame(error, path)) from None
    lowered.compile()
    return f"jit_{getattr(function, '__name__', name)}"


def load_function(path: str, name: str) -> Any:
    sys.path.insert(0, path.rpartition("/")[0] or ".")
    try:
        found: Any = runpy.run_path(path, run_name="hloscope_program")
    except SystemExit as error:
        raise Told(f"the file ends with {error!r} when it is imported", path=path) from None
    except BaseException as error:
        raise Told(f"importing the file failed: {first_line(error)}", **user_frame(error, path)) from None
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
        if found is None:
            raise Told(f"no function {name!r} in the file", path=path)
    if not callable(found):
        raise Told(f"{name!r} is not a function", path=path)
    return found


def arguments(path: str, name: str, function: Any, given: list[str], sharding: Any) -> tuple[list[Any], dict[str, Any]]:
    """Abstract arguments: from ``--arg`` in order, else from the parameters' defaults."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    args: list[Any] = [abstract(text, sharding) for text in given]
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
        value = of_default(parameter.default, sharding)
        if parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return args, kwargs


def abstract(text: str, sharding: Any) -> Any:
    import jax

    match = SHAPE.match(text)
    dtype = match and DTYPES.get(match[1])
    if match is None or dtype is None:
        raise Told(f"--arg {text!r} is no shape", path=None)
    dims = tuple(int(part) for part in match[2].split(",") if part.strip())
    return jax.ShapeDtypeStruct(dims, getattr(jax.numpy, dtype), sharding=sharding)


def of_default(value: Any, sharding: Any) -> Any:
    """A default value with its arrays replaced by their shapes; other leaves stay (they may be static)."""
    import jax

    def leaf(one: Any) -> Any:
        if hasattr(one, "shape") and hasattr(one, "dtype"):
            return jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)
        return one

    return jax.tree.map(leaf, value)


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def user_frame(error: BaseException, path: str) -> dict[str, Any]:
    """The innermost line of the user's file in a traceback."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return {"path": path, "line": error.lineno}
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return {"path": path, "line": lines[-1] if lines else None}


main()
