"""Which instruction of one stage is which of the next: the pairing that a diff is read from.

Names alone will not do, because XLA renumbers (`add.1` becomes `add.2`), clones (`region_0.clone`) and renames whole
computations; text alone will not either. Pairs are made from the surest evidence to the weakest:

1. computations whose name and body text are equal, then those of equal structure whatever they are called;
2. inside a pair of computations, instructions of equal name and text whose operands are paired;
3. instructions that compute the same from paired operands (opcode, shape, attributes), whatever they are called;
4. instructions of equal name, the opcode equal first;
5. instructions that stand at the same operand of paired users, with equal opcode and dimensions;
6. computations called from paired instructions, then those of equal name, then those whose names have one origin.

Every step goes in text order, so equal inputs give equal pairs. The comparison of two paired instructions is left to
`hloscope.core.views.diff`: a wrong pair costs clarity, never truth.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from typing import TYPE_CHECKING

from hloscope.core.text.instruction_text import CALLS, COMMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.text.module_index import ModuleIndex

FRAME_ID = re.compile(r"stack_frame_id=(\d+)")
_METADATA = re.compile(r', metadata=\{(?:[^{}"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"|\{[^{}]*+\})*\}', re.S)
_LAYOUT = re.compile(r"(?<=\])\{[^{}]*\}")
_SPACE = re.compile(r"\s+")
_ORIGIN = re.compile(r"^wide\.|(?:\.clone|\.remat\d*|\.sunk|\.peeled|_spmd|\.\d+)+$")
_CALL_NAME = re.compile(r"[A-Za-z0-9_.\-]+")


def origin(name: str) -> str:
    """A computation's name without what passes put around it: ``wide.``, ``.clone``, ``_spmd``, numbers."""
    return _ORIGIN.sub("", name)


def plain_shape(text: str) -> str:
    """A shape's text without comments and blanks."""
    return _SPACE.sub("", COMMENT.sub("", text)) if "," in text or " " in text else text


def without_layout(text: str) -> str:
    """A shape's text without comments, blanks and layouts."""
    return _LAYOUT.sub("", plain_shape(text))


