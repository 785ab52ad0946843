"""``hloscope fusion PATH``: every fusion decision, or every kernel."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hloscope.core.cli.opening import module_option, opened, say_notes
from hloscope.core.cli.output import Column, TableOptions, emit_table, table_options
from hloscope.core.views.fusion import FusionRow, costliest_first, fusion_report, kernel_report


@click.command("fusion", epilog="Example: hloscope fusion dump/ --filter 'verdict=ineligible and bytes>1MB'")
@click.argument("path")
@module_option
@click.option("--target", metavar="NAME/FILE", help="Decide anew for cpu, h100, a100, b200, mi300, a file.")
@click.option("--kernels", "as_kernels", is_flag=True, help="The kernels instead: traffic saved, roofline (GPU).")
@table_options
def command(path: str, module: str | None, target: str | None, as_kernels: bool, table: TableOptions) -> None:
    """Show every fusion decision of PATH, refusals first by what they cost in memory traffic.

    Where the compiler recorded its decisions (GPU) those are shown, and those of a ledger. Where it did not, fusions
    are found by comparing the stages around the pass, with the likely reason of each edge left apart: origin inferred.
    On a single HLO file, and with --target, hloscope's own decider is run on it: origin core. FILE is a
    GpuTargetConfigProto as text.
    """
    with opened(path, module) as run:
        if as_kernels:
            rows, device = kernel_report(run, target=target)
            say_notes([f"estimated for {device}"])
            emit_table(
                (
                    {
                        "kernel": one.kernel,
                        "opcode": one.opcode,
                        "emitter": one.emitter,
                        "instructions": one.instructions,
                        "us": one.us,
                        "bound_by": one.bound_by,
                        "bytes_read": one.bytes_read,
                        "bytes_written": one.bytes_written,
                        "bytes_saved": one.bytes_saved,
                        "flops": one.flops,
                        "intensity": one.intensity,
                        "ridge": one.ridge,
                        "blocks": one.blocks,
                        "threads": one.threads,
                    }
                    for one in rows
                ),
                [
                    Column("kernel"),
                    Column("emitter"),
                    Column("instructions", title="inst"),
                    Column("us"),
                    Column("bound_by"),
                    Column("bytes_read", title="read"),
                    Column("bytes_written", title="written"),
                    Column("bytes_saved", title="saved"),
                    Column("flops"),
                    Column("intensity", show=_ratio),
                    Column("ridge", show=_ratio),
                    Column("opcode", hidden=True),
                    Column("blocks", hidden=True),
                    Column("threads", hidden=True),
                ],
                table,
                source=run.source,
            )
            return
        report = fusion_report(run, target=target)
        say_notes(report.notes)
        emit_table(
            _rows(report.rows),
            [
                Column("step"),
                Column("producer"),
                Column("consumers", show=_short),
                Column("verdict"),
                Column("code", hidden=True),
                Column("reason"),
                Column("us_fused", first_to_go=1),
                Column("us_unfused", first_to_go=2),
                Column("bytes", first_to_go=3),
                Column("fuel", hidden=True),
                Column("origin", first_to_go=4),
                Column("made", hidden=True),
                Column("computation", hidden=True),
                Column("pass", hidden=len({row.pass_name for row in report.rows}) < 2),
            ],
            table,
            source=run.source,
            extra={"how": report.how, "backend": report.backend, "notes": list(report.notes)},
        )


def _rows(rows: tuple[FusionRow, ...]) -> Iterator[dict[str, object]]:
    """Refusals first, the costliest on top; then the rest in order, among them what was decided anew later."""
    for row in costliest_first(rows):
        yield {
            "step": row.step,
            "producer": row.producer,
            "consumers": list(row.consumers),
            "verdict": row.verdict,
            "code": row.code,
            "reason": row.reason,
            "us_fused": row.us_fused,
            "us_unfused": row.us_unfused,
            "bytes": row.bytes,
            "fuel": row.fuel,
            "origin": row.origin,
            "made": row.made,
            "computation": row.computation,
            "pass": row.pass_name,
        }


def _short(value: object) -> str:
    names = [str(one) for one in value] if isinstance(value, list) else [str(value)]
    return ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")


def _ratio(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "-"
