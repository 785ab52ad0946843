"""Commands that take a while: the command line's answers, asked from the editor.

Each runs ``hloscope …`` in a child process, shows that it is at work (``$/progress``), can be cancelled, and shows its
answer as a text. A dump's stage is asked about in its dump; any other text as it is in the editor, saved or not.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hloscope.core.errors import UsageError
from hloscope.lsp.companion import ask, run_child
from hloscope.lsp.features.stages import DumpPlace, dump_of, from_here, local_path, row_of

Watch = Callable[[str, int | None], None]
"""Is told how far a long command is, in words and, where it is known, in percent."""

_CHANGE = re.compile(r"  [+\-~>] %?([\w.\-]+)")
_BAR = re.compile(r"[^\S\n]*[\u2500-\u257f\u2580-\u259f]{2}.*$")
"""What a terminal shows of how far a command is."""
_FILE_CHARACTERS = re.compile(r"[^\w.\-]+")


_COUNTED = re.compile(r"(.*?)\s[\u2500-\u257f\u2580-\u259f ]+\s(\d+)/(\d+)(?:\s|$)")


class Share:
    """How much of a command's work is done, in percent, from the bar that it draws on its terminal.

    Of several things that are counted one after the other only the first is known beforehand: it alone gives a share.
    A search gives none: how many more probes a round needs at most it says in words, but not how many rounds there are.
    """

    def __init__(self) -> None:
        self._what: str | None = None
        self._share = 0

    def of(self, line: str) -> int | None:
        """The share after this line; None where it says none."""
        counted = _COUNTED.match(line)
        if counted is None:
            return None
        what, done, total = counted[1], int(counted[2]), int(counted[3])
        if self._what is None:
            self._what = what
        if what != self._what or not total:
            return None
        # It is not done before it ends, and never goes back.
        self._share = max(self._share, min(99, 100 * done // total))
        return self._share


@dataclass(frozen=True, slots=True)
class Subject:
    """What a command is about."""

    uri: str
    path: str
    """The dump's folder; else a file with the text as it is in the editor."""
    place: DumpPlace | None
    names: tuple[str, ...]
    scratch: str
    """A folder for what the command writes."""

    @property
    def module(self) -> list[str]:
        """The option that chooses the module of a dump."""
        return [] if self.place is None else ["--module", str(self.place.module)]

    @property
    def stem(self) -> str:
        """The file's name without its endings."""
        name = os.path.basename(local_path(self.uri) or "text.hlo")
        return name.removesuffix(".txt").removesuffix(".hlo")


@dataclass(slots=True)
class Answer:
    """What a command came to."""

    text: str
    path: str
    """The file that holds it, to be shown."""
    data: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class LongCommand:
    """One of them."""

    title: str
    arguments: Callable[[Subject], list[str]]
    """Of ``hloscope``."""
    seconds: float = 600
    output: Callable[[Subject], str] | None = None
    """The file that the command itself writes; None where its answer is what it prints."""
    names: int = 0
    """How many instruction names it needs."""
    about: Literal["dump", "here", "onwards"] = "dump"
    """Of a dump's stage the whole dump, the stage's own text (that of the computation and instruction named), or the
    dump from this stage on."""
    options: str | None = None
    """The setting that holds more arguments."""
    counted: bool = False
    """Whether it knows how much there is to do."""
    part: Callable[[str, tuple[str, ...]], str] | None = None
    """What of the answer is shown where instructions are named."""

    def titled(self, names: tuple[str, ...]) -> str:
        """The title with the instructions named, as far as they are."""
        return self.title.format(*names, *["…"] * max(0, self.names - len(names)))


def _other_stage(subject: Subject) -> list[str]:
    if subject.place is None:
        raise UsageError("the file is no stage of a dump")
    return ["diff", subject.path, *_stage_option(subject.place), *subject.module]


