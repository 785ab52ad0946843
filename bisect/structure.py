"""What two neighbouring stages show without being evaluated: an instruction that kept its name and not its meaning.

A pass that rewrites something makes a new instruction, or gives the old one other operands. So an instruction of the
same name, opcode, shape and operands whose constant, direction, bounds or dimensions are others computes something
else, even where inputs or rounding hide it. Control edges and layouts never show in values at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloscope.bisect.safety import Unsafe, layout_faults, lost_orders
from hloscope.core.hlo.verifier import verify
from hloscope.core.hlo.verifier.options import VerifierOptions

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule

MEANING = (
    "direction", "dimensions", "slice", "padding", "iota_dimension", "lhs_contracting_dims",
    "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims", "source_target_pairs", "replica_groups",
    "dynamic_slice_sizes", "slice_sizes", "window", "dim_labels", "offset_dims", "collapsed_slice_dims",
    "start_index_map", "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims",
)  # fmt: skip
"""Attributes that say what is computed."""
ARITHMETIC = frozenset({
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder", "atan2", "exponential",
    "negate", "tanh", "sine", "cosine", "log", "sqrt", "rsqrt", "abs", "floor", "ceil", "and", "or", "xor", "not",
    "shift-left", "shift-right-logical", "shift-right-arithmetic", "sign", "cbrt", "tan", "logistic", "log-plus-one",
    "exponential-minus-one", "erf", "popcnt", "count-leading-zeros",
})  # fmt: skip
"""No two of these give the same on the same operands: a pass that puts one for another gives it other operands."""


def rewritten(before: HloModule, after: HloModule) -> list[Unsafe]:
    """Instructions of one name, shape and operands on both sides that say another thing, or are another operation."""
    earlier: dict[tuple[str, str], HloInstruction] = {
        (computation.name, one.name): one for computation in before.computations for one in computation
    }
    found: list[Unsafe] = []
    for computation in after.computations:
        for one in computation:
            old = earlier.get((computation.name, one.name))
            if old is None or not old.shape.compatible(one.shape):
                continue
            if old.opcode != one.opcode and not {old.opcode, one.opcode} <= ARITHMETIC:
                continue
            mine, theirs = [(x.name, x.shape) for x in one.operands], [(x.name, x.shape) for x in old.operands]
            if [name for name, _ in mine] != [name for name, _ in theirs]:
                if _turned(old, one):
                    now, was = (", ".join(f"%{x.name}" for x in each.operands) for each in (one, old))
                    said = f"%{one.name} = {one.opcode} reads {now} where it read {was}"
                    found.append(Unsafe("value", one.name, said))
                continue
            if any(not x.compatible(y) for (_, x), (_, y) in zip(mine, theirs, strict=True)):
                continue  # a tuple lost elements, and what stood at one place stands at another
            if old.opcode != one.opcode:
                found.append(Unsafe("value", one.name, f"%{one.name} is {one.opcode} where it was {old.opcode}"))
                continue
            if one.opcode == "constant":
                if old.payload != one.payload and "{...}" not in (str(old.payload) + str(one.payload)):
                    said = f"constant %{one.name} is {shortened(one.payload)} where it was {shortened(old.payload)}"
                    found.append(Unsafe("value", one.name, said))
                continue
            for key in MEANING:
                was, now = old.raw_attrs.get(key), one.raw_attrs.get(key)
                if was is not None and now is not None and _plain(key, was, one) != _plain(key, now, one):
                    said = f"%{one.name} = {one.opcode} has {key}={now} where it had {was}"
                    found.append(Unsafe("value", one.name, said))
                    break
    return found


def _turned(old: HloInstruction, one: HloInstruction) -> bool:
    """Whether one that is no other way the same reads its operands in another order, which matters."""
    if one.opcode != old.opcode or one.opcode not in _IN_ORDER or _meaning(old) != _meaning(one):
        return False
    mine, theirs = ([(x.name, x.opcode, x.shape.dimensions) for x in each.operands] for each in (one, old))
    return sorted(mine) == sorted(theirs)


_IN_ORDER = frozenset({
    "subtract", "divide", "remainder", "power", "atan2", "select", "compare", "shift-left", "shift-right-logical",
    "shift-right-arithmetic", "concatenate", "clamp",
})  # fmt: skip
"""Opcodes of which a pass that turns the operands round has to turn something else, too."""


def origin_of(stages: Sequence[HloModule], found: Unsafe) -> int | None:
    """The stage that made a line wrong that the last of `stages` only sets right; None where the last is at fault.

    `stages` begins with the one before the line was made. A stage made it wrong where the line said before what it
    says in the end; or the stage that made the line did, where the stage before it has instructions of its opcode that
    say what it says in the end and none that say what it said in between.
    """
    lines = [_line_of(one, found.instruction) for one in stages]
    now, was = lines[-1], lines[-2]
    if now is None or was is None:
        return None
    at = len(lines) - 2
    while at > 0 and (earlier := lines[at - 1]) is not None and _said(earlier) == _said(was):
        at -= 1
    before = lines[at - 1] if at > 0 else None
    if before is not None:
        return at if _said(before) == _said(now) else None
    kin = [_said(one) for one in stages[at - 1].instructions() if _element(one) == _element(now)] if at > 0 else []
    return at if _said(now) in kin and _said(was) not in kin else None


def _line_of(module: HloModule, name: str) -> HloInstruction | None:
    return next((one for one in module.instructions() if one.name == name), None)


def _said(one: HloInstruction) -> tuple[object, ...]:
    return (_meaning(one), tuple(x.opcode for x in one.operands) if one.opcode in _IN_ORDER else ())


def _element(one: HloInstruction) -> str:
    return one.shape.type.name if one.shape.is_array else ""


def _meaning(one: HloInstruction) -> tuple[object, ...]:
    said = [(key, str(_plain(key, one.raw_attrs[key] or "", one))) for key in MEANING if key in one.raw_attrs]
    return (one.opcode, str(one.payload) if one.opcode == "constant" else "", *said)


def _plain(key: str, text: str, one: HloInstruction) -> object:
    """An attribute without what makes no difference: padding inside one element, strides that end before a step."""
    if key == "padding" and one.opcode == "pad":
        sides = [[int(number) for number in side.split("_")] for side in text.split("x")]
        sizes = one.operand(0).shape.dimensions
        return [side[:2] if side[2:] == [0] or size <= 1 else side for side, size in zip(sides, sizes, strict=True)]
    if key == "slice":
        found: list[tuple[int, ...]] = []
        for start, limit, stride in _BOUNDS.findall(text):
            taken = range(int(start), int(limit), int(stride or 1))
            found.append((taken.start, len(taken), taken.step if len(taken) > 1 else 1))
        return found
    return text


_BOUNDS = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")


def shortened(payload: object) -> str:
    """A constant's text, cut where it is long."""
    text = " ".join(str(payload).split())
    return text if len(text) <= 60 else f"{text[:57]}…"


