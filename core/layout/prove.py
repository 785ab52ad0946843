"""Asking the real compiler whether a change removes a copy: the module is compiled with it and without it."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hloscope.core.analysis.real_compile import DumpCompile, stages_around
from hloscope.core.dumps.directory import open_dump
from hloscope.core.errors import HloscopeError
from hloscope.core.layout.match import Key, added
from hloscope.core.layout.remedies import apply_change
from hloscope.core.text.printer import print_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.hlo.module import HloModule
    from hloscope.core.layout.copies import CopyMade
    from hloscope.core.layout.remedies import Change

LAYOUT_PASS = "^layout-assignment$"


def prove(before: Callable[[], HloModule], change: Change, made: CopyMade, target: str) -> tuple[bool, str]:
    """Whether the compiler makes the copy without the change and not with it; otherwise a note says why not.

    `target` is one of ``hloscope.core.xla.targets``. Raises UnsupportedError where its wheels are missing.
    """
    edited = before()
    apply_change(edited, change)
    plain, with_change = _copied(before(), target), _copied(edited, target)
    edge = (made.operand.name, "result" if made.user is None else made.user.name)
    name = made.copy.name
    if isinstance(plain, str) or isinstance(with_change, str):
        return False, f"{name}: the compiler could not be asked: {plain if isinstance(plain, str) else with_change}"
    if edge not in plain:
        return False, f"{name}: compiled from this stage, the compiler does not make this copy"
    if edge in with_change:
        return False, f"{name}: the compiler makes the copy with the change, too"
    return True, ""


def _copied(module: HloModule, target: str) -> set[tuple[str, str]] | str:
    """(value, user) of the copies that the compiler's layout assignment makes; a text where it failed."""
    from hloscope.core.xla.compile import compile_hlo_text

    with TemporaryDirectory(prefix="hloscope-prove-") as folder:
        try:
            compile_hlo_text(print_module(module), dump_to=folder, target=target, pass_re=LAYOUT_PASS, proto=False)
            with open_dump(folder) as dump:
                compiled = DumpCompile(dump.select(None)[0])
                pair = stages_around(compiled, "layout-assignment")[-1]
                real = compiled.module(pair.after.index)
                shapes = {one.name: one.shape for one in compiled.module(pair.before.index).instructions()}
        except HloscopeError as error:
            return error.message
        return {_edge(key) for one, key in added(real, shapes) if one.opcode == "copy"}


def _edge(key: Key) -> tuple[str, str]:
    value, user = key[1].partition("#")[0], key[3].partition(": ")[2]
    return value, user
