"""The script of a bundle for somebody without this tool: runs HLO texts with the installed XLA:CPU and compares."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

TRY_SECONDS = 300.0
"""Longest run of the script while a bundle is made."""

SCRIPT = """# Compiles HLO texts (those listed here, or those named) with the installed XLA:CPU, runs them and compares.
# Needs jax alone: pip install jax
import importlib, os, sys

FLAGS = ""  # of XLA:CPU, where you set none
RUNS = {}  # text: inputs, what is right, what was seen
DEFAULT = list(RUNS)
TYPES = {}  # of what numpy has no type for: stored as bits, narrow integers as values

os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax, ml_dtypes, numpy as np

jax.config.update("jax_enable_x64", True)
xla, device = importlib.import_module("jaxlib.xla_client"), jax.local_devices(backend="cpu")[0]
mlir = xla._xla.mlir
try:
    hlo = importlib.import_module("jaxlib._hlo")
except ImportError:  # older releases
    hlo = xla._xla

def arrays(path, prefix):
    if path is None or not os.path.exists(path):
        return
    file = np.load(path)
    types = TYPES.get(path, {})
    for key in sorted(key for key in file.files if key.startswith(prefix)):
        known = getattr(ml_dtypes, types.get(key, ""), None)
        yield file[key] if known is None else (file[key].astype if "int" in types[key] else file[key].view)(known)

def run(text, inputs):
    module = hlo.hlo_module_from_text(text)
    proto = module.as_serialized_hlo_module_proto()
    old = not hasattr(mlir, "hlo_to_stablehlo")
    given = xla._xla.XlaComputation(proto) if old else proto
    program = (mlir.xla_computation_to_mlir_module if old else mlir.hlo_to_stablehlo)(given)
    if hasattr(device.client, "compile_and_load"):
        loaded = device.client.compile_and_load(program, xla.DeviceList((device,)), xla.CompileOptions())
    else:
        loaded = device.client.compile(program, xla.CompileOptions())
    buffers = [jax.device_put(one, device) for one in inputs]
    results = loaded.execute_sharded(buffers).disassemble_into_single_device_arrays()
    return [np.asarray(one[0]) for one in results]

def gap(have, want):
    if have.shape != want.shape:
        return f"of shape {have.shape} where {want.shape} is expected"
    if have.tobytes() == want.tobytes():
        return "the same bits"
    with np.errstate(all="ignore"):
        a, b = (one.astype(complex) for one in (have, want))
        odd = np.isfinite(a) != np.isfinite(b)
        gaps = np.where(odd, np.inf, np.abs(np.nan_to_num(a) - np.nan_to_num(b)))
        scale = np.max(np.abs(np.nan_to_num(b)), initial=0)
    far = np.max(gaps, initial=0)
    if far <= 1e-5 * scale:
        return f"the same but for {far:g} at most, where the largest value is {scale:g}"
    at = np.unravel_index(np.argmax(gaps), gaps.shape)
    place = f" at [{', '.join(str(int(one)) for one in at)}]" if at else ""
    return f"off by {far:g}{place}: {have[at]} where {want[at]} is expected"

here = os.path.dirname(os.path.abspath(__file__))
names = [name if os.path.exists(os.path.join(here, name)) else os.path.abspath(name) for name in sys.argv[1:]]
os.chdir(here)  # the names are those of this folder
for name in names or DEFAULT:
    plain = name.removesuffix(".hlo") + ".cpu.hlo"
    name = plain if plain in RUNS else name  # as XLA:CPU takes it
    inputs, right, seen = RUNS.get(name, next(iter(RUNS.values())))
    try:
        results = run(open(name).read(), list(arrays(inputs, "in_")))
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        print(f"{name}: XLA:CPU does not run it: {type(error).__name__}: {said}", flush=True)
        continue
    there = list(arrays(seen, "out_"))
    for number, (have, want) in enumerate(zip(results, arrays(right, "out_"))):
        said = f"{name}: result {number}: {gap(have, want)}"
        if ": the same" not in said:
            if number < len(there):
                said += f" ({right}; {seen}: {gap(have, there[number])})"
        print(said, flush=True)
"""
"""What somebody without this tool runs."""


@dataclass(slots=True)
class Script:
    """What the script of a bundle runs."""

    runs: dict[str, tuple[str, str, str | None]] = field(default_factory=dict[str, "tuple[str, str, str | None]"])
    """Text -> the files of its inputs, of what is right, and of what was seen."""
    default: list[str] = field(default_factory=list[str])
    """Those that are run where none is named."""
    flags: str = ""
    types: dict[str, dict[str, str]] = field(default_factory=dict[str, "dict[str, str]"])
    """File -> array -> its type, where numpy has none."""

    def text(self) -> str:
        """The script."""
        lines = [f"    {name!r}: {files!r},\n" for name, files in self.runs.items()]
        runs = "{\n" + "".join(lines) + "}" if lines else "{}"
        text = SCRIPT.replace("DEFAULT = list(RUNS)", f"DEFAULT = {self.default!r}", 1)
        types = {name: found for name, found in self.types.items() if found}
        text = text.replace('FLAGS = ""', f"FLAGS = {self.flags!r}", 1).replace("RUNS = {}", f"RUNS = {runs}", 1)
        return text.replace("TYPES = {}", f"TYPES = {types!r}", 1)


def attempt(folder: str) -> list[str] | None:
    """What the script of a bundle prints with the installed jax, line by line; None where jax is not installed."""
    if find_spec("jax") is None:
        return None
    env = {key: value for key, value in os.environ.items() if key not in _OURS}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "repro.py"], cwd=folder, env=env, capture_output=True, text=True, errors="replace",
            timeout=TRY_SECONDS, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [f"it does not end within {TRY_SECONDS:g} s"]
    lines = done.stdout.splitlines()
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        lines.append(f"it ended with status {done.returncode}{': ' + last[0][:300] if last else ''}")
    return lines


_OURS = frozenset({"PYTHONPATH", "XLA_FLAGS", "JAX_PLATFORMS"})
"""Variables that are not the bundle's."""


def unusual(arrays: Mapping[str, Sequence[object]]) -> dict[str, str]:
    """The types, by key, of arrays that numpy has no type for; by their prefix."""
    import numpy as np

    return {
        f"{prefix}_{number:03d}": one.dtype.name
        for prefix, every in arrays.items()
        for number, one in enumerate(every)
        if isinstance(one, np.ndarray) and one.dtype.isbuiltin != 1
    }
