"""``hloscope opt``: runs named passes, or a backend's pipeline, on a module and writes the result."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, TextIO

import click

from hloscope.core.cli.output import Column, TableOptions, emit_object, emit_table, json_option
from hloscope.core.cli.outputs import check_outputs
from hloscope.core.cli.pass_settings import fuel_of, pass_flags, warn
from hloscope.core.errors import DumpError, UsageError
from hloscope.core.views.data import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext
    from hloscope.core.passes.flags import PassFlags
    from hloscope.core.passes.interface import HloPass
    from hloscope.core.passes.registry import Registry


@click.command("opt", epilog="Example: hloscope opt --passes algsimp,dce module.txt -o simplified.txt")
@click.argument("path", metavar="IN", required=False)
@click.option("--passes", metavar="A,B", help="Passes to run, in order; options as in cse{is_layout_sensitive=true}.")
@click.option("--pipeline", metavar="cpu/gpu", help="A backend's pipeline instead.")
@click.option("--until", metavar="PASS", help="Stop the pipeline before the first pass of this name.")
@click.option("--target", default="cpu", show_default=True, help="What the passes compile for.")
@click.option(
    "--disable-passes", metavar="F,…", help="Runs to skip: name, name:K, pipeline/name[:K] or @ID (K counts from 0)."
)
@click.option("--enable-passes-only", metavar="F,…", help="The only runs not to skip, in the same form.")
@click.option("--fuel", metavar="PASS=N", multiple=True, help="Permit only the first N rewrites of a pass.")
@click.option("--flags", metavar="FLAGS", help="Further flags as in XLA_FLAGS: '--xla_dump_hlo_pass_re=algsimp'.")
@click.option("--plugin", metavar="FILE.py", multiple=True, help="Run a Python file that registers passes or rules.")
@click.option("--ledger", metavar="RUN.ledger", help="Record everything that happens.")
@click.option("--dump-to", metavar="DIR", help="Write a dump directory as XLA does (around changing passes).")
@click.option("--list", "listing", is_flag=True, help="Show the passes and pipelines.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option("-o", "output", metavar="OUT", help="Where the result goes; - for standard output.")
@json_option
def command(
    path: str | None,
    passes: str | None,
    pipeline: str | None,
    until: str | None,
    target: str,
    disable_passes: str | None,
    enable_passes_only: str | None,
    fuel: tuple[str, ...],
    flags: str | None,
    plugin: tuple[str, ...],
    ledger: str | None,
    dump_to: str | None,
    listing: bool,
    force: bool,
    output: str | None,
    as_json: bool,
) -> int:
    """Run named passes, or a backend's pipeline, on the module in IN.

    Every instruction that is not replaced keeps its name. A plugin is a Python file with a function register(registry)
    that calls registry.add_pass(name, factory, description) or registry.add_rule(rule). --json tells what happened
    instead of printing the module; give -o to have both.
    """
    from hloscope.core.passes.registry import Registry

    registry = Registry()
    for file in plugin:
        registry.load_plugin(file)
    if listing:
        return _show_list(registry, as_json)
    if path is None:
        raise UsageError("opt needs a module to read", hint="hloscope opt --passes algsimp IN -o OUT")
    chosen = _chosen_passes(passes, pipeline, until, registry)
    settings = pass_flags(flags, disable_passes, enable_passes_only, dump_to)
    dump_to = settings.xla_dump_to or None
    if as_json and output == "-":
        raise UsageError("--json and -o - both write to standard output")
    written = None if output == "-" else output
    check_outputs(force, ledger=ledger, files=[written], folder=dump_to, inputs=[path, *plugin])
    module = _load(path)
    changed, ctx = _run(
        module, chosen, registry, settings, fuel=fuel, target=target, ledger=ledger, dump_to=dump_to, force=force,
        source=path,
    )  # fmt: skip
    if output is not None or not as_json:
        _write(module, output)
    rows = [
        {"pass": run.name, "pipeline": run.pipeline, "changed": bool(run.changed), "fuel_used": run.applied}
        for run in ctx.runs
        if not run.is_pipeline and run.name != "pipeline-start"
    ]
    if as_json:
        answer = {"changed": changed, "passes": rows}
        emit_object(answer, True, "", source=Source(path, module.name, None, target))
    warn((*settings.warnings(), *ctx.final_warnings()))
    return 0


def _show_list(registry: Registry, as_json: bool) -> int:
    from hloscope.core.passes.pipelines import PIPELINES

    rows: list[Mapping[str, object]] = [
        {"kind": "pass", "name": name, "description": text} for name, text in registry.describe()
    ]
    rows.extend({"kind": "pipeline", "name": name, "description": one.description} for name, one in PIPELINES.items())
    emit_table(rows, [Column("kind"), Column("name"), Column("description")], TableOptions(json=as_json))
    return 0


def _chosen_passes(passes: str | None, pipeline: str | None, until: str | None, registry: Registry) -> list[HloPass]:
    from hloscope.core.passes.pipelines import cut_before, named_pipeline, transforms_pipeline, whole_pipeline
    from hloscope.core.xla.targets import backend_of, not_public

    if (passes is None) == (pipeline is None):
        raise UsageError("opt needs either --passes or --pipeline", hint="hloscope opt --list shows what there is")
    if pipeline is not None:
        if backend_of(pipeline) == "tpu":
            raise not_public(pipeline)
        if until is None:
            return named_pipeline(pipeline, registry)
        return cut_before(whole_pipeline(pipeline, registry), until)
    if until is not None:
        raise UsageError("--until cuts a --pipeline; --passes names its passes itself")
    made = registry.make_all(passes or "")
    if not made:
        raise UsageError("--passes names no pass")
    return transforms_pipeline(made, registry)


def _load(path: str) -> HloModule:
    from hloscope.core.text import load_module
    from hloscope.core.views.inputs import read_hlo_text

    return load_module(read_hlo_text(path), path=path)


def _run(
    module: HloModule, chosen: list[HloPass], registry: Registry, flags: PassFlags, *, fuel: tuple[str, ...],
    target: str, ledger: str | None, dump_to: str | None, force: bool, source: str,
) -> tuple[bool, PassContext]:  # fmt: skip
    from hloscope.core.ledger.record import LedgerWriter, RunInfo
    from hloscope.core.passes.context import PassContext
    from hloscope.core.passes.dump_writer import DumpWriter
    from hloscope.core.passes.pipelines import check_names, compile_module
    from hloscope.core.version import version

    with ExitStack() as stack:
        # Names are checked before any file is made.
        check_names(chosen, PassContext(fuel=fuel_of(flags, fuel), flags=flags), registry)
        dumps = None
        if dump_to is not None:
            dumps = DumpWriter(dump_to, flags, module.name, target=target, force=force)
        writer = None
        if ledger is not None:
            info = RunInfo(kind="core", tool_version=version(), target=target, source=source)
            writer = stack.enter_context(LedgerWriter(ledger, info, force=force))
            writer.begin_module(module.name)
        ctx = PassContext(writer, fuel_of(flags, fuel), flags, target, dumps=dumps)
        with registry.plugin_faults():
            result = compile_module(module, chosen, ctx, registry)
    return result.changed, ctx


def _write(module: HloModule, output: str | None) -> None:
    from hloscope.core.text import module_lines

    def put(out: TextIO) -> None:
        for line in module_lines(module):
            out.write(line + "\n")

    if output in (None, "-"):
        put(sys.stdout)
        return
    if os.path.exists(output) and not os.path.isfile(output):
        # A device or a pipe is written into; a file put in its place would be no device any more.
        try:
            with open(output, "w", encoding="utf-8", errors="surrogateescape") as out:
                put(out)
        except OSError as error:
            raise DumpError(error.strerror or str(error), path=output) from error
        return
    # The whole text is there before the name is, so that a full disk leaves the old file alone.
    output = os.path.realpath(output)
    partial = f"{output}.{os.getpid()}.part"
    try:
        with open(partial, "w", encoding="utf-8", errors="surrogateescape") as out:
            put(out)
        os.replace(partial, output)
    except BaseException as error:
        if os.path.lexists(partial):
            os.unlink(partial)
        if isinstance(error, OSError):
            raise DumpError(error.strerror or str(error), path=output) from error
        raise
