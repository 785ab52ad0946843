"""What a compile records of its stages, against the module printed afresh."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.core.recorded import Recorded

from hloscope.core.hlo import HloInstruction, HloModule, Shape
from hloscope.core.ledger.snapshots import TextParts
from hloscope.core.passes.context import PassContext
from hloscope.core.text import load_module, print_module
from hloscope.core.text.printer import PrintOptions

TEXT = """HloModule m, entry_computation_layout={(f32[4]{0}, f32[4]{0})->f32[4]{0}}

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

%largest (x.1: f32[], y.1: f32[]) -> f32[] {
  %x.1 = f32[] parameter(0)
  %y.1 = f32[] parameter(1)
  ROOT %s.1 = f32[] maximum(%x.1, %y.1)
}

ENTRY %main (a: f32[4], b: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0), sharding={replicated}
  %n = f32[4]{0} negate(%a), metadata={op_name="jit(f)/neg"}
  %m = f32[4]{0} multiply(%n, %n), control-predecessors={%a}
  %z = f32[] constant(0)
  %r = f32[] reduce(%m, %z), dimensions={0}, to_apply=%sum, metadata={op_name="jit(f)/sum"}
  %c = f32[4]{0} broadcast(%r), dimensions={}
  %b = f32[4]{0} parameter(1)
  %w = pred[4]{0} compare(%b, %c), direction=LT, type=TOTALORDER
  %w.1 = pred[4]{0} compare(%b, %c), direction=GT
  %w.2 = pred[4]{0} and(%w, %w.1)
  %v = f32[4]{0} custom-call(%b, %c), custom_call_target="f", to_apply=%sum, backend_config="x"
  %q = f32[4]{0} map(%b, %v), dimensions={0}, to_apply=%largest
  %u = f32[4]{0} select(%w.2, %q, %c)
  ROOT %o = f32[4]{0} add(%u, %m)
}
"""

ATTRIBUTES = (
    ("metadata", '{op_name="jit(g)/x" source_file="a.py" source_line=3}'),
    ("metadata", None),
    ("frontend_attributes", '{k="v"}'),
    ("sharding", "{devices=[4]0,1,2,3}"),
    ("sharding", None),
    ("backend_config", '{"a":1}'),
    ("type", "FLOAT"),
)


class Kept(Recorded):
    """Keeps the last stage's text."""

    text = ""

    def add_snapshot_lines(self, lines: Iterable[str]) -> int:
        assert isinstance(lines, TextParts)
        self.text = "\n".join(chain.from_iterable(lines.parts))
        return 1


def edit(module: HloModule, kind: int, x: int, y: int) -> None:
    """One of the edits that the graph has."""
    computation = module.computations[(x + y) % 3]
    nodes = computation.instructions
    a, b = nodes[x % len(nodes)], nodes[y % len(nodes)]
    earlier = nodes[: nodes.index(a)]
    if kind == 0:
        a.rename(b.name)
    elif kind == 1:
        computation.rename(f"c{y}")
    elif kind == 2 and (ATTRIBUTES[y % len(ATTRIBUTES)][0] != "type" or a.opcode == "compare"):
        a.set_attr(*ATTRIBUTES[y % len(ATTRIBUTES)])
    elif kind == 3 and b in earlier and a.operand_count and b.shape == a.operand(0).shape:
        a.replace_operand(0, b)
    elif kind == 4 and b in earlier and a.shape == b.shape:
        a.replace_all_uses_with(b)
    elif kind == 5 and b in earlier:
        b.add_control_dependency(a)
    elif kind == 6:
        a.drop_all_control_dependencies()
    elif kind == 7 and a.shape == computation.root.shape:
        computation.set_root(a)
    elif kind == 8 and not a.user_count and not a.is_root and computation.is_removable(a):
        computation.remove_with_dead_operands(a)
    elif kind == 9 and a.shape == b.shape and b in earlier:
        computation.add(HloInstruction("add", a.shape, (a, b), name="o"))
    elif kind == 10 and a.shape.rank:
        a.shape = a.shape.with_element_type("s32" if a.shape.element_type == "f32" else "f32")
    elif kind == 11 and a.called:
        a.set_called("to_apply", module.computations[y % 2])
    elif kind == 12 and a.opcode in ("negate", "broadcast", "custom-call"):
        fresh = a.clone_with()
        if not (a.control_predecessors or a.control_successors):
            computation.replace(a, fresh)
    elif kind == 13:
        module.attrs["num_partitions"] = str(y + 2)
    elif kind == 14 and a.opcode == "parameter" and not computation.is_entry:
        a.shape = Shape.parse("f32[]")


@given(st.lists(st.tuples(st.integers(0, 14), st.integers(0, 30), st.integers(0, 30)), max_size=25))
@example([(2, 8, 6), (10, 6, 2)])  # a compare's type is left out or not by what its operand is
@settings(max_examples=30, deadline=None)
def test_what_is_kept_of_a_stage_is_what_printing_it_afresh_gives(edits: list[tuple[int, int, int]]) -> None:
    module, kept = load_module(TEXT), Kept()
    ctx = PassContext(kept)
    for kind, x, y in [(13, 0, 0), *edits]:
        edit(module, kind, x, y)
        ctx.snapshot(module)
        # Options that are not the default object keep nothing.
        assert kept.text == print_module(module, PrintOptions())
