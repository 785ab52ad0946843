"""Child script: compile one HLO module with XLA:CPU and run it on given arrays.

The request names the program's text, the ``.npz`` of inputs and the one to write. Bit patterns of types that numpy's
format lacks are viewed as what ``dtypes`` says. Imports nothing of hloscope.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

NATIVE = frozenset({"bool", "float16", "float32", "float64", "complex64", "complex128"})
"""Types beside the integers that numpy's file format knows; ml_dtypes' kinds claim that it knows more."""


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request: dict[str, Any] = json.load(file)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(execute(request), file)


def execute(request: dict[str, Any]) -> dict[str, object]:
    import jax
    import numpy as np

    xla_client = importlib.import_module("jax._src.lib").xla_client
    jax.config.update("jax_enable_x64", True)
    hlo = importlib.import_module("jaxlib._hlo")
    mlir = importlib.import_module("jaxlib._jax").mlir
    with open(request["path"], encoding="utf-8") as file:
        text = file.read()
    if "lapack_" in text:
        # The kernels are null pointers until something asks for LAPACK.
        importlib.import_module("jaxlib.lapack").prepare_lapack_call("potrf", np.float32)
    module = hlo.hlo_module_from_text(text)
    devices = jax.local_devices(backend="cpu")[: int(request.get("partitions", 1))]
    program = mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
    started = time.perf_counter()
    loaded = devices[0].client.compile_and_load(
        program, xla_client.DeviceList(tuple(devices)), compile_options(xla_client, len(devices))
    )
    compiled = time.perf_counter() - started
    with np.load(request["inputs"], allow_pickle=False) as stored:
        types = json.loads(str(stored["dtypes"]))
        keys = sorted((key for key in stored.files if key.startswith("in_")), key=lambda key: int(key[3:]))
        arrays = [view(stored[key], types[key]) for key in keys]
    fastest = float("inf")
    results: list[Any] = []
    for _ in range(max(1, int(request.get("repeat", 1)))):
        # Anew for each run: a module that aliases inputs with outputs takes its buffers away.
        alone = len(devices) == 1
        places = devices * len(arrays) if alone else placements(loaded.get_parameter_shardings(), devices)
        buffers = jax.block_until_ready([jax.device_put(a.copy(), at) for a, at in zip(arrays, places, strict=True)])
        started = time.perf_counter()
        shards = loaded.execute_sharded(buffers).disassemble_into_single_device_arrays()
        if len(devices) == 1:
            results = [jax.block_until_ready(shard[0]) for shard in shards]
        else:
            made = zip(request["shapes"], placements(loaded.get_output_shardings(), devices), shards, strict=True)
            joined = [jax.make_array_from_single_device_arrays(tuple(s), at, list(one)) for s, at, one in made]
            results = jax.block_until_ready(joined)
        fastest = min(fastest, time.perf_counter() - started)
    saved: dict[str, Any] = {}
    names: dict[str, str] = {}
    for i, result in enumerate(results):
        array = np.asarray(result)
        key = f"out_{i:03d}"
        names[key] = "pred" if array.dtype == bool else array.dtype.name
        if array.dtype.name.startswith(("int", "uint")) or array.dtype.name in NATIVE:
            small = array.dtype.name in ("int2", "int4", "uint2", "uint4")
            saved[key] = array.astype(np.int8 if array.dtype.name.startswith("int") else np.uint8) if small else array
        else:
            saved[key] = array.view(f"u{array.dtype.itemsize}")
    np.savez(request["outputs"], allow_pickle=False, **saved, dtypes=json.dumps(names))
    return {"count": len(results), "compile_seconds": compiled, "run_seconds": fastest}


def compile_options(xla_client: Any, partitions: int) -> Any:
    """Options for one device, or for a module that its annotations divide among several."""
    import numpy as np

    options = xla_client.CompileOptions()
    if partitions > 1:
        build = options.executable_build_options
        options.num_partitions = build.num_partitions = partitions
        build.use_spmd_partitioning = True
        options.device_assignment = build.device_assignment = xla_client.DeviceAssignment.create(
            np.arange(partitions).reshape(1, partitions)
        )
    return options


def placements(shardings: Any, devices: Any) -> list[Any]:
    """Where the parts of arrays lie on several devices."""
    kind = importlib.import_module("jax._src.sharding_impls").GSPMDSharding
    return [kind(tuple(devices), one) for one in shardings]


def dtype_of(name: str) -> Any:
    """The dtype of an HLO element type's word."""
    import ml_dtypes
    import numpy as np

    words = {"pred": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64",
             "c64": "complex64", "c128": "complex128"}  # fmt: skip
    if name in words:
        word = words[name]
    elif name[0] in "su":
        word = ("int" if name[0] == "s" else "uint") + name[1:]
    else:
        word = "float" + name[1:].partition("e")[0] + "_e" + name.partition("e")[2]
    return np.dtype(getattr(ml_dtypes, word) if hasattr(ml_dtypes, word) else word)


def view(array: Any, name: str) -> Any:
    """A stored array as what it is: sub-byte integers are stored by value, odd floats by bit pattern."""
    dtype = dtype_of(name)
    if array.dtype == dtype:
        return array
    return array.astype(dtype) if name in ("s2", "s4", "u2", "u4") else array.view(dtype)


main()
