"""Modules told apart: duplicates, and why a module was compiled again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope.core.cli import main
from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.facts import broken, content_digest, count_instructions, scan
from hloscope.core.dumps.importer import import_dump
from hloscope.core.dumps.listing import ListingRow, list_modules
from hloscope.core.views.modules import ledger_build, list_path

HloText = Callable[..., str]
WriteDump = Callable[[dict[str, str | bytes]], Path]


def listed(path: Path) -> dict[int, ListingRow]:
    with open_dump(path) as dump:
        return {row.id: row for row in list_modules(dump)}


def pair(write_dump: WriteDump, first: str, second: str, extra: dict[str, str | bytes] | None = None) -> ListingRow:
    """The row of the second of two compiles of one name."""
    rows = listed(
        write_dump(
            {
                "module_0001.jit_f.before_optimizations.txt": first,
                "module_0002.jit_f.before_optimizations.txt": second,
                **(extra or {}),
            }
        )
    )
    assert rows[1].differs_by is None and rows[1].same_as is None
    assert rows[2].differs_from in (rows[1].index, None)
    return rows[2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bare": "f32[16]"}, "parameter 0: f32[8] → f32[16]"),
        ({"bare": "bf16[8]"}, "parameter 0: f32[8] → bf16[8]"),
        ({"layout": "{0:T(128)}"}, "layout of parameter 0: f32[8]{0} → f32[8]{0:T(128)}"),
        ({"constant": "3"}, "values of constants"),
        ({"opcode": "multiply"}, "body (-1 add, +1 multiply)"),
        ({"attributes": ", num_partitions=8"}, "num_partitions=8 is new"),
        ({"sharding": ", sharding={replicated}"}, "sharding of parameter 0: none → {replicated}"),
    ],
)
def test_why_it_was_compiled_again(write_dump: WriteDump, hlo: HloText, change: dict[str, str], says: str) -> None:
    row = pair(write_dump, hlo(), hlo(**change))
    assert row.same_as is None
    assert row.differs_by == says


def test_equal_programs_are_the_same_whatever_their_names_and_lines(write_dump: WriteDump, hlo: HloText) -> None:
    rows = listed(
        write_dump(
            {
                "module_0001.jit_f.before_optimizations.txt": hlo(line=1),
                "module_0002.jit_f.before_optimizations.txt": hlo(line=22222),
                "module_0003.jit_g.before_optimizations.txt": hlo(name="jit_g"),
                "module_0004.jit_g.before_optimizations.txt": hlo(name="jit_g", opcode="subtract"),
            }
        )
    )
    assert [rows[number].same_as for number in (1, 2, 3, 4)] == [None, rows[1].index, rows[1].index, None]
    assert rows[2].differs_by == "source: line 1 → line 22222"


def test_equal_programs_may_differ_by_flags(write_dump: WriteDump, hlo: HloText) -> None:
    row = pair(
        write_dump,
        hlo(),
        hlo(),
        {
            "module_0001.jit_f.debug_options": 'xla_a: 1\nxla_dump_to: "/d"\n',
            "module_0002.jit_f.debug_options": 'xla_a: 2\nxla_dump_to: "/d"\n',
        },
    )
    assert row.same_as is not None and row.differs_by == "flags: xla_a 1 → 2"


def test_flags_are_told_beside_what_differs_in_the_text(write_dump: WriteDump, hlo: HloText, tmp_path: Path) -> None:
    """Not those that change nothing in a compile; folders that somebody made are compared one with the next."""
    table = '\nFileNames\n1 "/a/x.py"\n2 "/a/y.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n'
    places = "{ids=1 line=%d end_line=99 column=0}\n2 {file_name_id=2 function_name_id=1 line=7 end_line=7}\n\n\n"

    def text(line: int, **change: str) -> str:
        head, _, body = hlo(**change).partition("\n")
        return head + "\n" + table + "1 " + places.replace("ids=1", "file_name_id=1 function_name_id=1") % line + body

    def named(folder: str, number: int, text: str, flags: str) -> dict[str, str | bytes]:
        begin = f"{folder}module_{number:04d}.jit_f."
        return {f"{begin}before_optimizations.txt": text, f"{begin}debug_options": f'xla_dump_to: "{folder}"\n{flags}'}

    fast = "xla_fast: true\n"
    many = "".join(f"xla_{letter}: 1\n" for letter in "abcdef")
    dump = write_dump(
        {
            **named("a/", 1, text(3), ""),
            **named("a/", 2, text(4), "xla_gpu_dump_llvmir: true\n"),
            **named("a/", 3, text(4, opcode="multiply"), fast),
            **named("b/", 1, text(4, opcode="multiply"), fast),
            **named("b/", 2, text(4, opcode="multiply").replace('op_name="x"', 'op_name="y"'), fast),
            **named("c/", 1, text(4, opcode="multiply"), many),
        }
    )
    import_dump(dump, tmp_path / "run.ledger")
    for path in (dump, tmp_path / "run.ledger"):
        assert {f"{row.folder}{row.id}": row.differs_by for row in list_path(str(path)).rows} == {
            "a/1": None,
            "a/2": "source: x.py:3 → x.py:4",
            "a/3": "body (-1 add, +1 multiply); flags: xla_fast unset → true",
            "b/1": None,
            "b/2": 'metadata: {op_name="x" source_line=1} → {op_name="y" source_line=1}',
            "c/1": "folder b/ → c/; flags: " + ", ".join(f"xla_{one} unset → 1" for one in "abcd") + " and 3 more",
        }


def _entry(key: bytes, value: bytes) -> bytes:
    """A field 7 with an entry of a map."""
    said = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(value)]) + value
    return b"\x3a" + bytes([len(said)]) + said


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (b"\x1d\x00\x00\x80\x3f" + _entry(b"rtt_us", b"-1") + _entry(b"chunk", b"-2"), None),
        (b"\x1d\x00\x00\x80\x3f" + _entry(b"rtt_us", b"-2") + _entry(b"chunk", b"-1"), "options"),
        (b"\x1d\x00\x00\x80\x3e" + _entry(b"chunk", b"-2") + _entry(b"rtt_us", b"-1"), "options"),
        (b"\x1d\x00\x00\x80\x3f" + _entry(b"chunk", b"-2"), "options"),
        (b"\x1d\x00\x00\x80\x3f" + _entry(b"chunk", b"-2") * 2 + _entry(b"rtt_us", b"-1"), "options"),
    ],
)
def test_options_are_compared_by_what_they_say(
    write_dump: WriteDump, hlo: HloText, tmp_path: Path, second: bytes, says: str | None
) -> None:
    first = b"\x1d\x00\x00\x80\x3f" + _entry(b"chunk", b"-2") + _entry(b"rtt_us", b"-1")
    files: dict[str, str | bytes] = {
        "module_0001.jit_f/compile_options.pb": first,
        "module_0002.jit_f/compile_options.pb": second,
    }
    row = pair(write_dump, hlo(), hlo(), files)
    assert row.same_as is not None and row.differs_by == says
    import_dump(tmp_path / "dump", tmp_path / "run.ledger")
    assert {one.id: one.differs_by for one in list_path(str(tmp_path / "run.ledger")).rows} == {1: None, 2: says}


def test_options_as_text_are_compared_without_blanks_and_order_of_maps(write_dump: WriteDump, hlo: HloText) -> None:
    one, two = '{ key: "a" value { int_field: 1 } }', '{ key: "b" value { int_field: 2 } }'
    files: dict[str, str | bytes] = {
        "module_0001.jit_f/compile_options.textproto": f"device: 1\noverrides {one}\noverrides {two}\n",
        "module_0002.jit_f/compile_options.textproto": f"device:  1\noverrides {two}\noverrides {one}\n",
    }
    assert pair(write_dump, hlo(), hlo(), files).differs_by is None
    files["module_0002.jit_f/compile_options.textproto"] = f"device: 2\noverrides {one}\noverrides {two}\n"
    assert pair(write_dump, hlo(), hlo(), files).differs_by == "options"


def test_a_ledger_tells_its_modules_apart_as_the_dump_does(
    write_dump: WriteDump, hlo: HloText, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = {f"module_{number:04d}.jit_f.debug_options": f"xla_a: {number // 3}\n" for number in range(1, 4)}
    dump = write_dump(
        {
            "module_0002.jit_f.before_optimizations.txt": hlo(),
            "module_0001.jit_f.before_optimizations.txt": hlo(opcode="multiply", bare="f32[1024]"),
            "module_0003.jit_f.before_optimizations.txt": hlo(),
            **same,
            "module_0004.jit_g.before_optimizations.txt": hlo(name="jit_g")[:-40],
            "module_0005.jit_h.debug_options": "",
            "hloscope_capture.json": '{"jaxlib": "0.10.2"}',
        }
    )
    import_dump(dump, tmp_path / "run.ledger")
    of_dump, of_ledger = list_path(str(dump)), list_path(str(tmp_path / "run.ledger"))
    assert of_ledger.rows == of_dump.rows and of_ledger.xla_build == of_dump.xla_build == "jaxlib 0.10.2"
    assert ledger_build(str(tmp_path / "run.ledger")) == "jaxlib 0.10.2"
    assert main.run(["ls", str(dump), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"]["xla_build"] == "jaxlib 0.10.2"
    by_id = {row.id: row for row in of_ledger.rows}
    assert by_id[2].differs_by == "parameter 0: f32[1024] → f32[8]" and by_id[2].differs_from == by_id[1].index
    assert by_id[3].differs_by == "flags: xla_a 0 → 1" and by_id[3].same_as == by_id[2].index
    assert [by_id[number].order for number in (1, 2, 3, 4, 5)] == [0, 1, 2, 3, 4]


def test_modules_in_folders_of_their_own_keep_the_order_of_their_process(write_dump: WriteDump, hlo: HloText) -> None:
    files: dict[str, str | bytes] = {
        f"{name}/host_{process}/module_{number:04d}.{name}.before_optimizations.txt": hlo(bare=f"f32[{number}]")
        for name, process, number in [("jit_b", 7, 1), ("jit_a", 7, 2), ("jit_b", 7, 3), ("jit_b", 8, 2)]
    }
    rows = sorted(list_path(str(write_dump(files))).rows, key=lambda row: row.order)
    assert [(row.name, row.id, row.folder[-2]) for row in rows] == [
        ("jit_b", 1, "7"), ("jit_a", 2, "7"), ("jit_b", 3, "7"), ("jit_b", 2, "8"),
    ]  # fmt: skip
    assert [row.differs_by for row in rows] == [None, None, "parameter 0: f32[1] → f32[3]", None]


def test_a_real_dump_of_many_small_modules(fixtures: Path) -> None:
    rows = listed(fixtures / "dumps" / "cpu_multi")
    assert len(rows) == 13
    assert rows[20].name == "jit__reduce_sum" and rows[20].differs_by == "parameter 0: f32[3,4] → bf16[5,4]"
    assert rows[20].differs_from == rows[6].index
    assert {row.target for row in rows.values()} == {"cpu", None}


def test_instruction_counts_of_the_corpus_are_those_of_xla(corpus: Path) -> None:
    checked = 0
    for case in sorted(corpus.glob("*/*")):
        told = (
            json.loads((case / "case.json").read_text()).get("instructions")
            if case.is_dir() and (case / "case.json").exists()
            else None
        )
        if not told:
            continue
        with open_dump(case / "dump") as dump:
            module = dump.select()[0]
            stages = {stage.pass_name: stage for stage in module.stages}
            for point, count in told.items():
                assert count_instructions(stages[point].read_bytes()) == count, case
                checked += 1
    assert checked > 100


def test_modules_that_cannot_be_read_say_why(write_dump: WriteDump, hlo: HloText) -> None:
    rows = listed(
        write_dump(
            {
                "module_0001.a.before_optimizations.txt": hlo()[:-40],
                "module_0002.b.before_optimizations.txt": "",
                "module_0003.c.before_optimizations.txt": b"\x00\x01binary",
                "module_0004.d.debug_options": "",
            }
        )
    )
    assert "breaks off" in (rows[1].note or "")
    assert "empty" in (rows[2].note or "") and "not HLO text" in (rows[3].note or "")
    assert rows[4].note == "no snapshot" and rows[4].instructions is None


def test_source_tables_are_no_content(hlo: HloText) -> None:
    head, _, body = hlo().partition("\n")
    table = '\nFileNames\n1 "a.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n1 {line=%d}\n\nStackFrames\n1 {}\n\n'
    one, two = (f"{head}\n{table % line}{body}".encode() for line in (1, 2))
    assert content_digest(one) == content_digest(two)
    assert content_digest(one) != content_digest(one.replace(b"add", b"multiply"))
    assert scan(one).fingerprint == scan(two).fingerprint == scan(hlo().encode()).fingerprint


@pytest.mark.parametrize("cut", [1, 20, 60, 150, 250, 350])
def test_text_that_breaks_off_is_noticed(hlo: HloText, cut: int) -> None:
    text = hlo().encode()
    assert broken(text) is None
    assert broken(text.rstrip()[:-cut]) is not None


def test_braces_stand_where_people_put_them(hlo: HloText) -> None:
    text = hlo()
    one_line = " ".join(text.split())
    for whole in (text.rstrip("}\n") + " }", one_line, text + "// the end }\n"):
        assert broken(whole.encode()) is None
    for cut in (text.rstrip("}\n"), one_line[:-2], one_line[:-2] + ', metadata={op_name="}"}'):
        assert "closing brace" in (broken(cut.encode()) or "")
