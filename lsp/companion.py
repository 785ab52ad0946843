"""What the dump around an open stage knows of its instructions: copies, fusion decisions, memory, the pass that made
them.

All but the last takes seconds, and so does that where passes renamed them: a child process works it out once a text is
open and nobody types, and the answers use what is there by then. The facts are by instruction name, so that they stay
right where lines move, and are of the dump as it is on disk.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hloscope.core.analysis.device import load_device
from hloscope.core.errors import UsageError
from hloscope.lsp.features.stages import dump_of, newest

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription

log = logging.getLogger(__name__)

FACTS_SECONDS = 120.0
"""After which the child is ended: a huge dump has its facts on the command line."""
MOST_BYTES = 400 << 20
"""Dumps whose module has more text than this are left to the command line."""
_LAUNCH = """
import os, sys
if sys.platform != "win32":
    os.nice(int(sys.argv[1]))
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Steps back behind the server's own work and, on Linux, ends when the server does, however that happens."""
BACKGROUND, WAITED = 10, 1
"""How far a child steps back that nobody has asked for, and one whose answer somebody waits for: on a busy machine the
first may get a fiftieth of the time."""
_MOST_NAMES = 6
"""Of one instruction, that are told."""
_BIRTH_SECONDS = 0.015
"""How long one hover may look through the earlier stages for the first that has the instruction."""

Row = Mapping[str, Any]


@dataclass(slots=True)
class DumpFacts:
    """What the child found, by instruction."""

    target: str | None = None
    copies: dict[str, Row] = field(default_factory=dict[str, Row])
    fusion: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])
    """By producer, consumers and the fusion made."""
    refused: list[Row] = field(default_factory=list[Row])
    """The most bytes first."""
    buffers: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])
    at: dict[tuple[int, int], list[str]] = field(default_factory=dict[tuple[int, int], list[str]])
    """Names of the values at an (allocation, offset)."""
    hazards: list[Row] = field(default_factory=list[Row])
    renamed: dict[str, Row] = field(default_factory=dict[str, Row])
    """By the name that a pass gave."""
    notes: list[str] = field(default_factory=list[str])

    @staticmethod
    def of(data: Mapping[str, Any]) -> DumpFacts:
        """From the child's answer."""
        out = DumpFacts(target=data.get("target"), notes=list(data.get("notes", ())))
        for row in data.get("copies", ()):
            for name in row["names"]:
                out.copies.setdefault(name, row)
        fusion = defaultdict[str, list[Row]](list)
        for row in data.get("fusion", ()):
            for name in dict.fromkeys([row["producer"], row["made"], *row["consumers"]]):
                if name:
                    fusion[name].append(row)
            if row["verdict"] in ("refused", "ineligible"):
                out.refused.append(row)
        out.fusion = dict(fusion)
        out.refused.sort(key=lambda row: -(row["bytes"] or 0))
        for row in data.get("buffers", ()):
            out.buffers.setdefault(row["name"], []).append(row)
            out.at.setdefault((row["allocation"], row["offset"]), []).append(row["name"])
        out.hazards = list(data.get("hazards", ()))
        for row in data.get("renamed", ()):
            out.renamed.setdefault(row["name"], row)
        return out


