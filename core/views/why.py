"""All that is known of one instruction: what it is, where it comes from, and what happened to it pass by pass.

The history is found in the stages' text by the instruction's name; besides the stage that the facts are taken from, an
index is built only where a name ends or begins, to see whether the instruction was renamed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError, InternalError, UsageError
from hloscope.core.hlo.shape import Shape
from hloscope.core.spelling import did_you_mean
from hloscope.core.text.instruction_text import InstructionText, scan_instruction
from hloscope.core.views.config_keys import CONFIG, changed_keys, same_config
from hloscope.core.views.data import HistoryStep, Place, SourceFrame, WhyFacts
from hloscope.core.views.narrowed import among, dumped_passes, told_range, unread_passes
from hloscope.core.views.stages import Cancelled, Progress, check

if TYPE_CHECKING:
    from hloscope.core.layout.explain import LayoutChain
    from hloscope.core.views.data import HistoryKind
    from hloscope.core.views.fusion import FusionRow
    from hloscope.core.views.run import Run

_SEARCHED_BYTES = 4 << 20
"""Text of a stage up to which its names are compared with one that is not there."""
MAX_DECIDED_BYTES = 8 << 20
"""Text of a stage up to which fusion is worked out, not only told as recorded, to answer for one instruction."""


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction's line cut into what can differ."""

    text: str
    """Without ROOT and metadata."""
    root: bool
    shape: str
    opcode: str
    operands: tuple[str, ...]
    """Operand names; for a leaf, what stands in the parentheses."""
    attributes: tuple[tuple[str, str], ...]


def read_line(text: str) -> Line:
    """The parts of an instruction's line; a line that is no instruction has its text alone."""
    found = scan_instruction(text, 0)
    if found is None:
        return Line(text, False, "", "", (), ())

    def part(span: tuple[int, int] | None) -> str:
        return text[span[0] : span[1]] if span is not None else ""

    attributes = [(one.key, part(one.value)) for one in found.attributes]
    operands = tuple(one.name for one in found.operand_references(text)) or (part(found.operands),)
    bare = _without_metadata(text, found)
    return Line(
        text=bare.removeprefix("ROOT ") if found.is_root else bare,
        root=found.is_root,
        shape=part(found.shape),
        opcode=part(found.opcode),
        operands=operands,
        attributes=tuple(item for item in attributes if item[0] != "metadata"),
    )


def without_metadata(text: str) -> str:
    """An instruction's line without its metadata, which is mostly noise to the eye."""
    found = scan_instruction(text, 0)
    return _without_metadata(text, found) if found is not None else text


def _without_metadata(text: str, found: InstructionText) -> str:
    one = found.attribute("metadata")
    if one is None:
        return text[: found.end]
    comma = text.rfind(",", 0, one.key_span[0])
    return text[:comma] + text[one.value[1] : found.end]


def same_line(before: str, after: str) -> bool:
    """Whether two lines define the same instruction in the same way; metadata does not count."""
    return before == after or not differing_parts(read_line(before), read_line(after))


def differing_parts(before: Line, after: Line) -> tuple[str, ...]:
    """What differs between two lines, in the words of ``InstructionChange.what``; names do not count."""
    parts: list[str] = []
    if before.shape != after.shape:
        bare = (_bare_shape(before.shape), _bare_shape(after.shape))
        parts.append("shape" if bare[0] != bare[1] else "layout")
    for word in ("opcode", "operands", "attributes", "root"):
        if getattr(before, word) != getattr(after, word) and not (
            word == "attributes" and _same_attributes(before.attributes, after.attributes)
        ):
            parts.append(word)
    return tuple(parts)


def _same_attributes(before: Sequence[tuple[str, str]], after: Sequence[tuple[str, str]]) -> bool:
    """Whether two lists differ in nothing but the order of keys in the back end's configuration."""
    return len(before) == len(after) and all(
        one == two or (one[0] == two[0] == CONFIG and same_config(one[1], two[1]))
        for one, two in zip(before, after, strict=True)
    )


def part_changes(before: str, after: str) -> list[tuple[str, str, str]]:
    """(part, before, after) of everything that differs between two lines; attributes one by one."""
    first, last = read_line(before), read_line(after)
    found: list[tuple[str, str, str]] = []
    for part in differing_parts(first, last):
        if part == "attributes":
            was, now = dict(first.attributes), dict(last.attributes)
            keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
            for key in keys:
                inside = changed_keys(was.get(key, ""), now.get(key, "")) if key == CONFIG else []
                whole = (key, was.get(key, ""), now.get(key, ""))
                found += [(f"{key}.{path}", old, new) for path, old, new in inside] or [whole]
        elif part == "operands":
            found.append((part, ", ".join(first.operands), ", ".join(last.operands)))
        elif part == "root":
            found.append((part, "yes" if first.root else "no", "yes" if last.root else "no"))
        else:
            word = "shape" if part == "layout" else part
            found.append((part, str(getattr(first, word)), str(getattr(last, word))))
    return found


