"""What the cost models know of a GPU: counts, clocks, bandwidths and cache sizes.

A description comes from a ``GpuTargetConfigProto`` (or the ``gpu_device_info`` block inside a fusion dump) in text
form, or from `devices.json` by name. Source: ``openxla/xla:xla/stream_executor/device_description.h``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from hloscope.core.dumps.textproto import Message, parse_textproto
from hloscope.core.errors import ParseError, UsageError

DEFAULT_GPU = "h100"
"""The device that is assumed where nothing names one."""

# Numbers of element types in ``xla_data.proto`` that stand for a width in the matrix unit's rates (s8, f16, f32, f64).
_RATE_WIDTHS = {2: 1, 10: 2, 11: 4, 12: 8}
_MI300_SERIES = ("gfx942", "gfx950")
_MI100_MI200 = ("gfx908", "gfx90a")


@dataclass(frozen=True, slots=True)
class MatrixRate:
    """Speed of the matrix unit for one element width."""

    units_per_core: int
    ops_per_clock: float
    """Multiply-adds of one unit in one clock."""
    clock_rate_ghz: float


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """One GPU. Sizes in bytes, bandwidth in bytes a second."""

    name: str
    platform: str
    """``cuda`` or ``rocm``."""
    core_count: int
    """Streaming multiprocessors (compute units on AMD)."""
    fpus_per_core: int
    clock_rate_ghz: float
    memory_bandwidth: int
    l2_cache_size: int
    shared_memory_per_block: int
    compute_capability: tuple[int, int] = (0, 0)
    gcn_arch_name: str = ""
    """AMD's name of the architecture without its feature list; empty on NVIDIA."""
    threads_per_warp: int = 32
    threads_per_block_limit: int = 1024
    threads_per_core_limit: int = 2048
    registers_per_block_limit: int = 65536
    block_dim_limit_x: int = 2147483647
    shared_memory_per_block_optin: int = 0
    shared_memory_per_core: int = 0
    device_memory_size: int = 0
    toolkit_version: tuple[int, ...] = (0, 0, 0)
    matrix_rates: Mapping[int, MatrixRate] = field(default_factory=lambda: MappingProxyType({}))
    """By element width in bytes."""

    @property
    def l1_cache_per_core(self) -> int:
        """What the cost model assumes to stay in a core's first cache."""
        if self.gcn_arch_name in _MI300_SERIES:
            return 32 * 1024
        return 16 * 1024 if self.gcn_arch_name in _MI100_MI200 else 2 * 1024

    @property
    def dram_transaction_bytes(self) -> int:
        """Bytes that one transaction brings from memory into the L2 cache."""
        return 128 if self.gcn_arch_name in _MI300_SERIES else 64

    @property
    def memory_transactions_per_clock(self) -> int:
        """Bytes that one core can ask for in one clock."""
        return 16 if self.gcn_arch_name in _MI300_SERIES else 32

    @property
    def is_blackwell(self) -> bool:
        """Compute capability 10 to 12."""
        return self.platform == "cuda" and 10 <= self.compute_capability[0] <= 12

    @property
    def profile(self) -> str:
        """Key into the table of cycles per operation: ``sm_90``, ``gfx942``."""
        if self.gcn_arch_name:
            return self.gcn_arch_name
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"


def device_names() -> list[str]:
    """The devices that are known by name."""
    return list(_table())


def load_device(name_or_path: str | None = None) -> DeviceDescription:
    """A device by name, or from a file that holds a ``GpuTargetConfigProto`` text; `DEFAULT_GPU` for None.

    Raises UsageError for a name that is neither, ParseError for a file that cannot be read as one.
    """
    name = DEFAULT_GPU if name_or_path is None else name_or_path
    row = _table().get(name.lower())
    if row is not None:
        return _from_row(row)
    if os.path.exists(name):
        with open(name, encoding="utf-8", errors="replace") as stream:
            return parse_device(stream.read(), path=name)
    raise UsageError(
        f"no GPU {name!r}", hint=f"there are {', '.join(_table())}, or a file with a GpuTargetConfigProto as text"
    )


def parse_device(text: str, *, path: str | None = None) -> DeviceDescription:
    """The device of a ``GpuTargetConfigProto`` text. Raises ParseError where it describes none."""
    return device_of(parse_textproto(text, path=path), path=path)


def device_of(message: Message, *, path: str | None = None) -> DeviceDescription:
    """The device of a message that is, or holds, a ``gpu_device_info`` block. Raises ParseError."""
    inner = message.messages("gpu_device_info")
    info = inner[-1] if inner else message

    def integer(key: str, default: int | None = None) -> int:
        value = info.integer(key)
        if value is None:
            if default is None:
                raise ParseError(f"the device description lacks {key}", path=path)
            return default
        return value

    clock = info.number("clock_rate_ghz")
    if clock is None:
        raise ParseError("the device description lacks clock_rate_ghz", path=path)
    cuda = info.messages("cuda_compute_capability")
    rocm = info.messages("rocm_compute_capability")
    return DeviceDescription(
        name=info.text("name") or message.text("device_description_str") or "a GPU",
        platform="rocm" if rocm else "cuda",
        core_count=integer("core_count"),
        fpus_per_core=integer("fpus_per_core"),
        clock_rate_ghz=clock,
        memory_bandwidth=integer("memory_bandwidth"),
        l2_cache_size=integer("l2_cache_size"),
        shared_memory_per_block=integer("shared_memory_per_block"),
        compute_capability=(cuda[-1].integer("major") or 0, cuda[-1].integer("minor") or 0) if cuda else (0, 0),
        gcn_arch_name=(rocm[-1].text("gcn_arch_name") or "").partition(":")[0] if rocm else "",
        threads_per_warp=integer("threads_per_warp", 32),
        threads_per_block_limit=integer("threads_per_block_limit", 1024),
        threads_per_core_limit=integer("threads_per_core_limit", 2048),
        registers_per_block_limit=integer("registers_per_block_limit", 0),
        block_dim_limit_x=integer("block_dim_limit_x", 2147483647),
        shared_memory_per_block_optin=integer("shared_memory_per_block_optin", 0),
        shared_memory_per_core=integer("shared_memory_per_core", 0),
        device_memory_size=integer("device_memory_size", 0),
        toolkit_version=_version(info.text("compile_time_toolkit_version")),
        matrix_rates=MappingProxyType(_rates(info)),
    )


def _rates(info: Message) -> dict[int, MatrixRate]:
    rates: dict[int, MatrixRate] = {}
    for unit in info.messages("matrix_unit_description"):
        for entry in unit.messages("rate_infos"):
            width = _RATE_WIDTHS.get(entry.integer("key") or 0)
            for value in entry.messages("value") if width is not None else ():
                rates[width or 0] = MatrixRate(
                    value.integer("units_per_core") or 0,
                    value.number("ops_per_clock") or 0.0,
                    value.number("clock_rate_ghz") or 0.0,
                )
    return rates


def _version(text: str | None) -> tuple[int, ...]:
    parts = (text or "").split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else (0, 0, 0)


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    text = files("hloscope.core.analysis").joinpath("devices.json").read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))


def _from_row(row: Mapping[str, Any]) -> DeviceDescription:
    values = {key: value for key, value in row.items() if key != "text"}
    values["matrix_rates"] = MappingProxyType(
        {int(width): MatrixRate(*rate) for width, rate in row.get("matrix_rates", {}).items()}
    )
    for key in ("compute_capability", "toolkit_version"):
        if key in values:
            values[key] = tuple(values[key])
    return DeviceDescription(name=row["text"], **values)
