"""Who takes part in a collective: replica groups in their three spellings, and what their integers mean, in four ways.

A device is its place in the flat grid, ``replica * partitions + partition``. Source:
``openxla/xla:xla/hlo/ir/collective_op_group_mode.cc``, ``xla/hlo/ir/mesh_and_axis.cc``,
``xla/service/collective_ops_utils.cc#GetParticipatingFlattenedIdGroups``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import ParseError
from hloscope.core.hlo.replica_groups import Group, parse_replica_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.instruction import HloInstruction

_GLOBAL = frozenset(
    {"all-gather", "all-gather-start", "all-reduce", "all-reduce-start", "reduce-scatter", "reduce-scatter-start"}
)
"""Opcodes that have ``use_global_device_ids``; the others count partitions once they have a channel."""


def written_groups(text: str | None) -> tuple[Group, ...]:
    """The groups as the text lists them; none where everybody is in one group. Raises ParseError, UnsupportedError."""
    if text is None or not text.strip():
        return ()
    return parse_replica_groups(text)


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