def refused(before: HloModule, after: HloModule) -> list[Unsafe]:
    """Instructions of a stage that the verifier refuses, where it has nothing against the stage before."""
    known = {(one.code, one.instruction) for one in verify(before, _SHAPES)}
    return [
        Unsafe("module", one.instruction or after.entry.root.name, one.message)
        for one in verify(after, _SHAPES)
        if (one.code, one.instruction) not in known
    ]


_SHAPES = VerifierOptions(allow_mixed_precision=True, allow_bitcast_to_have_different_size=True)
"""Layouts are looked at elsewhere, and back ends mix widths inside kernels."""
DROPS_COPY_EDGES = frozenset({"copy-insertion", "after_removing_unnecessary_copies", "loop-double-buffer-transformer"})
"""Passes that remove the order of two copies with the need for it."""
DROPS_ALL_EDGES = frozenset({"after_optimizations_after_buffer_assignment", "legalize-scheduling-annotations"})
"""Stages behind the last pass that schedules: the sequence stands, and edges may go."""


def unseen(before: HloModule, after: HloModule, *, layouts: bool, pass_name: str = "") -> list[Unsafe]:
    """Orders that a stage loses and layouts that it gets wrong; `layouts` where both stages have theirs assigned.

    `pass_name` says which edges the pass between the two may drop.
    """
    found = lost_orders(before, after, copies=pass_name not in DROPS_COPY_EDGES, sequence=pass_name in DROPS_ALL_EDGES)
    if layouts:
        turned = _layouts_turned(before, after)
        known = {(one.kind, one.instruction) for one in layout_faults(before)}
        wrong = [one for one in layout_faults(after) if (one.kind, one.instruction) not in known]
        # What was turned is the cause; that its readers do not fit follows.
        names = {one.instruction for one in wrong}
        found += [one for one in turned if one.instruction in names] or turned or wrong
    return found


def _layouts_turned(before: HloModule, after: HloModule) -> list[Unsafe]:
    """Instructions of one name and the same operands whose layout alone changed once layouts were assigned."""
    earlier = {(computation.name, one.name): one for computation in before.computations for one in computation}
    found: list[Unsafe] = []
    for computation in after.computations:
        for one in computation:
            old = earlier.get((computation.name, one.name))
            if old is None or old.opcode != one.opcode or one.opcode in ("parameter", "constant", "tuple"):
                continue
            if not one.shape.is_array or old.shape.layout is None or one.shape.layout is None:
                continue
            if old.shape.layout.minor_to_major == one.shape.layout.minor_to_major or one.opcode in _MAY_TURN:
                continue
            same = [(x.name, x.shape) == (y.name, y.shape) for x, y in zip(old.operands, one.operands, strict=False)]
            before_it = {reader.name: reader for reader in old.users}
            readers = any(user.name in before_it and _minds(one, user, before_it[user.name]) for user in one.users)
            if old.shape.dimensions == one.shape.dimensions and all(same) and readers:
                orders = [",".join(map(str, x.shape.layout.minor_to_major)) for x in (one, old) if x.shape.layout]
                said = f"%{one.name} = {one.opcode} has layout {{{orders[0]}}} where it had {{{orders[1]}}}"
                found.append(Unsafe("layout", one.name, f"{said}, with the same operands and readers"))
    return found


def _minds(one: HloInstruction, user: HloInstruction, was: HloInstruction) -> bool:
    """Whether a reader that stays as it was relies on the layout of what it reads."""
    if user.opcode == "tuple":
        return user.shape == was.shape and any(
            operand is one and operand.shape != part
            for operand, part in zip(user.operands, user.shape.tuple_shapes, strict=True)
        )
    return user.shape.is_array and user.opcode != "bitcast" and user.shape.rank == one.shape.rank


_MAY_TURN = frozenset({"copy", "bitcast", "custom-call"})
"""Opcodes whose result a later pass may give another layout."""