def _bare_shape(text: str) -> str:
    try:
        return Shape.parse(text).to_text(layout=False)
    except (HloscopeError, ValueError):
        return text


def why(
    run: Run,
    name: str,
    *,
    stage: int | None = None,
    cancelled: Cancelled | None = None,
    progress: Progress | None = None,
) -> WhyFacts:
    """The facts of an instruction as of the last stage that holds it, or of `stage`, and its history.

    Raises UsageError where no stage holds it, CancelledError.
    """
    anchor = _anchor(run, name, stage, cancelled)
    history = _History(run, cancelled, progress)
    steps = history.trace(anchor)
    line = read_line(anchor.text)
    index = run.stage_index(anchor.stage)
    at = index.instruction_at(anchor.start)
    if at is None:
        raise InternalError(f"the index of stage {anchor.stage} lacks {name}")
    computation = index.computation_of(at)
    shape = _shape(line)
    return WhyFacts(
        name=name,
        opcode=line.opcode,
        computation=index.computation(computation).name,
        instruction=("ROOT " if line.root else "") + line.text,
        stage=anchor.stage,
        is_root=line.root,
        operands=tuple(index.name(one) if one >= 0 else "?" for one in index.operands(at)),
        users=tuple(index.name(one) for one in index.users(at)),
        called_by=tuple(index.name(one) for one in index.callers(computation)),
        op_name=index.op_name(at),
        source=tuple(SourceFrame(one.file, one.line, one.column, one.function) for one in index.frames(at)),
        shape=shape.to_text(layout=False) if shape is not None else line.shape,
        layout=str(shape.layout) if shape is not None and shape.layout is not None else None,
        bytes=_bytes(shape),
        first_stage=history.first,
        last_stage=history.last,
        passes=tuple(steps),
        fusion=_fusion(run, name, steps, history.notes),
        layout_chain=_layout_chain(run, name, steps),
        buffer=run.buffers.of(name) or None,
        notes=tuple(history.notes),
    )


def earlier_names(run: Run, name: str, *, cancelled: Cancelled | None = None) -> tuple[tuple[str, ...], str]:
    """Other names that an instruction had in earlier stages, latest first, and how it came to be, in words.

    Raises UsageError where no stage holds it, CancelledError.
    """
    steps = _History(run, cancelled, None).back(_anchor(run, name, None, cancelled))
    first = steps[-1]
    where = f"{first.pipeline}/{first.pass_name}" if first.pipeline else first.pass_name
    if first.among is not None:
        where = told_range(first.among, first.unread) + ("" if first.unread else ",")
    came = "the program has it" if first.what == "present" else f"{where} made it (stage {first.index})"
    return tuple(one for one in dict.fromkeys(step.name for step in steps) if one != name), came


def _fusion(run: Run, name: str, steps: list[HistoryStep], notes: list[str]) -> tuple[FusionRow, ...] | None:
    """Fusion decisions about the instruction under any of its names.

    None where the run has no fusion pass, and with a note where none was recorded and working them out would take long.
    """
    from hloscope.core.views.fusion import fusion_report

    size = max(len(run.stage_bytes(0)), len(run.stage_bytes(-1)))
    try:
        report = run.fusion if size <= MAX_DECIDED_BYTES else fusion_report(run, graphs=False)
    except HloscopeError:
        if size > MAX_DECIDED_BYTES:
            notes.append(
                f"fusion is not worked out for one instruction where a stage has {size / 2**20:.0f} MiB of text (up to"
                f" {MAX_DECIDED_BYTES >> 20} MiB it is); hloscope fusion does"
            )
        return None
    names = dict.fromkeys((name, *(step.name for step in steps)))
    return tuple(dict.fromkeys(row for one in names for row in report.of(one)))


def _layout_chain(run: Run, name: str, steps: list[HistoryStep]) -> LayoutChain | None:
    from hloscope.core.views.copies import layout_chain

    return layout_chain(run, name, *dict.fromkeys(step.name for step in steps if step.name != name))


def _anchor(run: Run, name: str, stage: int | None, cancelled: Cancelled | None) -> Place:
    rows = [run.resolve(stage)] if stage is not None else range(len(run) - 1, -1, -1)
    last: int | None = None
    for index in rows:
        check(cancelled)
        snapshot = run.outline[index].snapshot
        found = run.definition(index, name) if snapshot != last else None
        last = snapshot
        if found is not None:
            return found
    where = f"stage {stage}" if stage is not None else "any of the stages" if len(run) > 1 else "the module"
    # Comparing hundreds of thousands of names takes longer than the answer is worth.
    known = [place.name for place in run.search("", -1)] if len(run.stage_bytes(-1)) <= _SEARCHED_BYTES else []
    raise UsageError(f"no instruction {name!r} in {where}", path=run.source.path, hint=did_you_mean(name, known))


