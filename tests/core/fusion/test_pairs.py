"""Why one is not fused into the other, groups found from stages, and the command's answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hloscope.core.cli.fusion import command as fusion_command
from hloscope.core.cli.why import command as why_command
from hloscope.core.errors import UsageError
from hloscope.core.fusion.groups import recover_groups
from hloscope.core.fusion.pair import flips, judge
from hloscope.core.fusion.readers import Readers
from hloscope.core.text import load_module
from hloscope.core.views.fusion import costliest_first, fusion_report, why_pair
from hloscope.core.views.run import load

EPILOGUE = """HloModule m
sum { s.a = f32[] parameter(0)
 s.b = f32[] parameter(1)
 ROOT s.r = f32[] add(s.a, s.b) }
ENTRY e {
 p = f32[64,256]{1,0} parameter(0)
 q = f32[64]{0} parameter(1)
 z = f32[] constant(0)
 r = f32[64]{0} reduce(p, z), dimensions={1}, to_apply=sum
 n = f32[64]{0} negate(r)
 m = f32[64]{0} multiply(r, q)
 ROOT t = (f32[64]{0}, f32[64]{0}) tuple(n, m)
}
"""


def test_the_refusing_user_and_the_edit_that_helps_are_named() -> None:
    module = load_module(EPILOGUE)
    found = judge(module.clone(), "r", "n", "gpu")
    assert found.verdict == "ineligible"
    assert found.refused_by == "m"
    assert found.reason == "fusion into output of a reduce fusion would create a loop fusion"
    tried, note = flips(module, "r", "n", "gpu")
    assert note is None
    assert "only %n reads %r" in tried[0].change
    # the edit is a module on which the answer really is another
    assert judge(load_module(tried[0].module), "r", "n", "gpu").verdict == "fused"


def test_numbers_of_a_refusal_are_those_of_the_kernels() -> None:
    found = judge(load_module(EPILOGUE), "r", "m", "gpu")
    assert found.verdict == "refused"
    producer = found.numbers["producer"]
    assert isinstance(producer, dict)
    assert producer["bytes_read"] == 64 * 256 * 4 + 64 * 4
    assert producer["bytes_written"] == 256


def test_the_cpu_decides_by_its_own_rules() -> None:
    text = """HloModule m
ENTRY e { p = f32[64]{0} parameter(0)
 x = f32[64]{0} exponential(p)
 a = f32[64]{0} negate(x)
 b = f32[64]{0} abs(x)
 ROOT t = (f32[64]{0}, f32[64]{0}) tuple(a, b) }
