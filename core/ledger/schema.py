"""The shape of a ledger file: stored tables, the public views over them, and how an older file becomes a newer one.

Tables are the private half: compact, names replaced by numbers of the ``strings`` table, module texts in compressed
blocks. **The views are the public half**: plain names, stable columns, one view per question. They are stored in the
file, so any SQLite tool can ask them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hloscope.core.ledger.declare import MAX_FIELDS, Event
from hloscope.core.ledger.events import FusionDecision, RewriteDecision

APPLICATION_ID = 0x484C4F53
"""SQLite's ``application_id`` of a ledger: the letters HLOS."""


@dataclass(frozen=True, slots=True)
class Column:
    """One public column: name, meaning in one line, and the expression that computes it."""

    name: str
    meaning: str
    expression: str


@dataclass(frozen=True, slots=True)
class View:
    """One public view."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    source: str
    """The FROM clause and what follows it."""

    @property
    def statement(self) -> str:
        """The SQL that makes it, compact because every ledger carries it."""
        listed = ",".join(
            one.expression if one.expression.split(".")[-1] == one.name else f"{one.expression} {one.name}"
            for one in self.columns
        )
        return f"CREATE VIEW {self.name} AS SELECT {listed} {self.source}"


EVENT_COLUMNS = (
    "id", "outcome", "pass", "module", "subject", "computation", "fuel", *(f"v{at}" for at in range(MAX_FIELDS)),
)  # fmt: skip
"""Of a stored event: its number, what became of it, where, and its type's own fields by position."""
_WIDTH = len(EVENT_COLUMNS)

PACKED, ABSENT, OFFSET = "\x02", "\x01", 32
"""A column of a batch as characters: first the mark, then one for each event. A number is moved by the offset, so that
no character is a zero, which would end the text, and the missing number has one of its own."""
GAP_AT, GAP = 0xD800 - OFFSET, 0x800
"""Numbers from here on are moved once more, over the code points that are no characters."""

TABLES: tuple[str, ...] = (
    "CREATE TABLE strings(id INTEGER PRIMARY KEY,text TEXT NOT NULL)",
    "CREATE TABLE run_rows(id INTEGER PRIMARY KEY,kind TEXT,tool_version TEXT,xla_build TEXT,target TEXT,flags TEXT,"
    "source TEXT,created_us INT,complete INT)",
    "CREATE TABLE module_rows(id INTEGER PRIMARY KEY,run INT,name TEXT,xla_id INT,file_prefix TEXT,info TEXT)",
    "CREATE TABLE pass_rows(id INTEGER PRIMARY KEY,module INT,ordinal INT,xla_id INT,parent INT,pipeline INT,pass INT,"
    "next_pass INT,changed INT,start_us INT,ns INT,file TEXT,snapshot INT,before INT,after INT,fuel INT,"
    "unannounced TEXT)",
    "CREATE TABLE event_types(id INTEGER PRIMARY KEY,name TEXT,kind TEXT,sentence TEXT,fields TEXT)",
    "CREATE TABLE outcomes(id INTEGER PRIMARY KEY,type INT,verdict INT,code INT,origin INT,method INT,agrees INT)",
    "CREATE TABLE event_rows(id INTEGER PRIMARY KEY,outcome INT,pass INT,module INT,subject INT,computation INT,"
    f"fuel INT,{','.join(EVENT_COLUMNS[7:])})",
    "CREATE TABLE snapshot_rows(id INTEGER PRIMARY KEY,lines INT,size INT,chunks BLOB)",
    "CREATE TABLE line_blocks(first INTEGER PRIMARY KEY,count INT,data BLOB)",
    "CREATE TABLE chunk_blocks(first INTEGER PRIMARY KEY,count INT,data BLOB)",
    # Its text is `size` bytes of a block, from `start` on, and kind and file are names; an older ledger has the text
    # in `data`, and has kind and file themselves.
    "CREATE TABLE report_rows(id INTEGER PRIMARY KEY,module INT,kind,file,size INT,data BLOB,block INT,start INT)",
    "CREATE TABLE report_blocks(id INTEGER PRIMARY KEY,data BLOB)",
    f"CREATE TABLE event_batches(first INTEGER PRIMARY KEY,count INT,{','.join(f'c{at}' for at in range(_WIDTH))})",
)