class _History:
    """Follows an instruction from stage to stage, through renames, both ways from where it was found."""

    def __init__(self, run: Run, cancelled: Cancelled | None, progress: Progress | None) -> None:
        self._run = run
        self._cancelled = cancelled
        self._progress = progress
        self._done = 0
        self.first = self.last = 0
        self.notes: list[str] = []
        self._pattern = dumped_passes(run)

    def trace(self, anchor: Place) -> list[HistoryStep]:
        back = self.back(anchor)
        return [*reversed(back), *self._forth(anchor)]

    def back(self, anchor: Place) -> list[HistoryStep]:
        """What happened up to where it was found, the last first."""
        return list(self._back(anchor))

    def _back(self, anchor: Place) -> Iterator[HistoryStep]:
        from hloscope.core.views.taken import taken_from

        here = anchor
        for index in range(anchor.stage, 0, -1):
            self._tick()
            if self._same(index):
                continue
            before = self._run.definition(self._run.whole_before(index), here.name)
            if before is None:
                old = self._renamed(index, here.name, forth=False)
                if old is None:
                    self.first = index
                    took = taken_from(self._run, index, here, self._cancelled)
                    yield self._step(index, "appeared", here.name, None, here, took=took)
                    self._note_earlier(index - 1, here.name)
                    return
                yield self._step(index, "renamed", here.name, old, here)
                before = old
            elif parts := _parts(before, here):
                yield self._step(index, "modified", here.name, before, here, parts)
            here = before
        self.first = 0
        yield self._step(0, "present", here.name, None, here)

    def _forth(self, anchor: Place) -> Iterator[HistoryStep]:
        from hloscope.core.views.taken import replaced_by, taken_into

        here = anchor
        self.last = len(self._run) - 1
        for index in range(anchor.stage + 1, len(self._run)):
            self._tick()
            if self._same(index):
                continue
            after = self._run.definition(index, here.name)
            if after is None:
                new = self._renamed(index, here.name, forth=True)
                if new is None:
                    self.last = self._run.whole_before(index)
                    replaced = replaced_by(self._run, index, here)
                    took = taken_into(self._run, index, here)
                    yield self._step(index, "removed", here.name, here, None, replaced_by=replaced, took=took)
                    return
                yield self._step(index, "renamed", new.name, here, new)
                after = new
            elif parts := _parts(here, after):
                yield self._step(index, "modified", after.name, here, after, parts)
            here = after

    def _tick(self) -> None:
        check(self._cancelled)
        self._done += 1
        if self._progress is not None:
            self._progress(min(self._done, len(self._run)), len(self._run))

    def _same(self, index: int) -> bool:
        """Whether a row is known to have changed nothing."""
        rows = self._run.outline
        if rows[index].snapshot == rows[index - 1].snapshot or rows[index].changed is False:
            return True
        return self._run.fault(index) is not None

    def _renamed(self, index: int, name: str, *, forth: bool) -> Place | None:
        """The instruction after (or before) a row that the row's diff pairs with `name`."""
        from hloscope.core.views.follow import other_name

        other = other_name(self._run.diff(index, cancelled=self._cancelled), name, forth=forth)
        return None if other is None else self._run.definition(index if forth else self._run.whole_before(index), other)

    def _note_earlier(self, index: int, name: str) -> None:
        for earlier in range(index, -1, -1):
            check(self._cancelled)
            if not (earlier and self._same(earlier)) and self._run.definition(earlier, name) is not None:
                self.notes.append(f"stage {earlier} has another instruction of the same name, which was removed")
                return

    def _step(
        self,
        index: int,
        what: HistoryKind,
        name: str,
        before: Place | None,
        after: Place | None,
        parts: tuple[str, ...] = (),
        replaced_by: tuple[str, ...] = (),
        took: tuple[str, str] | None = None,
    ) -> HistoryStep:
        row = self._run.outline[index]
        return HistoryStep(
            index=index,
            pipeline=row.pipeline,
            pass_name=row.pass_name,
            what=what,
            name=name,
            parts=parts,
            before=_metadata_free(before),
            after=_metadata_free(after),
            replaced_by=replaced_by,
            among=among(self._run, index, self._pattern) if what != "present" else None,
            unread=unread_passes(self._run, index) if what != "present" else (),
            other=took[0] if took is not None else None,
            inside=took[1] if took is not None else None,
        )


def _parts(before: Place, after: Place) -> tuple[str, ...]:
    return () if before.text == after.text else differing_parts(read_line(before.text), read_line(after.text))


def _metadata_free(place: Place | None) -> str | None:
    return without_metadata(place.text) if place is not None else None


def _shape(line: Line) -> Shape | None:
    try:
        return Shape.parse(line.shape)
    except (HloscopeError, ValueError):
        return None


def _bytes(shape: Shape | None) -> int | None:
    try:
        return shape.byte_size if shape is not None else None
    except (HloscopeError, ValueError, KeyError):
        return None
