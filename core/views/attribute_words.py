"""An attribute's value in words, for somebody who does not read HLO every day.

Replica groups as lists of devices, a sharding as a grid of devices, a window and dimension labels in sentences, a
backend config as indented JSON. What cannot be decoded has no words, never wrong ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.attributes import (
    ConvolutionDimensionNumbers,
    Window,
    braced,
    parse_backend_config,
    parse_dim_labels,
    parse_padding,
    parse_pairs,
    parse_window,
    split_top,
)
from hloscope.core.hlo.replica_groups import parse_replica_groups
from hloscope.core.runtime.evaluator.sharding import parse_sharding

_GROUPS = 16
_IN_GROUP = 32
_GRID = 256
"""Devices of a sharding that is drawn."""
_JSON_CHARACTERS = 6_000


def attribute_words(key: str, text: str) -> str | None:
    """Lines of plain text that decode ``key=text``; None where nothing is to be added to the text itself."""
    decode = _DECODERS.get(key)
    if decode is None:
        return None
    try:
        return decode(text.strip())
    except (HloscopeError, ValueError, IndexError, RecursionError):
        return None


def _replica_groups(text: str) -> str:
    groups = parse_replica_groups(text)
    if not groups:
        return "one group of all devices"
    sizes = sorted({len(group) for group in groups})
    each = f"{sizes[0]} each" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} each"
    lines = [f"{len(groups):,} group{'s'[: len(groups) != 1]}, {each}:"]
    for number, group in enumerate(groups[:_GROUPS]):
        shown = ", ".join(map(str, group[:_IN_GROUP]))
        lines.append(f"  group {number}: {shown}{' …' if len(group) > _IN_GROUP else ''}")
    if len(groups) > _GROUPS:
        lines.append(f"  and {len(groups) - _GROUPS:,} more")
    return "\n".join(lines)


def _pairs(text: str) -> str:
    pairs = parse_pairs(text)
    lines = [f"{len(pairs):,} transfer{'s'[: len(pairs) != 1]}:"]
    lines += [f"  {source} → {target}" for source, target in pairs[:_GROUPS]]
    if len(pairs) > _GROUPS:
        lines.append(f"  and {len(pairs) - _GROUPS:,} more")
    return "\n".join(lines)


def _sharding(text: str) -> str | None:
    body = braced(text).strip()
    parts = split_top(body) if body.startswith("{") else []
    if parts and all(part.startswith("{") for part in parts):
        out = [f"part {number}: {_one_sharding(part) or part}" for number, part in enumerate(parts[:_GROUPS])]
        if len(parts) > _GROUPS:
            out.append(f"and {len(parts) - _GROUPS:,} more parts")
        return "\n".join(out)
    return _one_sharding(text)


def _one_sharding(text: str) -> str | None:
    body = braced(text).strip()
    for word, meaning in (
        ("replicated", "every device holds the whole array"),
        ("manual", "each device holds its own array: the program says how they belong together"),
        ("unknown", "left to the compiler"),
        ("unreduced", "each device holds a part of a sum"),
    ):
        if body.startswith(word):
            return meaning
    if body.startswith("maximal"):
        return f"one device holds the array: {body.partition('device=')[2].strip() or body}"
    found = parse_sharding(text)
    if found is None:
        return None
    if found.replicated:
        return "every device holds the whole array"
    spread = ", ".join(f"dimension {dim} in {count}" for dim, count in enumerate(found.tiles) if count > 1)
    holders: dict[tuple[int, ...], list[int]] = {}
    for device, block in enumerate(found.block_of):
        holders.setdefault(block, []).append(device)
    copies = max(len(devices) for devices in holders.values())
    lines = [f"blocks: {spread}" + (f"; each held by {copies} devices" if copies > 1 else "")]
    if len(found.block_of) <= _GRID:
        lines += _grid(found.tiles, holders)
    return "\n".join(lines)


def _grid(tiles: tuple[int, ...], holders: Mapping[tuple[int, ...], list[int]]) -> list[str]:
    """Rows of devices: the first divided dimension goes down, the second across, any others are written out."""
    divided = [dim for dim, count in enumerate(tiles) if count > 1]
    down, across = divided[0], divided[1] if len(divided) > 1 else None
    others = divided[2:]
    cells: dict[tuple[int, ...], dict[tuple[int, int], str]] = {}
    for block, devices in sorted(holders.items()):
        at = (block[down], block[across] if across is not None else 0)
        cells.setdefault(tuple(block[dim] for dim in others), {})[at] = ",".join(map(str, devices))
    lines = [f"rows: dimension {down}" + (f", columns: dimension {across}" if across is not None else "")]
    for where, grid in cells.items():
        if others:
            lines.append("at " + ", ".join(f"dimension {d} block {n}" for d, n in zip(others, where, strict=True)))
        width = max(len(one) for one in grid.values())
        columns = tiles[across] if across is not None else 1
        for row in range(tiles[down]):
            lines.append("  │ " + " │ ".join(grid.get((row, c), "").rjust(width) for c in range(columns)) + " │")
    return lines


def _window(text: str) -> str:
    found: Window = parse_window(text)
    lines: list[str] = []
    for number, dim in enumerate(found.dimensions):
        words = [f"size {dim.size}", f"moves by {dim.stride}"]
        if dim.padding_low or dim.padding_high:
            words.append(f"{dim.padding_low} padded before and {dim.padding_high} after")
        if dim.base_dilation > 1:
            words.append(f"{dim.base_dilation - 1} holes between input elements")
        if dim.window_dilation > 1:
            words.append(f"{dim.window_dilation - 1} skipped between window elements")
        if dim.window_reversal:
            words.append("reversed")
        lines.append(f"window dimension {number}: {', '.join(words)}")
    return "\n".join(lines)


def _dim_labels(text: str) -> str:
    found: ConvolutionDimensionNumbers = parse_dim_labels(text)

    def side(name: str, first: tuple[str, int], second: tuple[str, int], spatial: tuple[int, ...]) -> str:
        words = {first[1]: first[0], second[1]: second[0]}
        words.update({dim: f"spatial {number}" for number, dim in enumerate(spatial)})
        return f"{name}: " + ", ".join(words.get(dim, "not used") for dim in range(max(words) + 1))

    return "\n".join(
        (
            side("input", ("batch", found.input_batch), ("features", found.input_feature), found.input_spatial),
            side(
                "kernel",
                ("input features", found.kernel_input_feature),
                ("output features", found.kernel_output_feature),
                found.kernel_spatial,
            ),
            side("output", ("batch", found.output_batch), ("features", found.output_feature), found.output_spatial),
        )
    )


def _padding(text: str) -> str:
    lines: list[str] = []
    for number, dim in enumerate(parse_padding(text)):
        words = [f"{dim.low} before, {dim.high} after"]
        if dim.interior:
            words.append(f"{dim.interior} between elements")
        lines.append(f"dimension {number}: {', '.join(words)}")
    return "\n".join(lines)


def _backend_config(text: str) -> str | None:
    value: Any = parse_backend_config(text)
    if not isinstance(value, dict | list):
        return None
    out = json.dumps(value, indent=2)
    return out if len(out) <= _JSON_CHARACTERS else out[:_JSON_CHARACTERS].rsplit("\n", 1)[0] + "\n…"


_DECODERS: Mapping[str, Callable[[str], str | None]] = MappingProxyType(
    {
        "replica_groups": _replica_groups,
        "source_target_pairs": _pairs,
        "sharding": _sharding,
        "window": _window,
        "dim_labels": _dim_labels,
        "padding": _padding,
        "backend_config": _backend_config,
    }
)
