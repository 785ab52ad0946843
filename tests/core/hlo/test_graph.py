"""Editing a module: both ends of every edge stay right, whatever the order of edits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.core.errors import InternalError
from hloscope.core.hlo import HloComputation, HloInstruction, HloModule, Shape, structural_hash
from hloscope.core.text import load_module, print_module

TEXT = """HloModule m, entry_computation_layout={(f32[4]{0}, f32[4]{0})->f32[4]{0}}

FileNames
1 "step.py"
2 "lib.py"

FunctionNames
1 "<module>"
2 "inner"

FileLocations
1 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=0 end_column=7}
2 {file_name_id=2 function_name_id=2 line=3 end_line=4 column=2 end_column=20}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}


%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

ENTRY %main (a: f32[4], b: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %n = f32[4]{0} negate(%a), metadata={op_name="jit(f)/neg" stack_frame_id=2}
  %m = f32[4]{0} multiply(%n, %n)
  %z = f32[] constant(0)
  %r = f32[] reduce(%m, %z), dimensions={0}, to_apply=%sum
  %c = f32[4]{0} broadcast(%r), dimensions={}
  %b = f32[4]{0} parameter(1)
  ROOT %o = f32[4]{0} add(%c, %b)
}
"""


def check(module: HloModule) -> None:
    """Every operand knows its user and every user its operand, with the right counts."""
    for computation in module.computations:
        assert computation.root in computation
        assert [p.parameter_number for p in computation.parameters] == list(range(len(computation.parameters)))
        for node in computation:
            assert node.parent is computation
            for operand in node.operands:
                assert operand.parent is computation
                assert operand.use_count(node) == node.operands.count(operand)
            for user in node.users:
                assert user in computation
                assert node in user.operands
            for callee in node.called_computations:
                assert node in callee.callers


def test_text_round_trips_and_facts() -> None:
    module = load_module(TEXT)
    check(module)
    assert print_module(module).rstrip("\n") == TEXT.rstrip("\n")
    n = module.find_instruction("n")
    assert n is not None
    assert [(f.file, f.line, f.function) for f in n.source_frames] == [
        ("lib.py", 3, "inner"),
        ("step.py", 9, "<module>"),
    ]
    m = module.find_instruction("m")
    assert m is not None and n.users == (m,) and n.use_count(m) == 2
    assert module.entry_layout() is not None


def test_replace_takes_name_metadata_and_dead_operands() -> None:
    module = load_module(TEXT)
    entry = module.entry
    n, m = module.find_instruction("n"), module.find_instruction("m")
    assert n is not None and m is not None
    a = entry.parameters[0]
    new = entry.replace(m, HloInstruction("multiply", m.shape, (a, a)))
    check(module)
    assert new.name == "m"
    assert not n.in_computation
    fresh = entry.replace(new, HloInstruction("abs", m.shape, (a,)))
    assert fresh.name == "abs"
    with pytest.raises(InternalError, match="changes the shape"):
        entry.replace(fresh, HloInstruction("reshape", Shape.parse("f32[2,2]"), (a,)))


def test_removing_what_is_alive_is_refused() -> None:
    module = load_module(TEXT)
    a, root = module.entry.parameters[0], module.entry.root
    with pytest.raises(InternalError, match="still has users"):
        module.entry.remove(a)
    with pytest.raises(InternalError, match="is the root"):
        module.entry.remove(root)
    with pytest.raises(InternalError, match="still called"):
        module.remove_computation(module.computations[0])


def test_rename_reaches_the_lines_of_users_and_callers() -> None:
    module = load_module(TEXT)
    print_module(module)
    n = module.find_instruction("n")
    assert n is not None
    n.rename("renamed")
    module.computations[0].rename("plus")
    text = print_module(module)
    assert "multiply(%renamed, %renamed)" in text
    assert "to_apply=%plus" in text and "%plus (x: f32[]" in text
    n.rename("a")
    assert n.name == "a.1"


def test_control_edges_print_order_and_protect() -> None:
    module = load_module(TEXT)
    z, n = module.find_instruction("z"), module.find_instruction("n")
    assert z is not None and n is not None
    z.add_control_dependency(n)
    text = print_module(module)
    assert "control-predecessors={%z}" in text
    order = [i.name for i in module.entry.post_order()]
    assert order.index("z") < order.index("n")
    again = load_module(text)
    assert print_module(again) == text
    with pytest.raises(InternalError, match="control edges"):
        module.entry.replace(n, HloInstruction("abs", n.shape, n.operands))
    z.drop_control_dependency(n)
    assert "control-predecessors" not in print_module(module)


def test_clone_is_equal_and_apart() -> None:
    module = load_module(TEXT)
    twin = module.clone()
    check(twin)
    assert print_module(twin) == print_module(module)
    assert structural_hash(twin) == structural_hash(module)
    node = twin.find_instruction("n")
    assert node is not None
    node.set_attr("metadata", None)
    assert "stack_frame_id=2}" in print_module(module)
    assert structural_hash(twin) == structural_hash(module)


def test_structural_hash_sees_what_is_computed_and_not_names() -> None:
    base = structural_hash(load_module(TEXT))
    assert structural_hash(load_module(TEXT.replace("%n", "%other"))) == base
    assert structural_hash(load_module(TEXT.replace("negate", "abs"))) != base
    assert structural_hash(load_module(TEXT.replace("constant(0)", "constant(1)"))) != base
    assert structural_hash(load_module(TEXT.replace("add(%x, %y)", "maximum(%x, %y)"))) != base
    assert structural_hash(load_module(TEXT.replace("add(%c, %b)", "add(%b, %c)"))) != base
    unordered = TEXT.replace("f32[4]{0} negate", "f32[4]{0:S(1)} negate")
    assert structural_hash(load_module(unordered)) != base
    unordered = unordered.replace("->f32[4]{0}", "->f32[4]{0:S(1)}", 1)
    assert structural_hash(load_module(unordered), layouts=False) == structural_hash(load_module(TEXT), layouts=False)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(0, 30)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_random_edits_keep_the_graph_right(edits: list[tuple[int, int, int]]) -> None:
    module = HloModule("random")
    shape = Shape.parse("f32[4]{0}")
    computation = HloComputation("main")
    module.add_computation(computation, entry=True)
    for i in range(3):
        computation.add(HloInstruction("parameter", shape, name=f"p{i}", payload=str(i)))
    computation.set_root(computation.parameters[0])
    for kind, x, y in edits:
        nodes = computation.instructions
        a, b = nodes[x % len(nodes)], nodes[y % len(nodes)]
        if kind <= 1:
            computation.add(HloInstruction("add", shape, (a, b)))
        elif kind == 2 and a.operands:
            # Only earlier nodes, so that no cycle appears.
            earlier = nodes[: nodes.index(a)]
            a.replace_operand(0, earlier[y % len(earlier)])
        elif kind == 3 and a is not b and nodes.index(b) < nodes.index(a):
            a.replace_all_uses_with(b)
        elif kind == 4:
            computation.set_root(a)
        elif kind == 5 and not a.user_count and not a.is_root and computation.is_removable(a):
            computation.remove_with_dead_operands(a)
        check(module)
    names = [i.name for i in computation]
    assert len(set(names)) == len(names)
    text = print_module(module)
    assert print_module(load_module(text)) == text
    assert structural_hash(load_module(text)) == structural_hash(module)
