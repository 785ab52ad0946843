"""Reads what stands in the parentheses behind an opcode: names, shapes before them, instructions in their place.

Source: ``openxla/xla:xla/hlo/parser/hlo_parser.cc#ParseOperands``. That parser leaves out an operand that it cannot
read where the next token is a comma or the closing parenthesis; so does this, and warns.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.hlo.element_types import ELEMENT_TYPES
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.text.async_sugar import async_parts
from hloscope.core.text.reading import Stop, TooDeep
from hloscope.core.text.scan import BLANKS, match_bracket, skip_blank

if TYPE_CHECKING:
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.text.body_reader import BodyReader

OPCODE = re.compile(rf"{BLANKS}([A-Za-z][\w\-]*){BLANKS}\(", re.S)
WORD = re.compile(rf"%?([A-Za-z_][\w.\-]*)((?:{BLANKS}#{BLANKS}\d+)*):?", re.S)
_BODY_END = re.compile(r"\n[ \t]*\}")
MAX_DEPTH = 900
"""How deep instructions and computations may be written in one another; about where XLA's parser runs out of stack."""


def read_operands(body: BodyReader, at: int, end: int, *, plain: bool) -> list[tuple[str, int]]:
    """Names with their offsets, from the text between `at` and `end`; a `plain` one has no brackets.

    Raises Stop.
    """
    reading, text = body.reading, body.reading.text
    out: list[tuple[str, int]] = []
    if plain and not text[at:end].strip():
        return out
    pos = skip_blank(text, at)
    if pos >= end:
        return out
    while True:
        pos = skip_blank(text, pos)
        if pos >= end or text[pos] == ",":
            _left_out(body, "an operand is missing", min(pos, end))
            if pos >= end:
                return out
            pos += 1
            continue
        shape: Shape | None = None
        word = WORD.match(text, pos, end)
        after = skip_blank(text, word.end()) if word is not None else pos
        if word is None or (after < end and text[after] not in ",(") or text.startswith("b(", pos):
            shape, pos = reading.scan_shape(pos)
            pos = skip_blank(text, pos)
            word = WORD.match(text, pos, end)
            if word is None:
                if pos < end and text[pos] != ",":
                    raise Stop(f"expected an operand name, got {reading.glance(pos)}", pos)
                if body.single:
                    out.append((parameter_for(body, "", shape, pos), pos))
                else:
                    _left_out(body, "an operand has a shape but no name", pos)
                if pos >= end:
                    return out
                pos += 1
                continue
            after = skip_blank(text, word.end())
        if after < end and text[after] == "(":
            stop = match_bracket(text, after, body.ends)
            if stop < 0:
                raise Stop(f"expected an operand, got {reading.glance(pos)}", pos)
            out.append((_nested(body, shape, pos, stop), pos))
            pos = stop
        elif _is_opcode_nobody_defines(body, word):
            _left_out(body, f"%{word[1]} is not defined", pos)
            pos = word.end()
        else:
            name = word[1]
            if body.single and name not in body.defined:
                if shape is None:
                    raise Stop(f"operand %{name} has no shape to make a parameter of", pos)
                parameter_for(body, name, shape, pos)
            if shape is not None and not word[2]:
                _compare(body, name, shape, pos, word.end())
            out.append((_element(body, word), word.start(1)))
            pos = word.end()
        pos = skip_blank(text, pos)
        if pos >= end:
            return out
        if text[pos] != ",":
            raise Stop(f"expected ',' between operands, got {reading.glance(pos)}", pos)
        pos += 1


def _left_out(body: BodyReader, what: str, at: int) -> None:
    body.reading.report(f"{what}; it is left out, as XLA's parser does", at, at + 1, code="operand-left-out",
                        severity="warning")  # fmt: skip


def _is_opcode_nobody_defines(body: BodyReader, word: re.Match[str]) -> bool:
    """A word that XLA tries as an instruction's opcode once it is no name, and then leaves out."""
    name = word[1]
    if body.single or word[2] or name in body.defined or word[0] != name:
        return False
    if name not in OPCODES and name not in ELEMENT_TYPES and async_parts(name) is None:
        return False
    # Defined further down it is a forward reference, which is read (and objected to).
    text = body.reading.text
    end = _BODY_END.search(text, word.end())
    stop = end.start() if end is not None else len(text)
    return re.compile(rf"[\s%]{re.escape(name)}\s*=").search(text, word.end(), stop) is None


def _compare(body: BodyReader, name: str, shape: Shape, start: int, end: int) -> None:
    """The shape that stands before an operand's name, as older dumps write it, with the operand's own."""
    known = body.defined.get(name)
    if known is None or known.shape is shape or known.shape.compatible(shape):
        return
    from hloscope.core.hlo.infer_shape import compatible

    if compatible(known.shape, shape):
        return
    what = f"%{name} has shape {known.shape.to_text(layout=False)}, not {shape.to_text(layout=False)}"
    body.reading.report(what, start, end, code="operand-shape", severity="warning")
    body.reading.object(what, start, end)


def parameter_for(body: BodyReader, name: str, shape: Shape, at: int) -> str:
    """A parameter for an operand that nobody defines, in a text of one instruction; its name."""
    number = sum(1 for node in body.nodes if node.opcode == "parameter")
    name = name or f"_{number}"
    node = HloInstruction.loaded(name, "parameter", shape, [], {}, str(number), body.computation)
    _add(body, name, node, at)
    return name


def _add(body: BodyReader, name: str, node: HloInstruction, at: int) -> None:
    body.defined[name] = node
    body.nodes.append(node)
    body.starts.append(at)


def _nested(body: BodyReader, shape: Shape | None, pos: int, stop: int) -> str:
    """An instruction in the place of an operand: it has no name and no attributes."""
    reading = body.reading
    if body.depth >= MAX_DEPTH:
        raise TooDeep(pos)
    found = OPCODE.match(reading.text, pos)
    if found is None:
        raise Stop(f"expected an operand, got {reading.glance(pos)}", pos)
    root = f"{found[1]}.anon"
    body.depth += 1
    try:
        node = body.read_rest(_free(body, root), pos, pos, attributes=False, given=shape)
    finally:
        body.depth -= 1
    name = _free(body, root)
    node.set_name_unchecked(name)
    reading.pos = stop
    _add(body, name, node, pos)
    return name


def _free(body: BodyReader, root: str) -> str:
    name, number = root, 0
    while name in body.defined:
        number += 1
        name = f"{root}.{number}"
    return name


def _element(body: BodyReader, word: re.Match[str]) -> str:
    """The name of an operand; ``t#1#0`` makes the get-tuple-element instructions that it stands for."""
    name = word[1]
    if not word[2]:
        return name
    body.reading.object(f"the parser of jaxlib 0.10.2 does not know {word[0]} yet", word.start(2), word.end(2))
    for index in re.findall(r"\d+", word[2]):
        whole = f"{name}#{index}"
        if whole not in body.defined:
            base = body.defined.get(name)
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
                body.computation,
            )
            _add(body, whole, node, word.start())
        name = whole
    return name
