"""Layout assignment: against real stages, on small modules that show one rule each, and that it keeps the values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.core.recorded import Recorded

from hloscope.core.errors import HloscopeError, UnsupportedError, UsageError, VerifyError
from hloscope.core.hlo.module import HloModule
from hloscope.core.layout.assignment import Assignment, LayoutAssignment, assign_layouts, backend_of
from hloscope.core.layout.gpu_dots import forms_matrix
from hloscope.core.layout.list_order import ListOrder
from hloscope.core.layout.match import added, pairs
from hloscope.core.layout.opcode_table import may_change_layout
from hloscope.core.layout.orders import show_shape
from hloscope.core.layout.replay import backend_of_target
from hloscope.core.ledger.events import LayoutConstraint, LayoutCopy
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.fuel import Fuel
from hloscope.core.runtime.compare import compare_all, rules_for
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module, print_module

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "layout"
PAIRS = sorted(one.name.removesuffix(".before.txt") for one in FIXTURES.glob("*.before.txt"))


def assigned(text: str, backend: str = "base", **context: object) -> tuple[HloModule, Assignment]:
    module = load_module(text)
    ctx = PassContext(target=backend, **context)  # pyright: ignore[reportArgumentType]
    return module, assign_layouts(module, backend_of(backend), ctx, remember=True)


def layouts(module: HloModule) -> dict[str, str]:
    return {one.name: show_shape(one.shape) for one in module.entry.instructions}


# ---------------------------------------------------------------- real stages
@pytest.mark.parametrize("name", PAIRS)
def test_a_real_stage_gets_the_layouts_that_xla_gave_it(name: str) -> None:
    module = load_module((FIXTURES / f"{name}.before.txt").read_text())
    real = load_module((FIXTURES / f"{name}.after.txt").read_text())
    before = {one.name: one.shape for one in module.instructions()}
    backend = name.partition("_")[0]
    assign_layouts(module, backend_of(backend), PassContext(target=backend))
    wanted = {one.name: show_shape(one.shape) for one in real.instructions() if one.name in before}
    found = {one.name: show_shape(one.shape) for one in module.instructions() if one.name in before}
    assert found == wanted
    made = sorted(key for _, key in added(module, before))
    assert made == sorted(key for _, key in added(real, before))
    assert len(pairs(real, module, before)) == len(made)
    assert module.entry_layout() == real.entry_layout()


@pytest.mark.parametrize("name", PAIRS)
def test_the_values_stay(name: str) -> None:
    text = (FIXTURES / f"{name}.before.txt").read_text()
    if "custom-call" in text or "partition-id" in text or "num_partitions" in text:
        pytest.skip("not evaluated on one device")
    module = load_module(text)
    args = inputs_for(module.entry)
    expected = [np.asarray(one) for one in evaluate(module, args)]
    rules = rules_for(module)
    LayoutAssignment(name.partition("_")[0]).run(module, PassContext())
    again = load_module(print_module(module))
    got = [np.asarray(one) for one in evaluate(again, args)]
    assert all(one.within for one in compare_all(expected, got, rules))


def test_a_second_run_changes_nothing() -> None:
    text = (FIXTURES / "gpu_conv_nchw_grad.before.txt").read_text()
    module, first = assigned(text, "gpu")
    assert first.changed
    once = print_module(module)
    assert not LayoutAssignment("gpu").run(module, PassContext()) and print_module(module) == once


# ---------------------------------------------------------------- one rule each
HEAD = "HloModule m, entry_computation_layout={%s}\n\nENTRY e {\n"


def entry(header: str, *lines: str) -> str:
    return HEAD % header + "".join(f"  {line}\n" for line in lines) + "}\n"


# text, backend, {instruction: layout}, copies as (value, to, user)
CASES: dict[str, tuple[str, str, dict[str, str], list[tuple[str, str, str | None]]]] = {
    "a slice takes its operand's layout, and the parameter is copied": (
        entry("(f32[3,4]{1,0}, f32[4,5]{0,1})->f32[3,4]{1,0}", "a = f32[3,4]{1,0} parameter(0)",
              "b = f32[4,5]{0,1} parameter(1)", "s = f32[3,4]{1,0} slice(b), slice={[1:4],[1:5]}",
              "ROOT r = f32[3,4]{1,0} add(a, s)"),
        "base", {"s": "{1,0}", "b": "{0,1}"}, [("b", "{1,0}", "s")],
    ),
    "so does a dynamic slice": (
        entry("(f32[3,4]{1,0}, f32[4,5]{0,1}, s32[])->f32[3,4]{1,0}", "a = f32[3,4]{1,0} parameter(0)",
              "b = f32[4,5]{0,1} parameter(1)", "i = s32[] parameter(2)",
              "s = f32[3,4]{1,0} dynamic-slice(b, i, i), dynamic_slice_sizes={3,4}",
              "ROOT r = f32[3,4]{1,0} add(a, s)"),
        "base", {"s": "{1,0}"}, [("b", "{1,0}", "s")],
    ),
    "the smaller operand of a concatenation is copied": (
        entry("(f32[3,8]{1,0}, f32[3,5]{0,1}, f32[3,3]{1,0})->f32[3,8]{1,0}", "a = f32[3,8]{1,0} parameter(0)",
              "b = f32[3,5]{0,1} parameter(1)", "c = f32[3,3]{1,0} parameter(2)",
              "k = f32[3,8]{1,0} concatenate(b, c), dimensions={1}", "ROOT r = f32[3,8]{1,0} add(a, k)"),
        "base", {"k": "{1,0}"}, [("b", "{1,0}", "k")],
    ),
    "a given result reaches the operand of a slice": (
        entry("(f32[4,5]{1,0})->f32[3,4]{0,1}", "a = f32[4,5]{1,0} parameter(0)",
              "ROOT s = f32[3,4]{0,1} slice(a), slice={[1:4],[1:5]}"),
        "base", {"s": "{0,1}"}, [("a", "{0,1}", "s")],
    ),
    "a transpose moves nothing where its layout is free": (
        entry("(f32[2,3,4]{2,1,0})->f32[4,2,3]", "a = f32[2,3,4]{2,1,0} parameter(0)",
              "ROOT t = f32[4,2,3]{2,1,0} transpose(a), dimensions={2,0,1}"),
        "base", {"t": "{0,2,1}"}, [],
    ),
    "a result that is given where a transpose would be free costs a copy of the parameter": (
        entry("(f32[2,3]{1,0})->f32[3,2]{1,0}", "a = f32[2,3]{1,0} parameter(0)",
              "ROOT t = f32[3,2]{1,0} transpose(a), dimensions={1,0}"),
        "base", {"t": "{1,0}"}, [("a", "{0,1}", "t")],
    ),
    "a broadcast passes the order of its dimensions up": (
        entry("(f32[3,4]{1,0})->f32[2,3,4]{1,2,0}", "a = f32[3,4]{1,0} parameter(0)",
              "ROOT b = f32[2,3,4]{1,2,0} broadcast(a), dimensions={1,2}"),
        "base", {"b": "{1,2,0}"}, [("a", "{0,1}", "b")],
    ),
    "a custom call gets what it demands": (
        entry("(f32[4,4]{1,0}, f32[2,3]{1,0})->f32[1,2,3,4]{3,2,1,0}", "a = f32[4,4]{1,0} parameter(0)",
              "b = f32[2,3]{1,0} parameter(1)",
              'c = f32[1,2,3,4]{3,2,0,1} custom-call(a, b), custom_call_target="baz", '
              "operand_layout_constraints={f32[4,4]{0,1}, f32[2,3]{1,0}}",
              "ROOT e1 = f32[1,2,3,4]{3,2,1,0} exponential(c)"),
        "base", {"c": "{3,2,0,1}", "e1": "{3,2,0,1}"}, [("a", "{0,1}", "c"), ("e1", "{3,2,1,0}", None)],
    ),
    "a tuple demanded by a custom call is taken apart": (
        entry("(f32[4,4]{1,0}, f32[2,3]{1,0})->f32[4]{0}", "a = f32[4,4]{1,0} parameter(0)",
              "b = f32[2,3]{1,0} parameter(1)", "t = (f32[4,4]{1,0}, f32[2,3]{1,0}) tuple(a, b)",
              'ROOT c = f32[4]{0} custom-call(t), custom_call_target="baz", '
              "operand_layout_constraints={(f32[4,4]{1,0}, f32[2,3]{0,1})}"),
        "base", {"t": "({1,0}, {1,0})", "tuple": "({1,0}, {0,1})"}, [("t", "{0,1}", "c")],
    ),
    "bits that split keep the order of the dimensions": (
        entry("(s8[16,3,2]{2,1,0})->u16[16,3]{0,1}", "a = s8[16,3,2]{2,1,0} parameter(0)",
              "ROOT b = u16[16,3]{0,1} bitcast-convert(a)"),
        "base", {"b": "{0,1}"}, [("a", "{2,0,1}", "b")],
    ),
    "XLA:CPU puts a copy after a reshape that adds a dimension of one": (
        entry("(f32[2,32]{1,0}, f32[2,32,1]{2,1,0})->f32[2,32,1]{2,1,0}", "a = f32[2,32]{1,0} parameter(0)",
              "b = f32[2,32,1]{2,1,0} parameter(1)", "s = f32[2,32,1]{2,1,0} add(b, b)",
              "r = f32[2,32,1]{2,1,0} reshape(a)", "ROOT p = f32[2,32,1]{2,1,0} dynamic-update-slice(s, r, z, z, z)",
              ).replace("  r = ", "  z = s32[] constant(0)\n  r = "),
        "cpu", {"r": "{2,1,0}"}, [],
    ),
    "XLA:CPU multiplies row-major": (
        entry("(f32[8,16]{0,1}, f32[16,8]{1,0})->f32[8,8]{1,0}", "a = f32[8,16]{0,1} parameter(0)",
              "b = f32[16,8]{1,0} parameter(1)",
              "ROOT d = f32[8,8]{1,0} dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
        "cpu", {"d": "{1,0}"}, [("a", "{1,0}", "d")],
    ),
    "XLA:CPU gathers along the slowest dimension": (
        entry("(f32[4,8]{1,0})->f32[4,16]{1,0}", "a = f32[4,8]{1,0} parameter(0)",
              "ROOT g = f32[4,16]{1,0} all-gather(a), dimensions={1}, replica_groups={{0,1}}"),
        "cpu", {"g": "{0,1}"}, [("a", "{0,1}", "g"), ("g", "{1,0}", None)],
    ),
    "a product that is only transposed is written so that the transpose is free": (
        entry("(bf16[3,12,64]{2,1,0}, bf16[3,64,8]{2,1,0})->bf16[12,3,8]{2,1,0}",
              "a = bf16[3,12,64]{2,1,0} parameter(0)",
              "b = bf16[3,64,8]{2,1,0} parameter(1)",
              "d = bf16[3,12,8]{2,1,0} dot(a, b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
              "rhs_contracting_dims={1}", "ROOT t = bf16[12,3,8]{2,1,0} transpose(d), dimensions={1,0,2}"),
        "gpu", {"d": "{2,0,1}", "t": "{2,1,0}"}, [],
    ),
    "XLA:GPU sorts row-major": (
        entry("(f32[6,4]{0,1})->f32[6,4]{0,1}", "a = f32[6,4]{0,1} parameter(0)",
              "ROOT s = f32[6,4]{0,1} sort(a), dimensions={0}, to_apply=less").replace(
              "ENTRY", "less {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n"
              "  ROOT l = pred[] compare(x, y), direction=LT\n}\n\nENTRY"),
        "gpu", {"s": "{1,0}"}, [("a", "{1,0}", "s"), ("s", "{0,1}", None)],
    ),
    "XLA:GPU solves column-major": (
        entry("(f32[4,4]{1,0}, f32[4,2]{1,0})->f32[4,2]{1,0}", "a = f32[4,4]{1,0} parameter(0)",
              "b = f32[4,2]{1,0} parameter(1)",
              "ROOT t = f32[4,2]{1,0} triangular-solve(a, b), left_side=true, lower=true, unit_diagonal=false, "
              "transpose_a=NO_TRANSPOSE"),
        "gpu", {"t": "{0,1}"}, [("a", "{0,1}", "t"), ("b", "{0,1}", "t"), ("t", "{1,0}", None)],
    ),
    "a large reduction asks XLA:GPU for its dimensions as the fastest": (
        entry("(f32[64,8])->f32[8]{0}", "a = f32[64,8]{1,0} parameter(0)", "z = f32[] constant(0)",
              "ROOT r = f32[8]{0} reduce(a, z), dimensions={0}, to_apply=sum").replace(
              "ENTRY", "sum {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n"
              "  ROOT s = f32[] add(x, y)\n}\n\nENTRY"),
        "gpu", {"a": "{1,0}"}, [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rules(case: str) -> None:
    text, backend, expected, copies = CASES[case]
    module, assignment = assigned(text, backend)
    found = layouts(module)
    assert {name: found.get(name) for name in expected} == expected
    made = [
        (one.operand.name, show_shape(one.copy.shape), None if one.user is None else one.user.name)
        for one in assignment.copies
    ]
    assert made == copies


def test_the_last_constraint_that_is_set_is_followed_first() -> None:
    """On the CPU a reshape that is younger than its user settles itself; an older one is settled by its user."""
    lines = [
        "a = f32[2,32]{1,0} parameter(0)", "b = f32[2,32,1]{2,1,0} parameter(1)", "r = f32[2,32,1]{2,1,0} reshape(a)",
        "ROOT s = f32[2,32,1]{2,1,0} add(r, b)",
    ]  # fmt: skip
    text = entry("(f32[2,32]{1,0}, f32[2,32,1]{2,1,0})->f32[2,32,1]{2,1,0}", *lines)
    module, assignment = assigned(text, "cpu")
    assert layouts(module)["r"] == "{2,1,0}" and not assignment.copies
    young = load_module(text)
    by_name = {one.name: one for one in young.entry.instructions}
    young.entry.reorder([by_name["a"], by_name["b"], by_name["s"], by_name["r"]])
    found = assign_layouts(young, backend_of("cpu"), PassContext())
    assert layouts(young)["r"] == "{1,0,2}" and [one.operand.name for one in found.copies] == ["r"]


def test_the_order_of_making_is_read_from_earlier_stages() -> None:
    old = entry("(f32[2]{0})->f32[2]{0}", "a = f32[2]{0} parameter(0)", "ROOT s = f32[2]{0} negate(a)")
    new = entry("(f32[2]{0})->f32[2]{0}", "a = f32[2]{0} parameter(0)", "r = f32[2]{0} abs(a)",
                "ROOT s = f32[2]{0} negate(r)")  # fmt: skip
    module = load_module(new)
    ListOrder([old, new]).restore(module)
    assert [one.name for one in module.entry.instructions] == ["a", "s", "r"]


def test_open_layouts_of_the_entry_are_chosen_and_written_down() -> None:
    text = entry("(f32[2,3], f32[3,2]{1,0})->f32[3,2]", "a = f32[2,3]{1,0} parameter(0)",
                 "b = f32[3,2]{1,0} parameter(1)", "t = f32[3,2]{1,0} transpose(a), dimensions={1,0}",
                 "ROOT s = f32[3,2]{1,0} add(t, b)")  # fmt: skip
    module, assignment = assigned(text)
    found = module.entry_layout()
    assert found is not None and not assignment.copies
    assert [show_shape(one) for one in (*found[0], found[1])] == ["{0,1}", "{1,0}", "{1,0}"]


def test_values_that_share_a_buffer_get_one_layout() -> None:
    text = entry("(f32[2,3])->f32[2,3]", "a = f32[2,3]{1,0} parameter(0)",
                 'ROOT c = f32[2,3]{0,1} custom-call(a), custom_call_target="x", '
                 "operand_layout_constraints={f32[2,3]{1,0}}")  # fmt: skip
    text = text.replace("HloModule m,", "HloModule m, input_output_alias={ {}: (0, {}, may-alias) },")
    module, _ = assigned(text)
    found = module.entry_layout()
    assert found is not None and show_shape(found[0][0]) == show_shape(found[1])


def test_a_copy_for_one_branch_is_made_inside_it() -> None:
    text = """HloModule m, entry_computation_layout={(pred[], f32[2,3]{1,0}, f32[3,2]{1,0})->f32[3,2]{1,0}}

