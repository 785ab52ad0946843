"""The open texts, and what is known of each.

An edit makes a new `Snapshot` at once, on the loop; the index of its text is made by a worker, after a pause in the
typing or as soon as a request asks, from the last index that there is: only what changed since is read again. A request
keeps the snapshot that was current when it came, so it sees exactly the edits before it and its ranges fit the text it
was asked about. A snapshot that is overtaken before anybody asked is never built, and its findings are never published.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Container, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from lsprotocol import types

from hloscope.core.dumps.filenames import FileKind, parse_name
from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.text.reindex import SplicedIndex, reindexed
from hloscope.lsp.companion import Companion
from hloscope.lsp.positions import Encoding, TextLines
from hloscope.lsp.verified import Verified
from hloscope.lsp.workers import Urgency, Workers

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.08
"""How long typing must rest before a text is read again on its own account."""

LONG_CHARACTERS = 8 << 20
"""A text from which on its first look takes so long, some tenths of a second, that it is said how far it is."""

DUMP_PAUSE_SECONDS = 0.3
"""How long a text must rest before a child process is started for its dump."""

_HEAD = re.compile(r"\ufeff?(?:\s+|//[^\n\r]*|/\*.*?\*/)*HloModule\b", re.S)
_HEAD_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class Reading:
    """One version of one text with its index: all that a feature gets."""

    uri: str
    version: int
    lines: TextLines
    index: ModuleIndex
    encoding: Encoding
    companion: Companion | None = None
    """The dump that the text is a stage of, for what it knows by now."""
    verified: Verified = field(default_factory=Verified)
    """What the verifier has said of the text and of its versions before."""

    @property
    def text(self) -> str:
        """The whole text."""
        return self.lines.text

    def offset(self, position: types.Position) -> int:
        """The character at a client's position."""
        return self.lines.offset(position.line, position.character, self.encoding)

    def range(self, start: int, end: int) -> types.Range:
        """The client's range of the characters ``[start, end)``."""
        first, last = self.lines.position(start, self.encoding), self.lines.position(end, self.encoding)
        return types.Range(types.Position(*first), types.Position(*last))

    def location(self, start: int, end: int) -> types.Location:
        """The same with the document's address."""
        return types.Location(self.uri, self.range(start, end))


@dataclass(frozen=True, slots=True)
class Check:
    """One look for what is wrong with a text."""

    find: Callable[[Reading], list[types.Diagnostic] | None]
    """The findings, which replace those of the check before; None where there is nothing to add to them."""
    rest: Callable[[Reading], float]
    """Seconds of rest after the check before: a slow look is for texts that nobody is typing in."""
    ask: Callable[[Reading], Awaitable[None]] | None = None
    """What is waited for on the loop before: the answer of another process. Cancelled by the next edit."""


@dataclass(frozen=True, slots=True)
class PythonChecks:
    """How Python files are told and looked at."""

    claims: Callable[[str, str], bool]
    """Whether a text of this address and language is Python."""
    find: Callable[[str, TextLines, Encoding], list[types.Diagnostic]]


@dataclass(frozen=True, slots=True)
class Since:
    """What has changed since a version that was read: one range that holds all edits."""

    reading: Reading
    start: int
    """-1 where there was no edit yet."""
    old_end: int
    """End of the range in that version's text."""
    new_end: int
    """End of the range in the text as it is now."""

    def edited(self, start: int, end: int, inserted: int) -> Since:
        """The same after one more edit, given in characters of the text as it is now."""
        if self.start < 0:
            return Since(self.reading, start, end, start + inserted)
        beyond = max(0, end - self.new_end)
        first = min(self.start, start)
        return Since(
            self.reading,
            first,
            self.old_end + beyond,
            self.new_end + beyond + inserted - (end - start),
        )


class Steps:
    """How far a worker is with something; others look at it."""

    def __init__(self) -> None:
        self.percentage = 0

    def watch(self, done: int, of: int) -> None:
        """So many of so many steps are done."""
        self.percentage = 100 * done // max(of, 1)


class Snapshot:
    """One version of one text."""

    def __init__(self, uri: str, version: int, lines: TextLines, since: Since | None = None) -> None:
        self.since = since
        """The version to start from when this one is read; forgotten then."""
        self.uri = uri
        self.version = version
        self.lines = lines
        self.waiters = 0
        """Requests that wait for the index of exactly this version."""
        self.reading: asyncio.Future[Reading] | None = None
        """The index, from the moment somebody wanted it."""
        self.steps = Steps()
        """How far its reading is."""

    def forget(self) -> None:
        """Let go of the version before, which may be large."""
        self.since = None


