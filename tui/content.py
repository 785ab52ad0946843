"""What the line pane shows: a stage's diff, its text, or a list of places, as lines that name what they are about."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from hloscope.core.views.narrowed import told_range
from hloscope.tui.highlight import Piece, differing, pieces, wrapped
from hloscope.tui.show import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hloscope.core.views.copies import CopyRow
    from hloscope.core.views.data import EventRow, HistoryStep, InstructionChange, Place, StageDiff, WhyFacts

Mark = Literal["", "added", "removed", "modified", "renamed", "heading", "note", "warning", "name", "bar", "strong"]

COMPUTATIONS = 6
"""Computations that are listed one by one."""
_TOLD_APART = lru_cache(2048)(differing)
_BEHIND = 80
"""Characters behind what is seen: a word that is cut in two could take another colour."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the pane."""

    text: str
    """The line as plain text; what search and copying see."""
    mark: Mark = ""
    instruction: str | None = None
    """The instruction that the line is about."""
    stage: int | None = None
    """The stage to go to from here."""
    differs: tuple[Piece, ...] | None = field(default=None, compare=False)
    """Pieces worked out beforehand; None colours the text when it is drawn."""
    against: tuple[str, str] | None = field(default=None, compare=False)
    """Sign, and the other version of the line: what only this one has is marked when it is drawn."""
    item: object = field(default=None, compare=False)
    """What the line stands for, to the screen that made it."""

    def pieces(self, visible: int = 0) -> list[Piece]:
        """The line as coloured pieces; with `visible` what is far behind that many characters may be left out."""
        if self.differs is not None:
            return list(self.differs)
        if self.against is not None:
            sign, other = self.against
            own = self.text[len(sign) :]
            mine = _TOLD_APART(other, own)[1] if self.mark == "added" else _TOLD_APART(own, other)[0]
            return [(sign, self.mark), *mine]
        if self.mark in ("heading", "note", "warning"):
            return [(self.text, self.mark)]
        return pieces(self.text[: visible + _BEHIND] if visible else self.text)


def plain(text: str = "", mark: Mark = "note", *, instruction: str | None = None, stage: int | None = None) -> Line:
    """A line of words, not of HLO."""
    return Line(text, mark, instruction, stage, ((text, mark),))


