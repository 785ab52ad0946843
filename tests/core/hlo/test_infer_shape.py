"""infer_shape on bare shapes: results, what each error says, and which kind of error it is."""

from __future__ import annotations

from typing import Any

import pytest

from hloscope.core.errors import HloscopeError, VerifyError
from hloscope.core.hlo.attributes import ATTRIBUTES
from hloscope.core.hlo.infer_shape import NEEDS_SHAPE, RULES, InferenceError, ProgramShape, compatible, infer_shape
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.hlo.shape import Shape


def shapes(text: str) -> list[Shape]:
    """Shapes separated by blanks."""
    return [Shape.parse(part) for part in text.split()] if text else []


F32 = Shape.scalar("f32")
ADD = {"to_apply": [ProgramShape((F32, F32), F32)]}

RESULTS: list[tuple[str, str, dict[str, Any], str]] = [
    ("negate", "f32[2,3]{0,1}", {}, "f32[2,3]"),
    ("is-finite", "f32[2]", {}, "pred[2]"),
    ("abs", "c128[2]", {}, "f64[2]"),
    ("imag", "f32[2]", {}, "f32[2]"),
    ("compare", "f32[<=4] f32[<=4]", {"direction": "EQ"}, "pred[<=4]"),
    ("add", "f32[2,1] f32[1,3]", {}, "f32[2,3]"),
    ("add", "f32[] f32[4,3]", {}, "f32[4,3]"),
    ("add", "bf16[4] f32[4]", {}, "f32[4]"),
    ("add", "f16[4] bf16[4]", {}, "bf16[4]"),
    ("multiply", "f32[?,3] f32[2,3]", {}, "f32[2,3]"),
    ("multiply", "f32[<=4] f32[4]", {}, "f32[<=4]"),
    ("complex", "f64[2] f64[2]", {}, "c128[2]"),
    ("select", "pred[4] f32[<=4] f32[4]", {}, "f32[<=4]"),
    ("clamp", "f32[] f32[4] f32[4]", {}, "f32[4]"),
    ("dot", "f32[2,3] f32[3,4]", {"lhs_contracting_dims": "{1}", "rhs_contracting_dims": "{0}"}, "f32[2,4]"),
    ("dot", "f32[3] f32[3]", {"lhs_contracting_dims": (0,), "rhs_contracting_dims": (0,)}, "f32[]"),
    (
        "dot", "bf16[7,2,3] f32[7,4,3]",
        {"lhs_batch_dims": (0,), "rhs_batch_dims": (0,), "lhs_contracting_dims": (2,), "rhs_contracting_dims": (2,)},
        "f32[7,2,4]",
    ),
    ("concatenate", "f32[2,3] f32[4,3]", {"dimensions": "{0}"}, "f32[6,3]"),
    ("concatenate", "f32[<=2] f32[4]", {"dimensions": "{0}"}, "f32[<=6]"),
    ("concatenate", "f32[?] f32[4]", {"dimensions": "{0}"}, "f32[?]"),
    ("concatenate", "f32[2,?] f32[2,5]", {"dimensions": "{0}"}, "f32[4,5]"),
    ("pad", "f32[4] f32[]", {"padding": "1_2_1"}, "f32[10]"),
    ("pad", "f32[0] f32[]", {"padding": "1_2_1"}, "f32[3]"),
    ("slice", "f32[<=8]", {"slice": "{[0:1]}"}, "f32[1]"),
    ("slice", "f32[<=8]", {"slice": "{[0:4:2]}"}, "f32[<=2]"),
    ("dynamic-slice", "f32[<=8,4] s32[] s32[]", {"dynamic_slice_sizes": "{8,2}"}, "f32[<=8,2]"),
    ("dynamic-update-slice", "f32[8] f32[2] s64[]", {}, "f32[8]"),
    ("transpose", "f32[2,<=3]", {"dimensions": "{1,0}"}, "f32[<=3,2]"),
    ("reverse", "f32[2,3]", {"dimensions": "{0}"}, "f32[2,3]"),
    ("reduce", "f32[2,3] f32[]", {"dimensions": "{0}"}, "f32[3]"),
    ("reduce-window", "f32[10] f32[]", {"window": "{size=3 stride=2 pad=1_0 rhs_dilate=2}"}, "f32[4]"),
    (
        "gather", "f32[10,5] s32[3,2]",
        {"offset_dims": "{}", "collapsed_slice_dims": "{0,1}", "start_index_map": "{0,1}", "index_vector_dim": "1",
         "slice_sizes": "{1,1}"},
        "f32[3]",
    ),
    (
        "convolution", "f32[8,5,5,4] f32[3,3,2,6]",
        {"window": "{size=3x3 pad=1_1x1_1}", "dim_labels": "b01f_01io->b01f", "feature_group_count": "2"},
        "f32[8,5,5,6]",
    ),
    ("fft", "f64[7,9]", {"fft_type": "RFFT", "fft_length": "{9}"}, "c128[7,5]"),
    ("topk", "f32[3,<=9]", {"k": "4"}, "(f32[3,4],s32[3,4])"),
    ("tuple", "f32[2] token[]", {}, "(f32[2],token[])"),
    ("get-tuple-element", "(f32[2],s32[])", {"index": "1"}, "s32[]"),
    ("set-dimension-size", "f32[4] s32[]", {"dimensions": "{0}"}, "f32[<=4]"),
    ("get-dimension-size", "f32[4]", {"dimensions": "{0}"}, "s32[]"),
    ("copy-start", "f32[4]", {}, "(f32[4],f32[4],u32[])"),
    ("all-to-all", "f32[8]", {"replica_groups": "{{0,1}}", "dimensions": "{0}"}, "f32[8]"),
    ("all-gather", "f32[8]", {"replica_groups": "{{0,1}}", "dimensions": "{0}"}, "f32[16]"),
    ("reduce-scatter", "f32[8]", {"replica_groups": "[2,4]<=[8]", "dimensions": "{0}"}, "f32[2]"),
    ("partition-id", "", {}, "u32[]"),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "operands", "attributes", "expected"), RESULTS, ids=[r[0] for r in RESULTS])
