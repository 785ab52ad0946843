"""A recorder that keeps events in memory, for tests that look at them one by one."""

from __future__ import annotations

from hloscope.core.ledger.declare import Event
from hloscope.core.ledger.events import RewriteDecision
from hloscope.core.ledger.record import NullLedger


class Recorded(NullLedger):
    """Keeps events."""

    enabled = True

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    @property
    def decisions(self) -> list[RewriteDecision]:
        """Those that are about a rewrite."""
        return [event for event in self.events if isinstance(event, RewriteDecision)]
