"""What changed between two stages, instruction by instruction, read from two indexes.

`hloscope.core.views.matching` says which instruction is which; here each pair is compared through that pairing, so that
renumbered names, renamed computations and renumbered source tables do not show as changes. Differences in percent
signs, index comments and printed operand shapes are none. Equal inputs give equal results.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import TYPE_CHECKING

from hloscope.core.hlo.attributes import CALLED, CONTROL, unquote
from hloscope.core.text.instruction_text import COMMENT, Reference
from hloscope.core.views.config_keys import CONFIG, same_config
from hloscope.core.views.data import InstructionChange, StageDiff
from hloscope.core.views.matching import Matcher, Side, without_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.text.module_index import ModuleIndex

LONGEST_LINE = 4000
"""Characters of an instruction's text that a change carries; the middle of a longer one is left out."""

_SPACE = re.compile(r"\s+")
_METADATA_ITEM = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|\{[^{}]*\}|[^\s,}]+)', re.S)


def diff_indexes(before: ModuleIndex, after: ModuleIndex, from_index: int = 0, to_index: int = 1) -> StageDiff:
    """The changes from one stage to another; `from_index` and `to_index` are carried through."""
    if before.source == after.source:
        return StageDiff(from_index, to_index, (), (), (), ())
    matcher = Matcher(before, after)
    matcher.run()
    b, a = matcher.before, matcher.after
    compare = _Comparison(matcher)
    added: list[InstructionChange] = []
    modified: list[InstructionChange] = []
    renamed: list[InstructionChange] = []
    call_rows = a.call_rows
    skip = bytes(len(a.settled)) if compare.control else a.settled
    for c in a.computations:
        partner = a.computation_pair[c.number]
        if c.number in matcher.identical and compare.calls_agree(c.begin, c.end):
            continue
        roots_agree = partner < 0 or c.root < 0 or a.pair[c.root] == b.computations[partner].root
        for i in range(c.begin, c.end):
            if skip[i] and roots_agree and call_rows[i] == call_rows[i + 1]:
                continue
            j = a.pair[i]
            if j < 0:
                added.append(_change(None, -1, a, i, c.name, ()))
                continue
            what = compare.what(j, i)
            if (i == c.root) != (j == b.computations[partner].root):
                what = (*what, "root")
            if what:
                change = _change(b, j, a, i, c.name, what)
                (renamed if what == ("name",) else modified).append(change)
    removed = [
        _change(b, j, None, -1, c.name, ())
        for c in b.computations
        for j in range(c.begin, c.end)
        if b.pair[j] < 0
    ]  # fmt: skip
    names = [(b.computations[p].name, c.name) for c in a.computations if (p := a.computation_pair[c.number]) >= 0]
    return StageDiff(
        from_index,
        to_index,
        tuple(added),
        tuple(removed),
        tuple(modified),
        tuple(renamed),
        tuple(c.name for c in a.computations if a.computation_pair[c.number] < 0),
        tuple(c.name for c in b.computations if b.computation_pair[c.number] < 0),
        tuple((old, new) for old, new in names if old != new),
        _header(before, after) + _moves(matcher),
    )


