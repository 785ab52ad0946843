"""``hloscope parse FILE…``: reads HLO text and prints it back in XLA's format."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import click

from hloscope.core.cli.output import Column, TableOptions, emit_table, table_options
from hloscope.core.cli.progress import progress
from hloscope.core.errors import Diagnostic, HloscopeError, ParseError
from hloscope.core.hlo.module import HloModule
from hloscope.core.text import PrintOptions, module_lines
from hloscope.core.text.names import as_xla_reads
from hloscope.core.text.print_settings import STYLES, with_settings
from hloscope.core.text.reader import check_room, read_text
from hloscope.core.text.scan import LineMap
from hloscope.core.views.data import Source
from hloscope.core.views.inputs import Input, read_hlo_text, require_hlo_file

_SHOWN = 20
"""Diagnostics of one file that are written to stderr."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What came of one file."""

    file: str
    instructions: int
    errors: tuple[Diagnostic, ...]
    """Findings that count as errors."""
    notes: tuple[Diagnostic, ...]
    """Findings that only inform."""
    xla_would_reject: bool | None = None
    """Whether the parser of jaxlib 0.10.2 refuses the text; None where nobody looked."""
    unusable: HloscopeError | None = None
    """Why the file could not be read at all."""
    lines: LineMap | None = None
    """Places in the text, for findings that name more than one."""

    @property
    def ok(self) -> bool:
        """Whether the file is what it should be."""
        return not self.errors and self.unusable is None

    @property
    def first(self) -> str | None:
        """The first error in one line, without the file."""
        if self.unusable is not None:
            return self.unusable.message
        return f"{self.errors[0].line}:{self.errors[0].column}: {self.errors[0].message}" if self.errors else None


@click.command("parse", epilog="Example: hloscope parse --check dump/*.txt")
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
@click.option("--check", is_flag=True, help="Print no text; exit 1 if any file has an error.")
@click.option("--strict", is_flag=True, help="Count as an error whatever XLA's own parser (jaxlib 0.10.2) refuses.")
@click.option(
    "--style", type=click.Choice(tuple(STYLES)), default="dump", show_default=True,
    help="dump as in dump files; short without % and signatures; long with operand shapes; xla as jaxlib's to_string;"
    " short_parsable, canonical and fingerprint as its HloPrintOptions of that name. canonical has no names and no"
    " metadata and callees written out, so that equal modules have equal texts.",
)  # fmt: skip
@click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True,
    help="Change one print option by its name in jaxlib's HloPrintOptions, such as print_percent=false; repeatable.",
)  # fmt: skip
@click.option("--metadata/--no-metadata", default=None, help="With or without metadata and source tables.")
@table_options
def command(
    files: tuple[str, ...],
    check: bool,
    strict: bool,
    style: str,
    settings: tuple[str, ...],
    metadata: bool | None,
    table: TableOptions,
) -> int:
    """Parse HLO text and print it back in XLA's format.

    FILE is HLO text, a binary HloProto, StableHLO, or - for standard input. The reader recovers: what it could read
    is printed even where something is wrong, and the findings go to stderr. Exit 1 where a file has an error.

    Definitions may come after uses, with a warning, since XLA refuses that; an attribute, opcode or element type that
    nobody knows is kept, printed back and noted once. --strict judges as XLA's own parser does, the one of jaxlib
    0.10.2: what that refuses is an error with a position. Without it "xla_would_reject" in --json says what --strict
    would have found.
    """
    as_rows = table.json or table.jsonl
    options = print_options(style, metadata, settings)
    # Bytes that are not UTF-8 are printed as they were read; JSON shows them as escapes.
    getattr(sys.stdout, "reconfigure", _keep)(errors="backslashreplace" if as_rows else "surrogateescape")
    inputs: list[Input | str] = list(files)
    if len(files) == 1 and not as_rows:
        inputs = [require_hlo_file(files[0])]  # what cannot be used at all is one line, not a table
    results: list[Parsed] = []
    if as_rows or check:

        def stream() -> Iterator[dict[str, object]]:
            with progress("parsing") as report:
                for number, file in enumerate(inputs, 1):
                    result, _ = _parse(file, strict, judge=as_rows)
                    results.append(result)
                    report(number, len(files))
                    yield _row(result)

        _emit(stream(), table, Source(files[0], "", None, None, "hlo") if len(files) == 1 else None)
        if not as_rows:
            _say(results)
    else:
        for number, file in enumerate(inputs):
            result, module = _parse(file, strict, judge=False)
            results.append(result)
            _say([result])
            if module is not None:
                if number:
                    sys.stdout.write("\n")
                _print(as_xla_reads(module) if options.exact else module, options)
    if any(result.unusable is not None for result in results):
        return 2
    return 0 if all(result.ok for result in results) else 1


