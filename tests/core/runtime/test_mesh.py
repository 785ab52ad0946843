"""Programs for several devices: who exchanges what with whom, and what is said when they wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hloscope.core.errors import EvaluationError, ParseError, UnsupportedError
from hloscope.core.hlo.shape import Shape
from hloscope.core.runtime.evaluator import EvaluationOptions, Value, evaluate
from hloscope.core.runtime.evaluator.groups import participants, written_groups
from hloscope.core.runtime.evaluator.sharding import parse_per_value, parse_sharding, parse_shardings
from hloscope.core.runtime.mesh import evaluate_on_mesh, needs_mesh
from hloscope.core.text import load_module

SUM = "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = f32[] add(a, b)\n}\n"


def program(body: str, *, partitions: int = 1, replicas: int = 1, computations: str = SUM, header: str = "") -> Any:
    """A module of an entry's lines for so many devices."""
    head = f"HloModule m, replica_count={replicas}, num_partitions={partitions}{header}"
    return load_module(f"{head}\n\n{computations}\nENTRY e {{\n{body}\n}}\n")


def run(module: Any, arguments: list[list[Any]], **options: Any) -> list[list[Value]]:
    """Every device's results."""
    values: list[list[Value]] = [[np.asarray(x, np.float32) for x in device] for device in arguments]
    return evaluate_on_mesh(module, values, options=EvaluationOptions(**options))


def firsts(results: list[list[Value]]) -> list[list[float]]:
    return [np.asarray(device[0]).reshape(-1).tolist() for device in results]


# ---------------------------------------------------------------- groups
@pytest.mark.parametrize(
    ("attributes", "replicas", "partitions", "expected"),
    [
        ("replica_groups={{0,1}}", 2, 2, [(0, 2), (1, 3)]),
        ("replica_groups={}", 2, 2, [(0, 2), (1, 3)]),
        ("channel_id=1, replica_groups={{1,0}}", 2, 2, [(2, 3, 0, 1)]),
        ("channel_id=1, replica_groups={{0},{1}}", 2, 2, [(0, 1), (2, 3)]),
        ("channel_id=1, replica_groups={{0,3},{1,2}}, use_global_device_ids=true", 2, 2, [(0, 3), (1, 2)]),
        ("channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true", 1, 4, [(0, 2), (1, 3)]),
    ],
)
def test_what_the_integers_of_groups_mean(
    attributes: str, replicas: int, partitions: int, expected: list[tuple[int, ...]]
) -> None:
    body = f"  x = f32[2] parameter(0)\n  ROOT r = f32[2] all-reduce(x), {attributes}, to_apply=sum"
    module = program(body, replicas=replicas, partitions=partitions)
    assert list(participants(module.entry.root, replicas, partitions)) == expected


def test_permute_has_no_global_ids() -> None:
    body = "  x = f32[2] parameter(0)\n  ROOT r = f32[2] all-to-all(x), {}, dimensions={{0}}"
    module = program(body.format("channel_id=1, replica_groups={{0,1}}"), replicas=2, partitions=2)
    assert list(participants(module.entry.root, 2, 2)) == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mesh['a'=2,'b'=4] {'b'}", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("mesh['a'=2,'b'=4] {'a'}", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("mesh['a'=2,'b'=2] {'b','a'}", [(0, 2, 1, 3)]),
        ("mesh['a'=8,'b'=1] {'a','b'}", [(0, 1, 2, 3, 4, 5, 6, 7)]),
        ("mesh['a'=8] {'a':(1)2}", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("mesh['a'=8] {'a':(2)4}", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("mesh['a'=2,'b'=2](<=[2,2]T(1,0)) {'b'}", [(0, 2), (1, 3)]),
    ],
)
def test_groups_by_mesh_axes(text: str, expected: list[tuple[int, ...]]) -> None:
    assert list(written_groups(text)) == expected


def test_groups_that_do_not_fit_are_refused() -> None:
    body = "  x = f32[2] parameter(0)\n  ROOT r = f32[2] all-reduce(x), replica_groups={{0,5}}, to_apply=sum"
    with pytest.raises(ParseError, match="do not fit 2 devices"):
        run(program(body, replicas=2), [[[1, 2]], [[3, 4]]])


