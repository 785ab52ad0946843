"""The readers of the memory reports and of the out-of-memory message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope.core.dumps.buffer_reports import (
    ValueName,
    read_buffer_assignment,
    read_live_ranges,
    read_memory_usage,
    read_values,
)
from hloscope.core.dumps.buffer_reports_oom import looks_like_oom, parse_size, read_oom
from hloscope.core.errors import DumpError


def report(fixtures: Path, backend: str, end: str) -> str:
    return next((fixtures / "dumps" / backend).rglob(f"*{end}")).read_text()


@pytest.mark.parametrize("backend", ["cpu", "gpu", "tpu"])
def test_reports_of_every_back_end_are_read_to_the_last_value(fixtures: Path, backend: str) -> None:
    text = report(fixtures, backend, "-buffer-assignment.txt")
    found = read_buffer_assignment(text)
    assert sum(len(one.values) for one in found) == text.count("\n value: ")
    usage = read_memory_usage(report(fixtures, backend, "-memory-usage-report.txt"))
    assert sum(space.total for space in usage) == sum(one.size for one in found)
    ranges = read_live_ranges(report(fixtures, backend, "-live-range.txt"))
    placed = {value.name for one in found for value in one.values if not one.thread_local}
    assert set(ranges.ranges) & placed
    assert ranges.peak and ranges.peak_tick is not None and len(ranges.sequence) == ranges.end


@pytest.mark.parametrize("case", ["cpu_switch_loop", "gpu_nested_scan"])
def test_positions_and_uses_of_every_value_are_read(fixtures: Path, case: str) -> None:
    folder = fixtures / "buffers" / case
    found = read_buffer_assignment(next(folder.glob("*-buffer-assignment.txt")).read_text())
    records = read_values(next(folder.glob("*-buffer-assignment-values.txt")).read_text())
    assert {one.name for one in records} == {value.name for one in found for value in one.values}
    assert all(one.positions and one.line for one in records) and any(one.uses for one in records)


def test_a_header_says_all_it_says() -> None:
    (one,) = read_buffer_assignment(
        "BufferAssignment:\nallocation 3: size 24, color 1, parameter 2, shape |(f32[2], /*index=1*/s32[])| at "
        "ShapeIndex {1,0}, maybe-live-out:\n value: <17 a.b-c{1,0} (phi) @1> (size=8,offset=16): f32[2]{0}\n"
        # Up to jaxlib 0.4 this stands in the same file.
        "\nTotal bytes used: 24 (24B)\n\nUsed values:\n<17 a.b-c{1,0} (phi) @1>\n positions:\n  a.b-c {1,0}\n"
    )
    assert (one.index, one.size, one.color, one.parameter, one.parameter_index) == (3, 24, 1, 2, (1, 0))
    assert one.live_out and not one.constant and one.kind == "parameter"
    assert one.values[0].name == ValueName("a.b-c", (1, 0)) and one.values[0].is_phi


@pytest.mark.parametrize("read", [read_buffer_assignment, read_live_ranges, read_values, read_memory_usage])
def test_a_strange_line_is_named(read: Callable[..., object]) -> None:
    with pytest.raises(DumpError) as error:
        read("\nnothing of the kind\n", path="x.txt")
    assert str(error.value).startswith("x.txt:2: not a line of a ")


GPU_OOM = """jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    1.00GiB
              constant allocation:         4B
        maybe_live_out allocation:    1.00GiB
     preallocated temp allocation:   16.00GiB
                 total allocation:   18.00GiB
Peak buffers:
\tBuffer 1:
\t\tSize: 16.00GiB
\t\tOperator: op_name="jit(f)/dot_general" source_file="train.py" source_line=17
\t\tXLA Label: fusion
\t\tShape: f32[65536,65536]
\t\t==========================

\tBuffer 2:
\t\tSize: 1.00GiB
\t\tEntry Parameter Subshape: f32[16384,16384]
\t\t==========================
"""
TPU_OOM = """Ran out of memory in memory space hbm. Used 17.50G of 15.48G hbm. Exceeded hbm capacity by 2.02G.
  Largest program allocations in hbm:

  1. Size: 4.00G
     Operator: op_name="jit(f)/mul" source_file="a.py" source_line=3
     Shape: f32[32768,32768]{1,0:T(8,128)}
     Unpadded size: 3.50G
     XLA label: fusion.1 = fusion(p.1), kind=kLoop
     Allocation type: HLO temp
     ==========================
