"""How values lie in memory and what moves: in sentences, on hover and in the dashboard's answer."""

from __future__ import annotations

import numpy as np
import pytest

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.shape import Shape
from hloscope.core.layout.physical import copy_move, physical_view, reshape_move, transpose_move
from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.views.memory import instruction_move, memory_lines, moves_between
from hloscope.lsp.features.hover import describe
from hloscope.tui.content import plain
from hloscope.tui.screens.memory import asked

TEXT = """HloModule m

ENTRY e {
  a = f32[10,200]{1,0:T(8,128)} parameter(0)
  b = f32[200,10]{0,1:T(8,128)} transpose(a), dimensions={1,0}
  c = f32[10,200]{1,0} copy(a)
  d = f32[2000]{0} reshape(c)
  f = f32[200,10]{1,0} transpose(c), dimensions={1,0}
  g = f32[10,200]{1,0} copy(c)
  h = f32[10,200] negate(c)
  ROOT r = (f32[2000]{0}, f32[200,10]{1,0}) tuple(d, f)
}
"""
INDEX = ModuleIndex.from_text(TEXT)


def at(name: str) -> int:
    found = INDEX.find(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "shape",
    ["f32[10,200]{1,0:T(8,128)}", "bf16[3,5,260]{2,0,1:T(8,128)(2,1)}", "s8[7,9]{0,1}", "f32[6,4,30]{1,2,0:T(*,8)}"],
)
def test_places_are_those_of_each_element(shape: str) -> None:
    view = physical_view(Shape.parse(shape))
    places = view.places()
    assert places.shape == view.sizes
    for index in np.ndindex(*view.sizes):
        assert places[index] * view.element_bits == view.bit_offset_of(index)


def test_tiled_arrays_are_compared_place_by_place() -> None:
    tiled = Shape.parse("bf16[16,256]{1,0:T(8,128)(2,1)}")
    assert reshape_move(tiled, Shape.parse("bf16[2,8,256]{2,1,0:T(8,128)(2,1)}")).free
    moved = reshape_move(tiled, Shape.parse("bf16[4096]{0:T(1024)}"))
    assert not moved.free and "of 4096 elements lie elsewhere" in moved.reason
    assert transpose_move(tiled, (1, 0), Shape.parse("bf16[256,16]{0,1:T(8,128)(2,1)}")).free
    assert not transpose_move(tiled, (1, 0), Shape.parse("bf16[256,16]{1,0:T(8,128)(2,1)}")).free
    other = copy_move(Shape.parse("f32[10,200]{1,0:T(8,128)}"), Shape.parse("f32[10,200]{1,0}"))
    assert other.reason == "with their tiles they take 16384 and 8000 bytes"


def test_memory_in_sentences() -> None:
    first, second = memory_lines("f32[10,200]{1,0:T(8,128)}")
    assert first.startswith("16,384 bytes, of them 8,384 padding (51.2%)") and "stored as 2×2×8×128" in second
    assert memory_lines("f32[10,200]{0,1}")[1].endswith("by dimension: 4, 40")
    assert memory_lines("f32[0,3]{1,0}")[0].startswith("0 bytes")
    with pytest.raises(HloscopeError):
        memory_lines("token[]")


def test_what_an_operation_of_a_text_moves() -> None:
    moves = {name: instruction_move(INDEX, at(name)) for name in "abcdfghr"}
    assert {name for name, move in moves.items() if move is None} == {"a", "h", "r"}
    assert {name for name, move in moves.items() if move is not None and move.free} == {"b", "d"}
    copy = moves["g"]
    assert copy is not None and copy.reason == "all 8,000 bytes go to a buffer of their own, in the same order"


def test_between_two_shapes() -> None:
    reshape, transpose = moves_between("f32[4,6]{1,0}", "f32[6,4]{0,1}")
    assert (reshape.free, transpose.free) == (False, True) and transpose.operation == "transpose dimensions={1,0}"
    reshape, copy = moves_between("f32[4,1]{1,0}", "f32[4,1]{0,1}")[:2]
    assert reshape.free and copy.free
    with pytest.raises(HloscopeError, match="24 elements"):
        moves_between("f32[4,6]{1,0}", "f32[6,5]{1,0}")


def test_hover_says_it() -> None:
    text = describe(INDEX, INDEX.at_offset(TEXT.index("b = f32")))
    assert text is not None
    assert "16,384 bytes, of them 8,384 padding" in text and "transpose: free; every element" in text
    plain_text = describe(INDEX, INDEX.at_offset(TEXT.index("h = f32")))
    assert plain_text is not None and "in memory" not in plain_text


def test_the_dashboard_answers_for_two_shapes() -> None:
    lines = [one.text for one in asked("f32[4,6]{1,0} f32[24]{0}", lambda shape: [plain(shape)])]
    assert any("reshape: free" in line for line in lines) and "f32[24]{0}" in lines
    assert [one.text for one in asked("f32[2]{0}", lambda shape: [plain(shape)])] == ["f32[2]{0}"]
    assert "elements" in asked("f32[2]{0} to f32[3]{0}", lambda shape: [plain(shape)])[0].text


def test_a_layout_that_is_no_order_is_said() -> None:
    with pytest.raises(HloscopeError, match="each dimension once"):
        memory_lines("f32[4,6]{0,0}")
