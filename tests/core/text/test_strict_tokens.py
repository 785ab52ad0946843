"""Strict reading token by token: marks, shapes, heads and tables as XLA's own parser (jaxlib 0.10.2) takes them.

Every verdict here was asked of that parser.
"""

from __future__ import annotations

import pytest

from hloscope.core.errors import ParseError
from hloscope.core.text import parse_module, print_module
from hloscope.core.text.names import as_xla_reads
from hloscope.core.text.printer import PrintOptions
from hloscope.core.text.reader import read_text
from hloscope.core.text.shape_form import walk_shape
from hloscope.core.text.tokens import Cursor

MODULE = "HloModule m\nENTRY e {{\n  p = f32[4,8] parameter(0)\n  ROOT r = f32[4,8] {}\n}}\n"


def refused(text: str) -> bool:
    return read_text(text, check=True).xla_would_reject


# ---------------------------------------------------------------- shapes
TAKEN_SHAPES = [
    "f32[2]{0:T(8,128)()}", "f32[2]{0:T(0)}", "f32[2]{0:T(*)}", "f32[2]{0:E(-4)}", "f32[2]{5}", "f32[2]{-1}",
    "f32[2,2]{0,0}", "f32[2]{0:SC(5:1)}", "f32[]{:S(5)}", "f32[<=0]", "f32[?]", "pred[2]{0:#(s32)}", "opaque[]",
    "b(f32[2])", "(b(f32[2]))", "f32[99999999999,99999999999]", "f32[2]{0:D(D)}", "f32[2]{0:M(8)}", "f32[2]{0:T(8}",
    "f32[2]{0:E(4}", "f32[ 2, 3 ]{ 1 , 0 }", "f32[2]/*c*/{0}", "((),(token[]))", "(f32[4,8]{1,0:SC(1:5)})",
]  # fmt: skip
REFUSED_SHAPES = [
    "f32[2]{0:T(-1)}", "f32[2]{0:L(0)}", "f32[]{}", "f32[-1]", "f32[<=?]", "f32[18446744073709551615]", "token[2]",
    "b(())", "b(b(f32[2]))", "f32[2]{0:T(8)D(D)}", "f32[2]{0:S(5)E(4)}", "f32[2]{0:P(f32[2])}", "f32[2]{0,}",
    "f32[2]{0:T(8 8)}", "f32[2,]", "f32[,2]", "f32[2x2]", "F32[2]", "f33[2]", "tuple[]", "(f32[2],)", "(f32[2] f32[2])",
    "(f32[2]{5})", "(f32[2]{-1})", "(f32[2]{0:T(8,128)()})", "(f32[2]{0:T(0)})", "(f32[2]{0:E(-4)})",
    "(f32[99999999999,99999999999])", "((f32[2]{3}))", "(f32[4,8]{1,0:SC(0:5)})", "(f32[2]{0:SC(0:1)(0:1)})",
]  # fmt: skip


@pytest.mark.parametrize("text", TAKEN_SHAPES)
def test_shapes_that_xla_takes(text: str) -> None:
    at = Cursor(text)
    walk_shape(at)
    assert at.kind == "end"


@pytest.mark.parametrize("text", REFUSED_SHAPES)
def test_shapes_that_xla_refuses(text: str) -> None:
    at = Cursor(text)
    with pytest.raises(ParseError) as raised:
        walk_shape(at)
        at.expect("end")
    assert 0 < (raised.value.column or 0) <= len(text) + 1


