"""Completion: what may stand at the cursor of an instruction that is being typed.

After ``=`` and a shape: opcodes with a snippet of their operands and required attributes. Between the parentheses:
instructions defined above in the same computation, those of a shape that fits first. After them: attributes that the
opcode takes and has not yet. After ``to_apply=`` and its like: computations, those whose signature fits first; after
``kind=`` and its like: the words that it may have. In a string nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lsprotocol import types

from hloscope.core.hlo.attributes import ATTRIBUTES, CALLED, split_top
from hloscope.core.hlo.infer_shape import ProgramShape
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.hlo.shape import Shape
from hloscope.core.text.module_index import Computation, ModuleIndex
from hloscope.core.text.opcode_syntax import syntax_of
from hloscope.core.text.value_forms import words_of
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature
from hloscope.lsp.features.operand_fit import CALLERS, Slot, called_rank, parsed, takes

MOST = 400
"""Items of one answer; a longer list is marked incomplete, so that the client asks again as the word grows."""
_LINE_CHARACTERS = 100_000
_STARTED = re.compile(r"^\s*(?:ROOT\s+)?%?[\w.\-]+\s*=\s*(?P<rest>.*)$", re.S)
_SHAPED = re.compile(
    r"^(?:\([^()]*(?:\([^()]*\)[^()]*)*\)|[a-z][a-z0-9]*(?:\[[^\]]*\])?(?:\{[^}]*\})?)\s+(?P<rest>.*)$", re.S
)
_CALL = re.compile(r"^(?P<opcode>[a-z][\w\-]*)\((?P<inside>.*)$", re.S)
_VALUE = re.compile(r"(?P<key>[a-z][\w\-]*)=(?:\{(?:%?[\w.\-]*,\s*)*)?(?P<word>%?[\w.\-]*)$")
_CALLED_NAME = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")
_CONSTRAINTS = re.compile(r"operand_layout_constraints=\{((?:[^{}]|\{[^{}]*\})*)\}")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*("|$)', re.S)
_WORD = re.compile(r"[%\w.\-]*$")


def completion(reading: Reading, params: types.CompletionParams) -> types.CompletionList | None:
    """The items for the place under the cursor; None where nothing is known to fit."""
    offset = reading.offset(params.position)
    start = reading.text.rfind("\n", max(0, offset - _LINE_CHARACTERS), offset) + 1
    line = reading.text[start:offset]
    begun = _STARTED.match(line)
    if begun is None or any(not one for one in _STRING.findall(line)):
        return None
    word = _WORD.search(line)
    first = offset - (len(word[0]) if word is not None else 0)
    items: list[types.CompletionItem] = []
    typed = "" if word is None else word[0].lstrip("%")
    end = reading.text.find("\n", offset, offset + _LINE_CHARACTERS)
    behind = reading.text[offset : end if end >= 0 else offset + _LINE_CHARACTERS]
    for number, item in enumerate(_items(reading.index, begun["rest"], start, typed, behind)):
        if number >= MOST:
            return types.CompletionList(is_incomplete=True, items=items)
        text = item.insert_text or item.label
        item.text_edit = types.TextEdit(reading.range(first, offset), text)
        item.sort_text = f"{number:05d}"
        items.append(item)
    return types.CompletionList(is_incomplete=False, items=items) if items else None


def without_snippets(found: types.CompletionList | None) -> types.CompletionList | None:
    """The same for a client that would show a snippet's marks: the opcode and the open parenthesis alone."""
    for item in () if found is None else found.items:
        if item.insert_text_format is types.InsertTextFormat.Snippet and isinstance(item.text_edit, types.TextEdit):
            item.insert_text_format = None
            item.insert_text = item.text_edit.new_text = f"{item.label}("
    return found


