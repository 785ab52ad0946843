"""The orders that a serialized HLO proto keeps and a text loses: of computations, and of instructions in memory.

XLA numbers the values of its memory reports by the first; its passes and schedulers meet equals in the second. Only
names and ids are read, straight from the wire format. Source: ``openxla/xla:xla/service/hlo.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping

from hloscope.core.dumps.wire import read_fields

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
                own = list(read_fields(value))
                id_ = next((one for key, one in own if key == _INSTRUCTION_ID and isinstance(one, int)), 0)
                places[_text(own, _NAME)] = id_ & _LOCAL_ID
        found[_text(computation, _NAME)] = places
    return found


def _computations(data: bytes) -> list[list[tuple[int, _Value]]]:
    """The fields of each computation."""
    try:
        # Field 1 is the module in one and its name in the other; field 3 of an HloProto is the buffer assignment.
        inner = [value for number, value in read_fields(data) if number == _MODULE_IN_HLO_PROTO]
    except (IndexError, ValueError):
        return []
    for candidate in (*inner, data):
        try:
            found = [
                list(read_fields(value))
                for number, value in (read_fields(candidate) if isinstance(candidate, bytes) else ())
                if number == _COMPUTATIONS and isinstance(value, bytes)
            ]
        except (IndexError, ValueError):
            continue
        if found:
            return found
    return []


def _text(message: list[tuple[int, _Value]], wanted: int) -> str:
    value = next((one for number, one in message if number == wanted), b"")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
