"""Pairing what the real pass made with what ours made, by what it stands between: names depend on lost history."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hloscope.core.layout.orders import show_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape

MADE = ("copy", "get-tuple-element", "tuple")
"""Opcodes of the instructions that layout assignment adds."""

Key = tuple[str, str, str, str]
"""Opcode, the old value that it comes from, its layout, and whom it is for."""


def added(module: HloModule, before: Mapping[str, Shape]) -> Iterator[tuple[HloInstruction, Key]]:
    """Instructions that were not there before, with what identifies them."""
    for computation in module.computations:
        for one in computation.instructions:
            if one.name in before or one.opcode not in MADE:
                continue
            users = ", ".join(sorted(_end(user, before) for user in one.users)) or "result"
            yield one, (one.opcode, _start(one, before), show_shape(one.shape), f"{computation.name}: {users}")


def pairs(real: HloModule, ours: HloModule, before: Mapping[str, Shape]) -> dict[str, HloInstruction]:
    """Real added instruction -> ours, as far as they correspond."""
    left: dict[Key, list[HloInstruction]] = defaultdict(list)
    for one, key in added(ours, before):
        left[key].append(one)
    return {one.name: left[key].pop(0) for one, key in added(real, before) if left[key]}


def _start(one: HloInstruction, before: Mapping[str, Shape]) -> str:
    """The old value that an added instruction comes from, with a mark for each copy in between."""
    copies = -1 if one.opcode == "copy" else 0
    while one.name not in before and one.opcode in MADE and one.operand_count:
        at = one.attr("index")
        copies += one.opcode == "copy"
        one = one.operand(0)
        if at is not None and one.name in before:
            return f"{one.name}#{at}"
    return one.name + "'" * max(copies, 0)


def _end(user: HloInstruction, before: Mapping[str, Shape]) -> str:
    """The old instruction that an added one is for."""
    while user.name not in before and user.users:
        user = user.users[0]
    return user.name if user.name in before else "result"
