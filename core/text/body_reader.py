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
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.opcodes import ALIASES, OPCODES
from hloscope.core.text.async_sugar import async_parts, make_async
from hloscope.core.text.opcode_syntax import SYNTAX, syntax_of
from hloscope.core.text.reading import Reading, Stop
from hloscope.core.text.scan import match_bracket, skip_blank, value_end

if TYPE_CHECKING:
    from hloscope.core.hlo.shape import Shape

# ---------------------------------------------------------------- the pattern
# Group repeats are written (?>(?:…)*), not (?:…)*+: before 3.11.5 the latter does not give back a half-matched round.
_NAME = r"[A-Za-z_][A-Za-z0-9_.\-]*+"
_STRING = r'"[^"\\\n]*+(?>(?:\\.[^"\\\n]*+)*)"'


def _nested(left: str, right: str, depth: int) -> str:
    left, right = re.escape(left), re.escape(right)
    plain = rf"[^{left}{right}\"'\n]*+"
    inner = plain
    for _ in range(depth):
        inner = rf"{plain}(?>(?:(?:{_STRING}|{left}{inner}{right}){plain})*)"
    return rf"{left}{inner}{right}"


_BRACES = _nested("{", "}", 6)
_PARENS = _nested("(", ")", 3)
_ARRAY = r"[a-z][a-z0-9]*+\[[0-9,<=?]*+\](?:\{[0-9:][^{}\n]*+\})?+"
_SHAPE = rf"(?:{_ARRAY}|{_PARENS})"
_IOTA = r"\[[0-9,]++\]<=\[[0-9,]++\](?:T\([0-9,]++\))?+"
_VALUE = rf"(?:[^\s,{{}}\"'()\[\]/]++(?![\[{{(])|{_STRING}|{_BRACES}|{_IOTA})"
_KEY = r"[A-Za-z_][A-Za-z0-9_.\-]*+"
_OPERAND_LIST = rf"%{_NAME}(?>(?:, (?:/\*index=[0-9]++\*/)?+%{_NAME})*)|{_NAME}(?>(?:, {_NAME})*)(?=\))"
_PAIR = rf", (?!metadata=){_KEY}={_VALUE}"
_FAST = re.compile(
    rf"\s*+((ROOT )?+%?+({_NAME}) = ({_SHAPE}) ([a-z][a-z0-9\-]*+)\((?:({_OPERAND_LIST})?+|([^()\"'\n]*+))\)"
    rf"((?>(?:{_PAIR})*))(?:, metadata=({_BRACES}))?+((?>(?:{_PAIR})*)))(?=\s*+[%A-Za-z_}}])"
)
"""Groups: the line, ROOT, name, shape, opcode, operands, payload, attributes before metadata, metadata, the rest."""
COMPUTATION_HEAD = re.compile(rf"(ENTRY\s++)?+(%?+)({_NAME})\s*+(?:{_PARENS}\s*+->\s*+({_SHAPE}))?+\s*+\{{")
"""The first line of a computation as XLA prints it: ENTRY, percent sign, name, result shape."""
_PAIRS = re.compile(rf", ({_KEY})=({_VALUE})")
_INDEX_COMMENT = re.compile(r"/\*index=[0-9]++\*/")
_PLAIN_KEYS = {opcode: frozenset(row.rank) - CALLED.keys() - {CONTROL} for opcode, row in SYNTAX.items()}
"""Attributes that are text alone, by opcode; computations and control edges are the graph's."""

# ---------------------------------------------------------------- by hand
_ATTR = re.compile(r"\s*,(?:\s|/\*.*?\*/|//[^\n\r]*)*([A-Za-z_][\w.\-]*)\s*=(?:\s|/\*.*?\*/|//[^\n\r]*)*", re.S)
_DEFINE = re.compile(r"(ROOT\s+)?(%?)([A-Za-z_][\w.\-]*)\s*=(?:\s|/\*.*?\*/|//[^\n\r]*)*", re.S)
_OPCODE = re.compile(r"\s*([A-Za-z][\w\-]*)\s*\(")
_WORD = re.compile(r"%?([A-Za-z_][\w.\-]*)((?:#\d+)*):?")
_SIMPLE_OPERANDS = re.compile(r"[^()\"{}\[\]/#]*\)")
_DIGITS = re.compile(r"\d{1,9}$")
_MAX_DEPTH = 80
"""How deep instructions and computations may be written in one another."""
_OPENS_BODY = re.compile(r"\{\s*(?:(?:/\*.*?\*/|//[^\n\r]*)\s*)*(?:ROOT\s+)?%?[A-Za-z_][\w.\-]*\s*=(?!=)", re.S)


