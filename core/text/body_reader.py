"""Reads the instructions of one computation into graph nodes.

Two ways in, one result: a compiled pattern for the lines that XLA prints, and reading by hand for everything else that
its parser takes (values over several lines, shapes left out, nested instructions, computations written out in place).
Source of the grammar: ``openxla/xla:xla/hlo/parser/hlo_parser.cc`` (ParseInstructionRhs, ParseOperands).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.errors import InternalError, ParseError
from hloscope.core.hlo.attributes import CALLED, CONTROL, split_top
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import AttributeParts, HloInstruction
from hloscope.core.hlo.opcodes import ALIASES, OPCODES
from hloscope.core.text.async_sugar import async_parts, make_async
from hloscope.core.text.line_pattern import DIGITS, INDEX_COMMENT, LINE, PAIRS, PLAIN_KEYS
from hloscope.core.text.made_shapes import taken_shape
from hloscope.core.text.opcode_syntax import SYNTAX, syntax_of
from hloscope.core.text.operand_reader import MAX_DEPTH, OPCODE, WORD, read_operands
from hloscope.core.text.reading import AttributeSplit, Reading, Stop, TooDeep, without_comments
from hloscope.core.text.scan import BLANKS, attribute_end, instruction_end, match_bracket, skip_blank, value_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.hlo.shape import Shape

_ATTR = re.compile(rf"{BLANKS},{BLANKS}([A-Za-z_][\w.\-]*){BLANKS}={BLANKS}", re.S)
_DEFINE = re.compile(rf"(ROOT(?=[\s/%]){BLANKS})?(%?)([A-Za-z_][\w.\-]*){BLANKS}={BLANKS}", re.S)
_SIMPLE_OPERANDS = re.compile(r"[^()\"{}\[\]/#]*\)")
_OPENS_BODY = re.compile(rf"\{{{BLANKS}(?:ROOT(?=[\s/%]){BLANKS})?%?[A-Za-z_][\w.\-]*{BLANKS}=(?!=)", re.S)


class BodyReader:
    """Reads instructions of one computation; `depth` counts computations written in one another."""

    def __init__(self, reading: Reading, computation: HloComputation, *, depth: int = 0, single: bool = False) -> None:
        self.reading = reading
        self.computation = computation
        self.nodes: list[HloInstruction] = []
        self.starts: list[int | re.Match[str]] = []
        """Where each node's text begins, or what the pattern found there."""
        self.defined: dict[str, HloInstruction] = {}
        self.root: HloInstruction | None = None
        self._root_at = 0
        self.depth = depth
        """How many computations and instructions this one is written inside."""
        self.single = single
        """Whether operands that nobody defines become parameters, as in a text of one instruction."""
        self.ends: dict[int, int] = {}
        """Ends of parentheses by their starts, as far as they were looked for."""
        self._forward: list[tuple[HloInstruction, list[tuple[str, int]], list[str]]] = []
        """Nodes with an operand that is not defined yet: all its operands, and the names of such."""
        self._control: list[tuple[HloInstruction, list[str], int, list[str]]] = []
        """Nodes with their control predecessors, where these stand, and those that are not defined yet."""
        self.lost: set[str] = set()
        """Names of instructions that could not be read; that they are not defined is told already."""

    # ---------------------------------------------------------------- the body
    def read(self) -> bool:
        """Read up to the closing brace; False where the text ends before it."""
        reading, text = self.reading, self.reading.text
        closed = False
        while True:
            self._take_lines()
            reading.pos = skip_blank(text, reading.pos)
            if reading.pos >= len(text):
                break
            if text[reading.pos] == "}":
                reading.pos += 1
                closed = True
                break
            if text[reading.pos] == ")" and self.depth:
                break
            start = reading.pos
            try:
                self.read_one()
            except Stop as bad:
                head = _DEFINE.match(text, start)
                if head is not None:
                    self.lost.add(head[3])
                reading.resume_after(bad)
            except TooDeep as bad:
                if self.depth:
                    raise
                reading.report(str(bad), bad.offset, bad.offset + 1, code="too-deep")
                reading.pos = instruction_end(text, start)
        self.finish()
        return closed

    def finish(self) -> None:
        """Resolve what was named before its definition, hand the nodes to the computation, set the root."""
        self._link()
        if self.nodes:
            in_order = self.computation.load(self.nodes)
            self.computation.set_root(self.root if self.root is not None else self.nodes[-1])
            if not in_order:
                self._check_parameters()
            if not self._forward and not self._control:
                self.computation.mark_read()
            else:
                self._check_cycle()

    def _check_cycle(self) -> None:
        try:
            self.computation.post_order()
        except InternalError:
            node = self._forward[0][0] if self._forward else self._control[0][0]
            start = self._start(self.nodes.index(node)) if node in self.nodes else 0
            what = f"instructions of %{self.computation.name} wait for each other in a cycle"
            self.reading.report(what, start, start + 1, code="cycle", severity="warning")

    def _check_parameters(self) -> None:
        for number, parameter in enumerate(self.computation.parameters):
            if parameter.parameter_number != number:
                start = self._start(self.nodes.index(parameter))
                self.reading.report(
                    f"parameter numbers of %{self.computation.name} are not 0, 1, 2, …: found "
                    f"{parameter.parameter_number}, expected {number}",
                    start,
                    start + 1,
                    code="parameter-number",
                )
                return

    # ---------------------------------------------------------------- the fast way
    def _take_lines(self) -> None:
        """Make nodes of the lines that the pattern takes, up to the first that must be read by hand."""
        reading, text, computation = self.reading, self.reading.text, self.computation
        defined, nodes, starts, check = self.defined, self.nodes, self.starts, self.reading.check
        shapes, splits, lookup = reading.shapes, reading.splits, defined.__getitem__
        make = HloInstruction.loaded
        end = reading.pos
        # Where one match ends the next begins; the stubs do not have it.
        match: Callable[[], re.Match[str] | None] = LINE.scanner(text, end).match  # pyright: ignore
        for found in iter(match, None):
            root, name, shape_text, opcode, operands, before, after = found.group(2, 3, 4, 5, 6, 7, 9)
            payload = None
            arguments: list[HloInstruction] = []
            if opcode == "parameter" or opcode == "constant":
                payload = operands.strip()
                if opcode == "parameter" and not DIGITS.match(payload):
                    break
            elif operands:
                if "/" in operands:
                    operands = INDEX_COMMENT.sub("", operands)
                try:
                    if operands[0] == "%":
                        arguments = list(map(lookup, operands[1:].split(", %")))
                    else:
                        arguments = list(map(lookup, operands.split(", ")))
                except (KeyError, IndexError):
                    break
            special = False
            if before or after:
                split = splits.get((opcode, before, after))
                if split is None:
                    split = _split(opcode, before, after)
                    if len(before) + len(after) < _OFTEN:
                        splits[opcode, before, after] = split
                parts, special = split
                if parts is None:
                    break
            elif opcode in PLAIN_KEYS:
                parts = _NO_PARTS
            else:
                break
            shape = shapes.get(shape_text)
            if shape is None:
                try:
                    shape = reading.shape_of(shape_text, found.start(4))
                except Stop:
                    break
            node = make(name, opcode, shape, arguments, parts, payload, computation, found)
            end = found.end()
            if special:
                self._take_special(node, found.start(7))
            nodes.append(node)
            starts.append(found)
            if defined.setdefault(name, node) is not node:
                self._report_twice(name, found.start(3))
            if root:
                self._set_root(node, found.start(1))
            if check:
                places = {key: found.start(8) if key == "metadata" else found.start(7) for key in node.raw_attrs}
                places["("] = found.start(6)
                self._check(node, found.start(1), name, places, linked=True)
        reading.pos = end

    def _start(self, number: int) -> int:
        """Where the text of a node begins."""
        start = self.starts[number]
        return start if isinstance(start, int) else start.start(1)

    def _take_special(self, node: HloInstruction, at: int) -> None:
        attrs = node.raw_attrs
        for key in list(attrs):
            value = attrs[key]
            if value is None:
                continue
            if key in CALLED:
                attrs[key] = None
                place = self.reading.text.find(value, at)
                self.call(node, key, value, place if place >= 0 else at)
            elif key == CONTROL:
                attrs[key] = None
                self._order_after(node, value, at)

    def _order_after(self, node: HloInstruction, value: str, at: int) -> None:
        """Note the control predecessors of a node; XLA takes only those that stand before it."""
        names = [word.removeprefix("%") for word in split_top(value[1:-1])]
        missing = [name for name in names if name not in self.defined]
        self._control.append((node, names, at, missing))
        if self.reading.check:
            for name in missing:
                self.reading.object(f"control predecessor %{name[:60]} is not defined before its use", at)

    def _set_root(self, node: HloInstruction, at: int) -> None:
        if self.root is not None:
            self.reading.twice("a second ROOT in one computation", at, at + 4, self._root_at, "duplicate-root")
        self.root, self._root_at = node, at

    # ---------------------------------------------------------------- one instruction, by hand
    def read_one(self) -> HloInstruction:
        """Read one instruction with its name. Raises Stop where it cannot be read."""
        reading, text = self.reading, self.reading.text
        start = reading.pos
        head = _DEFINE.match(text, start)
        if head is None:
            raise Stop(f"expected 'name = shape opcode(…)', got {reading.glance(start)}", start)
        name = head[3]
        if reading.check:
            from hloscope.core.text.strict_syntax import check_walk, walk_instruction

            check_walk(reading, start, walk_instruction)
        node = self.read_rest(name, head.end(), start)
        if self.defined.setdefault(name, node) is not node:
            self._report_twice(name, head.start(3))
        self.nodes.append(node)
        self.starts.append(start)
        line = text[start : reading.pos]
        node.source_line = line if "\n" not in line and node.opcode in line else None
        if head[1] is not None:
            self._set_root(node, start)
        return node

    def _report_twice(self, name: str, start: int) -> None:
        at = self._start(self.nodes.index(self.defined[name]))
        found = re.compile(re.escape(name)).search(self.reading.text, at)  # behind ROOT and the percent sign
        first = found.start() if found is not None else at
        what = f"%{name} is defined twice in computation %{self.computation.name}"
        self.reading.twice(what, start, start + len(name), first, "duplicate-name")

    def read_rest(
        self, name: str, pos: int, start: int, *, attributes: bool = True, given: Shape | None = None
    ) -> HloInstruction:
        """Read from the result shape on (which may be `given`); nested instructions have no `attributes`.

        Raises Stop.
        """
        reading, text = self.reading, self.reading.text
        shape, pos = (given, pos) if given is not None else self._result_shape(pos)
        found = OPCODE.match(text, pos)
        if found is None:
            at = skip_blank(text, pos)
            raise Stop(f"expected an opcode and '(', got {reading.glance(at)}", at)
        word = found[1]
        opcode = ALIASES.get(word, word)
        if word in ALIASES:
            reading.object(f"XLA writes {opcode}, not {word}", found.start(1), found.end(1))
        inside = found.end()
        simple = _SIMPLE_OPERANDS.match(text, inside)
        end = simple.end() if simple is not None else match_bracket(text, inside - 1, self.ends)
        if end < 0:
            raise Stop(f"the operands of %{name} are not closed", inside - 1, "unclosed")
        operands: list[tuple[str, int]] = []
        payload: str | None = None
        if opcode in ("constant", "parameter"):
            payload = text[inside : end - 1].strip()
            if opcode == "parameter" and "/" in payload:
                payload = without_comments(payload).strip()
            if opcode == "parameter" and not DIGITS.match(payload):
                raise Stop(f"expected a parameter number, got {payload[:20]!r}", inside)
        else:
            operands = read_operands(self, inside, end - 1, plain=simple is not None)
        reading.pos = end
        sugar = async_parts(opcode) if opcode not in OPCODES else None
        if opcode not in OPCODES and sugar is None:
            reading.unknown("opcode", opcode, found.start(1))
        node = HloInstruction.loaded(name, opcode, shape, [], {}, payload, self.computation)
        places = self._attributes(node, name) if attributes else {}
        places["("] = inside
        missing = self._arguments(node, operands)
        if sugar is not None and shape is not None:
            make_async(reading, node, sugar, found.start(1))
        elif sugar is not None:
            raise Stop(f"the shape of {opcode} must be given", found.start(1), "missing-shape")
        if shape is None:
            node.shape = self._infer(node, missing, found.start(1))
        if missing:
            self._forward.append((node, operands, missing))
        if reading.check:
            self._check(node, start, name, places, linked=not missing)
        return node

    def _result_shape(self, pos: int) -> tuple[Shape | None, int]:
        text = self.reading.text
        if OPCODE.match(text, pos) is not None and not text.startswith("b(", pos):
            return None, pos
        return self.reading.scan_shape(pos)

    def _attributes(self, node: HloInstruction, name: str) -> dict[str, int]:
        """Read ``, key=value`` pairs onto the node; where each value stands."""
        reading, text = self.reading, self.reading.text
        attrs = node.raw_attrs
        syntax = syntax_of(node.opcode)
        sugar = async_parts(node.opcode)
        wrapped: set[str] = set()
        if sugar is not None and node.opcode not in OPCODES:  # takes what either opcode takes
            wrapped = SYNTAX[sugar[0]].rank.keys() | (SYNTAX[sugar[1]].rank.keys() - {"calls"})
        places: dict[str, int] = {}
        key_at: dict[str, int] = {}
        pos = reading.pos
        while True:
            attr = _ATTR.match(text, pos)
            if attr is None:
                break
            key, at = attr[1], attr.end()
            again = key in places
            # XLA itself prints the statistics of a sugared start twice, which its parser then refuses.
            if again and key == "statistics" and sugar is not None and text.startswith(attrs[key] or " ", at):
                reading.object(f"attribute {key} is given twice", *attr.span(1))
            elif again:
                what = f"attribute {key} is given twice"
                reading.twice(what, *attr.span(1), key_at.get(key, places[key]), "duplicate-attribute")
            key_at.setdefault(key, attr.start(1))
            if reading.check and text[attr.end(1)] != "=":
                reading.object(f"a blank between {key} and '='", attr.end(1))
            if key not in syntax.rank and key not in wrapped and key != "async_execution_thread":
                if (node.opcode in OPCODES or sugar is not None) and key != "parameter_replication":
                    reading.unknown("attribute", key, attr.start(1), f" of {node.opcode}")
            if key in CALLED:
                places.setdefault(key, at)
                attrs[key] = None
                pos = self._called_value(node, key, at)
                continue
            stop = attribute_end(text, key, at) if key != "literal" else self._literal_end(at)
            if stop < 0:
                raise Stop(f"the value of {key} is not closed", attr.start(1), "unclosed")
            value = text[at:stop]
            if key == CONTROL:
                attrs[key] = None
                self._order_after(node, value, at)
            else:
                attrs[key] = value
            places.setdefault(key, at)
            pos = stop
        reading.pos = pos
        rest = text[pos : pos + 1]
        if rest and rest not in "\n\r \t}/\0" and not "\udc80" <= rest <= "\udcff":
            raise Stop(f"unexpected {reading.glance(pos)} after %{name}", pos)
        after = skip_blank(text, pos)
        if after < len(text) and text[after] in ",)":
            raise Stop(f"unexpected {reading.glance(after)} after %{name}", after)
        return places

    def _literal_end(self, at: int) -> int:
        """The end of ``f32[2] {1, 2}``: a shape and its values."""
        text = self.reading.text
        try:
            _, pos = self.reading.scan_shape(at)
        except Stop:
            if text.startswith("(", at):  # a tuple whose elements have their own shapes
                return match_bracket(text, at)
            raise
        pos = skip_blank(text, pos)
        if text[pos : pos + 1] in ("{", "("):
            return match_bracket(text, pos)
        return value_end(text, pos)

    # ---------------------------------------------------------------- called computations
    def _called_value(self, node: HloInstruction, key: str, at: int) -> int:
        """Read the computation(s) of an attribute, by name or written out; where the value ends."""
        text = self.reading.text
        if text.startswith("{", at):
            if _OPENS_BODY.match(text, at):
                return self._inline(node, key, at)
            inner = skip_blank(text, at + 1)
            if text.startswith("{", inner):
                return self._inline_list(node, key, at)
        stop = value_end(text, at)
        if stop < 0:
            raise Stop(f"the value of {key} is not closed", at, "unclosed")
        self.call(node, key, text[at:stop], at)
        return stop

    def _inline(self, node: HloInstruction, key: str, at: int) -> int:
        computation = self._inline_body(at)
        if computation is not None:
            node.set_called(key, computation)
        return self.reading.pos

    def _inline_list(self, node: HloInstruction, key: str, at: int) -> int:
        text = self.reading.text
        pos = skip_blank(text, at + 1)
        group: list[HloComputation] = []
        while True:
            if text.startswith("{", pos):
                computation = self._inline_body(pos)
                if computation is not None:
                    group.append(computation)
                pos = self.reading.pos
            else:
                word = WORD.match(text, pos)
                if word is None:
                    raise Stop(f"expected a computation, got {self.reading.glance(pos)}", pos)
                target = self.reading.by_name.get(word[1])
                if target is not None:
                    group.append(target[0])
                pos = word.end()
            pos = skip_blank(text, pos)
            if text.startswith(",", pos):
                pos = skip_blank(text, pos + 1)
            elif text.startswith("}", pos):
                break
            else:
                raise Stop(f"expected ',' or '}}' in {key}, got {self.reading.glance(pos)}", pos)
        if group:
            node.set_called(key, group)
        return pos + 1

    def _inline_body(self, at: int) -> HloComputation | None:
        if self.depth >= MAX_DEPTH:
            raise TooDeep(at)
        reading = self.reading
        computation = HloComputation("_")
        reading.pos = at + 1
        body = BodyReader(reading, computation, depth=self.depth + 1)
        if not body.read():
            reading.report("the text ends inside a computation", len(reading.text), len(reading.text), code="truncated")
        if not body.nodes:
            reading.report("an empty computation", at, at + 1, code="empty-computation")
            return None
        reading.inline.append(computation)
        reading.module.add_computation(computation, keep_name=True)
        return computation

    def call(self, node: HloInstruction, key: str, value: str, at: int) -> None:
        """Note the computation(s) that an attribute names; those further down the text are resolved at the end."""
        reading = self.reading
        listed = value.startswith("{")
        group: list[HloComputation] = []
        for word in split_top(value[1:-1]) if listed else (value,):
            name = word.removeprefix("%")
            target = reading.by_name.get(name)
            if target is None:
                reading.object(f"computation %{name[:60]} is not defined before its use", at, at + len(value))
                reading.later.append((node, key, value, at, name))
                return
            group.append(target[0])
        if group:
            node.set_called(key, group if listed else group[0])

    # ---------------------------------------------------------------- operands and shape
    def _arguments(self, node: HloInstruction, names: list[tuple[str, int]]) -> list[str]:
        """Give the node its operands; names that are not defined yet are returned, and then none are given."""
        defined = self.defined
        missing = [name for name, _ in names if name not in defined]
        if missing:
            for name, at in names:
                if name not in defined:
                    self.reading.object(f"%{name} is not defined before its use", at, at + len(name))
        else:
            for name, _ in names:
                node.append_operand(defined[name])
        return missing

    def _infer(self, node: HloInstruction, missing: list[str], at: int) -> Shape:
        """The shape of an instruction that gives none; the opcodes that XLA's parser infers for."""
        from hloscope.core.hlo.infer_shape import NEEDS_SHAPE, InferenceError, infer_shape, program_of

        if node.opcode in NEEDS_SHAPE:
            raise Stop(f"the shape of {node.opcode} must be given", at, "missing-shape")
        if missing:
            what = f"it depends on %{missing[0]}, which is not defined before it"
            raise Stop(f"the shape of {node.opcode} must be given: {what}", at, "missing-shape")
        try:
            programs = {key: [program_of(one) for one in group] for key, group in node.called.items()}
            attributes = {key: text for key, text in node.raw_attrs.items() if text is not None}
            operands = [taken_shape(operand) for operand in node.operands]
            return infer_shape(node.opcode, operands, attributes, programs).with_default_layout()
        except (InferenceError, ParseError, ValueError, IndexError, KeyError) as error:
            why = getattr(error, "message", str(error))
            raise Stop(f"the shape of {node.opcode} does not follow: {why}", at, "missing-shape") from None

    # ---------------------------------------------------------------- the end of a computation
    def _link(self) -> None:
        reading, defined = self.reading, self.defined
        for node, names, missing in self._forward:
            if any(name not in defined for name, _ in names):
                node.load_payload(", ".join(f"%{name}" for name, _ in names))  # so that a print keeps them
            for name, at in names:
                target = defined.get(name)
                if target is not None:
                    node.append_operand(target)
                    if name in missing:
                        reading.early(f"%{name}", at, at + len(name))
                    continue
                if name in self.lost:
                    continue
                reading.report(
                    f"%{name} is not defined in computation %{self.computation.name}",
                    at,
                    at + len(name),
                    code="undefined-name",
                )
        for node, names, at, missing in self._control:
            for name in names:
                target = defined.get(name)
                if target is None:
                    reading.report(
                        f"control predecessor %{name} is not defined in computation %{self.computation.name}",
                        at,
                        at + 1,
                        code="undefined-name",
                    )
                else:
                    target.add_control_dependency(node)
                    if name in missing:
                        reading.early(f"control predecessor %{name[:60]}", at, at + 1)

    def _check(self, node: HloInstruction, start: int, name: str, places: dict[str, int], *, linked: bool) -> None:
        from hloscope.core.text.strict import check_instruction

        check_instruction(self.reading, node, start, name, places, linked=linked)


_NO_PARTS: AttributeParts = ({}, {})
_OFTEN = 200
"""Characters of attributes that are likely to come again."""


def _split(opcode: str, before: str, after: str) -> AttributeSplit:
    """Attributes before and after the metadata, and whether the graph holds some of them; None for the slow way."""
    plain = PLAIN_KEYS.get(opcode)
    if plain is None:
        return None, False
    first, last = PAIRS.findall(before), PAIRS.findall(after)
    attrs: dict[str, str | None] = {**dict(first), **dict(last)}
    if len(attrs) != len(first) + len(last) or "metadata" in attrs:
        return None, False
    special = not plain >= attrs.keys()
    if special and (not attrs.keys() <= SYNTAX[opcode].rank.keys() or _opens_body(attrs)):
        return None, False
    return (dict(first), dict(last)), special


def _opens_body(attrs: dict[str, str | None]) -> bool:
    return any(key in CALLED and value and value.startswith("{") and "=" in value for key, value in attrs.items())
