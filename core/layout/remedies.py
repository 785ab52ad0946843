"""Changes that remove a copy, each proven: the pass runs again with the change, and the copy is not there.

A change is tried where the chain behind the copy begins (a layout of the entry that the user can give otherwise), or at
a transpose that a matrix product can take over. One that only moves the copy elsewhere is no remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.layout import Layout
from hloscope.core.layout.assignment import assign_layouts, entry_layout_of
from hloscope.core.layout.orders import order_of, show, with_leaf_layout
from hloscope.core.layout.times import RunCounts
from hloscope.core.passes.context import PassContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape, ShapeIndex
    from hloscope.core.layout.assignment import Assignment
    from hloscope.core.layout.constraints import Step
    from hloscope.core.layout.copies import CopyMade

ChangeKind = Literal["parameter", "result", "dot", "swap"]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the program."""

    kind: ChangeKind
    name: str
    """The entry parameter, the dot that takes a transpose over, or the transpose of a dot to be turned round."""
    number: int
    """Number of the parameter; of the dot's operand."""
    index: ShapeIndex = ()
    """Which element of the parameter or of the result."""
    layout: Layout | None = None
    """The layout that it gets; None leaves the choice to the compiler."""
    computation: str = ""
    """Where the dot or transpose stands; empty is wherever the name first is (names need not be unique in text)."""

    def words(self, chosen: str | None = None) -> str:
        """What to do."""
        at = "{" + ",".join(map(str, self.index)) + "}" if self.index else ""
        layout = show(self.layout) if self.layout is not None else chosen or "as the compiler chooses"
        if self.kind == "parameter":
            return f"make %{self.name}{at} {layout} at the parameter"
        if self.kind == "result":
            return f"let the entry's result{at} be {layout}"
        if self.kind == "swap":
            return f"swap the operands of the dot behind %{self.name}, so that it needs no transpose"
        return f"contract the other dimension of the transpose's operand in %{self.name} (operand {self.number})"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change with its proof."""

    change: str
    """What to do, in words."""
    kind: ChangeKind
    name: str
    layout: str | None
    """The layout to give, None where the change is not one of layouts."""
    copies_before: int
    """Copies that the pass makes without the change; one in a loop counts once."""
    copies_after: int
    bytes_before: int
    """Bytes that they copy in one run, loops of unknown length counted once."""
    bytes_after: int
    proven_by: tuple[str, ...] = ("core",)
    """``core``: our pass was run again; ``xla``: the real compiler was, too."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    edges: frozenset[tuple[str, str]]
    """(value, user) between which a copy stands."""
    copies: int
    bytes: int
    entry: tuple[tuple[Shape, ...], Shape]


