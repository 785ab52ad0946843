"""The plain types that the command line, the dashboard and the language server share.

They hold editor words (names, offsets, labels, numbers), never IR nodes, so that a reader cannot compute a compiler
fact of its own. Lines and columns are 0-based here, as editors count; offsets are in characters of the stage's text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hloscope.core.layout.explain import LayoutChain
    from hloscope.core.views.fusion import FusionRow

Origin = Literal["core", "xla", "inferred"]


@dataclass(frozen=True, slots=True)
class Source:
    """What was opened."""

    path: str
    """The path as the user gave it."""
    module: str
    """Name of the HLO module."""
    xla_build: str | None
    """The compiler build that wrote it (``jaxlib 0.10.2``), None where the dump does not say."""
    target: str | None
    """``cpu``, ``gpu``, ``tpu`` or ``core``; None for a bare file that does not tell."""
    kind: Literal["dump", "ledger", "hlo"] = "hlo"
    """How it is stored."""
    by_core: bool = False
    """Whether it is a compile of our own: what it has of reports is ours."""


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """One Python frame of an instruction's source stack, innermost first."""

    file: str
    line: int
    """1-based, as Python counts."""
    column: int
    function: str


@dataclass(frozen=True, slots=True)
class PassRow:
    """One row of the pass timeline (``hloscope passes``); the index is what ``--stage`` takes."""

    index: int
    pipeline: str
    pass_name: str
    changed: bool | None
    """Whether the module differs from the row before; None where neither the compiler nor the snapshots say."""
    instructions_before: int
    instructions_after: int
    ns: int | None
    """Run time in nanoseconds; None where nothing says it."""
    file: str | None
    """The dump file of the snapshot after this pass, relative to the dump; None for a pass that has none."""
    unannounced: str | None
    """``A … B``: the range of passes in which an undeclared change lies; None where there is none."""
    next_pass: str | None = None
    """The pass that the file says follows."""
    fuel_used: int | None = None
    """Gated rewrites that this pass applied; None for a compiler that does not say."""
    fault: str | None = None
    """What is wrong with the snapshot's text, so that it says nothing about the pass; None for a whole one."""
    unread: str | None = None
    """``A … B``: the passes any of which may have made the change, as the texts between were not readable."""
    inside: str | None = None
    """For the start of a pipeline that a pass runs: that pass, whose own work until then the row shows."""
    seen: bool = True
    """Whether the module after this row is known: from a stage of its own, or since nothing changed after the last one.
    Otherwise the counts are those of the last stage."""


@dataclass(frozen=True, slots=True)
class InstructionChange:
    """One instruction that a stage added, removed, modified or renamed."""

    name: str
    """Name after the change (before it, for a removed one)."""
    computation: str
    before: str | None
    """The instruction's line before, without metadata's noise removed; None when added."""
    after: str | None
    """The line after; None when removed."""
    what: tuple[str, ...] = ()
    """Parts that differ: ``shape``, ``layout``, ``opcode``, ``operands``, ``attributes``, ``metadata``, ``name``."""
    old_name: str | None = None
    """For a renamed instruction, the name before."""
    opcode: str = ""
    line_before: int | None = None
    """0-based line in the text before."""
    line_after: int | None = None
    """0-based line in the text after."""


@dataclass(frozen=True, slots=True)
class StageDiff:
    """What changed between two stages, instruction by instruction."""

    from_index: int
    to_index: int
    added: tuple[InstructionChange, ...]
    removed: tuple[InstructionChange, ...]
    modified: tuple[InstructionChange, ...]
    renamed: tuple[InstructionChange, ...]
    computations_added: tuple[str, ...] = ()
    computations_removed: tuple[str, ...] = ()
    computations_renamed: tuple[tuple[str, str], ...] = ()
    header: tuple[str, ...] = ()
    """Header attributes of the module that differ."""

    def __repr__(self) -> str:
        kinds = ("added", "removed", "modified", "renamed")
        counts = ", ".join(f"{len(getattr(self, kind)):,} {kind}" for kind in kinds if getattr(self, kind))
        return f"<diff of stages {self.from_index} and {self.to_index}: {counts or 'no instruction differs'}>"

    @property
    def empty(self) -> bool:
        """No difference at all."""
        return not (
            self.added or self.removed or self.modified or self.renamed or self.header
            or self.computations_added or self.computations_removed or self.computations_renamed
        )  # fmt: skip

    @property
    def metadata_alone(self) -> bool:
        """Whether there are modified instructions, and all of them differ by metadata (and name) alone."""
        return bool(self.modified) and all({"metadata", "name"}.issuperset(one.what) for one in self.modified)


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A range of a text: character offsets and the 0-based line/column of both ends."""

    start: int
    end: int
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A computation or an instruction as an editor lists it."""

    name: str
    kind: Literal["module", "computation", "instruction"]
    detail: str
    """Opcode and shape of an instruction, signature of a computation."""
    span: TextSpan
    """The whole definition."""
    selection: TextSpan
    """The name."""
    children: tuple[Symbol, ...] = ()