INDEXES: Mapping[str, str] = MappingProxyType(
    {
        "event_rows": "CREATE INDEX IF NOT EXISTS event_by_pass ON event_rows(pass)",
        "pass_rows": "CREATE INDEX IF NOT EXISTS pass_by_module ON pass_rows(module)",
    }
)
"""By their tables. Made when a ledger is closed: keeping them up to date would double the price of an event."""
INDEXED_ROWS = 256
"""Smallest table that gets its index: a few pages are read as fast as searched, and a small dump has a small ledger."""

FILE_MARK = "\x01"
"""Stands in a stored file name for ``PIPELINE.after_PASS.before_NEXT.txt``, which the row says already."""


REPORT_MARK = "\x01"
"""Stands in the stored file name of a report for the prefix that the module's files share."""
_PREFIX = "coalesce((SELECT file_prefix FROM module_rows m WHERE m.id=r.module),'')"


def _text(number: str) -> str:
    return f"(SELECT text FROM strings WHERE id={number})"


def _own(event: type[Event], name: str) -> str:
    """Expression for an event's own field: the columns follow the order of the declaration."""
    position = [one.name for one in event.spec.fields].index(name)
    unit = event.spec.fields[position].unit
    if unit == "names":
        return f"(SELECT group_concat(s.text,' ') FROM json_each(v{position}) j JOIN strings s ON s.id=j.value)"
    return _text(f"v{position}") if unit == "name" else f"v{position}"


def _own_by_position() -> str:
    """Expression for the own field that ``f.key`` counts, whatever the type of the event."""
    return "CASE f.key " + " ".join(f"WHEN {at} THEN v{at}" for at in range(MAX_FIELDS)) + " END"


def _c(name: str, expression: str, meaning: str) -> Column:
    return Column(name, meaning, expression)


_WHERE = (
    _c("id", "id", "number of the event, in the order of recording"),
    _c("module", "module", "number of the module"),
    _c("stage", "stage", "row of the pass timeline that it belongs to"),
    _c("pass", "pass", "name of that pass"),
)
_SUBJECT = _c("subject", "subject", "instruction that it is about")
_COMPUTATION = _c("computation", "computation", "computation of that instruction")
_VERDICT = (
    _c("verdict", "verdict", "outcome in one word"),
    _c("code", "code", "key of the reason"),
)
_ORIGIN = (
    _c("fuel", "fuel", "fuel ordinal of the decision"),
    _c("origin", "origin", "`core`, `xla` or `inferred`"),
)

def _packed(column: str) -> str:
    """Expression for the value that a column of a batch has for the event whose character is number k."""
    one = f"unicode(substr({column},k,1))"
    number = f"nullif({one},1)-{OFFSET}-{GAP}*({one}>{GAP_AT + OFFSET})"
    # Numbers are less than any text.
    return f"CASE WHEN {column}>='['THEN {column}->>(k-2)WHEN {column}>''THEN {number} ELSE {column} END"


_EVENTS = tuple(_c(name, name, "") for name in EVENT_COLUMNS)
_ONLY_ROWS = View("every_event", "Events of a ledger without batches, in fewer words.", _EVENTS, "FROM event_rows")
_EVERY_EVENT = View(
    "every_event",
    "Events that are rows and events that are in batches; see `hloscope.core.ledger.batches`.",
    _EVENTS,
    f"FROM event_rows UNION ALL SELECT first+{_packed('c0')},{','.join(_packed(f'c{at}') for at in range(1, _WIDTH))}"
    # A JSON array of so many zeros, whose keys count the events.
    " FROM(SELECT b.*,key+2 k FROM event_batches b,"
    "json_each('['||substr(replace(hex(zeroblob((count+1)/2)),'0',',0'),2,count*2-1)||']'))",
)

_EVENT_BASE = View(
    "event_base",
    "What the views of events share: names instead of numbers, own fields still by position.",
    (
        _c("id", "e.id", ""),
        _c("row", "e.pass", ""),
        _c("module", "coalesce(e.module,p.module)", ""),
        _c("stage", "p.ordinal", ""),
        _c("pass", _text("p.pass"), ""),
        _c("type", "t.name", ""),
        _c("fields", "t.fields", ""),
        _c("subject", _text("e.subject"), ""),
        _c("computation", _text("e.computation"), ""),
        _c("verdict", _text("o.verdict"), ""),
        _c("code", _text("o.code"), ""),
        _c("fuel", "e.fuel", ""),
        _c("origin", _text("o.origin"), ""),
        _c("method", _text("o.method"), ""),
        _c("agrees", "o.agrees", ""),
        *(_c(f"v{at}", f"v{at}", "") for at in range(MAX_FIELDS)),
    ),
    "FROM every_event e JOIN outcomes o ON o.id=e.outcome JOIN event_types t ON t.id=o.type"
    " LEFT JOIN pass_rows p ON p.id=e.pass",
)
"""Stored once so that the public views stay short: every ledger carries their text."""
_INNER = (_EVERY_EVENT, _EVENT_BASE)