yes {
  p = f32[2,3]{1,0} parameter(0)
  ROOT t = f32[3,2]{1,0} transpose(p), dimensions={1,0}
}

no {
  q = f32[3,2]{1,0} parameter(0)
  w = f32[3,2]{1,0} negate(q)
  ROOT v = f32[3,2]{1,0} add(w, w)
}

ENTRY e {
  c = pred[] parameter(0)
  a = f32[2,3]{1,0} parameter(1)
  b = f32[3,2]{1,0} parameter(2)
  ROOT r = f32[3,2]{1,0} conditional(c, a, b), true_computation=yes, false_computation=no
}
"""
    module, assignment = assigned(text)
    assert show_shape(module.entry.root.shape) == "{1,0}"
    assert {one.copy.parent.name for one in assignment.copies} <= {"yes", "no"}


def test_groups_of_dimensions_that_a_library_can_read() -> None:
    fits: Callable[..., bool] = forms_matrix
    assert fits((2, 1, 0), (0,), (1,), (2,)) and fits((2, 0, 1), (0,), (1,), (2,))
    assert not fits((0, 1, 2), (0,), (1,), (2,)), "the batch is never the fastest"
    assert fits((3, 2, 1, 0), (0,), (1, 2), (3,)) and not fits((3, 1, 2, 0), (0,), (1, 2), (3,))
    assert fits((1, 0), (), (0,), (1,)) and fits((0, 1), (), (0,), (1,))


def test_only_named_operations_may_change_layout() -> None:
    module = load_module(entry("(f32[2]{0})->f32[2]{0}", "a = f32[2]{0} parameter(0)", "n = f32[2]{0} negate(a)",
                               "ROOT c = f32[2]{0} copy(n)"))  # fmt: skip
    found = {one.name: may_change_layout(one) for one in module.entry.instructions}
    assert found == {"a": True, "n": False, "c": True}


# ---------------------------------------------------------------- events and fuel
def test_every_decision_is_an_event() -> None:
    text, backend, _, copies = CASES["a slice takes its operand's layout, and the parameter is copied"]
    ledger = Recorded()
    module, _ = assigned(text, backend, ledger=ledger)
    asked = [one for one in ledger.events if isinstance(one, LayoutConstraint)]
    made = [one for one in ledger.events if isinstance(one, LayoutCopy)]
    assert [(one.operand, one.to_layout, one.user) for one in made] == copies
    (copy,) = made
    assert copy.subject == "copy" and copy.bytes == 80 and copy.priorities == "1 against 1"
    assert "entry's" not in copy.wanted and "entry-parameter" in (copy.given or "")
    refused = [one for one in asked if one.verdict == "refused"]
    assert {(one.code, one.priority, one.old_priority) for one in refused} >= {("not_higher_priority", 1, 1)}
    assert all(one.sentence() for one in ledger.events)
    fuelled = [one.fuel for one in asked if one.fuel is not None]
    assert fuelled == sorted(fuelled) and all(one.verdict != "refused" for one in asked if one.fuel is not None)
    assert module.entry.root.name == "r"


@pytest.mark.parametrize("fuel", [0, 1, 5, 12])
def test_less_fuel_costs_copies_but_keeps_the_values(fuel: int) -> None:
    text = (FIXTURES / "gpu_conv_nchw_grad.before.txt").read_text()
    plain, _ = assigned(text, "gpu")
    module = load_module(text)
    args = inputs_for(module.entry)
    ctx = PassContext(target="gpu", fuel=Fuel({"layout-assignment": fuel}))
    run = ctx.push_run("layout-assignment", "")
    LayoutAssignment("gpu").run(module, ctx)
    ctx.pop_run(run)
    assert run.applied == fuel and run.asked > fuel
    expected = [np.asarray(one) for one in evaluate(plain, args)]
    got = [np.asarray(one) for one in evaluate(load_module(print_module(module)), args)]
    assert all(one.within for one in compare_all(expected, got, rules_for(plain)))


# ---------------------------------------------------------------- errors
def test_what_cannot_be_laid_out_is_said() -> None:
    bitcast = entry("(f32[2]{0})->f32[2]{0}", "a = f32[2]{0} parameter(0)", "ROOT b = f32[2]{0} bitcast(a)")
    with pytest.raises(VerifyError, match="bitcast"):
        assigned(bitcast)
    with pytest.raises(UnsupportedError, match="not open source"):
        backend_of("tpu")
    with pytest.raises(UsageError, match="no layout backend"):
        backend_of("abacus")
    wrong = entry("(f32[2]{0}, f32[2]{0})->f32[2]{0}", "ROOT a = f32[2]{0} parameter(0)")
    with pytest.raises(VerifyError, match="2 parameters"):
        assigned(wrong)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("a = f32[4,6]{1,0} parameter(0)", "ROOT r = f32[6,4]{1,0} transpose(a), dimensions={1,7}"), "r: "),
        (("a = f32[4,6]{1,0} parameter(0)", "ROOT r = f32[4,2]{1,0} concatenate(a), dimensions={5}"), "r: "),
        (("a = f32[4,6]{1,0} parameter(0)", "ROOT r = f32[4,6]{1,0} while(a)"), "r"),
        (("a = f32[4,6]{1,0} parameter(0)", "ROOT r = f32[4,6]{1,0} call(a), calls=e"), "r"),
    ],
)
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_a_malformed_module_is_the_users_fault(lines: tuple[str, ...], message: str, backend: str) -> None:
    shape = lines[-1].split(" = ")[1].split(" ")[0].partition("{")[0]
    order = "{0}" if shape.count(",") == 0 else "{1,0}"
    text = entry(f"(f32[4,6]{{1,0}})->{shape}{order}", *lines)
    with pytest.raises(HloscopeError, match=message):
        assigned(text, backend)


def test_targets_have_the_rules_of_their_backend() -> None:
    assert [backend_of_target(one) for one in ("cpu", "core", "h100", "gpu", "a100.txtpb")] == [
        "cpu", "cpu", "gpu", "gpu", "gpu"
    ]  # fmt: skip
    for unknown in ("tpu", "v5e", None):
        with pytest.raises(UnsupportedError, match="not open source"):
            backend_of_target(unknown)
