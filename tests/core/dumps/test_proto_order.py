"""Orders that a proto keeps, read off its wire format."""

from __future__ import annotations

from hloscope.core.dumps.proto_order import computation_names, instruction_places


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def computation(name: str, *instructions: tuple[str, int]) -> bytes:
    return field(1, name.encode()) + b"".join(
        field(2, field(1, node.encode()) + field(35, (7 << 32) + place)) for node, place in instructions
    )


MODULE = field(1, b"m") + b"".join(
    field(3, one) for one in (computation("add", ("x", 0)), computation("main", ("y", 2), ("x", 300), ("z", 0)))
)


def test_computations_and_the_places_of_instructions() -> None:
    for data in (MODULE, field(1, MODULE)):
        assert computation_names(data) == ["add", "main"]
        assert instruction_places(data) == {"add": {"x": 0}, "main": {"y": 2, "x": 300, "z": 0}}


def test_bytes_of_something_else_have_none() -> None:
    assert computation_names(b"HloModule m\n") == [] == list(instruction_places(b"\xff" * 20))
    assert computation_names(field(1, MODULE)[:-3]) == []
