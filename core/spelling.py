"""What somebody may have meant with a name that there is not: the names that are spelled much like it."""

from __future__ import annotations

from collections.abc import Iterable

MOST = 3
"""Names that are shown."""
ALIKE = 0.6
"""How much of two names must agree, from 0 to 1 (``difflib``'s ratio)."""
_PART = 3
"""Letters from which on a name may be a part of those that are meant."""


def nearest(name: str, known: Iterable[str], most: int = MOST) -> list[str]:
    """The names spelled most like it, nearest first; then those of which it is a part, shortest first."""
    from difflib import get_close_matches

    names = list(dict.fromkeys(known))
    found = get_close_matches(name, names, n=most, cutoff=ALIKE)
    if len(name) >= _PART and len(found) < most:
        found += sorted((one for one in names if name in one and one not in found), key=len)[: most - len(found)]
    return found


def did_you_mean(name: str, known: Iterable[str], most: int = MOST) -> str | None:
    """The same as a question for an error's hint; None where nothing is near."""
    found = nearest(name, known, most)
    return f"did you mean {' or '.join(found)}?" if found else None
