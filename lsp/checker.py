"""The full reader and the verifier on large texts, in a process of their own that stays for the next text.

They take about 40 ms for a thousand instructions and share one interpreter's time with every answer: in a child
process they hold up nothing, and can be ended when an edit overtakes them. The child ends with the server, when nothing
has been asked for a while, and after a very large text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import sys
from collections.abc import Mapping
from typing import Any

from hloscope.core.errors import UsageError
from hloscope.lsp.companion import end, start_child

log = logging.getLogger(__name__)

MOST_INSTRUCTIONS = 400_000
"""Larger texts are left to ``hloscope verify``."""
IDLE_SECONDS = 120.0
_LONGEST_ANSWER = 64 << 20
_LONGEST_KEPT = 32 << 20
"""A child that has read more characters than this holds a lot of memory, and is not kept."""
_SECONDS = 300.0


class Checker:
    """One server's child; asked one text at a time."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def check(self, text: str) -> Mapping[str, Any]:
        """The findings of one text, as ``hloscope.lsp.child`` writes them. Cancelling ends the child.

        Raises UsageError where the child cannot answer.
        """
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
            try:
                answer = await asyncio.wait_for(self._ask(text), _SECONDS)
            except TimeoutError:
                self.close()
                raise UsageError(f"not verified after {_SECONDS:g} seconds") from None
            except BaseException:
                self.close()
                raise
            if len(text) > _LONGEST_KEPT:
                self.close()
            else:
                self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.close)
            return answer

    async def _ask(self, text: str) -> Mapping[str, Any]:
        if self._child is None or self._child.returncode is not None:
            command = [sys.executable, "-m", "hloscope.lsp.child", "texts"]
            self._child = await start_child(command, limit=_LONGEST_ANSWER, talks=True)
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        data = await asyncio.to_thread(text.encode, "utf-8", "surrogatepass")
        try:
            child.stdin.write(struct.pack("<Q", len(data)))
            # In parts: the pipe's own buffer would copy all of it at once, on the loop.
            for at in range(0, len(data), 1 << 18):
                child.stdin.write(data[at : at + (1 << 18)])
                await child.stdin.drain()
            line = await child.stdout.readline()
        except (OSError, ValueError) as error:
            raise UsageError(f"the process that verifies has ended: {error}") from None
        if not line:
            raise UsageError("the process that verifies has ended")
        found: Any = await asyncio.to_thread(json.loads, line)
        if "error" in found:
            raise UsageError(found["error"])
        return found

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            end(child.pid)
