"""Shapes, layouts, literals and attributes: text in, value out, the same text back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.core.errors import ParseError, UnsupportedError
from hloscope.core.hlo.attributes import ATTRIBUTES, quote, unquote
from hloscope.core.hlo.element_types import ELEMENT_TYPES, from_dtype
from hloscope.core.hlo.layout import Layout
from hloscope.core.hlo.literal import Literal, parse_literal
from hloscope.core.hlo.names import NameUniquer
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.hlo.replica_groups import parse_replica_groups
from hloscope.core.hlo.shape import Shape

SHAPES = [
    "f32[]",
    "f32[4,8]{0,1}",
    "bf16[4,8]{1,0:T(8,128)(2,1)S(1)}",
    "s4[4,8]{1,0:T(8,128)E(4)S(5)}",
    "pred[16,32]{1,0:T(8,128)S(3)SC(1:16)}",
    "f32[16,32]{1,0:SC(0:4)(1:8,16)}",
    "f32[<=4]{0:M(4)}",
    "f32[?,8]{1,0}",
    "f32[4,8,2]{2,1,0:T(*,128)}",
    "f32[4,8]{1,0:#(u32)*(u64)}",
    "f32[4,8]{1,0:T(8,128)L(512)}",
    "((f32[], (s32[2]{0})), pred[], token[], opaque[], ())",
    "b(f32[4]{0})",
    "(f32[], f32[], f32[], f32[], f32[], /*index=5*/f32[])",
    "f32[]{:T(256)}",
]


@pytest.mark.parametrize("text", SHAPES)
def test_shape_text_round_trips(text: str) -> None:
    assert str(Shape.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["f32[4,8,]", "F32[4]", "f32[4,8]{0}", "f32[4,8]{1,0:E(4)T(8,128)}", "f32[4", "(f32[]", ""]
)
def test_bad_shape_is_refused_with_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError):
        Shape.parse(text)


def test_shape_facts() -> None:
    shape = Shape.parse("(f32[2,3]{1,0}, s4[3]{0:E(4)}, token[])")
    assert shape.byte_size == 24 + 2
    assert [index for index, _ in shape.leaves()] == [(0,), (1,), (2,)]
    assert shape.compatible(shape.without_layout())
    assert Shape.array("f32", (2, 3)).with_default_layout().layout == Layout((1, 0))
    with pytest.raises(ValueError, match="no bound"):
        _ = Shape.parse("f32[?]").element_count


def test_every_opcode_and_element_type_of_the_field() -> None:
    assert len(OPCODES) == 133
    assert sum(1 for row in OPCODES.values() if row.arity is None) == 29
    assert {n for n, row in OPCODES.items() if row.commutative} == set(
        "add multiply mulhi maximum minimum and or xor".split()
    )
    assert len({row.number for row in ELEMENT_TYPES.values()}) == 36
    for row in ELEMENT_TYPES.values():
        if row.numpy_name is not None:
            assert from_dtype(row.dtype) is row


LITERALS = [
    ("f32[]", "1.5"),
    ("f32[3]", "{inf, -inf, nan}"),
    ("f32[2]", "{nan(0x7fffff), -nan(0x3)}"),
    ("c64[2]", "{(1, -2.5), (nan, inf)}"),
    ("s32[2,2]", "{ { 1, 2 }, { 3, 4 } }"),
    ("s32[2,1,2]", "{ /*i0=0*/ { { 1, 2 } }, /*i0=1*/ { { 3, 4 } } }"),
    ("u64[]", "18446744073709551615"),
    ("s64[]", "-9223372036854775808"),
    ("pred[2]", "{1, 0}"),
    ("f8e4m3fn[2]", "{0.5, 448}"),
    ("s4[2]", "{-8, 7}"),
    ("(f32[], s32[2])", "( 1.5, {1, 2} )"),
    ("f32[9,9]", "{...}"),
    ("f32[0]", "{}"),
    ("f32[]", "0.1"),
    ("f32[]", "1e-05"),
    ("bf16[]", "0.1001"),
    ("f64[]", "0.1"),
]


@pytest.mark.parametrize(("shape", "text"), LITERALS)
def test_literal_round_trips(shape: str, text: str) -> None:
    wanted = Shape.parse(shape)
    literal = parse_literal(text, wanted)
    again = parse_literal(literal.to_text(), wanted)
    assert literal.is_elided == again.is_elided
    assert literal.is_elided or literal.same(again)
    if "/*" not in text:
        assert literal.to_text() == text


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("f32[]", ".5"),
        ("s32[]", "0x10"),
        ("u4[]", "16"),
        ("u8[]", "-1"),
        ("s32[]", "1.5"),
        ("f16[]", "70000"),
        ("s32[3]", "{1, 2}"),
        ("f32[]", "{1}"),
        ("s32[]", "true"),
        ("bf16[1]", "{nan(0x3ff)}"),
        ("c64[]", "1.5"),
        ("f32[2,2]", "{{...}, {...}}"),
        ("u64[]", "18446744073709551616"),
    ],
)
def test_bad_literal_is_refused(shape: str, text: str) -> None:
    with pytest.raises(ParseError):
        parse_literal(text, Shape.parse(shape))


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=8))
def test_f32_literals_keep_their_bits(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    literal = Literal.of(array)
    assert parse_literal(literal.to_text(), literal.shape).array().tobytes() == array.tobytes()


@given(st.text())
def test_quoting_round_trips(text: str) -> None:
    assert unquote(quote(text)) == text


ATTRIBUTE_TEXTS = [
    ("dimensions", "{0,2}"),
    ("window", "{size=3x3 stride=2x2 pad=1_1x0_0}"),
    ("window", "{size=2 lhs_dilate=2 rhs_reversal=1}"),
    ("dim_labels", "b01f_01io->b01f"),
    ("dim_labels", "bf_io->bf"),
    ("padding", "0_1x-1_2"),
    ("padding", "0_1_0x-1_2_3"),
    ("slice", "{[0:2], [0:8]}"),
    ("slice", "{[0:2:1], [0:8:2]}"),
    ("source_target_pairs", "{{0,1},{1,0}}"),
    ("metadata", '{op_type="add" op_name="jit(f)/a \\"b\\"" source_file="x.py" source_line=3 stack_frame_id=7}'),
    ("frontend_attributes", '{a="1",cfg={"k":[1,2]}}'),
    ("is_stable", "true"),
    ("custom_call_target", '"topk"'),
    ("operand_precision", "{highest,default}"),
]


@pytest.mark.parametrize(("name", "text"), ATTRIBUTE_TEXTS)
def test_attribute_round_trips(name: str, text: str) -> None:
    kind = ATTRIBUTES[name]
    assert kind.format(kind.parse(text)) == text


def test_replica_groups_in_all_forms() -> None:
    assert parse_replica_groups("{{0,1},{2,3}}") == ((0, 1), (2, 3))
    assert parse_replica_groups("[2,4]<=[8]") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert parse_replica_groups("[4,2]<=[2,4]T(1,0)") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert parse_replica_groups("{}") == ()
    assert parse_replica_groups("mesh['a'=2,'b'=2] {'b'}") == ((0, 1), (2, 3))
    assert parse_replica_groups("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}") == ((0, 2), (1, 3))
    assert parse_replica_groups("mesh['a'=2,'b'=2], device_ids=(3,1,2,0) {'a'}") == ((3, 2), (1, 0))
    with pytest.raises(UnsupportedError):
        parse_replica_groups("maximal_mesh[device_id=1] {}")


@given(st.lists(st.sampled_from(["add", "add.1", "add.2", "fusion", "f32", "__x", "a b", "1x"]), max_size=30))
@settings(max_examples=50)
def test_unique_names_never_repeat_and_are_deterministic(prefixes: list[str]) -> None:
    first, second = NameUniquer(), NameUniquer()
    names = [first.unique(p) for p in prefixes]
    assert len(set(names)) == len(names)
    assert names == [second.unique(p) for p in prefixes]
    assert "f32" not in names
