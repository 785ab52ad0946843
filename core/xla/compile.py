"""Compiles a program with the installed XLA in a child process and leaves its dump in a folder.

HLO text and StableHLO are compiled as they are; ``FILE.py:FUNCTION`` is traced by jax in the child. A compiler that
aborts or hangs is a ``CompileError`` with the last thing that it said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hloscope.core.dumps.filenames import CAPTURE_FILE, PASS_LOG_FILE
from hloscope.core.errors import HloscopeError, UsageError
from hloscope.core.hlo.shape import Shape, scan_shape
from hloscope.core.xla.child import clean_environment, run_child
from hloscope.core.xla.flags import dump_flags, joined_flags, log_environment
from hloscope.core.xla.h100_config import H100_SXM
from hloscope.core.xla.notes import write_capture_note
from hloscope.core.xla.stablehlo import BYTECODE, stablehlo_text
from hloscope.core.xla.targets import Target, require

COMPILE_SECONDS = 1800.0
"""Longest compile by default, in seconds."""
_PARTITIONS = re.compile(r"\b(?:mhlo\.)?num_partitions\s*=\s*([0-9]+)")
_REPLICAS = re.compile(r"\b(?:mhlo\.num_replicas|replica_count)\s*=\s*([0-9]+)")
_ENTRY_LAYOUT = "entry_computation_layout={"
_HEADER_BYTES = 1 << 20
_SHAPE = re.compile(r"^\s*[a-z][a-z0-9]*\s*\[[0-9,\s]*\](?:\{[^}]*\})?\s*$")
_SPEC = re.compile(r"^(?P<path>.+\.py):(?P<function>[A-Za-z_][A-Za-z0-9_.]*)$")


@dataclass(frozen=True, slots=True)
class CompileResult:
    """A finished compile."""

    dump_to: str
    """The folder with its dump."""
    target: str
    seconds: float
    """Time of the compile alone."""
    jaxlib: str
    module: str
    """Name of the module, empty where the child does not know it."""


def compile_hlo_text(
    text: str,
    *,
    dump_to: str | os.PathLike[str],
    target: str = "cpu",
    flags: Sequence[str] = (),
    pass_re: str = ".*",
    proto: bool = True,
    pass_log: bool = False,
    timeout: float = COMPILE_SECONDS,
) -> CompileResult:
    """Compiles HLO text. Raises ``CompileError``, or ``UnsupportedError`` where the target's wheels are missing.

    With ``pass_log`` the dump holds the compiler's own log of its passes, too: every run with its time.
    """
    return _compile_text("hlo", text.encode("utf-8"), dump_to, target, flags, pass_re, proto, pass_log, timeout)


def compile_stablehlo(
    program: str | bytes,
    *,
    dump_to: str | os.PathLike[str],
    target: str = "cpu",
    flags: Sequence[str] = (),
    pass_re: str = ".*",
    proto: bool = True,
    pass_log: bool = False,
    timeout: float = COMPILE_SECONDS,
    as_user: bool = False,
) -> CompileResult:
    """Compiles StableHLO, as text or as MLIR bytecode; `as_user` as in ``compile_function``. Raises as
    ``compile_hlo_text`` does."""
    data = program.encode("utf-8") if isinstance(program, str) else program
    if data.startswith(BYTECODE):
        data = stablehlo_text(data).encode("utf-8")  # what it says of devices and layouts is read from the text
    return _compile_text("stablehlo", data, dump_to, target, flags, pass_re, proto, pass_log, timeout, as_user)


def compile_function(
    spec: str,
    *,
    dump_to: str | os.PathLike[str],
    target: str = "cpu",
    args: Sequence[str] = (),
    flags: Sequence[str] = (),
    pass_re: str = ".*",
    proto: bool = True,
    pass_log: bool = False,
    timeout: float = COMPILE_SECONDS,
    as_user: bool = False,
) -> CompileResult:
    """Compiles a function of a Python file, named ``FILE.py:FUNCTION``.

    With ``as_user`` the compiler's flags in this process's environment count, as they would if the program ran.

    Shapes come from ``args`` (``f32[8,128]``) in order, else from the parameters' defaults. Raises ``UsageError`` where
    the file, the function or a shape is missing, else as ``compile_hlo_text`` does.
    """
    path, function = split_spec(spec)
    for text in args:
        if _SHAPE.match(text) is None:
            raise UsageError(f"--arg {text!r} is no shape", hint="for example f32[8,128]")
    request: dict[str, object] = {
        "kind": "function", "path": os.path.abspath(path), "function": function, "args": list(args),
    }  # fmt: skip
    return _run(
        request, require(target), dump_to, 1, flags, pass_re, proto, pass_log, timeout, as_user,
        what=f"compiling {function}",
    )  # fmt: skip


def split_spec(spec: str) -> tuple[str, str]:
    """(file, function) of ``FILE.py:FUNCTION``. Raises ``UsageError`` for another form or a file that is missing."""
    match = _SPEC.match(spec)
    if match is None:
        raise UsageError(f"{spec!r} is not of the form FILE.py:FUNCTION")
    if not os.path.isfile(match["path"]):
        raise UsageError("no such file", path=match["path"])
    return match["path"], match["function"]


def is_function_spec(spec: str) -> bool:
    """Whether an argument has the form ``FILE.py:FUNCTION``."""
    return _SPEC.match(spec) is not None


def _compile_text(
    kind: str,
    data: bytes,
    dump_to: str | os.PathLike[str],
    target: str,
    flags: Sequence[str],
    pass_re: str,
    proto: bool,
    pass_log: bool,
    timeout: float,
    as_user: bool = False,
) -> CompileResult:
    chosen = require(target)
    head = data[:_HEADER_BYTES].decode("utf-8", "replace")
    if kind == "hlo":
        head = head.partition("\n")[0]
    partitions, replicas = _first(_PARTITIONS, head), _first(_REPLICAS, head)
    layouts = _entry_layouts(head) if kind == "hlo" else None
    with TemporaryDirectory(prefix="hloscope-") as folder:
        path = Path(folder, "program.txt")
        path.write_bytes(data)
        request: dict[str, object] = {
            "kind": kind, "path": str(path), "partitions": partitions, "replicas": replicas, "shardy": "sdy." in head,
            "layouts": layouts,
        }  # fmt: skip
        return _run(
            request, chosen, dump_to, partitions * replicas, flags, pass_re, proto, pass_log, timeout, as_user,
            what="compiling the module",
        )  # fmt: skip


def _entry_layouts(header: str) -> tuple[list[str], list[str]] | None:
    """Layouts of arguments and results as jax writes them, None where all are row-major or some are tuples."""
    at = header.find(_ENTRY_LAYOUT)
    if at < 0:
        return None
    try:
        arguments, end = scan_shape(header, at + len(_ENTRY_LAYOUT))
        result, _ = scan_shape(header, header.index("->", end) + 2)
    except (HloscopeError, ValueError):
        return None
    sides = [[_layout_mode(one) for one in side] for side in (arguments.tuple_shapes, result.tuple_shapes or (result,))]
    modes = [mode for side in sides for mode in side]
    plain = all(mode == "default" for mode in modes)
    return None if plain or "" in modes else (sides[0], sides[1])


def _layout_mode(shape: Shape) -> str:
    if not shape.is_array:
        return ""
    if not shape.dimensions:
        return "default"
    return "auto" if shape.layout is None else "default" if shape.layout.is_default_order else str(shape.layout.plain)


def _first(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return max(1, int(match[1])) if match is not None else 1


def _run(
    request: dict[str, object],
    target: Target,
    dump_to: str | os.PathLike[str],
    devices: int,
    flags: Sequence[str],
    pass_re: str,
    proto: bool,
    pass_log: bool,
    timeout: float,
    as_user: bool,
    *,
    what: str,
) -> CompileResult:
    folder = os.path.abspath(dump_to)
    os.makedirs(folder, exist_ok=True)
    ours = [*dump_flags(folder, pass_re=pass_re, proto=proto), *target.flags]
    if target.name == "cpu" and devices > 1:
        ours.append(f"--xla_force_host_platform_device_count={devices}")
    if target.backend == "gpu":
        ours.append("--xla_dump_module_metadata")
        request["config"] = target.config or H100_SXM
    env = clean_environment(target.variables)
    env["JAX_PLATFORMS"] = "cpu"
    env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    env["XLA_FLAGS"] = joined_flags(os.environ.get("XLA_FLAGS") if as_user else None, [*ours, *flags])
    if as_user and target.backend == "tpu" and "LIBTPU_INIT_ARGS" in os.environ:
        env["LIBTPU_INIT_ARGS"] = f"{env.get('LIBTPU_INIT_ARGS', '')} {os.environ['LIBTPU_INIT_ARGS']}".strip()
    request |= {"target": target.name, "devices": devices}
    log_path = None
    # XLA:GPU tells times in the module's metadata; the log of XLA:TPU goes elsewhere.
    if pass_log and target.backend == "cpu":
        env |= log_environment(env)
        log_path = os.path.join(folder, PASS_LOG_FILE)
    answer = run_child("child_compile.py", request, env=env, timeout=timeout, what=what, log_path=log_path)
    seconds = answer.get("seconds")
    result = CompileResult(
        dump_to=folder,
        target=target.name,
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
        jaxlib=str(answer.get("jaxlib", "")),
        module=str(answer.get("module", "")),
    )
    write_capture_note(
        os.path.join(folder, CAPTURE_FILE),
        jaxlib=result.jaxlib,
        target=target.name,
        command=what,
        flags=env["XLA_FLAGS"],
    )
    return result