class Companion:
    """The dump that one open text is a stage of; without one all its answers are empty."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.facts: DumpFacts | None = None
        """None until the child has answered."""
        self.failed: str | None = None
        """Why there are none, in one line."""
        self._births: dict[str, str | None] = {}
        self._seen: object = None
        """What the dump on disk was when it was asked about."""

    def look(self) -> bool:
        """Forget everything where the dump on disk is not what it was; whether that is so."""
        place = dump_of(self.uri)
        seen = None if place is None else (place.files, place.bytes, newest(place.folder))
        before, self._seen = self._seen, seen
        if before is None or seen == before:
            return False
        self.facts, self.failed, self._births = None, None, {}
        return True

    async def prepare(self) -> bool:
        """Ask the child, once; whether there is something new."""
        if self.facts is not None or self.failed is not None:
            return False
        place = dump_of(self.uri)
        if place is None or place.bytes > MOST_BYTES:
            self.failed = "in no dump" if place is None else "a large dump: see hloscope copies, fusion, buffers"
            return False
        try:
            answer = await ask("facts", place.folder, str(place.module), seconds=FACTS_SECONDS, nice=BACKGROUND)
        except UsageError as error:
            self.failed = error.message
            log.info("no facts for %s: %s", self.uri, error.message)
            return False
        self.facts = DumpFacts.of(answer)
        return True

    def device(self, *, tiled: bool = False) -> DeviceDescription | None:
        """The GPU whose rates the text's costs are for; None for another backend, of which no rates are known.

        A text in no dump is judged by the usual GPU, unless it is `tiled` as only TPU's are.
        """
        place = dump_of(self.uri)
        if place is not None:
            return place.device
        return None if tiled else load_device()

    @property
    def in_dump(self) -> bool:
        """Whether the text is a stage of a dump."""
        return dump_of(self.uri) is not None

    def born(self, name: str) -> str | None:
        """After which pass an instruction is first there, in words; None where it is not known quickly.

        Under another name, too, once the facts are known.
        """
        facts = self.facts
        given = list[Row]()
        while facts is not None and name in facts.renamed and len(given) < _MOST_NAMES:
            given.append(facts.renamed[name])
            name = facts.renamed[name]["old"]
        born = self._born(name)
        if born is None or not given:
            return born
        return f"{born} as %{name}" + "".join(f", renamed %{row['name']} by {row['pass']}" for row in given[::-1])

    def _born(self, name: str) -> str | None:
        if name not in self._births:
            place = dump_of(self.uri)
            if place is None:
                return None
            deadline = time.monotonic() + _BIRTH_SECONDS
            found = place.first_with(name, deadline)
            if found is None:
                return None
            self._births[name] = found
        return self._births[name]


_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


async def ask(question: str, *arguments: str, seconds: float, nice: int = WAITED) -> dict[str, Any]:
    """One question to a child process, which ends with the task that waits. Raises UsageError for what it says."""
    command = [sys.executable, "-m", "hloscope.lsp.child", question, *arguments]
    code, out, err = await run_child(command, seconds, nice=nice)
    if code:
        raise UsageError(err.strip().rpartition("\n")[2] or f"ended with {code}")
    found: Any = json.loads(out)
    return found


async def start_child(
    command: list[str],
    *,
    limit: int = 1 << 16,
    talks: bool = False,
    stderr: int | None = None,
    nice: int = BACKGROUND,
) -> asyncio.subprocess.Process:
    """A process that steps back behind the server and ends with it. `talks` gives it a stdin, and our stderr;
    `limit` is the longest line that is read from it, `stderr` a file to use for it."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        "-c",
        _LAUNCH,
        str(nice),
        *command,
        stdin=asyncio.subprocess.PIPE if talks else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr if stderr is not None else None if talks else asyncio.subprocess.PIPE,
        # On its own, so that all that it starts can be ended with it.
        start_new_session=True,
        limit=limit,
    )


async def run_child(
    command: list[str], seconds: float, watch: Callable[[str], None] | None = None, *, nice: int = WAITED
) -> tuple[int, str, str]:
    """Run a process to its end, or to ours: exit code, stdout, stderr. Raises UsageError when the time is over.

    `watch` is given each line of stderr as it comes, where the system has terminals: commands say how far they are
    only to one.
    """
    terminal = _Terminal(watch) if watch is not None and hasattr(os, "openpty") else None
    try:
        child = await start_child(command, stderr=None if terminal is None else terminal.given, nice=nice)
        try:
            out, err = await asyncio.wait_for(child.communicate(), seconds)
        except TimeoutError:
            raise UsageError(f"not done after {seconds:g} seconds") from None
        finally:
            if child.returncode is None:
                end(child.pid)
                await child.wait()
        said = err.decode("utf-8", "replace") if terminal is None else terminal.all()
    finally:
        if terminal is not None:
            terminal.close()
    return child.returncode or 0, out.decode("utf-8", "replace"), said


class _Terminal:
    """A terminal for a child's stderr, read line by line."""

    def __init__(self, watch: Callable[[str], None]) -> None:
        import tty

        self._watch = watch
        self._own, self.given = os.openpty()
        """The child's end."""
        tty.setraw(self.given)
        os.set_blocking(self._own, False)
        self._bytes = bytearray()
        self._told = 0
        asyncio.get_running_loop().add_reader(self._own, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._own, 1 << 16)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._own)
            return
        self._bytes += data
        end = max(self._bytes.rfind(b"\n"), self._bytes.rfind(b"\r")) + 1
        lines = _plain(bytes(self._bytes[self._told : end])).splitlines()
        if lines:
            self._watch(lines[-1].strip())
        self._told = max(self._told, end)

    def all(self) -> str:
        """All that was said."""
        while True:
            before = len(self._bytes)
            self._read()
            if len(self._bytes) == before:
                return _plain(bytes(self._bytes))

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._own)
        os.close(self._own)
        os.close(self.given)


def _plain(data: bytes) -> str:
    return _COLOURS.sub("", data.decode("utf-8", "replace"))


def end(process: int) -> None:
    """End a child with all that it has started."""
    import signal

    try:
        if sys.platform == "win32":
            os.kill(process, signal.SIGTERM)
        else:
            os.killpg(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
