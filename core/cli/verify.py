"""``hloscope verify FILE…``: checks the invariants that XLA's verifier checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import cast

import click

from hloscope.core.cli.output import Column, TableOptions, emit_table, select_rows, table_options
from hloscope.core.cli.progress import progress
from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.verifier import Finding, VerifierOptions, options_for, verify
from hloscope.core.text.made_shapes import take_made_shapes
from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.text.reader import ReadResult, check_room, read_text, sound_module
from hloscope.core.views.data import Source
from hloscope.core.views.inputs import Input, classify, read_hlo_text

_COLUMNS = (Column("file"), Column("ok"), Column("findings", show=lambda found: str(len(cast("list[object]", found)))))
_SHOWN = 50
"""Findings of one file that are written for a person."""


@dataclass(frozen=True, slots=True)
class _Asked:
    layout_sensitive: bool | None
    mixed_precision: bool | None
    first: bool


@click.command("verify", epilog="Example: hloscope verify dump/*.before_optimizations.txt")
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
@click.option(
    "--layout-sensitive/--no-layout-sensitive", default=None,
    help="Compare layouts too. Default: in a module that is scheduled, which comes after layout assignment.",
)  # fmt: skip
@click.option(
    "--allow-mixed-precision/--no-mixed-precision", "mixed_precision", default=None,
    help="Let operands differ in floating precision. Default: where layouts are tiled.",
)  # fmt: skip
@click.option("--first", is_flag=True, help="Stop at the first finding of a file, as XLA does.")
@table_options
def command(
    files: tuple[str, ...],
    layout_sensitive: bool | None,
    mixed_precision: bool | None,
    first: bool,
    table: TableOptions,
) -> int:
    """Check the invariants of a module: structure, shapes, called computations, collectives, aliasing, schedule.

    FILE is HLO text, a binary HloProto, StableHLO, or - for standard input. The checks and their order are those of
    XLA's HloVerifier; each finding has a code (see docs/verifier.md). Exit 1 where there is a finding, 2 where a file
    cannot be read.
    """
    getattr(sys.stdout, "reconfigure", _keep)(errors="backslashreplace")  # names may hold bytes that are not UTF-8
    opened: dict[str, Input] = {}
    if len(files) == 1 and not table.json and not table.jsonl:
        # A file that cannot be used at all is one line. What was read to see that is kept: a pipe gives it only once.
        opened[files[0]] = classify(files[0])
    asked = _Asked(layout_sensitive, mixed_precision, first)
    unusable: list[HloscopeError] = []
    rows: list[dict[str, object]] = []

    def stream() -> Iterator[dict[str, object]]:
        with progress("verifying") as report:
            for number, file in enumerate(files, 1):
                row, error = _verify(file, opened.get(file, file), asked)
                if error is not None:
                    unusable.append(error)
                    print(f"hloscope: {error}", file=sys.stderr)
                rows.append(row)
                report(number, len(files))
                yield row

    found = stream()
    if table.json or table.jsonl:
        source = Source(files[0], "", None, None, "hlo") if len(files) == 1 else None
        emit_table(found, _COLUMNS, table, source=source)
        for _ in found:  # a limit ends the table, not the checking
            pass
    else:
        shown, truncated = select_rows(found, _COLUMNS, table)
        _print(shown)
        if truncated:
            print(f"hloscope: stopped at --limit {table.limit}; there are more files", file=sys.stderr)
            for _ in found:
                pass
    if unusable:
        return 2
    return 0 if all(row["ok"] for row in rows) else 1


def _keep(**_: str) -> None:
    """Stands in for the method of a stream that has none."""


def _verify(file: str, given: Input | str, asked: _Asked) -> tuple[dict[str, object], HloscopeError | None]:
    try:
        text = read_hlo_text(given)
        check_room(text, file)
        result = read_text(text)
        module = sound_module(result, file)
        take_made_shapes(module)
    except HloscopeError as error:
        fault = Finding("unreadable", error.message, line=error.line)
        return {"file": file, "ok": False, "findings": [asdict(fault)]}, error
    options = _options(options_for(module), asked)
    findings = _told(result)
    if not (findings and asked.first):
        findings += verify(module, options, first_only=asked.first, line_of=_line_of(text))
    return {"file": file, "ok": not findings, "findings": [asdict(one) for one in findings]}, None


def _told(result: ReadResult) -> list[Finding]:
    """What only the text shows: shapes before operands that are not the operands', names before their definition."""
    return [
        Finding(one.code, one.message, line=one.line)
        for one in result.diagnostics
        if one.code in ("operand-shape", "use-before-definition")
    ]


def _options(options: VerifierOptions, asked: _Asked) -> VerifierOptions:
    # XLA's reader renames what is called alike in two computations, so such a text is sound.
    options = replace(options, verify_unique_names=False)
    if asked.layout_sensitive is not None:
        restrict = asked.layout_sensitive and options.restrict_layout_changes
        options = replace(options, layout_sensitive=asked.layout_sensitive, restrict_layout_changes=restrict)
    if asked.mixed_precision is not None:
        options = replace(options, allow_mixed_precision=asked.mixed_precision)
    return options


def _line_of(text: str) -> Callable[[str, str], int | None]:
    """Names to 1-based lines; the text is indexed when the first line is asked for."""
    made: list[ModuleIndex] = []

    def find(computation: str, instruction: str) -> int | None:
        if not made:
            made.append(ModuleIndex.from_text(text))
        index = made[0]
        if not computation:
            header = text.find("HloModule")
            return text.count("\n", 0, header) + 1 if header >= 0 else None
        number = index.find_computation(computation)
        if number is None:
            return None
        if not instruction:
            return index.position(index.computation(number).span[0])[0] + 1
        found = index.find(instruction, number)
        return index.line(found) + 1 if found is not None else None

    return find


def _print(rows: list[Mapping[str, object]]) -> None:
    for row in rows:
        findings = cast("list[dict[str, object]]", row["findings"])
        if row["ok"]:
            print(f"{row['file']}: ok")
        for one in findings[:_SHOWN]:
            if one["code"] == "unreadable":
                continue  # said on stderr, with its position
            where = f"{row['file']}:{one['line']}" if one["line"] is not None else str(row["file"])
            name = f" %{one['instruction']}" if one["instruction"] is not None else ""
            inside = f" in %{one['computation']}" if one["computation"] is not None else ""
            message = " ".join(str(one["message"]).split())
            named = f"{name}{inside}:" if name or inside else ""
            print(f"{where}:{named} {message} [{one['code']}]")
        if len(findings) > _SHOWN:
            print(f"{row['file']}: and {len(findings) - _SHOWN} more findings")
