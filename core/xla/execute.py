"""Executes an HLO module on the installed XLA:CPU, in a child process; arrays travel in the npz form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hloscope.core.errors import CompileError, EvaluationError
from hloscope.core.runtime import npz
from hloscope.core.xla.child import clean_environment, run_child
from hloscope.core.xla.flags import joined_flags

if TYPE_CHECKING:
    from hloscope.core.runtime.evaluator import Array

EXECUTE_SECONDS = 600.0
"""Longest compile and run by default, in seconds: XLA:CPU is known to hang on some modules."""
_LATE = re.compile(r"\A[^\n]*\bis_scheduled=true|\bbitcast\(|\bfusion\(|\bcopy-start\(")
"""What only a module after layout assignment has."""
_EXCEPTION = re.compile(r"\A.* ended with status \d+: [\w.]*Error: (?:[A-Z_]+: )?")


def execute_hlo_text(
    text: str,
    inputs: Sequence[Array],
    *,
    flags: Sequence[str] = (),
    repeat: int = 1,
    timeout: float = EXECUTE_SECONDS,
) -> tuple[list[Array], float, float]:
    """The flattened results of a single-device module, with the seconds of its compile and of its fastest run.

    `inputs` are the parameters' leaves in order. Raises CompileError where XLA refuses, crashes or hangs; XLA:CPU
    compiles whatever it gets from the start, and does not take every module that has been through that already.
    """
    with TemporaryDirectory(prefix="hloscope-") as folder:
        program, given, results = (Path(folder, name) for name in ("program.txt", "in.npz", "out.npz"))
        program.write_text(text, "utf-8")
        npz.write(given, inputs=inputs)
        request: dict[str, object] = {
            "path": str(program), "inputs": str(given), "outputs": str(results), "repeat": repeat,
        }  # fmt: skip
        env = clean_environment()
        env["JAX_PLATFORMS"] = "cpu"
        env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        env["XLA_FLAGS"] = joined_flags(None, list(flags))
        try:
            answer = run_child(
                "child_execute.py", request, env=env, timeout=timeout, what="running the module on XLA:CPU"
            )
        except CompileError as error:
            if _LATE.search(text) is None or _EXCEPTION.match(error.message) is None:
                raise
            said = _EXCEPTION.sub("", error.message)
            raise CompileError(
                f"XLA:CPU compiles the module again and refuses it, since it is optimized already: {said}",
                hint="take an earlier stage, or --engine reference",
            ) from error
        outputs = npz.read(results).outputs
    seconds = [answer.get(key) for key in ("compile_seconds", "run_seconds")]
    compiled, ran = (float(s) if isinstance(s, int | float) else 0.0 for s in seconds)
    if answer.get("count") != len(outputs):
        raise EvaluationError(f"XLA:CPU gave {answer.get('count')} results, {len(outputs)} arrived")
    return outputs, compiled, ran
