"""What the line pane shows: a stage's diff, its text, or a list of places, as lines that name what they are about."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hloscope.core.views.why import without_metadata
from hloscope.tui.highlight import Piece, differing, pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hloscope.core.views.data import EventRow, InstructionChange, Place, StageDiff, WhyFacts

Mark = Literal["", "added", "removed", "modified", "renamed", "heading", "note"]


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

    def pieces(self) -> list[Piece]:
        """The line as coloured pieces."""
        if self.differs is not None:
            return list(self.differs)
        if self.mark in ("heading", "note"):
            return [(self.text, self.mark)]
        return pieces(self.text)


def diff_lines(diff: StageDiff, events: Iterable[EventRow] = ()) -> list[Line]:
    """A diff as lines: counts, then the changes by computation in the order of the text, then what was recorded."""
    if diff.empty:
        return [Line("No instruction differs from the stage before.", "note"), *_event_lines(events)]
    out = [Line(_counts(diff), "note")]
    out += [Line(f"~ header: {key}", "modified") for key in diff.header]
    out += [Line(f"+ computation {name}", "added") for name in diff.computations_added]
    out += [Line(f"- computation {name}", "removed") for name in diff.computations_removed]
    out += [Line(f"> computation {old} → {new}", "renamed") for old, new in diff.computations_renamed]
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
            out += _change(mark, change)
    return out + _event_lines(events)


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


def _change(mark: Mark, change: InstructionChange) -> Iterator[Line]:
    before, after = _bare(change.before, change), _bare(change.after, change)
    if mark == "added":
        yield _signed("  + ", after, mark, change)
    elif mark == "removed":
        yield _signed("  - ", before, mark, change)
    else:
        what = ", ".join(part for part in change.what if part != "name")
        if mark == "renamed":
            yield Line(f"  > {change.old_name} → {change.name}" + (f"   {what}" if what else ""), mark, change.name)
        else:
            yield Line(f"  ~ {change.name}   {what}", mark, change.name)
        if what:
            left, right = differing(before, after)
            yield Line(f"      - {before}", "removed", change.name, differs=(("      - ", "removed"), *left))
            yield Line(f"      + {after}", "added", change.name, differs=(("      + ", "added"), *right))


def _signed(sign: str, text: str, mark: Mark, change: InstructionChange) -> Line:
    return Line(sign + text, mark, change.name, differs=((sign, mark), *pieces(text)))


def _bare(line: str | None, change: InstructionChange) -> str:
    if line is None:
        return ""
    return line if "metadata" in change.what else without_metadata(line)


def _event_lines(events: Iterable[EventRow]) -> list[Line]:
    rows = list(events)
    if not rows:
        return []
    return [
        Line("", "note"),
        Line("recorded", "heading"),
        *(Line(f"  {row.sentence}", "note", row.subject) for row in rows),
    ]


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
    out.append(Line(f"  {facts.instruction}", "", facts.name, facts.stage))
    size = f"{facts.bytes:,} bytes" if facts.bytes is not None else "size unknown"
    layout = f", layout {facts.layout}" if facts.layout is not None else ""
    out.append(Line(f"  {facts.opcode} of {facts.shape}{layout}, {size}", "note"))
    if facts.operands:
        out.append(Line("  reads    " + _some(facts.operands), "note"))
    out.append(Line("  used by  " + (_some(facts.users) or ("the result" if facts.is_root else "nobody")), "note"))
    if facts.op_name:
        out.append(Line(f"  op_name  {facts.op_name}", "note"))
    if facts.source:
        out += [Line("", "note"), Line("source, innermost first", "heading")]
        out += [Line(f"  {frame.file}:{frame.line}  {frame.function}", "note") for frame in facts.source]
    out += [Line("", "note"), Line("history", "heading")]
    for step in facts.passes:
        where = f"{step.pipeline}/{step.pass_name}" if step.pipeline else step.pass_name
        parts = f" ({', '.join(step.parts)})" if step.parts else ""
        by = f", replaced by {_some(step.replaced_by)}" if step.replaced_by else ""
        how = f"{step.what}{parts} by" if step.what != "present" else "there in"
        out.append(Line(f"  [{step.index:>3}] {how} {where}: {step.name}{by}", "note", step.name, step.index))
        if step.what in ("modified", "renamed") and step.before and step.after:
            left, right = differing(step.before, step.after)
            out.append(
                Line(f"        - {step.before}", "removed", None, step.index, (("        - ", "removed"), *left))
            )
            out.append(
                Line(f"        + {step.after}", "added", step.name, step.index, (("        + ", "added"), *right))
            )
    out += [Line(f"  note: {note}", "note") for note in facts.notes]
    return out


def _some(names: tuple[str, ...], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