class Side:
    """One stage as the matcher sees it: plain lists, and each instruction's skeleton as a number."""

    def __init__(self, index: ModuleIndex, skeletons: dict[tuple[object, ...], int]) -> None:
        self.index = index
        c = index.columns
        self.source = index.source
        self.starts: list[int] = c.names.tolist()
        self.ends: list[int] = c.ends.tolist()
        self.name_ends: list[int] = c.name_ends.tolist()
        self.operand_starts: list[int] = c.operand_starts.tolist()
        self.operand_ends: list[int] = c.operand_ends.tolist()
        self.rows: list[int] = c.operand_rows.tolist()
        self.operand_list: list[int] = c.operands.tolist()
        self.call_rows: list[int] = c.call_rows.tolist()
        self.call_list: list[int] = c.calls.tolist()
        self.opcodes: list[str] = [c.opcode_names[k] for k in c.opcode_ids.tolist()]
        self.shapes: list[int] = c.shape_ids.tolist()
        self.plain_shapes = [plain_shape(text) for text in c.shape_texts]
        self.computations = index.computations
        self.pair: list[int] = [-1] * (len(self.starts) + 1)
        """The other side's instruction, -1 while there is none; one more entry, so that an undefined operand (-1) has
        no partner either."""
        self.equal_text = bytearray(len(self.starts))
        """On the after side: whether the text equals that of the namesake."""
        self.settled = bytearray(len(self.starts))
        """On the after side: whether the partner is the namesake, of equal text and with the partners as operands."""
        self.computation_pair: list[int] = [-1] * len(self.computations)
        self.percent = "%" in self.source[self.starts[0] - 1 : self.starts[0]] if self.starts else False
        self.comments = "/*index=" in self.source
        self.frame_words: dict[str, str] | None = None
        """Frame id to a word equal on both sides for equal stacks; None where the two tables are one."""
        self.strip_percent = False
        self.strip_comments = False
        self._skeletons = skeletons

    def name(self, i: int) -> str:
        return self.source[self.starts[i] : self.name_ends[i]]

    def operands(self, i: int) -> list[int]:
        return self.operand_list[self.rows[i] : self.rows[i + 1]]

    def called(self, i: int) -> list[int]:
        return self.call_list[self.call_rows[i] : self.call_rows[i + 1]]

    def line(self, i: int) -> str:
        """The text from the name on, with what differs by habit taken out."""
        return self.clean(self.source[self.starts[i] : self.ends[i]])

    def clean(self, text: str) -> str:
        """A text with percent signs, index comments and frame numbers in one form where the two sides differ."""
        if self.strip_percent:
            text = text.replace("%", "")
        if self.strip_comments:
            text = COMMENT.sub("", text)
        words = self.frame_words
        if words is not None:
            text = FRAME_ID.sub(lambda found: words.get(found[1], found[0]), text)
        return text

    def names(self, begin: int, end: int) -> list[str]:
        source = self.source
        return [source[a:b] for a, b in zip(self.starts[begin:end], self.name_ends[begin:end], strict=True)]

    def lines(self, begin: int, end: int) -> list[str]:
        """`line` of a range."""
        source = self.source
        out = [source[a:b] for a, b in zip(self.starts[begin:end], self.ends[begin:end], strict=True)]
        cleaning = self.strip_percent or self.strip_comments or self.frame_words is not None
        return [self.clean(text) for text in out] if cleaning else out

    def body(self, number: int) -> str:
        c = self.computations[number]
        return self.source[c.header[1] : c.span[1]]

    def skeleton(self, i: int) -> int:
        """A number for everything about an instruction but its name, operands, called computations and metadata."""
        attributes = self.source[self.operand_ends[i] + 1 : self.ends[i]]
        if "metadata=" in attributes:
            attributes = _METADATA.sub("", attributes)
        if self.call_rows[i + 1] > self.call_rows[i]:
            attributes = CALLS.sub(lambda m: m[0] if m[1] is None else _CALL_NAME.sub("?", m[0]), attributes)
        if "control-predecessors" in attributes:
            attributes = re.sub(r", control-predecessors=\{[^{}]*\}", "", attributes)
        if "%" in attributes:
            attributes = attributes.replace("%", "")
        opcode = self.opcodes[i]
        payload = ""
        if opcode in ("constant", "parameter", "iota"):
            payload = self.source[self.operand_starts[i] : self.operand_ends[i]]
        key = (opcode, self.plain_shapes[self.shapes[i]], attributes, payload)
        return self._skeletons.setdefault(key, len(self._skeletons))


