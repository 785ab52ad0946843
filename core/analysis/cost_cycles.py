"""Cycles that one element of an elementwise operation takes, by device, opcode and element type.

`op_profiles.json` holds the clock cycles that XLA's profiler measured; bf16 has no rows, so it costs the default.
Source: ``openxla/xla:xla/service/gpu/model/hlo_op_profiles_data.h``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription

DEFAULT_CYCLES = 3
"""For an operation or a type that was not measured."""
DEFAULT_PROFILE = "sm_86"
"""For a device that was not measured."""


def cycles_per_element(device: DeviceDescription, opcode: str, element_type: str) -> int:
    """Cycles of one element."""
    table = _profiles()
    profile = table.get(device.profile, table[DEFAULT_PROFILE])
    return profile.get(opcode, {}).get(element_type, DEFAULT_CYCLES)


@cache
def _profiles() -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    text = files("hloscope.core.analysis").joinpath("op_profiles.json").read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))
