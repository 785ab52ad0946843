"""Traces functions of a Python file with jax, in a child process, and reads the description that it answers with.

The user's code and jax run in the child alone. What comes back is data: programs, calls, the installed jax's tables of
lowering rules and chip facts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hloscope.core.errors import CompileError, InternalError, UsageError
from hloscope.core.pallas.call import PallasCall, Program, decode_call, decode_program
from hloscope.core.pallas.jaxpr import Aval, Decoder, Span
from hloscope.core.xla.child import clean_environment, last_line

VERSION = 1
"""Version of the description; the child writes it into its answer."""
DEVICES = "--xla_force_host_platform_device_count=8"
"""Devices that a traced program may make a mesh of."""
TRACE_SECONDS = 600.0
"""Longest trace, in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What the child found in one file."""

    path: str
    """The file as the user named it."""
    jax: str
    """Version of the jax that traced it."""
    programs: tuple[Program, ...]
    calls: tuple[PallasCall, ...]
    rules: Mapping[str, frozenset[str]]
    """Backend (``tpu:tc``, ``triton``, ``mosaic_gpu``) -> primitives that it lowers; without those it lacks."""
    chips: Mapping[str, Mapping[str, int]]
    """Chip -> facts of the installed jax's ``TpuInfo``."""


def split_pallas_spec(spec: str) -> tuple[str, str | None]:
    """(file, function or None) of ``FILE.py[:FUNCTION]``. Raises ``UsageError`` for a file that is missing."""
    path, colon, function = spec.rpartition(":")
    if not colon or not path.endswith(".py"):
        path, function = spec, ""
    if not path.endswith(".py"):
        raise UsageError(f"{spec!r} is not of the form FILE.py[:FUNCTION]")
    if not os.path.isfile(path):
        raise UsageError("no such file", path=path)
    return path, function or None


def trace_file(
    path: str,
    function: str | None = None,
    *,
    args: Sequence[str] = (),
    lower: str | None = None,
    facts: bool = True,
    timeout: float = TRACE_SECONDS,
) -> Trace:
    """Traces one function, or every function of the file whose defaults give its shapes.

    ``lower`` names a chip whose lowering is tried as well, without a device. Raises ``UsageError`` where the file, the
    function or a shape is missing, ``CompileError`` where the child crashes or takes longer than ``timeout`` seconds. A
    function that jax refuses to trace is a program with ``refused`` set.
    """
    absolute = os.path.abspath(path)
    request = {"path": absolute, "function": function, "args": list(args), "lower": lower, "facts": facts}
    answer = _run_child(request, timeout, what=f"tracing {function or os.path.basename(path)}", shown={absolute: path})
    return decode_trace(path, answer)


def decode_trace(path: str, answer: Mapping[str, Any]) -> Trace:
    """The trace that a description holds. Raises ``InternalError`` for one of another version."""
    if answer.get("version") != VERSION:
        raise InternalError(f"the tracing child answered version {answer.get('version')}, not {VERSION}")
    absolute = os.path.abspath(path)
    decoder = Decoder(
        avals=tuple(Aval(one["kind"], tuple(one["shape"]), one["dtype"], one.get("space")) for one in answer["avals"]),
        spans=tuple(Span(path if file == absolute else file, *rest) for file, *rest in answer["spans"]),
    )
    calls = tuple(decode_call(decoder, number, one) for number, one in enumerate(answer["calls"]))
    programs = tuple(decode_program(decoder, one) for one in answer["programs"])
    rules = {backend: frozenset(names) for backend, names in answer.get("rules", {}).items()}
    return Trace(path, answer["jax"], programs, calls, rules, answer.get("chips", {}))


def _run_child(request: Mapping[str, object], timeout: float, what: str, shown: Mapping[str, str]) -> dict[str, Any]:
    environment = clean_environment({"JAX_PLATFORMS": "cpu", "XLA_FLAGS": DEVICES})
    with tempfile.TemporaryDirectory(prefix="hloscope-") as folder:
        asked, answered, errors = (Path(folder, name) for name in ("request.json", "answer.json", "stderr.txt"))
        asked.write_text(json.dumps(request))
        script = str(Path(__file__).with_name("child_trace.py"))
        with errors.open("wb") as stderr:
            try:
                status = subprocess.run(
                    [sys.executable, "-P", script, str(asked), str(answered)],
                    env=environment, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, timeout=timeout,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                raise CompileError(f"{what} did not finish within {timeout:g} s") from None
        try:
            answer = cast("dict[str, Any]", json.loads(answered.read_text("utf-8")))
        except (OSError, ValueError):
            said = last_line(errors.read_text("utf-8", "replace"))
            raise CompileError(f"{what} ended with status {status}" + (f": {said}" if said else "")) from None
    if "error" in answer:
        path = cast("str | None", answer.get("path"))
        raise UsageError(answer["error"], path=shown.get(path, path) if path else None, line=answer.get("line"))
    return answer
