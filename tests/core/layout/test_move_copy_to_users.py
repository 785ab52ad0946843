"""move_copy_to_users: what moves, what stays and why, and that the values stay."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.recorded import Recorded

from hloscope.core.hlo.module import HloModule
from hloscope.core.layout.move_copy_to_users import MoveCopyToUsers
from hloscope.core.ledger.events import RewriteDecision
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.registry import Registry
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module, print_module

HEAD = """HloModule m

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

ENTRY e {
  a = f32[4,6]{0,1} parameter(0)
  b = f32[4,6]{0,1} parameter(1)
  z = f32[] constant(0)
  i = s32[] constant(1)
  c = f32[4,6]{1,0} copy(a)
  d = f32[4,6]{1,0} copy(b)
"""

MOVES = {
    "negate(c)": "f32[4,6]{1,0}",
    "add(c, d)": "f32[4,6]{1,0}",
    "pad(c, z), padding=1_0x0_2": "f32[5,8]{1,0}",
    "slice(c), slice={[1:3],[0:6:2]}": "f32[2,3]{1,0}",
    "dynamic-slice(c, i, i), dynamic_slice_sizes={2,3}": "f32[2,3]{1,0}",
    "reverse(c), dimensions={1}": "f32[4,6]{1,0}",
    "reduce-window(c, z), window={size=2x1 pad=0_1x0_0}, to_apply=add": "f32[4,6]{1,0}",
    "concatenate(c, d), dimensions={0}": "f32[8,6]{1,0}",
    "convert(c)": "s32[4,6]{1,0}",
    "compare(c, d), direction=LT": "pred[4,6]{1,0}",
}


def moved(text: str, **context: object) -> tuple[HloModule, bool]:
    module = load_module(text)
    ctx = PassContext(target="gpu", **context)  # pyright: ignore[reportArgumentType]
    run = ctx.push_run("move_copy_to_users", "")
    changed = MoveCopyToUsers().run(module, ctx)
    ctx.pop_run(run)
    return module, changed


def same_values(module: HloModule, text: str) -> bool:
    before = load_module(text)
    args = inputs_for(before.entry)
    after = evaluate(load_module(print_module(module)), args)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(evaluate(before, args), after, strict=True))


@pytest.mark.parametrize("operation", MOVES)
def test_the_copy_ends_below(operation: str) -> None:
    text = f"{HEAD}  ROOT r = {MOVES[operation]} {operation}\n}}\n"
    module, changed = moved(text)
    root = module.entry.root
    assert changed and root.opcode == "copy" and str(root.shape) == MOVES[operation]
    below = root.operand(0)
    assert below.opcode == operation.partition("(")[0] and str(below.shape).endswith("{0,1}")
    assert same_values(module, text)
    assert not MoveCopyToUsers().run(module, PassContext())


def test_a_reduction_reads_what_was_copied() -> None:
    text = f"{HEAD}  ROOT r = f32[6]{{0}} reduce(c, z), dimensions={{0}}, to_apply=add\n}}\n"
    module, changed = moved(text)
    assert changed and module.entry.root.operand(0).name == "a" and same_values(module, text)


@pytest.mark.parametrize(
    ("operation", "shape", "code"),
    [
        ("add(c, c2)", "f32[4,6]{1,0}", "one_copied_operand"),
        ("add(c, d2)", "f32[4,6]{1,0}", "layouts_differ"),
        ("concatenate(c, d2), dimensions={0}", "f32[8,6]{1,0}", "layouts_differ"),
        ("copy(c)", "f32[4,6]{0,1}", None),
        ("dot(c, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "f32[4,4]{1,0}", None),
    ],
)
def test_what_stays_and_why(operation: str, shape: str, code: str | None) -> None:
    more = (
        "  c2 = f32[4,6]{1,0} broadcast(z), dimensions={}\n  g = f32[4,6]{1,0} parameter(2)\n"
        "  d2 = f32[4,6]{1,0} copy(g)\n  w = f32[6,4]{1,0} parameter(3)\n"
    )
    ledger = Recorded()
    module, changed = moved(f"{HEAD}{more}  ROOT r = {shape} {operation}\n}}\n", ledger=ledger)
    refused = [one for one in ledger.events if isinstance(one, RewriteDecision)]
    assert not changed and module.entry.root.name == "r"
    assert [one.code for one in refused] == ([] if code is None else [code])


def test_fuel_and_name() -> None:
    text = f"{HEAD}  n = f32[4,6]{{1,0}} negate(c)\n  ROOT r = f32[4,6]{{1,0}} add(n, d)\n}}\n"
    module, changed = moved(text, fuel=Fuel({"move_copy_to_users": 1}))
    assert changed and module.entry.root.opcode == "add" and same_values(module, text)
    assert Registry().make("move_copy_to_users") == MoveCopyToUsers()
