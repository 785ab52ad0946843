"""``XLA_FLAGS`` of a captured program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hloscope.core.xla.flags import (
    OPTIONAL_FLAGS,
    capture_environment,
    dump_flags,
    joined_flags,
    quoted,
    supported_flags,
    user_dump_folder,
)


def test_the_users_flags_come_first(tmp_path: Path) -> None:
    assert joined_flags("--xla_a=1", ["--xla_b=2"]) == "--xla_a=1 --xla_b=2"
    assert joined_flags(None, ["--xla_b"]) == "--xla_b"
    file = tmp_path / "flags"
    file.write_text("--xla_a=1\n--xla_c\n")
    assert joined_flags(str(file), ["--xla_b"]) == "--xla_a=1 --xla_c --xla_b"


def test_folders_with_blanks_are_quoted() -> None:
    assert quoted("--xla_dump_to=/a b") == '--xla_dump_to="/a b"'
    assert quoted("--xla_dump_to=/a'\"b") == "--xla_dump_to='/a'\"b'"
    assert quoted("--xla_dump_to=/ab") == "--xla_dump_to=/ab"
    assert user_dump_folder("--xla_x --xla_dump_to='/a b'") == "/a b"
    assert user_dump_folder("--xla_x") is None and user_dump_folder(None) is None


def test_the_environment_keeps_what_the_user_set() -> None:
    env = capture_environment({"TF_CPP_VMODULE": "mine=2", "HOME": "/h"}, dump_flags("/d", proto=False))
    assert env["TF_CPP_VMODULE"].startswith("mine=2,hlo_pass_pipeline=1")
    assert env["HOME"] == "/h" and env["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert env["XLA_FLAGS"] == "--xla_dump_to=/d --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=.*"


def test_flags_are_tried_in_a_child_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (*OPTIONAL_FLAGS, "--xla_flag_of_the_year_3000")
    assert supported_flags(sys.executable, asked) == list(OPTIONAL_FLAGS)
    (remembered,) = (tmp_path / "cache").rglob("*.json")
    text = remembered.read_text()
    assert text.count("true") == 2 and text.count("false") == 1
    remembered.write_text(text.replace("false", "true"))
    assert supported_flags(sys.executable, asked) == list(asked)
    assert supported_flags("/no/such/python", asked) == []
