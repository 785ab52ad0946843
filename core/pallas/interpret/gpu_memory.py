"""Arrays of a GPU's global memory as programs see them, and what the lanes of an access touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.interpret.memory import Buffer, Index, Ref, apply, pointed
from hloscope.core.pallas.interpret.primitives import filled
from hloscope.core.pallas.jaxpr import Array, Reinterpret, Span, dtype_of

NOBODY = -1


@dataclass(slots=True, eq=False)
class GlobalMemory:
    """An array in global memory: its buffer is padded on all sides, so that accesses outside can be told."""

    buffer: Buffer
    low: tuple[int, ...]
    shape: tuple[int, ...]
    inside: Array
    """Which elements of the buffer belong to the array."""
    writer: Array
    """Program that last wrote an element without an atomic."""
    atomic: Array
    """Program that last used an atomic on it."""
    reader: Array
    """Program that last read it."""
    index: Array
    """Position of every element of the buffer."""
    when: dict[str, Array]
    """Moments of those last accesses."""
    released: dict[int, dict[int, int]]
    """Element that atomics synchronise on -> program -> moment up to which its accesses come before the next atomic."""
    places: dict[tuple[int, str], Span | None]
    """(program, kind of access) -> where it last did that."""

    @property
    def data(self) -> Array:
        """The array's own elements."""
        return self.buffer.data[tuple(slice(a, a + n) for a, n in zip(self.low, self.shape, strict=True))]


def global_memory(name: str, aval: Any, kind: str, value: Array | None, windows: Sequence[Any]) -> GlobalMemory:
    """Memory for an operand, as far beyond its array as its windows reach; without a value nobody has written it."""
    shape, dtype = aval.shape, dtype_of(aval.dtype)
    low = tuple(max(0, *(-one.starts[d] for one in windows)) for d in range(len(shape)))
    high = tuple(max(0, *(one.starts[d] + one.sizes[d] - shape[d] for one in windows)) for d in range(len(shape)))
    whole = filled([a + n + b for a, n, b in zip(low, shape, high, strict=True)], dtype)
    key = tuple(slice(a, a + n) for a, n in zip(low, shape, strict=True))
    inside = np.zeros(whole.shape, bool)
    inside[key] = True
    if value is not None:
        whole[key] = value.reshape(shape)
    written = np.zeros(whole.shape, bool) if kind == "output" else None
    tables = [np.full(whole.shape, NOBODY, np.int64) for _ in range(3)]
    index = np.arange(whole.size).reshape(whole.shape)
    return GlobalMemory(Buffer(name, aval, whole, "gmem", written), low, shape, inside, *tables, index=index, places={},
                   when={name: np.zeros(whole.size, np.int64) for name in ("reader", "writer", "atomic")},
                   released={})  # fmt: skip


def plain_views(ref: Ref) -> list[Index]:
    """The transforms of a reference that choose elements, without those that see them as something else."""
    return [one for one in ref.views if isinstance(one, Index)]


def chosen_part(part: Array, mask: Array | None) -> Array:
    """What a mask selects; all where there is none."""
    part = np.asarray(part)
    if mask is None:
        return part
    return part[np.broadcast_to(mask, part.shape)]


def lanes_by_element(target: Ref, mask: Array | None) -> tuple[Array, Array] | None:
    """(element of each lane, the lanes that the mask selects) where some of those share an element; else None."""
    if all(isinstance(view, Index) and view.is_basic for view in target.views):
        return None
    data = target.buffer.data
    places = apply(np.arange(data.size).reshape(data.shape), _unbitcast(target))
    chosen = np.arange(places.size)
    if mask is not None:
        chosen = chosen[np.broadcast_to(mask, places.shape).reshape(-1)]
    return (places, chosen) if len(np.unique(places.reshape(-1)[chosen])) < len(chosen) else None


def is_bitcast(view: Index | Reinterpret) -> bool:
    """Whether a transform sees the bits as elements of another type."""
    return isinstance(view, Reinterpret) and view.kind == "BitcastTransform"


def _unbitcast(ref: Ref) -> list[Index | Reinterpret]:
    """The views of an atomic's target. Raises ``UnsupportedError`` for one that sees other elements."""
    if any(map(is_bitcast, ref.views)):
        raise UnsupportedError("an atomic through a bitcast beside indices that are arrays is not supported")
    return list(ref.views)


def own_lanes(ref: Ref, mask: Array | None) -> Array | None:
    """Which lanes of an access touch what is theirs; None where all do."""
    if ref.stray is None:
        return mask
    return ~ref.stray if mask is None else np.asarray(mask) & ~ref.stray


def pointing(ref: Ref, raw: Ref) -> Ref:
    """An access by the indices that the kernel gave, whose lanes keep their places; those outside see the edge."""
    seen = apply(ref.buffer.data, ref.views)
    kept: list[Index | Reinterpret] = []
    for view in raw.views[len(ref.views) :]:
        kept.append(pointed(view, seen.shape))
        seen = apply(seen, kept[-1:])
    return ref.seen(kept)
