"""Small modules whose fusions XLA's own tests state: each with the fusions that must, and must not, come out.

The texts are ours; what is expected of them is what ``openxla/xla:xla/service/instruction_fusion_test.cc``,
``xla/service/cpu/cpu_instruction_fusion_test.cc`` and ``xla/backends/gpu/transforms/priority_fusion_test.cc`` assert.
"""

from __future__ import annotations

import pytest

from hloscope.core.fusion.deciders import decide
from hloscope.core.hlo.verifier.verify import verify
from hloscope.core.text import load_module

CALLED = {
    "sum": """sum { sum.a = f32[] parameter(0)
 sum.b = f32[] parameter(1)
 ROOT sum.r = f32[] add(sum.a, sum.b) }
""",
    "isum": """isum { isum.a = s32[] parameter(0)
 isum.b = s32[] parameter(1)
 ROOT isum.r = s32[] add(isum.a, isum.b) }
""",
    "larger": """larger { larger.a = f32[] parameter(0)
 larger.b = f32[] parameter(1)
 ROOT larger.r = f32[] maximum(larger.a, larger.b) }
""",
    "twice": """twice { twice.a = f32[] parameter(0)
 twice.n = f32[] negate(twice.a)
 ROOT twice.r = f32[] multiply(twice.n, twice.n) }
""",
    "below": """below { below.a = f32[] parameter(0)
 below.b = f32[] parameter(1)
 below.n = f32[] negate(below.a)
 below.m = f32[] negate(below.b)
 ROOT below.r = pred[] compare(below.n, below.m), direction=LT }
""",
}

_DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
_ADDED = f"""a = f32[%s,50] parameter(0)
 b = f32[50,%s] parameter(1)
 c = f32[%s,%s] parameter(2)
 d = f32[%s,%s] dot(a, b), {_DOT}
"""


def _dot_and_sum(m: int, n: int, end: str) -> str:
    return _ADDED % (m, n, m, n, m, n) + end


