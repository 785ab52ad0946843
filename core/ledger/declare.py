"""How an event type is declared: its fields with unit and meaning, and the sentence that is derived from them.

One event type is one dataclass whose values nobody changes. What every event shares (the instruction it is about, the
verdict, the reason code, the fuel, where it comes from) is the *envelope*, kept apart from the numbers of the event
itself, so that a reader can filter events it has never heard of.

A sentence is a template over envelope and fields: ``{name}`` is replaced by the value in its unit, and a part in
``[…]`` is left out when a value named in it is missing or empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

from hloscope.core.errors import InternalError

Origin = Literal["core", "xla", "inferred"]
"""Who knows it: our own passes, the real compiler, or a comparison of snapshots."""
Method = Literal["recorded", "replayed", "counterfactual"]
"""How it is known: noted when it happened, found by running a decider again, or by running it on changed input."""
Kind = Literal["decision", "pass", "finding", "search"]
"""What sort of event: a choice about the program, a fact about a pass, something to look at, a step of a search."""
Unit = Literal["name", "names", "text", "count", "ordinal", "us", "ns", "bytes", "hash", "flag", "number"]
Value = int | float | str | bool | tuple[str, ...] | None

MAX_FIELDS = 8
"""Own fields that an event type may have: the ledger keeps them in as many columns."""

UNITS: Mapping[Unit, str] = {
    "name": "a name from a small vocabulary or of an instruction; stored once per ledger",
    "names": "several names, in order",
    "text": "free text",
    "count": "how many",
    "ordinal": "0-based position",
    "us": "microseconds",
    "ns": "nanoseconds",
    "bytes": "bytes",
    "hash": "hexadecimal digest",
    "flag": "yes or no",
    "number": "a number without unit",
}


def fact(unit: Unit, meaning: str, *, default: Any = MISSING) -> Any:
    """Declare one field of an event: its unit, its meaning in one line and, where it may be missing, a default."""
    metadata = {"unit": unit, "meaning": meaning}
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One declared field."""

    name: str
    unit: Unit
    meaning: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class EventSpec:
    """The declaration of one event type, as the registry and the documentation show it."""

    name: str
    kind: Kind
    meaning: str
    sentence: str
    fields: tuple[FieldSpec, ...]


_C = TypeVar("_C")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(fact,))
def _value(cls: type[_C]) -> type[_C]:
    """A dataclass that type checkers take for frozen; one that is so at run time takes three times as long to make."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)


@_value
class Event:
    """The envelope that every event shares."""

    spec: ClassVar[EventSpec]

    subject: str | None = fact("name", "name of the instruction that it is about", default=None)
    computation: str | None = fact("name", "name of the computation that holds the subject", default=None)
    verdict: str | None = fact("name", "outcome in one word, such as `applied` or `refused`", default=None)
    code: str | None = fact("name", "stable key of the reason, such as `fuel_exhausted`", default=None)
    fuel: int | None = fact("ordinal", "position among the decisions that this pass spends fuel on", default=None)
    origin: Origin = fact("name", "`core`, `xla` or `inferred`: who knows it", default="core")
    method: Method = fact("name", "`recorded`, `replayed` or `counterfactual`: how it is known", default="recorded")
    agrees: bool | None = fact("flag", "whether the real compiler's dump confirms it; empty when untold", default=None)

    @property
    def type_name(self) -> str:
        """Name of the event type in the registry and in the ledger."""
        return self.spec.name

    @property
    def numbers(self) -> dict[str, Value]:
        """The event's own fields by name, without the envelope."""
        return {one.name: getattr(self, one.name) for one in self.spec.fields}

    def sentence(self) -> str:
        """The event in words."""
        return render(self.spec.sentence, self.spec.fields, envelope_of(self) | self.numbers)


@_value
class UnknownEvent(Event):
    """An event of a type that this version does not know; the ledger itself says how to read it."""

    stored: EventSpec
    values: tuple[Value, ...]

    @property
    def type_name(self) -> str:
        return self.stored.name

    @property
    def numbers(self) -> dict[str, Value]:
        return {one.name: value for one, value in zip(self.stored.fields, self.values, strict=False)}

    def sentence(self) -> str:
        return render(self.stored.sentence, self.stored.fields, envelope_of(self) | self.numbers)


def _field_specs(cls: type[Event], skip: frozenset[str]) -> tuple[FieldSpec, ...]:
    found: list[FieldSpec] = []
    for one in fields(cls):
        if one.name in skip:
            continue
        if "unit" not in one.metadata:
            raise InternalError(f"field {one.name} of {cls.__name__} has no unit: declare it with fact(…)")
        required = one.default is MISSING and one.default_factory is MISSING
        found.append(FieldSpec(one.name, one.metadata["unit"], one.metadata["meaning"], required))
    return tuple(found)


ENVELOPE: tuple[FieldSpec, ...] = _field_specs(Event, frozenset())
_ENVELOPE_NAMES = frozenset(one.name for one in ENVELOPE)


def envelope_of(event: Event) -> dict[str, Value]:
    """The shared fields of an event by name."""
    return {one.name: getattr(event, one.name) for one in ENVELOPE}


_E = TypeVar("_E", bound=Event)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(fact,))
def event_type(name: str, *, kind: Kind, sentence: str) -> Callable[[type[_E]], type[_E]]:
    """Make a class an event type; the first line of its docstring becomes the meaning.

    Raises InternalError when a field lacks a unit or the sentence names a field that does not exist.
    """

    def declare(cls: type[_E]) -> type[_E]:
        made = _value(cls)
        specs = _field_specs(made, _ENVELOPE_NAMES)
        meaning = (cls.__doc__ or "").strip().split("\n")[0]
        if len(specs) > MAX_FIELDS:
            raise InternalError(f"event {name} has more than {MAX_FIELDS} fields of its own")
        unknown = placeholders(sentence) - {one.name for one in specs} - _ENVELOPE_NAMES
        if unknown:
            raise InternalError(f"sentence of event {name} names unknown fields: {', '.join(sorted(unknown))}")
        made.spec = EventSpec(name, kind, meaning, sentence, specs)
        return made

    return declare


_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_HOLE = re.compile(r"\{(\w+)\}")


def placeholders(sentence: str) -> set[str]:
    """Names of the fields that a sentence template mentions."""
    return set(_HOLE.findall(sentence))


def show(value: Value, unit: str) -> str:
    """One value in words, with its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, float):
        value = f"{value:g}"
    return f"{value} {unit}" if unit in ("us", "ns", "bytes") else str(value)


def render(sentence: str, specs: tuple[FieldSpec, ...], values: Mapping[str, Value]) -> str:
    """Fill a sentence template; a part in brackets disappears when one of its values is missing or empty."""
    units = {one.name: one.unit for one in specs}

    def fill(match: re.Match[str]) -> str:
        value = values.get(match[1])
        return "?" if value is None else show(value, units.get(match[1], "name"))

    out: list[str] = []
    for optional, plain in _PART.findall(sentence):
        if optional and any(values.get(name) in (None, "", ()) for name in placeholders(optional)):
            continue
        out.append(_HOLE.sub(fill, optional or plain))
    return "".join(out)