class Matcher:
    """Pairs the instructions and computations of two indexes; the result lies in ``pair`` and ``computation_pair``."""

    def __init__(self, before: ModuleIndex, after: ModuleIndex) -> None:
        skeletons: dict[tuple[object, ...], int] = {}
        self.before = Side(before, skeletons)
        self.after = Side(after, skeletons)
        self.identical: set[int] = set()
        """Computations of the after side whose body text equals their partner's, line for line."""
        b, a = self.before, self.after
        b.strip_percent = a.strip_percent = b.percent != a.percent
        b.strip_comments = a.strip_comments = b.comments != a.comments
        self._unify_frames()
        self._queue: deque[tuple[int, int]] = deque()

    def run(self) -> None:
        """Make all pairs."""
        entry_b, entry_a = self.before.index.columns.entry, self.after.index.columns.entry
        self._pair_equal_bodies()
        if entry_b >= 0 and entry_a >= 0:
            self._unpair(entry_b, entry_a)
            self._pair_computations(entry_b, entry_a)
        self._pair_equal_structure()
        for number in sorted(self.identical):
            self._pair_called(number)
        self._drain()
        by_name = {c.name: c.number for c in self.before.computations if self.before.computation_pair[c.number] < 0}
        for c in self.after.computations:
            number = by_name.get(c.name, -1)
            if self.after.computation_pair[c.number] < 0 and number >= 0 and self.before.computation_pair[number] < 0:
                self._pair_computations(number, c.number)
                self._drain()
        self._pair_leftovers()
        self._drain()

    # ---- frames
    def _unify_frames(self) -> None:
        """Give equal stacks equal words where the two texts have different tables."""
        b, a = self.before, self.after
        tables = [
            {name: side.source[slice(*span)] for name, span in side.index.columns.tables.items()} for side in (b, a)
        ]
        if tables[0] == tables[1]:
            return
        words: dict[object, str] = {}
        for side in (b, a):
            frames = side.index.stack_frames
            side.frame_words = {
                str(number): words.setdefault(frames.resolve(number), f"stack_frame={len(words)}")
                for number in range(1, len(frames.stack_frames) + 1)
            }

    # ---- computations
    def _pair_equal_bodies(self) -> None:
        b, a = self.before, self.after
        named = {c.name: c.number for c in reversed(b.computations)}
        for c in a.computations:
            number = named.get(c.name, -1)
            if number < 0 or len(b.computations[number]) != len(c) or b.computation_pair[number] >= 0:
                continue
            x, y = b.body(number), a.body(c.number)
            if x != y and b.clean(x) != a.clean(y):
                continue
            b.computation_pair[number], a.computation_pair[c.number] = c.number, number
            begin, other = c.begin, b.computations[number].begin
            a.pair[begin : c.end] = range(other, other + len(c))
            b.pair[other : other + len(c)] = range(begin, c.end)
            self.identical.add(c.number)

    def _unpair(self, number_b: int, number_a: int) -> None:
        """Free the two computations unless they are already each other's."""
        b, a = self.before, self.after
        if b.computation_pair[number_b] == number_a:
            return
        for x, y, number in ((b, a, number_b), (a, b, number_a)):
            partner = x.computation_pair[number]
            if partner < 0:
                continue
            self.identical.discard(partner if x is b else number)
            c, d = x.computations[number], y.computations[partner]
            x.pair[c.begin : c.end] = [-1] * len(c)
            y.pair[d.begin : d.end] = [-1] * len(d)
            x.computation_pair[number] = y.computation_pair[partner] = -1

    def _pair_equal_structure(self) -> None:
        b, a = self.before, self.after
        groups: list[dict[int, list[int]]] = []
        for side in (b, a):
            signatures: dict[int, int] = {}
            group: dict[int, list[int]] = {}
            for c in side.computations:
                if side.computation_pair[c.number] < 0:
                    signature = self._signature(side, c.number, signatures)
                    group.setdefault(signature, []).append(c.number)
            groups.append(group)
        self._groups = groups
        for signature, mine in groups[1].items():
            theirs = groups[0].get(signature)
            if theirs is None:
                continue
            names = {b.computations[k].name: k for k in theirs}
            for k in mine:
                same = names.get(a.computations[k].name)
                if same is not None:
                    self._pair_computations(same, k)
            left_b = [k for k in theirs if b.computation_pair[k] < 0]
            left_a = [k for k in mine if a.computation_pair[k] < 0]
            if len(left_b) == 1 and len(left_a) == 1:
                self._pair_computations(left_b[0], left_a[0])

    def _signature(self, side: Side, number: int, known: dict[int, int]) -> int:
        """A hash of what a computation computes: neither names nor order of instructions count."""
        if number in known:
            return known[number]
        known[number] = 0  # what calls itself, or is called before it is defined, counts as nothing
        c = side.computations[number]
        hashes: dict[int, int] = {}
        total = 0
        for i in range(c.begin, c.end):
            operands = tuple([hashes.get(o, 0) for o in side.operands(i)])
            called = tuple([self._called_signature(side, k, known) for k in side.called(i)])
            hashes[i] = value = hash((side.skeleton(i), operands, called, i == c.root))
            total = (total + value * value) & 0xFFFFFFFFFFFFFFF
        known[number] = result = hash((total, len(c)))
        return result

    def _called_signature(self, side: Side, number: int, known: dict[int, int]) -> int:
        if number < 0:
            return -1
        partner = side.computation_pair[number]
        if partner >= 0:
            return hash(("pair", number if side is self.after else partner))
        if number not in known and len(known) > 800:
            # Callees come first in printed text; a long chain in another order is not followed, to spare the stack.
            return 0
        return self._signature(side, number, known)

    def _pair_computations(self, number_b: int, number_a: int) -> None:
        b, a = self.before, self.after
        if b.computation_pair[number_b] >= 0 or a.computation_pair[number_a] >= 0:
            return
        b.computation_pair[number_b], a.computation_pair[number_a] = number_a, number_b
        self._queue.append((number_b, number_a))

    def _drain(self) -> None:
        while self._queue:
            number_b, number_a = self._queue.popleft()
            _Bodies(self, number_b, number_a).match()
            self._pair_called(number_a)

    def _pair_called(self, number_a: int) -> None:
        """Pair the computations that paired instructions of a computation call."""
        b, a = self.before, self.after
        c = a.computations[number_a]
        if a.call_rows[c.begin] == a.call_rows[c.end]:
            return
        for i in range(c.begin, c.end):
            mine = a.called(i)
            if not mine or a.pair[i] < 0:
                continue
            theirs = b.called(a.pair[i])
            if len(theirs) != len(mine):
                continue
            for x, y in zip(theirs, mine, strict=True):
                if x >= 0 and y >= 0 and b.computation_pair[x] < 0 and a.computation_pair[y] < 0 and self._alike(x, y):
                    self._pair_computations(x, y)

    def _alike(self, number_b: int, number_a: int) -> bool:
        """Whether two computations share at least half of their opcodes."""
        x, y = self.before.computations[number_b], self.after.computations[number_a]
        if x.name == y.name:
            return True
        left = Counter(self.before.opcodes[x.begin : x.end])
        right = Counter(self.after.opcodes[y.begin : y.end])
        shared = sum((left & right).values())
        return 2 * shared >= max(len(x), len(y))

    def _pair_leftovers(self) -> None:
        """Computations that nothing else told apart: of equal structure, in text order; then of one origin by name."""
        b, a = self.before, self.after
        for signature, mine in self._groups[1].items():
            left_b = [k for k in self._groups[0].get(signature, ()) if b.computation_pair[k] < 0]
            left_a = [k for k in mine if a.computation_pair[k] < 0]
            for x, y in zip(left_b, left_a, strict=False):
                self._pair_computations(x, y)
        self._drain()
        origins: dict[str, list[int]] = {}
        for c in b.computations:
            if b.computation_pair[c.number] < 0:
                origins.setdefault(origin(c.name), []).append(c.number)
        for c in a.computations:
            if a.computation_pair[c.number] >= 0:
                continue
            number = next((k for k in origins.get(origin(c.name), ()) if self._free_and_alike(k, c.number)), -1)
            if number < 0:
                continue
            self._pair_computations(number, c.number)
            self._drain()
            self._pair_callers(number, c.number)

    def _free_and_alike(self, number_b: int, number_a: int) -> bool:
        return self.before.computation_pair[number_b] < 0 and self._alike(number_b, number_a)

    def _pair_callers(self, number_b: int, number_a: int) -> None:
        """Pair the only callers of two computations, and go through the bodies that hold them once more."""
        b, a = self.before, self.after
        theirs, mine = b.index.callers(number_b), a.index.callers(number_a)
        if len(theirs) != 1 or len(mine) != 1:
            return
        j, i = theirs[0], mine[0]
        holder_b, holder_a = b.index.computation_of(j), a.index.computation_of(i)
        if (
            b.pair[j] < 0
            and a.pair[i] < 0
            and b.opcodes[j] == a.opcodes[i]
            and a.computation_pair[holder_a] == holder_b
        ):
            b.pair[j], a.pair[i] = i, j
            self._queue.append((holder_b, holder_a))
            self._drain()