CPU: dict[str, tuple[str, list[str]]] = {
    "an expensive operand of a vector product, on the left": (
        f"a = f32[96,32] parameter(0)\nb = f32[32] parameter(1)\ne = f32[96,32] exponential(a)\n"
        f"ROOT d = f32[96] dot(e, b), {_DOT}",
        ["kLoop: dot exponential"],
    ),
    "and on the right": (
        "a = f32[32] parameter(0)\nb = f32[32,96] parameter(1)\ne = f32[32,96] exponential(b)\n"
        "ROOT d = f32[96] dot(a, e), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
        ["kLoop: dot exponential"],
    ),
    "through a reshape": (
        "a = f32[2,48,2,16] parameter(0)\nb = f32[32] parameter(1)\ne = f32[2,48,2,16] exponential(a)\n"
        f"r = f32[96,32] reshape(e)\nROOT d = f32[96] dot(r, b), {_DOT}",
        ["kLoop: dot exponential reshape"],
    ),
    "through a bitcast": (
        "a = f32[2,48,2,16] parameter(0)\nb = f32[32] parameter(1)\ne = f32[2,48,2,16] exponential(a)\n"
        f"r = f32[96,32] bitcast(e)\nROOT d = f32[96] dot(r, b), {_DOT}",
        ["kLoop: bitcast dot exponential"],
    ),
    "a matrix product is left alone": (
        "a = f32[2,32] parameter(0)\nb = f32[32,96] parameter(1)\ne = f32[32,96] exponential(b)\n"
        f"ROOT d = f32[2,96] dot(a, e), {_DOT}",
        [],
    ),
    "an operand beyond what the emitter keeps": (
        "a = f32[32768] parameter(0)\nb = f32[32768,256] parameter(1)\ne = f32[32768,256] exponential(b)\n"
        "ROOT d = f32[256] dot(a, e), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
        [],
    ),
    "a row times a matrix takes the sum after it": (
        "a = f32[50] parameter(0)\nb = f32[50,19] parameter(1)\nc = f32[19] parameter(2)\n"
        "d = f32[19] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}\nROOT s = f32[19] add(d, c)",
        ["kOutput: add dot"],
    ),
    "so does a matrix times a column": (
        f"a = f32[19,50] parameter(0)\nb = f32[50] parameter(1)\nc = f32[19] parameter(2)\n"
        f"d = f32[19] dot(a, b), {_DOT}\nROOT s = f32[19] add(c, d)",
        ["kOutput: add dot"],
    ),
    "but not where it has two readers": (
        f"a = f32[19,50] parameter(0)\nb = f32[50] parameter(1)\nc = f32[19] parameter(2)\n"
        f"d = f32[19] dot(a, b), {_DOT}\ns = f32[19] add(c, d)\nROOT t = (f32[19], f32[19]) tuple(s, d)",
        [],
    ),
    "nor does a matrix times a matrix": (_dot_and_sum(19, 19, "ROOT s = f32[19,19] add(d, c)"), []),
    "nor one that is added to itself": (_dot_and_sum(19, 1, "ROOT s = f32[19,1] add(d, d)"), []),
    "exponential, reshape, negate": (
        "p = f32[1,4] parameter(0)\ne = f32[1,4] exponential(p)\nr = f32[4] reshape(e)\nROOT n = f32[4] negate(r)",
        ["kLoop: exponential negate reshape"],
    ),
    "exponential, transpose, negate": (
        "p = f32[3,4] parameter(0)\ne = f32[3,4] exponential(p)\nt = f32[4,3] transpose(e), dimensions={1,0}\n"
        "ROOT n = f32[4,3] negate(t)",
        ["kLoop: exponential negate transpose"],
    ),
    "reverse and slice": (
        "p = f32[8] parameter(0)\nr = f32[8] reverse(p), dimensions={0}\ns = f32[4] slice(r), slice={[0:8:2]}\n"
        "ROOT n = f32[4] negate(s)",
        ["kLoop: negate reverse slice"],
    ),
    "broadcast, reshape, dynamic slice, tanh": (
        "p = f32[8] parameter(0)\ni = s32[] parameter(1)\nj = s32[] parameter(2)\n"
        "b = f32[1,8,8] broadcast(p), dimensions={2}\nr = f32[8,8] reshape(b)\n"
        "d = f32[4,4] dynamic-slice(r, i, j), dynamic_slice_sizes={4,4}\nROOT n = f32[4,4] tanh(d)",
        ["kLoop: broadcast dynamic-slice reshape tanh"],
    ),
    "a map of two exponentials": (
        "p = f32[3,4] parameter(0)\nq = f32[3,4] parameter(1)\ne = f32[3,4] exponential(p)\n"
        "f = f32[3,4] exponential(q)\n"
        "ROOT m = f32[3,4] map(e, f), dimensions={0,1}, to_apply=larger",
        ["kLoop: exponential exponential map"],
    ),
    "a slice of one, written into another": (
        "p = f32[10,20,30] parameter(0)\nq = f32[10,20,30] parameter(1)\ni = s32[] parameter(2)\n"
        "j = s32[] parameter(3)\ns = f32[10,1,30] dynamic-slice(p, i, j, i), dynamic_slice_sizes={10,1,30}\n"
        "ROOT u = f32[10,20,30] dynamic-update-slice(q, s, j, i, j)",
        ["kLoop: dynamic-slice dynamic-update-slice"],
    ),
    "a slice of the updated value, at the place of the update": (
        "p = f32[8] parameter(0)\nq = f32[7] parameter(1)\ns = f32[7] slice(p), slice={[1:8]}\na = f32[7] add(s, q)\n"
        "o = s32[] constant(1)\nROOT u = f32[8] dynamic-update-slice(p, a, o)",
        ["kLoop: add constant dynamic-update-slice slice"],
    ),
    "at a place that may be another": (
        "p = f32[8] parameter(0)\nq = f32[7] parameter(1)\ni = s32[] parameter(2)\n"
        "s = f32[7] dynamic-slice(p, i), dynamic_slice_sizes={7}\na = f32[7] add(s, q)\n"
        "o = s32[] constant(1)\nROOT u = f32[8] dynamic-update-slice(p, a, o)",
        ["kLoop: add constant dynamic-update-slice"],
    ),
    "at the same unknown place": (
        "p = f32[8] parameter(0)\nq = f32[7] parameter(1)\ni = s32[] parameter(2)\n"
        "s = f32[7] dynamic-slice(p, i), dynamic_slice_sizes={7}\na = f32[7] add(s, q)\n"
        "ROOT u = f32[8] dynamic-update-slice(p, a, i)",
        ["kLoop: add dynamic-slice dynamic-update-slice"],
    ),
    "at the same place, but turned round": (
        "p = f32[8] parameter(0)\nq = f32[7] parameter(1)\ns = f32[7] slice(p), slice={[1:8]}\na = f32[7] add(s, q)\n"
        "r = f32[7] reverse(a), dimensions={0}\no = s32[] constant(1)\nROOT u = f32[8] dynamic-update-slice(p, r, o)",
        ["kLoop: add constant dynamic-update-slice reverse"],
    ),
    "what is turned round is another value": (
        "p = f32[8] parameter(0)\nq = f32[7] parameter(1)\ns = f32[7] slice(p), slice={[1:8]}\n"
        "r = f32[7] reverse(q), dimensions={0}\na = f32[7] add(s, r)\no = s32[] constant(1)\n"
        "ROOT u = f32[8] dynamic-update-slice(p, a, o)",
        ["kLoop: add constant dynamic-update-slice reverse slice"],
    ),
    "what is read by nobody stays out": (
        "p = f32[4,3] parameter(0)\nx = f32[4,3] multiply(p, p)\nROOT a = f32[4,3] add(x, p)\n"
        "s = f32[4,3] subtract(p, a)",
        ["kLoop: add multiply"],
    ),
    "a large constant stays outside": (
        "p = f32[4000] parameter(0)\nc = f32[4000] constant({...})\na = f32[4000] add(p, c)\n"
        "ROOT n = f32[4000] negate(a)",
        ["kLoop: add negate"],
    ),
    "a single number goes in": (
        "p = f32[1] parameter(0)\nc = f32[1] constant({2})\na = f32[1] add(p, c)\nROOT n = f32[1] negate(a)",
        ["kLoop: add constant negate"],
    ),
    "nothing is fused in a map": (
        "p = f32[4] parameter(0)\nROOT m = f32[4] map(p), dimensions={0}, to_apply=twice",
        [],
    ),
    "nor in a comparison of a sort": (
        "p = f32[4] parameter(0)\nROOT m = f32[4] sort(p), dimensions={0}, to_apply=below",
        [],
    ),
}