def _keep(**_: str) -> None:
    """Stands in for the method of a stream that has none."""


def print_options(style: str, metadata: bool | None = None, settings: Sequence[str] = ()) -> PrintOptions:
    """The printer's options of a style, changed by settings. Raises UsageError for a setting that does not exist."""
    found = with_settings(STYLES[style](), settings)
    return found if metadata is None else replace(found, metadata=metadata)


def _print(module: HloModule, options: PrintOptions) -> None:
    write = sys.stdout.write
    batch: list[str] = []
    for line in module_lines(module, options):
        batch.append(line)
        if len(batch) >= 4096:
            write("\n".join(batch) + "\n")
            batch.clear()
    if batch:
        write("\n".join(batch) + "\n")


def _parse(given: Input | str, strict: bool, *, judge: bool) -> tuple[Parsed, HloModule | None]:
    """Read one file; with `judge` (and with `strict`) also find what XLA's own parser refuses."""
    file = given if isinstance(given, str) else given.path
    try:
        text = read_hlo_text(given, keep_mark=True)
        check_room(text, file)
    except HloscopeError as error:
        # What is there and is no HLO is nothing that XLA's parser would take.
        return Parsed(file, 0, (), (), True if isinstance(error, ParseError) else None, unusable=error), None
    result = read_text(text, check=strict or judge)
    errors = [one for one in result.diagnostics if one.severity == "error"]
    notes = [one for one in result.diagnostics if one.severity != "error"]
    if strict:
        errors = result.refusals()
        notes = []
    module = result.module
    if module is None and not errors:
        errors = [Diagnostic("no HLO module in the text", 1, 1, 1, 1)]
    refused = result.xla_would_reject if strict or judge else True if errors else None
    count = module.instruction_count if module is not None else 0
    return Parsed(file, count, tuple(errors), tuple(notes), refused, lines=LineMap(text)), module


def _row(result: Parsed) -> dict[str, object]:
    errors = [_finding(one, result.lines) for one in result.errors]
    if result.unusable is not None:
        errors = [{"line": result.unusable.line, "column": result.unusable.column, "message": result.unusable.message}]
    return {
        "file": result.file,
        "ok": result.ok,
        "instructions": result.instructions,
        "error": result.first,
        "errors": errors,
        "xla_would_reject": result.xla_would_reject,
        "notes": [_finding(one, result.lines) for one in result.notes],
    }


def _finding(one: Diagnostic, lines: LineMap | None) -> dict[str, object]:
    row: dict[str, object] = {"line": one.line, "column": one.column, "message": one.message, "code": one.code}
    if one.severity != "error":
        row["severity"] = one.severity
    if one.related and lines is not None:
        places = [(*lines.position(start), what) for start, _, what in one.related]
        row["related"] = [{"line": line, "column": column, "message": what} for line, column, what in places]
    return row


def _emit(rows: Iterator[dict[str, object]], table: TableOptions, source: Source | None) -> None:
    columns = [
        Column("file"),
        Column("ok"),
        Column("instructions"),
        Column("error"),
        Column("errors", hidden=True),
        Column("xla_would_reject", hidden=True),
        Column("notes", hidden=True),
    ]
    emit_table(rows, columns, table, source=source)
    for _ in rows:  # a limit ends the table, not the checking
        pass


def _say(results: Sequence[Parsed]) -> None:
    for result in results:
        if result.unusable is not None:
            print(f"hloscope: {result.unusable}", file=sys.stderr)
        findings = [*result.errors, *result.notes]
        for one in findings[:_SHOWN]:
            word = "" if one in result.errors else f"{one.severity}: "
            print(f"hloscope: {result.file}:{one.line}:{one.column}: {word}{one.message}", file=sys.stderr)
        if len(findings) > _SHOWN:
            print(f"hloscope: {result.file}: and {len(findings) - _SHOWN} more findings", file=sys.stderr)
