"""SQL: a query over the ledger, the schema beside it, queries that were kept, and export of what was found."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import Static, TextArea

from hloscope.core.ledger.schema import VIEWS
from hloscope.tui.content import Line, plain
from hloscope.tui.screens.base import RunScreen, Work
from hloscope.tui.show import columns
from hloscope.tui.widgets.line_pane import LinePane
from hloscope.tui.widgets.plain import Horizontal, Vertical

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from hloscope.core.ledger.queries import SqlResult
    from hloscope.core.views.run import Run

LIMIT = 5000
"""Rows that are fetched."""

QUERIES: tuple[tuple[str, str], ...] = (
    ("slowest passes", "select pipeline, pass, ns from passes where ns is not null order by ns desc limit 20"),
    (
        "passes that changed the count",
        "select stage, pipeline, pass, instructions_after - instructions_before as delta from passes\n"
        "where instructions_after <> instructions_before order by abs(delta) desc",
    ),
    ("events by type", "select type, verdict, count(*) as n from events group by type, verdict order by n desc"),
    (
        "fusion refusals by reason",
        "select code, reason, count(*) as n from fusion_decisions\nwhere verdict <> 'fused'"
        " group by code, reason order by n desc",
    ),
    ("rewrites by pass", "select pass, rule, count(*) as n from rewrites group by pass, rule order by n desc"),
    ("everything recorded", "select stage, type, subject, sentence(id) as said from events limit 500"),
)
"""Queries that are there from the start: name and text."""


class SqlScreen(RunScreen):
    """Query and answer on the left, schema and kept queries on the right."""

    NAME = "sql"
    PROMPTS = {
        "save": "keep this query under which name?",
        "export": "write the rows to which file? its ending decides: .csv, .json, .md",
    }
    LEGEND = """
