"""Who reads what while a recorded list of fusions is followed step by step, and the memory traffic of an edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import shape_bytes

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule

FREE = frozenset({"constant", "tuple", "get-tuple-element", "bitcast"})
"""What costs no traffic by itself: it is no kernel, and its result is where its operand is, or in the program."""
_TAKES = frozenset({"slice", "dynamic-slice", "gather"})
"""Opcodes that read of their first operand no more than they give."""


class Readers:
    """Names of readers and operands of a module outside of fusion bodies, changed by `fuse` as a pass would.

    Built of None it knows nothing. Names that it does not know are left alone.
    """

    def __init__(self, module: HloModule | None) -> None:
        self._readers: dict[str, dict[str, None]] = {}
        self._operands: dict[str, dict[str, int | None]] = {}
        """By reader, what it reads: bytes, or None for the whole."""
        self._bytes: dict[str, int] = {}
        self._free: set[str] = set()
        self._kept: set[str] = set()
        """What an update writes into in place: it is written whatever is fused."""
        self._results: set[str] = set()
        self._tuples: set[str] = set()
        self.home: dict[str, str] = {}
        """Computation by instruction."""
        for computation in module.computations if module is not None else ():
            if computation.is_fusion:
                continue
            for one in computation.instructions:
                self._readers[one.name] = {user.name: None for user in one.users}
                self._operands[one.name] = {operand.name: _read(one, operand) for operand in one.operands}
                if one.opcode == "dynamic-update-slice":
                    self._kept.add(one.operand(0).name)
                if one.opcode in FREE:
                    self._free.add(one.name)
                self.home[one.name] = computation.name
                if one.shape.is_array:
                    self._bytes[one.name] = shape_bytes(one.shape)
                if one is computation.root:
                    self._results.add(one.name)
                if one.opcode == "tuple":
                    self._tuples.add(one.name)

    def of(self, name: str) -> tuple[str, ...]:
        """The readers of an instruction now."""
        return tuple(self._readers.get(name, ()))

    def traffic(self, producer: str, asked: Sequence[str]) -> int | None:
        """Bytes that go through memory while `producer` is not fused into `asked`; None where its size is not known.

        Its result is written once, which costs nothing more where it is part of a result or updated in place, and read
        by each kernel, as far as that needs it. What is no kernel itself costs nothing.
        """
        if producer in self._free:
            return 0
        size = self._bytes.get(producer)
        if size is None:
            return None
        kept = producer in self._results or producer in self._kept
        written = not kept and not any(one in self._tuples for one in self.of(producer))
        read = (self._operands.get(one, {}).get(producer) for one in asked if one not in self._tuples)
        return size * written + sum(size if some is None else min(some, size) for some in read)

    def fuse(self, producer: str, consumer: str, made: str) -> None:
        """`consumer` with `producer` inside is called `made` from now on."""
        if producer not in self._readers or consumer not in self._readers:
            return
        if made != consumer:
            self._rename(consumer, made)
        self._operands[made].pop(producer, None)
        self._readers[producer].pop(made, None)
        for one, some in self._operands[producer].items():
            more = self._operands[made].get(one, 0)
            self._operands[made][one] = None if some is None or more is None else some + more
            self._readers[one][made] = None
        if not self._readers[producer]:
            for one in self._operands[producer]:
                self._readers[one].pop(producer, None)

    def _rename(self, old: str, new: str) -> None:
        operands = self._operands[new] = self._operands.pop(old)
        readers = self._readers[new] = self._readers.pop(old)
        for one in operands:
            self._readers[one] = {new if name == old else name: None for name in self._readers[one]}
        for one in readers:
            self._operands[one] = {new if name == old else name: some for name, some in self._operands[one].items()}
        if old in self._bytes:
            self._bytes[new] = self._bytes[old]
        if old in self._results:
            self._results.add(new)
        self.home[new] = self.home[old]


def edge_bytes(producer: HloInstruction, readers: Sequence[HloInstruction]) -> int | None:
    """Bytes that go through memory between an instruction and some of its readers: its result written once and read by
    each; None for a tuple."""
    if producer.opcode in FREE:
        return 0
    if not producer.shape.is_array:
        return None
    size = shape_bytes(producer.shape)
    read = (_read(one, producer) for one in readers)
    return size + sum(size if some is None else min(some, size) for some in read)


def _read(one: HloInstruction, operand: HloInstruction) -> int | None:
    """Bytes that an instruction reads of an operand; None for all of it."""
    places = [place for place, read in enumerate(one.operands) if read is operand]
    if places != [0]:
        return None
    if one.opcode in _TAKES and one.shape.is_array:
        return shape_bytes(one.shape)
    return 0 if one.opcode == "dynamic-update-slice" else None
