"""How every command prints: tables with ``--filter``, ``--sort`` and ``--limit``, and objects, for people or as JSON.

A command that shows rows takes ``@table_options`` and ends in ``emit_table``; one that shows named keys takes
``@json_option`` and ends in ``emit_object``. Neither formats or selects anything itself, so the options mean the same
everywhere.

    @click.command("passes")
    @click.argument("path")
    @table_options
    def command(path: str, table: TableOptions) -> None:
        emit_table(rows, COLUMNS, table, source=run.source)

A row is a mapping from column name to a plain value (None, bool, int, float, str, or lists and mappings of them); keys
that no column declares appear in JSON alone. On a terminal columns are fitted to its width; on a pipe they are padded
with spaces and never cut.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, cast

import click

from hloscope.core.cli.filter_expression import Row, compile_filter, unknown_column
from hloscope.core.errors import UsageError
from hloscope.core.version import version
from hloscope.core.views.data import Source

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    """Key of the row's value; what ``--filter``, ``--sort`` and JSON call it; the heading where there is no title."""
    show: Callable[[object], str] | None = None
    """How a person sees a value that is not None; the default writes numbers with digits grouped and text as it is."""
    hidden: bool = False
    """In JSON, filters and sorting only."""
    title: str | None = None
    """The heading for people where the name is too wide for its values."""
    first_to_go: int = 0
    """On a terminal that is too narrow, columns with a larger number are left out before those with a smaller one, and
    those with 0 stay."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What the user asked of a table."""

    json: bool = False
    jsonl: bool = False
    filter: str | None = None
    sort: str | None = None
    limit: int | None = None