i types in the query, c types a new one, ctrl+r runs the query, escape leaves the query; enter on a kept query runs it
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "edit", "Edit"),
        Binding("c", "new", "New query"),
        Binding("ctrl+r,f5", "run", "Run", priority=True),
        Binding("s", "ask('save')", "Keep it"),
        Binding("D", "forget", "Forget the kept query", show=False),
        Binding("E", "ask('export')", "Export"),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._query = QUERIES[1][1]
        self._result: SqlResult | None = None

    def body(self) -> ComposeResult:
        """Query, answer, schema."""
        with Horizontal(id="panes"):
            with Vertical(id="left"):
                yield TextArea(self._query, language=None, id="query", tab_behavior="focus")
                yield Static("", id="columns", markup=False)
                yield LinePane(id="rows")
            with Vertical(id="right"):
                yield LinePane(id="schema")

    def start(self) -> None:
        """Schema at once; the answer when asked for."""
        self._fill_schema()
        self.turn_to(self.query_one("#schema", LinePane))
        self.query_one("#columns", Static).update("ctrl+r runs the query")

    def _saved(self) -> dict[str, str]:
        found = self.dashboard.state.get("queries")
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def _fill_schema(self) -> None:
        lines = [Line("queries", "heading")]
        for name, text in (*self._saved().items(), *QUERIES):
            lines.append(Line(f"  {name}", "", differs=((f"  {name}", "name"),), item=text))
        for view in VIEWS:
            lines += [plain(), Line(view.name, "heading"), plain(f"  {view.meaning}")]
            width = max(len(one.name) for one in view.columns)
            for one in view.columns:
                parts = ((f"  {one.name:<{width}}  ", "name"), (one.meaning, "note"))
                lines.append(Line("".join(text for text, _ in parts), "", differs=parts))
        pane = self.query_one("#schema", LinePane)
        pane.show(lines, cursor=min(pane.cursor or 1, len(lines) - 1))

    def action_edit(self) -> None:
        """Type in the query; one that was given and not touched yet gives way to what is typed."""
        query = self.query_one("#query", TextArea)
        query.focus()
        if any(query.text == text for _, text in QUERIES):
            query.select_all()

    def action_new(self) -> None:
        """Type a query from nothing: what stood there goes."""
        query = self.query_one("#query", TextArea)
        query.text = ""
        query.focus()

    def action_run(self) -> None:
        """Ask the ledger."""
        query = self.query_one("#query", TextArea).text
        self._query = query

        def ask(work: Work) -> SqlResult:
            return self.run.sql(query, limit=LIMIT, cancelled=work.cancelled)

        self.ask_core(ask, self._put, group="sql", what="asking the ledger", failed=self._fault)

    def _fault(self, told: str) -> None:
        self.query_one("#columns", Static).update("")
        self.query_one("#rows", LinePane).show([Line(told, "warning")])
        self.say("")

    def _put(self, result: SqlResult) -> None:
        self._result = result
        names = [name.casefold() for name in result.columns]
        cells = [
            tuple("" if value is None else str(_plain(value)).replace("\n", "⏎") for value in row)
            for row in result.rows
        ]
        numbers = [
            at
            for at in range(len(names))
            if result.rows and all(isinstance(row[at], int | float | None) for row in result.rows)
        ]
        lines = columns([result.columns, *cells], right=numbers, widest=60)
        self.query_one("#columns", Static).update(lines[0])
        stage = names.index("stage") if "stage" in names else None
        subject = next(
            (names.index(one) for one in ("subject", "producer", "instruction", "name") if one in names), None
        )
        made = [
            Line(
                text, "", _word(row[subject]) if subject is not None else None,
                _number(row[stage]) if stage is not None else None, ((text, ""),), item=row,
            )
            for row, text in zip(result.rows, lines[1:], strict=True)
        ]  # fmt: skip
        pane = self.query_one("#rows", LinePane)
        pane.show(made or [Line("no row", "note")])
        if self.query_one("#query", TextArea).text == self._query:  # else somebody types the next one
            self.turn_to(pane)
        more = f", more than {LIMIT:,} were not fetched" if result.truncated else ""
        self.say(f"{len(result.rows):,} rows{more}; enter goes to the stage or instruction of a row")

    @on(LinePane.Chosen, "#schema")
    def _kept_chosen(self, event: LinePane.Chosen) -> None:
        event.stop()
        event.prevent_default()
        if isinstance(event.line.item, str):
            self.query_one("#query", TextArea).text = event.line.item
            self.action_run()

    def answered(self, what: str, text: str) -> None:
        """A name for the query, or a file for the rows."""
        text = text.strip()
        if not text:
            return
        if what == "save":
            kept = self._saved()
            kept[text] = self.query_one("#query", TextArea).text
            self.dashboard.state.put("queries", kept)
            self.dashboard.state.save()
            self._fill_schema()
            self.say(f"kept as {text}")
        elif self._result is None:
            self.say("run a query first")
        else:
            try:
                write_rows(self._result, Path(text).expanduser())
            except (OSError, ValueError) as error:
                self.say(f"{text}: {error}")
            else:
                self.say(f"wrote {len(self._result.rows):,} rows to {text}")

    def action_forget(self) -> None:
        """Forget the kept query under the cursor."""
        line = self.query_one("#schema", LinePane).current
        kept = self._saved()
        if line is not None and kept.pop(line.text.strip(), None) is not None:
            self.dashboard.state.put("queries", kept)
            self._fill_schema()

    def focus_first(self) -> None:
        """To the queries."""
        self.turn_to(self.query_one("#schema", LinePane))

    def remembered(self) -> dict[str, Any]:
        """The query."""
        return {"query": self.query_one("#query", TextArea).text if self._started else self._query}

    def recall(self, values: dict[str, Any]) -> None:
        """The query."""
        if isinstance(values.get("query"), str):
            self._query = values["query"]


def write_rows(result: SqlResult, path: Path) -> None:
    """Write rows as CSV, JSON or a Markdown table. Raises ValueError for another ending, OSError as usual."""
    rows = [[_plain(value) for value in row] for row in result.rows]
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(result.columns)
            writer.writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps([dict(zip(result.columns, row, strict=True)) for row in rows], indent=1), "utf-8")
    elif path.suffix == ".md":
        out = ["| " + " | ".join(result.columns) + " |", "|" + " --- |" * len(result.columns)]
        out += ["| " + " | ".join(str(value).replace("|", "\\|") for value in row) + " |" for row in rows]
        path.write_text("\n".join(out) + "\n", "utf-8")
    else:
        raise ValueError("the name must end in .csv, .json or .md")


def _plain(value: object) -> object:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else value


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
