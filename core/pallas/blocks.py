"""Blocks: the five kinds of block dimension, what each asks of the index map, and the slice that an index means.

A block shape has one ``BlockDim`` for each dimension of the array. The index map's result for a dimension becomes a
start in elements (``Blocked``: block size times the index; others: the index itself), and a block that reaches past the
array's end is full-sized: what lies beyond is padding that nobody initialises. Source:
``jax-ml/jax:jax/_src/pallas/core.py#BlockDim``, ``#BlockMapping.compute_start_indices_interpret``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hloscope.core.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class BlockDim:
    """One dimension of a block shape."""

    kind: str
    """``blocked``, ``squeezed``, ``element``, ``bounded_slice`` or ``indirect``."""
    size: int
    """Elements that one block spans in the array; the bound for ``bounded_slice``; 1 for ``squeezed``."""
    padding: tuple[int, int] = (0, 0)
    """Elements added before and after the array, for ``element``."""

    @property
    def in_ref(self) -> bool:
        """Whether the kernel's reference has this dimension."""
        return self.kind != "squeezed"

    @property
    def index_kind(self) -> str:
        """What the index map must return for it."""
        return INDEX_KINDS[self.kind]

    def start(self, index: int) -> int:
        """First element of the slice that an index means, before any padding of ``element``."""
        return index * self.size if self.kind == "blocked" else index - self.padding[0]

    def __str__(self) -> str:
        if self.kind == "blocked":
            return str(self.size)
        if self.kind == "squeezed":
            return "None"
        pad = f", padding={self.padding}" if self.padding != (0, 0) else ""
        return f"{SPELLING[self.kind]}({self.size}{pad})"


INDEX_KINDS: Mapping[str, str] = {
    "blocked": "the number of a block",
    "squeezed": "the number of an element",
    "element": "the number of the first element",
    "bounded_slice": "a pl.Slice whose size is at most the bound",
    "indirect": "an array of element numbers",
}
"""Kind of block dimension -> what the index map returns for it."""
SPELLING: Mapping[str, str] = {
    "blocked": "Blocked", "squeezed": "Squeezed", "element": "Element", "bounded_slice": "BoundedSlice",
    "indirect": "Indirect",
}  # fmt: skip
"""Kind -> its name in ``jax.experimental.pallas``."""
_KINDS = {name: kind for kind, name in SPELLING.items()}
GENERIC_KINDS = frozenset({"blocked", "squeezed", "element"})
"""What ``interpret=True`` takes; it refuses the other two."""


def block_dim(value: object) -> BlockDim:
    """The kind that a user's entry of a block shape means: an int is blocked, None is squeezed.

    Raises ``UnsupportedError`` for anything else, as jax does. Source: ``pallas/core.py#_canonicalize_block_dim``.
    """
    if value is None:
        return BlockDim("squeezed", 1)
    if isinstance(value, bool) or not isinstance(value, int | BlockDim):
        raise UnsupportedError(f"unsupported block dimension type: {type(value).__name__}")
    return value if isinstance(value, BlockDim) else BlockDim("blocked", value)


def decode_dim(data: Mapping[str, Any]) -> BlockDim:
    """One dimension of the tracing child's description."""
    kind = _KINDS.get(data["kind"])
    if kind is None:
        raise UnsupportedError(f"unsupported block dimension type: {data['kind']}")
    low, high = data.get("padding", (0, 0))
    return BlockDim(kind, int(data.get("size", 1)), (int(low), int(high)))


def block_count(array: int, dim: BlockDim) -> int:
    """Blocks of this size that cover a dimension (ceiling division); element positions for unblocked kinds."""
    return -(-array // dim.size) if dim.kind == "blocked" else array


def padded(array: int, dim: BlockDim) -> int:
    """Length of a dimension once ``element`` padding is added and the last block is made whole.

    Source: ``pallas/hlo_interpreter.py#_pad_to_block_dimension``.
    """
    length = array + sum(dim.padding)
    return ((length - 1) // dim.size + 1) * dim.size if length else 0


@dataclass(frozen=True, slots=True)
class Window:
    """The part of an array that one grid step sees: a start and a size for each dimension."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def inside(self, shape: Sequence[int]) -> tuple[slice, ...] | None:
        """The part of it that lies in an array, None where nothing does."""
        found: list[slice] = []
        for start, size, extent in zip(self.starts, self.sizes, shape, strict=True):
            low, high = max(start, 0), min(start + size, extent)
            if low >= high:
                return None
            found.append(slice(low, high))
        return tuple(found)

    def overhang(self, shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Elements of it before the start and past the end of an array, by dimension."""
        return tuple(
            (max(0, min(size, -start)), max(0, min(size, start + size - extent)))
            for start, size, extent in zip(self.starts, self.sizes, shape, strict=True)
        )

    def overlaps(self, other: Window) -> bool:
        """Whether two windows share an element."""
        return all(
            a < b + m and b < a + n
            for a, n, b, m in zip(self.starts, self.sizes, other.starts, other.sizes, strict=True)
        )

    def __str__(self) -> str:
        return "[" + ", ".join(f"{s}:{s + n}" for s, n in zip(self.starts, self.sizes, strict=True)) + "]"


def window(dims: Sequence[BlockDim], indices: Sequence[object]) -> Window:
    """The window that an index map's results mean.

    A result is an integer, or a pair (start, size) for ``bounded_slice``. Raises ``UnsupportedError`` for ``indirect``.
    """
    starts: list[int] = []
    sizes: list[int] = []
    for dim, index in zip(dims, indices, strict=True):
        if dim.kind == "indirect":
            raise UnsupportedError("a gather of single elements (pl.Indirect) has no contiguous window")
        if dim.kind == "bounded_slice":
            start, size = index if isinstance(index, tuple) else (index, dim.size)  # type: ignore[misc]
            starts.append(int(start))  # type: ignore[arg-type]
            sizes.append(int(size))  # type: ignore[arg-type]
            continue
        starts.append(dim.start(int(index)))  # type: ignore[call-overload]
        sizes.append(dim.size)
    return Window(tuple(starts), tuple(sizes))
