"""Waiting for a dashboard under test."""

from __future__ import annotations

from contextlib import suppress

from textual.pilot import Pilot
from textual.worker import WorkerCancelled, WorkerFailed


async def settle(pilot: Pilot[None]) -> None:
    """Until nothing runs; work may start work."""
    for _ in range(12):
        with suppress(WorkerCancelled, WorkerFailed):  # a newer question has taken the place of an older one
            await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        if not any(one.is_running for one in pilot.app.workers):
            break
