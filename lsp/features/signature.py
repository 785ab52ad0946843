"""Signature help: what an opcode takes, while its operands or attributes are typed."""

from __future__ import annotations

import re

from lsprotocol import types

from hloscope.core.hlo.attributes import ATTRIBUTES, CALLED
from hloscope.core.hlo.opcodes import OPCODES, Opcode
from hloscope.core.text.opcode_syntax import syntax_of
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature

_LINE_CHARACTERS = 100_000
_CALL = re.compile(r"=\s*(?:\(.*?\)|[a-z][a-z0-9]*\[[^\]]*\](?:\{[^}]*\})?)\s+(?P<opcode>[a-z][\w\-]*)\(", re.S)
_OPERAND_NAMES = {
    1: ("operand",),
    2: ("lhs", "rhs"),
    3: ("operand 0", "operand 1", "operand 2"),
}
_SPECIAL = {
    "select": ("predicate", "on true", "on false"),
    "clamp": ("min", "operand", "max"),
    "pad": ("operand", "padding value"),
    "gather": ("operand", "start indices"),
    "reduce": ("operands…", "initial values…"),
    "reduce-window": ("operands…", "initial values…"),
    "scatter": ("operands…", "scatter indices", "updates…"),
    "dynamic-slice": ("operand", "start indices…"),
    "dynamic-update-slice": ("operand", "update", "start indices…"),
    "convolution": ("input", "kernel"),
    "while": ("initial value",),
    "conditional": ("branch index or predicate", "branch operands…"),
    "select-and-scatter": ("operand", "source", "initial value"),
    "iota": (),
    "constant": ("literal",),
    "parameter": ("number",),
}


def signature_help(reading: Reading, params: types.SignatureHelpParams) -> types.SignatureHelp | None:
    """The opcode around the cursor with the operand, or the attribute, that is being typed marked."""
    offset = reading.offset(params.position)
    start = reading.text.rfind("\n", max(0, offset - _LINE_CHARACTERS), offset) + 1
    line = reading.text[start:offset]
    call = _CALL.search(line)
    if call is None or (known := OPCODES.get(call["opcode"])) is None:
        return None
    inside = line[call.end() :]
    depth, commas, closed_at = 1, 0, -1
    for at, letter in enumerate(inside):
        depth += (letter in "({[") - (letter in ")}]")
        commas += letter == "," and depth == 1
        if depth == 0:
            closed_at = at
            break
    operands = _operands(known)
    keys = [
        key
        for key in sorted(syntax_of(known.name).rank, key=lambda key: syntax_of(known.name).rank[key])
        if syntax_of(known.name).allows(key) and key not in syntax_of(known.name).forgotten
    ]
    active = commas
    if operands and operands[-1].endswith("…"):
        active = min(active, len(operands) - 1)
    if closed_at >= 0:
        # What stands within an attribute's braces (op_name=) is that attribute.
        written = [one for one in re.findall(r"([A-Za-z_][\w\-]*)=", inside[closed_at:]) if one in keys]
        active = len(operands) + keys.index(written[-1]) if written else len(operands)
    return types.SignatureHelp([_signature(known, operands, keys)], active_signature=0, active_parameter=active)


def _operands(known: Opcode) -> tuple[str, ...]:
    if known.name in _SPECIAL:
        return _SPECIAL[known.name]
    if known.arity is None:
        return ("operands…",)
    return _OPERAND_NAMES.get(known.arity, tuple(f"operand {n}" for n in range(known.arity)))


def _signature(known: Opcode, operands: tuple[str, ...], keys: list[str]) -> types.SignatureInformation:
    required = syntax_of(known.name).required
    parts = [*operands, *(f"{key}={'' if key in required else '?'}" for key in keys)]
    label, parameters = f"{known.name}(", list[types.ParameterInformation]()
    for number, part in enumerate(parts):
        if number == len(operands):
            label += ")"
        label += ", " if number else ""
        start = len(label.encode("utf-16-le")) // 2
        label += part
        end = len(label.encode("utf-16-le")) // 2
        meaning = None
        if number >= len(operands):
            key = keys[number - len(operands)]
            about = ATTRIBUTES.get(key)
            meaning = about.meaning if about is not None else "calls a computation" if key in CALLED else None
            meaning = f"required. {meaning or ''}".strip() if key in required else meaning
        parameters.append(types.ParameterInformation((start, end), documentation=meaning))
    if not keys:
        label += ")"
    return types.SignatureInformation(label, documentation=known.meaning, parameters=parameters)


FEATURE = Feature(
    types.TEXT_DOCUMENT_SIGNATURE_HELP,
    signature_help,
    options=types.SignatureHelpOptions(trigger_characters=["("], retrigger_characters=[",", "="]),
)