class Document:
    """One open text; `current` is replaced by every edit."""

    def __init__(self, snapshot: Snapshot, is_hlo: bool, is_python: bool = False) -> None:
        self.current = snapshot
        self.is_hlo = is_hlo
        self.is_python = is_python
        """A Python file is scanned for Pallas calls and never indexed."""
        self.is_open = True
        self.companion = Companion(snapshot.uri) if is_hlo and not is_python else None
        self.verified = Verified()
        self.found: list[types.Diagnostic] = []
        """The latest findings of the text itself."""
        self.check: asyncio.Task[None] | None = None
        """The look at the current version; cancelled by the next edit."""
        self.published = False


class Pin:
    """A request's hold on one version: as long as it lasts, that version is worth reading."""

    def __init__(self, document: Document, documents: Documents) -> None:
        self._document = document
        self._documents = documents
        self._snapshot = document.current
        self._snapshot.waiters += 1
        self._released = False

    async def reading(self) -> Reading:
        """The version with its index."""
        return await self._documents.read(self._document, self._snapshot, Urgency.REQUEST)

    def release(self) -> None:
        """The request is answered or cancelled."""
        if not self._released:
            self._released = True
            self._snapshot.waiters -= 1


def looks_like_hlo(uri: str, language: str, text: str) -> bool:
    """Whether a text is ours: by its language, by its name (``.hlo``, XLA's dump names), else by its first word."""
    if language.lower() == "hlo":
        return True
    name = os.path.basename(unquote(urlsplit(uri).path))
    if name.endswith((".hlo", ".hlo.txt")):
        return True
    if name.endswith(".txt") and parse_name(name).kind is FileKind.STAGE:
        return True
    has_extension = "." in name and not name.endswith(".txt")
    return not has_extension and _HEAD.match(text[:_HEAD_CHARACTERS]) is not None


def _base(current: Snapshot) -> Since | None:
    """Where to start from for the next version: this one if it is read, else where it would start from itself."""
    job = current.reading
    if job is not None and job.done() and not job.cancelled() and job.exception() is None:
        return Since(job.result(), -1, -1, -1)
    return current.since


def _index(lines: TextLines, since: Since | None, steps: Steps) -> ModuleIndex:
    """The index of a text, from that of an earlier version where the edits since are few."""
    if since is not None:
        found = reindexed(since.reading.index, lines.text, since.start, since.old_end, line_starts=lines.starts)
        if found is not None:
            return found
    return ModuleIndex.from_text(lines.text, steps.watch)


def _merged(found: list[types.Diagnostic], of_dump: list[types.Diagnostic]) -> list[types.Diagnostic]:
    """Findings of the text and of its dump; where the dump knows the cause of a copy, the copy is said once."""
    told = {
        (one.range.start.line, one.range.start.character)
        for one in of_dump
        if one.code in ("layout-copy-cause", "copy-cause")
    }
    return [
        one
        for one in found
        if one.code != "layout-copy" or (one.range.start.line, one.range.start.character) not in told
    ] + of_dump


def _prepare(index: ModuleIndex) -> None:
    """Make the tables of names and users, which the index makes when first asked: not while somebody hovers."""
    if index.instruction_count and not isinstance(index, SplicedIndex):
        index.users(0)
        index.find("")