def _stage_option(place: DumpPlace) -> list[str]:
    """Raises UsageError where the dump's timeline does not have the file."""
    row = row_of(place)
    if row is None:
        raise UsageError("the dump's timeline has no such stage", path=place.name)
    return ["--stage", str(row)]


def _change_of(answer: str, names: tuple[str, ...]) -> str:
    """The lines of a diff that are about some instructions, below those that say which stage it is."""
    lines = answer.splitlines()
    out, taken, heading = lines[:2], False, ""
    for line in lines[2:]:
        found = _CHANGE.match(line)
        if found is not None:
            taken = found[1] in names
            if taken and heading:
                out += ["", heading]
                heading = ""
        elif line and not line[0].isspace():
            taken, heading = False, line
        if taken:
            out.append(line)
    return "\n".join(out) + "\n" if len(out) > 2 else answer


def _reduced(subject: Subject) -> str:
    return os.path.join(subject.scratch, f"{subject.stem}.reduced.hlo")


LONG_COMMANDS: dict[str, LongCommand] = {
    "hloscope.why": LongCommand(
        "Tell all that is known of %{0}", lambda s: ["why", s.path, s.names[0], *s.module], names=1, counted=True
    ),
    "hloscope.whyNotFused": LongCommand(
        "Explain why %{0} is not fused into %{1}", lambda s: ["why", s.path, *s.names[:2], *s.module], names=2
    ),
    "hloscope.showBufferMap": LongCommand("Show the buffer map", lambda s: ["buffers", s.path, *s.module]),
    "hloscope.showCopies": LongCommand(
        "Show layout copies and their causes", lambda s: ["copies", s.path, *s.module], counted=True
    ),
    "hloscope.peekDiff": LongCommand("Show what the pass before this stage changed", _other_stage, part=_change_of),
    "hloscope.reduce": LongCommand(
        "Reduce to a small module with the same fault",
        lambda s: ["reduce", s.path, "-o", _reduced(s), "--force"],
        seconds=3600,
        output=_reduced,
        about="here",
        options="reduceOptions",
    ),
    "hloscope.bisect": LongCommand(
        "Find the pass after which the result is wrong",
        lambda s: ["bisect", s.path, *s.module],
        seconds=3600,
        options="bisectOptions",
    ),
    "hloscope.bisectFromHere": LongCommand(
        "Find the pass behind this stage after which the result is wrong",
        lambda s: ["bisect", s.path],
        seconds=3600,
        about="onwards",
        options="bisectOptions",
    ),
}


def subject_of(uri: str, names: tuple[str, ...], text: str | None, *, alone: bool = False) -> Subject:
    """What a command on a file is about; `text` is the open text, None where it is not open.

    `alone` takes the file itself even where it is in a dump. Raises UsageError for what is neither open nor on disk.
    """
    path, place = local_path(uri), None if alone else dump_of(uri)
    if text is None and place is None and (path is None or not os.path.isfile(path)):
        raise UsageError(f"{uri} is neither open nor a file here" if uri else "no file is named")
    scratch = tempfile.mkdtemp(prefix="hloscope-")
    if place is not None:
        return Subject(uri, place.folder, place, names, scratch)
    if text is None:
        return Subject(uri, path or "", None, names, scratch)
    name = os.path.basename(path) if path is not None else "text.hlo"
    copy = os.path.join(scratch, name)
    Path(copy).write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    return Subject(uri, copy, None, names, scratch)


async def prepared(command: LongCommand, subject: Subject) -> Subject:
    """The subject with the files that the command is to work on. Raises UsageError where there are none."""
    if command.about == "onwards":
        if subject.place is None:
            raise UsageError("the file is no stage of a dump")
        folder = os.path.join(subject.scratch, "dump")
        os.mkdir(folder)
        await asyncio.to_thread(from_here, subject.place, folder)
        return replace(subject, path=folder, place=None)
    if command.about == "here" and subject.names:
        computation, instruction = (*subject.names, "")[:2]
        found = await ask("part", subject.path, "", computation, instruction, seconds=command.seconds)
        path = os.path.join(subject.scratch, "part.hlo")
        Path(path).write_text(found["text"], encoding="utf-8", errors="surrogatepass", newline="")
        return replace(subject, path=path)
    return subject


