"""The orders that a serialized HLO proto keeps and a text loses: of computations, and of instructions in memory.

XLA numbers the values of its memory reports by the first; its passes and schedulers meet equals in the second. Only
names and ids are read, straight from the wire format. Source: ``openxla/xla:xla/service/hlo.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_MODULE_IN_HLO_PROTO = 1
_COMPUTATIONS = 3
_NAME = 1
_INSTRUCTIONS = 2
_INSTRUCTION_ID = 35
_LOCAL_ID = 0xFFFFFFFF
"""The bits of an instruction's id that count within its computation."""
_Value = bytes | int


def computation_names(data: bytes) -> list[str]:
    """Names of the computations of an ``HloProto`` or ``HloModuleProto``, in its order; empty for other bytes."""
    return [_text(one, _NAME) for one in _computations(data)]


def instruction_places(data: bytes) -> dict[str, Mapping[str, int]]:
    """Computation -> instruction -> place in the compiler's list; empty for other bytes."""
    found: dict[str, Mapping[str, int]] = {}
    for computation in _computations(data):
        places: dict[str, int] = {}
        for number, value in computation:
            if number == _INSTRUCTIONS and isinstance(value, bytes):
                fields = list(_fields(value))
                id_ = next((one for key, one in fields if key == _INSTRUCTION_ID and isinstance(one, int)), 0)
                places[_text(fields, _NAME)] = id_ & _LOCAL_ID
        found[_text(computation, _NAME)] = places
    return found


def _computations(data: bytes) -> list[list[tuple[int, _Value]]]:
    """The fields of each computation."""
    try:
        # Field 1 is the module in one and its name in the other; field 3 of an HloProto is the buffer assignment.
        inner = [value for number, value in _fields(data) if number == _MODULE_IN_HLO_PROTO]
    except (IndexError, ValueError):
        return []
    for candidate in (*inner, data):
        try:
            found = [
                list(_fields(value))
                for number, value in (_fields(candidate) if isinstance(candidate, bytes) else ())
                if number == _COMPUTATIONS and isinstance(value, bytes)
            ]
        except (IndexError, ValueError):
            continue
        if found:
            return found
    return []


def _text(fields: list[tuple[int, _Value]], wanted: int) -> str:
    value = next((one for number, one in fields if number == wanted), b"")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _fields(data: bytes) -> Iterator[tuple[int, _Value]]:
    """The fields of a message, fixed-width ones skipped. Raises ValueError, IndexError for what is none."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 2:
            size, at = _varint(data, at)
            if at + size > end:
                raise ValueError("cut off")
            yield key >> 3, data[at : at + size]
            at += size
        elif kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
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
