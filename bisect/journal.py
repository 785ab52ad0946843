"""What a search has asked so far, kept so that a killed one goes on where it was.

A journal is a folder named after the question: the module, inputs, flags and versions that the answer depends on. Each
probe's outcome is one line that is appended when it is known, under a key made of what was probed. A line that a kill
cut short is passed over. The folder goes when the search has answered, so that nothing is left for a later search.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, cast

from hloscope.bisect.search import Outcome
from hloscope.core.errors import HloscopeError, UsageError
from hloscope.core.version import version

CACHE_VARIABLE = "HLOSCOPE_CACHE_DIR"
"""Names the folder of everything that is kept between commands, in place of the user's cache folder."""


def cache_folder() -> Path:
    """Where this program may keep things: ``$HLOSCOPE_CACHE_DIR``, else ``hloscope`` in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "hloscope")


def digest(*parts: str | bytes) -> str:
    """32 hexadecimal digits of texts or bytes; where one ends and the next begins counts."""
    found = blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def content_of(words: Iterable[str]) -> str:
    """A digest of words and of the programs and inputs that they name: a script that is changed is another question.

    Files of other kinds are passed over: a program may write to them.
    """
    parts: list[str | bytes] = []
    for word in words:
        parts.append(word)
        try:
            if os.path.isfile(word) and (os.path.splitext(word)[1] in _INPUTS or os.access(word, os.X_OK)):
                parts.append(Path(word).read_bytes())
        except OSError:
            continue
    return digest(*parts)


_INPUTS = frozenset((".py", ".sh", ".hlo", ".txt", ".npz", ".npy", ".json", ".yaml", ".yml", ".toml", ".ledger"))


OLD_SECONDS = 14 * 86400.0
"""After so long a killed search that nobody took up is forgotten."""


def _forget_old(ours: Path) -> None:
    """Remove other journals that nobody has written to for long."""
    for other in ours.parent.iterdir():
        try:
            if other != ours and time.time() - other.stat().st_mtime > OLD_SECONDS:
                shutil.rmtree(other, ignore_errors=True)
        except OSError:
            continue


@dataclass
class Journal:
    """Outcomes by key. A context manager: the folder stays where the block is left by an exception or a kill."""

    folder: Path
    resumed: int = 0
    """Probes that were answered by an earlier, killed run of the same search."""
    _known: dict[str, Outcome] = field(default_factory=dict[str, Outcome])
    _temporary: TemporaryDirectory[str] | None = None
    _earlier: set[str] = field(default_factory=set[str])

    @staticmethod
    def for_question(*parts: str | bytes, fresh: bool = False) -> Journal:
        """The journal of a question, with what an earlier run of it left unless it starts `fresh`.

        Raises UsageError for an unusable folder.
        """
        folder = cache_folder() / "bisect" / digest(version(), *parts)
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the journal cannot be kept: {error.strerror}", path=str(folder), hint=f"set {CACHE_VARIABLE}"
            ) from None
        _forget_old(folder)
        journal = Journal(folder)
        journal._read()
        return journal

    @staticmethod
    def for_once() -> Journal:
        """A journal that nobody takes up again."""
        folder = TemporaryDirectory(prefix="hloscope-bisect-")
        return Journal(Path(folder.name), _temporary=folder)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
        elif kind is None or issubclass(kind, HloscopeError) or not self._known:
            self.close()  # an error of the user's is an answer, too

    def close(self) -> None:
        """The search has answered: nothing stays."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def get(self, key: str) -> Outcome | None:
        """What a probe showed, if it has been made."""
        found = self._known.get(key)
        if found is not None and key in self._earlier:
            self._earlier.discard(key)
            self.resumed += 1
        return found

    def seen(self, key: str) -> Outcome | None:
        """The same, not counted as resumed."""
        return self._known.get(key)

    def put(self, key: str, outcome: Outcome) -> None:
        """Note an outcome: on disk when this returns."""
        self._known[key] = outcome
        line = json.dumps({"key": key, **asdict(outcome)})
        try:
            # One write in append mode; the newline in front closes a line that a kill cut short.
            with open(self.folder / "probes.jsonl", "ab") as out:
                out.write(f"\n{line}\n".encode())
        except OSError:
            return  # a full disk costs the resume, not the search

    def _read(self) -> None:
        try:
            lines = (self.folder / "probes.jsonl").read_bytes().split(b"\n")
        except OSError:
            return
        for line in lines:
            try:
                found = cast("dict[str, Any]", json.loads(line))
                key = str(found.pop("key"))
                self._known[key] = Outcome(**found)
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
        self._earlier = set(self._known)

    # ---------------------------------------------------------------- larger things
    def kept(self, name: str) -> Path | None:
        """A file or folder that was kept whole; None where it was not, or not to its end."""
        return self.folder / name if (self.folder / f"{name}.whole").exists() else None

    def begin(self) -> str:
        """An empty folder for something that is kept once it is whole.

        What a killed search has started may go on writing: into its own folder, not into the next try's.
        """
        return mkdtemp(prefix="part-", dir=self.folder)

    def keep(self, name: str, begun: str) -> None:
        """Take a folder that was begun as the whole one of this name."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        os.rename(begun, self.folder / name)
        (self.folder / f"{name}.whole").touch()
