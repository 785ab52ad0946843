"""Block dimensions: what an index means for each kind, and where a block lies."""

from __future__ import annotations

import pytest

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.blocks import BlockDim, Window, block_count, block_dim, padded, window
from hloscope.core.pallas.call import Slots


@pytest.mark.parametrize(
    ("dim", "index", "start"),
    [
        (BlockDim("blocked", 8), 3, 24),
        (BlockDim("squeezed", 1), 3, 3),
        (BlockDim("element", 8), 3, 3),
        (BlockDim("element", 8, (2, 0)), 3, 1),
    ],
)
def test_an_index_becomes_a_start(dim: BlockDim, index: int, start: int) -> None:
    assert dim.start(index) == start
    assert window([dim], [index]).starts == (start,)


def test_a_bounded_slice_brings_its_size() -> None:
    assert window([BlockDim("bounded_slice", 8)], [(5, 3)]) == Window((5,), (3,))


def test_a_gather_has_no_window() -> None:
    with pytest.raises(UnsupportedError, match="Indirect"):
        window([BlockDim("indirect", 8)], [0])


def test_what_a_user_may_write() -> None:
    assert block_dim(8) == BlockDim("blocked", 8)
    assert block_dim(None).kind == "squeezed"
    for bad in ("8", 1.5, True):
        with pytest.raises(UnsupportedError, match="unsupported block dimension type"):
            block_dim(bad)


def test_ceiling_division_and_padding() -> None:
    eight = BlockDim("blocked", 8)
    assert [block_count(n, eight) for n in (0, 1, 8, 9, 16)] == [0, 1, 1, 2, 2]
    assert [padded(n, eight) for n in (0, 1, 8, 9, 16)] == [0, 8, 8, 16, 16]
    assert padded(16, BlockDim("element", 6, (1, 1))) == 18


def test_where_a_window_lies() -> None:
    one = Window((6, -1), (4, 3))
    assert one.inside((8, 8)) == (slice(6, 8), slice(0, 2))
    assert one.overhang((8, 8)) == ((0, 2), (1, 0))
    assert Window((8, 0), (8, 8)).inside((8, 8)) is None
    assert one.overlaps(Window((9, 1), (1, 1))) and not one.overlaps(Window((10, 1), (1, 1)))


def test_the_three_orderings() -> None:
    slots = Slots(grid=3, dynamic=1, prefetch=2, inputs=2, outputs=1, scratch=1)
    assert slots.primitive == ("grid_bound 0", "prefetch 0", "prefetch 1", "input 0", "input 1")
    assert slots.kernel == ("prefetch 0", "prefetch 1", "input 0", "input 1", "output 0", "scratch 0")
    assert slots.index_map == ("grid_index 0", "grid_index 1", "grid_index 2", "prefetch 0", "prefetch 1")
    assert slots.kernel_position("output", 0) == 4
    assert slots.primitive_position_of_input(1) == 4
