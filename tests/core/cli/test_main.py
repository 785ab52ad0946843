"""The command's frame: what it imports, how it ends, and how failures read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hloscope.core.cli import main
from hloscope.core.errors import ParseError
from hloscope.core.version import version

HEAVY = ("jax", "jaxlib", "textual", "pygls", "lsprotocol", "numpy", "rich", "scipy", "hypothesis")


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, click.Command]]:
    """Commands that a test adds by name."""
    commands: dict[str, click.Command] = {}
    look_up = main.CommandTable.get_command

    def get_command(self: main.CommandTable, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return commands.get(cmd_name) or look_up(self, ctx, cmd_name)

    monkeypatch.setattr(main.CommandTable, "get_command", get_command)
    yield commands


def plant(commands: dict[str, click.Command], outcome: BaseException | int | None) -> None:
    @click.command()
    @click.argument("paths", nargs=-1)
    def command(paths: tuple[str, ...]) -> int | None:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    commands["planted"] = command


def hloscope(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hloscope.core.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from hloscope.core.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    for name in ("open", "lsp", "bisect", *main.COMMANDS):
        assert f"  {name} " in done.stdout
    assert "does not load" not in done.stdout


@pytest.mark.parametrize("name", sorted(main.COMMANDS))
def test_every_command_of_the_table_loads_and_shows_an_example(name: str) -> None:
    context = click.Context(main.cli)
    command = main.cli.get_command(context, name)
    assert command is not None
    with click.Context(command, info_name=f"hloscope {name}", parent=None) as own:
        text = command.get_help(own)
    assert "hloscope " + name in " ".join(text.split("\n")[1:]), "the help shows no example"


def test_version_and_bare_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"hloscope {version()}\n"
    assert main.run([]) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("outcome", "code", "line"),
    [
        (None, 0, ""),
        (1, 1, ""),
        (ParseError("no root", path="a.hlo", line=3, column=7), 2, "hloscope: a.hlo:3:7: no root\n"),
        (click.UsageError("bad\n  thing"), 2, "hloscope: bad thing (see hloscope planted --help)\n"),
        (PermissionError(13, "Permission denied", "x.ledger"), 2, "hloscope: x.ledger: Permission denied\n"),
        (OSError(28, "No space left on device"), 2, "hloscope: No space left on device\n"),
        (KeyboardInterrupt(), 130, "hloscope: interrupted\n"),
        (
            ZeroDivisionError("by\nzero"), 70,
            "hloscope: internal error: ZeroDivisionError: by zero (set HLOSCOPE_TRACEBACK=1 to see where)\n",
        ),
    ],
)  # fmt: skip
def test_how_it_ends(
    planted: dict[str, click.Command],
    capsys: pytest.CaptureFixture[str],
    outcome: BaseException | int | None,
    code: int,
    line: str,
) -> None:
    plant(planted, outcome)
    assert main.run(["planted"]) == code
    assert capsys.readouterr().err == line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_below_standard_output_is_named() -> None:
    program = "from hloscope.core.cli import main; main._invoke = lambda _: print('x' * 9000); main.main()"
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 2
    assert done.stderr == b"hloscope: standard output: No space left on device\n"


def test_the_traceback_can_be_asked_for(
    planted: dict[str, click.Command], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLOSCOPE_TRACEBACK", "1")
    plant(planted, ZeroDivisionError("zero"))
    assert main.run(["planted"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_bare_path_opens_it(planted: dict[str, click.Command], tmp_path: Path) -> None:
    seen: list[tuple[str, ...]] = []

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1)
    def opener(arguments: tuple[str, ...]) -> None:
        seen.append(arguments)

    planted["open"] = opener
    assert main.run([str(tmp_path), "--json"]) == 0
    assert main.run(["missing.ledger"]) == 0
    assert main.run(["-"]) == 0
    assert seen == [(str(tmp_path), "--json"), ("missing.ledger",), ("-",)]


def test_a_wrong_option_is_one_line_that_names_the_help(
    planted: dict[str, click.Command], capsys: pytest.CaptureFixture[str]
) -> None:
    plant(planted, None)
    assert main.run(["planted", "--nope"]) == 2
    assert capsys.readouterr().err == "hloscope: No such option '--nope'. (see hloscope planted --help)\n"


def test_an_unknown_command_is_one_line() -> None:
    done = hloscope("pases")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "hloscope: no command and no file 'pases' (did you mean passes or parse?)\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = (
        "import sys, click\n"
        "from hloscope.core.cli import main\n"
        "@click.command()\n"
        "def endless():\n"
        "    while True: click.echo('row')\n"
        "main.CommandTable.get_command = lambda *ignored: endless\n"
        "sys.argv = ['hloscope', 'endless']\n"
        "main.main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"row\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == main.EXIT_BROKEN_PIPE


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_is_one_line_and_130() -> None:
    program = (
        "import sys, time, click\n"
        "from hloscope.core.cli import main\n"
        "@click.command()\n"
        "def slow():\n"
        "    click.echo('ready')\n"
        "    sys.stdout.flush()\n"
        "    time.sleep(60)\n"
        "main.CommandTable.get_command = lambda *ignored: slow\n"
        "sys.argv = ['hloscope', 'slow']\n"
        "main.main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors == b"hloscope: interrupted\n"
    assert process.returncode == 130
