"""The registry of event types: complete, and every event survives the way through a file."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

import pytest

from hloscope.core.errors import InternalError
from hloscope.core.ledger import (
    EVENT_TYPES,
    DumpNote,
    EvaluationDifference,
    Event,
    FusionDecision,
    LedgerReader,
    LedgerWriter,
    RewriteDecision,
    UnknownEvent,
)
from hloscope.core.ledger.declare import ENVELOPE, UNITS, event_type, fact, placeholders


def example(cls: type[Event], *, full: bool) -> Event:
    """An event of a type with every field set, or only the required ones."""
    values: dict[str, object] = {}
    for one in cls.spec.fields:
        if one.required or full:
            by_unit: dict[str, object] = {"count": 7, "ordinal": 3, "us": 1.5, "ns": 40, "bytes": 4096, "flag": True}
            by_unit |= {"names": ("add.1", "mul.2"), "number": 0.25}
            values[one.name] = by_unit.get(one.unit, f"a {one.name} é")
    if full:
        values |= {"subject": "add.5", "computation": "main", "verdict": "refused", "code": "why", "fuel": 2}
        values |= {"origin": "xla", "method": "replayed", "agrees": False}
    return cls(**values)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("cls", EVENT_TYPES.values(), ids=str)
def test_every_event_says_what_it_means(cls: type[Event]) -> None:
    assert cls.spec.meaning.endswith(".")
    assert cls.spec.sentence
    for one in (*ENVELOPE, *cls.spec.fields):
        assert one.unit in UNITS
        assert one.meaning and "\n" not in one.meaning
    for event in (example(cls, full=True), example(cls, full=False)):
        sentence = event.sentence()
        assert "{" not in sentence and "[" not in sentence
    for name in placeholders(cls.spec.sentence):
        value = (event_values := example(cls, full=True).numbers).get(name, getattr(example(cls, full=True), name))
        assert name in event_values or name in {one.name for one in ENVELOPE}
        assert value is not None


@pytest.mark.parametrize("full", [True, False])
def test_every_event_comes_back_as_it_went_in(tmp_path: Path, full: bool) -> None:
    events = [example(cls, full=full) for cls in EVENT_TYPES.values()]
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        writer.begin_module("m")
        row = writer.begin_pass("algsimp")
        for event in events:
            writer.emit(event)
        writer.end_pass(row, changed=False)
    with LedgerReader(tmp_path / "run.ledger") as reader:
        stored = list(reader.events())
        assert [one.event for one in stored] == events
        assert {(one.row, one.stage, one.module) for one in stored} == {(row, 0, 1)}
        told = reader.sql("SELECT sentence(id) FROM events ORDER BY id").rows
        assert [row[0] for row in told] == [event.sentence() for event in events]


def test_sentences_leave_out_what_is_missing() -> None:
    applied = RewriteDecision(
        subject="add.5", verdict="applied", fuel=3, pass_name="algsimp", rule="add-zero", produced=("p.1",)
    )
    assert applied.sentence() == "add-zero applied on add.5, fuel 3, made p.1"
    priced = FusionDecision(step=1, subject="a", verdict="priority", consumers=("b", "c"), us_fused=1.5, us_unfused=2.0)
    assert priced.sentence() == "a priority into b, c, 1.5 us fused against 2 us apart"
    assert DumpNote(file="x.txt", message="cut off", size=12).sentence() == "x.txt: cut off (12 bytes)"


def test_infinite_and_undefined_numbers_survive(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        writer.emit(EvaluationDifference(output=0, max_abs=math.inf, max_ulp=math.nan))
    with LedgerReader(tmp_path / "run.ledger") as reader:
        (stored,) = reader.events()
    assert isinstance(stored.event, EvaluationDifference)
    assert stored.event.max_abs == math.inf
    assert stored.event.max_ulp is not None and math.isnan(stored.event.max_ulp)


def test_names_that_are_not_utf8_do_not_stop_the_run(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        writer.begin_module("m", info={"path": "bad\udcff"})
        writer.emit(DumpNote(file="bad\udcff.txt", message="odd \udcfe"))
    with LedgerReader(tmp_path / "run.ledger") as reader:
        (stored,) = reader.events()
    assert stored.event.sentence() == "bad?.txt: odd ?"


@event_type("from_tomorrow", kind="finding", sentence="{where} became {shape}[ because {code}][, {cost}]")
class FromTomorrow(Event):
    """An event that the reader's registry does not have."""

    where: str = fact("name", "place")
    shape: tuple[str, ...] = fact("names", "parts")
    cost: float | None = fact("us", "cost", default=None)


def test_an_unknown_event_type_is_shown_by_what_the_file_says(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        writer.emit(FromTomorrow(where="here", shape=("x", "y"), code="rain", subject="add.1", cost=2.5))
    with LedgerReader(tmp_path / "run.ledger") as reader:
        (stored,) = reader.events()
        data = reader.sql("SELECT type, subject, data ->> 'where', data -> 'shape' FROM events").rows
    assert isinstance(stored.event, UnknownEvent)
    assert stored.event.type_name == "from_tomorrow"
    assert stored.event.numbers == {"where": "here", "shape": ("x", "y"), "cost": 2.5}
    assert stored.event.sentence() == "here became x, y because rain, 2.5 us"
    assert data == [("from_tomorrow", "add.1", "here", '["x","y"]')]


def test_a_field_added_by_a_newer_version_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    with LedgerWriter(path) as writer:
        writer.emit(DumpNote(file="x.txt", message="cut off", size=12))
    raw = sqlite3.connect(path)
    raw.execute("UPDATE event_types SET fields=json_insert(fields,'$[#]',json_array('extra','count'))")
    raw.execute("UPDATE event_rows SET v3=99")
    raw.commit()
    raw.close()
    with LedgerReader(path) as reader:
        (stored,) = reader.events()
    assert stored.event == DumpNote(file="x.txt", message="cut off", size=12)


def test_a_wrong_declaration_is_refused() -> None:
    with pytest.raises(InternalError, match="no unit"):

        @event_type("nameless", kind="pass", sentence="x")
        class _Nameless(Event):  # pyright: ignore[reportUnusedClass]
            """No unit."""

            plain: int = 3

    with pytest.raises(InternalError, match="unknown fields: nothing"):

        @event_type("mistyped", kind="pass", sentence="{nothing}")
        class _Mistyped(Event):  # pyright: ignore[reportUnusedClass]
            """Names a field that is not there."""
