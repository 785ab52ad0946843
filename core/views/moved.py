"""Bytes that an instruction of a text reads and writes in memory, where pieces of an array count as pieces.

A slice reads what it gives, an update in place reads and writes what it puts in, a fusion reads of an array only what
its body takes out of it. Read from the index alone, for whole schedules and timelines; the cost of one instruction
(`hloscope.core.views.cost_facts`) follows the compiler's own model, which differs where a fused body takes the same
piece several times or scatters. Source: ``openxla/xla:xla/service/hlo_cost_analysis.cc#HandleDynamicUpdateSlice``,
``#HandleDynamicSlice``, ``#HandleGather``, ``#HandleScatter``, ``#FusionParameterReadBytes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError

if TYPE_CHECKING:
    from hloscope.core.text.module_index import ModuleIndex

_FREE = frozenset(
    ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "add-dependency", "while", "call",
     "conditional", "partition-id", "replica-id", "async-update", "optimization-barrier")
)  # fmt: skip
"""Opcodes that move nothing themselves; for those that call, what they call is counted."""

IN_PLACE = frozenset(("dynamic-update-slice", "scatter", "fusion"))
"""Opcodes that may write less than their result."""

_TAKES = frozenset(("slice", "dynamic-slice", "gather"))
"""Opcodes that read of their first operand no more than they give."""


class BytesMoved:
    """Figures for the instructions of one text, worked out when asked for."""

    def __init__(self, index: ModuleIndex) -> None:
        self._index = index
        self._sizes: dict[int, int] = {}
        """By shape."""
        self._shapes = index.columns.shape_ids
        self._bodies: dict[int, tuple[int, dict[int, int]]] = {}
        """Of a fused computation: bytes written, and bytes read of those parameters that are not read whole."""

    def of(self, i: int) -> int:
        """Bytes read and written by one run of an instruction; of an asynchronous pair the end counts."""
        index = self._index
        opcode = index.opcode(i)
        if is_free(opcode):
            return 0
        operands = index.operands(i)
        if opcode.endswith("-done") and operands and operands[0] >= 0:
            begun = index.operands(operands[0])
            given = self._size(i)
            # A copy reads what it writes; of a collective both sides are known.
            return 2 * given if opcode.startswith(("copy", "slice")) else given + sum(map(self._size, begun))
        if opcode == "fusion":
            called = index.called(i)
            if called and called[0] >= 0:
                written, pieces = self._body(called[0])
                read = sum(pieces.get(place, self._size(j)) for place, j in enumerate(operands))
                return read + written
        return self._written(i) + sum(self._read(i, place) for place in range(len(operands)))

    def written(self, i: int) -> int:
        """Bytes written by one run of an instruction; of an asynchronous pair the end counts."""
        index = self._index
        if is_free(index.opcode(i)):
            return 0
        called = index.called(i)
        if index.opcode(i) == "fusion" and called and called[0] >= 0:
            return self._body(called[0])[0]
        return self._written(i)

    def _written(self, i: int) -> int:
        """Bytes that an instruction writes."""
        index = self._index
        operands = index.operands(i)
        if index.opcode(i) == "dynamic-update-slice" and len(operands) > 1:
            return self._size(operands[1])
        if index.opcode(i) == "scatter":
            return sum(map(self._size, operands[len(operands) // 2 + 1 :]))
        return self._size(i)

    def _read(self, i: int, place: int) -> int:
        """Bytes that it reads of the operand at a place."""
        index = self._index
        opcode, operands = index.opcode(i), index.operands(i)
        whole = self._size(operands[place])
        if opcode in _TAKES and place == 0:
            return min(whole, self._size(i))
        if opcode == "dynamic-update-slice" and place == 0:
            return 0
        count = len(operands) // 2
        if opcode == "scatter" and place < count:
            return min(whole, self._size(operands[count + 1 + place]))
        return whole

    def _body(self, number: int) -> tuple[int, dict[int, int]]:
        found = self._bodies.get(number)
        if found is None:
            index = self._index
            one = index.computation(number)
            pieces: dict[int, int] = {}
            for i in range(one.begin, one.end):
                if index.opcode(i) == "parameter":
                    taken = self._taken(i)
                    if taken is not None:
                        pieces[int(index.operands_text(i).strip("() ") or 0)] = taken
            found = self._bodies[number] = self._result(one.root), pieces
        return found

    def _result(self, root: int) -> int:
        """Bytes that a fusion with this root writes."""
        index = self._index
        while root >= 0 and index.opcode(root) == "bitcast" and index.operands(root):
            root = index.operands(root)[0]
        if root < 0:
            return 0
        if index.opcode(root) == "tuple":
            return sum(map(self._result, index.operands(root)))
        return self._written(root)

    def _taken(self, parameter: int) -> int | None:
        """Bytes that a fusion's body reads of a parameter; None where it reads it whole."""
        index = self._index
        taken, waiting = 0, [parameter]
        while waiting:
            at = waiting.pop()
            for user in index.users(at):
                if index.opcode(user) == "bitcast":
                    waiting.append(user)
                    continue
                places = [place for place, j in enumerate(index.operands(user)) if j == at]
                read = sum(self._read(user, place) for place in places)
                if read >= self._size(at) * len(places):
                    return None
                taken += read
        return min(taken, self._size(parameter))

    def _size(self, i: int) -> int:
        if i < 0:
            return 0
        shape = int(self._shapes[i])
        found = self._sizes.get(shape)
        if found is None:
            found = self._sizes[shape] = bytes_of(self._index.columns.shape_texts[shape])
        return found


def is_free(opcode: str) -> bool:
    """Whether instructions of an opcode move nothing themselves. What an asynchronous start brings is its end's."""
    return opcode in _FREE or opcode.endswith("-start")


def bytes_of(text: str) -> int:
    """Bytes of a shape's text; 0 where they are not known."""
    from hloscope.core.hlo.shape import Shape

    try:
        return Shape.parse(text).byte_size
    except (HloscopeError, ValueError, KeyError):
        return 0
