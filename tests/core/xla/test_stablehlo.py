"""StableHLO as a PATH: its HLO, the places of its instructions, and one line at its position where it is none."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hloscope.core.errors import ParseError, UnsupportedError
from hloscope.core.text import load_module
from hloscope.core.views.inputs import InputKind, classify, read_hlo_text
from hloscope.core.views.run import load

TEXT = """#loc1 = loc(fused<"a">["far.py":1:2,
  "near.py":3:4])
module @double attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<4xf32> {mhlo.memory_kind = "pinned_host"})
    -> (tensor<4xf32> {mhlo.layout_mode = "auto"}) {
    %0 = stablehlo.tanh %x : tensor<4xf32>
    %1 = stablehlo.add %0, %0 : tensor<4xf32> loc(#loc1)
    return %1 : tensor<4xf32>
  }
}
"""


def test_text_is_the_module_that_xla_would_get(tmp_path: Path) -> None:
    path = tmp_path / "double.mlir"
    path.write_text(TEXT)
    with load(str(path)) as run:
        text = run.stage_text(0)
        module = load_module(text)
        (frame,) = run.why("tanh.1").source
        assert (run.source.module, frame.file, frame.line) == ("double", str(path), 6)
    assert module.num_partitions == 2 and "entry_computation_layout={(f32[4]{0:S(5)})->f32[4]}" in text
    assert [one.opcode for one in module.entry.instructions] == ["parameter", "tanh", "add"]
    place = module.entry.root.metadata
    assert place is not None and (place.source_file, place.source_line) == ("near.py", 3)


def test_a_portable_artifact_needs_no_name(fixtures: Path, tmp_path: Path) -> None:
    path = tmp_path / "any"
    path.write_bytes(gzip.compress((fixtures / "stablehlo" / "double.mlirbc").read_bytes()))
    text = read_hlo_text(str(path))
    assert "num_partitions=2" in text.splitlines()[0] and " add(" in text and str(path) not in text


def test_what_is_wrong_is_one_line_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.mlir"
    path.write_text(TEXT.replace("%0, %0", "%0, %no"))
    with pytest.raises(ParseError, match="use of undeclared SSA value name") as caught:
        read_hlo_text(str(path))
    error = caught.value
    assert (error.path, error.line, error.column) == (str(path), 7, 28) and "\n" not in str(error)


def test_an_error_at_a_place_in_python_is_one_in_the_file_too(tmp_path: Path) -> None:
    path = tmp_path / "bad.mlir"
    path.write_text(TEXT.replace("stablehlo.add %0, %0", "stablehlo.reverse %0, dims = [3]"))
    with pytest.raises(ParseError, match=r"far\.py:1") as caught:
        read_hlo_text(str(path))
    assert (caught.value.line, caught.value.column) == (7, 10)


def test_without_jaxlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib" / "__init__.py").touch()
    (tmp_path / "f.mlir").write_text(TEXT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="needs jaxlib") as caught:
        read_hlo_text(str(tmp_path / "f.mlir"))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("module {\n  func.func @main() {\n    return\n  }\n}\n", InputKind.STABLEHLO),
        ("// a\nmodule {\n// b\n  %0:2 = tt.load %a\n}\n", InputKind.STABLEHLO),
        ('"builtin.module"() ({\n}) : () -> ()\n', InputKind.STABLEHLO),
        ("!t = tensor<4xf32>\n", InputKind.STABLEHLO),
        ("module {\n  func.func = f32[2] parameter(0)\n  ROOT c = f32[2] negate(func.func)\n}\n", InputKind.TEXT),
        ("module {\n  %a = f32[2] parameter(0)\n  ROOT c = f32[2] negate(%a)\n}\n", InputKind.TEXT),
    ],
)
def test_mlir_and_hlo_are_told_apart_by_their_text(tmp_path: Path, text: str, kind: InputKind) -> None:
    (tmp_path / "f").write_text(text)
    assert classify(str(tmp_path / "f")).kind is kind