"""


def test_the_out_of_memory_message_of_a_gpu() -> None:
    found = read_oom(GPU_OOM)
    assert found.wanted == 17179869184 and found.stats["total allocation"] == 18 << 30
    assert [(one.rank, one.size, one.shape, one.label) for one in found.buffers] == [
        (1, 16 << 30, "f32[65536,65536]", "fusion"),
        (2, 1 << 30, "f32[16384,16384]", "parameter"),
    ]
    assert found.buffers[0].source == "train.py:17"


def test_the_out_of_memory_message_of_a_tpu() -> None:
    found = read_oom(TPU_OOM)
    assert found.used == int(17.5 * (1 << 30)) and found.limit == parse_size("15.48G")
    (one,) = found.buffers
    assert (one.kind, one.unpadded, one.op_name) == ("HLO temp", int(3.5 * (1 << 30)), "jit(f)/mul")


def test_any_other_text_is_none() -> None:
    with pytest.raises(DumpError, match="no out-of-memory message"):
        read_oom("Traceback")


RAY = "\x1b[2m\x1b[36m(Worker pid=489)\x1b[0m "


def test_the_prefixes_of_a_logger_are_taken_off() -> None:
    assert read_oom("\n".join(RAY + line for line in GPU_OOM.split("\n"))) == read_oom(GPU_OOM)
    lines = enumerate(GPU_OOM.split("\n"))
    bare = "\n".join(f"7{number}[2m[36m(Worker pid=489)[0m {line}" for number, line in lines)
    assert read_oom(bare) == read_oom(GPU_OOM)


@pytest.mark.parametrize(
    ("text", "wanted", "used", "limit"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory allocating 64000000000 bytes.", 64000000000, None, None),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (33.5G)"
            " exceeds available HBM (15.75G).", None, int(33.5 * 2**30), int(15.75 * 2**30),
        ),
        (
            "W] Can't reduce memory use below 12.50GiB (13421772800 bytes) by rematerialization; only reduced to"
            " 41.25GiB (44291850240 bytes), down from 60.00GiB (64424509440 bytes) originally",
            None, int(41.25 * 2**30), int(12.5 * 2**30),
        ),
        ("Allocator (GPU_0_bfc) ran out of memory trying to allocate 28.00GiB (rounded to 1)", 28 << 30, None, None),
    ],
)  # fmt: skip
def test_messages_of_one_sentence(text: str, wanted: int | None, used: int | None, limit: int | None) -> None:
    found = read_oom(text)
    assert (found.wanted, found.used, found.limit, found.buffers) == (wanted, used, limit, [])


def test_the_breakdown_of_a_tpu() -> None:
    head = "Ran out of memory in memory space hbm. Used 3.5G of 2.0G hbm.\n\nTotal hbm usage >= 4G:\n"
    rows = (
        "    reserved     512.00M\n    program        3.5G\n    arguments        0B\n    HLO temp   1.0G (100% used)\n"
    )
    assert read_oom(head + rows).stats == {
        "reserved": 512 << 20,
        "program": int(3.5 * 2**30),
        "arguments": 0,
        "HLO temp": 1 << 30,
    }


@pytest.mark.parametrize(
    ("text", "wanted", "used", "limit", "stat"),
    [
        (
            "W bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.50GiB (rounded to"
            " 3758096384)requested by op \nI bfc_allocator.cc:1106] 12 Chunks of size 256 totalling 3.0KiB\n"
            "I bfc_allocator.cc:1106] 3 Chunks of size 2048 totalling 6.0KiB\nI bfc_allocator.cc:1118] Stats: \n"
            "Limit:                      16384\nInUse:                       9216\nMaxInUse:                    9216\n",
            7 << 29, 9216, 16384, ("3 chunks of 2,048 bytes", 6144),
        ),
        (
            "RESOURCE_EXHAUSTED: Attempting to reserve 12.00G at the bottom of memory. That was not possible. There are"
            " 10.50G free, 0B reserved, and 10.25G reservable.",
            12 << 30, None, None, ("reservable", 41 << 28),
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack for %a = bf16[8]{0}"
            " custom-call(). Scoped allocation with size 17.25M and limit 16.00M exceeded scoped vmem limit by 1.25M.",
            None, 69 << 18, 16 << 20, None,
        ),
        (
            "INTERNAL: Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0",
            2 << 30, None, None, None,
        ),
    ],
    ids=["bfc", "reserve", "scoped", "ordinal"],
)  # fmt: skip
def test_messages_of_allocators_and_runtimes(
    text: str, wanted: int | None, used: int | None, limit: int | None, stat: tuple[str, int] | None
) -> None:
    assert looks_like_oom(text)
    found = read_oom(text)
    assert (found.wanted, found.used, found.limit) == (wanted, used, limit)
    assert stat is None or found.stats[stat[0]] == stat[1]
