"""``--fuel PASS=0`` leaves a module alone, for every pass but those that the page on the optimizer names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.core.passes.test_expanders import CASES

from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.hlo.module import HloModule
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.interface import HloPass
from hloscope.core.passes.pipeline import HloPassFix, HloPassPipeline
from hloscope.core.passes.pipelines import whole_pipeline
from hloscope.core.passes.registry import PASSES, Registry
from hloscope.core.text import load_module, print_module

UNCHANGING = {"hlo-verifier", "buffer-assignment"}
"""Passes that change no module."""
PROGRAMS = "cpu_scan_rnn cpu_switch_mix gpu_reduces gpu_multidot cpu_sort_mix cpu_fft_mix gpu_linalg".split()

NARROW = """HloModule m

ENTRY main {
  a = TYPE[4]{0} parameter(0)
  b = TYPE[4]{0} parameter(1)
  ROOT r = TYPE[4]{0} OPCODE(a, b)
}
"""
SMALL = {
    "broadcast_canonicalizer": """HloModule m

ENTRY main {
  a = f32[2,3]{1,0} parameter(0)
  ROOT b = f32[3,2,4]{2,1,0} broadcast(a), dimensions={1,0}
}
""",
    "call-inliner": """HloModule m

called {
  p = f32[] parameter(0)
  ROOT n = f32[] negate(p)
}

ENTRY main {
  a = f32[] parameter(0)
  ROOT c = f32[] call(a), to_apply=called
}
""",
    "propagate-call-metadata": """HloModule m

called {
  p = f32[] parameter(0)
  ROOT n = f32[] negate(p), metadata={op_name="inner"}
}

ENTRY main {
  a = f32[] parameter(0)
  ROOT c = f32[] call(a), to_apply=called, metadata={op_name="outer"}
}
""",
    "optimize_input_output_buffer_alias": """HloModule m, buffer_donor={ (0, {}) }, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

ENTRY main {
  a = f32[4]{0} parameter(0)
  ROOT r = f32[4]{0} negate(a)
}
""",  # noqa: E501
    "sub-byte-size-setter": NARROW.replace("TYPE", "s4").replace("OPCODE", "add"),
    "copy_fusion": """HloModule m

body {
  p = f32[64]{0} parameter(0)
  ROOT n = f32[64]{0} negate(p)
}

ENTRY main {
  a = f32[64]{0} parameter(0)
  f = f32[64]{0} fusion(a), kind=kLoop, calls=body
  c = f32[64]{0} copy(f)
  ROOT t = (f32[64]{0}, f32[64]{0}) tuple(f, c)
}
""",
    "horizontal_loop_fusion": """HloModule m

one {
  p = f32[64]{0} parameter(0)
  ROOT n = f32[64]{0} negate(p)
}

two {
  p = f32[64]{0} parameter(0)
  ROOT n = f32[64]{0} abs(p)
}

ENTRY main {
  a = f32[64]{0} parameter(0)
  b = f32[64]{0} parameter(1)
  f = f32[64]{0} fusion(a), kind=kLoop, calls=one
  g = f32[64]{0} fusion(b), kind=kLoop, calls=two
  ROOT t = (f32[64]{0}, f32[64]{0}) tuple(f, g)
}
""",
    "horizontal_input_fusion": """HloModule m

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

one {
  p = f32[1024]{0} parameter(0)
  z = f32[] constant(0)
  ROOT n = f32[] reduce(p, z), dimensions={0}, to_apply=sum
}

two {
  p = f32[1024]{0} parameter(0)
  z = f32[] constant(1)
  ROOT n = f32[] reduce(p, z), dimensions={0}, to_apply=sum
}

ENTRY main {
  a = f32[1024]{0} parameter(0)
  b = f32[1024]{0} parameter(1)
  f = f32[] fusion(a), kind=kInput, calls=one
  g = f32[] fusion(b), kind=kInput, calls=two
  ROOT t = (f32[], f32[]) tuple(f, g)
}
""",
    "triton-softmax-rewriter": """HloModule m

