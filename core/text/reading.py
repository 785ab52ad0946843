"""What the parts of the reader share: the text, the place in it, findings, and shapes read once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.errors import Diagnostic, ParseError
from hloscope.core.hlo.element_types import ELEMENT_TYPES
from hloscope.core.hlo.module import HloModule
from hloscope.core.hlo.shape import Shape, scan_shape
from hloscope.core.text.scan import LineMap, match_bracket

if TYPE_CHECKING:
    from hloscope.core.errors import Severity
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import AttributeParts, HloInstruction

_NEXT_LINE = re.compile(r"[\n\r]")
_SIMPLE_SHAPE = re.compile(r"[a-z]\w*\[[\d,]*\](?:\{[\d,]*(?::[^{}]*)?\})?(?=\s)")
_RESUME = re.compile(
    r"^[ \t]*(?:(?:ROOT[ \t]+)?%?[A-Za-z_][\w.\-]*[ \t]*"
    r"(?:=[ \t]|[ \t][a-z]\w*\[[\d,]*\](?:\{[^}\n]*\})?[ \t]+[a-z][a-z\-]*\()|\})",
    re.M,
)
"""Where an instruction seems to begin, also one whose equals sign is missing, or a computation to end."""

_COMMENT_OR_STRING = re.compile(r"/\*.*?\*/|//[^\n\r]*|\"(?:[^\"\\]|\\.)*\"", re.S)


def without_comments(text: str) -> str:
    """The text with every comment blanked out; offsets stay."""
    return _COMMENT_OR_STRING.sub(lambda found: found[0] if found[0][0] == '"' else " " * len(found[0]), text)


def _scan(text: str, pos: int) -> tuple[Shape, int]:
    try:
        return scan_shape(text, pos)
    except ValueError:
        raise ParseError("a number that is too large", column=pos + 1) from None
    except RecursionError:
        raise ParseError("tuples are nested too deep", column=pos + 1) from None


AttributeSplit = tuple["AttributeParts | None", bool]
"""An instruction's attributes apart from its metadata, and whether the graph holds some of them."""


class Stop(Exception):
    """The instruction or computation at hand cannot be read; `offset` says where."""

    def __init__(self, message: str, offset: int, code: str = "syntax") -> None:
        super().__init__(message)
        self.message, self.offset, self.code = message, offset, code


class TooDeep(Exception):
    """Instructions or computations are written in one another too deep to be read; the outermost one is given up."""

    def __init__(self, offset: int) -> None:
        super().__init__("instructions or computations are written in one another too deep")
        self.offset = offset