class RemedyFinder:
    """Looks for remedies of the copies of one run; tries each change once."""

    def __init__(self, before: Callable[[], HloModule], assignment: Assignment) -> None:
        self._before = before
        """A fresh graph of the module before the pass, in list order."""
        self._backend = assignment.state.backend
        self._assignment = assignment
        self._tried: dict[Change, _Outcome | None] = {}
        self._plain = self._outcome(assignment, assignment.state.module)

    def find(self, made: CopyMade) -> tuple[Remedy, Change] | None:
        """The first change without which the copy would be and with which it is not, and no more bytes are copied."""
        edge = _edge(made)
        for change in self._changes(made):
            outcome = self._try(change)
            if outcome is not None and change.layout is None and change.kind in ("parameter", "result"):
                # What is said is the layout by name, and it counts only where naming it has the same effect.
                chosen = self._chosen(change, outcome)
                if chosen is not None:
                    change = Change(change.kind, change.name, change.number, change.index, chosen)
                    outcome = self._try(change)
            if outcome is None or edge in outcome.edges or outcome.bytes >= self._plain.bytes:
                continue
            remedy = Remedy(
                change=change.words(),
                kind=change.kind,
                name=change.name,
                layout=None if change.layout is None else show(change.layout),
                copies_before=self._plain.copies,
                copies_after=outcome.copies,
                bytes_before=self._plain.bytes,
                bytes_after=outcome.bytes,
            )
            return remedy, change
        return None

    # ---------------------------------------------------------------- trying
    def _try(self, change: Change) -> _Outcome | None:
        if change not in self._tried:
            module = self._before()
            try:
                apply_change(module, change)
                ctx = PassContext(target=self._backend.name)
                assignment = assign_layouts(module, self._backend, ctx)
                self._tried[change] = self._outcome(assignment, module)
            except (HloscopeError, InternalError):
                self._tried[change] = None
        return self._tried[change]

    def _outcome(self, assignment: Assignment, module: HloModule) -> _Outcome:
        counts = RunCounts(module)
        total = 0
        for made in assignment.copies:
            total += made.copy.shape.byte_size * (counts.of(made.copy.parent) or 1)
        entry, _ = entry_layout_of(module)
        return _Outcome(
            frozenset(map(_edge, assignment.copies)), len(assignment.copies), total,
            (tuple(entry.parameters), entry.result),
        )  # fmt: skip

    def _chosen(self, change: Change, outcome: _Outcome) -> Layout | None:
        """The layout that the compiler chose where the change left it open."""
        parameters, result = outcome.entry
        shape = parameters[change.number] if change.kind == "parameter" else result
        return shape.sub(change.index).layout

    # ---------------------------------------------------------------- what to try
    def _changes(self, made: CopyMade) -> Iterator[Change]:
        chains = [made.given[0].step.chain()] if made.given else []
        wanted_order = order_of(made.copy.shape)
        given_order = order_of(made.copy.operand(0).shape)
        folded = self._folded(made)
        if folded is not None:
            yield folded
        if _is_transposed_dot(made.operand):
            yield Change("swap", made.operand.name, 0, computation=made.operand.parent.name)
        for chain, order in [*((one, wanted_order) for one in chains), (made.wanted.chain(), given_order)]:
            origin = chain[-1]
            change = self._at_entry(origin, made)
            if change is None:
                continue
            carried = self._carried_back(chain, order)
            if carried is not None and len(carried.minor_to_major) == _rank_at(self._assignment, change):
                yield Change(change.kind, change.name, change.number, change.index, carried)
            yield change

    def _at_entry(self, origin: Step, made: CopyMade) -> Change | None:
        """The place of the entry's layout at which a chain begins."""
        if origin.rule == "entry-parameter":
            parameter = origin.instruction
            return Change("parameter", parameter.name, parameter.parameter_number, origin.index)
        if origin.rule == "entry-result":
            result = origin.shape
            index = _result_index(self._assignment, origin, made)
            return None if index is None or not result.sub(index).is_array else Change("result", "", 0, index)
        return None

    def _carried_back(self, chain: list[Step], order: tuple[int, ...] | None) -> Layout | None:
        """The layout at the end of a chain for which its beginning would have `order`."""
        if order is None:
            return None
        layout = Layout(order)
        backend = self._assignment.state.backend
        for near, far in zip(chain, chain[1:], strict=False):
            if near.instruction is not far.instruction or near.place == far.place:
                continue
            instruction = near.instruction
            if near.place == "buffer" and far.operand is not None:
                derived = backend.operand_from_output(layout, instruction, far.operand)
            elif near.operand is not None:
                derived = backend.output_from_operand(layout, instruction, near.operand)
            else:
                continue
            if derived is None:
                return None
            layout = derived.layout
        return layout

    def _folded(self, made: CopyMade) -> Change | None:
        """A transpose in front of a dot, which the dot can do itself by contracting another dimension."""
        user, value = made.user, made.operand
        if user is None or made.number is None or user.opcode != "dot" or value.opcode != "transpose":
            return None
        side = "lhs" if made.number == 0 else "rhs"
        if user.attr(f"{side}_batch_dims") or value.shape.rank != 2:
            return None
        return Change("dot", user.name, made.number, computation=user.parent.name)