def test_results(opcode: str, operands: str, attributes: dict[str, Any], expected: str) -> None:
    wanted = Shape.parse(expected)
    found = infer_shape(opcode, shapes(operands), attributes, ADD)
    assert compatible(found, wanted)
    assert found.to_text(layout=False) == wanted.to_text(layout=False)


ERRORS: list[tuple[str, str, dict[str, Any], str]] = [
    ("floor", "s32[2]", {}, "Expected element type in shape to be floating for floor operation; got S32."),
    ("add", "f32[2] f32[3]", {}, "Binary op with incompatible shapes: f32[2] and f32[3]."),
    ("add", "f32[2] s32[2]", {}, "Binary op add with different element types: f32[2] and s32[2]."),
    ("concatenate", "f32[2,3]", {"dimensions": "{2}"}, "Concatenate dimension out of bounds: 2."),
    ("dynamic-slice", "f32[2] s32[]", {"dynamic_slice_sizes": "{3}"},
     "Slice dim size 3 greater than dynamic slice dimension: 2."),
    ("get-tuple-element", "f32[2]", {"index": "0"},
     "Cannot infer shape: attempting to index into non-tuple: f32[2]."),
    ("transpose", "f32[2,3]", {"dimensions": "{0}"},
     "Transpose dimensions [0] are not a permutation of the operand dimensions (operand shape is f32[2,3])."),
    ("reduce", "f32[2] f32[]", {"dimensions": "{1}"}, "Reducing out-of-bounds dimension 1 in shape f32[2]."),
    ("cholesky", "f32[2,3]", {}, "The two minor dimensions of 'a' must have compatible size, got f32[2,3]."),
    ("fft", "f32[4]", {"fft_type": "FFT", "fft_length": "{4}"}, "FFT requires complex input type, found F32."),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "operands", "attributes", "message"), ERRORS, ids=[e[0] for e in ERRORS])
def test_errors_speak_as_xla_does(opcode: str, operands: str, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(InferenceError) as caught:
        infer_shape(opcode, shapes(operands), attributes, ADD)
    assert caught.value.message == message
    assert caught.value.opcode == opcode
    assert caught.value.kind == "invalid"
    assert isinstance(caught.value, VerifyError)


@pytest.mark.parametrize(
    ("opcode", "operands", "kind"),
    [
        ("add", "f32[2]", "operand-count"),
        ("slice", "f32[2]", "missing-attribute"),
        ("reduce", "f32[2] f32[]", "missing-program"),
        ("convert", "f32[2]", "shape-needed"),
        ("constant", "", "shape-needed"),
        ("complex", "f16[2] f16[2]", "unimplemented"),
    ],
)
def test_the_kind_says_what_is_missing(opcode: str, operands: str, kind: str) -> None:
    with pytest.raises(InferenceError) as caught:
        infer_shape(opcode, shapes(operands))
    assert caught.value.kind == kind


def test_every_opcode_has_a_rule() -> None:
    assert set(RULES) == set(OPCODES)
    assert NEEDS_SHAPE < set(OPCODES)


def test_an_unknown_opcode_has_the_shape_that_it_says() -> None:
    given = Shape.parse("f32[3]")
    assert infer_shape("brand-new", [], given=given) is given


def test_no_operands_and_no_attributes_never_raise_anything_else() -> None:
    odd = [
        [],
        shapes("f32[]"),
        shapes("token[]"),
        shapes("(f32[2])"),
        shapes("f32[2] f32[2]"),
        shapes("pred[0,3] u8[]"),
    ]
    for opcode in OPCODES:
        for operands in odd:
            for given in (None, Shape.parse("f32[2]"), Shape.parse("(f32[2])"), Shape.token()):
                try:
                    infer_shape(opcode, operands, {"dimensions": (0,)}, given=given)
                except HloscopeError:
                    pass


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("output_to_operand_aliasing", "{{0}: (0, {}), {1,2}: (3, {4,5})}"),
        ("operand_layout_constraints", "{f32[2,3]{1,0}, s32[]}"),
        ("outfeed_shape", "(f32[2]{0}, token[])"),
        ("is_composite", "true"),
        ("num_carries", "2"),
        ("async_execution_thread", '"other"'),
    ],
)
def test_typed_attributes_print_back(name: str, text: str) -> None:
    kind = ATTRIBUTES[name]
    assert kind.format(kind.parse(text)) == text
