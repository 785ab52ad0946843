"""The pipeline of a simulated core: blocks of inputs fetched one step ahead, blocks of outputs written back behind.

With two buffers the fetch for the next step runs beside the kernel of this one, and a write-back beside the kernel of
the next; with ``pl.Buffered(1)`` both are waited for at once. Source:
``jax-ml/jax:jax/_src/pallas/mosaic/pipeline.py#BufferedRef``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.blocks import Window, window
from hloscope.core.pallas.call import Operand, PallasCall, from_point
from hloscope.core.pallas.grid import UNCOPIED_SPACES
from hloscope.core.pallas.interpret.faults import Fault, Observer
from hloscope.core.pallas.interpret.generic import block_index
from hloscope.core.pallas.interpret.memory import Buffer, Cut, Index, Ref, apply
from hloscope.core.pallas.interpret.order import Choices
from hloscope.core.pallas.interpret.primitives import filled
from hloscope.core.pallas.interpret.watched import Copy, Core, WatchedMachine
from hloscope.core.pallas.jaxpr import NO_JOINTS, Joint, dtype_of


@dataclass(slots=True, eq=False)
class Buffered:
    """The buffers of one blocked operand on one core."""

    operand: Operand
    position: int
    array: Ref
    slots: list[Buffer]
    turn: int = 0
    window: Window | None = None
    ahead: tuple[Window, Copy, Buffer] | None = None
    behind: Copy | None = None


class PipelinedMachine(WatchedMachine):
    """Moves the blocks of a call's operands."""

    arrays: list[list[Buffer]]
    """Arrays in main memory: one list a device, inputs and outputs in order."""

    def __init__(self, call: PallasCall, choices: Choices, observer: Observer | None) -> None:
        super().__init__(call, choices, observer)
        self.entered: dict[tuple[int, int, Window], int] = {}
        """Device, operand and block of an output -> the core that had it first."""
        self.unwritten: dict[tuple[int, int, Window], Fault] = {}
        """Device, operand and block of an output -> what its last write-back did not have from the kernel."""

    def _windows(self, core: Core, point: Sequence[int] | None, scalars: Sequence[Ref]) -> list[Window | None]:
        assert point is not None
        found: list[Window | None] = []
        now, kept = core.point, core.place
        core.point = self.call.own_point(point)  # maps are evaluated a step ahead
        for operand in self.call.operands:
            if uncopied(operand):
                found.append(None)
                continue
            seen = window(operand.dims, block_index(self, operand, point, scalars))
            found.append(seen)
            core.place = kept
            sizes = zip(seen.sizes, operand.dims, strict=True)
            if (bad := next((dim for size, dim in sizes if size > dim.size), None)) is not None:
                raise UnsupportedError(f"the index map of {operand.title} asks for more than {bad} holds")
            if operand.kind == "input":
                self._check_window(core, operand, seen)
        core.point = now
        return found

    def _buffered(self, core: Core, position: int, operand: Operand) -> Buffered:
        array = Ref(self.arrays[max(core.device, 0)][position])
        if uncopied(operand):
            return Buffered(operand, position, array, [])
        count = 1 if operand.is_trivial else max(1, min(2, operand.buffers or 2))
        slots: list[Buffer] = []
        for number in range(count):
            aval = operand.ref
            written = np.zeros(aval.shape, bool) if operand.kind == "output" else None
            data = filled(aval.shape, dtype_of(aval.dtype))
            slots.append(Buffer(operand.name, aval, data, operand.space, written, owner=(core.device, core.number)))
            core.buffers["block", position, number] = slots[-1]
        return Buffered(operand, position, array, slots)

    def _ref(self, core: Core, block: Buffered, point: Sequence[int], scalars: Sequence[Ref]) -> Ref:
        """What the kernel is given: the block's buffer, or the array itself, of which it may see a window only."""
        if block.slots:
            return Ref(block.slots[block.turn])
        operand = block.operand
        if operand.is_trivial:
            return block.array
        kept = core.place
        seen = window(operand.dims, block_index(self, operand, point, scalars))
        core.place = kept
        entries: list[Cut | int] = []
        for dim, start, size, extent in zip(operand.dims, seen.starts, seen.sizes, operand.array.shape, strict=True):
            if start < 0 or start + size > extent:
                self._check_window(core, operand, seen)
                raise UnsupportedError(f"a window past the end of {operand.title}, which the pipeline does not copy")
            entries.append(Cut(start, size) if dim.in_ref else start)
        return block.array.seen([Index(tuple(entries))])

    def _enter(self, core: Core, block: Buffered, seen: Window | None) -> None:
        """Makes the block of this step current: an input's is there or is fetched, an output's begins unwritten."""
        if seen is None or seen == block.window:
            return
        if block.operand.kind == "input":
            if block.ahead is not None and block.ahead[0] == seen:
                _, copy, buffer = block.ahead
                self._await(core, copy)
                block.turn = block.slots.index(buffer)
            else:
                if block.window is not None:
                    block.turn = (block.turn + 1) % len(block.slots)
                copy = self._fetch(core, block, seen, block.slots[block.turn])
                self._await(core, copy)
            block.ahead = None
        else:
            if block.window is not None:
                block.turn = (block.turn + 1) % len(block.slots)
            buffer = block.slots[block.turn]
            assert buffer.written is not None
            if block.window is not None:  # before the first, another device may have written there already
                buffer.written[...] = False
            buffer.begun = self._had_before(core, block, seen)
            self._leftovers_of(buffer, f"what the new block of {block.operand.title} holds", block.operand)
        block.window = seen

    def _had_before(self, core: Core, block: Buffered, seen: Window) -> frozenset[Joint]:
        """Whether some core has had a block of an output before: it does not begin with what that one stored."""
        key = (core.device, block.position, seen)
        earlier = self.entered.get(key)
        self.entered.setdefault(key, core.number)
        if earlier is None:
            return NO_JOINTS
        return frozenset({("again" if earlier == core.number else "blocks", block.operand.name)})

    def _prefetch(self, core: Core, block: Buffered, seen: Window | None) -> None:
        if seen is None or seen == block.window or block.ahead is not None:
            return
        buffer = block.slots[(block.turn + 1) % len(block.slots)]
        block.ahead = (seen, self._fetch(core, block, seen, buffer), buffer)

    def _fetch(self, core: Core, block: Buffered, seen: Window, buffer: Buffer) -> Copy:
        inside = seen.inside(block.operand.array.shape)
        whole = inside is not None and all(a.stop - a.start == n for a, n in zip(inside, seen.sizes, strict=True))
        if not whole:
            what = f"what the padding of {block.operand.title} holds in {seen}"
            self._leftovers_of(buffer, what, block.operand)
        self.note("fetch", f"{block.operand.name}{seen}")
        source, target = _block_refs(block, seen, inside, buffer)
        place = block.operand.place
        name = block.operand.name
        return self._start(core, source, target, (), place, f"the pipeline's fetch of {name}{seen}", operand=name)

    def _leftovers_of(self, buffer: Buffer, what: str, operand: Operand) -> None:
        """Memory before anything is written there: NaN in the plain run, else what was there before, or zeros."""
        chosen = self.choices.choose(3, what, operand.place, operand.name)
        if chosen != 1:
            value = filled((), buffer.data.dtype) if chosen == 0 else np.zeros((), buffer.data.dtype)
            if buffer.written is None:
                buffer.data[...] = value
            else:
                buffer.data[~buffer.written] = value

    def _leave(self, core: Core, block: Buffered, changes: bool) -> None:
        if block.window is None or not changes:
            return
        if block.behind is not None:
            self._await(core, block.behind)
            block.behind = None
        seen, buffer = block.window, block.slots[block.turn]
        inside = seen.inside(block.operand.array.shape)
        self._check_window(core, block.operand, seen)
        source, target = _block_refs(block, seen, inside, buffer)
        source, target = target, source
        self._check_written(core, block, seen, source)
        self.note("write_back", f"{block.operand.name}{seen}")
        place = block.operand.place
        name = block.operand.name
        copy = self._start(core, source, target, (), place, f"the pipeline's write of {name}{seen}", operand=name)
        if len(block.slots) > 1:
            block.behind = copy
        else:
            self._await(core, copy)

    def _check_window(self, core: Core, operand: Operand, seen: Window) -> None:
        shape = operand.padded_shape
        low = [-dim.padding[0] for dim in operand.dims]
        if all(a <= s and s + n <= b + a for s, n, b, a in zip(seen.starts, seen.sizes, shape, low, strict=True)):
            return
        verb = "reads" if operand.kind == "input" else "writes"
        self.faults.add(
            Fault(
                "index-map-out-of-range",
                f"{from_point(core.point)}the index map of {operand.title} {verb} {seen} of {operand.array}",
                operand.place,
                about=operand.name,
            )
        )

    def _check_written(self, core: Core, block: Buffered, seen: Window, source: Ref) -> None:
        """Of a block that comes back the last write-back stays: what an earlier one left out is no fault."""
        written = block.slots[block.turn].written
        assert written is not None
        part = apply(written, source.views)
        key = (core.device, block.position, seen)
        self.unwritten.pop(key, None)
        if part.size and not part.all():
            missing = int(part.size - np.count_nonzero(part))
            self.unwritten[key] = Fault(
                "output-never-written",
                f"{missing:,} of {part.size:,} elements of the block {seen} of {block.operand.title} are written"
                " back without having been stored to",
                self.call.kernel_at or block.operand.place,
                ((block.operand.place, "the block"),),
                about=block.operand.name,
                joints=frozenset({("unwritten", block.operand.name)}),
            )


def uncopied(operand: Operand) -> bool:
    """Whether the kernel copies an operand for itself."""
    return operand.space in UNCOPIED_SPACES


def _block_refs(block: Buffered, seen: Window, inside: tuple[slice, ...] | None, buffer: Buffer) -> tuple[Ref, Ref]:
    """The part of a window that lies in the array, and the same part of the block's buffer."""
    if inside is None:
        inside = tuple(slice(0, 0) for _ in seen.starts)
    outer, inner = [], []
    for part, start, dim in zip(inside, seen.starts, block.operand.dims, strict=True):
        size = part.stop - part.start
        if dim.in_ref:
            outer.append(Cut(part.start, size))
            inner.append(Cut(part.start - start if size else 0, size))
        elif size:
            outer.append(part.start)
        else:
            outer.append(0)
            inner = [Cut(0, 0) for _ in inner]
    return block.array.seen([Index(tuple(outer))]), Ref(buffer).seen([Index(tuple(inner))])