VIEWS: tuple[View, ...] = (
    View(
        "runs",
        "One row per compile or import that the file describes.",
        (
            _c("id", "id", "number of the run"),
            _c("kind", "kind", "`core` (our own compile), `dump` (imported) or `capture`"),
            _c("tool_version", "tool_version", "version of hloscope that wrote it"),
            _c("xla_build", "xla_build", "the compiler build described, empty where the dump does not say"),
            _c("target", "target", "`cpu`, `gpu`, `tpu` or a device name"),
            _c("flags", "flags", "compiler flags, as given"),
            _c("source", "source", "path of the dump or program"),
            _c("created_us", "created_us", "start of the run, microseconds since 1970"),
            _c("complete", "complete", "1 when the writer finished; 0 while it runs or after it was killed"),
        ),
        "FROM run_rows",
    ),
    View(
        "modules",
        "One row per module.",
        (
            _c("id", "m.id", "number of the module"),
            _c("run", "m.run", "number of the run"),
            _c("name", "m.name", "name of the HLO module"),
            _c("xla_id", "m.xla_id", "the compiler's own number for it"),
            _c("file_prefix", "m.file_prefix", "what its dump files start with"),
            _c("info", "m.info", "further facts, a JSON object"),
            _c("passes", "count(p.id)", "rows of its pass timeline"),
        ),
        "FROM module_rows m LEFT JOIN pass_rows p ON p.module=m.id GROUP BY m.id",
    ),
    View(
        "passes",
        "The pass timeline: one row per pass that ran, was skipped, or wrote a dump file.",
        (
            _c("id", "p.id", "number of the row, in the order in which passes started"),
            _c("module", "p.module", "number of the module"),
            _c("stage", "p.ordinal", "row in the timeline of the module, what `--stage` takes; empty while it runs"),
            _c("pipeline", _text("p.pipeline"), "pipeline that holds the pass"),
            _c("pass", _text("p.pass"), "pass"),
            _c("changed", "p.changed", "1, 0, or empty where nothing says whether it changed the module"),
            _c("instructions_before", "p.before", "instructions of the module before"),
            _c("instructions_after", "p.after", "instructions of the module after"),
            _c("start_us", "p.start_us", "start, microseconds since 1970"),
            _c("end_us", "p.start_us+p.ns/1000", "end, microseconds since 1970"),
            _c("ns", "p.ns", "run time in nanoseconds; empty where nothing says it"),
            _c(
                "own_ns",
                # A pipeline's passes run within its time; a pass may have the name of a pipeline elsewhere.
                "CASE WHEN p.pass NOT IN(SELECT pipeline FROM pass_rows WHERE pipeline>0)OR NOT EXISTS("
                "SELECT 1 FROM pass_rows q WHERE q.module=p.module AND q.pipeline=p.pass"
                " AND q.pipeline IS NOT p.pipeline AND q.ns>0 AND q.start_us>=p.start_us"
                " AND q.start_us+q.ns/1000<=p.start_us+p.ns/1000+1)THEN p.ns END",
                "the same, but empty for a nested pipeline whose passes have rows and times of their own: what to sum",
            ),
            _c("fuel_used", "p.fuel", "rewrites that it applied"),
            _c(
                "file",
                "coalesce(m.file_prefix,'')||replace(p.file,char(1),"
                f"{_text('p.pipeline')}||'.after_'||{_text('p.pass')}||'.before_'||coalesce({_text('p.next_pass')},'')||'.txt')",
                "dump file of the state after it, relative to the dump",
            ),
            _c("next_pass", _text("p.next_pass"), "pass that follows according to the file name"),
            _c("snapshot", "p.snapshot", "number of the module text after it (inherited if it wrote none)"),
            _c("unannounced", "p.unannounced", "`A … B`: range of passes that hides an undeclared change"),
            _c("xla_pass_id", "p.xla_id", "the compiler's own number of the pass"),
            _c("parent", "p.parent", "row of the pipeline that ran it, where recorded"),
        ),
        "FROM pass_rows p LEFT JOIN module_rows m ON m.id=p.module",
    ),
    View(
        "stages",
        "The distinct states of each module: timeline rows whose text differs from the row before.",
        (
            _c("module", "module", "number of the module"),
            _c("stage", "stage", "row of the timeline"),
            _c("pipeline", "pipeline", "pipeline"),
            _c("pass", "pass", "pass that made it"),
            _c("snapshot", "snapshot", "number of the module text"),
            _c("lines", "lines", "lines of the text"),
            _c("size", "size", "bytes of the text"),
        ),
        "FROM(SELECT p.*,s.lines,s.size,lag(p.snapshot) OVER(PARTITION BY p.module ORDER BY p.stage) prior"
        " FROM passes p JOIN snapshot_rows s ON s.id=p.snapshot WHERE p.stage IS NOT NULL)WHERE prior IS NOT snapshot",
    ),
    View(
        "events",
        "Every event, of whatever type.",
        (
            *_WHERE,
            _c("type", "type", "type of the event"),
            _SUBJECT,
            _COMPUTATION,
            *_VERDICT,
            *_ORIGIN,
            _c("method", "method", "`recorded`, `replayed` or `counterfactual`"),
            _c("agrees", "agrees", "1 or 0 where the real compiler's dump confirms or contradicts it"),
            _c(
                "data",
                "(SELECT json_group_object(k,CASE u WHEN 'name' THEN (SELECT text FROM strings WHERE id=x) WHEN 'names'"
                " THEN json((SELECT json_group_array(s.text) FROM json_each(x) j JOIN strings s ON s.id=j.value))"
                f" ELSE x END) FROM(SELECT f.value->>0 k,f.value->>1 u,{_own_by_position()} x"
                " FROM json_each(fields) f))",
                "the event's own fields, a JSON object",
            ),
        ),
        "FROM event_base",
    ),
    View(
        "rewrites",
        "Every optional rewrite that a pass came to, applied or refused.",
        (
            *_WHERE,
            _c("rule", _own(RewriteDecision, "rule"), "rewrite rule"),
            _SUBJECT,
            _COMPUTATION,
            *_VERDICT,
            *_ORIGIN,
            _c("produced", _own(RewriteDecision, "produced"), "instructions made, space separated"),
        ),
        "FROM event_base WHERE type='rewrite_decision'",
    ),
    View(
        "refusals",
        "Every decision that said no, with its reason.",
        (*_WHERE, _c("type", "type", "type of the event"), _SUBJECT, *_VERDICT),
        "FROM event_base WHERE verdict IN('refused','ineligible')",
    ),
    View(
        "fuel",
        "Fuel by pass row: how many gated decisions, applied and refused, and the range of ordinals.",
        (
            *_WHERE[1:],
            _c("decisions", "count(*)", "decisions with a fuel ordinal"),
            _c("applied", "sum(verdict IN('applied','fused'))", "how many were applied"),
            _c("exhausted", "sum(code IS 'fuel_exhausted')", "how many were refused for want of fuel"),
            _c("first", "min(fuel)", "first ordinal"),
            _c("last", "max(fuel)", "last ordinal"),
        ),
        "FROM event_base WHERE fuel IS NOT NULL GROUP BY row",
    ),
    View(
        "fusion_decisions",
        "Every decision of a fusion pass about a producer and its consumers.",
        (
            *_WHERE,
            _c("step", _own(FusionDecision, "step"), "position among the decisions of the pass"),
            _c("producer", "subject", "instruction that would be fused away"),
            _c("consumers", _own(FusionDecision, "consumers"), "its readers, space separated"),
            *_VERDICT,
            _c("reason", _own(FusionDecision, "reason"), "the compiler's own words"),
            _c("us_fused", _own(FusionDecision, "us_fused"), "estimated microseconds when fused"),
            _c("us_unfused", _own(FusionDecision, "us_unfused"), "estimated microseconds when kept apart"),
            _c("bytes", _own(FusionDecision, "bytes"), "memory traffic saved, bytes"),
            *_ORIGIN,
        ),
        "FROM event_base WHERE type='fusion_decision'",
    ),
    View(
        "reports",
        "The compiler's own reports on a module, kept as text: buffers, live ranges, the device.",
        (
            _c("id", "id", "number of the report"),
            _c("module", "module", "number of the module"),
            _c("kind", f"coalesce({_text('r.kind')},kind)", "what it holds, such as `buffer_assignment`"),
            _c("file", f"replace(coalesce({_text('r.file')},file),char(1),{_PREFIX})", "file, relative to the dump"),
            _c("size", "size", "bytes of the text"),
        ),
        "FROM report_rows r",
    ),
    View(
        "notes",
        "What could not be read or understood in the dump.",
        (
            _c("id", "id", "number of the event"),
            _c("module", "module", "number of the module, empty for the dump as a whole"),
            _c("code", "code", "key of the reason"),
            _c("file", "data->>'file'", "file, relative to the dump"),
            _c("line", "data->>'line'", "1-based line where known"),
            _c("message", "data->>'message'", "what is the matter"),
        ),
        "FROM events WHERE type IN('dump_note','parse_finding')",
    ),
)

