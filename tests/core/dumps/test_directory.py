"""Dump directories and archives as modules and stages."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import DumpError, UnsupportedError, UsageError

HloText = Callable[..., str]
WriteDump = Callable[[dict[str, str | bytes]], Path]


def labels(path: Path) -> list[str]:
    with open_dump(path) as dump:
        return [stage.label for stage in dump.modules[0].stages]


@pytest.mark.parametrize(
    ("case", "target", "first", "last"),
    [
        ("cpu", "cpu", "before_optimizations", "cpu_after_optimizations"),
        ("gpu", "gpu", "before_optimizations", "sm_9.0a_gpu_after_optimizations"),
        ("tpu", "tpu", "before_optimizations", "after_codegen"),
    ],
)
def test_real_dumps_open(fixtures: Path, case: str, target: str, first: str, last: str) -> None:
    with open_dump(fixtures / "dumps" / case) as dump:
        assert len(dump.modules) == 1 and not dump.not_understood and not dump.notes
        module = dump.modules[0]
        assert module.target == target
        assert [module.stages[0].label, module.stages[-1].label] == [first, last]
        steps = [stage.name.step for stage in module.stages if stage.name.step is not None]
        assert steps == sorted(steps) and len(steps) > 10
        assert module.stages[3].read_text().startswith("HloModule jit_")
        assert FileKind.DEBUG_OPTIONS in {file.kind for file in module.files}


def test_bookends_lie_where_the_compiler_reaches_them(fixtures: Path) -> None:
    gpu = labels(fixtures / "dumps" / "gpu_narrow")
    assert gpu[:2] == ["before_optimizations", "after_spmd_partitioner"]
    assert labels(fixtures / "dumps" / "tpu")[-4:] == [
        "after_optimizations_before_buffer_assignment",
        "after_optimizations_after_buffer_assignment",
        "after_optimizations",
        "after_codegen",
    ]


def test_after_spmd_partitioner_follows_the_partitioner(corpus: Path) -> None:
    found = labels(corpus / "gpu" / "dp_train" / "dump")
    at = found.index("after_spmd_partitioner")
    assert found[at - 1].split(".")[1] == "spmd-partitioner"
    assert found[at + 1].split(".")[1] == "host-compute"


def test_every_case_of_the_corpus_opens_with_nothing_left_over(corpus: Path) -> None:
    cases = sorted(corpus.glob("*/*/dump"))
    assert len(cases) > 50
    for case in cases:
        with open_dump(case) as dump:
            assert dump.not_understood == [] and dump.notes == []
            files = sum(len(module.files) for module in dump.modules) + len(dump.shared_files)
            assert files == dump.file_count
            assert {module.target for module in dump.modules} <= {case.parts[-3], None}


def test_several_modules_are_told_apart_largest_first(fixtures: Path) -> None:
    with open_dump(fixtures / "dumps" / "cpu_multi") as dump:
        assert len(dump.modules) == 13
        sizes = [module.largest_stage_bytes for module in dump.modules]
        assert sizes == sorted(sizes, reverse=True)
        assert [module.index for module in dump.modules] == list(range(13))


def test_select_by_index_and_by_regular_expression(fixtures: Path) -> None:
    with open_dump(fixtures / "dumps" / "cpu_multi") as dump:
        largest, note = dump.select()
        assert largest is dump.modules[0] and note is not None and "13 modules" in note
        assert dump.select("3")[0] is dump.modules[3]
        module, note = dump.select("^jit_add$")
        assert module.name == "jit_add" and note is None
        module, note = dump.select("broadcast")
        assert module.name == "jit_broadcast_in_dim" and note is not None and "2 modules" in note
        with pytest.raises(UsageError, match="no module matches 'nothing'"):
            dump.select("nothing")
        with pytest.raises(UsageError, match="regular expression"):
            dump.select("(")


def test_one_id_with_two_names_is_two_modules(write_dump: WriteDump, hlo: HloText) -> None:
    path = write_dump(
        {
            "module_0001.jit_f.before_optimizations.txt": hlo(),
            "module_0001.jit_g.before_optimizations.txt": hlo(name="jit_g"),
            "module_0001.jit_f.debug_options": "",
        }
    )
    with open_dump(path) as dump:
        assert sorted((module.name, len(module.files)) for module in dump.modules) == [("jit_f", 2), ("jit_g", 1)]


def test_files_without_timestamp_or_name_join_their_module(write_dump: WriteDump, hlo: HloText) -> None:
    path = write_dump(
        {
            "111.module_0001.jit_f.before_optimizations.txt": hlo(),
            "module_0001.jit_f.debug_options": "",
            "111.module_0001.0000.p.after_a.before_b.txt": hlo(),
            "111.module_0001.jit_f.7.ptx": "",
        }
    )
    with open_dump(path) as dump:
        (module,) = dump.modules
        assert (module.name, module.timestamp_us, len(module.files), len(module.stages)) == ("jit_f", 111, 4, 2)


def test_a_module_that_changes_its_id_is_one_compile(write_dump: WriteDump, hlo: HloText) -> None:
    path = write_dump(
        {
            "module_0000.jit_f.cl_7.before_optimizations.txt": hlo(),
            "module_0003.jit_f.cl_7.after_optimizations.txt": hlo(),
            "module_0003.jit_f.cl_7.after_codegen.txt": hlo(),
        }
    )
    assert labels(path) == ["before_optimizations", "after_optimizations", "after_codegen"]


def test_a_folder_for_each_process(write_dump: WriteDump, hlo: HloText) -> None:
    path = write_dump(
        {
            "jit_f/host_1/module_0001.jit_f.before_optimizations.txt": hlo(),
            "jit_f/host_2/module_0001.jit_f.before_optimizations.txt": hlo(),
            "module_0001.jit_f/compile_options.textproto": "",
        }
    )
    with open_dump(path) as dump:
        assert sorted(module.folder for module in dump.modules) == ["jit_f/host_1/", "jit_f/host_2/"]
        assert sum(len(module.files) for module in dump.modules) == 3


def test_kernels_go_to_the_module_with_the_longest_name(write_dump: WriteDump, hlo: HloText) -> None:
    path = write_dump(
        {
            "module_0001.jit_f.before_optimizations.txt": hlo(),
            "module_0001.jit_f.2.before_optimizations.txt": hlo(),
            "module_0001.jit_f.2.fusion_kernel_module.ir-no-opt.ll": "",
        }
    )
    with open_dump(path) as dump:
        owner = next(module for module in dump.modules if module.files_of(FileKind.LLVM_IR))
        assert owner.name == "jit_f.2"


def test_a_named_snapshot_outside_the_grammar_is_recognised_by_its_text(write_dump: WriteDump, hlo: HloText) -> None:
    path = write_dump(
        {
            "module_0001.jit_f.before_optimizations.txt": hlo(),
            "module_0001.jit_f.after_my_rewrite.txt": hlo(opcode="multiply"),
            "module_0001.jit_f.readme.txt": "not HLO",
        }
    )
    with open_dump(path) as dump:
        assert [stage.label for stage in dump.modules[0].stages] == ["before_optimizations", "after_my_rewrite"]
        assert dump.not_understood == ["module_0001.jit_f.readme.txt"]


def test_protos_need_a_reader(write_dump: WriteDump) -> None:
    path = write_dump({"module_0001.jit_f.before_optimizations.hlo.pb.gz": gzip.compress(b"proto")})
    with open_dump(path) as dump:
        stage = dump.modules[0].stages[0]
        assert not stage.has_text and stage.proto() == b"proto"
        with pytest.raises(UnsupportedError):
            stage.read_text()
    with open_dump(path, proto_reader=lambda protos: [f"HloModule {proto.decode()}" for proto in protos]) as dump:
        assert dump.modules[0].stages[0].read_text() == "HloModule proto"


def archive(kind: str, source: Path, target: Path, top: str = "") -> Path:
    """Packs a dump; ``top`` is a folder around it."""
    if kind == "zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
            for file in sorted(source.rglob("*")):
                if file.is_file():
                    out.write(file, top + file.relative_to(source).as_posix())
        return target
    plain = target.with_suffix(".plain")
    with tarfile.open(plain, "w") as tar:
        for file in sorted(source.rglob("*")):
            if file.is_file():
                tar.add(file, top + file.relative_to(source).as_posix())
    data = plain.read_bytes()
    if kind == "tar.gz":
        data = gzip.compress(data)
    elif kind == "tar.zst":
        import zstandard

        data = zstandard.ZstdCompressor().compress(data)
    target.write_bytes(data)
    return target


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.zst", "zip"])
@pytest.mark.parametrize("top", ["", "run 1/dump/"])
def test_archives_are_read_in_place(fixtures: Path, tmp_path: Path, kind: str, top: str) -> None:
    source = fixtures / "dumps" / "gpu"
    packed = archive(kind, source, tmp_path / f"dump.{kind}", top)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with open_dump(source) as plain, open_dump(packed) as dump:
        assert [stage.path for stage in dump.modules[0].stages] == [stage.path for stage in plain.modules[0].stages]
        for number in (5, 0, 9):
            assert dump.modules[0].stages[number].read_bytes() == plain.modules[0].stages[number].read_bytes()
        assert dump.modules[0].stages[2].read_bytes(11) == b"HloModule j"
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_members_that_leave_an_archive_are_left_out(tmp_path: Path, hlo: HloText) -> None:
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("../module_0001.up.before_optimizations.txt", "/module_0002.abs.before_optimizations.txt"):
            info = tarfile.TarInfo(name)
            info.size = len(hlo())
            tar.addfile(info, io.BytesIO(hlo().encode()))
        link = tarfile.TarInfo("module_0003.link.before_optimizations.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with open_dump(path) as dump:
        assert [module.name for module in dump.modules] == ["abs"]
        assert len(dump.notes) == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzip.compress(b"\0" * (1 << 24)) * 20)
    with pytest.raises(DumpError, match="bomb"):
        open_dump(path)


@pytest.mark.parametrize("kind", ["tar.gz", "zip", "zip to a pipe"])
def test_an_archive_that_breaks_off_keeps_what_is_whole(fixtures: Path, tmp_path: Path, kind: str) -> None:
    source = fixtures / "dumps" / "cpu"
    packed = archive(kind.partition(" ")[0], source, tmp_path / "dump.packed")
    if "pipe" in kind:
        piped = Unseekable()
        with zipfile.ZipFile(packed) as old, zipfile.ZipFile(piped, "w", zipfile.ZIP_DEFLATED) as out:
            for name in old.namelist():
                out.writestr(name, old.read(name))
        packed.write_bytes(piped.getvalue())
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    with open_dump(packed) as dump:
        assert 1 < len(dump.modules[0].stages) < 26
        assert any("breaks off" in note for note in dump.notes)
        # Of a tar the member that breaks off is listed, but cannot be read.
        for stage in dump.modules[0].stages[:2]:
            assert stage.read_bytes() == (source / stage.path).read_bytes()


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_damaged_header_costs_a_tar_the_file_that_it_is_of(
    tmp_path: Path, hlo: HloText, kind: str, format: int
) -> None:
    plain = io.BytesIO()
    long = "module_0002.f.0000.p.after_pipeline-start.before_" + "a" * 90 + ".txt"
    names = [f"module_000{at}.f.before_optimizations.txt" for at in range(4)]
    names[2] = long
    begins: list[int] = []
    with tarfile.open(fileobj=plain, mode="w", format=format) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(hlo())
            begins.append(plain.tell())
            tar.addfile(info, io.BytesIO(hlo().encode()))
    whole = plain.getvalue()
    path = tmp_path / f"d.{kind}"

    def files(data: bytes) -> tuple[list[str], list[str]]:
        path.write_bytes(gzip.compress(data) if kind == "tar.gz" else data)
        with open_dump(path) as dump:
            found = [file.path for module in dump.modules for file in module.files]
            assert {dump.read_file(file) for module in dump.modules for file in module.files} == {hlo().encode()}
            return sorted(found), dump.notes

    assert files(whole) == (sorted(names), [])
    # A long name stands in front of the header that it is of. What begins with no header of a tar may be any file.
    for lost, header in ((0, 0), (1, 0), (2, 1024))[kind == "tar" :]:
        at = begins[lost] + header
        left, notes = files(whole[: at + 20] + b"\xff" + whole[at + 21 :])
        assert left == sorted(name for name in names if name != names[lost])
        (note,) = notes
        assert note.startswith("a header of the archive is damaged, at byte ")
        assert begins[lost] <= int(note.partition("byte ")[2].partition(":")[0]) <= at
    # Cut off where a member ends: only the mark of the archive's end is missing.
    assert files(whole[: begins[3]]) == (names[:3], ["the archive breaks off: its end mark is missing"])


class Unseekable(io.BytesIO):
    """As a pipe: what was written cannot be mended, so a zip's sizes stand behind each member."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise OSError("a pipe")

    def tell(self) -> int:
        raise OSError("a pipe")


