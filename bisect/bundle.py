"""The folder that goes into a bug report: the module, its inputs, what was expected, the culprit, how to see it.

Names of files and operations are taken out of the metadata unless asked for, so that it can be shown to others.
"""

from __future__ import annotations

import json
import os
import platform
import re
from difflib import unified_diff
from typing import TYPE_CHECKING

from hloscope.core.errors import UsageError
from hloscope.core.runtime import npz
from hloscope.core.version import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hloscope.bisect.result import Answer, Culprit
    from hloscope.core.views.data import Source

_METADATA = re.compile(r",\s*metadata=\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\"|\{[^{}]*\})*\}")
_FRONTEND = re.compile(r",\s*frontend_attributes=\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\"|\{[^{}]*\})*\}")
_PATH = re.compile(r"(?<![\w.<>:/])(?:~|\.{1,2})?(?:/[\w.@+-]+){2,}")
"""A path of two folders and more; what is left of it is the file's name."""
_TABLES = re.compile(r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)*\n?", re.M)

JAX = '''"""Compiles module.hlo with the installed XLA:CPU and compares its results with expected.npz."""
import importlib, json
import jax, numpy as np

jax.config.update("jax_enable_x64", True)
hlo = importlib.import_module("jaxlib._hlo")
mlir = importlib.import_module("jaxlib._jax").mlir
client = importlib.import_module("jax._src.lib").xla_client
module = hlo.hlo_module_from_text(open("module.hlo").read())
program = mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
device = jax.local_devices(backend="cpu")[0]
loaded = device.client.compile_and_load(program, client.DeviceList((device,)), client.CompileOptions())
given = np.load("inputs.npz")
buffers = [jax.device_put(given[f"in_{i:03d}"], device) for i in range(sum(k.startswith("in_") for k in given.files))]
results = [np.asarray(one[0]) for one in loaded.execute_sharded(buffers).disassemble_into_single_device_arrays()]
expected = np.load("expected.npz")
for i, have in enumerate(results):
    want = expected[f"out_{i:03d}"]
    print(f"result {i}:", "equal" if np.array_equal(have, want) else f"differs\\n  expected {want}\\n  got      {have}")
'''
"""What somebody without this tool runs; types that numpy's files lack are stored as bit patterns and are not viewed."""


def write_bundle(
    folder: str,
    answer: Answer,
    source: Source | None,
    words: Sequence[str],
    *,
    redact: bool = True,
    force: bool = False,
) -> list[str]:
    """Write the bundle and return its files. Raises UsageError where the folder holds something already."""
    if os.path.isdir(folder) and os.listdir(folder) and not force:
        raise UsageError("exists already and is not empty", path=folder, hint="--force writes into it")
    os.makedirs(folder, exist_ok=True)
    written: list[str] = []

    def put(name: str, text: str) -> None:
        with open(os.path.join(folder, name), "w", encoding="utf-8", errors="surrogateescape") as out:
            out.write(text)
        written.append(name)

    texts = {name: redacted(text) if redact else text for name, text in answer.texts.items()}
    for name, text in texts.items():
        put(name, text)
    if {"before.hlo", "after.hlo"} <= set(texts):
        before, after = (texts[name].splitlines() for name in ("before.hlo", "after.hlo"))
        put("change.diff", "\n".join(unified_diff(before, after, "before.hlo", "after.hlo", lineterm="", n=2)) + "\n")
    for name, (inputs, outputs) in answer.arrays.items():
        npz.write(os.path.join(folder, name), inputs=inputs, outputs=outputs)
        written.append(name)
    if "module.hlo" in answer.texts and {"inputs.npz", "expected.npz"} <= set(answer.arrays):
        put("repro.py", JAX)
    put("environment.json", json.dumps(_environment(source), indent=1) + "\n")
    said = "\n".join(report(answer, source, words, written)) + "\n"
    put("report.md", _PATH.sub(lambda found: found[0].rsplit("/", 1)[1], said) if redact else said)
    return written


def redacted(text: str) -> str:
    """HLO text without source files, operation names and frontend attributes."""
    return _TABLES.sub("", _FRONTEND.sub("", _METADATA.sub("", text)))


def report(
    answer: Answer,
    source: Source | None,
    words: Sequence[str],
    files: Sequence[str],
    line: Callable[[Culprit], int | None] | None = None,
) -> Iterator[str]:
    """The answer as Markdown, line by line; `line` finds a culprit's line in its file."""
    name = source.module if source is not None else "a program"
    yield f"# {answer.verdict}: {name}"
    yield ""
    for one in answer.culprits:
        where = f"`{one.pipeline}/{one.pass_name}`" if one.pipeline else f"`{one.pass_name}`"
        stage = f", stage {one.stage}" if one.stage is not None else ""
        fuel = f", fuel {one.fuel}" if one.fuel is not None else ""
        yield f"**Culprit:** {where}, run {one.occurrence}{stage}{fuel}. {one.sentence}"
        at = one.line if line is None else line(one)
        if at is not None:
            yield ""
            yield f"Where: `{one.file}:{at}`"
        yield ""
    if answer.pair:
        yield f"**Pair:** the fault shows only where both `{answer.pair[0]}` and `{answer.pair[1]}` run."
        yield ""
    yield "## Evidence"
    yield from (f"- {said}" for said in answer.evidence)
    if answer.cures:
        yield ""
        yield "## Switches that cure it (no proof of guilt)"
        yield from (f"- `{cure}`" for cure in answer.cures)
    yield ""
    yield "## To see it"
    yield f"- `hloscope {' '.join(words)}`"
    if "repro.py" in files:
        yield "- without hloscope: `python repro.py` (jax on CPU)"
    if "module.hlo" in files:
        yield "- XLA's own tools: `run_hlo_module --platform=CPU --reference_platform=Interpreter module.hlo`"
    if "before.hlo" in files and answer.verdict == "wrong-stage" and not any(one.fuel for one in answer.culprits):
        for name in dict.fromkeys(one.pass_name for one in answer.culprits):
            yield f"- the one pass: `hlo-opt --passes={name} before.hlo`, and compare with `after.hlo`"
    if "change.diff" in files:
        yield "- `change.diff`: what the stage changed"
    yield ""
    yield "## Probes"
    yield "| level | range | tried | outcome |"
    yield "| --- | --- | --- | --- |"
    for probe in answer.probes:
        detail = f": {probe.detail[:120]}" if probe.detail else ""
        yield f"| {probe.level} | {probe.low}..{probe.high} | {probe.tried} | {probe.outcome}{detail} |"


def _environment(source: Source | None) -> dict[str, object]:
    from hloscope.core.xla.targets import package_version

    names = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "numpy")
    return {
        "hloscope": version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: found for name in names if (found := package_version(name)) is not None},
        "xla_build": source.xla_build if source is not None else None,
        "target": source.target if source is not None else None,
    }