# ---------------------------------------------------------------- the exchanges
def collective(text: str, shape: str = "f32[2]", result: str = "f32[2]") -> str:
    return f"  x = {shape} parameter(0)\n  ROOT r = {result} {text}"


GROUP = "channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true"


@pytest.mark.parametrize(
    ("text", "result", "expected"),
    [
        (f"all-reduce(x), {GROUP}, to_apply=sum", "f32[2]", [[4, 6], [4, 6]]),
        (f"all-gather(x), {GROUP}, dimensions={{0}}", "f32[4]", [[1, 2, 3, 4], [1, 2, 3, 4]]),
        (f"reduce-scatter(x), {GROUP}, dimensions={{0}}, to_apply=sum", "f32[1]", [[4], [6]]),
        ("all-to-all(x), channel_id=1, replica_groups={{0,1}}, dimensions={0}", "f32[2]", [[1, 3], [2, 4]]),
        ("all-to-all(x), channel_id=1, replica_groups={{1,0}}, dimensions={0}", "f32[2]", [[4, 2], [3, 1]]),
        ("collective-broadcast(x), channel_id=1, replica_groups={{1,0}}", "f32[2]", [[3, 4], [3, 4]]),
        ("collective-permute(x), channel_id=1, source_target_pairs={{0,1}}", "f32[2]", [[0, 0], [1, 2]]),
    ],
)
def test_each_collective(text: str, result: str, expected: list[list[float]]) -> None:
    module = program(collective(text, result=result), partitions=2)
    assert needs_mesh(module)
    assert firsts(run(module, [[[1, 2]], [[3, 4]]])) == expected


@pytest.mark.parametrize(
    ("start", "shape", "done", "expected"),
    [
        (f"all-reduce-start(x), {GROUP}, to_apply=sum", "f32[2]", "f32[2] all-reduce-done(s)", [[4, 6], [4, 6]]),
        (
            f"all-gather-start(x), {GROUP}, dimensions={{0}}",
            "(f32[2], f32[4])",
            "f32[4] all-gather-done(s)",
            [[1, 2, 3, 4], [1, 2, 3, 4]],
        ),
        (
            "collective-permute-start(x), channel_id=1, source_target_pairs={{0,1},{1,0}}",
            "(f32[2], f32[2], u32[], u32[])",
            "f32[2] collective-permute-done(s)",
            [[3, 4], [1, 2]],
        ),
    ],
)
def test_pairs_of_start_and_done(start: str, shape: str, done: str, expected: list[list[float]]) -> None:
    module = program(f"  x = f32[2] parameter(0)\n  s = {shape} {start}\n  ROOT r = {done}", partitions=2)
    assert firsts(run(module, [[[1, 2]], [[3, 4]]])) == expected


def test_a_wrapped_collective_and_several_operands() -> None:
    wrapped = SUM + (
        "w {\n  a = f32[2] parameter(0)\n  b = f32[1] parameter(1)\n"
        f"  ROOT r = (f32[2], f32[1]) all-reduce(a, b), {GROUP}, to_apply=sum\n}}\n"
    )
    body = """  x = f32[2] parameter(0)
  y = f32[1] parameter(1)
  s = ((f32[2], f32[1]), (f32[2], f32[1]), u32[]) async-start(x, y), calls=w
  u = ((f32[2], f32[1]), (f32[2], f32[1]), u32[]) async-update(s)
  ROOT r = (f32[2], f32[1]) async-done(u)"""
    results = run(program(body, partitions=2, computations=wrapped), [[[1, 2], [5]], [[3, 4], [6]]])
    assert [[np.asarray(x).tolist() for x in device] for device in results] == [[[4, 6], [11]]] * 2


def test_ids() -> None:
    body = "  p = u32[] partition-id()\n  q = u32[] replica-id()\n  ROOT t = (u32[], u32[]) tuple(p, q)"
    results = run(program(body, partitions=2, replicas=2), [[]] * 4)
    assert [[int(np.asarray(x)) for x in device] for device in results] == [[0, 0], [1, 0], [0, 1], [1, 1]]


