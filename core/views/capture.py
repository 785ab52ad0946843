"""``capture(jitted, *args)``: compile a jitted function with dumps on and look at what the compiler did.

    from hloscope.core import capture
    run = capture(jax.jit(step), params, batch)
    run.passes, run.diff(12), run.why("fusion.3")

The function is traced and lowered in this process, where it lives; the lowered program is then compiled in a child
process, so that neither the dump flags nor an abort of the compiler touch this one. The function is not run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

from hloscope.core.errors import CompileError, HloscopeError, UsageError
from hloscope.core.views.run import Run, load

_PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
"""Backend of a target -> the platform that jax lowers for."""


def capture(
    function: Any,
    *args: Any,
    target: str = "cpu",
    ledger: str | os.PathLike[str] | None = None,
    flags: Sequence[str] = (),
    force: bool = False,
    **kwargs: Any,
) -> Run:
    """Compiles `function` (jitted, or any that ``jax.jit`` takes) for these arguments and returns the run.

    Arguments may be arrays or ``jax.ShapeDtypeStruct``s. `ledger` keeps the ledger in a file (an existing one only with
    `force`); without it, it lives as long as the run. `flags` are added to ``XLA_FLAGS`` of the child. Raises
    UsageError for an unknown target or a function that cannot be traced for these arguments, UnsupportedError where the
    target's wheels are missing, CompileError where the compiler fails.
    """
    from hloscope.core.xla.capture import capture_stablehlo
    from hloscope.core.xla.targets import require

    backend = require(target).backend
    program = _lowered(function, args, kwargs, _PLATFORMS[backend])
    scratch = TemporaryDirectory(prefix="hloscope-capture-")
    try:
        kept = os.fspath(ledger) if ledger is not None else os.path.join(scratch.name, "run.ledger")
        source = str(getattr(function, "__qualname__", "") or getattr(function, "__name__", ""))
        capture_stablehlo(program, kept, source=source, target=target, flags=flags, force=force)
        run = load(kept)
        run.on_close(scratch.cleanup)
        return run
    except BaseException:
        scratch.cleanup()
        raise


def _lowered(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], platform: str) -> str:
    """StableHLO text with the source locations of the function."""
    jitted = function if hasattr(function, "trace") else _jax().jit(function)
    try:
        lowered = jitted.trace(*args, **kwargs).lower(lowering_platforms=(platform,))
        return str(lowered.as_text(debug_info=True))
    except HloscopeError:
        raise
    except Exception as error:
        what = " ".join(str(error).split())
        raise UsageError(f"the function cannot be lowered for {platform}: {type(error).__name__}: {what}") from error


def _jax() -> Any:
    """The jax of this process: the caller's function needs it here anyway."""
    try:
        return sys.modules.get("jax") or import_module("jax")
    except ImportError as error:
        raise CompileError(f"jax cannot be imported: {error}") from error
