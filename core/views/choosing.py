"""``--module``: one module among many, by number or by a regular expression on the name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hloscope.core.errors import UsageError
from hloscope.core.views.data import ModuleRow


def choose(modules: Sequence[ModuleRow], spec: str | None, path: str) -> tuple[int, str | None]:
    """The number of the module that `spec` names, and a note for the user where there was a choice.

    Without a spec it is the first, which is the largest. Raises UsageError where nothing matches.
    """
    if spec is None:
        note = f"{len(modules)} modules; took the largest, number 0, {modules[0].label} (--module picks another)"
        return 0, note if len(modules) > 1 else None
    if re.fullmatch(r"-?\d+", spec):
        if 0 <= int(spec) < len(modules):
            return int(spec), None
        raise UsageError(f"there is no module {spec}: they are numbered 0 to {len(modules) - 1}", path=path)
    try:
        pattern = re.compile(spec)
    except re.error as error:
        raise UsageError(f"--module {spec!r} is not a regular expression: {error}") from None
    found = [one for one in modules if pattern.search(one.name) or pattern.search(one.label)]
    if not found:
        raise UsageError(f"no module matches {spec!r}", path=path, hint=f"hloscope ls {path} lists {len(modules)}")
    exact = next((one for one in found if one.name == spec), found[0])
    note = f"{len(found)} modules match {spec!r}; took number {exact.index}, {exact.label}" if len(found) > 1 else None
    return exact.index, note
