"""Outline, definitions, references and highlights of one text, for editors; offsets in, spans out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hloscope.core.hlo.attributes import CONTROL
from hloscope.core.views.data import Symbol, TextSpan

if TYPE_CHECKING:
    from hloscope.core.text.instruction_text import Span
    from hloscope.core.text.module_index import ModuleIndex, Target


PlaceKind = Literal["definition", "use", "signature"]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One place where a name stands."""

    span: TextSpan
    kind: PlaceKind
    """`signature` is a parameter's name in its computation's header."""


def text_span(index: ModuleIndex, start: int, end: int) -> TextSpan:
    """A range of offsets with the lines and columns of both ends."""
    line, column = index.position(start)
    end_line, end_column = index.position(end)
    return TextSpan(start, end, line, column, end_line, end_column)


def document_symbols(index: ModuleIndex) -> list[Symbol]:
    """The outline: the module, in it its computations, in each its instructions.

    Without a module header the computations stand alone.
    """
    out: list[Symbol] = []
    for c in index.computations:
        if c.end == c.begin and not c.name:
            continue
        children = tuple(_instruction(index, i) for i in range(c.begin, c.end))
        root = f" -> {index.shape_text(c.root)}" if c.root >= 0 else ""
        detail = ("ENTRY " if c.is_entry else "") + f"{len(c)} instructions{root}"
        name = c.name or "(no name)"
        out.append(Symbol(name, "computation", detail, _span(index, c.span), _span(index, c.name_span), children))
    if not index.module_name:
        return out
    start, end = index.columns.header
    whole = text_span(index, start, max([end, *(c.span[1] for c in index.computations)]))
    detail = f"{index.computation_count} computations, {index.instruction_count} instructions"
    return [Symbol(index.module_name, "module", detail, whole, _span(index, index.columns.module_name), tuple(out))]


def _instruction(index: ModuleIndex, i: int) -> Symbol:
    detail = f"{index.opcode(i)} {index.shape_text(i)}".strip()
    return Symbol(index.name(i), "instruction", detail, _span(index, index.span(i)), _span(index, index.name_span(i)))


def _span(index: ModuleIndex, span: Span) -> TextSpan:
    return text_span(index, *span)


def definition(index: ModuleIndex, offset: int) -> TextSpan | None:
    """Where the name under the cursor is defined; None where no name is, or nothing defines it."""
    target = index.at_offset(offset)
    if target.refers_to < 0:
        return None
    if target.kind in ("computation", "computation-reference"):
        return _span(index, index.computation(target.refers_to).name_span)
    if target.kind in ("instruction", "operand", "control", "parameter"):
        return _span(index, index.name_span(target.refers_to))
    return None


def references(index: ModuleIndex, offset: int, *, include_definition: bool = True) -> list[Occurrence]:
    """Every place of the name under the cursor, in text order.

    An undefined name is looked up in its own computation, so that it can be renamed too.
    """
    target = index.at_offset(offset)
    if target.kind in ("computation", "computation-reference"):
        found = _computation_places(index, target)
    elif target.kind in ("instruction", "operand", "control", "parameter"):
        found = _instruction_places(index, target)
    else:
        return []
    places: dict[Span, PlaceKind] = {span: kind for kind, span in found if include_definition or kind != "definition"}
    return [Occurrence(_span(index, span), kind) for span, kind in sorted(places.items())]


highlights = references
"""Places to mark in the text: the same as the references."""

_Place = tuple[PlaceKind, "Span"]


def _computation_places(index: ModuleIndex, target: Target) -> list[_Place]:
    out: list[_Place] = []
    if target.refers_to >= 0:
        out.append(("definition", index.computation(target.refers_to).name_span))
        callers = index.callers(target.refers_to)
    else:
        callers = [i for i in index.callers(-1)]
    for i in callers:
        for r in index.parts(i).attribute_references(index.source):
            if r.name == target.name and r.attribute != CONTROL:
                out.append(("use", r.span))
    return out


def _instruction_places(index: ModuleIndex, target: Target) -> list[_Place]:
    out: list[_Place] = []
    c = index.computation(target.computation)
    name = target.name
    if target.refers_to >= 0:
        out.append(("definition", index.name_span(target.refers_to)))
        users = set(index.users(target.refers_to))
    else:
        users = {i for i in range(c.begin, c.end) if -1 in index.operands(i)}
    # control-predecessors are in no column: one search of the body tells whether any line has them
    if index.source.find(CONTROL, *c.span) >= 0:
        users.update(i for i in range(c.begin, c.end) if CONTROL in index.attributes_text(i))
    for i in sorted(users):
        for r in index.references(i):
            if r.name == name and r.attribute in (None, CONTROL):
                out.append(("use", r.span))
    for word, span in index.signature_names(c.number):
        if word == name:
            out.append(("signature", span))
    return out
