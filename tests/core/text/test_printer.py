"""Printing: every attribute in XLA's one form and order, the styles, asynchronous sugar, orders of instructions."""

from __future__ import annotations

import pytest

from hloscope.core.errors import UsageError
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.text import PrintOptions, load_module, print_instruction, print_module
from hloscope.core.text.names import as_xla_reads
from hloscope.core.text.print_settings import STYLES, with_settings
from hloscope.core.text.value_forms import canonical_value

# What jaxlib 0.10.2 prints for a value.
FORMS = [
    ("dimensions", "{ 1 , 0 }", "{1,0}"),
    ("window", "{pad=0_0x1_1 size=3x3 stride=1x1}", "{size=3x3 pad=0_0x1_1}"),
    ("window", "{size=1x1 rhs_reversal=1}", "{size=1x1 rhs_reversal=1x0}"),
    ("padding", "0_1_0x2_3", "0_1x2_3"),
    ("padding", "0_1_2x2_3", "0_1_2x2_3_0"),
    ("slice", "{[0:4:1],[1:3]}", "{[0:4], [1:3]}"),
    ("slice", "{[0:4:2],[1:3]}", "{[0:4:2], [1:3:1]}"),
    ("metadata", '{stack_frame_id=3, op_name="a"op_type="b"}', '{op_type="b" op_name="a" stack_frame_id=3}'),
    ("metadata", "{}", ""),
    ("metadata", '{op_name="gr\u00f6\u00dfe"}', r'{op_name="gr\303\266\303\237e"}'),
    ("frontend_attributes", '{z="1", a={"k": [1]}, m=""}', '{a={"k": [1]},m="",z="1"}'),
    ("backend_config", r'"{\"k\":1}"', '{"k":1}'),
    ("backend_config", "'raw {not json'", '"raw {not json"'),
    ("replica_groups", "{ {0,1}, {2,3} }", "{{0,1},{2,3}}"),
    ("replica_groups", "[2,4]<=[2,2,2]T(0,1,2)", "[2,4]<=[8]"),
    ("replica_groups", "mesh['x'=2,'y'=2] {'1'}", "mesh['x'=2,'y'=2] {'y'}"),
    ("sharding", "{devices=[1,2,2]<=[4] last_tile_dims={replicated, replicated}}", "{replicated}"),
    ("sharding", "{devices=[2,1,2]1,0,3,2 last_tile_dim_replicate}",
     "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"),
    ("sharding", "{devices=[2,1,1,2]<=[4] last_tile_dims={manual, replicated}}",
     "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"),
    ("sharding", "{mesh['x'=2] [], metadata={op_name=\"a\"}}", "{mesh['x'=2], replicated, metadata={{op_name=\"a\"}}}"),
    ("sharding", "{mesh['x'=2,'y'=2] [], unreduced={'x','y'}}", "{mesh['x'=2,'y'=2], unreduced}"),
    ("sharding", "{mesh['x'=2,'y'=2] [], manual={'x'}}", "{mesh['x'=2,'y'=2], [], manual={'x'}}"),
    ("result_accuracy", "{mode=default}", ""),
    ("result_accuracy", "{tolerance={ulps=2,atol=1e-5}}", "{tolerance={atol=1e-05,rtol=0,ulps=2}}"),
    ("statistics", "{visualizing_index=1, a=33, b=44.50}", "{visualizing_index=1,a=33,b=44.5}"),
    ("operand_precision", "{HIGH, default}", "{high,default}"),
    ("epsilon", "1e-3", "0.001"),
    ("dim_labels", "b01f_01io->b01f", "b01f_01io->b01f"),
    ("output_to_operand_aliasing", "{ {0}: (1, {}), {1} : (0,{2}), }", "{{0}: (1, {}), {1}: (0, {2})}"),
    ("operand_layout_constraints", "{f32[2],(s32[],f32[2,3]{0,1})}", "{f32[2]{0}, (s32[], f32[2,3]{0,1})}"),
    ("origin", '{( {"p" {0}} ,{"q"})}', '{({"p" {0}}, {"q"})}'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "wanted"), FORMS)
