"""The kernels that custom calls carry as MLIR, read by the installed jaxlib in a child process."""

from __future__ import annotations

import base64
from functools import lru_cache

from hloscope.core.xla.child import clean_environment, run_child

READ_SECONDS = 120.0
"""Longest reading of one kernel, in seconds."""


@lru_cache(maxsize=64)
def read_kernel(dialect: str, body: bytes) -> dict[str, object]:
    """The functions of a kernel as plain data (see ``child_kernel.py``); `dialect` is ``mosaic`` or ``triton``.

    Raises CompileError where the child fails, UsageError where the text is none that this jaxlib reads.
    """
    env = clean_environment()
    env["JAX_PLATFORMS"] = "cpu"
    request = {"dialect": dialect, "body": base64.b64encode(body).decode()}
    return run_child("child_kernel.py", request, env=env, timeout=READ_SECONDS, what="reading the kernel")