def _items(index: ModuleIndex, rest: str, start: int, typed: str, behind: str) -> Iterator[types.CompletionItem]:
    shaped = _SHAPED.match(rest)
    if shaped is None:
        return
    call = _CALL.match(shaped["rest"])
    if call is None:
        if re.fullmatch(r"[\w\-]*", shaped["rest"]):
            yield from _opcodes()
        return
    inside = call["inside"]
    close = _closing(inside)
    shape = rest[: len(rest) - len(shaped["rest"])].strip()
    if close is None:
        if re.search(r"(?:^|,)\s*(?:[^,()]*\s)?%?[\w.\-]*$", inside):
            yield from _operands(index, start, call["opcode"], shape, inside, typed, behind)
        return
    attributes = inside[close + 1 :]
    value = _VALUE.search(attributes)
    if value is not None and value["key"] in CALLED:
        number = value[0].count(",")
        operands = _shapes(index, start, split_top(inside[:close]))
        yield from _computations(index, start, call["opcode"], value["key"], number, operands, parsed(shape))
    elif value is not None:
        for word in words_of(call["opcode"], value["key"]):
            yield types.CompletionItem(word, kind=types.CompletionItemKind.EnumMember)
    else:
        yield from _attributes(call["opcode"], attributes)


def _closing(inside: str) -> int | None:
    """Where the parenthesis of the operands closes; None while it is open."""
    depth = 1
    for at, letter in enumerate(inside):
        depth += (letter in "({") - (letter in ")}")
        if depth == 0:
            return at
    return None


def _opcodes() -> Iterator[types.CompletionItem]:
    for name, known in OPCODES.items():
        slots = [f"${{{number + 1}:operand}}" for number in range(known.arity if known.arity is not None else 1)]
        needed = [f"{key}=${{{len(slots) + 1 + at}}}" for at, key in enumerate(_required(name))]
        snippet = f"{name}({', '.join(slots)})" + "".join(f", {one}" for one in needed)
        yield types.CompletionItem(
            name,
            kind=types.CompletionItemKind.Function,
            detail=known.meaning,
            insert_text=snippet,
            insert_text_format=types.InsertTextFormat.Snippet,
        )


def _shapes(index: ModuleIndex, start: int, operands: Sequence[str]) -> tuple[Shape | None, ...]:
    """Shapes of operands as they are written; None where the name is not known."""
    home = index.computation_at(max(0, start - 1))
    found: list[Shape | None] = []
    for text in operands:
        words = text.split()
        i = index.find(words[-1].removeprefix("%"), home) if words and home is not None else None
        found.append(None if i is None else parsed(index.shape_text(i)))
    return tuple(found)


def _operands(
    index: ModuleIndex, start: int, opcode: str, shape: str, inside: str, typed: str, behind: str
) -> Iterator[types.CompletionItem]:
    """Instructions above the line in its computation: those that fit first, then the nearest.

    Where there are too many for one answer, those whose names hold what is typed.
    """
    home = index.computation_at(max(0, start - 1))
    if home is None:
        return
    one = index.computation(home)
    above = [i for i in range(one.begin, one.end) if index.span(i)[0] < start]
    if len(above) > MOST:
        above = [i for i in above if typed in index.name(i)]
    above.reverse()
    result = parsed(shape)
    if result is not None:
        before = _shapes(index, start, split_top(inside + "_")[:-1])
        slot = Slot(opcode, len(before), result, before, _wanted(index, start, opcode, result, before, behind))
        ranks = {text: slot.rank(parsed(text)) for text in dict.fromkeys(index.shape_text(i) for i in above)}
        above.sort(key=lambda i: ranks[index.shape_text(i)])
    for i in above:
        yield types.CompletionItem(
            f"%{index.name(i)}",
            kind=types.CompletionItemKind.Variable,
            detail=f"{index.opcode(i)} {index.shape_text(i)}",
        )


