"""The interpreters: jax's numbers, the same run again for a seed, and devices that copy to each other."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloscope.core.errors import UnsupportedError, UsageError
from hloscope.core.pallas.interpret import generic
from hloscope.core.pallas.interpret.faults import Observer, Outcome, Step
from hloscope.core.pallas.interpret.gpu import run_gpu
from hloscope.core.pallas.interpret.mesh import MeshMachine
from hloscope.core.pallas.interpret.order import Agents, Choices, Semaphore, Signal, join
from hloscope.core.pallas.interpret.session import (
    first_breaking_choice,
    interpret_trace,
    make_arguments,
    observe_call,
    replay,
    same_outputs,
)
from hloscope.core.pallas.interpret.tpu import run_tpu
from hloscope.core.pallas.report import Ran, analyse_trace
from hloscope.core.pallas.tracing import Trace, trace_file

Look = Callable[[str], Any]


def jax_outputs(path: str, function: str, arguments: list[Any]) -> list[np.ndarray]:
    """What jax's own ``interpret=True`` gives for a function of a file."""
    import jax
    from jax.experimental import pallas as pl

    called = pl.pallas_call

    def interpreted(*args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs, interpret=True)

    pl.pallas_call = interpreted
    try:
        result = runpy.run_path(path)[function](*arguments)
        return [np.asarray(one) for one in jax.tree_util.tree_leaves(result)]
    finally:
        pl.pallas_call = called


def our_outputs(trace: Trace, function: str) -> tuple[list[Any], list[np.ndarray]]:
    program = next(one for one in trace.programs if one.function == function)
    assert program.jaxpr is not None
    arguments = make_arguments(program)
    machine = generic.ProgramMachine(trace.calls, generic.run_call)
    return arguments, [np.asarray(one) for one in machine.evaluate(program.jaxpr, arguments)]


@pytest.mark.parametrize(
    "function",
    ["matmul", "masked_sum", "prefetch_gather", "double_buffer", "mapped"],
)
def test_the_generic_interpreter_computes_what_jax_does(right: Trace, function: str) -> None:
    arguments, ours = our_outputs(right, function)
    theirs = jax_outputs(right.path, function, arguments)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-4)


def test_lanes_that_a_mask_switches_off_store_nothing(kernels: Look) -> None:
    """Their indices are clamped onto the last element, which a selected lane has written."""
    trace = kernels("programs.py").trace
    arguments, (ours,) = our_outputs(trace, "more_lanes_than_elements")
    (theirs,) = jax_outputs(trace.path, "more_lanes_than_elements", arguments)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    number, operands = operands_of(trace, "more_lanes_than_elements")
    on_gpu = run_gpu(trace.calls[number], operands, Choices())
    np.testing.assert_allclose(on_gpu.outputs[0][0], theirs, rtol=1e-6)
    assert not on_gpu.faults


def test_a_masked_slice_that_begins_before_its_array_reads_by_pointers(kernels: Look) -> None:
    """``interpret=True`` moves the slice inside, so that every lane reads another element; a GPU does not."""
    trace = kernels("pairs.py").trace
    number, (x,) = operands_of(trace, "gpu_out_of_bounds_slice_right")
    outcome = run_gpu(trace.calls[number], [x], Choices())
    np.testing.assert_array_equal(outcome.outputs[0][0], [0, *x[:99]])


def test_lanes_out_of_range_are_told_once_and_race_with_nothing(kernels: Look) -> None:
    """Clamped they would lie on elements of other programs."""
    looked = kernels("programs.py")
    found = [one for one in looked.ran[0] if one.call == "_scattered" and one.severity == "error"]
    assert {one.code for one in found} == {"out-of-bounds"} and len(found) == 2
    assert "accesses element 36 of dimension 0 of o_ref, which has 36" in " ".join(one.message for one in found)
    number, operands = operands_of(looked.trace, "last_lanes_outside")
    outcome = run_gpu(looked.trace.calls[number], operands, Choices())
    expected = np.zeros(36, np.int32)
    for at in (0, 4, 9, 13):
        expected[at] = at
        expected[at + 20 : at + 24] = at
    np.testing.assert_array_equal(outcome.outputs[0][0], expected)


