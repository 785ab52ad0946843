"""Reader of XLA's out-of-memory message: its statistics and its table of the largest buffers, of any back end.

CPU and GPU print ``BufferAssignment OOM Debugging`` with ``Peak buffers``; TPU prints ``Ran out of memory in memory
space hbm`` with ``Largest program allocations``. Some messages are one sentence without a table. Colours and the
prefixes of loggers (``(pid=…)``, as Ray writes them) are taken off before reading.
Source: ``openxla/xla:xla/service/buffer_assignment.cc#ToVerboseString``,
``xla/hlo/transforms/simplifiers/hlo_rematerialization.cc``, ``xla/tsl/framework/bfc_allocator.cc``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hloscope.core.errors import DumpError


@dataclass(frozen=True, slots=True)
class OomBuffer:
    """One row of the table."""

    rank: int
    """1 is the largest."""
    size: int
    """Bytes, as exact as the message: it rounds."""
    shape: str | None
    label: str | None
    """Opcode, or the instruction's text on TPU."""
    op_name: str | None
    source: str | None
    """``FILE:LINE``."""
    kind: str | None = None
    """``Allocation type`` where the message says it."""
    unpadded: int | None = None


@dataclass(slots=True)
class OomMessage:
    """The message."""

    wanted: int | None = None
    """Bytes that could not be had."""
    used: int | None = None
    limit: int | None = None
    stats: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes by name: ``parameter allocation``, ``total allocation`` …"""
    buffers: list[OomBuffer] = field(default_factory=list[OomBuffer])


_UNITS: Mapping[str, int] = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_SIZE = re.compile(r"([\d.]+)\s*([KMGTP]?)(?:i?B)?(?:ytes)?\b", re.IGNORECASE)
_START = re.compile(r"^\s*(?:Buffer (\d+):|(\d+)\. Size:\s*(.*))\s*$")
_KEY = re.compile(
    r"^\s*(Size|Operator|Entry Parameter Subshape|XLA Label|XLA label|Shape|Unpadded size|Allocation type):\s*(.*?)\s*$"
)
_STAT = re.compile(r"^\s*([a-z_ ]+(?:allocation|fragmentation)):\s+([\d.]+\s*[KMGTP]?i?B)", re.MULTILINE)
_WANTED = re.compile(
    r"(?:trying to allocate|failed to allocate(?: request for)?|attempting to (?:allocate|reserve)|allocating)\s+"
    r"([\d.]+\s*(?:bytes|[KMGTP]?(?:i?B)?))",
    re.I,
)
_USED = re.compile(r"Used ([\d.]+[KMGTP]?) of ([\d.]+[KMGTP]?)")
_NEEDED = re.compile(
    r"total memory required for [\w ]+ \(([\d.]+[KMGTP]?i?B?)\) exceeds available [\w ]+ \(([\d.]+[KMGTP]?i?B?)\)"
)
_NOT_REDUCED = re.compile(
    r"Can't reduce memory use below ([\d.]+[KMGTP]?i?B)[^;]*; only reduced to ([\d.]+[KMGTP]?i?B)"
)
_SCOPED = re.compile(r"allocation with size ([\d.]+[KMGTP]?i?B?) and limit ([\d.]+[KMGTP]?i?B?)", re.I)
"""Memory that one kernel of a TPU asks for."""
_POOL = re.compile(r"\bLimit: +(\d+)\s[^:]*\bInUse: +(\d+)\s")
"""What the BFC allocator has and has given away, in bytes."""
_CHUNKS = re.compile(r"\b(\d+) Chunks of size (\d+) totalling [\d.]+")
_LEFT = re.compile(r"([\d.]+[KMGTP]?i?B?) (free|reserved|reservable)\b")
"""What a TPU's runtime still has."""
_USAGE = re.compile(
    r"^ +(reserved|program|arguments|global|scoped|HLO temp|output) +([\d.]+[KMGTP]?i?B?)(?: |$)", re.MULTILINE
)
"""The breakdown of a TPU's message."""
_COLOUR = re.compile(r"(?:\x1b)?\[[0-9;]*m")
_PREFIX = re.compile(r"^\s*[0-9]*\s*\((?:[^()\n]* )?pid=[0-9]+[^()\n]*\) ?", re.MULTILINE)
_SHOWN_CHUNKS = 10
"""Kinds of chunks of an allocator that are told, the largest first."""
_SIGNS = re.compile(
    r"OOM Debugging|ran out of memory|Largest program allocations|RESOURCE_EXHAUSTED[^\n]*out of memory"
    r"|Can't reduce memory use below|Attempting to (?:allocate|reserve) [\d.]+[KMGTP]?i?B?\b"
    r"|Failed to allocate request for|exceeded scoped \w+ limit",
    re.IGNORECASE,
)