GPU: dict[str, tuple[str, list[str]]] = {
    "scalars with shared arguments": (
        "p = f32[] parameter(0)\nq = f32[] parameter(1)\ns = f32[] subtract(p, q)\n"
        "c = pred[] compare(s, s), direction=NE\na = f32[] add(p, q)\nb = f32[] abs(s)\nROOT r = f32[] select(c, a, b)",
        ["kLoop: abs add compare select subtract"],
    ),
    "a broadcast behind a bitcast": (
        "p = f32[96]{0} parameter(0)\nb = f32[8,96,128,7]{3,2,1,0} broadcast(p), dimensions={1}\n"
        "c = f32[8,24,4,128,7]{4,3,2,1,0} bitcast(b)\n"
        "ROOT t = f32[8,24,128,7,4]{4,3,2,1,0} transpose(c), dimensions={0,1,3,4,2}",
        ["kLoop: bitcast broadcast transpose"],
    ),
    "a bitcast to another width": (
        "p = s8[3,5,2]{2,1,0} parameter(0)\nn = s8[3,5,2]{2,1,0} negate(p)\nb = s16[3,5]{1,0} bitcast(n)\n"
        "a = s8[3,5,2]{2,1,0} add(n, n)\nROOT t = (s16[3,5]{1,0}, s8[3,5,2]{2,1,0}) tuple(b, a)",
        [],
    ),
    "a reduction of a reduction": (
        "p = f32[8,4,128,226]{3,2,1,0} parameter(0)\nz = f32[] constant(0)\n"
        "r = f32[8,4,128]{2,1,0} reduce(p, z), dimensions={3}, to_apply=sum\n"
        "ROOT s = f32[8,4]{1,0} reduce(r, z), dimensions={2}, to_apply=sum",
        ["kInput: constant reduce", "kInput: constant reduce"],
    ),
    "a scatter takes indices and updates, never what it updates": (
        "p = s32[3,3]{1,0} parameter(0)\no = s32[3,3]{1,0} add(p, p)\nq = s32[2,1]{1,0} parameter(1)\n"
        "i = s32[2,1]{1,0} add(q, q)\nw = s32[2,3]{1,0} parameter(2)\nu = s32[2,3]{1,0} add(w, w)\n"
        "s = s32[3,3]{1,0} scatter(o, i, u), to_apply=isum, update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1\nROOT r = s32[3,3]{1,0} add(s, s)",
        ["kInput: add add scatter"],
    ),
    "the root is not taken out of its place": (
        "p = u32[2]{0} parameter(0)\nq = u32[] parameter(1)\nROOT b = u32[2]{0} broadcast(q), dimensions={}\n"
        "a = u32[2]{0} add(p, b)\nt = (u32[2]{0}) tuple(a)\nk = token[] after-all()\n"
        "f = token[] outfeed(t, k), outfeed_shape=(u32[2]{0})",
        [],
    ),
    "a small constant goes in, a large one does not": (
        "p = f32[32,32]{1,0} parameter(0)\nc = f32[] constant(1)\nd = f32[32,32]{1,0} constant({...})\n"
        "b = f32[32,32]{1,0} broadcast(c), dimensions={}\na = f32[32,32]{1,0} add(p, b)\n"
        "ROOT m = f32[32,32]{1,0} multiply(d, a)",
        ["kLoop: add broadcast constant multiply"],
    ),
    "a widening conversion goes into both readers": (
        "p = f16[512]{0} parameter(0)\na = f16[512]{0} add(p, p)\nc = f32[512]{0} convert(a)\n"
        "s = f32[512]{0} multiply(c, c)\nb = s32[512]{0} bitcast(c)\nROOT t = (f32[512]{0}, s32[512]{0}) tuple(s, b)",
        ["kLoop: add convert", "kLoop: add convert multiply"],
    ),
    "nothing is fused in a reducer": (
        "p = f32[4]{0} parameter(0)\nROOT m = f32[4]{0} sort(p), dimensions={0}, to_apply=below",
        [],
    ),
}
_CASES = [("cpu", name, *case) for name, case in CPU.items()] + [("gpu", name, *case) for name, case in GPU.items()]


@pytest.mark.parametrize(("backend", "name", "body", "wanted"), _CASES, ids=[f"{one[0]}: {one[1]}" for one in _CASES])
def test_fusions_are_those_that_xlas_tests_state(backend: str, name: str, body: str, wanted: list[str]) -> None:
    called = "".join(text for word, text in CALLED.items() if f"to_apply={word}" in body)
    module = load_module(f"HloModule m\n{called}ENTRY e {{\n{body}\n}}\n")
    decided = decide(module, backend)
    assert verify(decided.module) == [], name
    made: list[str] = []
    for one in decided.module.instructions():
        if one.opcode == "fusion":
            inside = sorted(each.opcode for each in one.callee().instructions if each.opcode != "parameter")
            made.append(f"{one.attr('kind')}: {' '.join(inside)}")
    assert sorted(made) == wanted
