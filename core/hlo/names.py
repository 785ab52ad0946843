"""Unique names, made as XLA makes them. Source: ``openxla/xla:xla/service/name_uniquer.cc``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.hlo.element_types import ELEMENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable

_BAD = re.compile(r"[^A-Za-z0-9_.\-]")
_SUFFIX = re.compile(r"^(?P<root>.*?)\.(?P<number>0|[1-9]\d*)$", re.S)


def sanitize(name: str) -> str:
    """A name of allowed characters only: letters, digits, ``_``, ``.``, ``-``, not a type word, no ``__`` in front."""
    if not name:
        return "name"
    out = _BAD.sub("_", name)
    if not (out[0].isalpha() or out[0] == "_"):
        out = "_" + out
    if out in ELEMENT_TYPES and out not in ("tuple", "buffer"):
        out += "_"
    if out.startswith("__") and not out.startswith("__xla_"):
        out = "a" + out[1:]
    return out


class NameUniquer:
    """Hands out names that were not handed out before; the same calls give the same names."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}  # name: nodes that carry it; a text may give one to nodes of two computations
        self._next: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Mark a name as taken as it stands."""
        self._taken[name] = self._taken.get(name, 0) + 1

    def reserve_all(self, names: Iterable[str]) -> None:
        """Mark names as taken as they stand."""
        taken = self._taken
        for name in names:
            taken[name] = taken[name] + 1 if name in taken else 1

    def release(self, name: str) -> None:
        """A node gave up its name; it is free again when no node carries it any more."""
        left = self._taken.get(name, 0) - 1
        if left > 0:
            self._taken[name] = left
        else:
            self._taken.pop(name, None)

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def unique(self, prefix: str) -> str:
        """`prefix` itself where it is free, else its root with the smallest number not handed out yet."""
        name = sanitize(prefix)
        if name not in self._taken:
            self._taken[name] = 1
            return name
        found = _SUFFIX.match(name)
        root = found["root"] if found is not None and found["root"] else name
        number = self._next.get(root, 1)
        while f"{root}.{number}" in self._taken:
            number += 1
        self._next[root] = number + 1
        name = f"{root}.{number}"
        self._taken[name] = 1
        return name
