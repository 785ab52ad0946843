"""Descriptions of GPUs: by name, from a compiler's text, and what is wrong with a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.analysis.cost_cycles import cycles_per_element
from hloscope.core.analysis.device import device_names, load_device, parse_device
from hloscope.core.errors import ParseError, UsageError
from hloscope.core.xla.h100_config import H100_SXM


def test_the_h100_by_name_is_the_compilers() -> None:
    named, read = load_device("h100"), parse_device(H100_SXM)
    for fact in ("core_count", "fpus_per_core", "clock_rate_ghz", "memory_bandwidth", "l2_cache_size", "profile"):
        assert getattr(named, fact) == getattr(read, fact)
    assert {w: (r.units_per_core, r.ops_per_clock) for w, r in named.matrix_rates.items()} == {
        w: (r.units_per_core, r.ops_per_clock) for w, r in read.matrix_rates.items()
    }


def test_every_named_device_is_whole() -> None:
    for name in device_names():
        device = load_device(name)
        assert min(device.core_count, device.memory_bandwidth, device.shared_memory_per_block) > 0


def test_amd_has_other_caches_and_warps() -> None:
    device = load_device("mi300")
    assert (device.threads_per_warp, device.dram_transaction_bytes, device.l1_cache_per_core) == (64, 128, 32768)


def test_a_file_is_read_and_a_wrong_name_is_the_users_fault(tmp_path: Path) -> None:
    path = tmp_path / "gpu.pbtxt"
    path.write_text(H100_SXM)
    assert load_device(str(path)).core_count == 132
    with pytest.raises(UsageError, match="no GPU"):
        load_device("h1000")
    path.write_text("gpu_device_info { core_count: 3 }")
    with pytest.raises(ParseError, match="clock_rate_ghz"):
        load_device(str(path))


def test_cycles_by_device_opcode_and_type() -> None:
    h100 = load_device("h100")
    assert cycles_per_element(h100, "exponential", "f32") == 79
    assert cycles_per_element(h100, "exponential", "bf16") == 3
    assert cycles_per_element(load_device("mi300"), "divide", "f32") == cycles_per_element(
        parse_device(H100_SXM.replace("major: 9", "major: 8\n    minor: 6")), "divide", "f32"
    )
