"""``hloscope parse``: what it says of broken files, in JSON and in words, and what it does with stray bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hloscope.core.cli.parse import command

TWICE = """HloModule m

ENTRY e {
  p = f32[2] parameter(0)
  p = f32[2] negate(p), future=3
  ROOT c = f32[2] copy(p)
}
"""


def _run(*words: str) -> Result:
    return CliRunner().invoke(command, list(words), standalone_mode=False)


def _row(path: Path, *words: str) -> dict[str, Any]:
    answer = json.loads(_run(str(path), "--json", *words).stdout)
    assert answer["source"]["path"] == str(path)
    return answer["rows"][0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "m.hlo"


def test_json_names_both_places_of_a_name_that_is_there_twice(file: Path) -> None:
    file.write_text(TWICE)
    row = _row(file)
    assert not row["ok"] and row["xla_would_reject"]
    (error,) = row["errors"]
    assert (error["line"], error["column"], error["code"]) == (5, 3, "duplicate-name")
    assert error["related"] == [{"line": 4, "column": 3, "message": "the first is here"}]
    assert "the first is in line 4" in row["error"]


def test_json_holds_the_notes(file: Path) -> None:
    file.write_text(TWICE)
    (note,) = _row(file)["notes"]
    assert note["severity"] == "information" and "unknown attribute future" in note["message"]
    assert (note["line"], note["column"]) == (5, 25)
    strict = _row(file, "--strict")
    assert not strict["notes"] and [one["line"] for one in strict["errors"]] == [5]  # one line, one fault


def test_a_misspelt_header_is_what_xla_would_reject(file: Path) -> None:
    file.write_text(TWICE.replace("HloModule", "HloModul"))
    row = _row(file)
    assert row["xla_would_reject"] is True and "'HloModul'" in row["error"]
    assert _row(file.with_name("missing.hlo"))["xla_would_reject"] is None


def test_a_byte_order_mark_is_read_and_would_be_rejected(file: Path) -> None:
    sound = "HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }\n"
    file.write_bytes(b"\xef\xbb\xbf" + sound.encode())
    assert (_row(file)["ok"], _row(file)["xla_would_reject"]) == (True, True)
    assert not _row(file, "--strict")["ok"]
    file.write_text(sound)
    assert not _row(file)["xla_would_reject"]


def test_one_stray_byte_does_not_make_a_file_binary(file: Path) -> None:
    text = (
        b'HloModule m\n\nENTRY e {\n  p = f32[2] parameter(0), metadata={op_name="a\xffb"}\n'
        b"  ROOT c = f32[2] copy(p)\n}\n"
    )
    file.write_bytes(text)
    result = _run(str(file))
    assert result.return_value == 0 and 'op_name="a\\377b"' in result.stdout
    assert "4:48: warning: byte 0xff, which is not UTF-8 text, is kept" in result.stderr
    row = _row(file)
    assert row["ok"] and row["notes"][0]["code"] == "stray-byte" and not row["xla_would_reject"]
    file.write_bytes(text.replace(b"\n}", b"\x00\n}"))
    row = _row(file)
    assert row["ok"] and row["instructions"] == 2 and row["xla_would_reject"]


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x01\x00" * 200, b"HloModule m" + bytes(range(256)) * 40])
def test_binary_files_stay_binary(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    row = _row(file)
    assert "binary data" in row["error"] and row["xla_would_reject"]
