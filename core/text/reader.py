"""Read HLO text into a module. The reader recovers: it returns what it could read and a diagnostic for the rest.

Definitions may come after uses. Attributes stay text until somebody asks (`HloInstruction.attr`). What XLA's closed
parser would refuse for being new (opcodes, attributes, element types) is kept and noted once. With `strict`, whatever
the parser of jaxlib 0.10.2 refuses is an error. Source of the grammar: ``openxla/xla:xla/hlo/parser/hlo_parser.cc``.
"""

from __future__ import annotations

import gc
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.errors import Diagnostic, InternalError, ParseError, UnsupportedError
from hloscope.core.hlo.attributes import split_top, unquote
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.module import HloModule
from hloscope.core.memory import available_memory, in_words
from hloscope.core.text.body_reader import BodyReader
from hloscope.core.text.header_reader import read_header, read_tables, without_log_prefixes
from hloscope.core.text.line_pattern import COMPUTATION_HEAD
from hloscope.core.text.reading import Reading, Stop, TooDeep
from hloscope.core.text.scan import BLANKS, match_bracket, skip_blank
from hloscope.core.text.strict_syntax import (
    check_characters,
    check_walk,
    note_bytes,
    walk_computation_head,
    walk_right_side,
    walk_untitled,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from hloscope.core.hlo.shape import Shape

_HEAD = re.compile(rf"(ENTRY(?=[\s/%]){BLANKS})?(%?)([A-Za-z_][\w.\-]*):?{BLANKS}", re.S)
_THREAD = re.compile(rf"{BLANKS},{BLANKS}execution_thread{BLANKS}={BLANKS}(\"[^\"]*\"|'[^']*')", re.S)
_SINGLE = re.compile(rf"(?:ROOT(?=[\s/%]){BLANKS})?%?[A-Za-z_][\w.\-]*{BLANKS}=(?!=)", re.S)
_SHAPE_FIRST = re.compile(r"(?:[a-z]\w*\s*\[|\()")
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What came of a text."""

    module: HloModule | None
    """None where the text holds no computation."""
    diagnostics: tuple[Diagnostic, ...]
    """Findings in text order: errors and notes."""
    objections: tuple[Diagnostic, ...]
    """What XLA's parser refuses beyond the errors, in text order; empty where nobody asked."""

    @property
    def xla_would_reject(self) -> bool:
        """Whether the parser of jaxlib 0.10.2 refuses the text, as far as errors and objections say."""
        return self.module is None or bool(self.objections) or any(d.severity == "error" for d in self.diagnostics)

    def refusals(self) -> list[Diagnostic]:
        """Errors and objections in text order, each fault once: an error says more than an objection to its line."""
        errors = [d for d in self.diagnostics if d.severity == "error"]
        lines, places = {d.line for d in errors}, set[int]()
        for one in self.objections:
            if one.line not in lines and one.offset not in places:
                places.add(one.offset)
                errors.append(one)
        return sorted(errors, key=lambda d: d.offset)


class Reader:
    """Reads one text; use `read_text`, `parse_module` or `load_module`."""

    def __init__(self, text: str, *, check: bool = False) -> None:
        self.reading = Reading(without_log_prefixes(text), check=check)
        self._entry_at = 0
        if check and self.reading.text is not text:
            self.reading.object("the prefix of a log line", 0)

    # ---------------------------------------------------------------- module
    def read(self) -> HloModule | None:
        """The module, None where the text holds no computation at all."""
        reading = self.reading
        text = reading.text
        if text.startswith(_BOM):
            reading.pos = 1
        if not text.isascii() or "\0" in text:
            note_bytes(reading)
        if reading.check:
            check_characters(reading)
        reading.pos = skip_blank(text, reading.pos)
        self._skip_to_header()
        titled = read_header(reading)
        if not titled and self._is_single():
            return self._read_single()
        if not titled and reading.check:
            check_walk(reading, reading.pos, walk_untitled)
        read_tables(reading)
        entry = self._read_computations()
        self._resolve_later()
        self._name_inline()
        if entry is None:
            if not any(d.severity == "error" for d in reading.diagnostics):
                end = min(len(text), 1)
                reading.report("expected an HLO module: no computation found", 0, end, code="no-module")
            return None
        reading.module.set_entry(entry)
        if not reading.module.name:
            reading.module.name = f"module_{entry.name}" if not titled else entry.name
        if reading.check:
            from hloscope.core.text.strict import check_module

            check_module(reading)
        return reading.module

    def _skip_to_header(self) -> None:
        """Leave out what a log has in front of the module."""
        reading = self.reading
        text = reading.text
        if text.startswith(("HloModule", "ENTRY"), reading.pos) or _HEAD.match(text, reading.pos) is None:
            start = reading.pos
        else:
            start = reading.pos
            line_end = text.find("\n", start)
            first = text[start : line_end if line_end >= 0 else len(text)]
            if "{" in first or "=" in first:
                return
        found = re.compile(r"^HloModule\s", re.M).search(text, start)
        if found is not None and found.start() > start and not self._is_single(start):
            self.reading.object("text in front of HloModule", start)
            before = text[start : found.start()]
            if "{" not in before:
                reading.pos = found.start()

    def _read_computations(self) -> HloComputation | None:
        reading = self.reading
        entry: HloComputation | None = None
        last: HloComputation | None = None
        while True:
            reading.pos = skip_blank(reading.text, reading.pos)
            if reading.pos >= len(reading.text):
                break
            before = reading.pos
            if reading.text.startswith("```", before):  # pasted with the marks of a code block
                reading.object("the mark of a code block", before, before + 3)
                reading.skip_line()
                continue
            if reading.text.startswith("HloModule", before) and last is not None:
                reading.report(
                    "a second module begins here; this reads one module at a time",
                    before,
                    before + 9,
                    code="second-module",
                )
                break
            computation, is_entry = self._read_computation()
            if computation is not None:
                last = computation
                if is_entry:
                    if entry is not None:
                        what = "a second ENTRY computation"
                        reading.twice(what, before, before + 5, self._entry_at, "duplicate-entry")
                    entry, self._entry_at = computation, before
            if reading.pos <= before:
                reading.pos = before + 1
        return entry if entry is not None else last

    # ---------------------------------------------------------------- one instruction alone
    def _is_single(self, pos: int | None = None) -> bool:
        text = self.reading.text
        at = self.reading.pos if pos is None else pos
        if _SINGLE.match(text, at):
            return True
        if _SHAPE_FIRST.match(text, at) is None:
            return False
        try:
            _, end = self.reading.scan_shape(at)
        except Stop:
            return False
        return re.compile(r"\s*[a-z][a-z0-9\-]*\s*\(").match(text, end) is not None

    def _read_single(self) -> HloModule | None:
        """A text of one instruction: operands that nobody defines become parameters of an entry computation."""
        reading = self.reading
        computation = HloComputation("_")
        body = BodyReader(reading, computation, single=True)
        reading.module.name = "_"
        reading.module.attrs["is_scheduled"] = "true"
        try:
            if _SINGLE.match(reading.text, reading.pos):
                node = body.read_one()
            else:
                if reading.check:
                    check_walk(reading, reading.pos, walk_right_side)
                node = body.read_rest("_", reading.pos, reading.pos)
                body.nodes.append(node)
                body.starts.append(reading.pos)
            body.root = node
        except Stop as bad:
            reading.report(bad.message, bad.offset, min(bad.offset + 1, len(reading.text)), code=bad.code)
        except TooDeep as bad:
            reading.report(str(bad), bad.offset, bad.offset + 1, code="too-deep")
        body.finish()
        self._name_inline({"_"})
        rest = skip_blank(reading.text, reading.pos)
        if rest < len(reading.text) and body.nodes:
            reading.report(
                f"unexpected {reading.glance(rest)} after a single instruction; a module begins with HloModule",
                rest,
                rest + 1,
            )
        if not body.nodes:
            return None
        reading.module.add_computation(computation, keep_name=True)
        self._resolve_later()
        reading.module.set_entry(computation)
        layout = _default_layouts(computation)
        if layout is not None:
            reading.module.attrs["entry_computation_layout"] = layout
        return reading.module

    # ---------------------------------------------------------------- computations
    def _read_computation(self) -> tuple[HloComputation | None, bool]:
        reading = self.reading
        text, start = reading.text, reading.pos
        if reading.check:
            check_walk(reading, start, walk_computation_head)
        quick = COMPUTATION_HEAD.match(text, start)
        if quick is not None:
            signature = None
            if reading.check and quick[4] is not None:
                try:
                    signature = reading.shape_of(quick[4], quick.start(4))
                except Stop as bad:
                    reading.object(bad.message, bad.offset)
            return self._read_opened(quick, signature, quick.end())
        head = _HEAD.match(text, start)
        if head is None:
            reading.report(f"expected a computation, got {reading.glance(start)}", start, start + 1)
            reading.skip_line()
            return None, False
        pos = skip_blank(text, head.end())
        signature = None
        if text.startswith("(", pos):
            end = match_bracket(text, pos)
            if end < 0:
                reading.report("the parameter list is not closed", pos, pos + 1, code="unclosed")
                reading.pos = len(text)
                return None, False
            pos = skip_blank(text, end)
            if not text.startswith("->", pos):
                reading.report("expected '->' after the parameter list", pos, pos + 1)
                reading.skip_line()
                return None, False
            try:
                signature, pos = reading.scan_shape(skip_blank(text, pos + 2))
            except Stop as bad:
                reading.report(bad.message, bad.offset, bad.offset + 1, code=bad.code)
                reading.skip_line()
                return None, False
            pos = skip_blank(text, pos)
        if not text.startswith("{", pos):
            reading.report(f"expected '{{' to open a computation, got {reading.glance(pos)}", pos, pos + 1)
            reading.skip_line()
            return None, False
        return self._read_opened(head, signature, pos + 1)

    def _read_opened(
        self, head: re.Match[str], signature: Shape | None, pos: int
    ) -> tuple[HloComputation | None, bool]:
        """Read a computation from behind its opening brace on; `head` gives ENTRY and the name in groups 1 and 3."""
        reading, text = self.reading, self.reading.text
        name, name_at, start = head[3], head.start(3), head.start()
        computation = HloComputation(name)
        reading.pos = pos
        before = len(reading.diagnostics)
        body = BodyReader(reading, computation)
        if not body.read():
            end = len(text)
            reading.report(f"the text ends inside computation %{name}", end, end, code="truncated")
            signature = None  # whatever was read last is not its root
        other = reading.by_name.get(name)
        if other is not None:
            what = f"computation %{name} is defined twice"
            reading.twice(what, name_at, name_at + len(name), other[1], "duplicate-computation")
        else:
            reading.by_name[name] = (computation, name_at)
        thread = _THREAD.match(text, reading.pos)
        if thread is not None:
            name_of_thread = unquote(thread[1])
            computation.execution_thread = "" if name_of_thread == "main" else name_of_thread
            reading.pos = thread.end()
        if not body.nodes:
            if len(reading.diagnostics) == before:  # else it was told already why nothing is in it
                end = name_at + len(name)
                reading.report(f"computation %{name} is empty", start, end, code="empty-computation")
            reading.by_name.pop(name, None)
            return None, False
        if reading.check:
            self._check_computation(computation, head, signature, name_at)
        reading.module.add_computation(computation, keep_name=True)
        return computation, head[1] is not None

    def _check_computation(
        self, computation: HloComputation, head: re.Match[str], signature: Shape | None, at: int
    ) -> None:
        from hloscope.core.hlo.infer_shape import compatible
        from hloscope.core.text.strict import check_computation

        check_computation(self.reading, computation, at)
        if signature is not None and not compatible(computation.root.shape, signature):
            self.reading.object(
                f"the signature says {signature}, the root has {computation.root.shape}", at, at + len(head[3])
            )

    # ---------------------------------------------------------------- names
    def _resolve_later(self) -> None:
        reading = self.reading
        for node, key, value, at, early in reading.later:
            listed = value.startswith("{")
            group: list[HloComputation] = []
            for word in split_top(value[1:-1]) if listed else (value,):
                name = word.removeprefix("%")
                target = reading.by_name.get(name)
                if target is None:
                    end = at + len(value)
                    reading.report(f"computation %{name[:60]} is not defined", at, end, code="undefined-computation")
                else:
                    group.append(target[0])
                    if name == early:
                        reading.early(f"computation %{name[:60]}", at, at + len(value))
            if group:
                node.set_called(key, group if listed else group[0])
        if reading.later:
            try:
                reading.module.post_order()
            except InternalError:
                _, _, value, at, _ = reading.later[0]
                reading.report("computations call each other in a cycle", at, at + len(value), code="recursion")

    def _name_inline(self, others: Iterable[str] = ()) -> None:
        """Give computations that the text does not name the names that XLA gives them, as far as they are free."""
        reading = self.reading
        taken = {*reading.by_name, *others}
        for computation in reading.inline:
            root = computation.name
            name, number = root, 0
            while name in taken:
                number += 1
                name = f"{root}.{number}"
            taken.add(name)
            computation.set_name_unchecked(name)
            reading.module.computation_names.reserve(name)


def _default_layouts(entry: HloComputation) -> str | None:
    """The entry layout of a text of one instruction, which XLA gives default layouts; None where all are."""
    shapes = [one.shape for one in entry.parameters]
    plain = [shape.without_layout().with_default_layout() for shape in (*shapes, entry.root.shape)]
    if plain == [*shapes, entry.root.shape]:
        return None
    return "{(" + ", ".join(map(str, plain[:-1])) + ")->" + str(plain[-1]) + "}"


_FRAMES = 16_000
"""Python frames that reading may take: eight for each computation written inside another."""


@contextmanager
def _deep() -> Generator[None]:
    """Let functions call each other deep enough for what is written inside one another."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@contextmanager
def _no_collection(wanted: bool) -> Generator[None]:
    """Keep the collector from looking at objects that are all reachable, while they are made and right after.

    Freezing and thawing puts them among the old ones without a look at each.
    """
    if not wanted or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def read_text(text: str, *, check: bool = False) -> ReadResult:
    """Read HLO text; with `check` also look for what XLA's own parser refuses. Never raises on bad text."""
    with _no_collection(len(text) > 1 << 16), _deep():
        reader = Reader(text, check=check)
        module = reader.read()
    found = reader.reading
    return ReadResult(
        module,
        tuple(_without_the_cut(sorted(found.diagnostics, key=lambda d: d.offset), found.text)),
        tuple(sorted(found.objections, key=lambda d: d.offset)),
    )


def _without_the_cut(found: list[Diagnostic], text: str) -> list[Diagnostic]:
    """A text that breaks off is one fault: what its unfinished last line lacks, and that computations around the place
    are open, too, is not told beside it."""
    ends = [one for one in found if one.code == "truncated"]
    if not ends:
        return found
    last_line = text.rfind("\n") + 1
    return [*(one for one in found if one.offset < last_line and one.code != "truncated"), ends[-1]]


def parse_module(text: str, *, strict: bool = False) -> tuple[HloModule | None, list[Diagnostic]]:
    """Read HLO text. Returns the module (None where there is none to speak of) and what is wrong, in text order.

    Never raises on bad text. A module returned beside errors holds what was readable, and is for looking at only. With
    `strict` whatever the parser of jaxlib 0.10.2 refuses is among the errors; else what it merely does not know is
    kept, and noted with severity ``information``.
    """
    result = read_text(text, check=strict)
    return result.module, result.refusals() if strict else list(result.diagnostics)


GRAPH_BYTES = 1100
"""Memory of an instruction in a module's graph; of metadata, attributes and literals it holds slices of the text."""
_WORTH_ASKING = 32 << 20
"""Characters of a text from which the memory that it takes is looked at."""


def check_room(text: str, path: str | None = None, *, each: int = GRAPH_BYTES) -> None:
    """Raises UnsupportedError, with both figures, where a module's graph does not fit into the free memory.

    `each` is what the work on it takes for every instruction, the graph included.
    """
    if len(text) < _WORTH_ASKING:
        return
    count = text.count(" = ")
    free = available_memory()
    if count * each > free:
        raise UnsupportedError(
            f"about {count:,} instructions take {in_words(count * each)} as a graph, {in_words(free)} are free",
            path=path,
            hint="hloscope ls, passes, diff and why make no graph of a text of that size",
        )


def load_module(text: str, path: str | None = None, *, strict: bool = False) -> HloModule:
    """Read HLO text that must be right.

    Raises ParseError (with `path`, line and column) on the first error, UnsupportedError where memory is too small.
    """
    check_room(text, path)
    return sound_module(read_text(text, check=strict), path, strict=strict)


def sound_module(result: ReadResult, path: str | None = None, *, strict: bool = False) -> HloModule:
    """The module of a text that was read. Raises ParseError on the first error, as `load_module` does."""
    for diagnostic in result.refusals() if strict else result.diagnostics:
        if diagnostic.severity == "error":
            raise diagnostic.error(path)
    if result.module is None:
        raise ParseError("no HLO module in the text", path=path)
    return result.module
