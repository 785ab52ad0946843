"""Writes docs/ledger.md from the registry of events and the views; ``--check`` tells whether the file is up to date.

    python -m hloscope.core.ledger.schema_doc docs/ledger.md [--check]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from hloscope.core.ledger.declare import ENVELOPE, UNITS, EventSpec, FieldSpec
from hloscope.core.ledger.events import EVENT_TYPES
from hloscope.core.ledger.schema import APPLICATION_ID, SCHEMA, View

_INTRODUCTION = f"""# The ledger

<!-- Made by `python -m hloscope.core.ledger.schema_doc`: do not edit. -->

A ledger is one SQLite file about one compile or one imported dump: its passes, the module text after each of them, and
what was decided on the way. `hloscope sql RUN.ledger "SELECT …"` asks it; any other SQLite tool can too.

- **The views below are the public half** and keep their names and columns. The tables behind them (`strings`,
  `pass_rows`, `event_rows`, `event_batches`, `line_blocks`, …) are compact and may change with the format. A compile
  leaves its events in batches, which the views read slowly; `hloscope` makes rows of them when it is first asked.
- Format {SCHEMA.version}: `PRAGMA user_version` is the version, `PRAGMA application_id` is {APPLICATION_ID}
  (0x{APPLICATION_ID:X}, the letters HLOS). A newer hloscope reads an older file (and leaves it as it is); an older one
  refuses a newer file in one line.
- While it is written the file is in WAL mode: what was committed can be read at any moment, also after a kill (keep
  the `-wal` file beside it). A finished ledger is one plain file, and `runs.complete` is 1.
- An existing file is replaced only with `--force`, and only once the new file could be created; from then on the new
  run is the file.
- What it costs: an event takes some 3 µs and 11 bytes (`benchmarks/bench_ledger.py`); `hloscope compile` does 6 to 9 %
  more with the ledger than without, counted in instructions (`benchmarks/bench_recording.py --instructions`); the
  ledger of an imported dump has about 3 % of its bytes (`bench_ledger.py DIRECTORY`), that of a small one more.
- `hloscope sql` adds one function: `sentence(ID)` puts the event with that number into words.

## Questions

```sql
-- the timeline of a module
SELECT stage, pipeline, pass, changed, instructions_after, ns FROM passes WHERE module = 1;
-- which passes took the time? (ns of a pipeline holds that of its passes, which have rows of their own)
SELECT pass, count(*) runs, sum(own_ns) ns FROM passes GROUP BY pass ORDER BY ns DESC LIMIT 5;
-- why was nothing done to this instruction?
SELECT pass, code, sentence(id) FROM refusals WHERE subject = 'add.5';
-- which passes spent the most fuel?
SELECT pass, sum(applied) FROM fuel GROUP BY pass ORDER BY 2 DESC;
-- fusions that the compiler priced, best first
SELECT producer, consumers, us_unfused - us_fused AS gain FROM fusion_decisions
WHERE us_fused IS NOT NULL ORDER BY gain DESC;
-- events of any type, own fields out of the JSON object
SELECT type, subject, data ->> 'message' FROM events WHERE type = 'invariant_failed';
```
"""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [*lines, ""]


def _view(view: View) -> list[str]:
    rows = ((f"`{one.name}`", one.meaning) for one in view.columns)
    return [f"### `{view.name}`", "", view.meaning, "", *_table(("column", "meaning"), rows)]


def _fields(specs: Iterable[FieldSpec]) -> list[str]:
    rows = ((f"`{one.name}`", one.unit, "" if one.required else "optional", one.meaning) for one in specs)
    return _table(("field", "unit", "", "meaning"), rows)


def _event(spec: EventSpec) -> list[str]:
    fields = _fields(spec.fields) if spec.fields else ["No fields of its own.", ""]
    return [f"### `{spec.name}`", "", f"{spec.meaning} Kind: {spec.kind}.", "", f"> {spec.sentence}", "", *fields]


def document() -> str:
    """The whole of docs/ledger.md."""
    lines = [_INTRODUCTION, "## Views", ""]
    for view in SCHEMA.views:
        lines += _view(view)
    lines += ["## Events", "", "In a sentence, a part in brackets is left out when a value in it is missing.", ""]
    lines += ["### Every event has", "", *_fields(ENVELOPE)]
    for event in EVENT_TYPES.values():
        lines += _event(event.spec)
    lines += ["## Units", "", *_table(("unit", "meaning"), UNITS.items())]
    return "\n".join(lines).rstrip("\n") + "\n"


def main() -> int:
    """Write the file, or with ``--check`` exit 1 when it is out of date."""
    parser = argparse.ArgumentParser(description="Make docs/ledger.md from the registry of events and views.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/ledger.md"))
    parser.add_argument("--check", action="store_true", help="only tell whether the file is up to date")
    options = parser.parse_args()
    file: Path = options.file
    text = document()
    if options.check:
        current = file.exists() and file.read_text(encoding="utf-8") == text
        print(f"{file}: {'up to date' if current else 'out of date'}")
        return 0 if current else 1
    file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
