"""Writes an instruction's attributes the way XLA does: in its order, each value in its one form, defaults left out.

A value that cannot be read as what its name says stays as it stands, and so do names that nobody knows, behind the
opcode's own attributes. Source: ``openxla/xla:xla/hlo/ir/hlo_instruction.cc#PrintExtraAttributes``,
``hlo_instructions.cc`` (PrintExtraAttributesImpl).
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.attributes import CONTROL
from hloscope.core.hlo.literal import ELIDED, format_scalar
from hloscope.core.text.async_sugar import expandable, wrapped_computation
from hloscope.core.text.opcode_syntax import OpcodeSyntax, syntax_of
from hloscope.core.text.sharding_forms import for_tuple
from hloscope.core.text.value_forms import FORMS, canonical_value, is_usual_value

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction

_UNKNOWN_RANK = 500
_MEMO_TEXT = 400
"""Longest value that is remembered together with its form."""
_MEMO_SIZE = 50_000
"""Values that are remembered at most."""
_REFORMATTED = 4096
"""Longest literal that is read and written again; longer ones come from printers, not from hands."""
_ELIDED_ABOVE = 10
"""Arrays of more elements are elided where large constants are not wanted."""
_WIDE = frozenset({"s32", "s64", "f32", "f64"})
_SHORT = re.compile(r"0|-?[1-9]\d{0,4}")
"""Scalars that print as they are read, in the types that hold them."""
ASYNC = frozenset({"async-start", "async-update", "async-done"})
"""Opcodes that print as if they were what they run, where that is one instruction."""
_FIRST = ("true_computation", "false_computation")


class AttributeWriter:
    """Writes attributes of many instructions; remembers the forms of values that come again and again."""

    def __init__(self, *, percent: bool, exact: bool, ids: bool = True, own: bool = True) -> None:
        self._sign = "%" if percent else ""
        self._exact = exact
        self._ids = ids
        self._with_own = own
        """Whether a sugared instruction shows the attributes of the one that it runs."""
        self._known: dict[tuple[str, str], str] = {}
        self._pieces: dict[str, dict[tuple[str, str | None], tuple[int, str]]] = {}

    # ---------------------------------------------------------------- asynchronous instructions
    def wrapped(self, node: HloInstruction) -> HloComputation | None:
        """The computation that an asynchronous instruction prints as if it were its own, None where it names it."""
        if node.opcode not in ASYNC:
            return None
        computation = wrapped_computation(node)
        if computation is None or not computation.has_root:
            return None
        return computation if computation.synthetic or (self._exact and expandable(computation)) else None

    def opcode(self, node: HloInstruction) -> str:
        """The opcode as printed: ``dot-start`` for an async-start of a lone dot."""
        wrapped = self.wrapped(node)
        return node.opcode if wrapped is None else wrapped.root.opcode + node.opcode.removeprefix("async")

    # ---------------------------------------------------------------- attributes
    def attributes(self, node: HloInstruction) -> list[tuple[str, str]]:
        """Names and texts in printing order."""
        wrapped = self.wrapped(node) if node.opcode in ASYNC else None
        if wrapped is None:
            return self._own(node, node.raw_attrs)
        if node.opcode != "async-start":
            dropped = ("calls", "async_execution_thread")
            return self._own(node, {k: v for k, v in node.raw_attrs.items() if k not in dropped})
        outer = self._own(node, {k: v for k, v in node.raw_attrs.items() if k != "calls"})
        own = syntax_of(node.opcode).rank
        if not self._with_own:
            return outer
        inner = [
            item
            for item in self._own(wrapped.root, wrapped.root.raw_attrs)
            if syntax_of(wrapped.root.opcode).rank.get(item[0], _UNKNOWN_RANK) < 1000
            or item[0] == "result_accuracy"
            or (item[0] == "statistics" and self._exact)  # XLA prints it here and among its own
            or (item[0] == "frontend_attributes" and not any(key == "frontend_attributes" for key, _ in outer))
        ]
        first = [item for item in outer if item[0] == "async_execution_thread"]
        middle = [item for item in outer if own.get(item[0], _UNKNOWN_RANK) < 1000 and item not in first]
        return first + inner + middle + [item for item in outer if item not in first and item not in middle]

    def _own(self, node: HloInstruction, attrs: dict[str, str | None]) -> list[tuple[str, str]]:
        opcode = node.opcode
        syntax = syntax_of(opcode)
        added, derived = syntax.added, opcode in (_DERIVED_EXACT if self._exact else _DERIVED)
        if not attrs and not added and not derived:
            return []
        rank, omitted = syntax.rank, syntax.omitted
        forgotten = syntax.forgotten if self._exact else ()
        known = self._known
        out: list[tuple[str, str]] = []
        places: list[int] = []
        for name, text in attrs.items():
            if name in forgotten:
                continue
            if text is None:
                name, value = self._references(node, name)
            else:
                value = known.get((name, text))
                if value is None or name == "sharding":
                    value = self._form(node, name, text)
            if not value or (omitted and omitted.get(name) == value):
                continue
            if name == "backend_config" and self._exact and "wait_on_operation_queues" in value:
                value = _NO_WAITS.sub("", value)
            places.append(rank.get(name, _UNKNOWN_RANK))
            out.append((name, value))
        for name, value in added:
            if name not in attrs:
                places.append(rank[name])
                out.append((name, value))
        if derived:
            items = self._derived(node, [(place, *item) for place, item in zip(places, out, strict=True)])
            items.sort(key=lambda item: item[0])
            return [(name, value) for _, name, value in items]
        for before, place in pairwise(places):
            if before > place:
                order = sorted(range(len(out)), key=places.__getitem__)
                return [out[at] for at in order]
        return out

    def tail(self, node: HloInstruction, opcode: str, attrs: dict[str, str | None]) -> str:
        """The attributes of a node as they stand behind the operands; what prints is what `attributes` says.

        Made of pieces that are kept by opcode, name and text, since many instructions share them.
        """
        known = self._pieces.get(opcode)
        if known is None:
            if self._exact or syntax_of(opcode).added or opcode in _OTHERWISE:
                return "".join([f", {name}={value}" for name, value in self.attributes(node)])
            known = self._pieces[opcode] = {}
        if not attrs:
            return ""
        pieces: list[str] = []
        places: list[int] = []
        last, in_order = -1, True
        for item in attrs.items():
            found = known.get(item)
            if found is None:
                found = self._piece(node, syntax_of(opcode), item)
                if item in self._known and item[0] != "sharding":
                    known[item] = found
            place, piece = found
            if piece:
                in_order &= place >= last
                last = place
                places.append(place)
                pieces.append(piece)
        if not in_order:
            pieces = [pieces[at] for at in sorted(range(len(places)), key=places.__getitem__)]
        return "".join(pieces)

    def _piece(self, node: HloInstruction, syntax: OpcodeSyntax, item: tuple[str, str | None]) -> tuple[int, str]:
        """One attribute's place and text, an empty one where it is left out."""
        name, text = item
        if text is None:
            name, value = self._references(node, name)
        else:
            value = self._form(node, name, text)
        if not value or syntax.omitted.get(name) == value:
            return 0, ""
        return syntax.rank.get(name, _UNKNOWN_RANK), f", {name}={value}"

    def _references(self, node: HloInstruction, name: str) -> tuple[str, str]:
        """The name and text of an attribute that the graph holds."""
        sign = self._sign
        if name == CONTROL:
            before = node.control_predecessors
            return name, "{" + ", ".join([sign + self._name(p.name) for p in before]) + "}" if before else ""
        text = ", ".join([sign + self._name(c.name) for c in node.called.get(name, ())])
        if name in node.calls_as_list:
            text = "{" + text + "}"
        if name == "to_apply" and node.opcode == "custom-call":
            return "called_computations", "{" + text + "}"
        return name, text

    def _name(self, name: str) -> str:
        return name if self._ids else name.partition(".")[0]

    def _form(self, node: HloInstruction, name: str, text: str) -> str:
        key = (name, text)
        if is_usual_value(name, text) or name not in FORMS:
            self._remember(key, text)
            return text
        value = self._known.get(key)
        if value is None:
            try:
                value = canonical_value(name, text)
            except (HloscopeError, ValueError, IndexError, RecursionError):
                value = text
            if name == "operand_precision" and not value.strip("{}").replace("default", "").replace(",", ""):
                value = ""
            self._remember(key, value)
        if name == "sharding" and node.shape.is_tuple:
            return for_tuple(value, sum(1 for _ in node.shape.leaves()))
        return value

    def _remember(self, key: tuple[str, str], value: str) -> None:
        if len(key[1]) <= _MEMO_TEXT and len(self._known) < _MEMO_SIZE:
            self._known[key] = value

    def _derived(self, node: HloInstruction, items: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
        """Attributes that follow from operands and shapes."""
        if node.opcode == "compare" and node.operand_count:
            element = node.operand(0).shape.type
            default = {"int": "SIGNED", "float": "FLOAT", "complex": "FLOAT"}.get(element.kind, "UNSIGNED")
            return [item for item in items if item[1:] != ("type", default)]
        if node.opcode == "get-tuple-element" and "origin" not in node.raw_attrs:
            origin = _origin(node)
            return [*items, (syntax_of(node.opcode).rank["origin"], "origin", origin)] if origin else items
        if node.opcode == "outfeed" and node.operand_count and not any(item[1] == "outfeed_shape" for item in items):
            return [*items, (0, "outfeed_shape", str(node.operand(0).shape))]
        if node.opcode == "map" and node.operand_count:
            dims = "{" + ",".join(map(str, range(node.operand(0).shape.rank))) + "}"
            return [*(item for item in items if item[1] != "dimensions"), (0, "dimensions", dims)]
        return items


_DERIVED = frozenset({"compare", "outfeed", "map"})
_DERIVED_EXACT = _DERIVED | {"get-tuple-element"}
_OTHERWISE = _DERIVED | ASYNC
"""Opcodes whose attributes are not simply those that they have."""
_NO_WAITS = re.compile(r'"wait_on_operation_queues"\s*:\s*\[\s*\]\s*,')
"""What XLA takes out of a configuration. Source: ``openxla/xla:xla/hlo/ir/backend_config.cc``."""


def _origin(node: HloInstruction) -> str:
    """The origin of an element of a tuple that is made in the same computation: that of what went into it.

    Source: ``openxla/xla:xla/hlo/ir/hlo_instruction.cc#original_value``.
    """
    for _ in range(1000):
        own = node.raw_attrs.get("origin")
        if own is not None or node.opcode != "get-tuple-element" or not node.operand_count:
            return own or ""
        index, made = node.raw_attrs.get("index") or "", node.operand(0)
        if made.opcode != "tuple" or not index.isdigit() or int(index) >= made.operand_count:
            return ""
        node = made.operand(int(index))
    return ""


def constant_text(node: HloInstruction, *, large: bool, exact: bool = False) -> str:
    """What stands in the parentheses of a constant."""
    shape = node.shape
    if not large and shape.is_array and not shape.is_unbounded and shape.element_count > _ELIDED_ABOVE:
        return ELIDED
    if not large and shape.is_tuple:
        return ELIDED
    payload = node.payload
    if payload is None:
        return ""
    if large and ("-0." in payload or "f8e8m0fnu" == shape.element_type):
        return payload  # what XLA prints for these it does not read back as the same value
    if shape.is_array and "{" not in payload and shape.rank and shape.element_count > _ELIDED_ABOVE and not exact:
        return payload  # a lone value stands for a whole array
    if len(payload) > _REFORMATTED or (shape.element_type in _WIDE and shape.is_scalar and _SHORT.fullmatch(payload)):
        return payload
    try:
        literal = node.literal
    except (HloscopeError, ValueError):
        return payload
    if literal.is_elided:
        return payload if shape.is_tuple else ELIDED
    if shape.is_scalar and literal.values is not None:
        return format_scalar(literal.values[()], shape.type)
    return literal.to_text(large=large)


def few_constants_text(node: HloInstruction) -> str:
    """What a fingerprint has in the parentheses of a constant.

    Source: ``openxla/xla:xla/hlo/ir/hlo_instructions.cc`` (HloConstantInstruction).
    """
    try:
        literal = node.literal
    except (HloscopeError, ValueError):
        return ELIDED
    values = literal.values
    if values is None or not node.shape.is_array:
        return ELIDED
    import numpy as np

    with np.errstate(invalid="ignore"):  # small float types say so of a NaN
        value = next((value for value in (0, 1) if bool((values == value).all())), None)
    if value is not None:
        return str(value)
    whole = node.shape.type.kind in ("int", "uint") and values.size <= _FEW
    return " ".join(literal.to_text(large=True).split()) if whole else ELIDED


_FEW = 500_000
"""Integers of a constant that a fingerprint still has."""
