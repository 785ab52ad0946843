"""Child script for one version of jaxlib: compile an HLO module with its XLA:CPU, dump it, run it.

Runs in that version's own environment, from releases that had other names for the same things to the newest; imports
nothing of hloscope. Arrays travel as bit patterns, with their numpy or ml_dtypes names in the request and the answer.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request: dict[str, Any] = json.load(file)
    answer = execute(request)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(answer, file)


def execute(request: dict[str, Any]) -> dict[str, object]:
    import jax
    import ml_dtypes
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    client_module = importlib.import_module("jaxlib.xla_client")
    native = client_module._xla
    with open(request["path"], encoding="utf-8") as file:
        text = file.read()
    try:
        module = find(["jaxlib._hlo", native], "hlo_module_from_text")(text)
    except Exception as error:
        return {"refused": " ".join(str(error).split())[:300]}
    proto = module.as_serialized_hlo_module_proto()
    mlir = native.mlir
    try:
        if hasattr(mlir, "hlo_to_stablehlo"):
            program = mlir.hlo_to_stablehlo(proto)
        else:
            program = mlir.xla_computation_to_mlir_module(native.XlaComputation(proto))
    except Exception as error:
        # The way in is at fault, not the compiler.
        return {"refused": " ".join(str(error).split())[:300]}
    device = jax.local_devices(backend="cpu")[0]
    client = device.client
    options = client_module.CompileOptions()
    if hasattr(client, "compile_and_load"):
        loaded = client.compile_and_load(program, client_module.DeviceList((device,)), options)
    else:
        loaded = client.compile(program, options)

    def dtype(name: str) -> Any:
        return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)

    with np.load(request["inputs"], allow_pickle=False) as stored:
        arrays = [
            np.ascontiguousarray(stored[f"a{number}"]).view(dtype(name)).reshape(stored[f"a{number}"].shape)
            if stored[f"a{number}"].dtype != dtype(name)
            else stored[f"a{number}"]
            for number, name in enumerate(request["types"])
        ]
    buffers = [jax.device_put(array, device) for array in arrays]
    results = [np.asarray(one[0]) for one in loaded.execute_sharded(buffers).disassemble_into_single_device_arrays()]
    saved: dict[str, Any] = {
        f"a{number}": one if one.dtype.kind in "biufc" else one.view(f"u{one.dtype.itemsize}")
        for number, one in enumerate(results)
    }
    np.savez(request["outputs"], allow_pickle=False, **saved)
    return {"types": [one.dtype.name for one in results]}


def find(places: list[Any], name: str) -> Any:
    """The first of some modules, given or named, that has a name."""
    for place in places:
        try:
            module = importlib.import_module(place) if isinstance(place, str) else place
        except ImportError:
            continue
        if hasattr(module, name):
            return getattr(module, name)
    raise SystemExit(f"this jaxlib has no {name}")


main()
