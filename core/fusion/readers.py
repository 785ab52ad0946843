"""Who reads what while a recorded list of fusions is followed step by step, and the memory traffic of an edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import shape_bytes

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule


class Readers:
    """Names of readers and operands of a module outside of fusion bodies, changed by `fuse` as a pass would.

    Built of None it knows nothing. Names that it does not know are left alone.
    """

    def __init__(self, module: HloModule | None) -> None:
        self._readers: dict[str, dict[str, None]] = {}
        self._operands: dict[str, dict[str, None]] = {}
        self._bytes: dict[str, int] = {}
        self._results: set[str] = set()
        self._tuples: set[str] = set()
        self.home: dict[str, str] = {}
        """Computation by instruction."""
        for computation in module.computations if module is not None else ():
            if computation.is_fusion:
                continue
            for one in computation.instructions:
                self._readers[one.name] = {user.name: None for user in one.users}
                self._operands[one.name] = {operand.name: None for operand in one.operands}
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

        Its result is written once, which costs nothing more where it is part of a result, and read by each kernel.
        """
        size = self._bytes.get(producer)
        if size is None:
            return None
        written = producer not in self._results and not any(one in self._tuples for one in self.of(producer))
        return size * (written + sum(one not in self._tuples for one in asked))

    def fuse(self, producer: str, consumer: str, made: str) -> None:
        """`consumer` with `producer` inside is called `made` from now on."""
        if producer not in self._readers or consumer not in self._readers:
            return
        if made != consumer:
            self._rename(consumer, made)
        self._operands[made].pop(producer, None)
        self._readers[producer].pop(made, None)
        for one in self._operands[producer]:
            self._operands[made][one] = None
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
            self._operands[one] = {new if name == old else name: None for name in self._operands[one]}
        if old in self._bytes:
            self._bytes[new] = self._bytes[old]
        if old in self._results:
            self._results.add(new)
        self.home[new] = self.home[old]
