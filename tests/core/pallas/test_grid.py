"""Traced calls: their grid, blocks, schedule, and positions in the user's file."""

from __future__ import annotations

import numpy as np
import pytest

from hloscope.core.pallas.call import PallasCall
from hloscope.core.pallas.grid import Schedule, affine_starts, walk
from hloscope.core.pallas.index_map import Affine, evaluate, grid_points
from hloscope.core.pallas.report import calls_of
from hloscope.core.pallas.tracing import Trace


def call_of(trace: Trace, function: str) -> tuple[PallasCall, Schedule]:
    for program, call, operands in calls_of(trace):
        if program.function == function:
            return call, walk(call, prefetch=operands[: call.slots.prefetch])
    raise AssertionError(function)


def test_a_matmul_fetches_as_its_index_maps_say(right: Trace) -> None:
    call, schedule = call_of(right, "matmul")
    assert schedule.grid == (2, 2, 2) and schedule.steps == 8
    x, y, out = (schedule.walks[position] for position in range(3))
    # x follows (i, k), y follows (k, j): both change with k; the output only with (i, j)
    assert (x.fetches, y.fetches, out.fetches) == (8, 8, 4)
    assert out.bytes_moved == 256 * 256 * 4
    assert x.bytes_moved == 8 * 128 * 128 * 4
    assert [schedule.point(step) for step in range(3)] == [(0, 0, 0), (0, 0, 1), (0, 1, 0)]
    assert not len(out.revisited()) and out.unwritten() == (0, None)
    assert call.semantics == ("parallel", "parallel", "arbitrary")


def test_padding_of_a_last_block_is_not_moved(right: Trace) -> None:
    _, schedule = call_of(right, "add_padded")
    one = schedule.walks[0]
    assert list(one.overhanging()) == [2] and not len(one.outside())
    assert one.window(2).overhang((20, 128)) == ((0, 4), (0, 0))
    assert one.bytes_moved == 20 * 128 * 4


def test_prefetched_scalars_decide_the_blocks(right: Trace) -> None:
    call, schedule = call_of(right, "prefetch_gather")
    assert [schedule.walks[0].window(step).starts[0] for step in range(4)] == [2, 0, 3, 1]
    unknown = walk(call)
    assert "prefetch" in unknown.refused[0] and unknown.bytes_moved is None


def test_vmap_grows_the_grid(right: Trace) -> None:
    call, schedule = call_of(right, "mapped")
    assert schedule.grid == (3, 4) and call.vmapped == (0,)
    assert [dim.kind for dim in call.operands[0].dims] == ["squeezed", "blocked", "blocked"]
    assert schedule.walks[0].window(5).starts == (1, 8, 0)


def test_element_blocks_overlap(right: Trace) -> None:
    _, schedule = call_of(right, "element_blocks")
    assert [schedule.walks[0].window(step).starts[0] for step in range(4)] == [0, 8, 16, 24]
    assert schedule.walks[0].partial_overlap() == (0, 1)
    assert schedule.walks[1].partial_overlap() is None


def test_arrays_in_any_memory_are_not_copied(right: Trace) -> None:
    _, schedule = call_of(right, "copied")
    assert not schedule.walks[0].copied and schedule.walks[0].bytes_moved == 0
    assert schedule.walks[1].bytes_moved == 32 * 128 * 4


def test_positions_are_those_of_the_source(right: Trace) -> None:
    call, _ = call_of(right, "matmul")
    with open(right.path) as file:
        lines = file.read().splitlines()
    for operand, text in zip(call.operands, ("(i, k)", "(k, j)", "(i, j)"), strict=True):
        span = operand.map_at
        assert span is not None and span.line == span.end_line
        assert lines[span.line - 1][span.column - 1 : span.end_column - 1] == f"lambda i, j, k: {text}"
    assert call.kernel_at is not None
    assert lines[call.kernel_at.line - 1][call.kernel_at.column - 1 :].startswith("_matmul_kernel(")
    dots = [one for one in call.kernel.equations if one.primitive == "dot_general"]
    assert len(dots) == 1 and dots[0].place is not None
    assert "jnp.dot(" in lines[dots[0].place.line - 1]


def test_affine_maps_have_exact_ranges(right: Trace) -> None:
    call, schedule = call_of(right, "element_blocks")
    rows, columns = affine_starts(call.operands[0], 1)
    assert rows == Affine(0, (8,)) and columns == Affine(0, (0,))
    assert rows is not None and rows.range(schedule.grid) == (0, 24)
    assert Affine(3, (2, -1)).range((4, 5)) == (-1, 9)
    assert Affine(3, (2, -1)).at(Affine(3, (2, -1)).corner((4, 5), greatest=True)) == 9


@pytest.mark.parametrize("function", ["matmul", "add_padded", "mapped", "in_place"])
def test_affine_and_walked_maps_agree(right: Trace, function: str) -> None:
    call, schedule = call_of(right, function)
    for position, operand in enumerate(call.operands):
        for d, start in enumerate(affine_starts(operand, len(schedule.grid))):
            assert start is not None
            exact = [start.at(schedule.point(step)) for step in range(schedule.steps)]
            assert exact == list(schedule.walks[position].starts[:, d])


def test_all_steps_at_once_equal_one_by_one(right: Trace) -> None:
    call, schedule = call_of(right, "prefetch_gather")
    ids = np.array([2, 0, 3, 1], np.int32)
    together = evaluate(call.operands[0].index_map, schedule.points, [ids])
    alone = [evaluate(call.operands[0].index_map, schedule.points[k : k + 1], [ids])[0][0] for k in range(4)]
    assert list(together[0]) == alone == [2, 0, 3, 1]


def test_an_empty_grid_has_one_step_and_a_zero_bound_none() -> None:
    assert grid_points(()).shape == (1, 0)
    assert grid_points((3, 0)).shape == (0, 2)