def table_options(command: Command) -> Command:
    """Adds ``--json --jsonl --filter --sort --limit`` and passes them to the function as ``table``."""

    def collect(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        given = cast("TableOptions", ctx.params.get("table") or TableOptions())
        ctx.params["table"] = dataclasses.replace(given, **{str(parameter.name): value})

    options = [
        click.option("--json", is_flag=True, expose_value=False, callback=collect, help="One JSON object."),
        click.option("--jsonl", is_flag=True, expose_value=False, callback=collect, help="One JSON object a row."),
        click.option(
            "--filter", metavar="EXPR", expose_value=False, callback=collect,
            help="""Rows where EXPR holds, as in 'bytes>1MB and name~"attn"'.""",
        ),
        click.option(
            "--sort", metavar="COL,…", expose_value=False, callback=collect,
            help="Order by columns; -COL is largest first.",
        ),
        click.option(
            "--limit", metavar="N", type=click.IntRange(min=0), expose_value=False, callback=collect,
            help="At most N rows.",
        ),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def json_option(command: Command) -> Command:
    """Adds ``--json``, passed to the function as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object.")(command)


def select_rows(rows: Iterable[Row], columns: Sequence[Column | str], options: TableOptions) -> tuple[list[Row], bool]:
    """The rows that the options ask for, and whether ``--limit`` left some out.

    Raises UsageError for a bad expression or an unknown column, before any row is read.
    """
    selected = _selected(rows, _declared(columns), options)
    shown = list(islice(selected, options.limit))
    return shown, _has_more(selected, options)


def emit_table(
    rows: Iterable[Row],
    columns: Sequence[Column | str],
    options: TableOptions,
    *,
    source: Source | None = None,
    extra: Mapping[str, object] | None = None,
    stream: bool = False,
) -> int:
    """Prints the rows as the options ask and returns how many there were.

    ``extra`` adds keys beside ``rows`` in the JSON object. With ``stream`` a long table is printed in blocks while its
    rows are found, the columns as wide as what came so far asks. Raises UsageError for options that do not fit the
    columns.
    """
    declared = _declared(columns)
    if options.json and options.jsonl:
        raise UsageError("--json and --jsonl exclude each other")
    if options.jsonl:
        selected = _selected(rows, declared, options)
        count = 0
        for row in islice(selected, options.limit):
            sys.stdout.write(to_json(row) + "\n")
            count += 1
        _say_truncated(_has_more(selected, options), options)
        return count
    visible = [column for column in declared if not column.hidden]
    headings = [column.title or column.name for column in visible]
    if stream and not options.json:
        selected = _selected(rows, declared, options)
        limited = islice(selected, options.limit)
        shown = list(islice(limited, _STREAMED_ROWS))
        if len(shown) == _STREAMED_ROWS:
            count = _stream(shown, limited, visible, headings)
            _say_truncated(_has_more(selected, options), options)
            return count
        truncated = _has_more(selected, options)
    else:
        shown, truncated = select_rows(rows, declared, options)
    if options.json:
        envelope = {"hloscope": version(), "source": _source(source), "rows": shown, "truncated": truncated}
        sys.stdout.write(to_json({**envelope, **(extra or {})}) + "\n")
        return len(shown)
    cells = [[_cell(column, row.get(column.name)) for column in visible] for row in shown]
    numeric = [_is_numeric(column, shown) for column in visible]
    if sys.stdout.isatty():
        _write_terminal(visible, headings, cells, numeric)
    else:
        _write_plain([headings, *cells], numeric)
    _say_truncated(truncated, options)
    return len(shown)


_STREAMED_ROWS = 256
"""Rows of a block, where a table is printed in blocks."""


def _stream(first: list[Row], rest: Iterator[Row], columns: Sequence[Column], headings: Sequence[str]) -> int:
    """Prints a long table in blocks, padded with spaces; returns how many rows it had."""
    numeric = [_is_numeric(column, first) for column in columns]
    widths: list[int] | None = None
    count, block = 0, first
    while block:
        cells = [[_cell(column, row.get(column.name)) for column in columns] for row in block]
        widths = _write_plain(cells if count else [headings, *cells], numeric, widths)
        sys.stdout.flush()
        count += len(block)
        block = list(islice(rest, _STREAMED_ROWS))
    return count


def emit_object(
    values: Mapping[str, object] | object,
    as_json: bool,
    show: Callable[[], None] | str,
    *,
    source: Source | None = None,
) -> None:
    """Prints one answer: as JSON, the keys of ``values`` (a mapping or a dataclass) beside ``hloscope`` and ``source``;
    for a person, ``show`` (a text, or a function that prints)."""
    if as_json:
        keys = _plain(values)
        if not isinstance(keys, dict):
            raise TypeError(f"an answer has named keys; got {type(values).__name__}")
        envelope: dict[str, object] = {"hloscope": version(), "source": _source(source)}
        sys.stdout.write(to_json({**envelope, **cast("dict[str, object]", keys)}) + "\n")
    elif isinstance(show, str):
        sys.stdout.write(show if show.endswith("\n") or not show else show + "\n")
    else:
        show()


def to_json(value: object) -> str:
    """One line of strict JSON. Dataclasses become objects, numpy scalars numbers, paths text; a float that JSON cannot
    say becomes the text ``NaN``, ``Infinity`` or ``-Infinity``, as in protobuf's JSON mapping."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in cast("Iterable[Any]", value)]
    item = getattr(value, "item", None)  # a numpy scalar; numpy itself is not imported for it
    return _plain(item()) if callable(item) else str(value)


def _declared(columns: Sequence[Column | str]) -> list[Column]:
    return [column if isinstance(column, Column) else Column(column) for column in columns]


def _selected(rows: Iterable[Row], columns: Sequence[Column], options: TableOptions) -> Iterator[Row]:
    """Filtered and sorted, not limited; lazy unless sorted."""
    names = [column.name for column in columns]
    titles = {one.title: one.name for one in columns if one.title is not None and one.title not in names}
    keep = compile_filter(options.filter, names, titles) if options.filter is not None else None
    keys = _sort_keys(options.sort, names, titles)
    selected = iter(rows) if keep is None else (row for row in rows if keep(row))
    if not keys:
        return selected
    ordered = list(selected)
    for name, descending in reversed(keys):
        ordered.sort(key=lambda row: _sort_key(row.get(name)), reverse=descending)
        ordered.sort(key=lambda row: row.get(name) is None)  # what is not known comes last either way
    return iter(ordered)


def _has_more(rows: Iterator[Row], options: TableOptions) -> bool:
    return options.limit is not None and next(rows, None) is not None


def _source(source: Source | None) -> dict[str, object]:
    """The keys are there whether or not the answer is about one thing."""
    if source is None:
        return {"path": None, "module": None, "xla_build": None, "target": None}
    return {"path": source.path, "module": source.module, "xla_build": source.xla_build, "target": source.target}


def _sort_keys(text: str | None, names: Sequence[str], titles: Mapping[str, str]) -> list[tuple[str, bool]]:
    keys: list[tuple[str, bool]] = []
    for word in text.split(",") if text is not None else ():
        name = word.strip()
        descending = name.startswith("-")
        name = name.lstrip("+-")
        name = titles.get(name, name)
        if name not in names:
            raise unknown_column("--sort", name, names)
        keys.append((name, descending))
    return keys


def _sort_key(value: object) -> tuple[int, Any]:
    """Numbers before text before everything else, so that a column of mixed values has an order."""
    if isinstance(value, bool | int | float):
        return (0, value)
    return (1, value) if isinstance(value, str) else (2, str(value))


def _is_numeric(column: Column, rows: Sequence[Row]) -> bool:
    values = [row.get(column.name) for row in rows]
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _cell(column: Column, value: object) -> str:
    if value is None:
        return "-"
    text = column.show(value) if column.show is not None else _show(value)
    return text if text.isprintable() else "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(_show(item) for item in cast("Iterable[object]", value))
    return to_json(value) if isinstance(value, Mapping) else str(value)


def _write_plain(
    lines: Sequence[Sequence[str]], numeric: Sequence[bool], widths: Sequence[int] | None = None
) -> list[int]:
    """Writes lines of cells in columns at least so wide; returns how wide they were."""
    from unicodedata import east_asian_width

    def width(text: str) -> int:
        return len(text) if text.isascii() else sum(2 if east_asian_width(char) in "WF" else 1 for char in text)

    least = widths or [0] * len(numeric)
    sizes = [max(least[index], *(width(line[index]) for line in lines)) for index in range(len(numeric))]
    for line in lines:
        padded = [
            " " * (size - width(text)) + text if right else text + " " * (size - width(text))
            for text, size, right in zip(line, sizes, numeric, strict=True)
        ]
        sys.stdout.write("  ".join(padded).rstrip() + "\n")
    return sizes


_READABLE = 20
"""Letters of a longer text that a terminal shows at least, where leaving out other columns makes room."""


def _write_terminal(
    columns: Sequence[Column], headings: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    kept = _fitting(columns, headings, cells, numeric, console.width)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for number in kept:
        # rich narrows the columns that may wrap: numbers stay whole, and texts are cut instead of wrapped
        right = numeric[number]
        table.add_column(headings[number], justify="right" if right else "left", no_wrap=right)
    for line in cells:
        table.add_row(*(Text(line[number], no_wrap=True, overflow="ellipsis") for number in kept))
    console.print(table)


def _fitting(
    columns: Sequence[Column],
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    width: int,
) -> list[int]:
    """The columns that a terminal of a width has room for; without those that may go, or without any reason to."""
    kept = list(range(len(columns)))
    needed: list[int] = []
    for number, right in enumerate(numeric):
        widest = max((len(headings[number]), *(len(line[number]) for line in cells)))
        needed.append(widest if right else max(len(headings[number]), min(widest, _READABLE)))
    while sum(needed[number] + 3 for number in kept) - 3 > width:
        last = max(kept, key=lambda number: columns[number].first_to_go)
        if not columns[last].first_to_go:
            break
        kept.remove(last)
    return kept


def _say_truncated(truncated: bool, options: TableOptions) -> None:
    if truncated:
        print(f"hloscope: stopped at --limit {options.limit}; there are more rows", file=sys.stderr)