class Documents:
    """All open texts of one client."""

    def __init__(
        self,
        workers: Workers,
        *,
        checks: Sequence[Check],
        publish: Callable[[str, int | None, list[types.Diagnostic]], None],
        first_read: Callable[[Reading], None],
        python: PythonChecks,
        asking: Callable[[str], AbstractAsyncContextManager[None]] = lambda _: nullcontext(),
        tell: Callable[[str, Steps], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """`asking` goes around the child process that works out the facts of a dump; it is given the address.
        `tell` says how far the first look at a long text is, until it is cancelled."""
        self._asking = asking
        self._tell = tell
        self.facts_check: Callable[[Reading], list[types.Diagnostic]] | None = None
        """Findings from the facts of the dump around a text; None where the client wants none, and none are asked."""
        self.encoding = Encoding.UTF16
        """The unit of the client's columns, as agreed in ``initialize``."""
        self._workers = workers
        self._checks = tuple(checks)
        self._publish = publish
        self._first_read = first_read
        self._python = python
        self._documents: dict[str, Document] = {}

    def set_checks(self, checks: Sequence[Check]) -> None:
        """What is looked for from now on, as the client wishes."""
        self._checks = tuple(checks)

    def look_again(self, folders: Container[str] | None = None) -> None:
        """Look at every text anew, as after an edit: what is looked for has changed, or what lies in these folders."""
        for uri, document in self._documents.items():
            if document.is_python and folders is None:
                if document.check is not None:
                    document.check.cancel()
                document.check = asyncio.ensure_future(self._look_at_python(document, document.current, 0))
            if document.is_hlo and (folders is None or uri.rpartition("/")[0] in folders):
                if document.check is not None:
                    document.check.cancel()
                document.check = asyncio.ensure_future(self._look(document, document.current, 0, first=False))

    # ---------------------------------------------------------------- edits
    def open(self, uri: str, language: str, version: int, text: str) -> None:
        """Take over a text. Opening again what is open replaces it."""
        if uri in self._documents:
            self.close(uri)
        is_hlo, is_python = looks_like_hlo(uri, language, text), self._python.claims(uri, language)
        document = Document(Snapshot(uri, version, TextLines.of(text)), is_hlo and not is_python, is_python)
        self._documents[uri] = document
        if document.is_python:
            document.check = asyncio.ensure_future(self._look_at_python(document, document.current, 0))
        elif document.is_hlo:
            document.check = asyncio.ensure_future(self._look(document, document.current, 0, first=True))

    def change(self, uri: str, version: int, changes: Sequence[types.TextDocumentContentChangeEvent]) -> None:
        """Apply edits, each to the text that the one before left."""
        document = self._documents.get(uri)
        if document is None:
            log.warning("edit of %s, which is not open", uri)
            return
        lines, since = document.current.lines, _base(document.current)
        for change in changes:
            if isinstance(change, types.TextDocumentContentChangePartial):
                where = change.range
                start = lines.offset(where.start.line, where.start.character, self.encoding)
                end = lines.offset(where.end.line, where.end.character, self.encoding)
                start, end = min(start, end), max(start, end)
                lines = lines.replaced(start, end, change.text)
                since = None if since is None else since.edited(start, end, len(change.text))
            else:
                lines, since = TextLines.of(change.text), None
        document.current = Snapshot(uri, version, lines, since)
        if document.check is not None:
            document.check.cancel()
        if document.is_python:
            document.check = asyncio.ensure_future(self._look_at_python(document, document.current, PAUSE_SECONDS))
            return
        first = not document.is_hlo
        if not document.is_hlo and looks_like_hlo(uri, "", lines.text):
            document.is_hlo, document.companion = True, Companion(uri)
        if document.is_hlo:
            document.check = asyncio.ensure_future(self._look(document, document.current, PAUSE_SECONDS, first=first))

    def close(self, uri: str) -> None:
        """Forget a text and take back its findings."""
        document = self._documents.pop(uri, None)
        if document is None:
            return
        document.is_open = False
        if document.check is not None:
            document.check.cancel()
        if document.published:
            self._publish(uri, None, [])

    # ---------------------------------------------------------------- reading
    def pin(self, uri: str) -> Pin | None:
        """The text as of now; None for one that is not open or not HLO. To be released by the caller."""
        document = self._documents.get(uri)
        return Pin(document, self) if document is not None and document.is_hlo else None

    def pin_all(self) -> list[Pin]:
        """All HLO texts as of now; each to be released."""
        return [Pin(document, self) for document in self._documents.values() if document.is_hlo]

    async def read(self, document: Document, snapshot: Snapshot, urgency: Urgency) -> Reading:
        """The index of one version; many may wait for the same."""
        if snapshot.reading is None:
            encoding = self.encoding

            def build() -> Reading:
                index = _index(snapshot.lines, snapshot.since, snapshot.steps)
                companion, verified = document.companion, document.verified
                return Reading(snapshot.uri, snapshot.version, snapshot.lines, index, encoding, companion, verified)

            def wanted() -> bool:
                return snapshot.waiters > 0 or (document.is_open and document.current is snapshot)

            job = self._workers.submit(build, urgency=urgency, wanted=wanted)
            snapshot.reading = asyncio.wrap_future(job)
            snapshot.reading.add_done_callback(lambda _: snapshot.forget())
        # The index is everybody's: one request's cancellation must not end it.
        return await asyncio.shield(snapshot.reading)

    def text(self, uri: str) -> str | None:
        """The current text; None where it is not open."""
        document = self._documents.get(uri)
        return None if document is None else document.current.lines.text

    def traced(self, uri: str, found: Callable[[TextLines | None, Encoding], list[types.Diagnostic]]) -> int:
        """Publish findings on the kernels of a Python file until its next edit; how many there are."""
        document = self._documents.get(uri)
        if document is None:
            out = found(None, self.encoding)
            self._publish(uri, None, out)
            return len(out)
        out = found(document.current.lines, self.encoding)
        document.published = True
        self._publish(uri, document.current.version, out)
        return len(out)

    def python(self, uri: str) -> TextLines | None:
        """The current text of a Python file; None for other texts."""
        document = self._documents.get(uri)
        return document.current.lines if document is not None and document.is_python else None

    # ---------------------------------------------------------------- findings
    async def _look_at_python(self, document: Document, snapshot: Snapshot, pause: float) -> None:
        """Publish what the Pallas calls of a version show, unless an edit overtakes it."""
        try:
            if pause:
                await asyncio.sleep(pause)
            encoding = self.encoding
            job = self._workers.submit(
                lambda: self._python.find(snapshot.uri, snapshot.lines, encoding),
                urgency=Urgency.BACKGROUND,
                wanted=lambda: document.current is snapshot,
            )
            found = await asyncio.wrap_future(job)
            # A file without Pallas is somebody else's: nothing is said of it, not even that nothing was found.
            if document.current is snapshot and document.is_open and (found or document.published):
                document.published = True
                self._publish(snapshot.uri, snapshot.version, found)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("the check of %s version %s failed", snapshot.uri, snapshot.version)

    async def _look(self, document: Document, snapshot: Snapshot, pause: float, *, first: bool) -> None:
        """Read a version in the background and publish what is wrong with it, unless an edit overtakes it."""
        try:
            if pause:
                await asyncio.sleep(pause)
            long = first and len(snapshot.lines.text) >= LONG_CHARACTERS
            telling = None
            if long and self._tell is not None:
                telling = asyncio.ensure_future(self._tell(snapshot.uri, snapshot.steps))
            try:
                reading = await self.read(document, snapshot, Urgency.INDEX)
            finally:
                if telling is not None:
                    telling.cancel()
            if first:
                self._first_read(reading)
            self._workers.submit(lambda: _prepare(reading.index), wanted=lambda: document.current is snapshot)
            for check in self._checks:
                if (rest := check.rest(reading)) > 0:
                    await asyncio.sleep(rest)
                found = await self._run_check(document, snapshot, reading, check)
                if found is None:
                    continue
                if document.current is not snapshot or not document.is_open:
                    return
                document.found = found
                document.published = True
                self._publish(snapshot.uri, snapshot.version, _merged(found, self._of_dump(reading)))
            await self._ask_dump(document, snapshot, reading)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("the check of %s version %s failed", snapshot.uri, snapshot.version)

    def _of_dump(self, reading: Reading) -> list[types.Diagnostic]:
        """What the dump says of a text, as far as it is known by now."""
        if self.facts_check is None or reading.companion is None or reading.companion.facts is None:
            return []
        return self.facts_check(reading)

    async def _ask_dump(self, document: Document, snapshot: Snapshot, reading: Reading) -> None:
        """Once nobody types, ask what the dump knows, and publish it."""
        companion = document.companion
        if companion is None:
            return
        if await asyncio.to_thread(companion.look) and document.current is snapshot:
            # What it said before is of another dump.
            self._publish(snapshot.uri, snapshot.version, document.found)
        if self.facts_check is None or companion.facts is not None or companion.failed is not None:
            return
        await asyncio.sleep(DUMP_PAUSE_SECONDS)
        async with self._asking(snapshot.uri):
            news = await companion.prepare()
        if news and document.current is snapshot and document.is_open:
            document.published = True
            self._publish(snapshot.uri, snapshot.version, _merged(document.found, self._of_dump(reading)))

    async def _run_check(
        self, document: Document, snapshot: Snapshot, reading: Reading, check: Check
    ) -> list[types.Diagnostic] | None:
        def wanted() -> bool:
            return document.is_open and document.current is snapshot

        try:
            if check.ask is not None:
                await check.ask(reading)
            job = self._workers.submit(lambda: check.find(reading), urgency=Urgency.BACKGROUND, wanted=wanted)
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            raise
        except Exception:
            # One check that fails must not hide what the others find.
            log.exception("a check of %s version %s failed", snapshot.uri, snapshot.version)
            return None