"""
    found = judge(load_module(text), "x", "a", "cpu")
    assert (found.verdict, found.code) == ("refused", "expensive_duplicated")
    tried, _ = flips(load_module(text), "x", "a", "cpu")
    assert any("only %a reads %x" in one.change for one in tried)


@pytest.mark.parametrize(("a", "b"), [("nothing", "n"), ("n", "r"), ("p", "m")])
def test_no_pair_is_the_users_fault(a: str, b: str) -> None:
    with pytest.raises(UsageError):
        judge(load_module(EPILOGUE), a, b, "gpu")


def test_a_recorded_verdict_counts_more_than_ours(fixtures: Path) -> None:
    with load(str(fixtures / "dumps" / "gpu_narrow")) as run:
        rows = fusion_report(run).rows
        assert {row.origin for row in rows} <= {"xla", "inferred"}
        fused = next(row for row in rows if row.verdict == "fused" and not row.producer.startswith("fusion"))
        facts = why_pair(run, fused.producer, fused.consumers[0])
        assert (facts.verdict, facts.origin) == ("fused", "xla")


def test_a_reader_behind_a_bitcast_is_a_reader(fixtures: Path) -> None:
    with load(str(fixtures / "dumps" / "gpu_narrow")) as run:
        facts = why_pair(run, "loop_reduce_fusion", "gemm_fusion_dot")
        assert (facts.verdict, facts.origin, facts.numbers["bytes"]) == ("ineligible", "xla", 49_504)
        assert "only bitcast users" in (facts.reason or "")
        assert any("gemm_fusion_dot reads fusion.5 through bitcast.30.0, and" in one for one in facts.notes)
        assert any("bitcast.30.0 into gemm_fusion_dot: refused" in one for one in facts.notes)


def test_a_pair_has_the_step_and_the_bytes_of_its_row(fixtures: Path) -> None:
    with load(str(fixtures / "dumps" / "gpu_narrow")) as run:
        rows = fusion_report(run).rows
        pairs = [(row.producer, name) for row in rows if row.verdict != "fused" for name in row.consumers][:40:8]
        assert len(pairs) > 2
        for pair in pairs:
            facts = why_pair(run, *pair, tries=False)
            row = next(one for one in rows if one.step == facts.numbers["step"])
            # By then the producer may be the result of a fusion.
            made = [one.made for one in rows if one.step < row.step and pair[0] in one.consumers]
            assert row.producer == pair[0] or row.producer in made
            assert facts.numbers["bytes"] == row.bytes
            assert (facts.verdict == "fused") == (row.verdict == "fused")


def test_refusals_come_first_by_what_they_cost(fixtures: Path) -> None:
    result = CliRunner().invoke(fusion_command, [str(fixtures / "dumps" / "gpu_narrow"), "--json"])
    answer = json.loads(result.stdout)
    assert answer["how"] == "recorded"
    last: dict[str, int] = {}
    for row in answer["rows"]:
        last[row["producer"]] = max(row["step"], last.get(row["producer"], 0))
    # a producer that was decided again later costs nothing by what was said first
    stands = [
        row["verdict"] == "refused" or (row["verdict"] == "ineligible" and row["step"] == last[row["producer"]])
        for row in answer["rows"]
    ]
    assert stands == sorted(stands, reverse=True)
    costs = [row["bytes"] or 0 for row, one in zip(answer["rows"], stands, strict=True) if one]
    assert costs and costs == sorted(costs, reverse=True)
    assert {row["verdict"] for row in answer["rows"]} >= {"fused", "priority", "ineligible"}
    keys = "step producer consumers verdict code reason us_fused us_unfused bytes fuel origin".split()
    assert set(keys) <= set(answer["rows"][0])


def test_a_single_file_is_decided_by_our_own_pass(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(EPILOGUE)
    result = CliRunner().invoke(fusion_command, [str(path), "--target", "h100", "--json"])
    answer = json.loads(result.stdout)
    assert answer["how"] == "core"
    assert {row["origin"] for row in answer["rows"]} <= {"core", "inferred"}
    assert any("priority-fusion" in note for note in answer["notes"])
    result = CliRunner().invoke(why_command, [str(path), "r", "n", "--target", "h100", "--json"])
    pair = json.loads(result.stdout)
    keys = ("producer", "consumer", "verdict", "code", "reason", "numbers", "flips")
    assert all(key in pair for key in keys)
    assert pair["flips"][0]["proven_by"] == ["core"]


def test_groups_are_found_whatever_the_names() -> None:
    before = load_module("""HloModule m
ENTRY e { p = f32[8]{0} parameter(0)
 a = f32[8]{0} negate(p)
 b = f32[8]{0} abs(a)
 d = f32[8]{0} exponential(p)
 ROOT t = (f32[8]{0}, f32[8]{0}) tuple(b, d) }
""")
    after = load_module("""HloModule m
body { x = f32[8]{0} parameter(0)
 y.7 = f32[8]{0} negate(x)
 ROOT z.3 = f32[8]{0} abs(y.7) }
ENTRY e { p = f32[8]{0} parameter(0)
 f = f32[8]{0} fusion(p), kind=kLoop, calls=body
 d = f32[8]{0} exponential(p)
 ROOT t = (f32[8]{0}, f32[8]{0}) tuple(f, d) }
""")
    (group,) = recover_groups(before, after)
    assert (group.fusion, group.kind, group.members, group.unknown) == ("f", "kLoop", ("a", "b"), 0)


def test_a_dump_without_records_has_inferred_rows(corpus: Path) -> None:
    with load(str(corpus / "cpu" / "softmax_layernorm" / "dump")) as run:
        report = fusion_report(run)
    assert report.how == "inferred"
    assert {row.origin for row in report.rows} == {"inferred"}
    refused = [row for row in report.rows if row.verdict == "refused"]
    assert refused and all(row.reason for row in refused if row.producer.startswith("exp"))
    fused = {(row.producer, name) for row in report.rows if row.verdict == "fused" for name in row.consumers}
    assert not fused & {(row.producer, row.consumers[0]) for row in refused}


def test_readers_follow_the_fusions() -> None:
    module = load_module(EPILOGUE)
    readers = Readers(module)
    assert readers.of("r") == ("n", "m")
    assert readers.traffic("r", readers.of("r")) == 3 * 256
    # written anyway: it is part of the result
    assert readers.traffic("n", readers.of("n")) == 0
    readers.fuse("r", "n", "fusion")
    assert readers.of("r") == ("m",)
    assert readers.of("p") == ("r", "fusion")
    readers.fuse("r", "m", "fusion.1")
    assert readers.of("p") == ("fusion", "fusion.1")
    assert readers.of("q") == ("fusion.1",)


def test_what_is_no_kernel_costs_no_traffic_and_a_slice_reads_what_it_gives() -> None:
    readers = Readers(
        load_module("""HloModule m
