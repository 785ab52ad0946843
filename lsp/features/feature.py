"""What a feature is: one request's name, a pure function that answers it, and how much it costs.

Adding one: write ``features/<name>.py`` with a function from a `Reading` and the request's parameters to the protocol's
answer, a `FEATURE` that declares it, and a line in ``features/table.py``. Server, threads, cancellation, errors and
large files are the server's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hloscope.lsp.documents import Reading

FULL_INSTRUCTIONS = 40_000
"""Up to here every request is answered in full; what changes above is said in `Feature.large`."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A request about one text."""

    method: str
    """As the protocol names it (``textDocument/hover``)."""
    answer: Callable[[Reading, Any], Any]
    """From the text and the request's parameters to the result; runs on a worker where `heavy`."""
    heavy: bool = False
    """The answer takes longer than a few milliseconds on a large text, or is itself large."""
    options: object | None = None
    """What ``initialize`` tells the client beside the method."""
    large: str | None = None
    """What this feature does on a text above `FULL_INSTRUCTIONS`, for the message shown; None where it is the same."""

    @property
    def name(self) -> str:
        """The method's last word, for log lines."""
        return self.method.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class WorkspaceFeature:
    """A request about all open texts; always on a worker."""

    method: str
    answer: Callable[[Sequence[Reading], Any, Callable[[str], None]], Any]
    """From the texts, the parameters, and what tells the client's log something, to the result."""
    options: object | None = None

    @property
    def name(self) -> str:
        """The method's last word, for log lines."""
        return self.method.rpartition("/")[2]
