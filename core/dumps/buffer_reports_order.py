"""The order of computations in a serialized HLO proto, by which XLA numbers the values of its memory reports.

A text lists computations depth-first; the proto keeps the order in which the compiler itself walks them. Only names are
read, straight from the wire format. Source: ``openxla/xla:xla/service/hlo.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator

_MODULE_IN_HLO_PROTO = 1
_COMPUTATIONS = 3
_NAME = 1
_LENGTH_DELIMITED = 2


def computation_names(data: bytes) -> list[str]:
    """Names of the computations of an ``HloProto`` or ``HloModuleProto``, in its order; empty for other bytes."""
    try:
        fields = list(_fields(data))
    except (IndexError, ValueError):
        return []
    # Field 1 is the module in one and its name in the other; field 3 of an HloProto is the buffer assignment.
    for candidate in (*(value for number, value in fields if number == _MODULE_IN_HLO_PROTO), data):
        try:
            names = _names(list(_fields(candidate)))
        except (IndexError, ValueError):
            continue
        if names:
            return names
    return []


def _names(fields: list[tuple[int, bytes]]) -> list[str]:
    found: list[str] = []
    for number, value in fields:
        if number == _COMPUTATIONS:
            name = next((text for key, text in _fields(value) if key == _NAME), b"")
            found.append(name.decode("utf-8"))
    return found


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message; others are skipped. Raises ValueError, IndexError for what is none."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _LENGTH_DELIMITED:
            size, at = _varint(data, at)
            if at + size > end:
                raise ValueError("cut off")
            yield key >> 3, data[at : at + size]
            at += size
        elif kind == 0:
            _, at = _varint(data, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("no protocol buffer")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("no protocol buffer")
