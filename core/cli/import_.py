"""``hloscope import DUMP -o RUN.ledger``: reads a dump into a ledger."""

from __future__ import annotations

import os

import click

from hloscope.core.cli.opening import say_notes
from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.cli.outputs import check_outputs
from hloscope.core.cli.progress import progress
from hloscope.core.dumps.importer import ImportReport, import_dump
from hloscope.core.errors import UsageError
from hloscope.core.views.data import Source
from hloscope.core.views.inputs import InputKind, classify
from hloscope.core.views.run import load
from hloscope.core.xla.protos import proto_reader

_SHOWN = 20


@click.command("import", epilog="Example: hloscope import dump/ -o run.ledger && hloscope open run.ledger")
@click.argument("path", metavar="DUMP")
@click.option("-o", "--output", metavar="RUN.ledger", required=True, help="The ledger to write.")
@click.option("--module", metavar="REGEX/INDEX", help="Only the modules that match; without it, all of them.")
@click.option("--force", is_flag=True, help="Replace RUN.ledger where it exists.")
@json_option
def command(path: str, output: str, module: str | None, force: bool, as_json: bool) -> None:
    """Read DUMP (a directory or an archive of one) into a ledger: passes, every stage, decisions, and what was not
    understood.

    The import commits as it goes; interrupted, it leaves a ledger that opens and is marked incomplete. With --force
    over an older ledger that one stays as it was, and what was read is in OUT.partial.
    """
    given = classify(path)
    if given.kind not in (InputKind.DIRECTORY, InputKind.ARCHIVE):
        raise UsageError(f"a dump directory or an archive of one is needed, not {given.kind.phrase}", path=path)
    check_outputs(force, ledger=output, inputs=[path])
    with progress("importing stages") as report:
        result = import_dump(path, output, module=module, force=force, proto_reader=proto_reader, progress=report)
    say_notes(result.notes[:_SHOWN])
    if not result.stages:
        say_notes(["the dump holds no HLO stage"])
    with load(output) as run:
        source = Source(path, run.source.module, run.source.xla_build, run.source.target, "dump")
    emit_object(_keys(result), as_json, _text(result, output), source=source)


def _keys(report: ImportReport) -> dict[str, object]:
    return {
        "files": report.files,
        "modules": report.modules,
        "stages": report.stages,
        "events": report.events,
        "not_understood": list(report.not_understood),
        "notes": list(report.notes),
    }


def _text(report: ImportReport, output: str) -> str:
    lines = [
        f"{output}: {report.modules:,} modules, {report.stages:,} stages, {report.events:,} events from "
        f"{report.files:,} files ({os.path.getsize(output):,} bytes)"
    ]
    if report.not_understood:
        lines.append(f"not understood, {len(report.not_understood)}:")
        lines += [f"  {path}" for path in report.not_understood[:_SHOWN]]
        if len(report.not_understood) > _SHOWN:
            lines.append(f"  and {len(report.not_understood) - _SHOWN} more")
    return "\n".join(lines)
