"""reshape-decomposer: as the real compiler does it, each of its four ways, and the same values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hloscope.core.analysis.real_compile import DumpCompile, stages_around
from hloscope.core.dumps.directory import open_dump
from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.layout.reshape_decomposer import ReshapeDecomposer
from hloscope.core.passes.context import PassContext
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module, print_module


def test_a_real_stage_is_decomposed_as_xla_did_it(fixtures: Path) -> None:
    with open_dump(str(fixtures / "dumps" / "cpu")) as dump:
        compiled = DumpCompile(dump.select(None)[0])
        (pair,) = stages_around(compiled, "reshape-decomposer")
        ours, real = compiled.module(pair.before.index), compiled.module(pair.after.index)
    assert ReshapeDecomposer().run(ours, PassContext())
    assert structural_hash(ours) == structural_hash(real)
    assert not ReshapeDecomposer().run(ours, PassContext())


@pytest.mark.parametrize(
    ("source", "target", "made"),
    [
        ("f32[4,6]{1,0}", "f32[2,2,6]{2,1,0}", ["bitcast"]),
        ("f32[4,6]{0,1}", "f32[24]{0}", ["copy", "bitcast"]),
        ("f32[24]{0}", "f32[4,6]{0,1}", ["bitcast", "copy"]),
        ("f32[4,6]{0,1}", "f32[3,8]{0,1}", ["copy", "bitcast", "copy"]),
        ("f32[4,1,6]{2,0,1}", "f32[4,6,1]{0,2,1}", ["copy", "bitcast"]),
    ],
)
def test_the_four_ways(source: str, target: str, made: list[str]) -> None:
    text = f"HloModule m\n\nENTRY e {{\n  a = {source} parameter(0)\n  ROOT r = {target} reshape(a)\n}}\n"
    module = load_module(text)
    args = inputs_for(module.entry)
    (expected,) = evaluate(module, args)
    assert ReshapeDecomposer().run(module, PassContext())
    assert [one.opcode for one in module.entry.post_order()][1:] == made
    again = load_module(print_module(module))
    assert str(again.entry.root.shape) == target
    (got,) = evaluate(again, args)
    assert np.array_equal(np.asarray(expected), np.asarray(got))
