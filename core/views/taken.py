"""What a pass took into a fusion: the instruction outside, gone after it, and the one inside that computes the same.

They are tied together by what the users read: an element of the fusion's result in place of the instruction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.views.stages import Cancelled, check
from hloscope.core.views.why import read_line

if TYPE_CHECKING:
    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.core.views.data import Place
    from hloscope.core.views.run import Run

_MOVES = frozenset({"bitcast", "copy", "reshape", "transpose"})
"""Opcodes that give what they read, in another order at most."""
_ALIKE = 200
"""Instructions of one opcode and shape that a pass took into fusions, of which one is looked for."""


def replaced_by(run: Run, index: int, gone: Place) -> tuple[str, ...]:
    """What the users of an instruction that row `index` removed read in its place, as far as they kept their names."""
    stage = run.stage_index(run.whole_before(index))
    at = stage.instruction_at(gone.start)
    found: dict[str, None] = {}
    for user in stage.users(at) if at is not None else ():
        after = run.definition(index, stage.name(user))
        if after is None:
            continue
        was, now = read_line(stage.text(user)).operands, read_line(after.text).operands
        if len(now) == len(was):
            found.update(dict.fromkeys(new for old, new in zip(was, now, strict=True) if old == gone.name))
    return tuple(found)


def taken_into(run: Run, index: int, gone: Place) -> tuple[str, str] | None:
    """The instruction of the same kind and shape whose value the users read once row `index` removed `gone`, and the
    fusion that computes it; None where there is none."""
    line = read_line(gone.text)
    stage = run.stage_index(index)
    for name in replaced_by(run, index, gone):
        at = stage.find(name)
        found = _result_of_fusion(stage, at) if at is not None else None
        if found is None:
            continue
        result, fusion = found
        now = read_line(stage.text(result))
        if (now.opcode, now.shape) == (line.opcode, line.shape):
            return stage.name(result), stage.name(fusion)
    return None


def taken_from(run: Run, index: int, new: Place, cancelled: Cancelled | None = None) -> tuple[str, str] | None:
    """The instruction in whose place one that row `index` added is computed inside a fusion, and that fusion.

    None where there is none. Raises CancelledError.
    """
    stage = run.stage_index(index)
    at = stage.instruction_at(new.start)
    if at is None or not any(stage.opcode(one) == "fusion" for one in stage.callers(stage.computation_of(at))):
        return None
    line = read_line(new.text)
    before = run.stage_index(run.whole_before(index))
    tried = 0
    for change in run.diff(index, cancelled=cancelled).removed:
        was = before.find(change.name)
        if was is None or before.opcode(was) != line.opcode or read_line(before.text(was)).shape != line.shape:
            continue
        place = run.definition(run.whole_before(index), change.name)
        check(cancelled)
        took = taken_into(run, index, place) if place is not None else None
        if took is not None and took[0] == new.name:
            return change.name, took[1]
        tried += 1
        if tried == _ALIKE:
            break
    return None


def copies_only(index: ModuleIndex, at: int) -> bool:
    """Whether a copy inside a fusion is one that runs: what it copies is read from memory and what it gives is written,
    in another order at most, with nothing computed before or after it."""
    source = at
    while index.opcode(source) in _MOVES:
        operands = index.operands(source)
        if not operands or operands[0] < 0:
            return False
        source = operands[0]
    if index.opcode(source) != "parameter":
        return False
    root = index.computation(index.computation_of(at)).root
    results = set(index.operands(root)) if index.opcode(root) == "tuple" else {root}
    seen: set[int] = set()
    waiting = [at]
    while waiting:
        one = waiting.pop()
        if one in results:
            return True
        fresh = [user for user in index.users(one) if index.opcode(user) in _MOVES and user not in seen]
        seen.update(fresh)
        waiting += fresh
    return False


def _result_of_fusion(index: ModuleIndex, at: int) -> tuple[int, int] | None:
    """The instruction inside a fusion whose value another one is (the fusion, or an element of what it gives), and the
    fusion; bitcasts in between do not count."""
    part = 0
    if index.opcode(at) == "get-tuple-element":
        part = int(dict(read_line(index.text(at)).attributes).get("index", "0"))
        at = index.operands(at)[0]
    if at < 0 or index.opcode(at) != "fusion":
        return None
    called = index.called(at)
    result = index.computation(called[0]).root if called and called[0] >= 0 else -1
    if result >= 0 and index.opcode(result) == "tuple":
        operands = index.operands(result)
        result = operands[part] if part < len(operands) else -1
    while result >= 0 and index.opcode(result) == "bitcast":
        result = index.operands(result)[0]
    return (result, at) if result >= 0 else None
