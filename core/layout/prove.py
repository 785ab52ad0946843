"""Asking the real compiler whether a change removes a copy: the module is compiled with it and without it."""

from __future__ import annotations

from collections import Counter
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from hloscope.core.analysis.real_compile import DumpCompile, stages_around
from hloscope.core.dumps.directory import open_dump
from hloscope.core.errors import HloscopeError, UnsupportedError
from hloscope.core.hlo.shape import Shape
from hloscope.core.layout.match import added
from hloscope.core.layout.orders import show_shape
from hloscope.core.layout.remedies import apply_change
from hloscope.core.text.printer import print_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.layout.copies import CopyMade
    from hloscope.core.layout.remedies import Change

LAYOUT_PASS = "^layout-assignment$"


def prove(
    before: Callable[[], HloModule],
    change: Change,
    made: CopyMade,
    target: str,
    first: Callable[[], HloModule] | None = None,
    known: dict[str, Copied] | None = None,
) -> tuple[bool, str]:
    """Whether the compiler makes the copy without the change and not with it; otherwise a note says why not.

    The way into the compiler loses names, so copies are told apart by their shape and both layouts. Some stages do not
    come in again (library calls lose their windows); then the program itself, as `first` gives it, is compiled, where
    the change is one of its parameters or results. `target` is one of ``hloscope.core.xla.targets``. What is compiled
    without the change is kept in `known` for the next one. Raises UnsupportedError where wheels are missing.
    """
    kept: dict[str, Copied] = {} if known is None else known
    plain, with_change = _both(before, change, target, kept, "stage")
    if isinstance(plain, str) and first is not None and change.kind in ("parameter", "result"):
        program = first()
        if _entry_shapes(program) == _entry_shapes(before()):
            plain, with_change = _both(first, change, target, kept, "program")
    name = made.copy.name
    if isinstance(plain, str) or isinstance(with_change, str):
        return False, f"{name}: the compiler could not be asked: {plain if isinstance(plain, str) else with_change}"
    kind = _kind(made.copy)
    if not plain[kind]:
        return False, f"{name}: compiled from this stage, the compiler does not make this copy"
    if with_change[kind] >= plain[kind]:
        return False, f"{name}: the compiler makes the copy with the change, too"
    if _bytes(with_change) >= _bytes(plain):
        return False, f"{name}: with the change the compiler copies as much in other places"
    return True, ""


def _both(
    before: Callable[[], HloModule], change: Change, target: str, known: dict[str, Copied], key: str
) -> tuple[Copied, Copied]:
    """The copies without and with the change; the second is not asked for where the first failed."""
    plain = known.get(key)
    if plain is None:
        plain = known[key] = _copied(before(), target)
    if isinstance(plain, str):
        return plain, plain
    edited = before()
    apply_change(edited, change)
    return plain, _copied(edited, target)


def _entry_shapes(module: HloModule) -> list[Shape]:
    return [one.shape.without_layout() for one in (*module.entry.parameters, module.entry.root)]


Kind = tuple[str, str, str]
"""Shape without layout, layout of the definition, layout of the use."""


Copied: TypeAlias = "Counter[Kind] | str"


def _copied(module: HloModule, target: str) -> Copied:
    """The copies that the compiler's layout assignment makes; a text where it failed."""
    from hloscope.core.xla.compile import compile_hlo_text

    with TemporaryDirectory(prefix="hloscope-prove-") as folder:
        try:
            compile_hlo_text(print_module(module), dump_to=folder, target=target, pass_re=LAYOUT_PASS, proto=False)
            with open_dump(folder) as dump:
                compiled = DumpCompile(dump.select(None)[0])
                pair = stages_around(compiled, "layout-assignment")[-1]
                real = compiled.module(pair.after.index)
                shapes = {one.name: one.shape for one in compiled.module(pair.before.index).instructions()}
        except UnsupportedError:
            raise
        except HloscopeError as error:
            return error.message
        return Counter(_kind(one) for one, _ in added(real, shapes) if one.opcode == "copy")


def _kind(copy: HloInstruction) -> Kind:
    return copy.shape.to_text(layout=False), show_shape(copy.operand(0).shape), show_shape(copy.shape)


def _bytes(copies: Counter[Kind]) -> int:
    return sum(Shape.parse(shape).byte_size * count for (shape, _, _), count in copies.items())
