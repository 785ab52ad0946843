"""A ``backend_config`` key by key: XLA does not keep the order in which its keys are printed, so text is no measure.

Source: ``openxla/xla:xla/backend_config.cc#GetBackendConfigFromProto``.
"""

from __future__ import annotations

import json
from typing import Any, cast

CONFIG = "backend_config"


def same_config(before: str, after: str) -> bool:
    """Whether two values of ``backend_config``, as printed, say the same; texts that are no JSON do where equal."""
    if before == after:
        return True
    first, last = _parsed(before), _parsed(after)
    return first is not None and first == last


def changed_keys(before: str, after: str) -> list[tuple[str, str, str]]:
    """(path of the key, value before, value after) of what differs; a value that is missing is empty.

    Nothing for texts that are no JSON objects.
    """
    first, last = _parsed(before), _parsed(after)
    found: list[tuple[str, str, str]] = []
    if first is not None and last is not None:
        _compare("", first, last, found)
    return found


def _compare(path: str, before: object, after: object, found: list[tuple[str, str, str]]) -> None:
    if isinstance(before, dict) and isinstance(after, dict):
        first, last = cast("dict[str, object]", before), cast("dict[str, object]", after)
        for key in (*first, *(key for key in last if key not in first)):
            _compare(f"{path}.{key}" if path else key, first.get(key, _MISSING), last.get(key, _MISSING), found)
    elif before != after:
        found.append((path, _said(before), _said(after)))


_MISSING = object()


def _said(value: object) -> str:
    return "" if value is _MISSING else json.dumps(value, ensure_ascii=False)


def _parsed(text: str) -> dict[str, Any] | None:
    """The object that a value is: bare, or quoted as a string."""
    try:
        value: object = json.loads(text)
        if isinstance(value, str):
            value = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
