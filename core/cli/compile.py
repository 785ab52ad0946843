"""``hloscope compile PATH -o RUN.ledger``: compiles a module, with our own passes or with the real XLA, ledger on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from hloscope.core.cli.opening import module_option, say_notes
from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.cli.outputs import check_outputs
from hloscope.core.cli.pass_settings import fuel_of, pass_flags, warn
from hloscope.core.cli.progress import progress
from hloscope.core.errors import CompileError, UsageError
from hloscope.core.views.inputs import InputKind, classify, content
from hloscope.core.views.run import load
from hloscope.core.views.summary import summary_keys, summary_text

if TYPE_CHECKING:
    from hloscope.core.passes.flags import PassFlags
    from hloscope.core.xla.targets import Target


@click.command("compile", epilog="Example: hloscope compile module.txt --engine xla --target cpu -o run.ledger")
@click.argument("path")
@click.option("--engine", type=click.Choice(["core", "xla"]), default="core", show_default=True, help="Who compiles.")
@click.option("--target", metavar="cpu/h100/v5e/FILE", default="cpu", show_default=True, help="What to compile for.")
@click.option("-o", "--output", metavar="RUN.ledger", required=True, help="The ledger to write.")
@click.option("--dump-to", metavar="DIR", help="Leave a dump directory as XLA writes it, too.")
@click.option("--fuel", metavar="PASS=N", multiple=True, help="core: permit only the first N rewrites of a pass.")
@click.option("--disable-passes", metavar="F,…", help="Runs to skip: name, name:K, pipeline/name[:K] or @ID.")
@click.option("--flags", metavar="FLAGS", help="Further flags, as in XLA_FLAGS.")
@click.option("--plugin", metavar="FILE.py", multiple=True, help="core: a Python file that registers passes or rules.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
@module_option
@json_option
def command(
    path: str,
    engine: str,
    target: str,
    output: str,
    dump_to: str | None,
    fuel: tuple[str, ...],
    disable_passes: str | None,
    flags: str | None,
    plugin: tuple[str, ...],
    force: bool,
    module: str | None,
    as_json: bool,
) -> None:
    """Compile the module in PATH and record everything that happens.

    PATH is an HLO file; of a dump or a ledger the first stage is taken. --engine core runs our own passes in the order
    of the target's pipeline, past layout assignment and fusion through the schedule and the buffer assignment (to stop
    earlier: hloscope opt --pipeline cpu --until PASS); --engine xla runs the installed XLA in a child process (it takes
    StableHLO, too) and reads its dump. For h100 and v5e no device is needed, nor for FILE, which describes a GPU: a
    GpuTargetConfigProto as text (XLA's *.txtpb, or what a dump on that GPU has as *.gpu_target_config.pbtxt).
    """
    from hloscope.core.xla.place import require_place
    from hloscope.core.xla.targets import find_target

    settings = pass_flags(flags, disable_passes, None, dump_to) if engine == "core" else None
    if settings is not None:
        dump_to = settings.xla_dump_to or None
    check_outputs(force, ledger=output, folder=dump_to, inputs=[path, *plugin, target])
    require_place(output, force=force)
    device = find_target(target)
    if settings is None:
        if fuel or plugin:
            raise UsageError("--fuel and --plugin go with --engine core")
        _with_xla(path, module, target, output, dump_to, _xla_flags(flags, disable_passes), force)
    else:
        _with_core(path, module, device, output, fuel, settings, flags, plugin, force)
    with load(output) as run:
        with progress("reading stages") as report:
            summary = run.summary(progress=report)
        emit_object(summary_keys(summary), as_json, summary_text(summary), source=run.source)


def _xla_flags(flags: str | None, disable: str | None) -> list[str]:
    import shlex

    found = shlex.split(flags or "")
    return found if disable is None else [*found, f"--xla_disable_hlo_passes={disable}"]


def _first_stage(path: str, module: str | None) -> tuple[str, str]:
    """The program to compile (a file's text, or the first stage of a dump or ledger), and where it stands.

    Raises a HloscopeError with its position where it is known to break off.
    """
    with load(path, module) as run:
        if run.source.kind != "hlo":  # whoever reads a text that is not whole says where it ends
            say_notes(run.notes)
        if run.fault(0) is not None:
            run.stage_module(0)
        return run.stage_text(0), run.stage_path(0)


def _with_xla(
    path: str, module: str | None, target: str, output: str, dump_to: str | None, flags: list[str], force: bool
) -> None:
    from hloscope.core.dumps.importer import import_dump
    from hloscope.core.xla.compile import compile_hlo_text, compile_stablehlo
    from hloscope.core.xla.protos import proto_reader
    from hloscope.core.xla.scratch import scratch_folder

    given = classify(path)
    if dump_to is not None and os.path.isdir(dump_to) and os.listdir(dump_to):
        raise UsageError("the folder for the dump is not empty", path=dump_to)
    with scratch_folder() as (scratch, _):
        folder = dump_to if dump_to is not None else scratch
        if given.kind is InputKind.STABLEHLO:
            compile_stablehlo(content(given), dump_to=folder, target=target, flags=flags, pass_log=True)
        else:
            text, where = _first_stage(path, module)
            try:
                compile_hlo_text(text, dump_to=folder, target=target, flags=flags, pass_log=True)
            except CompileError as error:
                error.path = error.path or where
                raise
        with progress("importing stages") as report:
            result = import_dump(
                folder, output, force=force, kind="capture", proto_reader=proto_reader, progress=report
            )
    say_notes(result.notes)


def _with_core(
    path: str,
    module: str | None,
    target: Target,
    output: str,
    fuel: tuple[str, ...],
    settings: PassFlags,
    flags: str | None,
    plugin: tuple[str, ...],
    force: bool,
) -> None:
    from hloscope.core.ledger.record import LedgerWriter, RunInfo
    from hloscope.core.passes.context import PassContext
    from hloscope.core.passes.dump_writer import DumpWriter
    from hloscope.core.passes.pipelines import PIPELINES, check_names, compile_module, whole_pipeline
    from hloscope.core.passes.registry import Registry
    from hloscope.core.text import load_module
    from hloscope.core.version import version
    from hloscope.core.xla.targets import not_public

    if target.backend not in PIPELINES:
        raise not_public(target.name)
    registry = Registry()
    for file in plugin:
        registry.load_plugin(file)
    pipelines = whole_pipeline(target.backend, registry)
    # Names and text are checked before any file is made.
    check_names(pipelines, PassContext(fuel=fuel_of(settings, fuel), flags=settings), registry)
    text, where = _first_stage(path, module)
    program = load_module(text, path=where)
    dumps = None
    if settings.xla_dump_to:
        dumps = DumpWriter(
            settings.xla_dump_to, settings, program.name, target=target.backend, prefix=_dump_prefix(target),
            force=force,
        )  # fmt: skip
    info = RunInfo(kind="core", tool_version=version(), target=target.name, flags=flags, source=path)
    with LedgerWriter(output, info, force=force) as writer:
        writer.begin_module(program.name)
        ctx = PassContext(writer, fuel_of(settings, fuel), settings, target.name, dumps=dumps)
        with registry.plugin_faults():
            result = compile_module(program, pipelines, ctx, registry)
    warn(settings.warnings())
    say_notes(result.warnings)


def _dump_prefix(target: Target) -> str | None:
    """What stands before the last dump point's name: a GPU's compute capability, as XLA writes it."""
    if target.backend != "gpu":
        return None
    from hloscope.core.analysis.device import load_device, parse_device

    device = load_device(target.name) if target.config is None else parse_device(target.config)
    major, minor = device.compute_capability
    return f"sm_{major}.{minor}{'a' if major >= 9 else ''}_gpu_"
