"""Memory spaces of values, and which of them may use another's allocation.

Source: ``openxla/xla:xla/service/buffer_assignment.cc#DefaultColorer``,
``xla/service/gpu/gpu_memory_space_assignment.cc#CreateColorer``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hloscope.core.errors import VerifyError

if TYPE_CHECKING:
    from hloscope.core.analysis.alias import AliasAnalysis, HloBuffer
    from hloscope.core.analysis.dataflow_values import HloValue

SPACES: Mapping[int, str] = MappingProxyType({0: "default", 1: "vmem", 2: "smem", 3: "hbm", 4: "host", 5: "cmem"})
"""Names of memory spaces in the memory usage report."""


def space_name(color: int) -> str:
    """Name of a memory space in the report."""
    return SPACES.get(color, f"color_{color}")


def layout_space(value: HloValue) -> int:
    """The memory space of the layout where a value is made; 0 for tuples and what has no layout."""
    shape = value.shape
    return shape.layout.memory_space if shape.layout is not None else 0


def color_buffers(analysis: AliasAnalysis, *, gpu: bool) -> Mapping[HloBuffer, int]:
    """The memory space of every buffer. Raises VerifyError where the values of one buffer disagree."""
    colors: dict[HloBuffer, int] = {}
    for buffer in analysis.buffers:
        wanted = {layout_space(value) for value in buffer.values}
        if gpu:
            wanted = {space for value in buffer.values for space in _gpu_spaces(value)} or {0}
        if len(wanted) > 1:
            names = ", ".join(f"{value.short()} in {layout_space(value)}" for value in buffer.values)
            raise VerifyError(f"values that share memory lie in different memory spaces: {names}")
        colors[buffer] = wanted.pop()
    return colors


def may_use(buffer_color: int, allocation_color: int, *, gpu: bool) -> bool:
    """Whether a buffer of one memory space may live in an allocation of another; not the same both ways."""
    return buffer_color == allocation_color or (gpu and buffer_color == 0 and allocation_color == 1)


def _gpu_spaces(value: HloValue) -> Iterator[int]:
    """The memory spaces that a value asks for on a GPU. Tables of pointers ask for none."""
    if value.shape.is_tuple:
        return
    if space := layout_space(value):
        yield space
    node = value.instruction
    if node.opcode == "custom-call":
        yield from _listed(_config(node.attr("backend_config")), "results_memory_spaces", value.index)
    for use in value.uses:
        if use.instruction.opcode == "custom-call":
            config = _config(use.instruction.attr("backend_config"))
            yield from _listed(config, "operands_memory_spaces", (use.operand,))


def _config(raw: Any) -> Mapping[str, Any]:
    found: Any = raw
    if isinstance(raw, str):
        try:
            found = json.loads(raw)
        except ValueError:
            return {}
    return found.get("custom_call_config", found) if isinstance(found, dict) else {}


def _listed(config: Mapping[str, Any], key: str, index: tuple[int, ...]) -> Iterator[int]:
    listed = config.get(key)
    if isinstance(listed, list) and len(index) <= 1:
        place = index[0] if index else 0
        if place < len(listed) and isinstance(listed[place], int) and listed[place]:
            yield listed[place]
