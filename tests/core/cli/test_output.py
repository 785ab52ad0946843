"""Tables and objects as a person and as a program see them, through a command that uses the shared options."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from hloscope.core.cli.output import Column, TableOptions, emit_object, emit_table, json_option, table_options
from hloscope.core.cli.progress import progress
from hloscope.core.errors import UsageError
from hloscope.core.version import version
from hloscope.core.views.data import Source

SOURCE = Source(path="dump", module="jit_f", xla_build="jaxlib 1", target="cpu", kind="dump")
COLUMNS = [Column("name"), Column("bytes"), Column("ns", show=lambda value: f"{value} ns"), Column("id", hidden=True)]
ROWS: list[dict[str, object]] = [
    {"name": "b", "bytes": 20, "ns": None, "id": 1, "more": [1]},
    {"name": "a", "bytes": 1_000_000, "ns": 7, "id": 2, "more": []},
    {"name": "c\n\x1b[31m", "bytes": 20, "ns": 3, "id": 3, "more": []},
]


@click.command()
@table_options
def show_table(table: TableOptions) -> None:
    emit_table(iter(ROWS), COLUMNS, table, source=SOURCE)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(show_table, list(arguments))


def rows(*arguments: str) -> list[int]:
    result = run("--json", *arguments)
    assert result.exit_code == 0, result.output
    return [row["id"] for row in json.loads(result.stdout)["rows"]]


def test_json_is_the_envelope_and_nothing_else() -> None:
    assert json.loads(run("--json").stdout) == {
        "hloscope": version(),
        "source": {"path": "dump", "module": "jit_f", "xla_build": "jaxlib 1", "target": "cpu"},
        "rows": ROWS,
        "truncated": False,
    }


def test_jsonl_is_one_row_a_line() -> None:
    assert [json.loads(line) for line in run("--jsonl").stdout.splitlines()] == ROWS


def test_jsonl_streams() -> None:
    def endless() -> Iterator[dict[str, object]]:
        number = 0
        while True:
            yield {"name": "x", "bytes": number}
            number += 1

    @click.command()
    @table_options
    def command(table: TableOptions) -> None:
        emit_table(endless(), ["name", "bytes"], table)

    result = CliRunner().invoke(command, ["--jsonl", "--limit", "2", "--filter", "bytes>10"])
    assert [json.loads(line)["bytes"] for line in result.stdout.splitlines()] == [11, 12]


def test_filter_sort_and_limit_work_together() -> None:
    assert rows("--sort", "bytes,-name") == [3, 1, 2]
    assert rows("--sort", "-bytes,name") == [2, 1, 3]
    assert rows("--filter", "bytes<1kB", "--sort", "-name") == [3, 1]
    assert rows("--filter", "id=2") == [2]


def test_unknown_values_sort_last_both_ways() -> None:
    assert rows("--sort", "ns") == [3, 2, 1]
    assert rows("--sort", "-ns") == [2, 3, 1]


@pytest.mark.parametrize(("limit", "truncated"), [(0, True), (2, True), (3, False), (9, False)])
def test_limit_says_when_it_left_something_out(limit: int, truncated: bool) -> None:
    answer = json.loads(run("--json", "--limit", str(limit)).stdout)
    assert len(answer["rows"]) == min(limit, 3)
    assert answer["truncated"] is truncated
    assert ("more rows" in run("--limit", str(limit)).stderr) is truncated


def test_a_table_on_a_pipe_is_aligned_and_harmless() -> None:
    assert run().stdout.splitlines() == [
        r"name             bytes    ns",
        r"b                   20     -",
        r"a            1,000,000  7 ns",
        r"c\n\x1b[31m         20  3 ns",
    ]


def test_an_unknown_column_is_named_with_the_nearest() -> None:
    for option in ("--sort", "--filter"):
        error = run(option, "byte").exception
        assert isinstance(error, UsageError)
        assert "no column 'byte'" in str(error) and "bytes" in str(error)


def test_a_streamed_table_is_whole_and_grows_where_it_must(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"n": number, "name": "x" * (1 if number < 700 else 5)} for number in range(1000)]
    assert emit_table(iter(rows), ["n", "name"], TableOptions(limit=900), stream=True) == 900
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["  n  name", "  0  x"] and lines[-1] == "899  xxxxx" and len(lines) == 901
    assert emit_table(iter(rows), ["n", "name"], TableOptions(sort="-n"), stream=True) == 1000
    assert capsys.readouterr().out.splitlines()[1] == "999  xxxxx"


def test_json_and_jsonl_exclude_each_other() -> None:
    assert isinstance(run("--json", "--jsonl").exception, UsageError)


def test_an_object_has_its_keys_beside_the_envelope() -> None:
    @dataclass(frozen=True)
    class Answer:
        where: Path
        worst: tuple[float, ...]

    @click.command()
    @json_option
    def command(as_json: bool) -> None:
        emit_object(Answer(Path("a/b"), (1.5, math.nan, -math.inf)), as_json, "said plainly", source=SOURCE)

    assert CliRunner().invoke(command, []).stdout == "said plainly\n"
    answer = json.loads(CliRunner().invoke(command, ["--json"]).stdout, parse_constant=lambda text: pytest.fail(text))
    assert list(answer) == ["hloscope", "source", "where", "worst"]
    assert answer["where"] == "a/b" and answer["worst"] == [1.5, "NaN", "-Infinity"]


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_on_a_terminal_columns_fit_the_width_and_progress_shows() -> None:
    import fcntl
    import pty
    import struct
    import termios

    program = (
        "from hloscope.core.cli.output import TableOptions, emit_table\n"
        "import time\n"
        "from hloscope.core.cli.progress import progress, waiting\n"
        "with waiting('opening ' + 'd' * 90): time.sleep(0.4)\n"
        "with waiting('quick'): pass\n"
        "with progress('reading') as report: report(1, 2)\n"
        "emit_table([{'name': 'x' * 200, 'bytes': 1234567}], ['name', 'bytes'], TableOptions())\n"
    )
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    for name in ("COLUMNS", "NO_COLOR"):
        environment.pop(name, None)
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    received = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        received += chunk
    os.close(ours)
    assert child.wait(timeout=60) == 0, received.decode()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received.decode())
    assert "reading" in text and "1/2" in text
    waited = [line for line in text.splitlines() if "opening" in line]
    assert waited and all(len(line) < 60 for line in waited) and "quick" not in text
    assert received.index(b"opening") < received.index(b"\r\x1b[K", received.rindex(b"opening"))
    table = [line.rstrip() for line in text.splitlines() if "x" * 20 in line]
    assert len(table) == 1 and len(table[0]) <= 60
    assert "…" in table[0] and table[0].endswith("1,234,567")


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (80, ["name", "size", "extra", "more", "long"]),
        (50, ["name", "size", "more", "long"]),
        (40, ["name", "size", "long"]),
        (30, ["name", "size", "long"]),
    ],
)
def test_a_narrow_terminal_leaves_out_what_matters_less(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, headings: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    going = [Column("extra", first_to_go=2), Column("more", first_to_go=1)]
    columns = [Column("name"), Column("size"), *going, Column("long")]
    row = {"name": "n", "size": 12, "extra": "e" * 16, "more": "m", "long": "x" * 90}
    emit_table([row], columns, TableOptions())
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert out.split("\n")[0].split() == headings
    assert all(len(line.rstrip()) <= width for line in out.split("\n"))


def test_progress_is_silent_on_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("reading") as report:
        report(1, 2)
    assert capfd.readouterr() == ("", "")


def test_a_column_answers_to_its_heading_too(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column("instructions_after", title="after"), Column("name")]
    rows = [{"instructions_after": 3, "name": "a"}, {"instructions_after": 7, "name": "b"}]
    emit_table(rows, columns, TableOptions(filter="after > 1", sort="-after", jsonl=True))
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["b", "a"]