@dataclass(frozen=True, slots=True)
class HoverFacts:
    """What is known of one instruction from the text alone."""

    name: str
    opcode: str
    meaning: str
    """One line on the opcode."""
    signature: str
    """Shape, name and operands in one line."""
    shape: str
    layout: str | None
    bytes: int | None
    """Bytes of the result without padding; None for shapes of unknown size."""
    operands: tuple[str, ...]
    users: tuple[str, ...]
    computation: str
    is_root: bool
    op_name: str | None
    source: tuple[SourceFrame, ...]
    span: TextSpan


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event of the ledger, with the sentence derived from its fields."""

    id: int
    pass_index: int | None
    type: str
    subject: str | None
    verdict: str | None
    code: str | None
    fuel: int | None
    numbers: dict[str, object]
    sentence: str
    origin: Origin = "core"


@dataclass(frozen=True, slots=True)
class Notable:
    """A thing worth looking at first."""

    title: str
    detail: str
    stage: int | None = None
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The dashboard's first screen, as data; also what ``open --json`` and ``capture`` print."""

    source: Source
    stages: int
    passes: int
    changed: int
    instructions_before: int
    instructions_after: int
    computations: int
    total_ns: int | None
    events: int
    opcodes: tuple[tuple[str, int], ...]
    """The commonest opcodes of the last stage with their counts, most first."""
    notable: tuple[Notable, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What could not be read, one sentence each."""

    def __repr__(self) -> str:
        counts = f"{self.instructions_before:,} to {self.instructions_after:,} instructions"
        return (
            f"<summary of {self.source.module or '?'}: {self.passes:,} passes, {self.changed:,} changed it, {counts}>"
        )


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module that a PATH holds; the index is what ``--module`` takes."""

    index: int
    name: str
    label: str
    """``module_0001.jit_f`` in a dump; the name elsewhere."""
    bytes: int
    """Bytes of its largest stage (dump) or of the text; 0 where that is not known without reading."""
    stages: int | None = None
    """Snapshots; None where that is not known without reading."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an instruction is defined."""

    stage: int
    """Pass row whose snapshot holds it."""
    name: str
    line: int
    """0-based line of the stage's text."""
    start: int
    """Character offset of the line's first letter."""
    text: str
    """The line, without indentation."""
    last_stage: int | None = None
    """Last row of the unbroken range of rows in which the line is the same; None where only one stage was asked."""


HistoryKind = Literal["present", "appeared", "modified", "renamed", "removed"]


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """One thing that happened to an instruction on its way through the passes."""

    index: int
    """Pass row after which it is seen; ``present`` is the first stage that there is."""
    pipeline: str
    pass_name: str
    what: HistoryKind
    name: str
    """Its name after this row (before it, where it was removed)."""
    parts: tuple[str, ...] = ()
    """For ``modified``: the parts that differ, as in ``InstructionChange.what``."""
    before: str | None = None
    """Its line before, without metadata."""
    after: str | None = None
    replaced_by: tuple[str, ...] = ()
    """For ``removed``: the instructions that its users read after the pass, as far as they kept their names."""
    among: str | None = None
    """``A … B``: the passes any of which may have done it, where a dump of some passes only does not tell which, or a
    text between was not readable."""
    unread: tuple[str, ...] = ()
    """The passes of that range after which the text was not readable."""
    other: str | None = None
    """For ``removed``: the instruction inside a fusion that computes the same in its place; for ``appeared``: the one
    in whose place it is computed inside a fusion."""
    inside: str | None = None
    """That fusion."""


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """Where a part of an instruction's result lies in memory."""

    shape_index: str
    """``{}``, ``{1,0}``."""
    allocation: int
    kind: str
    """``parameter``, ``constant``, ``thread-local``, ``output``, ``temp`` or ``preallocated-temp``."""
    offset: int
    size: int
    """Bytes."""
    live: tuple[int, int] | None
    """First and last step of the flattened schedule; None where nothing tells."""
    shared_with: int
    """Other values that start at the same byte at other times."""


@dataclass(frozen=True, slots=True)
class WhyFacts:
    """All that is known of one instruction (``hloscope why PATH NAME``). What later work will know is None today."""

    name: str
    opcode: str
    computation: str
    instruction: str
    """Its line in the last stage that holds it, without metadata."""
    stage: int
    """That stage's row."""
    is_root: bool
    operands: tuple[str, ...]
    users: tuple[str, ...]
    called_by: tuple[str, ...]
    """Instructions that call its computation (the fusion it is in, the loop whose body holds it)."""
    op_name: str | None
    source: tuple[SourceFrame, ...]
    """Python frames, innermost first; empty where the module carries none."""
    shape: str
    """Without layout."""
    layout: str | None
    bytes: int | None
    """Bytes of the result without padding."""
    first_stage: int
    """Row in which it first appears under any of its names."""
    last_stage: int
    passes: tuple[HistoryStep, ...]
    fusion: tuple[FusionRow, ...] | None = None
    """The decisions that put it into a fusion or kept it out; None where nothing is known of any."""
    layout_chain: LayoutChain | None = None
    """Where its layouts come from: the chain of constraints; None where layout assignment is not seen or not known."""
    buffer: tuple[BufferPlace, ...] | None = None
    """Where the parts of its result lie, by the compiler's report; None where there is none or it names no part."""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        stages = f"stages {self.first_stage} to {self.last_stage}"
        return f"<why {self.name}: {self.opcode} {self.shape} in {self.computation}, {stages}>"
