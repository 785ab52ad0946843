"""Edits of a text that keep what it computes: a call or fusion laid open in its place, instructions put into one.

Both work on the text alone, so that the rest of it stays as it was typed. Names stay unique within the module, which
XLA asks for.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from lsprotocol import types

from hloscope.core.hlo.attributes import CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.lsp.documents import Reading

MOST = 500
"""Instructions that are moved at once."""
_PARAMETER = re.compile(r"\s*(\d+)\s*")
_STAYS = ("parameter", "tuple-select")


def inline(reading: Reading, i: int) -> types.CodeAction | None:
    """Lay the computation that a call or fusion runs open in its place; None where that cannot be done.

    The computation goes where nothing else calls it.
    """
    index = reading.index
    called = index.called(i)
    if index.opcode(i) not in ("call", "fusion") or len(called) != 1 or called[0] < 0:
        return None
    body, operands = index.computation(called[0]), index.operands(i)
    if -1 in operands or not 0 < len(body) <= MOST or body.root < 0 or CONTROL in index.text(i):
        return None
    goes = index.callers(called[0]) == [i] and not body.is_entry
    taken = _Taken(index, range(body.begin, body.end) if goes else range(0))
    names = dict[str, str]()
    for k in range(body.begin, body.end):
        name = index.name(k)
        if index.opcode(k) == "parameter":
            number = _PARAMETER.fullmatch(index.operands_text(k))
            if number is None or int(number[1]) >= len(operands):
                return None
            names[name] = index.name(operands[int(number[1])])
        elif k == body.root:
            names[name] = index.name(i)
        else:
            names[name] = taken.fresh(name)
    lines: list[str] = []
    for k in range(body.begin, body.end):
        if index.opcode(k) == "parameter":
            if k == body.root:
                return None
            continue
        line = _renamed(index, k, names)
        root = "ROOT " if k == body.root and index.is_root(i) else ""
        lines.append(root + line)
    indent = _indent(reading.text, index.span(i)[0])
    edits = [types.TextEdit(reading.range(*index.span(i)), f"\n{indent}".join(lines))]
    if goes:
        start, end = body.span
        behind = reading.text[end : end + 2]
        edits.append(types.TextEdit(reading.range(start, end + len(behind) - len(behind.lstrip("\n"))), ""))
    return types.CodeAction(
        f"Inline %{body.name} into its place",
        kind=types.CodeActionKind.RefactorInline,
        edit=types.WorkspaceEdit(changes={reading.uri: edits}),
    )


def outline(reading: Reading, start: int, end: int) -> types.CodeAction | None:
    """Put the instructions of a selection into a computation of their own, called in their place; None where the
    selection is no run of instructions with one result."""
    index = reading.index
    starts, ends = index.columns.starts, index.columns.ends
    first, last = int(ends.searchsorted(start, "right")), int(starts.searchsorted(end, "left"))
    if last - first < 2 or last - first > MOST:
        return None
    home = index.computation_of(first)
    one = index.computation(home)
    if index.computation_of(last - 1) != home or any(
        index.opcode(k) == "parameter"
        or -1 in index.operands(k)
        or CONTROL in index.attributes_text(k)  # an order cannot be kept by a name that is now elsewhere
        or k in index.control_predecessors
        for k in range(first, last)
    ):
        return None
    outside = [k for k in range(first, last) if k == one.root or any(not first <= u < last for u in index.users(k))]
    if len(outside) != 1 or outside[0] != last - 1:
        return None
    given = list(dict.fromkeys(op for k in range(first, last) for op in index.operands(k) if not first <= op < last))
    numbers = itertools.count()
    name = next(new for n in numbers if index.find_computation(new := _numbered("outlined", n)) is None)
    taken = _Taken(index)
    names = dict[str, str]()
    for number, op in enumerate(given):
        names[index.name(op)] = taken.fresh(f"p{number}")
    result = last - 1
    # The call has the result's name, for those behind the selection.
    names[index.name(result)] = taken.fresh(index.name(result))
    signature = ", ".join(f"{names[index.name(op)]}: {index.shape_text(op)}" for op in given)
    lines = [f"%{name} ({signature}) -> {index.shape_text(result)} {{"]
    for number, op in enumerate(given):
        lines.append(f"  %{names[index.name(op)]} = {index.shape_text(op)} parameter({number})")
    for k in range(first, last):
        lines.append(f"  {'ROOT ' if k == result else ''}{_renamed(index, k, names)}")
    lines += ["}", "", ""]
    operands = ", ".join(f"%{index.name(op)}" for op in given)
    root = "ROOT " if index.is_root(result) else ""
    call = f"{root}%{index.name(result)} = {index.shape_text(result)} call({operands}), to_apply=%{name}"
    before = types.TextEdit(reading.range(one.span[0], one.span[0]), "\n".join(lines))
    there = types.TextEdit(reading.range(index.span(first)[0], index.span(result)[1]), call)
    return types.CodeAction(
        f"Outline {last - first} instructions into %{name}",
        kind=types.CodeActionKind.RefactorExtract,
        edit=types.WorkspaceEdit(changes={reading.uri: [before, there]}),
    )


class _Taken:
    """The names of a module's instructions, but those that go, and the ones given out here."""

    def __init__(self, index: ModuleIndex, going: range = range(0)) -> None:
        self._index = index
        self._going = going
        self._given = set[str]()

    def fresh(self, name: str) -> str:
        """A name that nothing has: this one, or it with a number behind."""
        found = next(new for n in itertools.count() if not self._has(new := _numbered(name, n)))
        self._given.add(found)
        return found

    def _has(self, name: str) -> bool:
        return name in self._given or any(k not in self._going for k in self._index.find_all(name))


def _numbered(name: str, number: int) -> str:
    return f"{name}.{number}" if number else name


def _renamed(index: ModuleIndex, k: int, names: dict[str, str]) -> str:
    """An instruction's text without ROOT, with its own name and those of the instructions that it names replaced."""
    start, end = index.span(k)
    out: list[str] = []
    at = index.name_span(k)[0]
    for span, name in sorted(_places(index, k)):
        new = names.get(name)
        if new is not None and span[0] >= at:
            out += [index.source[at : span[0]], new]
            at = span[1]
    text = "".join([*out, index.source[at:end]])
    percent = "%" if index.source[max(start, index.name_span(k)[0] - 1)] == "%" else ""
    return percent + text


def _places(index: ModuleIndex, k: int) -> Iterator[tuple[tuple[int, int], str]]:
    yield index.name_span(k), index.name(k)
    parts = index.parts(k)
    for reference in (
        *parts.operand_references(index.source),
        *parts.attribute_references(index.source, (CONTROL,)),
    ):
        yield reference.span, reference.name


def _indent(text: str, start: int) -> str:
    line = text[text.rfind("\n", 0, start) + 1 : start]
    return line[: len(line) - len(line.lstrip())]
