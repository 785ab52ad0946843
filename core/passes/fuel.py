"""Fuel: how many optional rewrites a pass may make, for any pass. ``PASS=N`` permits exactly its first N.

Fuel is a handler of the gate like any other; passes do not know it. Source of the flag's form and of the warning:
``openxla/xla:xla/debug_options_flags.cc#ConsumeFuel``.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.errors import UsageError
from hloscope.core.passes.gate import Question, Refusal
from hloscope.core.passes.spelling import unknown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_NUMBER = re.compile(r"\d+$")


def parse_fuel(texts: str | Iterable[str]) -> dict[str, int]:
    """Limits by pass name from ``PASS=N[,PASS=N]`` (one text or several); a later limit of a pass replaces an earlier.

    Raises UsageError where an item has not exactly one ``=``, no name, or no whole number of 0 or more.
    """
    limits: dict[str, int] = {}
    for text in (texts,) if isinstance(texts, str) else texts:
        if not text.strip():
            raise UsageError("fuel is given as PASS=N, got nothing")
        for item in text.split(","):
            name, equals, number = item.partition("=")
            name, number = name.strip(), number.strip()
            if not equals or "=" in number or not name:
                raise UsageError(f"fuel is given as PASS=N, got {item!r}")
            if not _NUMBER.match(number):
                raise UsageError(f"fuel of {name} must be a whole number of 0 or more, got {number!r}")
            limits[name] = int(number)
    return limits


class Fuel:
    """The fuel of one compile; a pass without a limit is never refused."""

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        self.limits: Mapping[str, int] = MappingProxyType(dict(limits or {}))
        """Rewrites permitted, by pass name."""
        self._asked: set[str] = set()

    @staticmethod
    def parse(texts: str | Iterable[str]) -> Fuel:
        """Fuel from ``PASS=N[,PASS=N]``. Raises UsageError."""
        return Fuel(parse_fuel(texts))

    def __bool__(self) -> bool:
        return bool(self.limits)

    def check_names(self, known: Collection[str]) -> None:
        """Raises UsageError, with the nearest names, for a limit on a pass that does not exist."""
        for name in self.limits:
            if name not in known:
                raise unknown("pass", name, known, where="--fuel")

    def decide(self, question: Question) -> Refusal | None:
        """The gate's question: refused from ordinal N on."""
        limit = self.limits.get(question.pass_name)
        if limit is None:
            return None
        self._asked.add(question.pass_name)
        if question.ordinal < limit:
            return None
        return Refusal("fuel_exhausted", f"{limit} permitted")

    def unused(self) -> tuple[str, ...]:
        """Passes with a limit that never asked for any: most often the pass did not run or had nothing to do."""
        return tuple(name for name in self.limits if name not in self._asked)

    def warnings(self) -> tuple[str, ...]:
        """One sentence for each pass of `unused`."""
        return tuple(f"fuel for {name} was never asked for" for name in self.unused())
