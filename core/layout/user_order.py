"""The order in which a value's users stand in the compiler, as far as a dump's stages tell it.

Constraints travel to users in that order, and the last one is followed first. A new user goes to the end; where a user
goes, the last one takes its place. So a replacement usually stands where the old one stood, and what an inlined call
left behind stands the other way round. Source: ``openxla/xla:xla/hlo/ir/hlo_instruction.cc#Users::AddUser,
#Users::RemoveUser``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Users = dict[str, list[str]]
    """Value -> its users, in order."""


def first_order(operands: Mapping[str, Sequence[str]], age: Callable[[str], tuple[int, int]]) -> Users:
    """Users of a computation that is seen for the first time: by age."""
    users: Users = {}
    for user in sorted(operands, key=age):
        for value in dict.fromkeys(operands[user]):
            if value in operands:
                users.setdefault(value, []).append(user)
    return users


def next_order(
    before: Users,
    old: Mapping[str, Sequence[str]],
    now: Mapping[str, Sequence[str]],
    fresh: set[str],
    age: Callable[[str], tuple[int, int]],
    inlined: Callable[[str, str], int],
) -> Users:
    """Users after a stage: `old` and `now` map instructions to their operands, `fresh` were made in between.

    `inlined` says how many users of a value came out of a call that is gone.
    """
    users = first_order(now, age)
    for value, by_age in users.items():
        known = before.get(value)
        if known == by_age and fresh.isdisjoint(by_age):
            continue
        if known is None or value in fresh:
            users[value] = _taken_over(value, by_age, before, old, now, fresh)
        else:
            users[value] = _changed(value, known, by_age, fresh, inlined)
    return users


def _taken_over(
    value: str,
    by_age: list[str],
    before: Users,
    old: Mapping[str, Sequence[str]],
    now: Mapping[str, Sequence[str]],
    fresh: set[str],
) -> list[str]:
    """Users of a new value: those of the value that it replaced, in their order, then new ones."""
    replaced: dict[str, list[str]] = {}
    for user in by_age:
        if user in fresh:
            continue
        for place, operand in enumerate(now[user]):
            if operand == value and place < len(old.get(user, ())):
                replaced.setdefault(old[user][place], []).append(user)
                break
    out: list[str] = []
    for one, moved in replaced.items():
        order = before.get(one, [])
        out += sorted(moved, key=lambda user: order.index(user) if user in order else len(order))
    out = list(dict.fromkeys(out))
    return [*out, *(user for user in by_age if user not in out)]


def _changed(
    value: str, known: list[str], by_age: list[str], fresh: set[str], inlined: Callable[[str, str], int]
) -> list[str]:
    """Users of a value that stayed: each one that went is followed by what was made for it."""
    current = set(by_age)
    slots = [(user, user in current and user not in fresh) for user in known]
    """User and whether it is there to stay; False is one that goes."""
    stay = {user for user, stays in slots if stays}
    coming = [user for user in by_age if user not in stay]
    going = [user for user, stays in slots if not stays]
    for number, user in enumerate(going):
        if user in coming:
            taken = [user]  # a replacement under the old name
        else:
            count = inlined(user, value)
            if number == len(going) - 1:
                count = len(coming)
            elif not count and len(coming) >= len(going) - number:
                count = 1
            taken = coming[:count]
        slots += [(one, True) for one in taken]
        coming = [one for one in coming if one not in taken]
        place = slots.index((user, False))
        slots[place] = slots[-1]
        slots.pop()
    return [user for user, _ in slots] + coming


def set_users(value: HloInstruction, order: Iterable[HloInstruction]) -> None:
    """Put the users of a value in this order, which must hold all of them."""
    order = list(order)
    if list(value.users) == order:
        return
    nothing = HloInstruction("token", Shape.token())
    for user in order:
        places = [number for number, operand in enumerate(user.operands) if operand is value]
        for number in places:
            user.replace_operand(number, nothing)
        for number in places:
            user.replace_operand(number, value)
