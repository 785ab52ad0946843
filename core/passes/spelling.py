"""Refusing a name that does not exist, with the nearest names that do."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from hloscope.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection


def unknown(kind: str, name: str, known: Collection[str], *, where: str = "") -> UsageError:
    """The error for a `kind` (such as ``pass``) called `name` that is not in `known`.

    The hint names the nearest ones, or all of them where there are few.
    """
    near = get_close_matches(name, list(known), n=3, cutoff=0.5)
    if near:
        hint: str | None = f"did you mean {' or '.join(near)}?"
    elif known and len(known) <= 12:
        hint = f"there are {', '.join(sorted(known))}"
    else:
        hint = "see hloscope opt --list"
    place = f" in {where}" if where else ""
    return UsageError(f"no {kind} is called {name!r}{place}", hint=hint)
