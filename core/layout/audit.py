"""How far our layout assignment agrees with a real dump: the section ``layout`` of ``hloscope audit``.

The stage before the pass goes through ours and is compared, instruction by instruction, with the real stage after it.
Instructions are matched by name; those that the pass itself made (copies, and the tuples around them) by what they
stand between, because their names depend on names that earlier passes have used up. The passes behind it are
replayed as well (`audit_passes`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hloscope.core.analysis.agreement import Agreement, Section
from hloscope.core.layout.audit_passes import audit_passes
from hloscope.core.layout.match import Key, added
from hloscope.core.layout.orders import order_of, show_shape
from hloscope.core.layout.replay import Replay, replays

if TYPE_CHECKING:
    from hloscope.core.analysis.real_compile import RealCompile
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape


def audit(compile_: RealCompile) -> Section:
    """Replay layout assignment on the dump's stage before it.

    Raises DumpError where the dump holds no stage around the pass, UnsupportedError for a target whose constraints are
    not known.
    """
    figures = {
        name: Agreement()
        for name in ("instructions", "non_default", "changed", "copies_precision", "copies_recall", "added", "names")
    }
    notes: list[str] = []
    for replay in replays(compile_):
        _compare(figures, replay)
        notes += replay.notes
    later, more = audit_passes(compile_)
    figures.update(later)
    notes += more
    return Section({name: found for name, found in figures.items() if found.total}, tuple(notes))


def _compare(figures: dict[str, Agreement], replay: Replay) -> None:
    ours, real = _by_name(replay.ours), _by_name(replay.real)
    for name, before in replay.shapes_before.items():
        theirs = real.get(name)
        mine = ours.get(name)
        if theirs is None or mine is None:
            continue
        equal = _same(mine.shape, theirs.shape)
        note = f"{theirs.opcode} of %{theirs.parent.name}"
        said = (name, show_shape(mine.shape), show_shape(theirs.shape))
        figures["instructions"].add(*said, note=note, equal=equal)
        if _non_default(theirs.shape):
            figures["non_default"].add(*said, note=note, equal=equal)
        if not _same(before, theirs.shape):
            figures["changed"].add(*said, note=note, equal=equal)
    mine, theirs = (list(added(one, replay.shapes_before)) for one in (replay.ours, replay.real))
    _match(figures["copies_precision"], mine, theirs, only_copies=True, subject_is_ours=True)
    _match(figures["copies_recall"], theirs, mine, only_copies=True, subject_is_ours=False)
    _match(figures["added"], theirs, mine, only_copies=False, subject_is_ours=False)
    names = {one.name for one, _ in mine}
    for one, _ in theirs:
        figures["names"].add(one.name, one.name if one.name in names else "another name", one.name)


def _match(
    figure: Agreement,
    subjects: list[tuple[HloInstruction, Key]],
    others: list[tuple[HloInstruction, Key]],
    *,
    only_copies: bool,
    subject_is_ours: bool,
) -> None:
    left = Counter(key for _, key in others)
    for one, key in subjects:
        if only_copies and one.opcode != "copy":
            continue
        found = left[key] > 0
        left[key] -= found
        said = f"{key[0]} of %{key[1]} to {key[2]} for {key[3]}"
        ours, real = (said, "none") if subject_is_ours else ("none", said)
        figure.add(one.name, ours if not found else said, real if not found else said, equal=found)


def _by_name(module: HloModule) -> dict[str, HloInstruction]:
    return {one.name: one for one in module.instructions()}


def _same(a: Shape, b: Shape) -> bool:
    return show_shape(a) == show_shape(b)


def _non_default(shape: Shape) -> bool:
    orders = (order_of(leaf) for _, leaf in shape.leaves() if leaf.is_array)
    return any(order is not None and order != tuple(range(len(order) - 1, -1, -1)) for order in orders)