def _is_transposed_dot(value: HloInstruction) -> bool:
    """The transpose of a product of two matrices that nobody else reads."""
    if value.opcode != "transpose" or value.shape.rank != 2 or value.dimensions != (1, 0):
        return False
    dot = value.operand(0)
    return (
        dot.opcode == "dot"
        and dot.user_count == 1
        and not dot.is_root
        and not dot.attr("lhs_batch_dims")
        and dot.operand(0).shape.rank == dot.operand(1).shape.rank == 2
    )


def _edge(made: CopyMade) -> tuple[str, str]:
    user = "result" if made.user is None else f"{made.user.name}#{made.number}"
    at = "".join(f"#{i}" for i in made.index)
    return made.operand.name + at, f"{made.copy.parent.name}: {user}"


def _rank_at(assignment: Assignment, change: Change) -> int:
    entry = assignment.state.module.entry
    shape = entry.parameters[change.number].shape if change.kind == "parameter" else assignment.state.given.result
    return shape.sub(change.index).rank


def _result_index(assignment: Assignment, origin: Step, made: CopyMade) -> ShapeIndex | None:
    """The element of the entry's result at which a chain begins."""
    if made.user is None:
        return made.index
    points_to = assignment.state.points_to
    chain = made.wanted.chain() if origin in made.wanted.chain() else made.given[0].step.chain()
    behind = next((one for one in reversed(chain) if one.place == "buffer"), None)
    root = origin.instruction
    if behind is None or not points_to.knows(root):
        return None
    for index, buffers in points_to.of(root).items():
        if any(one.instruction is behind.instruction and one.index == behind.index for one in buffers):
            return index
    return None


def apply_change(module: HloModule, change: Change) -> None:
    """Make a change in a module that has not been laid out."""
    if change.kind == "dot":
        _fold_transpose(module, change)
        return
    if change.kind == "swap":
        _swap_dot(_instruction(module, change))
        return
    entry, _ = entry_layout_of(module)
    if change.kind == "parameter":
        shape = entry.parameters[change.number]
        entry.parameters[change.number] = with_leaf_layout(shape, change.index, change.layout)
    else:
        entry.result = with_leaf_layout(entry.result, change.index, change.layout)
    text = f"{{{_tuple(entry.parameters)}->{entry.result}}}"
    module.attrs = {**module.attrs, "entry_computation_layout": text}


def _tuple(shapes: list[Shape]) -> Shape:
    from hloscope.core.hlo.shape import Shape

    return Shape.tuple_(shapes)


def _fold_transpose(module: HloModule, change: Change) -> None:
    dot = _instruction(module, change)
    transpose = dot.operand(change.number)
    side = "lhs" if change.number == 0 else "rhs"
    dims = transpose.dimensions
    contracting = tuple(dims[d] for d in dot.attr(f"{side}_contracting_dims"))
    dot.set_attr(f"{side}_contracting_dims", contracting)
    dot.replace_operand(change.number, transpose.operand(0))
    if not transpose.user_count and not transpose.is_root:
        transpose.parent.remove_with_dead_operands(transpose)


def _swap_dot(transpose: HloInstruction) -> None:
    """transpose(a · b) is b · a with the roles of the dimensions exchanged."""
    dot = transpose.operand(0)
    attrs = dict(dot.raw_attrs)
    attrs["lhs_contracting_dims"] = dot.raw_attrs["rhs_contracting_dims"]
    attrs["rhs_contracting_dims"] = dot.raw_attrs["lhs_contracting_dims"]
    made = HloInstruction(
        "dot", transpose.shape, [dot.operand(1), dot.operand(0)], name=dot.name,
        attrs={key: value for key, value in attrs.items() if value is not None},
    )  # fmt: skip
    transpose.parent.replace(transpose, made)


def _instruction(module: HloModule, change: Change) -> HloInstruction:
    for computation in module.computations if change.computation else ():
        if computation.name == change.computation:
            for one in computation.instructions:
                if one.name == change.name:
                    return one
    found = module.find_instruction(change.name)
    if found is None:
        raise InternalError(f"there is no %{change.name}")
    return found