# ---------------------------------------------------------------- comments
@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("HloModule /*x*/ m /*y*/ , /*z*/ is_scheduled=/*w*/true\nENTRY e { ROOT p = f32[] parameter(0) }",
         "HloModule m, is_scheduled=true\nENTRY e { ROOT p = f32[] parameter(0) }"),
        ("HloModule m // a comment\n// and another\nENTRY /*e*/ e /*f*/ { ROOT /*r*/ p /*q*/ = /*s*/ f32[] /*t*/ "
         "parameter /*u*/ ( /*z*/ 0 /*v*/ ) /*w*/ , /*x*/ metadata= /*y*/ {op_name=\"a\"} /*end*/ } // done",
         "HloModule m\nENTRY e { ROOT p = f32[] parameter(0), metadata={op_name=\"a\"} }"),
        ("HloModule m\ne /*1*/ ( /*2*/ p /*3*/ : f32[] /*4*/ ) /*5*/ -> /*6*/ f32[] /*7*/ {\n p = f32[/*8*/]// 9\n"
         "{/*no layout*/:S(5)} parameter(0)\n ROOT q = (f32[] /*a*/, f32[]) tuple(/*b*/ p /*c*/ , // d\n p /*e*/ ) }",
         None),
        ("HloModule m\nENTRY e { p = f32[2]// c\n{0} parameter(0)\n ROOT c = f32[2] constant(/*a*/{1,/*b*/2}// c\n) }",
         "HloModule m\nENTRY e { p = f32[2]{0} parameter(0)\n ROOT c = f32[2] constant({1,2}) }"),
    ],
)  # fmt: skip
def test_a_comment_may_stand_between_any_two_tokens(text: str, same: str | None) -> None:
    module, found = parse_module(text)
    assert module is not None and not found, found
    if same is not None:
        assert not refused(text)
        plain, _ = parse_module(same)
        assert plain is not None and print_module(plain) == print_module(module)


def test_many_comments_are_walked_over_once() -> None:
    text = MODULE.format("copy(p)" + " // a // b /* c */ // d" * 300 + "\n" + "  /* // */" * 2000)
    assert not parse_module(text)[1]


# ---------------------------------------------------------------- heads, names and marks
@pytest.mark.parametrize(
    "text",
    [
        "HloModule ()m\nENTRY e { ROOT p = f32[] parameter(0) }",
        "HloModule m[1]\nENTRY e { ROOT p = f32[] parameter(0) }",
        "HloModule -> \nENTRY e { ROOT p = f32[] parameter(0) }",
        "HloModule m is_scheduled=true\nENTRY e { ROOT p = f32[] parameter(0) }",
        "HloModule m, is_scheduled =true\nENTRY e { ROOT p = f32[] parameter(0) }",
        "\ufeffHloModule m\nENTRY e { ROOT p = f32[] parameter(0) }",
        "HloModule m\nENTRY ENTRY { ROOT p = f32[] parameter(0) }",
        "HloModule m\nENTRY { ROOT p = f32[] parameter(0) }",
        "HloModule m\nENTRY e (p: f32[) -> f32[] { ROOT p = f32[] parameter(0) }",
        "HloModule m\nENTRY e (p p: f32[]) -> f32[] { ROOT p = f32[] parameter(0) }",
        "HloModule m\nENTRY e (%p: f32[]) -> f32[] { ROOT p = f32[] parameter(0) }",
        "HloModule m\nENTRY e (:f32[]) -> f32[] { ROOT p = f32[] parameter(0) }",
        "HloModule m\nENTRY e (p: f32[]) -> f32[2] { ROOT p = f32[] parameter(0) }",
        "HloModule m, entry_computation_layout={(true[1])->f32[]}\nENTRY e { ROOT p = f32[] parameter(0) }",
        "HloModule m\nENTRY e { ROOT p= f32[] parameter(0) }",
        MODULE.format("copy(%p:)"),
        MODULE.format("add(p p)"),
        MODULE.format("copy(p) \u00e9"),
        MODULE.format("copy(f32[4,9] p)"),
    ],
)
def test_what_xla_refuses_between_the_values(text: str) -> None:
    result = read_text(text, check=True)
    assert result.module is not None
    assert result.xla_would_reject
    assert all(one.line >= 1 and 0 <= one.offset <= len(text) for one in result.refusals())


