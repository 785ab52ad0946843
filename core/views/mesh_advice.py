"""Collectives whose device groups do not fit the devices that the module is for.

The module's header says how many replicas and partitions run it; what the ids in the groups count follows from the
collective's channel and flags. Source: ``openxla/xla:xla/service/collective_ops_utils.cc#GetCollectiveOpGroupMode``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.attributes import parse_pairs
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.hlo.replica_groups import parse_replica_groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.core.views.advice import Found

_BY_PARTITION = ("collective-permute", "all-to-all", "collective-broadcast", "ragged-all-to-all")
"""With a channel these count partitions where the others count replicas."""
_CHANNEL = re.compile(r"[ ,]channel_id=(\d+)")


def misfits(index: ModuleIndex, among: Iterable[int] | None = None) -> Found:
    """(instruction, sentence, other instructions) of each collective that does not fit, of these or of all; none where
    the header does not say how many devices there are."""
    header = index.header_attributes
    if "replica_count" not in header and "num_partitions" not in header:
        return
    replicas, partitions = _count(header.get("replica_count")), _count(header.get("num_partitions"))
    columns = index.columns
    wanted = {number for number, word in enumerate(columns.opcode_names) if _is_collective(word)}
    if not wanted:
        return
    rows = np.flatnonzero(np.isin(columns.opcode_ids, list(wanted))).tolist() if among is None else among
    for i in rows:
        if int(columns.opcode_ids[i]) not in wanted:
            continue
        part = index.parts(i)
        pairs, groups = part.attribute("source_target_pairs"), part.attribute("replica_groups")
        ids: list[int] = []
        try:
            if pairs is not None:
                ids = [one for pair in parse_pairs(index.source[slice(*pairs.value)]) for one in pair]
            elif groups is not None:
                ids = [one for group in parse_replica_groups(index.source[slice(*groups.value)]) for one in group]
        except (HloscopeError, ValueError):
            continue
        count, what = _space(index.opcode(i), index.attributes_text(i), replicas, partitions)
        if not ids:
            continue
        if max(ids) >= count:
            yield i, f"device {max(ids)} takes part, but there {_are(count, what)}", ()
        elif pairs is None and len(set(ids)) < count:
            yield i, f"its groups hold {len(set(ids))} of {count} {what}s: the others would wait for ever", ()


def _is_collective(word: str) -> bool:
    known = OPCODES.get(word)
    return known is not None and known.collective


def _space(opcode: str, attributes: str, replicas: int, partitions: int) -> tuple[int, str]:
    """How many ids there are, and what they count."""
    channel = _CHANNEL.search(attributes)
    if channel is None or channel[1] == "0":
        return replicas, "replica"
    if "use_global_device_ids=true" in attributes:
        return replicas * partitions, "device"
    if opcode.removesuffix("-start") in _BY_PARTITION:
        return partitions, "partition"
    return replicas, "replica"


def _are(count: int, what: str) -> str:
    return f"is 1 {what}" if count == 1 else f"are {count} {what}s"


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 1