def test_ragged_all_to_all() -> None:
    body = """  x = f32[3] parameter(0)
  o = f32[3] parameter(1)
  i = s32[2] parameter(2)
  s = s32[2] parameter(3)
  p = s32[2] parameter(4)
  r = s32[2] parameter(5)
  ROOT out = f32[3] ragged-all-to-all(x, o, i, s, p, r), channel_id=1, replica_groups={{0,1}}"""
    sides = [
        [[1, 2, 3], [-1, -1, -1], [0, 1], [1, 2], [0, 0], [1, 1]],
        [[4, 5, 6], [-2, -2, -2], [0, 1], [1, 1], [1, 2], [2, 1]],
    ]
    values: list[list[Value]] = [
        [np.asarray(x, np.float32 if n < 2 else np.int32) for n, x in enumerate(side)] for side in sides
    ]
    results = evaluate_on_mesh(program(body, partitions=2), values)
    assert firsts(results) == [[1, 4, -1], [2, 3, 5]]


def test_send_and_receive() -> None:
    pairs = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,0}}"}'
    body = f"""  x = f32[2] parameter(0)
  t = token[] after-all()
  s = (f32[2], u32[], token[]) send(x, t), channel_id=3, {pairs}
  d = token[] send-done(s), channel_id=3
  r = (f32[2], u32[], token[]) recv(t), channel_id=3, {pairs}
  e = (f32[2], token[]) recv-done(r), channel_id=3
  ROOT g = f32[2] get-tuple-element(e), index=0"""
    assert firsts(run(program(body, partitions=2), [[[1, 2]], [[3, 4]]])) == [[3, 4], [1, 2]]


