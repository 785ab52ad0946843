"""The wire format of protocol buffers, as far as HLO protos need it: fields by number, nothing decoded."""

from __future__ import annotations

from collections.abc import Iterator


def read_fields(data: bytes, *, partial: bool = False, fixed: bool = False) -> Iterator[tuple[int, bytes | int]]:
    """The top-level fields of a serialized message; with ``partial`` a cut end is no fault.

    Fixed-width ones are skipped, or with ``fixed`` given as their bytes.

    Raises ValueError, IndexError for what is no message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ValueError("field number 0")
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                if partial:
                    return
                raise ValueError("field longer than the message")
            yield number, data[at : at + size]
            at += size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            if at + size > len(data):
                raise ValueError("field longer than the message")
            if fixed:
                yield number, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {wire}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("number too long")