@pytest.mark.parametrize(
    ("line", "left", "why"),
    [
        ("add(p, , p)", "add(%p, %p)", "an operand is missing"),
        ("copy(p, )", "copy(%p)", "an operand is missing"),
        ("add(p, f32[4,8] , p)", "add(%p, %p)", "a shape but no name"),
        ('custom-call(negate, p), custom_call_target="t"', "custom-call(%p)", "%negate is not defined"),
    ],
)
def test_an_operand_that_xla_leaves_out_is_left_out_with_a_warning(line: str, left: str, why: str) -> None:
    text = MODULE.format(line)
    module, found = parse_module(text)
    assert module is not None and left in print_module(module)
    assert [one.severity for one in found] == ["warning"] and why in found[0].message
    assert not refused(text)


def test_an_operand_that_nobody_defines_stays_in_the_print() -> None:
    module, found = parse_module(MODULE.format("add(p, %nobody)"))
    assert module is not None and [one.code for one in found] == ["undefined-name"]
    assert "add(%p, %nobody)" in print_module(module)


def test_a_fault_is_reported_once() -> None:
    text = MODULE.format("add(p, %nobody), dimensions={x}")
    _, found = parse_module(text, strict=True)
    assert [one.message for one in found if one.line == 4] == ["%nobody is not defined in computation %e"]


# ---------------------------------------------------------------- source tables
LOCATION = "{file_name_id=1 function_name_id=1 line=2 end_line=2 column=3 end_column=4}"
TABLES = (
    'HloModule m\n\nFileNames\n{}\nFunctionNames\n1 "f"\nFileLocations\n{}\nStackFrames\n{}\n\n'
    "ENTRY e {{ ROOT p = f32[] parameter(0) }}"
)
FRAME = "{file_location_id=1 parent_frame_id=1}"


@pytest.mark.parametrize(
    ("names", "locations", "frames", "taken"),
    [
        ('1 "a"', f"1 {LOCATION}", f"1 {FRAME}", True),
        ('-1 "a"', f"-5 {LOCATION}", f"-1 {FRAME}", True),
        ("1 'a' 2", f"1 {LOCATION}", "1 {file_location_id=-1, parent_frame_id=-5}", True),
        ("1 a", f"1 {LOCATION}", f"1 {FRAME}", False),
        ('1 "a"', "1 " + LOCATION.replace("line=2 ", "line=99999999999 ", 1), f"1 {FRAME}", False),
        ('1 "a"', "1 " + LOCATION.replace("line=2", "line=2 foo=2", 1), f"1 {FRAME}", False),
        ('1 "a"', "1 " + LOCATION.replace("line=2", "line=2 line=3", 1), f"1 {FRAME}", False),
        ('1 "a"', "1 " + LOCATION.replace("line=2", "line=2.5", 1), f"1 {FRAME}", False),
        ('1 "a"', "1 " + LOCATION.replace("line=2", "line =2", 1), f"1 {FRAME}", False),
        ('1 "a"', "1 {}", f"1 {FRAME}", False),
        ('1 "a"', f"1 {LOCATION},", f"1 {FRAME}", False),
        ('1 "a"', f"1 {LOCATION}", "1 {file_location_id=1 parent_frame_id=2147483648}", False),
    ],
)
def test_rows_of_the_source_tables(names: str, locations: str, frames: str, taken: bool) -> None:
    text = TABLES.format(names, locations, frames)
    result = read_text(text, check=True)
    assert result.module is not None
    assert result.xla_would_reject is not taken, result.refusals()


def test_frames_that_nobody_names_are_gone_in_what_xla_reads() -> None:
    text = """HloModule m

FileNames
1 "a.py"
2 "b.py"
3 "c.py"

FunctionNames
1 "f"
2 "g"

FileLocations
1 {file_name_id=1 function_name_id=1 line=1 end_line=1 column=1 end_column=1}
2 {file_name_id=3 function_name_id=2 line=2 end_line=2 column=2 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}
3 {file_location_id=2 parent_frame_id=3}


ENTRY e {
  p = f32[] parameter(0), metadata={stack_frame_id=9}
  ROOT c = f32[] copy(p), metadata={stack_frame_id=3}
}
"""
    module, found = parse_module(text)
    assert module is not None and not found
    exact = print_module(as_xla_reads(module), PrintOptions.xla())
    assert (
        exact
        == """HloModule m, entry_computation_layout={(f32[])->f32[]}

FileNames
1 "c.py"

FunctionNames
1 "g"

FileLocations
1 {file_name_id=1 function_name_id=1 line=2 end_line=2 column=2 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=2}


ENTRY %e (p: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  ROOT %c = f32[] copy(%p), metadata={stack_frame_id=2}
}

"""
    )
    assert len(module.stack_frames.stack_frames) == 3