async def run_long(
    command: LongCommand, subject: Subject, *, options: Sequence[str] = (), watch: Watch
) -> Answer:
    """Run it to its end, telling `watch` what it says. Raises UsageError with its own line where it has no answer."""
    if len(subject.names) < command.names:
        raise UsageError("put the cursor on an instruction")
    subject = await prepared(command, subject)
    arguments = [*command.arguments(subject), *options]
    process = [sys.executable, "-m", "hloscope.core.cli.main", *arguments]

    share = Share()

    def told(line: str) -> None:
        # The fault, if it is one, is the answer.
        if not line.startswith("hloscope: ") and (said := _BAR.sub("", line)):
            watch(said, share.of(line) if command.counted else None)

    code, out, err = await run_child(process, command.seconds, told)
    if code not in (0, 1):
        raise UsageError(_last_line(err) or f"hloscope {arguments[0]} ended with {code}")
    notes = "".join(f"{line}\n" for line in err.splitlines() if line.startswith("hloscope: note"))
    if command.output is not None and os.path.exists(written := command.output(subject)):
        return Answer(out + notes, written)
    if command.output is not None or not (out or notes):
        raise UsageError(_last_line(err) or _last_line(out) or f"hloscope {arguments[0]} had nothing to say")
    if command.part is not None and subject.names:
        out = command.part(out, subject.names)
    words = "-".join([subject.stem, arguments[0], *subject.names])
    path = os.path.join(subject.scratch, f"{_FILE_CHARACTERS.sub('_', words)[:120]}.log")
    Path(path).write_text(out + notes, encoding="utf-8")
    return Answer(out + notes, path)


async def extract(subject: Subject, computation: str) -> Answer:
    """A computation of the text as a module of its own. Raises UsageError where there is none of that name."""
    found = await ask("part", subject.path, "", computation, "", seconds=600)
    path = os.path.join(subject.scratch, f"{subject.stem}.{_FILE_CHARACTERS.sub('_', computation)}.hlo")
    Path(path).write_text(found["text"], encoding="utf-8", errors="surrogatepass", newline="")
    return Answer(found["text"], path)


async def apply_remedy(subject: Subject, copy: str) -> Answer:
    """The module before layout assignment with the change that removes a copy, in a file next to the dump's stages or
    the text. Raises UsageError where no such change is known."""
    module = "" if subject.place is None else str(subject.place.module)
    found = await ask("remedy", subject.path, module, copy, seconds=600)
    path = os.path.join(subject.scratch, f"{subject.stem}.without-{_FILE_CHARACTERS.sub('_', copy)}.hlo")
    Path(path).write_text(found["text"], encoding="utf-8")
    return Answer(found["change"], path, {"change": found["change"]})


async def trace_kernels(path: str, *, interpret: bool, seconds: float, target: str | None = None) -> dict[str, Any]:
    """``hloscope pallas`` on a file on disk: its JSON. The user's code runs in the child's child.

    With ``target``, what that chip's compiler refuses is found too.
    """
    import json

    how = "--interpret" if interpret else "--trace"
    command = [sys.executable, "-m", "hloscope.core.cli.main", "pallas", path, how, "--json"]
    command += [] if target is None else ["--target", target]
    code, out, err = await run_child(command, seconds)
    if code not in (0, 1):
        raise UsageError(_last_line(err) or f"hloscope pallas ended with {code}")
    found: Any = json.loads(out)
    return found


def dashboard(subject: Subject) -> list[str]:
    """The command line that opens the dashboard here: for the editor's terminal, since it needs one."""
    where = [] if subject.place is None else _stage_option(subject.place)
    return ["hloscope", "open", subject.path, *subject.module, *where]


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("hloscope: note")]
    return lines[-1].removeprefix("hloscope: ") if lines else ""