def test_every_lane_of_an_atomic_counts(kernels: Look) -> None:
    """``interpret=True`` counts lanes that share an element once; a GPU takes them one after the other."""
    trace = kernels("programs.py").trace
    number, (at, values, start) = operands_of(trace, "lanes_that_share_elements")
    outcome = observe_call(trace, number, [[at, values, start]], lambda _: None, backend="triton")
    combined = (np.add, np.maximum, np.minimum, np.bitwise_and, np.bitwise_or, np.bitwise_xor)
    for row, combine in enumerate(combined):
        combine.at(start[row], at, values)
    np.testing.assert_array_equal(outcome.outputs[0][0], start)
    assert not outcome.faults
    number, (at, values, start) = operands_of(trace, "lanes_that_exchange")
    for order, last in ((0, [12, 6, 1, 4]), (1, [9, 6, 1, 2])):
        outcome = run_gpu(trace.calls[number], [at, values, start], Choices(forced=(order,)))
        np.testing.assert_array_equal(outcome.outputs[0][0], [last])


def test_a_machine_that_is_not_there_is_refused(kernels: Look) -> None:
    trace = kernels("programs.py").trace
    number, operands = operands_of(trace, "guarded")
    with pytest.raises(UsageError, match="no machine 'cuda': one of tpu, triton, gpu"):
        observe_call(trace, number, [operands], lambda _: None, backend="cuda")


def test_a_run_that_takes_too_long_is_given_up(kernels: Look) -> None:
    trace = kernels("pairs.py").trace
    number, operands = operands_of(trace, "livelock_of_values_right")
    with pytest.raises(UnsupportedError, match=r"time is up in the loop at .*pairs\.py:\d+"):
        run_tpu(trace.calls[number], [operands], Choices(), deadline=0.0)
    found, _ = interpret_trace(only(trace, "livelock_of_values_right"), "v5e", timeout=0.0)
    assert {one.line for one in found if "time is up" in one.message} == {
        number for number, line in enumerate(kernels("pairs.py").lines, 1) if "(s[0] + step" in line
    }


@pytest.mark.parametrize("function", ["past_the_end", "one_block_off", "no_init", "padded_sum"])
def test_wrong_kernels_give_the_same_wrong_numbers_as_in_jax(kernels: Look, function: str) -> None:
    """Clamped blocks, values that nobody wrote (NaN) and padding come out as under ``interpret=True``."""
    trace = kernels("wrong.py").trace
    arguments, ours = our_outputs(trace, function)
    theirs = jax_outputs(trace.path, function, arguments)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-4, equal_nan=True)
    if function in ("no_init", "padded_sum"):
        assert np.isnan(ours[0]).any()


def only(trace: Trace, function: str) -> Trace:
    """A trace with one of its functions."""
    return replace(trace, programs=tuple(one for one in trace.programs if one.function == function))


def operands_of(trace: Trace, function: str) -> tuple[int, list[Any]]:
    """Number and operands of a function's only call, whose operands are its arguments."""
    program = next(one for one in trace.programs if one.function == function)
    assert program.jaxpr is not None
    number = next(e.params["call"] for e in program.jaxpr.equations if e.primitive == "pallas_call")
    return number, make_arguments(program)


def test_a_seed_gives_the_same_run_again(kernels: Look) -> None:
    trace = kernels("right.py").trace
    number, operands = operands_of(trace, "matmul")
    steps: list[list[Step]] = [[], [], []]
    for seen, seed in zip(steps, (5, 5, 6), strict=True):
        observe_call(trace, number, [operands], seen.append, seed=seed, cores=2)
    key = [[(one.kind, one.detail, one.core, one.point) for one in run] for run in steps]
    assert key[0] == key[1] != key[2]
    assert {one.kind for one in steps[0]} >= {"step", "fetch", "write_back", "copy_start", "copy_done", "read", "write"}