def folded(line: Line, width: int) -> list[Line]:
    """A line of words or of HLO cut to a width; rows after the first stand further in.

    Lines of several pieces (bars, pictures, before against after) stay as they are.
    """
    pieces_known = line.differs is not None or line.against is not None
    if len(line.text) <= width or line.against is not None or (line.differs is not None and len(line.differs) > 1):
        return [line]
    indent = min(width // 3, len(line.text) - len(line.text.lstrip()) + 4)
    found = wrapped(line.pieces(), width, indent, " " if pieces_known or line.mark else ", ")
    return [
        replace(line, text="".join(text for text, _ in row), differs=tuple(row), mark=line.mark if at == 0 else "")
        for at, row in enumerate(found)
    ]


# ---------------------------------------------------------------- differences
def diff_lines(diff: StageDiff, *, side: int = 0, wrap: int = 0) -> list[Line]:
    """A diff as lines: counts, then the changes by computation in the order of the text.

    With `side` before and after stand beside one another in that many columns, with `wrap` long lines go on below.
    """
    if diff.empty:
        return [Line("No instruction differs from the stage before.", "note")]
    out = [Line(_counts(diff), "note")]
    out += [Line(f"~ header: {key}", "modified") for key in diff.header]
    out += _computations("+", "added", diff.computations_added)
    out += _computations("-", "removed", diff.computations_removed)
    out += _computations(">", "renamed", [f"{old} → {new}" for old, new in diff.computations_renamed])
    groups: dict[str, list[tuple[int, Mark, InstructionChange]]] = defaultdict(list)
    kinds: tuple[tuple[Mark, tuple[InstructionChange, ...]], ...] = (
        ("removed", diff.removed),
        ("modified", diff.modified),
        ("renamed", diff.renamed),
        ("added", diff.added),
    )
    for mark, changes in kinds:
        for change in changes:
            at = change.line_after if change.line_after is not None else change.line_before
            groups[change.computation].append((at or 0, mark, change))
    for computation, items in groups.items():
        out += [Line("", "note"), Line(computation, "heading")]
        for _, mark, change in sorted(items, key=lambda item: item[0]):
            out += _beside(mark, change, side) if side else _change(mark, change, wrap)
    return out


def _computations(sign: str, mark: Mark, found: Sequence[str]) -> list[Line]:
    """One line each; where there are many, one for all: their instructions follow anyway."""
    if len(found) > COMPUTATIONS:
        return [Line(f"{sign} {len(found):,} computations: {names(found, 5)}", mark)]
    return [Line(f"{sign} computation {name}", mark) for name in found]


def _counts(diff: StageDiff) -> str:
    parts = [
        f"{len(changes):,} {word}"
        for word, changes in (
            ("added", diff.added),
            ("removed", diff.removed),
            ("modified", diff.modified),
            ("renamed", diff.renamed),
        )
        if changes
    ]
    return ", ".join(parts) or "no instruction differs"


def _change(mark: Mark, change: InstructionChange, wrap: int) -> Iterator[Line]:
    before, after = _bare(change.before, change), _bare(change.after, change)
    if mark == "added":
        yield from _signed("  + ", after, mark, change, wrap)
    elif mark == "removed":
        yield from _signed("  - ", before, mark, change, wrap)
    else:
        yield _heading(mark, change)
        if _what(change):
            yield from _versions("      - ", before, after, "removed", change, wrap)
            yield from _versions("      + ", after, before, "added", change, wrap)


def _what(change: InstructionChange) -> str:
    return ", ".join(part for part in change.what if part != "name")


def _heading(mark: Mark, change: InstructionChange) -> Line:
    what = _what(change)
    if mark == "renamed":
        return Line(f"  > {change.old_name} → {change.name}" + (f"   {what}" if what else ""), mark, change.name)
    return Line(f"  ~ {change.name}   {what}", mark, change.name)


def _versions(sign: str, text: str, other: str, mark: Mark, change: InstructionChange, wrap: int) -> Iterator[Line]:
    line = Line(sign + text, mark, change.name, against=(sign, other))
    if not wrap or len(line.text) <= wrap:
        yield line
        return
    yield from _folded(line.pieces(), len(sign) + 2, wrap, mark, change.name)


def _signed(sign: str, text: str, mark: Mark, change: InstructionChange, wrap: int) -> Iterator[Line]:
    if not wrap or len(sign) + len(text) <= wrap:
        yield Line(sign + text, mark, change.name, against=(sign, text))
    else:
        yield from _folded([(sign, mark), *pieces(text)], len(sign) + 2, wrap, mark, change.name)


def _folded(found: list[Piece], indent: int, width: int, mark: Mark, name: str) -> Iterator[Line]:
    for number, row in enumerate(wrapped(found, width, indent)):
        yield Line("".join(text for text, _ in row), mark if number == 0 else "", name, differs=tuple(row))


def _beside(mark: Mark, change: InstructionChange, width: int) -> Iterator[Line]:
    """Before on the left, after on the right."""
    half = max(20, (width - 7) // 2)
    before, after = _bare(change.before, change), _bare(change.after, change)
    if mark in ("modified", "renamed"):
        yield _heading(mark, change)
        if not _what(change):
            return
        left, right = _TOLD_APART(before, after)
    else:
        left, right = pieces(before), pieces(after)
    sides = [wrapped(left, half, 2) if before else [], wrapped(right, half, 2) if after else []]
    sign = {"added": "+", "removed": "-"}.get(mark, "~")
    for number in range(max(map(len, sides))):
        row: list[Piece] = [(f"  {sign} " if number == 0 else "    ", mark)]
        for at, side in enumerate(sides):
            part = side[number] if number < len(side) else []
            row += part
            if at == 0:
                row.append((" " * (half - sum(len(text) for text, _ in part)) + " │ ", "note"))
        shown: Mark = mark if number == 0 and mark in ("added", "removed") else ""
        yield Line("".join(text for text, _ in row), shown, change.name, differs=tuple(row))


def _bare(line: str | None, change: InstructionChange) -> str:
    if line is None:
        return ""
    # Made where the work is done: the words are wanted on the screen before these modules are.
    from hloscope.core.views.why import without_metadata

    return line if "metadata" in change.what else without_metadata(line)


def event_lines(events: Iterable[EventRow]) -> list[Line]:
    """What was recorded: the fuel, the sentence, and who says so where it was not a compiler of ours."""
    out: list[Line] = []
    for row in events:
        fuel = f"fuel {row.fuel:,}  " if row.fuel is not None else ""
        by = f"  ({row.origin})" if row.origin != "core" else ""
        out.append(plain(f"{fuel}{row.sentence}{by}", instruction=row.subject))
    return out


# ---------------------------------------------------------------- text, places, histories
def text_lines(text: str) -> list[Line]:
    """A stage's text, line by line; each definition names its instruction."""
    out: list[Line] = []
    for line in text.split("\n"):
        name: str | None = None
        if line.startswith(" ") and " = " in line:
            head = line.split(" = ", 1)[0].split()
            name = head[-1].removeprefix("%") if head else None
        out.append(Line(line, "", name))
    return out


def place_lines(places: Iterable[Place], pattern: str) -> list[Line]:
    """Found instructions, the line of each."""
    found = [Line(f"  {place.text}", "", place.name, place.stage) for place in places]
    if not found:
        return [Line(f"No instruction matches {pattern!r} in this stage.", "note")]
    return [Line(f"{len(found):,} instructions match {pattern!r}; enter shows one in the text", "note"), *found]


def why_lines(facts: WhyFacts) -> list[Line]:
    """All that is known of an instruction, from its definition to what each stage did to it."""
    out = [Line(f"{facts.name}  in {facts.computation}", "heading", facts.name)]
    out += _life(facts)
    out.append(Line(f"  {facts.instruction}", "", facts.name, facts.stage))
    size = f"{facts.bytes:,} bytes" if facts.bytes is not None else "size unknown"
    layout = f", layout {facts.layout}" if facts.layout is not None else ""
    out.append(Line(f"  {facts.opcode} of {facts.shape}{layout}, {size}", "note"))
    if facts.operands:
        out.append(Line("  reads    " + names(facts.operands), "note"))
    out.append(Line("  used by  " + (names(facts.users) or ("the result" if facts.is_root else "nobody")), "note"))
    if facts.op_name:
        out.append(Line(f"  op_name  {facts.op_name}", "note"))
    if facts.source:
        out += [Line("", "note"), Line("source, innermost first", "heading")]
        out += [Line(f"  {frame.file}:{frame.line}  {frame.function}", "note", item=frame) for frame in facts.source]
    span = f"stages {facts.first_stage:,} to {facts.last_stage:,}; shown as of {facts.stage:,}"
    out += [Line("", "note"), Line(f"history: {span}", "heading")]
    for step in facts.passes:
        where = f"{step.pipeline}/{step.pass_name}" if step.pipeline else step.pass_name
        parts = f" ({', '.join(step.parts)})" if step.parts else ""
        by = f", replaced by {names(step.replaced_by)}" if step.replaced_by else ""
        where = _among(step) or where
        if step.other is not None:
            word = "goes on as" if step.what == "removed" else "in place of"
            by = f", {word} {step.other} inside {step.inside}{by}"
        how = f"{step.what}{parts} by" if step.what != "present" else "there in"
        out.append(Line(f"  [{step.index:>3}] {how} {where}: {step.name}{by}", "note", step.name, step.index))
        if step.what in ("modified", "renamed") and step.before and step.after:
            signs = ("        - ", "        + ")
            out.append(Line(signs[0] + step.before, "removed", None, step.index, against=(signs[0], step.after)))
            out.append(Line(signs[1] + step.after, "added", step.name, step.index, against=(signs[1], step.before)))
    out += _fusion_part(facts) + _layout_part(facts) + _buffer_part(facts)
    out += [Line(f"  note: {note}", "note") for note in facts.notes]
    return out


def _among(step: HistoryStep) -> str:
    """The passes that are in doubt; empty where it was the row's own."""
    return told_range(step.among, step.unread) if step.among else ""


def _life(facts: WhyFacts) -> list[Line]:
    """Which pass made it and which took it away, in two lines at most: what is asked for most."""
    if not facts.passes:
        return []
    first, last = facts.passes[0], facts.passes[-1]

    def said(word: str, step: HistoryStep) -> Line:
        where = f"{step.pipeline}/{step.pass_name}" if step.pipeline else step.pass_name
        name = f" as {step.name}" if step.name != facts.name else ""
        by = f", replaced by {names(step.replaced_by, 3)}" if step.replaced_by else ""
        made = fused_into(facts) if word == "removed by" and not by else None
        by = f", fused into {made}" if made else by
        if step.other is not None:
            by = f", goes on as {step.other} inside {step.inside}" if step.what == "removed" else by
            by = f", in place of {step.other}" if step.what == "appeared" else by
        where = _among(step) or where
        text = f"  {word} [{step.index}] {where}{name}{by}"
        return Line(text, "strong", step.name, step.index, ((text, "strong"),))

    out = [said("there from the beginning:" if first.what == "present" else "made by", first)]
    if last.what == "removed":
        out.append(said("removed by", last))
    return out


def fused_into(facts: WhyFacts) -> str | None:
    """The fusion that holds an instruction now which its last stage took away; None where none is known to."""
    last = facts.passes[-1] if facts.passes else None
    if last is None or last.what != "removed":
        return None
    rows = (row for row in facts.fusion or () if row.verdict == "fused" and row.made)
    return next((row.made for row in rows if last.name in (row.producer, *row.consumers)), None)


def _fusion_part(facts: WhyFacts) -> list[Line]:
    if not facts.fusion:
        return []
    out = [Line("", "note"), Line("fusion", "heading")]
    for row in facts.fusion[:20]:
        into = f" into {names(row.consumers, 3)}" if row.consumers else ""
        reason = f": {row.reason}" if row.reason else ""
        out.append(plain(f"  {row.producer} {row.verdict}{into}{reason}  ({row.origin})", instruction=row.producer))
    if len(facts.fusion) > 20:
        out.append(plain(f"  and {len(facts.fusion) - 20} more decisions: 3 shows them"))
    return out


def _layout_part(facts: WhyFacts) -> list[Line]:
    chain = facts.layout_chain
    if chain is None:
        return []
    out = [Line("", "note"), Line("where its layout comes from", "heading")]
    for place in (*chain.definitions, *chain.uses):
        out.append(plain(f"  {place.where}: {place.layout}"))
        out += [plain(f"    {link.where} {link.layout}: {link.because}") for link in place.links]
        out += [plain(f"    not {lost.layout}: {lost.because}") for lost in place.lost]
    return out


def copy_lines(row: CopyRow) -> list[Line]:
    """Why a copy is there."""
    out = [plain(), plain("why this copy", "heading")]
    out.append(plain(f"  copies {row.operand}: {row.from_layout} → {row.to_layout}", instruction=row.operand))
    out.append(plain(f"  {row.cause.kind}: {row.cause.sentence}"))
    return [*out, plain("  4 shows all copies, with what would remove them")]


def _buffer_part(facts: WhyFacts) -> list[Line]:
    if not facts.buffer:
        return []
    out = [Line("", "note"), Line("memory", "heading")]
    for one in facts.buffer:
        live = f", alive from step {one.live[0]:,} to {one.live[1]:,}" if one.live is not None else ""
        shared = f", place shared with {one.shared_with} others" if one.shared_with else ""
        out.append(
            plain(
                f"  {one.shape_index} {one.size:,} bytes at {one.offset:,} of allocation {one.allocation} "
                f"({one.kind}){live}{shared}"
            )
        )
    return out
