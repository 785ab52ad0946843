"""Planted faults of every kind, in passes of the core: the culprit is exact, the probes few, nobody else is accused."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from math import ceil, log2
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from hloscope.bisect.oracles import make_oracle
from hloscope.bisect.result import Answer
from hloscope.bisect.subjects.core import CoreSearch
from hloscope.bisect.subjects.core_probe import Recipe

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "faults"
PLUGIN = FOLDER / "planted.py"
PROGRAMS: dict[str, str] = run_path(str(FOLDER / "programs.py"))["PROGRAMS"]

EARLY = "dce,cse,algsimp{},dce,tuple-simplifier,reshape-mover,cse"
LAYOUT = "algsimp,dce,layout-assignment{},algsimp,copy-insertion,hlo-memory-scheduler"
COPIES = "algsimp,dce,layout-assignment,copy-insertion{},hlo-memory-scheduler"
HIDDEN = "dce,flatten-call-graph{},algsimp,layout-assignment,fusion,dce,copy-insertion,hlo-memory-scheduler"
PLACED = "algsimp,dce,layout-assignment,copy-insertion,hlo-memory-scheduler,buffer-assignment{}"
FUSED = "tuple-simplifier,dce{},tuple-simplifier,simplify-conditional"

# fault, program, passes ({} is where it is planted), the pass, the instruction, verdict, pair
TABLE = """
swap-subtract arithmetic EARLY algsimp gap
swap-subtract:1 arithmetic EARLY algsimp gap2
swap-divide arithmetic EARLY algsimp d
divide-is-multiply:1 arithmetic EARLY algsimp d2
add-is-subtract arithmetic EARLY algsimp den.1
maximum-is-minimum arithmetic EARLY algsimp top
exp-is-expm1 arithmetic EARLY algsimp e
sqrt-is-rsqrt arithmetic EARLY algsimp root.1
abs-is-negate arithmetic EARLY algsimp abs.1
tanh-is-sine arithmetic EARLY algsimp t
less-is-less-equal arithmetic EARLY algsimp less
greater-is-greater-equal arithmetic EARLY algsimp greater
swap-select arithmetic EARLY algsimp sel
and-is-or arithmetic EARLY algsimp both
logical-is-arithmetic arithmetic EARLY algsimp shift
remainder-is-divide arithmetic EARLY algsimp rem
constant-off-by-one arithmetic EARLY algsimp most
floor-is-ceil arithmetic EARLY algsimp fl
transpose-not shapes EARLY algsimp turned
slice-shifted shapes EARLY algsimp part
broadcast-other-dimension shapes EARLY algsimp wide
reverse-other-dimension shapes EARLY algsimp back
concatenate-swapped shapes EARLY algsimp cat
pad-other-side shapes EARLY algsimp longer
iota-other-dimension shapes EARLY algsimp io
dynamic-slice-swapped shapes EARLY algsimp two
reduce-other-dimension shapes EARLY algsimp total
dot-other-contraction shapes EARLY algsimp dot
dot-swapped shapes EARLY algsimp dot
trip-count loop EARLY algsimp end
state-forgotten loop EARLY algsimp state
shard-offset devices EARLY algsimp off
other-pairs devices EARLY algsimp theirs
other-groups devices EARLY algsimp all
control-edge-dropped orders EARLY algsimp second
control-edge-dropped:1 orders EARLY algsimp third
layout-left-behind layouts LAYOUT layout-assignment s
bitcast-of-other-order layouts LAYOUT layout-assignment copy
entry-layout layouts LAYOUT layout-assignment out
copy-dropped storage COPIES copy-insertion copy unsafe-buffers
in-place-fusion fused FUSED dce head unsafe-buffers
control-edge-dropped hidden HIDDEN flatten-call-graph second
overlapping-places:1 heap PLACED buffer-assignment c unsafe-buffers
carried-elsewhere loop PLACED buffer-assignment next unsafe-buffers
parameter-overwritten heap PLACED buffer-assignment out unsafe-buffers
"""
CASES = [line.split() for line in TABLE.strip().split("\n")]


@cache
def plugin() -> str:
    return PLUGIN.read_text()


def search(program: str, passes: str, **options: Any) -> Answer:
    recipe = Recipe(PROGRAMS[program], f"{program}.hlo", passes, None, ((str(PLUGIN), plugin()),))
    subject = recipe.subject()
    return CoreSearch(subject, make_oracle("reference", subject.module, None, 0), **options).run()


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_the_culprit_is_exact_and_the_probes_are_few(case: list[str]) -> None:
    fault, program, which, pass_name, instruction, *rest = case
    kind, _, only = fault.partition(":")
    passes: str = globals()[which].replace("{}", f"{{kind={kind},only={only or 0}}}")
    answer = search(program, passes)
    assert answer.verdict == (rest[0] if rest else "wrong-stage"), answer.evidence
    (culprit,) = answer.culprits
    assert (culprit.pass_name, culprit.rule, culprit.instruction) == (pass_name, f"planted-{kind}", instruction)
    told = re.search(r", fuel (\d+)", culprit.sentence)
    assert told is None or culprit.counted == f", decision {told[1]}", "the event and the headline count alike"
    probes = Counter(probe.level for probe in answer.probes)
    sizes = {level: max(one.high for one in answer.probes if one.level == level) for level in probes}
    assert all(probes[level] <= ceil(log2(max(2, sizes[level]))) + 3 for level in probes), (probes, sizes)


def test_there_are_enough_faults_and_every_kind_is_used() -> None:
    kinds: dict[str, object] = run_path(str(PLUGIN))["KINDS"]
    used = {case[0].partition(":")[0] for case in CASES}
    assert used == set(kinds) and len(CASES) >= 30


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_a_fault_nobody_is_accused(program: str) -> None:
    for passes in (EARLY, LAYOUT):
        if program == "devices" and passes is LAYOUT:
            continue
        answer = search(program, re.sub(r"\{\}", "", passes))
        assert (answer.verdict, answer.culprits) == ("no-difference", []), answer.evidence
