"""What XLA's own tests of layout assignment demand, each on a module of ours with other sizes.

Source: ``openxla/xla:xla/service/layout_assignment_test.cc``; the name of a case is that of the test there.
"""

from __future__ import annotations

import pytest

from hloscope.core.hlo.module import HloModule
from hloscope.core.hlo.shape import Shape
from hloscope.core.layout.assignment import assign_layouts, backend_of
from hloscope.core.layout.orders import show_shape
from hloscope.core.passes.context import PassContext
from hloscope.core.text import load_module, print_module

ADD = """add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

"""

CASES: dict[str, tuple[str, dict[str, str]]] = {
    "OverwriteDiamondShapedConstraintsX": (
        """HloModule m, entry_computation_layout={(f32[6,10]{1,0}, f32[10,6]{1,0})->(f32[10,6]{1,0}, f32[10,6]{0,1})}

ENTRY e {
  a = f32[6,10] parameter(0)
  b = f32[10,6] parameter(1)
  t = f32[10,6] transpose(a), dimensions={1,0}
  s = f32[10,6] add(t, b)
  ROOT r = (f32[10,6], f32[10,6]) tuple(s, t)
}
""",
        {"t": "{0,1}", "s.operands": "{0,1} {0,1}", "root": "({1,0}, {0,1})"},
    ),
    "LayoutConstrainedAllReduce": (
        ADD
        + """ENTRY e {
  p = (f32[6,4]{0,1}, f32[10,2]{0,1}) parameter(0)
  a = f32[6,4] get-tuple-element(p), index=0
  b = f32[10,2] get-tuple-element(p), index=1
  c = (f32[6,4]{0,1}, f32[10,2]{1,0}) all-reduce(a, b), replica_groups={}, constrain_layout=true, to_apply=add
  d = f32[6,4] get-tuple-element(c), index=0
  g = f32[10,2] get-tuple-element(c), index=1
  ROOT r = (f32[6,4]{1,0}, f32[10,2]{1,0}) tuple(d, g)
}
""",
        {"c": "({0,1}, {1,0})", "c.operands": "{0,1} {1,0}"},
    ),
    "BreakBufferAliasAcrossInstructions": (
        """HloModule m, entry_computation_layout={(f32[16,8]{0,1})->f32[16,8]{1,0}}

ENTRY e {
  a = f32[16,8] parameter(0)
  ROOT r = f32[16,8]{1,0} custom-call(a), custom_call_target="x", output_to_operand_aliasing={{}: (0, {})}
}
""",
        {"a": "{0,1}", "root": "{1,0}", "r.operands": "{1,0}", "r.operand_opcodes": "copy"},
    ),
    "PartialEntryParameterLayout": (
        """HloModule m, entry_computation_layout={(f32[6,50], s32[4,1,9]{0,1,2})->(f32[50,6]{1,0}, s32[9,4,1]{0,1,2})}

ENTRY e {
  a = f32[6,50] parameter(0)
  t = f32[50,6] transpose(a), dimensions={1,0}
  i = s32[4,1,9] parameter(1)
  u = s32[9,4,1] transpose(i), dimensions={2,0,1}
  ROOT r = (f32[50,6], s32[9,4,1]) tuple(t, u)
}
""",
        {"entry.0": "{0,1}", "entry.1": "{0,1,2}"},
    ),
    "TupleEntryParameterLayoutNoResultConstraint": (
        """HloModule m, entry_computation_layout={((f32[6,50]{0,1}, s32[4,1,9]{0,1,2}))->(f32[30,10], s32[2,18])}

ENTRY e {
  p = (f32[6,50], s32[4,1,9]) parameter(0)
  a = f32[6,50] get-tuple-element(p), index=0
  x = f32[30,10] reshape(a)
  i = s32[4,1,9] get-tuple-element(p), index=1
  y = s32[2,18] reshape(i)
  ROOT r = (f32[30,10], s32[2,18]) tuple(x, y)
}
""",
        {"entry.0": "({0,1}, {0,1,2})"},
    ),
    "PartialTupleEntryParameterLayoutNoResultConstraint": (
        """HloModule m, entry_computation_layout={((f32[6,50]{0,1}, s32[4,1,9]))->(f32[30,10], s32[2,18])}

ENTRY e {
  p = (f32[6,50], s32[4,1,9]) parameter(0)
  a = f32[6,50] get-tuple-element(p), index=0
  x = f32[30,10] reshape(a)
  i = s32[4,1,9] get-tuple-element(p), index=1
  y = s32[2,18] reshape(i)
  ROOT r = (f32[30,10], s32[2,18]) tuple(x, y)
}
""",
        {"entry.0": "({0,1}, {2,1,0})"},
    ),
    "ScanLayoutAssignment2D": (
        """HloModule m, entry_computation_layout={(f32[10,20])->(f32[10,20]{0,1}, f32[20]{0})}

step {
  x = f32[20] parameter(0)
  y = f32[20] parameter(1)
  s = f32[20] add(x, y)
  ROOT t = (f32[20], f32[20]) tuple(s, s)
}

ENTRY e {
  a = f32[10,20] parameter(0)
  z = f32[] constant(0)
  b = f32[20] broadcast(z), dimensions={}
  ROOT k = (f32[10,20], f32[20]) scan(a, b), dimensions={0}, num_carries=1, is_associative=true, to_apply=step
}
""",
        {"k": "({0,1}, {0})", "k.operands": "{0,1} {0}", "entry.0": "{0,1}"},
    ),
    "ScanLayoutAssignment3D": (
        """HloModule m, entry_computation_layout={(f32[3,4,5])->(f32[3,4,5]{0,2,1}, f32[3,5]{0,1})}

step {
  x = f32[3,5] parameter(0)
  y = f32[3,5] parameter(1)
  s = f32[3,5] add(x, y)
  ROOT t = (f32[3,5], f32[3,5]) tuple(s, s)
}

ENTRY e {
  a = f32[3,4,5] parameter(0)
  z = f32[] constant(0)
  b = f32[3,5] broadcast(z), dimensions={}
  ROOT k = (f32[3,4,5], f32[3,5]) scan(a, b), dimensions={1}, num_carries=1, is_associative=true, to_apply=step
}
""",
        {"k": "({0,2,1}, {0,1})", "entry.0": "{0,2,1}"},
    ),
    "TupleCopyOnLayoutMismatch": (
        """HloModule m, entry_computation_layout={()->f32[12,24]{0,1}}

more {
  p = (s32[], token[], f32[12,24]{0,1}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(5)
  ROOT l = pred[] compare(i, n), direction=LT
}

body {
  p = (s32[], token[], f32[12,24]{0,1}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  k = token[] get-tuple-element(p), index=1
  f = (f32[12,24]{1,0}, token[]) infeed(k)
  o = token[] get-tuple-element(f), index=1
  b = f32[12,24]{1,0} get-tuple-element(f), index=0
  w = s32[] constant(1)
  j = s32[] add(i, w)
  ROOT t = (s32[], token[], f32[12,24]{0,1}) tuple(j, o, b)
}

ENTRY e {
  k = token[] after-all()
  f = (f32[12,24]{0,1}, token[]) infeed(k)
  o = token[] get-tuple-element(f), index=1
  b = f32[12,24]{0,1} get-tuple-element(f), index=0
  z = s32[] constant(0)
  t = (s32[], token[], f32[12,24]{0,1}) tuple(z, o, b)
  q = (s32[], token[], f32[12,24]{0,1}) while(t), condition=more, body=body
  ROOT r = f32[12,24]{0,1} get-tuple-element(q), index=2
}
""",
        {"q": "({}, {}, {1,0})", "root": "{0,1}", "q.operand_opcodes": "tuple"},
    ),
    "AsyncStartDoneMandatoryConstraints": (
        """HloModule m, entry_computation_layout={(f32[4,6]{0,1})->f32[4,6]{0,1}}

inner {
  x = f32[4,6]{0,1} parameter(0)
  ROOT n = f32[4,6]{0,1} negate(x)
}

ENTRY e {
  a = f32[4,6]{0,1} parameter(0)
  s = ((f32[4,6]{0,1}), f32[4,6]{0,1}, s32[]) async-start(a), calls=inner
  ROOT d = f32[4,6]{0,1} async-done(s)
}
""",
        {"d": "{0,1}", "s.operands": "{0,1}"},
    ),
}
for _given, _case in {
    "{1,0}->{1,0}": "AliasParameterAndOutput given both",
    "->": "AliasParameterAndOutput",
    "->{1,0}": "AliasUnconstrainedParamterWithConstrainedOutput",
    "{1,0}->": "AliasConstrainedParamterWithUnconstrainedOutput",
}.items():
    _left, _right = _given.split("->")
    CASES[_case] = (
        f"""HloModule m, input_output_alias={{ {{}}: (0, {{}}, may-alias) }}, entry_computation_layout={{(f32[9,9]{_left}, f32[81]{{0}})->f32[9,9]{_right}}}

ENTRY e {{
  a = f32[9,9] parameter(0)
  b = f32[81] parameter(1)
  r = f32[9,9] reshape(b)
  s = f32[9,9] add(a, r)
  ROOT t = f32[9,9] transpose(s), dimensions={{1,0}}
}}
""",  # noqa: E501
        {"alias": "equal"},
    )