# ---------------------------------------------------------------- origins
RECOVERY = (
    "HloModule m, origin_recovery_table={\n%s\n}\nENTRY e {\n p = f32[] parameter(0)\n ROOT c = f32[] copy(p)\n}\n"
)


def test_modules_in_a_recovery_table_are_printed_as_xla_prints_them() -> None:
    inner = "ENTRY e { q = f32[] parameter(0)\\n ROOT n = f32[] negate(q) }"
    module, found = parse_module(RECOVERY % ('{"b"}:{"c" {1,2}}{"a"}:{"x"},"' + inner + '"'))
    assert module is not None and not found
    exact = print_module(as_xla_reads(module), PrintOptions.xla())
    assert exact.startswith(
        'HloModule m, entry_computation_layout={(f32[])->f32[]}, origin_recovery_table={\n  {"a"} : {"x"},\n  "\n'
        "    HloModule module_e, entry_computation_layout={(f32[])->f32[]}\n\n    ENTRY %e (q: f32[]) -> f32[] {\n"
        '      %q = f32[] parameter(0)\n      ROOT %n = f32[] negate(%q)\n    }\n\n\n  "\n'
        '  {"b"} : {"c" {1,2}}\n}\n'
    )


@pytest.mark.parametrize("table", ['{"a"}:{"b"},"x"', '{"a"}:{"b"},{"c"}:{"d"}', '{"a"} {"b"}', '{"a"}:{"b"}1e5'])
def test_recovery_tables_that_xla_refuses(table: str) -> None:
    assert refused(RECOVERY % table)


# ---------------------------------------------------------------- shardings: nobody counts devices
@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("{devices=[2,2]0,1,2,3,4,5,6,7,8,9}", "{devices=[2,2]0,1,2,3}"),
        ("{devices=[2,2]0,1,2}", "{devices=[2,2]0,1,2,0}"),
        ("{devices=[2,2]<=[8]}", "{devices=[2,2]<=[8]}"),
        (
            "{devices=[4,1,4]<=[2,2,4]T(2,1,0) last_tile_dim_replicate}",
            "{devices=[4,1,4]<=[4,4]T(1,0) last_tile_dim_replicate}",
        ),
        (
            "{devices=[1,3,2,2]<=[2,1,3,2]T(0,3,2,1) last_tile_dims={manual, replicated}}",
            "{devices=[1,3,2,2]0,2,1,4,3,5,6,8,7,10,9,11 last_tile_dims={manual, replicated}}",
        ),
        (
            "{devices=[3,1,1,4]<=[2,1,3,2]T(1,3,0,2) last_tile_dims={manual, manual}}",
            "{devices=[3,1,4]<=[6,2]T(1,0) last_tile_dims={manual}}",
        ),
        ("{devices=[2,2,2]<=[4] last_tile_dim_replicate}", "{devices=[2,2,2]<=[4] last_tile_dim_replicate}"),
    ],
)
def test_devices_as_xla_keeps_them(text: str, printed: str) -> None:
    source = MODULE.format(f"copy(p), sharding={text}")
    assert not refused(source)
    module, _ = parse_module(source)
    assert module is not None and f"sharding={printed}" in print_module(module)


# ---------------------------------------------------------------- depth
def _bodies(depth: int) -> str:
    body = "{ q = f32[] parameter(0)\n ROOT r = f32[] negate(q) }"
    for _ in range(depth):
        body = "{ q = f32[] parameter(0)\n ROOT r = f32[] call(q), to_apply=" + body + " }"
    return (
        "HloModule m\nENTRY e {\n p = f32[] parameter(0)\n c = f32[] call(p), to_apply="
        + body
        + "\n ROOT n = f32[] negate(p)\n}\n"
    )


