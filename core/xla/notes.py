"""The note that hloscope leaves beside a dump that it made: XLA itself does not write which build it is."""

from __future__ import annotations

import json


def write_capture_note(path: str, **facts: str | None) -> None:
    """Writes the facts that are known as one JSON object; ``dumps.options.capture_note`` reads it."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({key: value for key, value in facts.items() if value is not None}, file, indent=1)
        file.write("\n")
