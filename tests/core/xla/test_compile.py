"""Compiling with the real XLA in a child process, and reading protos there."""

from __future__ import annotations

import fcntl
import gzip
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.importer import import_dump
from hloscope.core.errors import CompileError, DumpError, UnsupportedError, UsageError
from hloscope.core.xla.child import last_line
from hloscope.core.xla.compile import compile_function, compile_hlo_text, compile_stablehlo, split_spec
from hloscope.core.xla.probe import probe
from hloscope.core.xla.protos import module_proto, proto_file_to_text, proto_reader, protos_to_text
from hloscope.core.xla.targets import TARGETS, is_available

HLO = """HloModule tiny, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

ENTRY main {
  x = f32[4]{0} parameter(0)
  ROOT add = f32[4]{0} add(x, x)
}
"""
STABLEHLO = """module @tiny {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %x, %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


def test_hlo_text_is_compiled_and_its_protos_read_back(tmp_path: Path) -> None:
    dump_to = tmp_path / "dump"
    result = compile_hlo_text(HLO, dump_to=dump_to)
    assert result.module == "tiny" and result.jaxlib and result.seconds > 0
    with open_dump(dump_to) as dump:
        module = dump.select("^tiny$")[0]
        assert module.stages[-1].label == "cpu_after_optimizations"
        first = module.stages[0]
        proto = first.proto()
        assert proto is not None
        (text,) = protos_to_text([proto])
        assert text.splitlines()[-3:] == first.read_text().splitlines()[-3:]
        packed = tmp_path / "module.hlo.pb.gz"
        packed.write_bytes(gzip.compress(proto))
    assert proto_file_to_text(packed) == text
    for file in dump_to.rglob("*.txt"):
        file.unlink()
    report = import_dump(dump_to, tmp_path / "run.ledger", proto_reader=proto_reader)
    assert report.stages > 5 and report.notes == ()


def test_stablehlo_is_compiled(tmp_path: Path) -> None:
    compile_stablehlo(STABLEHLO, dump_to=tmp_path / "dump", pass_re="fusion", proto=False)
    with open_dump(tmp_path / "dump") as dump:
        assert dump.select()[0].stages[0].read_text().startswith("HloModule tiny")


@pytest.mark.parametrize(
    ("text", "says"),
    [("HloModule x\nENTRY e { ROOT a = f32[2] foo(b) }", "XLA does not read it"), ("", "XLA does not")],
)
def test_text_that_xla_does_not_read(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CompileError, match=says) as caught:
        compile_hlo_text(text, dump_to=tmp_path / "dump")
    assert "\n" not in str(caught.value)


def test_a_compiler_that_aborts_says_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="Unknown flag in XLA_FLAGS: --xla_no_such_flag"):
        compile_hlo_text(HLO, dump_to=tmp_path / "dump", flags=["--xla_no_such_flag=1"])


def test_a_compiler_that_hangs_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="did not finish within 0.05 s"):
        compile_hlo_text(HLO, dump_to=tmp_path / "dump", timeout=0.05)


def test_shapes_come_from_arguments_or_defaults(program: Path, tmp_path: Path) -> None:
    compile_function(f"{program}:shapeless", args=["bf16[2,3]"], dump_to=tmp_path / "dump", proto=False)
    with open_dump(tmp_path / "dump") as dump:
        assert "bf16[2,3]" in dump.select("^jit_shapeless$")[0].stages[0].read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("function", "args", "says"),
    [
        ("shapeless", [], "parameter 'x' of shapeless has no default"),
        ("shapeless", ["f32[2"], "is no shape"),
        ("shapeless", ["f32[4]"], r"program\.py:9: tracing shapeless failed: TypeError"),
    ],
)
def test_faults_of_the_request_are_usage_errors(
    program: Path, tmp_path: Path, function: str, args: list[str], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        compile_function(f"{program}:{function}", args=args, dump_to=tmp_path / "dump")


def test_specs_and_targets_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"FILE\.py:FUNCTION"):
        split_spec("file.py")
    with pytest.raises(UsageError, match="no such file"):
        split_spec("missing.py:f")
    with pytest.raises(UsageError, match="no target 'z80'"):
        compile_hlo_text(HLO, dump_to=tmp_path, target="z80")
    for name in ("h100", "v5e"):
        if not is_available(TARGETS[name]):
            with pytest.raises(UnsupportedError, match=r"pip install .*==\d"):
                compile_hlo_text(HLO, dump_to=tmp_path, target=name)


@pytest.mark.skipif(not is_available(TARGETS["v5e"]), reason="libtpu is not installed")
def test_v5e_is_compiled_for_while_another_process_holds_libtpu(tmp_path: Path) -> None:
    with open(os.path.join(tempfile.gettempdir(), "libtpu_lockfile"), "a") as lock:
        with suppress(OSError):  # somebody holds it already: as good
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        compile_hlo_text(HLO, dump_to=tmp_path / "dump", target="v5e", pass_re="fusion", proto=False)
    with open_dump(tmp_path / "dump") as dump:
        assert dump.select("tiny")[0].stages


@pytest.mark.parametrize(
    "data", [b"", b"abc", b"\x0a\x03abc", b"HloModule x", b"\xff" * 40, b"\x0a\x03abc\x12\x03def\x1a\x01x"]
)
def test_bytes_that_are_no_hlo_proto(data: bytes) -> None:
    with pytest.raises(DumpError):
        protos_to_text([data])


def test_a_module_is_found_inside_its_wrappers() -> None:
    module = b"\x0a\x01m\x12\x01e"
    wrapped = b"\x0a" + bytes([len(module)]) + module
    assert module_proto(module) == module == module_proto(wrapped)
    assert module_proto(b"\x0a" + bytes([len(wrapped)]) + wrapped) == module


def test_the_last_line_that_says_something() -> None:
    fatal = "F1129 21:38:10.818657   13764 a.cc:234] Check failed: x\n*** Check failure stack trace: ***\n    @ 0x1 f\n"
    assert last_line("noise\n" + fatal) == "Check failed: x"
    assert (
        last_line("Traceback (most recent call last):\n  File\nValueError: bad\n\nmore advice\n") == "ValueError: bad"
    )
    said = "x.Error: no:\nwas parsing 5:26: not a name:\n  %a\n     ^\nwas parsing 5:26: no %b\nwas parsing 5:2\n"
    assert last_line(said) == "x.Error: no: was parsing 5:26: not a name: was parsing 5:26: no %b"
    assert last_line("one\nI1129 21:38:10.8   1 a.cc:2] info\n") == "one"
    assert last_line("") == ""


def test_the_probe_names_what_is_there_and_how_to_add_the_rest() -> None:
    rows = {(row.group, row.name): row for row in probe()}
    assert rows["engine", "xla"].status == "ok" and "compiles for cpu" in rows["engine", "xla"].detail
    assert rows["target", "cpu"].status == "ok"
    for row in rows.values():
        assert (row.status == "ok") == (row.remedy == "")
