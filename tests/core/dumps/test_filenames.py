"""Every file name of a dump is understood, and written back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.dumps.filenames import DumpName, FileKind, Point, parse_name, split_kernel


def real_names(fixtures: Path) -> list[str]:
    return [line.split(" ", 1)[1] for line in (fixtures / "dumps" / "names.txt").read_text().splitlines()]


def test_every_listed_name_is_understood_and_round_trips(fixtures: Path) -> None:
    names = real_names(fixtures)
    assert len(names) > 300
    for path in names:
        name = parse_name(path)
        assert name.kind is not FileKind.NOT_UNDERSTOOD, path
        assert name.format() == path
        assert name.description


def test_every_name_of_the_corpus_is_understood_and_round_trips(corpus: Path) -> None:
    seen = 0
    for dump in sorted(corpus.glob("*/*/dump")):
        for file in dump.rglob("*"):
            if file.is_file():
                path = file.relative_to(dump).as_posix()
                name = parse_name(path)
                assert name.kind is not FileKind.NOT_UNDERSTOOD, path
                assert name.format() == path
                assert name.module_id is not None
                seen += 1
    assert seen > 3000


def test_a_step_has_its_parts() -> None:
    name = parse_name("module_0001.jit_f.0003.fusion.after_sort-iota-fusion.before_priority-fusion.hlo.pb.gz")
    assert (name.kind, name.module_id, name.module_name, name.step) == (FileKind.STAGE_PROTO, 1, "jit_f", 3)
    assert (name.pipeline, name.after, name.before) == ("fusion", "sort-iota-fusion", "priority-fusion")
    assert name.point is Point.STEP and name.is_stage


@pytest.mark.parametrize(
    ("path", "module", "build", "step", "bookend"),
    [
        ("module_0001.jit_f.12.before_optimizations.txt", "jit_f.12", None, None, "before_optimizations"),
        ("module_0001.jit_f.1234.before_optimizations.txt", "jit_f.1234", None, None, "before_optimizations"),
        ("module_0001.jit_f.1234.cl_99.before_optimizations.txt", "jit_f.1234", "99", None, "before_optimizations"),
        ("module_0001.a.b.sm_8.0_gpu_after_optimizations.txt", "a.b", None, None, "sm_8.0_gpu_after_optimizations"),
        ("module_0001.f.sm_90_gpu_after_optimizations.txt", "f", None, None, "sm_90_gpu_after_optimizations"),
        ("module_0001.f.gfx90a_gpu_after_optimizations.txt", "f", None, None, "gfx90a_gpu_after_optimizations"),
        ("module_0001.f.gpu_after_optimizations.txt", "f", None, None, "gpu_after_optimizations"),
        ("module_12345.f.cpu_after_optimizations.txt", "f", None, None, "cpu_after_optimizations"),
        ("module_0001.jit_f.0007.copy-insertion.after_adding_special-case_copies.txt", "jit_f", None, 7,
         "after_adding_special-case_copies"),
        ("module_0001.jit_f.0007.cl_5.0008.tpu-tiling-rewriter.before_tiling_rewriter.txt", "jit_f.0007", "5", 8,
         "before_tiling_rewriter"),
    ],
)  # fmt: skip
def test_module_names_with_dots(path: str, module: str, build: str | None, step: int | None, bookend: str) -> None:
    name = parse_name(path)
    assert (name.module_name, name.build, name.step, name.bookend) == (module, build, step, bookend)
    assert name.format() == path


@pytest.mark.parametrize("last", ["codegen", "optimizations", "buffer_assignment"])
def test_a_pass_may_be_named_like_a_bookend(last: str) -> None:
    name = parse_name(f"module_0001.jit_f.0003.tail.after_dce.before_{last}.txt")
    assert (name.point, name.module_name, name.before) == (Point.STEP, "jit_f", last)


def test_a_module_name_may_hold_a_number_of_four_digits() -> None:
    path = "module_0001.jit_step.0042.0003.main.fusion.after_a.1.before_b.txt"
    name = parse_name(path)
    assert (name.module_name, name.step, name.pipeline, name.after) == ("jit_step.0042", 3, "main.fusion", "a.1")
    assert name.format() == path


def test_a_name_that_is_too_long_drops_the_module() -> None:
    module = "jit_" + "x" * 300
    name = DumpName(
        FileKind.STAGE, module_id=3, module_name=module, point=Point.STEP, step=1, pipeline="p", after="a", before="b",
        extension=".txt",
    )  # fmt: skip
    assert name.format() == "module_0003.0001.p.after_a.before_b.txt"
    again = parse_name(name.format())
    assert (again.module_id, again.module_name, again.step) == (3, None, 1)


def test_a_timestamp_comes_first() -> None:
    path = "1781719728123456.module_0002.jit_f.cl_7.0001.p.after_a.before_b.txt"
    name = parse_name(path)
    assert (name.timestamp_us, name.module_id, name.build) == (1781719728123456, 2, "7")
    assert name.format() == path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("module_0001.f.metadata.textproto", FileKind.METADATA),
        ("module_0001.f.execution_0003.hlo_snapshot.pb", FileKind.SNAPSHOT),
        ("module_0001.f.0001.p.after_a.before_b.riegeli", FileKind.STAGE_RIEGELI),
        ("module_0001.f.cpu_after_optimizations.top_level.html", FileKind.STAGE_HTML),
        ("main.7.module_0001.f._fusion.pyz", FileKind.FUSION_VISUALIZATION),
        ("module_0001.f.gemm_fusion_3.dot.1.optimized.txt", FileKind.AUTOTUNED_FUSION),
        ("module_0001.f.gemm_fusion_dot.1.triton-passes.log", FileKind.TRITON),
        ("module_0001.f.3.cubin", FileKind.GPU_BINARY),
        ("shardy/module_0001.f/02.after_propagation.mlir", FileKind.SHARDY_MLIR),
        ("module_0001.f.cl_9/compile_options.pb", FileKind.COMPILE_OPTIONS),
        ("jit_f/host_77/module_0001.jit_f.before_optimizations.txt", FileKind.STAGE),
    ],
)
def test_kinds_that_the_corpus_lacks(path: str, kind: FileKind) -> None:
    name = parse_name(path)
    assert name.kind is kind
    assert name.format() == path


@pytest.mark.parametrize(
    "path",
    ["", "notes.txt", "module_.f.txt", "xmodule_0001.f.before_optimizations.txt", "a/b/c", "module_0001", ".txt"],
)
def test_other_names_are_not_understood_but_kept(path: str) -> None:
    name = parse_name(path)
    assert name.kind is FileKind.NOT_UNDERSTOOD
    assert name.format() == path


def test_a_kernel_is_cut_after_the_module_it_belongs_to() -> None:
    name = parse_name("module_0001.jit_f.12.fusion.1_kernel_module.ir-no-opt.ll")
    cut = split_kernel(name, "jit_f.12")
    assert (cut.module_name, cut.suffix) == ("jit_f.12", "fusion.1_kernel_module")
    assert cut.format() == name.format()
    assert split_kernel(name, "jit_g") == name