class Reading:
    """One text being read."""

    def __init__(self, text: str, *, check: bool) -> None:
        self.text = text
        self.pos = 0
        self.check = check
        """Whether to look for what XLA's parser refuses beyond what is an error here."""
        self.diagnostics: list[Diagnostic] = []
        self.objections: list[Diagnostic] = []
        """What XLA's parser refuses and this reader takes."""
        self.module = HloModule("")
        self.by_name: dict[str, tuple[HloComputation, int]] = {}
        """Computations by name, with the offset of their name."""
        self.inline: list[HloComputation] = []
        """Computations written out in an attribute, still to be named."""
        self.later: list[tuple[HloInstruction, str, str, int, str]] = []
        """Attributes that name computations further down: node, attribute, text, offset, the first such name."""
        self.noted: set[tuple[str, str]] = set()
        """Unknown words that were reported already."""
        self._lines: LineMap | None = None
        self._blanked: str | None = None
        self.shapes: dict[str, Shape] = {}
        """Shapes read so far, by text."""
        self.splits: dict[tuple[str, str, str], AttributeSplit] = {}
        """Attributes read so far, by opcode and text; not to be written to."""

    # ---------------------------------------------------------------- findings
    def report(
        self,
        message: str,
        start: int,
        end: int,
        *,
        code: str = "syntax",
        severity: Severity = "error",
        related: tuple[tuple[int, int, str], ...] = (),
    ) -> None:
        """Note a finding about a span of the text."""
        self.diagnostics.append(self._finding(message, start, end, code, severity, related))

    def twice(self, what: str, start: int, end: int, first: int, code: str) -> None:
        """Report what is there a second time; the message and `related` both name the first place."""
        line, _ = self.position(first)
        related = ((first, first + end - start, "the first is here"),)
        self.report(f"{what}; the first is in line {line}", start, end, code=code, related=related)

    def position(self, offset: int) -> tuple[int, int]:
        """1-based line and column of an offset."""
        if self._lines is None:
            self._lines = LineMap(self.text)
        return self._lines.position(offset)

    def object(self, message: str, start: int, end: int | None = None, *, code: str = "xla-syntax") -> None:
        """Note what XLA's parser refuses though it is read here."""
        stop = min(start + 1, len(self.text)) if end is None else end
        self.objections.append(self._finding(message, start, stop, code, "error", ()))

    def early(self, what: str, start: int, end: int) -> None:
        """Warn of a name that stands before its definition: it is meant, but XLA's parser refuses it."""
        said = f"{what} is used before its definition, which XLA's parser refuses"
        self.report(said, start, end, code="use-before-definition", severity="warning")

    def unknown(self, kind: str, word: str, start: int, of: str = "") -> None:
        """Note an opcode, attribute or element type that nobody knows: once per word."""
        if (kind, word) not in self.noted:
            self.noted.add((kind, word))
            message = f"unknown {kind} {word}{of} is kept as it stands"
            end = start + len(word)
            self.report(message, start, end, code=f"unknown-{kind.replace(' ', '-')}", severity="information")
        self.object(f"XLA's parser does not know the {kind} {word}{of}", start, start + len(word), code="xla-unknown")

    def _finding(
        self,
        message: str,
        start: int,
        end: int,
        code: str,
        severity: Severity,
        related: tuple[tuple[int, int, str], ...],
    ) -> Diagnostic:
        line, column = self.position(start)
        end_line, end_column = self.position(end)
        return Diagnostic(message, line, column, end_line, end_column, severity, code, start, end, related)

    def glance(self, pos: int) -> str:
        """What stands at a place, for a message."""
        end = _NEXT_LINE.search(self.text, pos)
        stop = min(end.start() if end is not None else len(self.text), pos + 24)
        return repr(self.text[pos:stop]) if pos < len(self.text) else "the end of the text"

    # ---------------------------------------------------------------- moving on
    def skip_line(self) -> None:
        """Go to the next line."""
        end = _NEXT_LINE.search(self.text, self.pos)
        self.pos = end.end() if end is not None else len(self.text)

    def resume_after(self, bad: Stop) -> None:
        """Report what stopped an instruction and go to where the next one seems to begin."""
        text = self.text
        offset = min(bad.offset, len(text))
        self.report(bad.message, offset, min(offset + 1, len(text)), code=bad.code)
        resume = _RESUME.search(text, max(offset, self.pos + 1))
        line_end = _NEXT_LINE.search(text, max(offset, self.pos))
        self.pos = resume.start() if resume is not None else len(text)
        if line_end is not None and resume is not None and resume.start() < line_end.start():
            following = _RESUME.search(text, line_end.end())
            self.pos = following.start() if following is not None else len(text)

    # ---------------------------------------------------------------- shapes
    def shape_of(self, text: str, at: int) -> Shape:
        """The shape that a text is, default layouts filled in as XLA does; `at` is where the text stands."""
        known = self.shapes.get(text)
        if known is not None:
            return known
        try:
            shape, end = _scan(text, 0)
        except ParseError as bad:
            raise Stop(bad.message, at + (bad.column or 1) - 1) from None
        if end != len(text):
            raise Stop(f"expected a shape, got {text[end : end + 20]!r}", at + end)
        return self._keep(text, shape, at)

    def scan_shape(self, pos: int) -> tuple[Shape, int]:
        """The shape at `pos` and where it ends. Raises Stop where there is none."""
        text = self.text
        found = _SIMPLE_SHAPE.match(text, pos)
        if found is not None:
            known = self.shapes.get(found[0])
            if known is not None:
                return known, found.end()
        elif text.startswith("(", pos):
            end = match_bracket(text, pos)
            known = self.shapes.get(text[pos:end]) if end > 0 else None
            if known is not None:
                return known, end
        try:
            shape, end = _scan(text, pos)
        except ParseError as bad:
            if self._blanked is None:
                self._blanked = without_comments(text)
            try:
                shape, end = _scan(self._blanked, pos)
            except ParseError:
                raise Stop(bad.message, (bad.column or pos + 1) - 1) from None
        return self._keep(text[pos:end], shape, pos), end

    def _keep(self, text: str, shape: Shape, at: int) -> Shape:
        for _, leaf in shape.leaves():
            if leaf.is_array and leaf.element_type not in ELEMENT_TYPES:
                self.unknown("element type", leaf.element_type, max(text.find(leaf.element_type), 0) + at)
        if self.check:
            from hloscope.core.text.strict import shape_objection

            found = shape_objection(text)
            if found is not None:
                self.object(found[0], min(at + found[1], len(self.text)))
        filled = shape.with_default_layout()
        self.shapes[text] = filled
        return filled