def test_recorded_choices_replay_a_run(kernels: Look) -> None:
    trace = kernels("wrong.py").trace
    number, operands = operands_of(trace, "read_early")

    def run(choices: Choices, observer: Observer | None) -> Outcome:
        return run_tpu(trace.calls[number], [operands], choices, observer=observer)

    plain = run(Choices(), None)
    late = Choices(forced=(1, 1, 1, 1))
    outcome = run(late, None)
    assert not same_outputs(plain.outputs, outcome.outputs)
    assert same_outputs(outcome.outputs, replay(run, late.taken).outputs)
    found = first_breaking_choice(run, plain, late.taken)
    assert found is not None
    decision = found[1].decisions[found[0]]
    assert decision.chosen == 1 and "copy of x_hbm" in decision.label
    assert decision.place is not None and "copy.start()" in kernels("wrong.py").lines[decision.place.line - 1]
    assert first_breaking_choice(run, plain, ()) is None


def test_a_wait_for_nothing_ends_in_a_report(kernels: Look) -> None:
    trace = kernels("wrong.py").trace
    number, operands = operands_of(trace, "waits_for_nothing")
    outcome = run_tpu(trace.calls[number], [operands], Choices())
    assert not outcome.finished
    (fault,) = outcome.faults
    assert fault.code == "deadlock" and "sem is 0 and it waits for 1" in fault.message


def test_devices_copy_to_each_other(tmp_path: Path) -> None:
    """A ring: each device sends its block to the next one, with and without waiting before it reads.

    The kernel is in another module of the same package, and findings are at its lines.
    """
    (tmp_path / "rings").mkdir()
    path, kernel = tmp_path / "rings" / "ring.py", tmp_path / "rings" / "exchange.py"
    path.write_text(RING)
    kernel.write_text(EXCHANGE)
    trace = trace_file(str(path), facts=False)
    # what another device writes counts as written
    assert [one.code for one in analyse_trace(trace).findings if one.severity != "information"] == []
    ran: list[Ran] = []
    found, rungs = interpret_trace(trace, runs=4, ran=ran)
    assert [(rung.call, rung.name, rung.outcome) for rung in rungs] == [
        ("waits", "tpu", "done"), ("reads_early", "tpu", "fault"), ("overtaken", "tpu", "fault"),
        ("past_the_last", "tpu", "fault"), ("gathered", "tpu", "fault"),
    ]  # fmt: skip
    # what a call's blocks depend on differs from device to device
    report = analyse_trace(trace, None, ran)
    blocks = [(one.device, one.operands[0]["blocks"]) for one in report.calls if one.name == "gathered"]
    assert blocks == [(0, 1), (1, 2), (2, 2), (3, 1)]
    (outside,) = [one for one in report.findings if one.code == "index-map-out-of-range"]
    assert outside.message.startswith("on device 3: at grid point (0,) the index map of input x reads block 7 of 2")
    race = next(one for one in found if one.code == "race" and one.call == "reads_early")
    assert race.call == "reads_early" and "inbox[...]" in EXCHANGE.splitlines()[race.line - 1]
    assert race.file == str(kernel)
    # a wait on a semaphore of two copies does not say which of them arrived
    overtaken = next(one for one in found if one.code == "race" and one.call == "overtaken")
    assert "inbox[0]" in EXCHANGE.splitlines()[overtaken.line - 1]
    (nobody,) = [one for one in found if one.code == "out-of-bounds"]
    assert "to index 4 of the mesh axis x, which has 4" in nobody.message
    assert "copy.start()" in EXCHANGE.splitlines()[nobody.line - 1]
    # made in one place and called in another: the place is where it is made
    assert {"pl.pallas_call(" in RING.splitlines()[(one.call_line or 0) - 1] for one in (race, overtaken, nobody)} == {
        True
    }
    faulty = {one.call for one in found if one.severity in ("error", "warning")}
    assert faulty == {"reads_early", "overtaken", "past_the_last", "gathered"}
    program = trace.programs[0]
    assert program.jaxpr is not None
    (values,) = make_arguments(program)
    machine = MeshMachine(trace.calls, lambda call, operands, axes, _: on_devices(call, operands, axes))
    (result,) = machine.evaluate(program.jaxpr, [values])
    np.testing.assert_array_equal(result, np.roll(values, 8, axis=0) + 1)