class Desk:
    """A host that hands out numbers and keeps what it gets."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, list[float]]] = []

    def infeed(self, shape: Shape, config: str, device: int) -> Value:
        return np.full(shape.dimensions, 10.0 + device, np.float32)

    def outfeed(self, shape: Shape, value: Value, config: str, device: int) -> None:
        self.taken.append((device, np.asarray(value).tolist()))


def test_infeed_and_outfeed_meet_the_host() -> None:
    body = """  t = token[] after-all()
  i = (f32[2], token[]) infeed(t)
  x = f32[2] get-tuple-element(i), index=0
  o = token[] outfeed(x, t), outfeed_shape=f32[2]
  y = f32[2] negate(x)
  ROOT r = (f32[2], token[]) tuple(y, o)"""
    module = program(body)
    desk = Desk()
    found = evaluate(module, [], options=EvaluationOptions(host=desk))
    assert np.asarray(found[0]).tolist() == [-10, -10]
    assert desk.taken == [(0, [10, 10])]
    with pytest.raises(UnsupportedError, match="without a host"):
        evaluate(module, [])


def test_devices_that_wait_for_each_other_are_named() -> None:
    # Device 0 takes part in the sum, device 1 goes the other way and never does.
    computations = SUM + (
        f"yes {{\n  a = f32[2] parameter(0)\n  ROOT meet = f32[2] all-reduce(a), {GROUP}, to_apply=sum\n}}\n"
        "no {\n  a = f32[2] parameter(0)\n  ROOT r = f32[2] negate(a)\n}\n"
    )
    body = """  x = f32[2] parameter(0)
  p = u32[] partition-id()
  z = u32[] constant(0)
  c = pred[] compare(p, z), direction=EQ
  ROOT r = f32[2] conditional(c, x, x), true_computation=yes, false_computation=no"""
    with pytest.raises(EvaluationError, match="wait for each other.*device|wait for each other.*0 at %meet"):
        run(program(body, partitions=2, computations=computations), [[[1, 2]], [[3, 4]]])


def test_a_failure_on_one_device_ends_the_run() -> None:
    computations = SUM + (
        "cond {\n  a = s32[] parameter(0)\n  ROOT t = pred[] constant(true)\n}\n"
        "body {\n  a = s32[] parameter(0)\n  ROOT t = s32[] copy(a)\n}\n"
    )
    body = """  x = f32[2] parameter(0)
  i = s32[] constant(0)
  w = s32[] while(i), condition=cond, body=body
  f = f32[] convert(w)
  b = f32[2] broadcast(f), dimensions={}
  s = f32[2] add(x, b)
  ROOT r = f32[2] all-reduce(s), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=sum"""
    with pytest.raises(EvaluationError, match="gave up after 50 iterations"):
        run(program(body, partitions=2, computations=computations), [[[1, 2]], [[3, 4]]], step_limit=50)


def test_without_a_mesh_a_collective_of_several_devices_is_refused() -> None:
    module = program(collective(f"all-reduce(x), {GROUP}, to_apply=sum"), partitions=2)
    with pytest.raises(UnsupportedError, match="between 2 devices"):
        evaluate(module, [np.zeros(2, np.float32)])


# ---------------------------------------------------------------- shardings
@pytest.mark.parametrize(
    ("text", "shape", "device", "expected"),
    [
        ("{devices=[2,1]<=[2]}", (2, 2), 1, [[2, 3]]),
        ("{devices=[1,2]<=[2]}", (2, 2), 1, [[1], [3]]),
        ("{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}", (2, 2), 1, [[2, 3]]),
        ("{devices=[2,1,2]<=[4] last_tile_dims={replicated}}", (2, 2), 1, [[0, 1]]),
        ("{devices=[2,1]1,0}", (2, 2), 0, [[2, 3]]),
        ("{replicated}", (2, 2), 3, [[0, 1], [2, 3]]),
        ("{devices=[2,1]<=[2]}", (3, 1), 1, [[2], [0]]),
    ],
)
def test_a_devices_block(text: str, shape: tuple[int, ...], device: int, expected: list[list[int]]) -> None:
    sharding = parse_sharding(text)
    assert sharding is not None
    whole = np.arange(np.prod(shape)).reshape(shape)
    assert sharding.cut(whole, device).tolist() == expected
    blocks = [sharding.cut(whole, d) for d in range(len(sharding.block_of) or 4)]
    joined, unequal = sharding.join(blocks, shape)
    assert joined.tolist() == whole.tolist() and unequal == 0


def test_copies_of_a_block_that_differ_are_counted() -> None:
    sharding = parse_sharding("{devices=[2,2]<=[4] last_tile_dim_replicate}")
    assert sharding is not None
    _, unequal = sharding.join([np.full(1, n) for n in (1, 1, 2, 3)], (2,))
    assert unequal == 1


def test_shardings_of_tuples_and_of_manual_values() -> None:
    found = parse_shardings("{{devices=[2]<=[2]}, {replicated}, {manual}}")
    assert [s is None for s in found] == [False, False, True]
    with pytest.raises(UnsupportedError):
        parse_sharding("{something new}")


def test_shardy_regions_cut_and_join() -> None:
    header = ', frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2, "y"=2]>}}'
    body = """  a = f32[4,2] parameter(0)
  l = f32[2,2] custom-call(a), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={IN}
  p = u32[] partition-id()
  f = f32[] convert(p)
  b = f32[2,2] broadcast(f), dimensions={}
  s = f32[2,2] add(l, b)
  ROOT g = f32[4,2] custom-call(s), custom_call_target="xla.sdy.LocalToGlobalShape", frontend_attributes={OUT}"""
    spread = '"#sdy.sharding_per_value<[<@mesh, [{\\"x\\"}, {}]>]>"'
    side = f'xla.sdy.KEY={spread},xla.sdy.manual_axes="#sdy<manual_axes{{\\"x\\"}}>"'
    body = body.replace("IN}", side.replace("KEY", "in_shardings") + "}", 1)
    body = body.replace("OUT}", side.replace("KEY", "out_shardings") + "}", 1)
    module = program(body, partitions=4, header=header)
    (first,) = parse_per_value('#sdy.sharding_per_value<[<@mesh, [{"y", "x"}, {}]>]>', module)
    assert first.tiles == (4, 1) and [place[0] for place in first.block_of] == [0, 2, 1, 3]
    whole = np.zeros((4, 2), np.float32)
    results = run(module, [[whole]] * 4)
    assert np.asarray(results[0][0]).tolist() == [[0, 0], [0, 0], [2, 2], [2, 2]]