def test_one_form_for_each_value(name: str, text: str, wanted: str) -> None:
    assert canonical_value(name, text) == wanted
    assert not wanted or canonical_value(name, wanted) == wanted


FRAME = """HloModule t

add {{
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}}

ENTRY e {{
  a = f32[4,8]{{1,0}} parameter(0)
  z = f32[] constant(0)
  {line}
}}
"""

# A line, and how the instruction prints.
LINES = [
    ("d = f32[4,4] dot(a, a), rhs_contracting_dims={1}, lhs_batch_dims={}, lhs_contracting_dims={1}",
     "dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={1}"),
    ("c = pred[4,8] compare(a, a), type=FLOAT, direction=LT", "compare(%a, %a), direction=LT"),
    ("c = pred[4,8] compare(a, a), type=TOTALORDER, direction=LT", "compare(%a, %a), direction=LT, type=TOTALORDER"),
    ("b = f32[3] broadcast(z)", "broadcast(%z), dimensions={}"),
    ("r = f32[4] reduce(a, z), to_apply=add, dimensions={1}", "reduce(%a, %z), dimensions={1}, to_apply=%add"),
    ("r = f32[4,8] all-reduce(a), to_apply=add, use_global_device_ids=false",
     "all-reduce(%a), replica_groups={}, to_apply=%add"),
    ("s = f32[4,8] sort(a), to_apply=add, is_stable=false, dimensions={1}", "sort(%a), dimensions={1}, to_apply=%add"),
    ('c = f32[] custom-call(), to_apply=add, custom_call_target="t", api_version=API_VERSION_ORIGINAL',
     'custom-call(), custom_call_target="t", called_computations={%add}'),
    ('n = f32[4,8] negate(a), backend_config={"k":1}, metadata={op_name="m"}, sharding={replicated}, '
     'frontend_attributes={k="v"}',
     'negate(%a), sharding={replicated}, frontend_attributes={k="v"}, metadata={op_name="m"}, backend_config={"k":1}'),
    ("t = (f32[4,8], f32[]) tuple(a, z), sharding={replicated}",
     "tuple(%a, %z), sharding={{replicated}, {replicated}}"),
    ("c = f32[2,2] constant({{1, 2.0}, {3, 1e-3}})", "constant({ { 1, 2 }, { 3, 0.001 } })"),
    ("c = pred[] constant(1)", "constant(true)"),
    ("c = f32[1,1,1,2] constant({{{{1,2}}}})", "constant({ { /*i0=0*/ { /*i1=0*/ { 1, 2 } } } })"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_attributes_print_in_order_with_defaults_left_out(line: str, wanted: str) -> None:
    module = load_module(FRAME.format(line="ROOT " + line))
    assert print_instruction(module.entry.root).split(" = ", 1)[1].split(" ", 1)[1].endswith(wanted)


SUGAR = FRAME.format(
    line='s = ((f32[4,8]), f32[2,8], u32[]) reduce-scatter-start(a), replica_groups={{0,1}}, dimensions={0}, '
    'to_apply=add, metadata={op_name="m"}\n'
    "  u = ((f32[4,8]), f32[2,8], u32[]) reduce-scatter-update(s)\n"
    "  ROOT d = f32[2,8] reduce-scatter-done(u)"
)


def test_async_sugar_becomes_three_instructions_and_a_computation_and_prints_back() -> None:
    module = load_module(SUGAR)
    start, update, done = (module.find_instruction(name) for name in "sud")
    assert start is not None and update is not None and done is not None
    assert [one.opcode for one in (start, update, done)] == ["async-start", "async-update", "async-done"]
    wrapped = start.callee("calls")
    assert wrapped.root.opcode == "reduce-scatter" and wrapped.root.dimensions == (0,)
    assert wrapped.root.callee("to_apply").name == "add"
    printed = print_module(module)
    assert (
        "%s = ((f32[4,8]{1,0}), f32[2,8]{1,0}, u32[]) reduce-scatter-start(%a), replica_groups={{0,1}}, "
        'dimensions={0}, to_apply=%add, metadata={op_name="m"}'
    ) in printed
    assert "reduce-scatter-update(%s)" in printed and "reduce-scatter-done(%u)" in printed
    assert "async_wrapped" not in printed
    assert print_module(load_module(printed)) == printed
    assert print_module(module.clone()) == printed


def test_written_out_async_stays_written_out_unless_exact() -> None:
    text = """HloModule t

w {
  p = f32[4] parameter(0)
  ROOT n = f32[4] negate(p)
}

ENTRY e {
  a = f32[4] parameter(0)
  s = ((f32[4]), f32[4], u32[]) async-start(a), calls=w
  ROOT d = f32[4] async-done(s), calls=w
}
"""
    module = load_module(text)
    printed = print_module(module)
    assert "async-start(%a), calls=%w" in printed and "%w (p: f32[4])" in printed
    exact = print_module(module, PrintOptions.xla())
    assert "negate-start(%a)" in exact and "negate-done(%s)" in exact and "%w" not in exact


def test_a_text_as_read_keeps_its_order_and_a_changed_one_is_in_post_order() -> None:
    text = FRAME.format(line="c = f32[] constant(1)\n  ROOT n = f32[4,8] negate(a)")
    module = load_module(text)

    def names(options: PrintOptions) -> list[str]:
        body = print_module(module, options).split("ENTRY")[1]
        return [row.split(" = ")[0].split("%")[-1] for row in body.splitlines() if " = " in row]

    assert names(PrintOptions()) == ["a", "z", "c", "n"]
    module.entry.root.set_attr("metadata", '{op_name="m"}')
    changed = names(PrintOptions())
    assert changed == names(PrintOptions.xla()) == [node.name for node in module.entry.post_order()]


def test_styles_leave_out_what_their_name_says() -> None:
    line = 'ROOT n = f32[4,8] negate(a), control-predecessors={z}, metadata={op_name="m"}'
    module = load_module(FRAME.format(line=line))
    assert "%" in print_module(module)
    short = print_module(module, PrintOptions.short_parsable())
    assert not [word for word in ("%", "metadata", "control") if word in short]
    assert "->" not in short.split("\n", 1)[1]
    plain = print_module(module, PrintOptions(layouts=False))
    assert "f32[4,8] negate(%a), control-predecessors={%z}" in plain
    written = print_module(module, PrintOptions.canonical())
    assert "ROOT tmp_2 = f32[4,8]{1,0} negate(f32[4,8]{1,0} tmp_1)" in written


def test_called_bodies_are_written_out_in_canonical_style() -> None:
    module = load_module(FRAME.format(line="ROOT r = f32[4] reduce(a, z), dimensions={1}, to_apply=add"))
    text = print_module(module, PrintOptions.canonical())
    assert "to_apply=\n  {\n    tmp_0 = f32[] parameter(0)\n" in text
    assert "    ROOT tmp_2 = f32[] add(f32[] tmp_0, f32[] tmp_1)\n  }\n}" in text


def test_bodies_in_canonical_style_have_no_schedule_and_xla_names_for_them() -> None:
    text = """HloModule m, is_scheduled=true

c {
  p = s32[] parameter(0)
  l = s32[] constant(3)
  g = s32[] negate(p)
  ROOT r = pred[] compare(g, l), direction=LT
}

b {
  ROOT p = s32[] parameter(0)
}

ENTRY e {
  z = s32[] constant(7)
  a = f32[4] parameter(0)
  s = ((f32[4]), f32[4]) negate-start(a), frontend_attributes={k="v"}
  d = f32[4] negate-done(s)
  i = s32[] constant(0)
  ROOT w = s32[] while(i), condition=c, body=b
}
"""
    printed = print_module(load_module(text), PrintOptions.canonical())
    assert "tmp_1 = s32[] negate(s32[] tmp_0)\n    tmp_2 = s32[] constant(3)" in printed
    entry = printed.split("ENTRY")[1]
    assert entry.index("constant(7)") < entry.index("parameter(0)"), "the entry keeps its schedule"
    assert "negate-start(f32[4]{0} tmp_1), calls=\n  {\n" in entry and "  }, frontend_attributes" in entry


def test_attributes_of_what_a_start_runs_stand_before_its_body() -> None:
    text = """HloModule m

w {
  d = f32[] parameter(0)
  t = token[] parameter(1)
  ROOT s = (f32[], u32[], token[]) send(d, t), channel_id=1, frontend_attributes={k="v"}
}

ENTRY e {
  d = f32[] constant(5)
  t = token[] after-all()
  s = ((f32[], token[]), (f32[], u32[], token[]), s32[]) async-start(d, t), calls=w
  ROOT o = (f32[], u32[], token[]) async-done(s), calls=w
}
"""
    printed = print_module(load_module(text), PrintOptions.canonical())
    assert 'send-start(f32[] tmp_0, token[] tmp_1), channel_id=1, frontend_attributes={k="v"}, calls=\n  {\n' in printed


def test_without_metadata_shardings_have_none_either() -> None:
    line = 'ROOT t = (f32[4,8], f32[4,8]) tuple(a, a), sharding={{replicated metadata={op_name="}"}}, {replicated}}'
    module = load_module(FRAME.format(line=line))
    assert 'metadata={op_name="}"}' in print_module(module)
    assert "sharding={{replicated}, {replicated}}" in print_module(module, PrintOptions.short_parsable())


def test_a_constant_that_a_pass_made_of_a_value_is_printed() -> None:
    module = load_module(FRAME.format(line="c = f32[2] constant({1, 2})\n  ROOT n = f32[4,8] negate(a)"))
    constant = next(node for node in module.entry.instructions if node.name == "c")
    made = HloInstruction("constant", constant.shape, literal=constant.literal, name="made")
    module.entry.add(made)
    assert print_instruction(made) == "%made = f32[2]{0} constant({1, 2})"
    assert "%made = f32[2]{0} constant({1, 2})\n" in print_module(module)


def test_large_constants_are_left_out_above_ten_elements() -> None:
    values = ", ".join(str(i) for i in range(11))
    text = FRAME.format(line=f"c = s32[11] constant({{{values}}})\n  ROOT d = s32[10] constant({{{values[:-4]}}})")
    printed = print_module(load_module(text), PrintOptions(large_constants=False))
    assert "s32[11]{0} constant({...})" in printed and "s32[10]{0} constant({0, 1, 2" in printed


def test_the_header_prints_in_order_without_defaults() -> None:
    text = (
        "HloModule m, num_partitions=1, replica_count=2, input_output_alias={ {}: (0, {}) }, is_scheduled=true, "
        "mine=5\nENTRY e { ROOT a = f32[] parameter(0) }\n"
    )
    printed = print_module(load_module(text))
    head = "HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }, replica_count=2, mine=5\n"
    assert printed.startswith(head)
    exact = print_module(load_module(text), PrintOptions.xla())
    assert ", entry_computation_layout={(f32[])->f32[]}, replica_count=2" in exact


# What jaxlib 0.10.2 makes of a text beyond what stands there.
ORACLE = """HloModule t

c {
  a = s32[] parameter(0)
  b = s32[] negate(a)
  ROOT z = s32[] negate(b)
}, execution_thread="explicit"

ENTRY e {
  a = s32[] parameter(0), origin={{"v1"}}
  s = ((s32[]), s32[], s32[]) async-start(a), calls=c
  x = s32[] async-done(s)
  negate = s32[] negate(x)
  n = ((s32[]), s32[], s32[]) negate-start(negate), statistics={visualizing_index=1,m=3}, frontend_attributes={k="v"}
  d = s32[] negate-done(n)
  t = (s32[], s32[]) tuple(a, d)
  g = s32[] get-tuple-element(t), index=0
  ROOT r = s32[] add(g, d), backend_config={"wait_on_operation_queues":[],"q":"0"}
}
"""
PRINTED = """
%c (a: s32[]) -> s32[] {
  %a = s32[] parameter(0)
  %b = s32[] negate(%a)
  ROOT %z = s32[] negate(%b)
}

ENTRY %e (a.1: s32[]) -> s32[] {
  %a.1 = s32[] parameter(0), origin={{"v1"}}
  %s = ((s32[]), s32[], s32[]) async-start(%a.1), calls=%c
  %x = s32[] async-done(%s)
  %negate.1 = s32[] negate(%x)
  %n = ((s32[]), s32[], s32[]) negate-start(%negate.1), statistics={visualizing_index=1,m=3}, \
frontend_attributes={k="v"}, statistics={visualizing_index=1,m=3}
  %d = s32[] negate-done(%n)
  %t = (s32[], s32[]) tuple(%a.1, %d)
  %g = s32[] get-tuple-element(%t), index=0, origin={{"v1"}}
  ROOT %r = s32[] add(%g, %d), backend_config={"q":"0"}
}
"""


def test_exact_text_has_what_xla_adds_and_drops() -> None:
    text = print_module(as_xla_reads(load_module(ORACLE)), PrintOptions.xla())
    assert text.split("\n", 1)[1].rstrip() == PRINTED.rstrip()
    assert print_module(as_xla_reads(load_module(text)), PrintOptions.xla()) == text


SETTINGS_MODULE = """HloModule t

sum.2 {
  x.1 = f32[] parameter(0)
  y.1 = f32[] parameter(1)
  ROOT s = f32[] add(x.1, y.1)
}

ENTRY e.1 {
  a.1 = f32[2,2] parameter(0)
  b = pred[] constant(true)
  c = f32[2] constant({1, 2.5})
  z = f32[] constant(0)
  r.3 = f32[] all-reduce(z), replica_groups=[2,1]<=[2], to_apply=sum.2
  ROOT t = (f32[2,2], pred[], f32[2], f32[], f32[]) tuple(a.1, b, c, z, r.3), metadata={op_name="x"}
}
"""
# A style, settings by jaxlib's names, and lines of what jaxlib 0.10.2 prints for them.
SETTINGS_CASES = [
    ("xla", ["compact_operands=true", "print_ids=false"],
     ["ENTRY %(a: f32[2,2]) -> (f32[2,2], pred[], f32[2], f32[], f32[]) {",
      "  %r = f32[] all-reduce(%z), replica_groups=[2,1]<=[2], to_apply=%sum",
      "  %x = f32[] parameter(0)"]),
    ("short_parsable", ["print_result_shape=false", "print_operand_shape=true", "include_layout_in_shapes=false"],
     ["e.1 {", "  a.1 = parameter(0)", "  ROOT s = add(f32[] x.1, f32[] y.1)"]),
    ("xla", ["canonicalize_instruction_names=true", "indent_amount=1", "print_extra_attributes=false"],
     ["  %sum.2 (x.1: f32[], y.1: f32[]) -> f32[] {", "    ROOT tmp_2 = f32[] add(tmp_0, tmp_1)",
      "    tmp_4 = f32[] all-reduce(tmp_3), to_apply=%sum.2", "  }"]),
    ("fingerprint", [],
     ["ENTRY {", "  tmp_1 = pred[] constant(1)", "  tmp_2 = f32[2]{0} constant({...})", "  tmp_3 = f32[] constant(0)",
      "  tmp_4 = f32[] all-reduce(f32[] tmp_3), replica_groups={{0},{1}}, to_apply="]),
]  # fmt: skip


@pytest.mark.parametrize(("style", "settings", "wanted"), SETTINGS_CASES)
def test_options_by_the_names_that_jaxlib_has(style: str, settings: list[str], wanted: list[str]) -> None:
    module = as_xla_reads(load_module(SETTINGS_MODULE))
    lines = print_module(module, with_settings(STYLES[style](), settings)).splitlines()
    missing = [line for line in wanted if line not in lines and "ENTRY " + line not in lines]
    assert not missing


@pytest.mark.parametrize("text", ["print_percent", "print_percent=maybe", "percent=true", "indent_amount=-1", "=1"])
def test_a_setting_that_does_not_exist_is_the_users_fault(text: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        with_settings(PrintOptions(), [text])
