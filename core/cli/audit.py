"""``hloscope audit DUMP``: how far our decisions agree with the real compiler's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module

import click

from hloscope.core.analysis.agreement import Agreement, Section
from hloscope.core.analysis.real_compile import DumpCompile, RealCompile
from hloscope.core.cli.opening import module_option
from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.options import compile_facts
from hloscope.core.errors import HloscopeError, UsageError
from hloscope.core.views.data import Source
from hloscope.core.xla.protos import proto_reader

Auditor = Callable[[RealCompile], Section]

SECTIONS: Mapping[str, str] = {
    "layout": "hloscope.core.layout.audit:audit",
    "fusion": "hloscope.core.fusion.audit:audit",
    "buffers": "hloscope.core.buffers.audit:audit",
    "schedule": "hloscope.core.schedule.audit:audit",
}
"""Section -> ``module:function`` that compares one room's decisions with a dump."""


@click.command("audit", epilog="Example: hloscope audit dump/ --only layout,buffers")
@click.argument("dump")
@module_option
@click.option("--all", "every", is_flag=True, help="Every module of the dump, added up, instead of the largest.")
@click.option("--only", metavar="SECTION,…", help=f"Of {', '.join(SECTIONS)}.")
@json_option
def command(dump: str, module: str | None, every: bool, only: str | None, as_json: bool) -> None:
    """Replay the decisions of layout, fusion and buffer assignment on DUMP and count how many are the compiler's own.

    Each figure is taken from the stage before a pass, run through ours, and compared with the stage or report after it.
    """
    wanted = _sections(only)
    with open_dump(dump, proto_reader=proto_reader) as opened:
        if every:
            chosen = opened.matching(module)
        else:
            one, note = opened.select(module)
            chosen = [one]
            if note is not None:
                print(f"hloscope: note: {note}", file=sys.stderr)
        facts = compile_facts(chosen[0])
        source = Source(dump, chosen[0].name, facts.xla_build, facts.target, "dump")
        answer: dict[str, dict[str, Agreement] | None] = {}
        notes: list[str] = []
        for name in wanted:
            figures: dict[str, Agreement] = {}
            for one in chosen:
                _add(figures, name, DumpCompile(one), notes, many=len(chosen) > 1)
            answer[name] = figures or None
    emit_object({**answer, "notes": notes}, as_json, lambda: _show(answer, notes), source=source)


def _sections(only: str | None) -> list[str]:
    if only is None:
        return list(SECTIONS)
    wanted = [word.strip() for word in only.split(",") if word.strip()]
    for word in wanted:
        if word not in SECTIONS:
            raise UsageError(f"no section {word!r}", hint=f"there are {', '.join(SECTIONS)}")
    return wanted


def _add(figures: dict[str, Agreement], name: str, compile_: RealCompile, notes: list[str], *, many: bool) -> None:
    module, _, attribute = SECTIONS[name].partition(":")
    auditor: Auditor = getattr(import_module(module), attribute)
    label = f"{compile_.label}: " if many else ""
    try:
        section = auditor(compile_)
    except HloscopeError as error:
        notes.append(_note(name, label, error.message))
        return
    notes.extend(_note(name, label, note) for note in section.notes)
    for key, found in section.figures.items():
        figures.setdefault(key, Agreement()).merge(found)


def _note(name: str, label: str, said: str) -> str:
    return f"{name}: {said}" if label.removesuffix(": ") in said else f"{name}: {label}{said}"


def _show(answer: Mapping[str, Mapping[str, Agreement] | None], notes: list[str]) -> None:
    for line in _lines(answer):
        print(line)
    for note in notes:
        print(f"note: {note}")


def _lines(answer: Mapping[str, Mapping[str, Agreement] | None]) -> Iterator[str]:
    yield f"{'section':<9}{'figure':<26}{'agree':>9}{'of':>9}{'share':>10}"
    for name, figures in answer.items():
        if figures is None:
            yield f"{name:<9}nothing to compare"
            continue
        for key, found in figures.items():
            share = "-" if found.share is None else f"{found.share:.2%}"
            yield f"{name:<9}{key:<26}{found.agree:>9,}{found.total:>9,}{share:>10}"
            for one in found.first_disagreements:
                why = f"  ({one.note})" if one.note else ""
                yield f"    {one.subject}: ours {one.ours}, real {one.real}{why}"
