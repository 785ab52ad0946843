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
    from hloscope.core.xla.child import Start

EXECUTE_SECONDS = 600.0
"""Longest compile and run by default, in seconds: XLA:CPU is known to hang on some modules."""
_LATE = re.compile(r"\A[^\n]*\bis_scheduled=true|\bbitcast\(|\bfusion\(|\bcopy-start\(")
"""What only a module after layout assignment has."""
_PARTITIONS = re.compile(r"\A\s*HloModule [^\n]*\bnum_partitions=([2-9]|[1-9]\d+)\b")
_SHARDING = re.compile(r"\bsharding=\{")
_REFUSED = re.compile(r"\A.*? (?:ended with status \d+: [\w.]*Error: (?:[A-Z_]+: )?|was ended by SIGABRT: )")
"""An exception, or an abort that says why: a check of XLA's that does not hold."""


def execute_hlo_text(
    text: str,
    inputs: Sequence[Array],
    *,
    flags: Sequence[str] = (),
    repeat: int = 1,
    timeout: float = EXECUTE_SECONDS,
    start: Start | None = None,
) -> tuple[list[Array], float, float]:
    """The flattened results of a module, with the seconds of its compile and of its fastest run.

    A module with ``num_partitions`` and sharding annotations is partitioned and run on that many devices of the host;
    its inputs and results are whole arrays. Any other is run on one.
    `inputs` are the parameters' leaves in order. Raises CompileError where XLA refuses, crashes or hangs; XLA:CPU
    compiles whatever it gets from the start, and does not take every module that has been through that already.
    `start` is how the child is started (``child.run_child``).
    """
    with TemporaryDirectory(prefix="hloscope-") as folder:
        program, given, results = (Path(folder, name) for name in ("program.txt", "in.npz", "out.npz"))
        program.write_text(text, "utf-8")
        npz.write(given, inputs=inputs)
        request: dict[str, object] = {
            "path": str(program), "inputs": str(given), "outputs": str(results), "repeat": repeat,
        }  # fmt: skip
        partitions, shapes = _partitioned(text)
        if partitions > 1:
            flags = [*flags, f"--xla_force_host_platform_device_count={partitions}"]
            request |= {"partitions": partitions, "shapes": shapes}
        env = clean_environment()
        env["JAX_PLATFORMS"] = "cpu"
        env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        env["XLA_FLAGS"] = joined_flags(None, list(flags))
        try:
            answer = run_child(
                "child_execute.py", request, env=env, timeout=timeout, what="running the module on XLA:CPU", start=start
            )
        except CompileError as error:
            told = _REFUSED.match(error.message)
            if _LATE.search(text) is None or told is None:
                raise
            said = error.message[told.end() :]
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


def _partitioned(text: str) -> tuple[int, list[list[int]]]:
    """Devices that a module is to be divided among, with the dimensions of its results; 1 where nothing says how."""
    found = _PARTITIONS.search(text)
    if found is None or _SHARDING.search(text) is None:
        return 1, []
    from hloscope.core.text import load_module

    module = load_module(text)
    if module.replica_count > 1:
        return 1, []
    return int(found[1]), [list(leaf.dimensions) for _, leaf in module.entry.root.shape.leaves()]