def on_devices(call: Any, operands: Any, axes: Any) -> list[list[Any]]:
    return run_tpu(call, operands, Choices(seed=1), axes=axes).outputs


EXCHANGE = """
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def exchange(early, x_ref, o_ref, inbox, send, receive):
    me, count = lax.axis_index("x"), lax.axis_size("x")
    copy = pltpu.make_async_remote_copy(x_ref, inbox, send, receive, device_id=(lax.rem(me + 1, count),),
                                        device_id_type=pl.DeviceIdType.MESH)
    copy.start()
    copy.wait_send() if early else copy.wait()
    o_ref[...] = inbox[...] + 1.0

def past_the_last(x_ref, o_ref, inbox, send, receive):
    copy = pltpu.make_async_remote_copy(x_ref, inbox.at[0], send, receive, device_id=(lax.axis_index("x") + 1,),
                                        device_id_type=pl.DeviceIdType.MESH)
    copy.start()
    o_ref[...] = x_ref[...]

def overtaken(x_ref, o_ref, inbox, send, receive):
    me, count = lax.axis_index("x"), lax.axis_size("x")
    copies = [pltpu.make_async_remote_copy(x_ref, inbox.at[slot], send, receive, device_id=(lax.rem(me + 1, count),),
                                           device_id_type=pl.DeviceIdType.MESH) for slot in (0, 1)]
    for copy in copies:
        copy.start()
        copy.wait_send()
    copies[0].wait_recv()
    o_ref[...] = inbox[0]
    copies[1].wait_recv()
"""

RING = """
import functools
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P
from .exchange import exchange, overtaken, past_the_last

def ring(early, x):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    call = pl.pallas_call(functools.partial(exchange, early), name="reads_early" if early else "waits",
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA])
    return jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)

VALUES = jnp.arange(4 * 8 * 128, dtype=jnp.float32).reshape(32, 128)

def patient(x=VALUES): return ring(False, x)

def hasty(x=VALUES): return ring(True, x)

def one_semaphore(x=VALUES, kernel=overtaken):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        scratch_shapes=[pltpu.VMEM((2, 8, 128), jnp.float32), pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA])
    return jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)

def nobody_there(x=VALUES): return one_semaphore(x, past_the_last)

def of_each(rows, x):
    def gathered(rows, x, o):
        o[...] = x[...]
    grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, rows: (rows[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, rows: (i, 0)))
    return pl.pallas_call(gathered, grid_spec=grid, out_shape=jax.ShapeDtypeStruct((16, 128), jnp.float32))(rows, x)

def gathered(rows=jnp.array([0, 0, 0, 1, 1, 0, 7, 7], jnp.int32), x=jnp.ones((64, 128), jnp.float32)):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(of_each, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P("x"), check_vma=False)(rows, x)
"""


def test_clocks() -> None:
    agents = Agents()
    core = agents.fresh()
    first, copy = agents.child(core, 1)
    assert copy[1] == 1 and core[1] == 2  # what the core does now is not known to the copy
    agents.end(first, copy)
    other, _ = agents.child(core, 1)
    assert other != first  # the core has not learned that the copy ended
    join(core, copy)
    again, _ = agents.child(core, 1)
    assert again == first


def test_a_wait_learns_only_the_signals_that_it_uses_up() -> None:
    semaphore = Semaphore("s", (0, 0))
    semaphore.add(Signal(4, {7: 1}, None, "the first copy"))
    semaphore.add(Signal(4, {8: 1}, None, "the second copy"))
    clock = {1: 1}
    semaphore.take(4, clock)
    assert clock == {1: 1, 7: 1} and semaphore.count == 4


def test_kinds_of_blocks_that_jax_refuses_in_this_mode(kernels: Look) -> None:
    trace = kernels("right.py").trace
    number, operands = operands_of(trace, "in_place")
    call = trace.calls[number]
    dims = (replace(call.operands[0].dims[0], kind="bounded_slice"), call.operands[0].dims[1])
    changed = replace(call, operands=(replace(call.operands[0], dims=dims), *call.operands[1:]))
    with pytest.raises(UnsupportedError, match=r"BoundedSlice\(8\)"):
        generic.run_call(changed, operands)