Migration = Callable[[sqlite3.Connection], None]
"""Turns a file of one schema version into the next one; runs inside a transaction."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A version of the file format and the steps that lead to it."""

    version: int
    tables: tuple[str, ...]
    views: tuple[View, ...]
    migrations: Mapping[int, Migration] = field(default_factory=lambda: MappingProxyType({}))
    """``migrations[n]`` makes version n + 1 of the tables out of version n; views are made anew afterwards."""

    def create(self, connection: sqlite3.Connection) -> None:
        """Make an empty ledger in an empty database."""
        for statement in self.tables:
            connection.execute(statement)
        self._write_views(connection)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={self.version}")

    def _write_views(self, connection: sqlite3.Connection) -> None:
        """Put the views into a new file. Written as rows: SQLite parses them anyway when the file is opened."""
        views = [(view.name, view.name, view.statement) for view in (*_INNER, *self.views)]
        connection.execute("PRAGMA writable_schema=1")
        try:
            connection.executemany("INSERT INTO sqlite_master VALUES('view',?,?,0,?)", views)
        except sqlite3.OperationalError:  # a build that refuses it
            for *_, statement in views:
                connection.execute(statement)
        finally:
            connection.execute("PRAGMA writable_schema=0")

    def make_views(self, connection: sqlite3.Connection) -> None:
        """Make the public views, replacing older ones."""
        for view in (*_INNER, *self.views):
            connection.execute(f'DROP VIEW IF EXISTS "{view.name}"')
            connection.execute(view.statement)

    def without_batches(self, connection: sqlite3.Connection) -> None:
        """Take the batches, which are rows by now, out of the file."""
        connection.execute("DROP TABLE event_batches")
        connection.execute("DROP VIEW every_event")
        connection.execute(_ONLY_ROWS.statement)

    def shadow_views(self, connection: sqlite3.Connection) -> None:
        """Let a file whose views are older than its format answer through today's, without changing the file."""
        stored = dict(connection.execute("SELECT name,sql FROM sqlite_master WHERE type='view'"))
        for view in (*_INNER, *self.views):
            if stored.get(view.name) not in (view.statement, _ONLY_ROWS.statement):
                connection.execute(view.statement.replace("CREATE VIEW", "CREATE TEMP VIEW", 1))

    def views_over_unpacked(self, connection: sqlite3.Connection) -> None:
        """Let the views read a temporary ``every_event``: those in the file see only what is in the file."""
        for view in (_EVENT_BASE, *self.views):
            connection.execute(view.statement.replace("CREATE VIEW", "CREATE TEMP VIEW IF NOT EXISTS", 1))

    def migrate(self, connection: sqlite3.Connection, version: int) -> None:
        """Bring a file of an older version up to this one, in one transaction."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            for step in range(version, self.version):
                self.migrations[step](connection)
            self.make_views(connection)
            connection.execute(f"PRAGMA user_version={self.version}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _made(name: str) -> str:
    (statement,) = (one for one in TABLES if one.startswith(f"CREATE TABLE {name}("))
    return statement


def _to_2(connection: sqlite3.Connection) -> None:
    columns = "id INTEGER PRIMARY KEY,module INT,kind TEXT,file TEXT,size INT,data BLOB"
    connection.execute(f"CREATE TABLE IF NOT EXISTS report_rows({columns})")


def _to_3(connection: sqlite3.Connection) -> None:
    connection.execute(_made("event_batches"))
    connection.execute(_made("report_blocks"))
    connection.execute("ALTER TABLE report_rows ADD COLUMN block INT")
    connection.execute("ALTER TABLE report_rows ADD COLUMN start INT")


SCHEMA = Schema(version=3, tables=TABLES, views=VIEWS, migrations=MappingProxyType({1: _to_2, 2: _to_3}))
"""The format that this version writes."""