class BodyReader:
    """Reads instructions of one computation; `depth` counts computations written in one another."""

    def __init__(self, reading: Reading, computation: HloComputation, *, depth: int = 0, single: bool = False) -> None:
        self.reading = reading
        self.computation = computation
        self.nodes: list[HloInstruction] = []
        self.starts: list[int] = []
        """Where each node's text begins."""
        self.defined: dict[str, HloInstruction] = {}
        self.root: HloInstruction | None = None
        self._depth = depth
        self._single = single
        """Whether operands that nobody defines become parameters, as in a text of one instruction."""
        self._forward: list[tuple[HloInstruction, list[tuple[str, int]]]] = []
        """Nodes with an operand that is not defined yet."""
        self._control: list[tuple[HloInstruction, str, int]] = []
        self._anonymous: dict[str, int] = {}

    # ---------------------------------------------------------------- the body
    def read(self) -> bool:
        """Read up to the closing brace; False where the text ends before it."""
        reading, text = self.reading, self.reading.text
        match = _FAST.match
        take = self._take
        closed = False
        while True:
            found = match(text, reading.pos)
            if found is not None and take(found):
                continue
            reading.pos = skip_blank(text, reading.pos)
            if reading.pos >= len(text):
                break
            if text[reading.pos] == "}":
                reading.pos += 1
                closed = True
                break
            if text[reading.pos] == ")" and self._depth:
                break
            try:
                self.read_one()
            except Stop as bad:
                reading.resume_after(bad)
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
            start = self.starts[self.nodes.index(node)] if node in self.nodes else 0
            what = f"instructions of %{self.computation.name} wait for each other in a cycle"
            self.reading.report(what, start, start + 1, code="cycle", severity="warning")

    def _check_parameters(self) -> None:
        for number, parameter in enumerate(self.computation.parameters):
            if parameter.parameter_number != number:
                start = self.starts[self.nodes.index(parameter)]
                self.reading.report(
                    f"parameter numbers of %{self.computation.name} are not 0, 1, 2, …: found "
                    f"{parameter.parameter_number}, expected {number}",
                    start,
                    start + 1,
                    code="parameter-number",
                )
                return

    # ---------------------------------------------------------------- the fast way
    def _take(self, found: re.Match[str]) -> bool:
        """Make a node of a line that the pattern takes; False leaves it to the slow way."""
        line, root, name, shape_text, opcode, operands, inside, before, metadata, after = found.groups()
        defined = self.defined
        plain = _PLAIN_KEYS.get(opcode)
        if plain is None or name in defined:
            return False
        payload = None
        arguments: list[HloInstruction] = []
        if opcode == "parameter" or opcode == "constant":
            payload = (operands or inside or "").strip()
            if opcode == "parameter" and not _DIGITS.match(payload):
                return False
        elif operands is not None:
            if "/" in operands:
                operands = _INDEX_COMMENT.sub("", operands)
            try:
                arguments = [defined[operand] for operand in operands.replace("%", "").split(", ")]
            except KeyError:
                return False
        elif inside:
            return False
        special = False
        attrs: dict[str, str | None] = {}
        if before or after:
            pairs = _PAIRS.findall(before)
            count = len(pairs)
            attrs = dict(pairs)
            if metadata is not None:
                attrs["metadata"] = metadata
                count += 1
            if after:
                pairs = _PAIRS.findall(after)
                count += len(pairs)
                attrs.update(pairs)
            if len(attrs) != count:
                return False
            if not plain >= attrs.keys():
                if not attrs.keys() <= SYNTAX[opcode].rank.keys() or _opens_body(attrs):
                    return False
                special = True
        elif metadata is not None:
            attrs["metadata"] = metadata
        reading = self.reading
        shape = reading.shapes.get(shape_text)
        if shape is None:
            try:
                shape = reading.shape_of(shape_text, found.start(4))
            except Stop:
                return False
        node = HloInstruction.loaded(name, opcode, shape, arguments, attrs, payload, self.computation)
        node.source_line = line
        start = found.start(1)
        if special:
            self._take_special(node, attrs, found.start(8))
        self.nodes.append(node)
        self.starts.append(start)
        defined[name] = node
        if root:
            self._set_root(node, start)
        if reading.check:
            places = {key: found.start(9) if key == "metadata" else found.start(8) for key in attrs}
            self._check(node, start, name, places, linked=True)
        reading.pos = found.end()
        return True

    def _take_special(self, node: HloInstruction, attrs: dict[str, str | None], at: int) -> None:
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
                self._control.append((node, value, at))

    def _set_root(self, node: HloInstruction, at: int) -> None:
        if self.root is not None:
            self.reading.report("a second ROOT in one computation", at, at + 4, code="duplicate-root")
        self.root = node

    # ---------------------------------------------------------------- one instruction, by hand
    def read_one(self) -> HloInstruction:
        """Read one instruction with its name. Raises Stop where it cannot be read."""
        reading, text = self.reading, self.reading.text
        start = reading.pos
        head = _DEFINE.match(text, start)
        if head is None:
            raise Stop(f"expected 'name = shape opcode(…)', got {reading.glance(start)}", start)
        name = head[3]
        node = self.read_rest(name, head.end(), start)
        other = self.defined.get(name)
        if other is not None:
            at = self.starts[self.nodes.index(other)]
            reading.report(
                f"%{name} is defined twice in computation %{self.computation.name}",
                head.start(3),
                head.end(3),
                code="duplicate-name",
                related=((at, at + len(name) + 1, "first defined here"),),
            )
        else:
            self.defined[name] = node
        self.nodes.append(node)
        self.starts.append(start)
        line = text[start : reading.pos]
        node.source_line = line if "\n" not in line and node.opcode in line else None
        if head[1] is not None:
            self._set_root(node, start)
        if reading.check and not head[2] and text[head.end(3) : head.end(3) + 1] == "=":
            reading.object("XLA reads a word right before '=' as an attribute, not as a name", head.start(3))
        return node

    def read_rest(
        self, name: str, pos: int, start: int, *, attributes: bool = True, given: Shape | None = None
    ) -> HloInstruction:
        """Read from the result shape on (which may be `given`); nested instructions have no `attributes`.

        Raises Stop.
        """
        reading, text = self.reading, self.reading.text
        shape, pos = (given, pos) if given is not None else self._result_shape(pos)
        found = _OPCODE.match(text, pos) or _OPCODE.match(text, skip_blank(text, pos))
        if found is None:
            at = skip_blank(text, pos)
            raise Stop(f"expected an opcode and '(', got {reading.glance(at)}", at)
        word = found[1]
        opcode = ALIASES.get(word, word)
        if word in ALIASES:
            reading.object(f"XLA writes {opcode}, not {word}", found.start(1), found.end(1))
        inside = found.end()
        simple = _SIMPLE_OPERANDS.match(text, inside)
        end = simple.end() if simple is not None else match_bracket(text, inside - 1)
        if end < 0:
            raise Stop(f"the operands of %{name} are not closed", inside - 1, "unclosed")
        operands: list[tuple[str, int]] = []
        payload: str | None = None
        if opcode in ("constant", "parameter"):
            payload = text[inside : end - 1].strip()
            if opcode == "parameter" and not _DIGITS.match(payload):
                raise Stop(f"expected a parameter number, got {payload[:20]!r}", inside)
        else:
            operands = self._operands(inside, end - 1, plain=simple is not None)
        reading.pos = end
        sugar = async_parts(opcode) if opcode not in OPCODES else None
        if opcode not in OPCODES and sugar is None:
            reading.unknown("opcode", opcode, found.start(1))
        node = HloInstruction.loaded(name, opcode, shape, [], {}, payload, self.computation)
        places = self._attributes(node, name) if attributes else {}
        missing = self._arguments(node, operands)
        if sugar is not None and shape is not None:
            make_async(reading, node, sugar, found.start(1))
        elif sugar is not None:
            raise Stop(f"the shape of {opcode} must be given", found.start(1), "missing-shape")
        if shape is None:
            node.shape = self._infer(node, missing, found.start(1))
        if missing:
            self._forward.append((node, operands))
        if reading.check:
            self._check(node, start, name, places, linked=not missing)
        return node

    def _result_shape(self, pos: int) -> tuple[Shape | None, int]:
        text = self.reading.text
        if _OPCODE.match(text, pos) is not None and not text.startswith("b(", pos):
            return None, pos
        return self.reading.scan_shape(pos)

    def _attributes(self, node: HloInstruction, name: str) -> dict[str, int]:
        """Read ``, key=value`` pairs onto the node; where each value stands."""
        reading, text = self.reading, self.reading.text
        attrs = node.raw_attrs
        syntax = syntax_of(node.opcode)
        sugar = async_parts(node.opcode)
        wrapped = SYNTAX[sugar[0]].rank if sugar is not None and node.opcode not in OPCODES else {}
        places: dict[str, int] = {}
        pos = reading.pos
        while True:
            attr = _ATTR.match(text, pos)
            if attr is None:
                break
            key, at = attr[1], attr.end()
            again = key in places
            if again:
                what = f"attribute {key} is given twice"
                reading.report(what, attr.start(1), attr.end(1), code="duplicate-attribute")
            if reading.check and text[attr.end(1)] != "=":
                reading.object(f"a blank between {key} and '='", attr.end(1))
            if key not in syntax.rank and key not in wrapped and key != "async_execution_thread":
                if node.opcode in OPCODES and key != "parameter_replication":
                    reading.unknown("attribute", key, attr.start(1), f" of {node.opcode}")
            if key in CALLED:
                places.setdefault(key, at)
                attrs[key] = None
                pos = self._called_value(node, key, at)
                continue
            stop = value_end(text, at) if key != "literal" else self._literal_end(at)
            if stop < 0:
                raise Stop(f"the value of {key} is not closed", attr.start(1), "unclosed")
            value = text[at:stop]
            if key == CONTROL:
                attrs[key] = None
                self._control.append((node, value, at))
            else:
                attrs[key] = value
            places.setdefault(key, at)
            pos = stop
        reading.pos = pos
        rest = text[pos : pos + 1]
        if rest and rest not in "\n\r \t}/":
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
        if self._depth > _MAX_DEPTH:
            raise Stop("computations are nested too deep", at)
        computation = self._inline_body(at)
        if computation is not None:
            node.set_called(key, computation)
        return self.reading.pos

    def _inline_list(self, node: HloInstruction, key: str, at: int) -> int:
        text = self.reading.text
        pos = skip_blank(text, at + 1)
        group: list[HloComputation] = []
        while True:
            if text.startswith("{", pos) and self._depth <= _MAX_DEPTH:
                computation = self._inline_body(pos)
                if computation is not None:
                    group.append(computation)
                pos = self.reading.pos
            else:
                word = _WORD.match(text, pos)
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
        reading = self.reading
        computation = HloComputation("_")
        reading.pos = at + 1
        body = BodyReader(reading, computation, depth=self._depth + 1)
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
                reading.later.append((node, key, value, at))
                return
            group.append(target[0])
        if group:
            node.set_called(key, group if listed else group[0])

    # ---------------------------------------------------------------- operands
    def _operands(self, at: int, end: int, *, plain: bool) -> list[tuple[str, int]]:
        """Names with their offsets, from a list with shapes, comments, nested instructions or element suffixes."""
        reading, text = self.reading, self.reading.text
        out: list[tuple[str, int]] = []
        if plain and not text[at:end].strip():
            return out
        pos = at
        while True:
            pos = skip_blank(text, pos)
            if pos >= end:
                if out:
                    raise Stop(f"expected an operand, got {reading.glance(pos)}", pos)
                return out
            shape: Shape | None = None
            word = _WORD.match(text, pos, end)
            after = skip_blank(text, word.end()) if word is not None else pos
            if word is None or (after < end and text[after] not in ",(") or text.startswith("b(", pos):
                shape, pos = reading.scan_shape(pos)
                pos = skip_blank(text, pos)
                word = _WORD.match(text, pos, end)
                if word is None:
                    if self._single and (pos >= end or text[pos] == ","):
                        out.append((self._parameter("", shape, pos), pos))
                        if pos >= end:
                            return out
                        pos += 1
                        continue
                    raise Stop(f"expected an operand name, got {reading.glance(pos)}", pos)
                after = skip_blank(text, word.end())
            if after < end and text[after] == "(":
                stop = match_bracket(text, after)
                if stop < 0 or self._depth > _MAX_DEPTH:
                    raise Stop(f"expected an operand, got {reading.glance(pos)}", pos)
                out.append((self._nested(shape, pos, stop), pos))
                pos = stop
            else:
                name = word[1]
                if self._single and name not in self.defined:
                    if shape is None:
                        raise Stop(f"operand %{name} has no shape to make a parameter of", pos)
                    self._parameter(name, shape, pos)
                if reading.check and shape is not None and not word[2]:
                    known = self.defined.get(name)
                    if known is not None and not known.shape.static().compatible(shape.static()):
                        reading.object(f"%{name} has shape {known.shape}, not {shape}", pos, word.end())
                out.append((self._element(word), word.start(1)))
                pos = word.end()
            pos = skip_blank(text, pos)
            if pos >= end:
                return out
            if text[pos] != ",":
                raise Stop(f"expected ',' between operands, got {reading.glance(pos)}", pos)
            pos += 1

    def _parameter(self, name: str, shape: Shape, at: int) -> str:
        """A parameter for an operand that nobody defines, in a text of one instruction."""
        number = sum(1 for node in self.nodes if node.opcode == "parameter")
        name = name or f"_{number}"
        node = HloInstruction.loaded(name, "parameter", shape, [], {}, str(number), self.computation)
        self.defined[name] = node
        self.nodes.append(node)
        self.starts.append(at)
        return name

    def _nested(self, shape: Shape | None, pos: int, stop: int) -> str:
        """An instruction in the place of an operand: it has no name and no attributes."""
        reading = self.reading
        found = _OPCODE.match(reading.text, pos)
        if found is None:
            raise Stop(f"expected an operand, got {reading.glance(pos)}", pos)
        root = f"{found[1]}.anon"
        name, number = root, 0
        while name in self.defined:
            number += 1
            name = f"{root}.{number}"
        self._depth += 1
        try:
            node = self.read_rest(name, pos, pos, attributes=False, given=shape)
        finally:
            self._depth -= 1
        name, number = root, 0
        while name in self.defined:
            number += 1
            name = f"{root}.{number}"
        node.set_name_unchecked(name)
        reading.pos = stop
        self.defined[name] = node
        self.nodes.append(node)
        self.starts.append(pos)
        return name

    def _element(self, word: re.Match[str]) -> str:
        """The name of an operand; ``t#1#0`` makes the get-tuple-element instructions that it stands for."""
        name = word[1]
        if word[2]:
            self.reading.object(f"the parser of jaxlib 0.10.2 does not know {word[0]} yet", word.start(2), word.end(2))
        for index in word[2].split("#")[1:]:
            whole = f"{name}#{index}"
            if whole not in self.defined:
                base = self.defined.get(name)
                if base is None or not base.shape.is_tuple or int(index[:9]) >= len(base.shape.tuple_shapes):
                    raise Stop(f"%{name} has no element {index[:9]}", word.start())
                number = int(index)
                node = HloInstruction.loaded(
                    f"{base.name}_{number}",
                    "get-tuple-element",
                    base.shape.tuple_shapes[number],
                    [base],
                    {"index": index},
                    None,
                    self.computation,
                )
                self.defined[whole] = node
                self.nodes.append(node)
                self.starts.append(word.start())
            name = whole
        return name

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
            operands = [operand.shape for operand in node.operands]
            return infer_shape(node.opcode, operands, attributes, programs).with_default_layout()
        except (InferenceError, ParseError, ValueError, IndexError, KeyError) as error:
            why = getattr(error, "message", str(error))
            raise Stop(f"the shape of {node.opcode} does not follow: {why}", at, "missing-shape") from None

    # ---------------------------------------------------------------- the end of a computation
    def _link(self) -> None:
        reading, defined = self.reading, self.defined
        for node, names in self._forward:
            for name, at in names:
                target = defined.get(name)
                if target is not None:
                    node.append_operand(target)
                    continue
                reading.report(
                    f"%{name} is not defined in computation %{self.computation.name}",
                    at,
                    at + len(name),
                    code="undefined-name",
                )
        for node, value, at in self._control:
            for word in split_top(value[1:-1]):
                name = word.removeprefix("%")
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

    def _check(self, node: HloInstruction, start: int, name: str, places: dict[str, int], *, linked: bool) -> None:
        from hloscope.core.text.strict import check_instruction

        check_instruction(self.reading, node, start, name, places, linked=linked)


def _opens_body(attrs: dict[str, str | None]) -> bool:
    return any(key in CALLED and value and value.startswith("{") and "=" in value for key, value in attrs.items())
