"""Measures our interpreters against jax's generic interpret mode on flash attention at test size.

    python benchmarks/bench_pallas.py [--repeats N]

One batch, 2 heads, 256 by 128, float32, causal, blocks of 128: the kernel that jax ships for TPUs. jax compiles its
emulation before it runs it: *first* is a call with that compile, which is what a test or a debugging session pays,
*again* a call of the compiled program, where ``jax.jit`` has kept it, and *without jit* any call of a kernel that no
``jax.jit`` surrounds: it compiles each time. Ours compiles nothing. The time to trace is left out, but for the last.
The ratios are jax's time by ours: above 1 ours is faster.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command sets it: blocks are too small for threads

import numpy as np  # noqa: E402

from hloscope.core.pallas.interpret import generic  # noqa: E402
from hloscope.core.pallas.interpret.order import Choices  # noqa: E402
from hloscope.core.pallas.interpret.session import make_arguments  # noqa: E402
from hloscope.core.pallas.interpret.tpu import run_tpu  # noqa: E402
from hloscope.core.pallas.tracing import trace_file  # noqa: E402

KERNEL = """
import jax, jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

SHAPE = jax.ShapeDtypeStruct((1, 2, 256, 128), jnp.float32)
NAMES = [name for name in BlockSizes.__dataclass_fields__ if name != "block_b"]
SIZES = BlockSizes(block_b=1, **{name: 128 for name in NAMES})


def flash(q=SHAPE, k=SHAPE, v=SHAPE):
    return flash_attention(q, k, v, causal=True, block_sizes=SIZES)


def without_jit(q, k, v):
    return flash_attention.__wrapped__(q, k, v, causal=True, block_sizes=SIZES)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    os.environ["JAX_PLATFORMS"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "flash.py")
        path.write_text(KERNEL)
        trace = trace_file(str(path), "flash", facts=False)
        program = trace.programs[0]
        assert program.jaxpr is not None
        arguments = make_arguments(program)
        ours = functools.partial(_ours, trace, program.jaxpr, arguments)
        first, again, eager, expected = _jax(str(path), arguments, repeats)
    result = ours(generic.run_call)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    plain = _best(lambda: ours(generic.run_call), repeats)
    watched = _best(lambda: ours(lambda call, operands: run_tpu(call, [operands], Choices()).outputs[0]), repeats)
    steps = int(np.prod(trace.calls[0].static_grid or ()))
    print(f"flash attention, {steps} grid steps, largest difference {np.abs(result - expected).max():.1e}")
    print(f"{'':34}{'ms':>9}{'jax first / it':>16}{'without jit / it':>18}{'jax again / it':>16}")
    rows = (
        ("jax interpret=True, first", first), ("jax interpret=True, again", again),
        ("jax interpret=True, without jit", eager),
        ("ours, generic", plain), ("ours, TPU-like with race detection", watched),
    )  # fmt: skip
    for name, seconds in rows:
        print(f"{name:34}{seconds * 1e3:9.1f}{first / seconds:16.2f}{eager / seconds:18.2f}{again / seconds:16.2f}")
    print(
        f"ours, generic: {first / plain:.1f} times as fast as jax's first jitted call (compile and run),"
        f" {eager / plain:.1f} times as fast as a call without jit, and {plain / again:.1f} times slower than jax's"
        " compiled program called again"
    )


def _ours(trace: Any, jaxpr: Any, arguments: list[Any], runner: Callable[..., Any]) -> Any:
    (result,) = generic.ProgramMachine(trace.calls, runner).evaluate(jaxpr, arguments)
    return result


def _jax(path: str, arguments: list[Any], repeats: int) -> tuple[float, float, float, Any]:
    import runpy

    import jax
    from jax.experimental import pallas as pl

    called = pl.pallas_call
    pl.pallas_call = functools.partial(called, interpret=True)
    for module in list(sys.modules.values()):
        if getattr(module, "pallas_call", None) is called and module is not pl:
            module.pallas_call = pl.pallas_call  # type: ignore[attr-defined]
    program = runpy.run_path(path)
    function = jax.jit(program["flash"])
    lowered = function.lower(*arguments)
    started = time.perf_counter()
    compiled = lowered.compile()
    result = np.asarray(compiled(*arguments))
    first = time.perf_counter() - started
    again = _best(lambda: np.asarray(compiled(*arguments)), repeats)
    eager = _best(lambda: np.asarray(program["without_jit"](*arguments)), 2)
    return first, again, eager, result


def _best(function: Callable[[], Any], repeats: int) -> float:
    times: list[float] = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    main()
