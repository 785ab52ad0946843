"""Refusing a name that does not exist, with the nearest names that do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import UsageError
from hloscope.core.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection


def unknown(kind: str, name: str, known: Collection[str], *, where: str = "") -> UsageError:
    """The error for a `kind` (such as ``pass``) called `name` that is not in `known`.

    The hint names the nearest ones, or all of them where there are few.
    """
    few = f"there are {', '.join(sorted(known))}" if known and len(known) <= 12 else None
    hint = did_you_mean(name, known) or few or "see hloscope opt --list"
    place = f" in {where}" if where else ""
    return UsageError(f"no {kind} is called {name!r}{place}", hint=hint)
