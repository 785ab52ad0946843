"""Memory of a running kernel: buffers, references into them, and the regions that accesses touch.

A reference is a buffer seen through indexers and reinterpretations whose dynamic parts are numbers by now. Reading one
gives an array; writing one changes the buffer. Out-of-range indices are never silently used: ``resolve`` hands them to
the machine, which clamps them as ``interpret=True`` does or reports them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.interpret.primitives import clamped
from hloscope.core.pallas.jaxpr import NO_JOINTS, Array, Aval, Indexer, Joint, Reinterpret, Slice, Slot, dtype_of

_NUMBERS = itertools.count()
MOST_NAMED = 3
"""Indices out of range that are named one by one."""


@dataclass(slots=True, eq=False)
class Buffer:
    """An allocation."""

    name: str
    """What the user's code calls it."""
    aval: Aval
    data: Array
    space: str
    written: Array | None = None
    """Which elements something has written; None where all count as written."""
    owner: tuple[int, int] = (0, 0)
    """(device, core) whose memory it is."""
    ignored: bool = False
    """Whether it does not matter who writes it last, as the program drops it."""
    number: int = field(default_factory=lambda: next(_NUMBERS))
    begun: frozenset[Joint] = NO_JOINTS
    """Why a block of an output begins unwritten, where that ties a read of it to another fault."""

    @property
    def is_semaphore(self) -> bool:
        """Whether it holds counts."""
        return self.aval.is_semaphore


@dataclass(frozen=True, slots=True)
class Cut:
    """A resolved slice of one dimension."""

    start: int
    size: int
    stride: int = 1


Entry: TypeAlias = "Cut | int | Array"


