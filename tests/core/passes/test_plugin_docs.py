"""docs/plugins.md: its files are written, its commands run, and what they print is what the page says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from hloscope.core.cli.main import run
from hloscope.core.text import load_module

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(command, what it prints) of every console block, in a folder that holds the page's two files."""
    blocks = _BLOCK.findall((root / "docs" / "plugins.md").read_text(encoding="utf-8"))
    files = {"python": "my_plugin.py", "hlo": "in.hlo"}
    for language, text in blocks:
        if language in files:
            (tmp_path / files.pop(language)).write_text(text, encoding="utf-8")
    assert not files
    monkeypatch.chdir(tmp_path)
    commands: list[tuple[str, str]] = []
    for language, text in blocks:
        if language == "console":
            for one in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, printed = one.partition("\n")
                commands.append((command, printed))
    return commands


def _run(capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, str, str]:
    program, *words = shlex.split(command)
    assert program == "hloscope"
    capsys.readouterr()
    code = run(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_every_command_of_the_page_prints_what_it_shows(
    page: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert {command.split()[1] for command, _ in page} == {"opt", "diff", "sql", "compile", "bisect"}
    for command, printed in page:
        code, out, err = _run(capsys, command)
        assert (code, err) == (0, ""), command
        if printed:
            assert out.split() == printed.split(), command


def test_the_pass_takes_its_option_and_fuel(page: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    words = "hloscope opt --plugin my_plugin.py in.hlo --passes "
    _, out, _ = _run(capsys, words + "divide-by-power")
    assert [one.opcode for one in load_module(out).entry].count("divide") == 0
    for less in ("'divide-by-power{largest=4}'", "divide-by-power --fuel divide-by-power=0"):
        _, out, _ = _run(capsys, words + less)
        assert [one.opcode for one in load_module(out).entry].count("divide") == 1
    _, out, _ = _run(capsys, words + "divide-by-power --json")
    assert [row["fuel_used"] for row in json.loads(out)["passes"]] == [1]


def test_the_pass_and_the_rule_compute_the_same(
    page: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    command = "hloscope bisect in.hlo --plugin my_plugin.py --passes divide-by-power,algsimp --json"
    code, out, _ = _run(capsys, command)
    assert (code, json.loads(out)["verdict"]) == (0, "no-difference")
    wrong = Path("my_plugin.py").read_text().replace("1 / divisor", "2 / divisor")
    Path("my_plugin.py").write_text(wrong)
    code, out, _ = _run(capsys, command)
    assert (code, json.loads(out)["verdict"]) == (1, "wrong-stage")