def _wanted(
    index: ModuleIndex, start: int, opcode: str, result: Shape, before: tuple[Shape | None, ...], behind: str
) -> tuple[Shape, ...] | None:
    """Shapes of which the operand has to have one, by what is called or by the line's own constraint; None where
    nothing says it.

    What a line that calls will name, where it does not yet: computations with that result and these operands, those
    that nothing calls before others.
    """
    number = len(before)
    if opcode == "custom-call":
        found = _CONSTRAINTS.search(behind)
        shapes = split_top(found[1]) if found is not None else []
        one = parsed(shapes[number].strip()) if number < len(shapes) else None
        return None if one is None else (one,)
    if opcode not in CALLERS:
        return None
    named = _CALLED_NAME.search(behind)
    home = index.find_computation(named[1]) if named is not None else None
    if home is not None:
        program = _program(index, index.computation(home))
        return None if program is None else program.parameters[number : number + 1]
    called = frozenset(index.columns.calls.tolist())
    fit: list[tuple[bool, Shape]] = []
    for one in index.computations:
        if one.span[0] >= start or one.is_entry or one.root < 0:
            continue
        root = parsed(index.shape_text(one.root))
        if root is None or not takes(root, (), result, ()):
            continue
        program = _program(index, one)
        if program is not None and number < len(program.parameters):
            if takes(program.result, program.parameters, result, before):
                fit.append((one.number in called, program.parameters[number]))
    best = min((used for used, _ in fit), default=False)
    return tuple(dict.fromkeys(shape for used, shape in fit if used == best)) or None


def _attributes(opcode: str, written: str) -> Iterator[types.CompletionItem]:
    had = set(re.findall(r"([a-z][\w\-]*)=", written))
    syntax = syntax_of(opcode)
    needed = syntax.required
    comma = "" if re.search(r",\s*[\w\-]*$", written) else ", "
    for key in sorted(syntax.rank, key=lambda key: (key not in needed, syntax.rank[key])):
        if key in had or key in syntax.forgotten or not syntax.allows(key):
            continue
        known = ATTRIBUTES.get(key)
        meaning = known.meaning if known is not None else "calls a computation" if key in CALLED else ""
        yield types.CompletionItem(
            key,
            kind=types.CompletionItemKind.Property,
            detail=("required. " if key in needed else "") + meaning,
            insert_text=f"{comma}{key}=",
        )


def _required(opcode: str) -> list[str]:
    syntax = syntax_of(opcode)
    return sorted(syntax.required, key=syntax.rank.__getitem__)


def _computations(
    index: ModuleIndex,
    start: int,
    opcode: str,
    key: str,
    number: int,
    operands: tuple[Shape | None, ...],
    result: Shape | None,
) -> Iterator[types.CompletionItem]:
    """Computations above the line, those whose signature fits first, in the order of the text."""
    found = [one for one in index.computations if one.name and one.span[0] < start and not one.is_entry]
    if result is not None:
        ranks = [called_rank(opcode, key, number, operands, result, _program(index, one)) for one in found]
        found = [found[k] for k in sorted(range(len(found)), key=ranks.__getitem__)]
    for one in found[: MOST + 1]:
        root = f" -> {index.shape_text(one.root)}" if one.root >= 0 else ""
        yield types.CompletionItem(
            f"%{one.name}", kind=types.CompletionItemKind.Function, detail=f"{len(one)} instructions{root}"
        )


def _program(index: ModuleIndex, one: Computation) -> ProgramShape | None:
    """The signature of a computation; None where it is not whole."""
    result = parsed(index.shape_text(one.root)) if one.root >= 0 else None
    by_number: dict[int, Shape] = {}
    for i in range(one.begin, one.end):
        if index.opcode(i) == "parameter":
            shape, text = parsed(index.shape_text(i)), index.operands_text(i).strip()
            if shape is None or not text.isdecimal():
                return None
            by_number[int(text)] = shape
    if result is None or sorted(by_number) != list(range(len(by_number))):
        return None
    return ProgramShape(tuple(by_number[k] for k in range(len(by_number))), result)


FEATURE = Feature(
    types.TEXT_DOCUMENT_COMPLETION,
    completion,
    options=types.CompletionOptions(trigger_characters=["%", "(", ",", "="]),
)
