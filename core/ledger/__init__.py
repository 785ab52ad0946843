"""The ledger: typed events, pass rows and module texts of a compile in one SQLite file.

Writing: a pass records through a ``Recorder`` (``NullLedger`` or ``LedgerWriter``). Reading: ``LedgerReader`` for typed
rows and texts, ``sql`` for queries over the public views. docs/ledger.md lists views and events.
"""

from hloscope.core.ledger.declare import Event, Method, Origin, UnknownEvent
from hloscope.core.ledger.events import (
    EVENT_TYPES,
    BisectProbe,
    DumpNote,
    EvaluationDifference,
    FixpointEnded,
    FuelExhausted,
    FusionDecision,
    InvariantFailed,
    ParseFinding,
    PassFailed,
    PassSkipped,
    RewriteDecision,
    SilentChange,
    UnannouncedChange,
)
from hloscope.core.ledger.queries import (
    LedgerReader,
    ModuleRow,
    PassEntry,
    RunRow,
    SqlResult,
    StoredEvent,
    read_events,
    sql,
)
from hloscope.core.ledger.record import Ledger, LedgerWriter, NullLedger, PassRecord, Recorder, RunInfo
from hloscope.core.ledger.schema import SCHEMA, VIEWS
from hloscope.core.ledger.snapshots import SnapshotReader, SnapshotWriter
from hloscope.core.ledger.store import is_ledger, open_ledger, upgrade_ledger

__all__ = [
    "EVENT_TYPES",
    "SCHEMA",
    "VIEWS",
    "BisectProbe",
    "DumpNote",
    "EvaluationDifference",
    "Event",
    "FixpointEnded",
    "FuelExhausted",
    "FusionDecision",
    "InvariantFailed",
    "Ledger",
    "LedgerReader",
    "LedgerWriter",
    "Method",
    "ModuleRow",
    "NullLedger",
    "Origin",
    "ParseFinding",
    "PassEntry",
    "PassFailed",
    "PassRecord",
    "PassSkipped",
    "Recorder",
    "RewriteDecision",
    "RunInfo",
    "RunRow",
    "SilentChange",
    "SnapshotReader",
    "SnapshotWriter",
    "SqlResult",
    "StoredEvent",
    "UnannouncedChange",
    "UnknownEvent",
    "is_ledger",
    "open_ledger",
    "read_events",
    "sql",
    "upgrade_ledger",
]