ENTRY e { s = (f32[64]{0}, f32[64]{0}) parameter(0)
 i = s32[] constant(0)
 g = f32[64]{0} get-tuple-element(s), index=0
 h = f32[64]{0} get-tuple-element(s), index=1
 b = f32[8,8]{1,0} bitcast(g)
 n = f32[64]{0} negate(h)
 d = f32[8]{0} dynamic-slice(n, i), dynamic_slice_sizes={8}
 a = f32[8]{0} abs(d)
 o = f32[64]{0} exponential(g)
 u = f32[64]{0} dynamic-update-slice(o, a, i)
 r = f32[8,8]{1,0} negate(b)
 ROOT t = (f32[64]{0}, f32[8,8]{1,0}, f32[64]{0}) tuple(u, r, n) }
""")
    )
    assert readers.traffic("g", readers.of("g")) == readers.traffic("b", ("r",)) == readers.traffic("i", ("d",)) == 0
    assert readers.traffic("d", ("a",)) == 2 * 32
    # Part of the result, so written anyway; of its 256 bytes one slice is read, still so inside a fusion.
    assert readers.traffic("n", ("d",)) == 32
    readers.fuse("d", "a", "fusion")
    assert readers.traffic("n", ("fusion",)) == 32
    # Updated in place: it is written whatever is fused, and not read.
    assert readers.traffic("o", ("u",)) == 0


def test_an_element_of_a_tuple_is_no_costly_refusal(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text("""HloModule m
ENTRY e { s = (f32[4096]{0}, f32[64]{0}) parameter(0)
 g = f32[4096]{0} get-tuple-element(s), index=0
 h = f32[64]{0} get-tuple-element(s), index=1
 x = f32[64]{0} exponential(h)
 y = f32[64]{0} reverse(x), dimensions={0}
 n = f32[4096]{0} negate(g)
 w = f32[4096]{0} sine(n)
 ROOT t = (f32[4096]{0}, f32[64]{0}, f32[64]{0}) tuple(w, y, x) }
""")
    with load(str(path)) as run:
        rows = costliest_first(fusion_report(run, target="cpu").rows)
        assert {row.bytes for row in rows if row.producer in ("g", "h")} <= {0}
        assert rows[0].producer not in ("g", "h")


def test_a_fusion_that_takes_in_another_is_found_by_what_both_compute() -> None:
    inner = "inner { i.p = f32[8]{0} parameter(0)\n ROOT i.n = f32[8]{0} negate(i.p) }\n"
    before = f"""HloModule m
{inner}ENTRY e {{ p = f32[8]{{0}} parameter(0)
 f = f32[8]{{0}} fusion(p), kind=kLoop, calls=inner
 a = f32[8]{{0}} abs(f)
 ROOT c = f32[8]{{0}} cosine(a) }}
"""
    after = """HloModule m
outer { o.p = f32[8]{0} parameter(0)
 o.n = f32[8]{0} negate(o.p)
 ROOT o.a = f32[8]{0} abs(o.n) }
ENTRY e { p = f32[8]{0} parameter(0)
 f = f32[8]{0} fusion(p), kind=kLoop, calls=outer
 ROOT c = f32[8]{0} cosine(f) }