def _numpy_index(entry: Any) -> Any:
    if not isinstance(entry, Cut):
        return entry
    stop = entry.start + (entry.size - 1) * entry.stride + 1 if entry.size else entry.start
    return slice(entry.start, stop, entry.stride)


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """A resolved indexer: a cut, a number or an array of numbers for each dimension."""

    entries: tuple[Any, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """What numpy indexes with; the ellipsis keeps a single element a view."""
        return (*map(_numpy_index, self.entries), ...)

    @property
    def is_basic(self) -> bool:
        """Whether numpy gives a view for it."""
        return not any(isinstance(one, np.ndarray) for one in self.entries)


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """A buffer seen through transforms."""

    buffer: Buffer
    views: tuple[Index | Reinterpret, ...] = ()
    stray: Array | None = None
    """Lanes whose own pointers lie outside, where some do: what they see instead is not theirs."""

    def seen(self, views: Sequence[Index | Reinterpret]) -> Ref:
        """The same through further transforms."""
        return Ref(self.buffer, (*self.views, *views)) if views else self


OutOfRange: TypeAlias = Callable[[Ref, int, Any, int, int], Any]
"""(reference, dimension, start or index, size, extent) -> the start or index to use instead."""


def resolve(ref: Ref, transforms: Sequence[Any], operands: Sequence[Any], base: int, out_of_range: OutOfRange) -> Ref:
    """A reference through the transforms of an equation, whose slots count operands from ``base``."""
    if not transforms:
        return ref
    views: list[Index | Reinterpret] = []
    for one in transforms:
        if isinstance(one, Reinterpret):
            views.append(one)
            continue
        views.append(_resolve_index(ref, one, operands, base, out_of_range))
    return ref.seen(views)


def _resolve_index(ref: Ref, indexer: Indexer, operands: Sequence[Any], base: int, out_of_range: OutOfRange) -> Index:
    entries: list[Any] = []
    for dim, (entry, extent) in enumerate(zip(indexer.indices, indexer.shape, strict=True)):
        if isinstance(entry, Slice):
            start = int(operands[base + entry.start.index]) if isinstance(entry.start, Slot) else entry.start
            size = int(operands[base + entry.size.index]) if isinstance(entry.size, Slot) else entry.size
            reach = (size - 1) * entry.stride + 1 if size else 0
            if start < 0 or start + reach > extent:
                start = int(out_of_range(ref, dim, start, reach, extent))
            entries.append(Cut(start, size, entry.stride))
            continue
        value: Any = operands[base + entry.index] if isinstance(entry, Slot) else entry
        if isinstance(value, Ref):
            value = read(value)
        if np.ndim(value) == 0:
            number = int(value)
            if not 0 <= number < extent:
                number = int(out_of_range(ref, dim, number, 1, extent))
            entries.append(number)
            continue
        array = np.asarray(value).astype(np.int64)
        if array.size and (array.min() < 0 or array.max() >= extent):
            array = np.asarray(out_of_range(ref, dim, array, 1, extent))
        entries.append(array)
    return Index(tuple(entries))


def clamp_range(ref: Ref, dim: int, start: Any, size: int, extent: int) -> Any:
    """What ``interpret=True`` makes of an index out of range."""
    del ref, dim
    if np.ndim(start):
        array = np.asarray(start)
        return np.clip(np.where(array < 0, array + extent, array), 0, extent - 1)
    return clamped(int(start), size, extent)


def reach_text(start: Any, size: int, extent: int) -> str:
    """Which elements an access out of range reaches for, in words: of indices only those that are out of range."""
    if np.ndim(start):
        stray = np.unique(np.asarray(start)[(np.asarray(start) < 0) | (np.asarray(start) >= extent)])
        if len(stray) > MOST_NAMED:
            return f"{len(stray):,} elements out of range, {stray[0]} to {stray[-1]},"
        return ("element " if len(stray) == 1 else "elements ") + " and ".join(map(str, stray.tolist()))
    return f"elements {int(start)}:{int(start) + size}" if size != 1 else f"element {int(start)}"


def keep_range(ref: Ref, dim: int, start: Any, size: int, extent: int) -> Any:
    """Leaves a slice that reaches past the end as it is: an access through it is cut off there."""
    return start if np.ndim(start) == 0 and size > 1 and start >= 0 else clamp_range(ref, dim, start, size, extent)


def keep_as_told(ref: Ref, dim: int, start: Any, size: int, extent: int) -> Any:
    """Leaves what is out of range: ``lanes_outside`` and ``pointed`` look at it."""
    del ref, dim, size, extent
    return start


def lanes_outside(ref: Ref, views: Sequence[Index | Reinterpret]) -> Array:
    """Which lanes of an access through further transforms lie outside of what ``ref`` sees.

    The transforms are those of ``resolve`` with ``keep_as_told``. Raises ``UnsupportedError`` for a bitcast of them.
    """
    outside = np.zeros(apply(ref.buffer.data, ref.views).shape, bool)
    for view in views:
        if not isinstance(view, Index):
            if _is_bitcast(view):
                raise UnsupportedError("lanes of a masked access through a bitcast are not checked")
            outside = _reinterpreted(outside, view)
            continue
        past = np.pad(outside, [(0, 1)] * outside.ndim, constant_values=True)
        key: list[Any] = []
        for dim, (entry, extent) in enumerate(zip(view.entries, outside.shape, strict=True)):
            if isinstance(entry, Cut):
                line = entry.start + np.arange(entry.size) * entry.stride
                past = np.take(past, _past(line, extent), axis=dim)
                key.append(slice(None))
            else:
                where = _past(np.asarray(entry), extent)
                key.append(where if where.ndim else int(where))
        outside = np.asarray(past[(*key, ...)])
    return outside


def _past(where: Array, extent: int) -> Array:
    """Indices with those out of range moved to one past the end."""
    return np.where((where < 0) | (where >= extent), extent, where)


def pointed(view: Index | Reinterpret, shape: Sequence[int]) -> Index | Reinterpret:
    """A transform of ``keep_as_told`` whose lanes keep their places, as pointers do: those outside see the edge.

    ``shape`` is what it is applied to. Raises ``UnsupportedError`` for a slice out of range beside indices that are
    arrays.
    """
    if not isinstance(view, Index):
        return view
    entries: list[Any] = []
    stray = False
    for entry, extent in zip(view.entries, shape, strict=True):
        if isinstance(entry, Cut):
            line = entry.start + np.arange(entry.size) * entry.stride
            stray = stray or bool(((line < 0) | (line >= extent)).any())
            entries.append(np.clip(line, 0, extent - 1))
        else:
            clipped = np.clip(np.asarray(entry), 0, extent - 1)
            entries.append(clipped if clipped.ndim else int(clipped))
    cuts = [number for number, entry in enumerate(view.entries) if isinstance(entry, Cut)]
    if stray and not view.is_basic:
        raise UnsupportedError("a slice that reaches out of its reference beside indices that are arrays")
    for turn, number in enumerate(cuts):
        line = entries[number].reshape([-1 if turn == d else 1 for d in range(len(cuts))])
        entries[number] = line if stray else view.entries[number]
    return Index(tuple(entries))


def cropped(value: Any, target: Ref) -> Any:
    """The part of a value, or mask, that an access which is cut off at the end still has."""
    if value is None or np.ndim(value) == 0:
        return value
    shape = apply(target.buffer.data, target.views).shape
    if np.shape(value) == shape or len(shape) != np.ndim(value):
        return value
    kept = (slice(0, n) if m != 1 else slice(None) for n, m in zip(shape, np.shape(value), strict=True))
    return np.asarray(value)[tuple(kept)]


def apply(array: Array, views: Sequence[Index | Reinterpret]) -> Array:
    """An array through transforms: a view of it where numpy can give one."""
    for view in views:
        array = array[view.key] if isinstance(view, Index) else _reinterpreted(array, view)
    return array


def _reinterpreted(array: Array, view: Reinterpret) -> Array:
    if view.kind == "ReshapeTransform":
        return array.reshape(view.fields["shape"])
    if view.kind == "TransposeTransform":
        return array.transpose(view.fields["permutation"])
    if view.kind == "BitcastTransform":
        from hloscope.core.pallas.interpret.primitives import RULES

        target = dtype_of(view.fields["dtype"])
        if target.itemsize == array.dtype.itemsize:
            return array.view(target)
        return RULES["bitcast"]({"ty": view.fields["dtype"]}, array)
    raise UnsupportedError(f"references seen through a {view.kind} are not supported by the interpreters")


def read(ref: Ref) -> Array:
    """What a reference holds, as an array of its own."""
    found = apply(ref.buffer.data, ref.views)
    return np.array(found)


def write(ref: Ref, value: Any) -> None:
    """Stores into what a reference sees."""
    _store(ref.buffer.data, ref.views, value)
    if ref.buffer.written is not None:
        _store(ref.buffer.written, [v for v in ref.views if not _is_bitcast(v)], True)


def write_masked(ref: Ref, value: Any, mask: Array) -> None:
    """Stores the elements that a mask selects; the others are neither changed nor counted as written."""
    written = ref.buffer.written
    views = [one for one in ref.views if not _is_bitcast(one)]
    if all(isinstance(view, Index) and view.is_basic for view in ref.views):
        _store(ref.buffer.data, ref.views, np.where(mask, value, read(ref)))
    elif len(views) == len(ref.views):
        # Lanes that are masked off may hold any index, that of a selected lane among them.
        places = apply(np.arange(ref.buffer.data.size).reshape(ref.buffer.data.shape), views)
        chosen = np.broadcast_to(mask, places.shape)
        data = ref.buffer.data
        data[np.unravel_index(places[chosen], data.shape)] = np.broadcast_to(value, places.shape)[chosen]
    else:
        _store(ref.buffer.data, ref.views, np.where(mask, value, read(ref)))
    if written is not None:
        places = apply(np.arange(written.size).reshape(written.shape), views)
        if np.shape(mask) == places.shape or np.ndim(mask) == 0:
            written[np.unravel_index(places[np.broadcast_to(mask, places.shape)], written.shape)] = True
        else:
            _store(written, views, True)


def _is_bitcast(view: Index | Reinterpret) -> bool:
    return isinstance(view, Reinterpret) and view.kind == "BitcastTransform"


def _store(data: Array, views: Sequence[Index | Reinterpret], value: Any) -> None:
    if not views:
        data[...] = value
        return
    if all(isinstance(view, Index) and view.is_basic for view in views):
        target = data
        for view in views[:-1]:
            target = target[view.key]  # type: ignore[union-attr]
        target[views[-1].key] = value  # type: ignore[union-attr]
        return
    if any(_is_bitcast(view) for view in views):
        target = apply(data, views)
        if not np.shares_memory(target, data):
            raise UnsupportedError("a store through a bitcast of another width is not supported by the interpreters")
        target[...] = value
        return
    places = apply(np.arange(data.size).reshape(data.shape), views)
    data[np.unravel_index(places, data.shape)] = value


# -- regions


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Elements of a buffer that an access touches: a box, or a list of positions where it is not one."""

    box: tuple[tuple[int, int], ...]
    """(start, stop) a dimension; covers the positions where there is a list."""
    positions: Array | None = None
    """Sorted positions in row-major order."""

    def overlaps(self, other: Region, shape: Sequence[int]) -> bool:
        """Whether two accesses share an element."""
        for (a, b), (c, d) in zip(self.box, other.box, strict=True):
            if b <= c or d <= a:
                return False
        if self.positions is None and other.positions is None:
            return True
        first = self.positions if self.positions is not None else _positions(self.box, shape)
        second = other.positions if other.positions is not None else _positions(other.box, shape)
        return bool(np.isin(first, second, assume_unique=False).any())

    def contains(self, other: Region) -> bool:
        """Whether every element of another region is in it; False where that is not plain."""
        if self.positions is not None:
            return False
        return all(a <= c and d <= b for (a, b), (c, d) in zip(self.box, other.box, strict=True))

    def __str__(self) -> str:
        text = "[" + ", ".join(f"{a}:{b}" for a, b in self.box) + "]"
        return text if self.positions is None else f"{text} ({len(self.positions)} elements)"


def _positions(box: Sequence[tuple[int, int]], shape: Sequence[int]) -> Array:
    grids = np.meshgrid(*[np.arange(a, b) for a, b in box], indexing="ij")
    return np.ravel_multi_index([one.ravel() for one in grids], tuple(shape)) if box else np.zeros(1, np.int64)


def region(ref: Ref, mask: Array | None = None) -> Region:
    """The elements of its buffer that a reference sees; where ``mask`` is given, those that it selects."""
    shape = ref.buffer.data.shape
    bounds: list[tuple[int, int]] = [(0, extent) for extent in shape]
    dims = list(range(len(shape)))
    simple = mask is None
    for view in ref.views:
        if not isinstance(view, Index) or not view.is_basic:
            simple = False
            break
        kept: list[int] = []
        for dim, entry in zip(dims, view.entries, strict=True):
            start = bounds[dim][0]
            if isinstance(entry, Cut):
                if entry.stride != 1 and entry.size > 1:
                    simple = False
                bounds[dim] = (start + entry.start, start + entry.start + (entry.size - 1) * entry.stride + 1)
                if not entry.size:
                    bounds[dim] = (start, start)
                kept.append(dim)
            else:
                bounds[dim] = (start + entry, start + entry + 1)
        dims = kept
        if not simple:
            break
    if simple:
        return Region(tuple(bounds))
    views = [one for one in ref.views if not _is_bitcast(one)]
    places = apply(np.arange(ref.buffer.data.size).reshape(shape), views)
    if len(views) != len(ref.views):
        places, mask = np.arange(ref.buffer.data.size), None  # a bitcast moves elements: all of the buffer
    chosen = np.unique(places if mask is None else places[np.broadcast_to(mask, places.shape)])
    if not chosen.size:
        return Region(tuple((0, 0) for _ in shape), chosen)
    corners = np.unravel_index(chosen, shape)
    return Region(tuple((int(one.min()), int(one.max()) + 1) for one in corners), chosen)