def test_paths_that_hold_no_dump(tmp_path: Path, write_dump: WriteDump) -> None:
    with pytest.raises(DumpError, match="no such file"):
        open_dump(tmp_path / "missing")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DumpError, match="empty"):
        open_dump(empty)
    with pytest.raises(DumpError, match="no HLO dump in it: none of its 2 files"):
        open_dump(write_dump({"a.txt": "x", "sub/b.py": "y"}))
    binary = tmp_path / "binary"
    binary.write_bytes(os.urandom(100))
    with pytest.raises(DumpError, match="neither a dump directory nor an archive"):
        open_dump(binary)
    for name, head in (
        ("bad.tar.gz", b"\x1f\x8b\x08"),
        ("bad.zip", b"PK\x03\x04"),
        ("bad.tar.zst", b"\x28\xb5\x2f\xfd"),
    ):
        bad = tmp_path / name
        bad.write_bytes(head + b"nonsense" * 20)
        with pytest.raises(DumpError):
            open_dump(bad)


def test_links_to_folders_are_not_followed(write_dump: WriteDump, hlo: HloText) -> None:
    path = write_dump({"module_0001.jit_f.before_optimizations.txt": hlo()})
    (path / "loop").symlink_to(path, target_is_directory=True)
    with open_dump(path) as dump:
        assert dump.file_count == 1


def test_a_dump_that_vanishes_while_it_is_read(write_dump: WriteDump, hlo: HloText) -> None:
    path = write_dump({"module_0001.jit_f.before_optimizations.txt": hlo()})
    with open_dump(path) as dump:
        shutil.rmtree(path)
        with pytest.raises(DumpError, match="cannot be read"):
            dump.modules[0].stages[0].read_text()