class _Bodies:
    """Pairs the instructions of one pair of computations."""

    def __init__(self, matcher: Matcher, number_b: int, number_a: int) -> None:
        self.before, self.after = matcher.before, matcher.after
        self.b, self.a = self.before.computations[number_b], self.after.computations[number_a]
        before, after = self.before, self.after
        self.names_b = dict(zip(before.names(self.b.begin, self.b.end), range(self.b.begin, self.b.end), strict=True))
        self.names_a = set(after.names(self.a.begin, self.a.end))
        self.held: set[int] = set()
        """Instructions of the before side whose namesake has the same text: nobody else should take them early."""
        self._table: dict[tuple[int, ...], list[int]] = {}
        self._keys: dict[int, int] = {}

    def match(self) -> None:
        """Make the pairs, surest first."""
        self._parameters()
        self._equal_text()
        if not self._left():
            return
        self._fill_table(with_held=False)
        for by_name, any_opcode in ((False, False), (True, False), (True, True), (True, True)):
            self._sweep(by_name=by_name, any_opcode=any_opcode)
            if not self._left():
                return
        self._fill_table(with_held=True)
        self._sweep(by_name=False, any_opcode=False)
        while self._left() and self._through_users():
            self._sweep(by_name=False, any_opcode=False)

    def _left(self) -> bool:
        return -1 in self.after.pair[self.a.begin : self.a.end] and -1 in self.before.pair[self.b.begin : self.b.end]

    def _set(self, j: int, i: int) -> None:
        self.before.pair[j], self.after.pair[i] = i, j

    def _parameters(self) -> None:
        before, after = self.before, self.after
        numbers = {
            before.source[before.operand_starts[j] : before.operand_ends[j]].strip(): j
            for j in range(self.b.begin, self.b.end)
            if before.opcodes[j] == "parameter"
        }
        for i in range(self.a.begin, self.a.end):
            if after.opcodes[i] == "parameter":
                j = numbers.pop(after.source[after.operand_starts[i] : after.operand_ends[i]].strip(), -1)
                if j >= 0:
                    self._set(j, i)

    def _equal_text(self) -> None:
        """Namesakes of equal text whose operands are such pairs too."""
        before, after = self.before, self.after
        pair_a, pair_b, names, held = after.pair, before.pair, self.names_b, self.held
        rows_a, rows_b, operands_a, operands_b = after.rows, before.rows, after.operand_list, before.operand_list
        equal, settled, partner, first = after.equal_text, after.settled, pair_a.__getitem__, self.b.begin
        lines_b = before.lines(self.b.begin, self.b.end)
        lines_a = after.lines(self.a.begin, self.a.end)
        names_a = after.names(self.a.begin, self.a.end)
        for i, name, line in zip(range(self.a.begin, self.a.end), names_a, lines_a, strict=True):
            j = names.get(name, -1)
            if j < 0 or line != lines_b[j - first]:
                continue
            equal[i] = 1
            if pair_a[i] >= 0 or pair_b[j] >= 0:
                continue
            mine = operands_a[rows_a[i] : rows_a[i + 1]]
            if list(map(partner, mine)) == operands_b[rows_b[j] : rows_b[j + 1]]:
                pair_a[i], pair_b[j] = j, i
                settled[i] = 1
            else:
                held.add(j)

    def _fill_table(self, *, with_held: bool) -> None:
        """List the unpaired instructions of the before side by what they compute."""
        before, held, table = self.before, self.held, self._table
        table.clear()
        for j in range(self.b.begin, self.b.end):
            if before.pair[j] < 0 and (with_held or j not in held):
                table.setdefault((before.skeleton(j), *before.operands(j)), []).append(j)

    def _sweep(self, *, by_name: bool, any_opcode: bool) -> None:
        """Go through the after side in order: by operands where all are paired, then by name if asked to."""
        before, after = self.before, self.after
        pair_a, pair_b, names, table, keys = after.pair, before.pair, self.names_b, self._table, self._keys
        rows_a, rows_b, operands_a, operands_b = after.rows, before.rows, after.operand_list, before.operand_list
        equal, settled, partner = after.equal_text, after.settled, pair_a.__getitem__
        for i in [i for i in range(self.a.begin, self.a.end) if pair_a[i] < 0]:
            namesake = names.get(after.name(i), -1)
            if namesake >= 0 and pair_b[namesake] >= 0:
                namesake = -1
            operands = list(map(partner, operands_a[rows_a[i] : rows_a[i + 1]]))
            if -1 not in operands:
                if equal[i] and namesake >= 0 and operands == operands_b[rows_b[namesake] : rows_b[namesake + 1]]:
                    pair_a[i], pair_b[namesake] = namesake, i
                    settled[i] = 1
                    continue
                if table:
                    if i not in keys:
                        keys[i] = after.skeleton(i)
                    found = self._pick(table.get((keys[i], *operands), ()), namesake)
                    if found >= 0:
                        if found != namesake and namesake >= 0 and self._same_value(namesake, i, 4):
                            found = namesake
                        pair_a[i], pair_b[found] = found, i
                        continue
            if by_name and namesake >= 0 and (any_opcode or before.opcodes[namesake] == after.opcodes[i]):
                pair_a[i], pair_b[namesake] = namesake, i

    def _pick(self, candidates: Sequence[int], namesake: int) -> int:
        """The best of several instructions that compute the same: the namesake, else one whose name is gone."""
        pair = self.before.pair
        best = -1
        for j in candidates:
            if pair[j] >= 0:
                continue
            if j == namesake:
                return j
            if best < 0 or (self.before.name(best) in self.names_a and self.before.name(j) not in self.names_a):
                best = j
                if namesake < 0 and self.before.name(j) not in self.names_a:
                    return j
        return best

    def _same_value(self, j: int, i: int, depth: int) -> bool:
        """Whether two instructions compute the same although their operands are not each other's: duplicates that a
        pass merged. Looked at `depth` levels deep."""
        before, after = self.before, self.after
        if before.skeleton(j) != after.skeleton(i):
            return False
        theirs, mine = before.operands(j), after.operands(i)
        return len(theirs) == len(mine) and all(
            x >= 0 and y >= 0 and (after.pair[y] == x or (depth > 0 and self._same_value(x, y, depth - 1)))
            for x, y in zip(theirs, mine, strict=True)
        )

    def _through_users(self) -> bool:
        """Pair operands that stand at the same place of paired users; whether any was paired."""
        before, after = self.before, self.after
        made = False
        roots = (self.b.root, self.a.root)
        if min(roots) >= 0 and before.pair[roots[0]] < 0 and after.pair[roots[1]] < 0:
            made |= self._try(*roots)
        for i in range(self.a.end - 1, self.a.begin - 1, -1):
            j = after.pair[i]
            if j < 0:
                continue
            mine, theirs = after.operands(i), before.operands(j)
            if len(mine) != len(theirs):
                continue
            for x, y in zip(theirs, mine, strict=True):
                if x >= 0 and y >= 0 and before.pair[x] < 0 and after.pair[y] < 0:
                    made |= self._try(x, y)
        return made

    def _try(self, j: int, i: int) -> bool:
        before, after = self.before, self.after
        if before.opcodes[j] != after.opcodes[i]:
            return False
        x, y = before.plain_shapes[before.shapes[j]], after.plain_shapes[after.shapes[i]]
        if x != y and without_layout(x) != without_layout(y):
            return False
        self._set(j, i)
        return True