def test_bodies_and_operands_in_one_another() -> None:
    module, found = parse_module(_bodies(400))
    assert module is not None and not found and len(module.computations) == 402
    nested = "HloModule m\nENTRY e {\n p = f32[] parameter(0)\n ROOT r = " + "negate(" * 400 + "p" + ")" * 400 + "\n}\n"
    module, found = parse_module(nested)
    assert module is not None and not found and len(module.entry) == 401


@pytest.mark.parametrize(
    "text",
    [
        _bodies(1500),
        "HloModule m\nENTRY e {\n p = f32[] parameter(0)\n r = " + "negate(" * 2000 + "p" + ")" * 2000
        + "\n ROOT n = f32[] negate(p)\n}\n",
        "HloModule m\nENTRY e {\n p = f32[] parameter(0)\n r = " + "(" * 5000 + "f32[]" + ")" * 5000
        + " parameter(1)\n ROOT n = f32[] negate(p)\n}\n",
    ],
    ids=["bodies", "operands", "tuples"],
)  # fmt: skip
def test_what_is_too_deep_is_one_error_with_its_place(text: str) -> None:
    module, found = parse_module(text)
    assert len(found) == 1 and found[0].line >= 4 and "deep" in found[0].message
    assert module is not None and [node.name for node in module.entry][-1] == "n"


# ---------------------------------------------------------------- constants
@pytest.mark.parametrize(
    ("constant", "printed", "read"),
    [
        ("c64[] constant((-nan, nan))", "((-nan, nan))", "((-nan, -nan))"),
        ("c128[] constant((1, -nan(0x5)))", "((1, -nan(0x5)))", "((1, -nan(0x5)))"),
        ("c64[2] constant({(nan(0x1), -nan(0x3fffff)), (-inf, inf)})", "({(nan(0x1), -nan(0x3fffff)), (-inf, inf)})",
         "({(nan(0x1), nan(0x1)), (-inf, inf)})"),
        ("f32[2] constant({-0, -0.0})", "({-0, -0.0})", "({0, -0})"),
        ("f8e8m0fnu[] constant(nan)", "(nan)", "(nan)"),
    ],
)  # fmt: skip
def test_constants_keep_what_the_text_says_and_show_what_xla_reads(constant: str, printed: str, read: str) -> None:
    module, found = parse_module(f"HloModule m\nENTRY e {{ ROOT c = {constant} }}")
    assert module is not None and not found
    assert f"constant{printed}" in print_module(module)
    assert f"constant{read}" in print_module(as_xla_reads(module), PrintOptions.xla())


@pytest.mark.parametrize(
    "constant", ["token[] constant(1)", "c64[2] constant((1,2))", "c64[] constant((1, 2, 3))", "s8[] constant(300)"]
)
def test_constants_that_xla_refuses(constant: str) -> None:
    assert refused(f"HloModule m\nENTRY e {{ ROOT c = {constant} }}")


# ---------------------------------------------------------------- bytes
def test_stray_bytes_are_kept_with_a_warning() -> None:
    inside = MODULE.format('copy(p), metadata={op_name="a\udcffb"}')
    module, found = parse_module(inside)
    assert module is not None and [(one.severity, one.code, one.line) for one in found] == [
        ("warning", "stray-byte", 4)
    ]
    assert not refused(inside)
    outside = MODULE.format("copy(p)\0")
    module, found = parse_module(outside)
    assert module is not None and len(module.entry) == 2 and [one.severity for one in found] == ["warning"]
    assert refused(outside)


def test_raw_values_may_hold_brackets_that_do_not_match() -> None:
    module, found = parse_module(
        MODULE.format('custom-call(p), custom_call_target="t", backend_config={"a":[1}}'.replace("}}", "}"))
    )
    assert module is not None and not found and module.entry.root.raw_attrs["backend_config"] == '{"a":[1}'