class _Comparison:
    """Compares paired instructions through the pairing."""

    def __init__(self, matcher: Matcher) -> None:
        self.b, self.a = matcher.before, matcher.after
        self._partner = self.a.pair.__getitem__
        self.control = CONTROL in self.a.source

    def calls_agree(self, begin: int, end: int) -> bool:
        """Whether every call in a range goes to the partner of what its twin calls."""
        a, b = self.a, self.b
        if a.call_rows[begin] == a.call_rows[end]:
            return True
        return all(self._called_agree(b.called(a.pair[i]), a.called(i)) for i in range(begin, end))

    def _called_agree(self, theirs: Sequence[int], mine: Sequence[int]) -> bool:
        pair = self.a.computation_pair
        return len(theirs) == len(mine) and all(
            (y < 0 and x < 0) or (y >= 0 and pair[y] == x) for x, y in zip(theirs, mine, strict=True)
        )

    def what(self, j: int, i: int) -> tuple[str, ...]:
        """The parts in which instruction `i` differs from its partner `j`."""
        a, b = self.a, self.b
        mine_used = a.operand_list[a.rows[i] : a.rows[i + 1]]
        operands = list(map(self._partner, mine_used)) == b.operand_list[b.rows[j] : b.rows[j + 1]]
        calls_nothing = a.call_rows[i] == a.call_rows[i + 1]
        if operands and calls_nothing and a.equal_text[i] and not self.control:
            # equal to its namesake, which is its partner where the names agree
            if (
                b.source.startswith(a.name(i), b.starts[j])
                and b.name_ends[j] - b.starts[j] == a.name_ends[i] - a.starts[i]
            ):
                return ()
        called = self._called_agree(b.called(j), a.called(i))
        mine, theirs = a.line(i), b.line(j)
        if operands and called and mine == theirs and CONTROL not in mine:
            return ()
        out: list[str] = []
        if a.opcodes[i] != b.opcodes[j]:
            out.append("opcode")
        shape_b, shape_a = b.plain_shapes[b.shapes[j]], a.plain_shapes[a.shapes[i]]
        if shape_b != shape_a:
            out.append("layout" if without_layout(shape_b) == without_layout(shape_a) else "shape")
        if not operands:
            out.append("operands")
        payload = self._payload(j, i)
        if payload:
            out.append(payload)
        attributes, metadata = self._attributes(j, i, called)
        if attributes and "attributes" not in out:
            out.append("attributes")
        if metadata:
            out.append("metadata")
        if a.name(i) != b.name(j):
            out.append("name")
        return tuple(out)

    def _payload(self, j: int, i: int) -> str:
        a, b = self.a, self.b
        if a.opcodes[i] != b.opcodes[j] or a.opcodes[i] not in ("constant", "parameter", "iota"):
            return ""
        mine = a.source[a.operand_starts[i] : a.operand_ends[i]]
        theirs = b.source[b.operand_starts[j] : b.operand_ends[j]]
        if mine == theirs or _plain(mine) == _plain(theirs):
            return ""
        return "literal" if a.opcodes[i] == "constant" else "attributes"

    def _attributes(self, j: int, i: int, called: bool) -> tuple[bool, bool]:
        """Whether the attributes differ, and whether the metadata does."""
        a, b = self.a, self.b
        mine = a.clean(a.source[a.operand_ends[i] + 1 : a.ends[i]])
        theirs = b.clean(b.source[b.operand_ends[j] + 1 : b.ends[j]])
        if mine == theirs and called and CONTROL not in mine:
            return False, False
        left, right = _attribute_table(b, j), _attribute_table(a, i)
        x, y = left.pop("metadata", ""), right.pop("metadata", "")
        metadata = x != y and self._metadata(x, b.name(j)) != self._metadata(y, a.name(i))
        for key in CALLED:
            if (key in left) != (key in right):
                return True, metadata
            left.pop(key, None)
            right.pop(key, None)
        if not called:
            return True, metadata
        if CONTROL in left or CONTROL in right:
            left.pop(CONTROL, None)
            right.pop(CONTROL, None)
            if not self._control_agrees(j, i):
                return True, metadata
        differ = left.keys() != right.keys() or any(
            right[key] != value
            and _plain(right[key]) != _plain(value)
            and not (key == CONFIG and same_config(value, right[key]))
            for key, value in left.items()
        )
        return differ, metadata

    def _metadata(self, text: str, own_name: str) -> dict[str, str]:
        """Metadata as a table; a scheduling name that repeats the instruction's own name says nothing."""
        table = {key: value for key, value in _METADATA_ITEM.findall(text)}
        if unquote(table.get("scheduling_name", "")) == own_name:
            table["scheduling_name"] = ""
        return table

    def _control_agrees(self, j: int, i: int) -> bool:
        a, b = self.a, self.b
        theirs = {r.name for r in _control(b, j)}
        mine = {r.name for r in _control(a, i)}
        partners: set[str] = set()
        computation = a.index.computation_of(i)
        for name in mine:
            at = a.index.find(name, computation)
            partner = a.pair[at] if at is not None else -1
            partners.add(b.name(partner) if partner >= 0 else "\0" + name)
        return partners == theirs


def _control(side: Side, i: int) -> list[Reference]:
    return list(side.index.parts(i).attribute_references(side.source, (CONTROL,)))


def _attribute_table(side: Side, i: int) -> dict[str, str]:
    source = side.source
    return {a.key: side.clean(source[slice(*a.value)]) for a in side.index.parts(i).attributes}


def _plain(text: str) -> str:
    """A text without index comments, percent signs and blanks, for a second look at two that differ."""
    return _SPACE.sub("", COMMENT.sub("", text)).replace("%", "")


def _change(
    b: Side | None, j: int, a: Side | None, i: int, computation: str, what: tuple[str, ...]
) -> InstructionChange:
    side, number = (a, i) if a is not None else (b, j)
    assert side is not None
    name = side.name(number)
    old = b.name(j) if a is not None and b is not None else None
    return InstructionChange(
        name,
        computation,
        _shown(b.index.text(j)) if b is not None else None,
        _shown(a.index.text(i)) if a is not None else None,
        what,
        old if old != name else None,
        side.opcodes[number],
        b.index.line(j) if b is not None else None,
        a.index.line(i) if a is not None else None,
    )


def _shown(text: str) -> str:
    """An instruction's text, the middle of a very long one left out with its length said."""
    if len(text) <= LONGEST_LINE:
        return text
    left = LONGEST_LINE * 3 // 4
    right = LONGEST_LINE // 8
    return f"{text[:left]} … {len(text) - left - right} characters … {text[-right:]}"


def _header(before: ModuleIndex, after: ModuleIndex) -> tuple[str, ...]:
    left, right = dict(before.header_attributes), dict(after.header_attributes)
    out = [key for key in dict.fromkeys((*left, *right)) if _plain(left.get(key, "\0")) != _plain(right.get(key, "\0"))]
    if before.module_name != after.module_name:
        out.insert(0, "name")
    return tuple(out)


def _moves(matcher: Matcher) -> tuple[str, ...]:
    """One line for the instructions that a schedule moved, the fewest that explain the new order."""
    b, a = matcher.before, matcher.after
    if not (b.index.is_scheduled and a.index.is_scheduled):
        return ()
    moved = 0
    for c in a.computations:
        if c.number in matcher.identical or a.computation_pair[c.number] < 0:
            continue
        order = [j for j in a.pair[c.begin : c.end] if j >= 0]
        tails: list[int] = []
        for j in order:
            at = bisect_left(tails, j)
            tails[at : at + 1] = [j]
        moved += len(order) - len(tails)
    return (f"schedule: {moved} moved",) if moved else ()
