"""What the dashboard remembers between two openings: theme, saved queries, and for each run where one was.

One JSON file, ``$XDG_STATE_HOME/hloscope/dashboard.json`` (``~/.local/state`` without it). A file that cannot be read
or written is no error: the dashboard then starts afresh.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

RUNS = 200
"""Runs that are remembered; the ones opened longest ago go."""


def state_path() -> Path:
    """Where the state lies."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "hloscope" / "dashboard.json"


class State:
    """The remembered values. With no path nothing is read or written."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._data: dict[str, Any] = {}
        if path is not None:
            with suppress(OSError, ValueError):
                found = json.loads(path.read_text("utf-8"))
                if isinstance(found, dict):
                    self._data = found

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the whole dashboard."""
        return self._data.get(key, default)

    def put(self, key: str, value: object) -> None:
        """Remember a value of the whole dashboard."""
        self._data[key] = value

    def run(self, key: str) -> dict[str, Any]:
        """What is remembered of one run; a copy."""
        runs = self._data.get("runs")
        found = runs.get(key) if isinstance(runs, dict) else None
        return dict(found) if isinstance(found, dict) else {}

    def put_run(self, key: str, values: dict[str, Any]) -> None:
        """Remember a run; it becomes the newest."""
        runs = self._data.get("runs")
        kept: dict[str, Any] = dict(runs) if isinstance(runs, dict) else {}
        kept.pop(key, None)
        kept[key] = values
        self._data["runs"] = dict(list(kept.items())[-RUNS:])

    def save(self) -> None:
        """Write the file anew, whole or not at all."""
        if self._path is None:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            scratch = self._path.with_suffix(f".{os.getpid()}.tmp")
            scratch.write_text(json.dumps(self._data, indent=1), "utf-8")
            scratch.replace(self._path)
