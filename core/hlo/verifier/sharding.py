"""Shardings, read as far as validation needs. Source: ``openxla/xla:xla/hlo/ir/hlo_sharding.cc#Validate``.

Forms: ``{replicated}``, ``{manual}``, ``{unknown}``, ``{maximal device=N}``, ``{devices=[2,1]0,1 …}``,
``{devices=[2,1]<=[2]T(0) last_tile_dim_replicate}``, ``{devices=[2,1,2]… last_tile_dims={manual}}``, and tuples
``{{…}, {…}}``. A form that is none of these (a named sharding of a mesh) is not judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from hloscope.core.hlo.attributes import split_top
from hloscope.core.hlo.infer_shape.base import human
from hloscope.core.hlo.shape import Shape

_DEVICES = re.compile(
    r"devices=\[(?P<dims>[\d,\s]+)\]\s*(?:<=\s*\[(?P<iota>[\d,\s]+)\]\s*(?:T\([\d,\s]+\))?|(?P<list>[\d,\s-]+?))\s*(?=$|[a-z_])"
)
_MAXIMAL = re.compile(r"(?:maximal\s+)?device=(-?\d+)")
_KNOWN = re.compile(
    r"devices=\[[\d,\s]+\]\s*(?:<=\s*\[|\d)|\bdevice=\d|\bmesh\[|\b(?:replicated|manual|unknown|unreduced|maximal)\b"
)
"""What a sharding that can be read has somewhere, also in a form that is not judged here."""
_SUBGROUPS = re.compile(r"last_tile_dims=\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Leaf:
    """Sharding of one array."""

    text: str
    kind: str
    """``free`` fits any shape, ``maximal`` names one device, ``tiled`` has a tile assignment, ``other`` is unread."""
    device: int = 0
    dims: tuple[int, ...] = ()
    """Tile assignment dimensions without subgroup dimensions."""
    devices: tuple[int, ...] | None = None
    """Device ids in order, None for an iota list."""
    count: int = 0


def parse(text: str) -> Leaf | tuple[Leaf, ...]:
    """One leaf, or one for each leaf of a tuple."""
    body = re.sub(r"/\*.*?\*/", "", text).strip()
    inside = body[1:-1].strip() if body.startswith("{") and body.endswith("}") else body
    if inside.startswith("{") or not inside:
        return tuple(_leaf(part) for part in split_top(inside))
    return _leaf(body)


def _leaf(text: str) -> Leaf:
    inside = text.strip().removeprefix("{").removesuffix("}").strip()
    first = inside.split(None, 1)[0] if inside else ""
    if first in ("replicated", "manual", "unknown", "unreduced"):
        return Leaf(text, "free")
    tiled = _DEVICES.match(inside)
    if tiled is not None:
        dims = [int(d) for d in tiled["dims"].split(",") if d.strip()]
        whole = prod(dims)
        groups = _SUBGROUPS.search(inside)
        hidden = len([g for g in groups[1].split(",") if g.strip()]) if groups else 0
        hidden += "last_tile_dim_replicate" in inside
        ids = None
        if tiled["list"] is not None:
            ids = tuple(int(d) for d in tiled["list"].split(",") if d.strip())
        return Leaf(text, "tiled", 0, tuple(dims[: len(dims) - hidden]), ids, whole)
    maximal = _MAXIMAL.match(inside)
    if maximal is not None:
        return Leaf(text, "maximal", int(maximal[1]))
    return Leaf(text, "other")


def fault(text: str, shape: Shape, devices: int | None) -> str | None:
    """What is wrong with a sharding of `shape` on that many devices (None: not known); None where nothing is."""
    if shape.is_token:
        return None
    try:
        sharding = parse(text)
    except ValueError:
        return f"the sharding {text} cannot be read"
    for one in sharding if isinstance(sharding, tuple) else (sharding,):
        if one.kind == "other" and _KNOWN.search(one.text) is None:
            return f"the sharding {one.text} cannot be read"
    if not isinstance(sharding, tuple):
        if shape.is_tuple:
            return None if sharding.kind == "other" else "Validation shape is a tuple but sharding is not."
        return _leaf_fault(sharding, shape, devices)
    if not shape.is_tuple:
        return "Sharding is tuple-shaped but validation shape is not."
    leaves = [leaf for _, leaf in shape.leaves()]
    if any(leaf.kind == "other" for leaf in sharding):
        return None
    if len(leaves) != len(sharding):
        # An empty tuple has one sharding.
        if not leaves and len(sharding) == 1:
            return None
        return f"Sharding has {len(sharding)} leaves, {human(shape)} has {len(leaves)}"
    for one, leaf in zip(sharding, leaves, strict=True):
        wrong = _leaf_fault(one, leaf, devices)
        if wrong is not None:
            return f"{wrong} Note: While validating sharding tuple element which is {one.text}"
    return None


def _leaf_fault(one: Leaf, shape: Shape, devices: int | None) -> str | None:
    if one.kind in ("free", "other"):
        return None
    if one.kind == "maximal":
        return _device_fault(one.device, devices)
    if one.count == 1:
        return (
            "Tile assignment only contains a single device. If a replicated sharding was intended, use "
            "HloSharding::Replicated(). If a device placement was intended, use HloSharding::SingleDevice()"
        )
    if len(one.dims) != shape.rank:
        return (
            "Number of tile assignment dimensions (excluding subgroups) is different than the input rank. "
            f"sharding={one.text}, input_shape={human(shape)}"
        )
    if one.devices is None:
        if devices is not None and one.count != devices:
            return f"tile_assignment should have {devices} devices but has {one.count}"
        return None
    if len(one.devices) != one.count:
        return f"the tile assignment of {one.text} has {one.count} places and {len(one.devices)} devices"
    seen: set[int] = set()
    for device in one.devices:
        wrong = _device_fault(device, devices)
        if wrong is not None:
            return wrong
        if device in seen:
            return f"device {device} is not unique in tile assignment"
        seen.add(device)
    if devices is not None and len(seen) != devices:
        return f"tile_assignment should have {devices} devices but has {len(seen)}"
    return None


def _device_fault(device: int, devices: int | None) -> str | None:
    if device < 0:
        return f"device {device} is negative in tile assignment"
    if devices is not None and device >= devices:
        return f"device {device} >= num_devices ({devices}) in tile assignment"
    return None