most {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] maximum(x, y)
}

ENTRY main {
  a = f32[4096,1000]{1,0} parameter(0)
  z = f32[] constant(-inf)
  r = f32[4096]{0} reduce(a, z), dimensions={1}, to_apply=most
  b = f32[4096,1000]{1,0} broadcast(r), dimensions={0}
  ROOT s = f32[4096,1000]{1,0} subtract(a, b)
}
""",
    **{
        name: NARROW.replace("TYPE", name.rpartition("-")[2]).replace("OPCODE", "divide")
        for name in PASSES
        if name.startswith("float-normalization-")
    },
}
"""A module that a pass changes, for those that neither the expanders' cases nor the pipelines show at work."""


def mandatory(root: Path) -> set[str]:
    """The passes of the page's table."""
    text = (root / "docs" / "optimizer.md").read_text("utf-8")
    table = text.partition("## Work that no fuel stops")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", table, re.M))


def leaves(passes: list[HloPass]) -> list[HloPass]:
    found: list[HloPass] = []
    for one in passes:
        inner = one.inner if isinstance(one, HloPassFix) else one
        found += leaves(list(inner.passes)) if isinstance(inner, HloPassPipeline) else [one]
    return found


def stopped(one: HloPass, before: str, target: str) -> bool:
    """Whether the pass without fuel leaves the module alone, and says so."""
    module = load_module(before)
    printed, hashed = print_module(module), structural_hash(module)
    said = HloPassPipeline("alone", [one]).run(module, PassContext(target=target, fuel=Fuel({one.name: 0})))
    return not said and print_module(module) == printed and structural_hash(module) == hashed


def follow(module: HloModule, backend: str, seen: dict[str, bool]) -> None:
    """Compile, and ask at each pass that changes something whether it can be stopped."""
    for one in leaves(whole_pipeline(backend, Registry())):
        before = print_module(module)
        HloPassPipeline("all", [one]).run(module, PassContext(target=backend))
        if one.name not in seen and print_module(module) != before:
            seen[one.name] = stopped(one, before, backend)


@pytest.fixture(scope="module")
def seen(root: Path) -> dict[str, bool]:
    """Pass -> whether fuel stops it, for all passes that were seen to change a module."""
    found: dict[str, bool] = {}
    for name in PROGRAMS:
        text = (root / "fixtures" / "layout" / f"{name}.before.txt").read_text("utf-8")
        for backend in ("cpu", "gpu"):
            follow(load_module(text), backend, found)
    registry = Registry()
    for name, text in SMALL.items():
        module = load_module(text)
        before = print_module(module)
        HloPassPipeline("alone", [registry.make(name)]).run(module, PassContext(target="gpu"))
        assert print_module(module) != before, f"{name} does nothing"
        found[name] = found.get(name, True) and stopped(registry.make(name), text, "gpu")
    return found


def test_without_fuel_every_pass_but_those_of_the_table_changes_nothing(root: Path, seen: dict[str, bool]) -> None:
    assert {name for name, held in seen.items() if not held} == mandatory(root)


def test_every_pass_was_asked(seen: dict[str, bool]) -> None:
    # The expanders' cases have the same test beside them.
    cases = {case.name.partition("{")[0] for case in CASES}
    assert set(PASSES) - UNCHANGING - cases - set(seen) == set()


def test_a_computation_whose_order_is_refused_has_its_post_order(root: Path) -> None:
    text = (root / "fixtures" / "layout" / "gpu_multidot.after.txt").read_text("utf-8")
    orders: list[list[str]] = []
    for fuel in (0, 1):
        module = load_module(text)
        scheduler = Registry().make("hlo-memory-scheduler{algorithm=list}")
        ctx = PassContext(target="gpu", fuel=Fuel({scheduler.name: fuel}))
        assert HloPassPipeline("alone", [scheduler]).run(module, ctx) and module.is_scheduled
        orders.append([one.name for one in module.entry.instructions])
    assert orders[0] == [one.name for one in load_module(text).entry.post_order()] != orders[1]