"""
    (found,) = recover_groups(load_module(before), load_module(after))
    assert (found.fusion, found.members, found.unknown) == ("f", ("f", "a"), 0)
    assert recover_groups(load_module(before), load_module(before)) == []


def test_one_that_does_not_read_the_other_is_no_pair_after_fusion_either(fixtures: Path) -> None:
    with load(str(fixtures / "dumps" / "gpu_narrow")) as run:
        rows = fusion_report(run).rows
        made = [row for row in rows if row.verdict == "fused" and row.made is not None]
        assert [row.fuel for row in rows if row.verdict == "fused"] == list(range(len(made)))
        late = next(row for row in rows if row.verdict == "priority" and row.producer in {one.made for one in made})
        assert why_pair(run, late.producer, late.consumers[0], tries=False).producer == late.producer
        with pytest.raises(UsageError, match="does not read"):
            why_pair(run, late.consumers[0], late.producer, tries=False)
        with pytest.raises(UsageError, match="no instruction"):
            why_pair(run, late.producer, "nowhere", tries=False)
        given = load_module(run.stage_text(-1)).entry.parameters[0].name
        with pytest.raises(UsageError, match=f"^'{given}' is a parameter: nothing computes it"):
            why_pair(run, given, late.producer, tries=False)


def test_a_decision_of_ours_names_its_pass(tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(EPILOGUE)
    with load(str(file)) as run:
        rows = fusion_report(run, target="a100").rows
    assert {row.pass_name for row in rows} == {"priority-fusion"}
    assert {row.origin for row in rows} == {"core"}
    assert next(row for row in rows if row.producer == "r").readers == ("n", "m")


def test_a_refusal_for_one_reader_costs_what_all_read(tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(EPILOGUE)
    with load(str(file)) as run:
        row = next(row for row in fusion_report(run, target="h100").rows if row.producer == "r")
        assert (row.verdict, row.bytes) == ("ineligible", 3 * 256)
        assert why_pair(run, "r", "n", target="h100", tries=False).numbers["bytes"] == 3 * 256


@pytest.mark.parametrize(
    ("case", "later", "then", "verdict"),
    [
        # renamed by rename_fusions
        ("gpu_narrow", ("gemm_fusion_dot.2", "loop_reduce_fusion"), ("gemm_fusion_dot.2", "fusion.5"), "ineligible"),
        ("gpu_narrow", ("input_concatenate_fusion", "input_reduce_fusion"), ("fusion.6", "fusion.7"), "refused"),
        # put around one instruction by fusion-wrapper, by priority-fusion after its queue, by the CPU's wrapper
        ("gpu_narrow", ("input_concatenate_fusion", "wrapped_transpose"), ("fusion.6", "transpose.4.0"), "refused"),
        ("gpu", ("gemm_fusion_dot", "loop_reduce_fusion"), ("gemm_fusion_dot", "reduce.1"), "refused"),
        (
            "cpu",
            ("wrapped_reduce-window", "wrapped_reduce-window.1"),
            ("reduce_window_sum.1", "reduce-window"),
            "refused",
        ),
    ],
)
def test_names_of_the_last_stage_are_asked_about(
    fixtures: Path, case: str, later: tuple[str, str], then: tuple[str, str], verdict: str
) -> None:
    with load(str(fixtures / "dumps" / case)) as run:
        found = why_pair(run, *later, tries=False)
        same = why_pair(run, *then, tries=False)
    assert (found.producer, found.consumer) == then and found.verdict == same.verdict == verdict
    assert found.reason == same.reason is not None
    told = " ".join(found.notes)
    for old, new in zip(then, later, strict=True):
        assert (
            old == new or f"{new} is the later name of {old}" in told or f"{new} was made later, around {old}" in told
        )


def test_two_fusions_of_a_dump_without_records_are_a_pair(fixtures: Path) -> None:
    with load(str(fixtures / "dumps" / "cpu")) as run:
        report = fusion_report(run)
        made = {row.producer: row.made for row in report.rows if row.verdict == "fused"}
        apart = next(row for row in report.rows if row.verdict == "refused" and row.consumers[0] in made)
        reader = made[apart.consumers[0]]
        assert reader is not None
        assert why_pair(run, apart.producer, reader, tries=False).reason == apart.reason
        inside = next(row for row in report.rows if row.verdict == "fused" and row.made is not None)
        assert why_pair(run, inside.producer, inside.made or "", tries=False).verdict == "fused"


def test_what_a_later_pass_made_is_said_to_be_not_there_yet(corpus: Path) -> None:
    with load(str(corpus / "gpu" / "lstm_scan__narrow" / "dump")) as run:
        with pytest.raises(UsageError, match=r"'copy.82' is not there .*copy_fusion made it \(stage 14\)"):
            why_pair(run, "gemm_fusion_dot.4", "copy.82", tries=False)
