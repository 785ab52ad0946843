"""Whether a reshape, transpose or relayout moves bytes, against counting where every element goes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.core.hlo.shape import Shape
from hloscope.core.layout.bitcast import (
    align,
    align_like,
    common_factors,
    relayout_is_bitcast,
    reshape_is_bitcast,
    transpose_is_bitcast,
)
from hloscope.core.layout.physical import physical_view

Sizes = tuple[int, ...]


def places(sizes: Sizes, order: Sizes) -> np.ndarray:
    """Where in memory each element lies, by its index."""
    strides = np.zeros(len(sizes), dtype=int)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= sizes[dim]
    index = np.indices(sizes).reshape(len(sizes), -1)
    return (strides @ index).reshape(sizes) if sizes else np.zeros((), dtype=int)


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[Sizes, Sizes]:
    sizes = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)))
    return sizes, tuple(draw(st.permutations(range(len(sizes)))))


def factored(draw: Callable[[st.SearchStrategy[int]], int], count: int) -> Sizes:
    """Sizes with the given product."""
    sizes: list[int] = []
    while count > 1:
        size = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        sizes.append(size)
        count //= size
        if len(sizes) > 3:
            sizes.append(count)
            count = 1
    return tuple(sizes) or (1,)


@given(laid_out(), st.data())
@settings(max_examples=80, deadline=None)
def test_reshapes_that_move_nothing_are_found_exactly(source: tuple[Sizes, Sizes], data: st.DataObject) -> None:
    sizes, order = source
    target = factored(data.draw, prod(sizes))
    moved = places(sizes, order).reshape(target)
    free = [other for other in permutations(range(len(target))) if np.array_equal(places(target, other), moved)]
    for other in permutations(range(len(target))):
        assert reshape_is_bitcast(sizes, order, target, other) == (other in free)
    for found in (align(sizes, order, target), align_like(sizes, order, target, tuple(range(len(target))))):
        assert (found is not None) == bool(free)
        assert found is None or found in free


@given(laid_out(), st.data())
@settings(max_examples=80, deadline=None)
def test_transposes_and_relayouts_that_move_nothing_are_found_exactly(
    source: tuple[Sizes, Sizes], data: st.DataObject
) -> None:
    sizes, order = source
    dims = tuple(data.draw(st.permutations(range(len(sizes)))))
    out = tuple(data.draw(st.permutations(range(len(sizes)))))
    moved = places(sizes, order).transpose(dims)
    assert transpose_is_bitcast(sizes, order, dims, out) == np.array_equal(places(moved.shape, out), moved)
    assert relayout_is_bitcast(sizes, order, out) == np.array_equal(places(sizes, order), places(sizes, out))


@pytest.mark.parametrize(
    ("a", "b", "cuts"),
    [
        ((2, 3), (2, 3), [(0, 0), (1, 1), (2, 2)]),
        ((6, 4), (2, 3, 4), [(0, 0), (1, 2), (2, 3)]),
        ((2, 6), (4, 3), [(0, 0), (2, 2)]),
        ((4, 0, 3), (4, 3, 0), [(0, 0), (1, 1), (3, 3)]),
        ((0, 10, 3), (0, 3), [(0, 0), (3, 2)]),
    ],
)
def test_common_factors(a: Sizes, b: Sizes, cuts: list[tuple[int, int]]) -> None:
    assert common_factors(a, b) == cuts


def test_ones_go_to_the_slow_end_or_where_the_template_has_them() -> None:
    assert align((2, 32), (1, 0), (2, 32, 1)) == (1, 0, 2)
    assert align_like((2, 32), (1, 0), (2, 32, 1), (2, 1, 0)) == (2, 1, 0)


@given(laid_out())
@settings(max_examples=30, deadline=None)
def test_the_physical_view_says_where_elements_lie(source: tuple[Sizes, Sizes]) -> None:
    sizes, order = source
    text = f"f32[{','.join(map(str, sizes))}]{{{','.join(map(str, order))}}}"
    view = physical_view(Shape.parse(text))
    assert view.bytes == view.data_bytes == 4 * prod(sizes) and view.padding_bytes == 0
    where = places(sizes, order)
    for index in np.ndindex(*sizes):
        assert view.offset_of(index) == 4 * where[index]
        found = view.index_at(4 * int(where[index]))
        assert found == index


@pytest.mark.parametrize(
    ("text", "size", "index", "offset"),
    [
        ("f32[10,200]{1,0:T(8,128)}", 2 * 8 * 2 * 128 * 4, (0, 128), 8 * 128 * 4),
        ("f32[10,200]{1,0:T(8,128)}", 2 * 8 * 2 * 128 * 4, (9, 3), (2 * 8 * 128 + 128 + 3) * 4),
        ("bf16[16,128]{1,0:T(8,128)(2,1)}", 16 * 128 * 2, (1, 0), 2),
        ("bf16[16,128]{1,0:T(8,128)(2,1)}", 16 * 128 * 2, (2, 5), (2 * 128 + 10) * 2),
        ("s8[5]{0:T(128)}", 128, (4,), 4),
    ],
)
def test_tiles_pad_and_scatter(text: str, size: int, index: Sizes, offset: int) -> None:
    view = physical_view(Shape.parse(text))
    assert (view.bytes, view.offset_of(index)) == (size, offset)
    assert view.index_at(offset) == index
    assert view.padding_bytes == size - view.data_bytes > 0 or size == view.data_bytes
