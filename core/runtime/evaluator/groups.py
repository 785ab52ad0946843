"""Who takes part in a collective: replica groups in their three spellings, and what their integers mean, in four ways.

A device is its place in the flat grid, ``replica * partitions + partition``. Source:
``openxla/xla:xla/hlo/ir/collective_op_group_mode.cc``, ``xla/hlo/ir/mesh_and_axis.cc``,
``xla/service/collective_ops_utils.cc#GetParticipatingFlattenedIdGroups``.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hloscope.core.errors import ParseError, UnsupportedError
from hloscope.core.hlo.attributes import parse_replica_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.instruction import HloInstruction

Group = tuple[int, ...]

_GLOBAL = frozenset(
    {"all-gather", "all-gather-start", "all-reduce", "all-reduce-start", "reduce-scatter", "reduce-scatter-start"}
)
"""Opcodes that have ``use_global_device_ids``; the others count partitions once they have a channel."""
_MESH = re.compile(r"mesh\[(?P<axes>[^\]]*)\](?:\s*\((?P<order>[^)]*(?:\([^)]*\))?[^)]*)\))?\s*\{(?P<used>[^}]*)\}$")
_AXIS = re.compile(r"'?([^'=:,\s]+)'?\s*=\s*(\d+)")
_USED = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


class _Axis(NamedTuple):
    name: str
    before: int
    """Product of the sub-axes in front of this one; 1 for a whole axis."""
    size: int


def written_groups(text: str | None) -> tuple[Group, ...]:
    """The groups as the text lists them; none where everybody is in one group. Raises ParseError, UnsupportedError."""
    if text is None or not text.strip():
        return ()
    if text.lstrip().startswith("mesh"):
        return _mesh_groups(text.strip())
    return parse_replica_groups(text)


def _mesh_groups(text: str) -> tuple[Group, ...]:
    found = _MESH.match(text)
    if found is None:
        raise UnsupportedError(f"replica groups of the form {text[:60]!r}")
    axes = {name: int(size) for name, size in _AXIS.findall(found["axes"])}
    used = [_Axis(n, int(pre or 1), int(size or axes.get(n, 0))) for n, pre, size in _USED.findall(found["used"])]
    for axis in used:
        if axis.name not in axes or axes[axis.name] % (axis.before * axis.size):
            raise ParseError(f"replica groups by an axis that their mesh lacks: {text[:60]!r}")
    order = _order(found["order"], prod(axes.values()))
    # Every axis is cut wherever a sub-axis of it begins or ends; the used pieces go to the back in their written order.
    pieces: list[tuple[str, int, int]] = []
    for name, size in axes.items():
        cuts = {1, size}
        for axis in used:
            if axis.name == name:
                cuts |= {axis.before, axis.before * axis.size}
        marks = sorted(cuts)
        pieces += [(name, a, b // a) for a, b in zip(marks, marks[1:], strict=False)] or [(name, 1, 1)]
    back: list[int] = []
    for axis in used:
        for place, (name, start, size) in enumerate(pieces):
            inside = axis.before <= start and start * size <= axis.before * axis.size
            if name == axis.name and inside and place not in back and (size > 1 or axis.size == 1):
                back.append(place)
    front = [place for place in range(len(pieces)) if place not in back]
    grid = order.reshape([size for _, _, size in pieces]).transpose([*front, *back])
    width = prod(axis.size for axis in used)
    return tuple(tuple(int(v) for v in row) for row in grid.reshape(-1, width))


def _order(text: str | None, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The devices of a mesh: 0, 1, … unless it lists them or gives them as a transposed iota."""
    if not text:
        return np.arange(count)
    body = text.partition("=")[2].strip() if text.strip().startswith("device_ids") else text.strip()
    iota = re.match(r"(?:\[[\d,]*\])?<=\[([\d,]+)\](?:T\(([\d,]+)\))?", body.removeprefix("(").strip())
    if iota is not None:
        ids = np.arange(count).reshape([int(p) for p in iota[1].split(",")])
        return ids.transpose([int(p) for p in iota[2].split(",")]).reshape(-1) if iota[2] else ids.reshape(-1)
    ids = np.asarray([int(p) for p in re.findall(r"\d+", body)], np.int64)
    if ids.size != count:
        raise ParseError(f"a mesh of {count} devices that lists {ids.size}")
    return ids


def participants(instruction: HloInstruction, replicas: int, partitions: int) -> tuple[Group, ...]:
    """The groups of devices that exchange data, each in the order that ranks its members.

    Raises ParseError for ids that there are not, UnsupportedError for a form that is not known.
    """
    groups = written_groups(instruction.raw_attrs.get("replica_groups"))
    channel = instruction.attr("channel_id")
    count = replicas * partitions
    if channel is None:
        everybody: Sequence[Group] = groups or (tuple(range(replicas)),)
        out = [tuple(r * partitions + p for r in group) for group in everybody for p in range(partitions)]
    elif instruction.opcode not in _GLOBAL:
        everybody = groups or (tuple(range(partitions)),)
        out = [tuple(r * partitions + p for p in group) for group in everybody for r in range(replicas)]
    elif instruction.attr("use_global_device_ids"):
        out = list(groups or (tuple(range(count)),))
    else:
        everybody = groups or (tuple(range(replicas)),)
        out = [tuple(r * partitions + p for r in group for p in range(partitions)) for group in everybody]
    seen = [device for group in out for device in group]
    if any(not 0 <= device < count for device in seen) or len(set(seen)) != len(seen):
        raise ParseError(f"the replica groups of %{instruction.name} do not fit {count} devices")
    return tuple(out)


def pairs(instruction: HloInstruction, replicas: int, partitions: int) -> tuple[tuple[int, int], ...]:
    """Source and target devices of a collective-permute."""
    written = instruction.attr("source_target_pairs") or ()
    out: list[tuple[int, int]] = []
    for source, target in written:
        if instruction.attr("channel_id") is None:
            out += [(source * partitions + p, target * partitions + p) for p in range(partitions)]
        else:
            out += [(r * partitions + source, r * partitions + target) for r in range(replicas)]
    return tuple(out)
