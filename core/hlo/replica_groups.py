"""Replica groups: which devices of a collective exchange data, in the three spellings that texts have.

Source: ``openxla/xla:xla/hlo/ir/replica_group.cc``, ``xla/hlo/ir/mesh_and_axis.cc``.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from hloscope.core.errors import ParseError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

Group = tuple[int, ...]

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_MESH = re.compile(
    r"@?mesh\[(?P<axes>[^\]]*)\](?:(?:\s*,\s*device_ids\s*=)?\s*\((?P<order>[^()]*(?:\([^()]*\))?[^()]*)\))?"
    r"\s*\{(?P<used>[^}]*)\}$"
)
_ORDER = re.compile(r"(?:device_ids=)?(?:\[[\d,]*\](?=<=))?(?:<=)?\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_AXIS = re.compile(r"'?([^'=:,\s]+)'?\s*=\s*(\d+)")
_USED = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


class _Axis(NamedTuple):
    name: str
    before: int
    """Product of the sub-axes in front of this one; 1 for a whole axis."""
    size: int


def parse_replica_groups(text: str) -> tuple[Group, ...]:
    """Lists of ids from ``{{0,1},{2,3}}``, the iota form ``[2,4]<=[4,2]T(1,0)`` or axes, ``mesh['a'=2,'b'=4] {'b'}``.

    An empty list means one group of everybody. Raises ParseError, and UnsupportedError for a mesh in another form.
    """
    body = text.strip()
    if body.startswith("{"):
        from hloscope.core.hlo.attributes import parse_pairs

        return parse_pairs(body)
    found = _IOTA.match(body.replace(" ", ""))
    if found is not None:
        groups, sizes = (_numbers(found[at]) for at in (1, 2))
        if len(groups) != 2 or prod(groups) != prod(sizes):
            raise ParseError(f"replica groups are an iota of two dimensions that it fills, not {text[:40]!r}")
        return _rows(_transposed(sizes, _numbers(found[3])), groups[1])
    if "mesh" not in body:
        raise ParseError(f"expected replica groups, got {text[:40]!r}")
    return _of_mesh(body)


def _of_mesh(text: str) -> tuple[Group, ...]:
    found = _MESH.match(text)
    if found is None:
        raise UnsupportedError(f"replica groups of the form {text[:60]!r}")
    axes = {name: int(size) for name, size in _AXIS.findall(found["axes"])}
    used = [_Axis(n, int(pre or 1), int(size or axes.get(n, 0))) for n, pre, size in _USED.findall(found["used"])]
    for axis in used:
        if axis.name not in axes or not axis.size or axes[axis.name] % (axis.before * axis.size):
            raise ParseError(f"replica groups by an axis that their mesh lacks: {text[:60]!r}")
    devices = _devices(found["order"], prod(axes.values()))
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
    order = _transposed([size for _, _, size in pieces], [*front, *back])
    return _rows([devices[at] for at in order], prod(axis.size for axis in used))


def _devices(text: str | None, count: int) -> Sequence[int]:
    """The devices of a mesh: 0, 1, … unless it lists them or gives them as a transposed iota."""
    body = (text or "").replace(" ", "")
    if not body:
        return range(count)
    iota = _ORDER.match(body)
    if iota is None:
        ids = _numbers(body.removeprefix("device_ids="))
    else:
        ids = _transposed(_numbers(iota[1]), _numbers(iota[2]))
    if len(ids) != count:
        raise ParseError(f"a mesh of {count} devices that lists {len(ids)}")
    return ids


def _numbers(text: str | None) -> list[int]:
    if not text:
        return []
    try:
        return [int(one) for one in text.split(",") if one]
    except ValueError:
        raise ParseError(f"expected device numbers, got {text[:40]!r}") from None


def _transposed(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """0, 1, … as an array of these sizes, its dimensions put into the order, read row after row."""
    import numpy

    ids = numpy.arange(prod(sizes)).reshape(sizes)
    return (ids.transpose(order) if order else ids).reshape(-1).tolist()


def _rows(ids: Sequence[int], width: int) -> tuple[Group, ...]:
    return tuple(tuple(ids[at : at + width]) for at in range(0, len(ids), width))
