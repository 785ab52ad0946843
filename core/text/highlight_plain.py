"""HLO text as coloured tokens by regular expressions: what `highlight` uses where the grammar cannot be had."""

from __future__ import annotations

import re

from hloscope.core.hlo.attributes import CALLED, CONTROL

Token = tuple[int, int, str]
"""Start and end as character offsets, and the class (see `highlight.CLASSES`)."""

_WORD = r"[A-Za-z_][A-Za-z0-9_.\-]*"
_STRING = r'"(?:[^"\\\r\n]|\\.)*"'
_TOKEN = re.compile(
    r"(?P<newline>\n)"
    r"|(?P<comment>/\*.*?\*/|//[^\r\n]*)"
    rf"|(?P<string>{_STRING}|'(?:[^'\\\r\n]|\\.)*')"
    r"|(?P<keyword>\b(?:ROOT|ENTRY|HloModule)(?=\s)|^(?:FileNames|FunctionNames|FileLocations|StackFrames)\b)"
    r"|(?P<shape>\b[a-z][a-z0-9]*\[[\d,<=? ]*\])(?P<layout>\{[\d:][^{}\n]*\})?"
    r"|(?P<labels>[0-9a-z?]+_[0-9a-z?]+->[0-9a-z?]+)"
    rf"|(?P<key>{_WORD})(?=\s*[=:])"
    rf"|(?P<call>{_WORD})\("
    r"|(?P<percent>%[A-Za-z0-9_.\-]+)"
    rf"|(?P<word>{_WORD})"
    r"|(?P<number>-?\d+_-?\d+(?:_-?\d+)?(?:x-?\d+_-?\d+(?:_-?\d+)?)*|\d+(?:x\d+)+"
    r"|-?nan\(0x[0-9a-fA-F]+\)|-inf|-nan|-?\d+(?:\.\d*)?(?:[eE][+\-]?\d+)?)"
    r"|(?P<elided>\.\.\.)"
    r"|(?P<open>[({\[])|(?P<close>[)}\]])",
    re.M | re.S,
)
_DEFINITION = re.compile(rf"[ \t]*(?:ROOT[ \t]+)?(?:(%{_WORD})[ \t]*=[ \t]*|({_WORD})[ \t]+=[ \t]+)(?:\(|{_WORD}[\[(])")
_HEADER = re.compile(rf"[ \t]*(?:ENTRY[ \t]+)?(%?{_WORD})[ \t]*(?:\([^\n]*)?\{{[ \t\r]*$", re.M)
_CONSTANT_WORDS = frozenset({"true", "false", "inf", "nan"})
_NAMING_KEYS = frozenset({*CALLED, CONTROL})


def plain_tokens(text: str, start: int, end: int) -> list[Token]:
    """The tokens of ``text[start:end]``, in order; the range should begin where a line does."""
    out: list[Token] = []
    # What each open bracket holds: "names" (operands, parameters, called computations), "shapes", "literal" or "group".
    inside: list[str] = []
    defined, in_header = _line_head(text, start, end, inside)
    key = ""
    names_module = False
    for found in _TOKEN.finditer(text, start, end):
        kind = found.lastgroup or ""
        at = found.start()
        context = inside[-1] if inside else ""
        before, key = key, ""
        match kind:
            case "newline":
                key = before
                head, in_header = _line_head(text, found.end(), end, inside)
                defined = head if head >= 0 else defined
            case "shape" | "layout":
                out.append((*found.span("shape"), "shape"))
                if found["layout"]:
                    out.append((*found.span("layout"), "layout"))
            case "key" | "percent" | "word":
                word = found[kind]
                if at == defined:
                    out.append((*found.span(kind), "define"))
                elif kind == "key" and context != "names":
                    out.append((*found.span(kind), "key"))
                    key = word
                elif kind == "percent" or context == "names" or before in _NAMING_KEYS or names_module:
                    out.append((*found.span(kind), "name"))
                elif word in _CONSTANT_WORDS:
                    out.append((*found.span(kind), "number"))
                names_module = False
            case "call":
                if at == defined:
                    out.append((*found.span("call"), "define"))
                elif context != "group":
                    out.append((*found.span("call"), "opcode"))
                literal = found["call"] in ("constant", "parameter")
                inside.append("group" if context == "group" else "literal" if literal else "names")
            case "labels":
                out.append((*found.span(), "number"))
            case "elided":
                out.append((*found.span(), "comment"))
            case "open":
                if before in _NAMING_KEYS or (in_header and found[0] == "(" and not inside):
                    inside.append("names")
                else:
                    inside.append("group" if before or context in ("group", "literal") else "shapes")
            case "close":
                if inside:
                    inside.pop()
            case _:
                out.append((*found.span(), kind))
                names_module = found[0] == "HloModule"
                if kind == "comment":
                    key = before
    return out


def _line_head(text: str, start: int, end: int, inside: list[str]) -> tuple[int, bool]:
    """Where the name is that the line at ``start`` defines (-1: none), and whether it is a computation's.

    Such a line begins outside all brackets, whatever was left open before.
    """
    found = _DEFINITION.match(text, start, end)
    header = None if found is not None else _HEADER.match(text, start, end)
    found = found or header
    if found is None:
        return -1, False
    inside.clear()
    return found.start(found.lastindex or 1), header is not None