def looks_like_oom(text: str) -> bool:
    """Whether a text holds such a message."""
    return _SIGNS.search(text) is not None


def parse_size(text: str) -> int:
    """``1.50GiB``, ``12B``, ``4.00G`` or ``4096 bytes`` as bytes. Raises ValueError."""
    found = _SIZE.match(text.strip())
    if found is None:
        raise ValueError(text)
    return int(float(found[1]) * _UNITS[found[2].upper()])


def read_oom(text: str, *, path: str | None = None) -> OomMessage:
    """The message within any surrounding text. Raises DumpError where there is none."""
    if not looks_like_oom(text):
        raise DumpError("no out-of-memory message of XLA in it", path=path)
    text = _PREFIX.sub("", _COLOUR.sub("", text))
    message = OomMessage()
    for name, size in _STAT.findall(text):
        message.stats[name.strip()] = parse_size(size)
    if (wanted := _WANTED.search(text)) is not None:
        message.wanted = parse_size(wanted[1])
    if (used := _USED.search(text)) is not None:
        message.used, message.limit = parse_size(used[1]), parse_size(used[2])
    elif (needed := _NEEDED.search(text)) is not None:
        message.used, message.limit = parse_size(needed[1]), parse_size(needed[2])
    elif (reduced := _NOT_REDUCED.search(text)) is not None:
        message.used, message.limit = parse_size(reduced[2]), parse_size(reduced[1])
    elif (scoped := _SCOPED.search(text)) is not None:
        message.used, message.limit = parse_size(scoped[1]), parse_size(scoped[2])
    elif (pool := _POOL.search(text)) is not None:
        message.used, message.limit = int(pool[2]), int(pool[1])
        chunks = Counter({int(size): int(count) for count, size in _CHUNKS.findall(text)})
        for size, count in sorted(chunks.items(), key=lambda one: -one[0] * one[1])[:_SHOWN_CHUNKS]:
            message.stats[f"{count} chunks of {size:,} bytes"] = size * count
    if "That was not possible" in text:
        for size, name in _LEFT.findall(text):
            message.stats.setdefault(name, parse_size(size))
    if message.used is not None:
        for name, count in _USAGE.findall(text):
            message.stats.setdefault(name, parse_size(count))
    current: dict[str, str] | None = None
    for line in text.split("\n"):
        if (start := _START.match(line)) is not None:
            _finish(message, current)
            current = {"rank": start[1] or start[2]}
            if start[3]:
                current["Size"] = start[3]
        elif line.strip().startswith("====="):
            _finish(message, current)
            current = None
        elif current is not None and (key := _KEY.match(line)) is not None:
            current[key[1]] = key[2]
    _finish(message, current)
    return message


def _finish(message: OomMessage, row: dict[str, str] | None) -> None:
    if row is None or "Size" not in row:
        return
    operator = row.get("Operator", "")
    name = re.search(r'op_name="([^"]*)"', operator)
    file = re.search(r'source_file="([^"]*)"', operator)
    line = re.search(r"source_line=(\d+)", operator)
    unpadded = row.get("Unpadded size")
    try:
        size = parse_size(row["Size"])
    except ValueError:
        return
    message.buffers.append(
        OomBuffer(
            rank=int(row["rank"]),
            size=size,
            shape=row.get("Shape") or row.get("Entry Parameter Subshape"),
            label=row.get("XLA Label")
            or row.get("XLA label")
            or ("parameter" if "Entry Parameter Subshape" in row else None),
            op_name=name[1] if name is not None else None,
            source=(file[1] + (f":{line[1]}" if line is not None else "")) if file is not None else None,
            kind=row.get("Allocation type"),
            unpadded=parse_size(unpadded) if unpadded else None,
        )
    )
