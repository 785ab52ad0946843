"""Which target the real compiler is asked for, where a question about a dump goes to it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from tempfile import NamedTemporaryFile

from hloscope.core.xla.targets import TARGETS


@contextmanager
def real_target(backend: str | None, config: str | None, named: str | None) -> Generator[str, None, None]:
    """The name of a target for `hloscope.core.xla`: the one that was named, else the GPU that the dump describes.

    `backend` is ``cpu``, ``gpu`` or ``tpu``; `config` is the dump's description of its GPU, where there is one. A GPU
    that nothing describes is taken for an H100.
    """
    if named is not None and (named in TARGETS or os.path.exists(named)):
        yield named
    elif backend == "tpu":
        yield "v5e"
    elif backend != "gpu":
        yield "cpu"
    elif config is None:
        yield "h100"
    else:
        with NamedTemporaryFile("w", prefix="hloscope-gpu-", suffix=".txtpb", encoding="utf-8") as file:
            file.write(config)
            file.flush()
            yield file.name