def told(module: HloModule, what: str) -> str:
    """One fact of a module: a layout by name, those of operands, or one of the entry's."""
    layout = module.entry_layout()
    assert layout is not None
    if what == "alias":
        return "equal" if show_shape(layout[0][0]) == show_shape(layout[1]) else "different"
    if what.startswith("entry."):
        return show_shape(layout[0][int(what[6:])])
    if what == "root":
        return show_shape(module.entry.root.shape)
    name, _, part = what.partition(".")
    one = next(one for one in module.entry.instructions if one.name == name)
    if part == "operands":
        return " ".join(show_shape(operand.shape) for operand in one.operands)
    if part == "operand_opcodes":
        return " ".join(operand.opcode for operand in one.operands)
    return show_shape(one.shape)


@pytest.mark.parametrize("case", CASES)
def test_a_demand_of_xlas_tests(case: str) -> None:
    text, facts = CASES[case]
    module = load_module(text)
    assign_layouts(module, backend_of("base"), PassContext(target="base"))
    assert {what: told(module, what) for what in facts} == facts
    again = load_module(print_module(module))
    assert all(_laid_out(one.shape) for one in again.entry.instructions)


def _laid_out(shape: Shape) -> bool:
    return all(leaf.layout is not None for _, leaf in shape.leaves() if leaf.is_array and leaf.dimensions)
