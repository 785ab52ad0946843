"""Layouts: how the elements of an array lie in memory.

Text form, every part printed only when it is not the default and all after one colon:
``{1,0:T(8,128)(2,1)L(512)#(u32)*(u64)E(4)S(5)SC(1:16)P(shape)M(8)}``. Source:
``openxla/xla:xla/layout.cc#Layout::Print`` and ``xla/hlo/parser/hlo_parser.cc#ParseLayout``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hloscope.core.errors import ParseError

COMBINE = -(2**63)
"""The tile dimension printed ``*``: it merges with the next more minor dimension."""

# Items after the colon in the order that XLA requires; its parser goes on where a number's bracket stays open.
_ITEMS = re.compile(
    r"(?:D\((?P<D>[^)]*)\))?"
    r"(?P<T>(?:T\([^)]*\)(?:\([^)]*\))*)?)"
    r"(?:L\((?P<L>\d+)\)?)?"
    r"(?:#\((?P<I>\w+)\))?"
    r"(?:\*\((?P<P>\w+)\))?"
    r"(?:E\((?P<E>-?\d+)\)?)?"
    r"(?:S\((?P<S>-?\d+)\)?)?"
    r"(?P<SC>(?:SC(?:\(\d+:[\d,]+\))+)?)"
    r"(?:P\((?P<PS>.*)\))?"
    r"(?:M\((?P<M>\d+)\)?)?$"
)
_BLANKS = re.compile(r"\s+(?!\d)|(?<!\d)\s+")
"""Blanks that do not keep two numbers apart."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of dimensions in memory, tiling, packing and memory space. A value: compare and hash freely."""

    minor_to_major: tuple[int, ...] = ()
    """Dimension numbers, fastest varying first."""
    tiles: tuple[tuple[int, ...], ...] = ()
    """Tiles applied one after the other to the most minor dimensions; `COMBINE` is printed ``*``."""
    tail_padding_alignment_in_elements: int = 1
    """The buffer ends at a multiple of this many elements."""
    index_primitive_type: str | None = None
    pointer_primitive_type: str | None = None
    element_size_in_bits: int = 0
    """Bits that one stored element takes; 0 means its natural width."""
    memory_space: int = 0
    """0 default, 1 generic fast (VMEM on TPU), 5 host, 6 unpinned host; other numbers are the backend's."""
    split_configs: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Per split: physical dimension and the indices where it is split between memories."""
    physical_shape: str | None = None
    """Text of the physical shape (sparse only); kept verbatim."""
    dynamic_shape_metadata_prefix_bytes: int = 0

    @staticmethod
    def descending(rank: int) -> Layout:
        """The default layout: the last dimension is the fastest."""
        return Layout(tuple(range(rank - 1, -1, -1)))

    @property
    def is_default_order(self) -> bool:
        """True where the dimension order is the default one; tiling and memory space are not looked at."""
        return self.minor_to_major == tuple(range(len(self.minor_to_major) - 1, -1, -1))

    @property
    def plain(self) -> Layout:
        """The same dimension order without tiles, packing and memory space."""
        return Layout(self.minor_to_major)

    def with_minor_to_major(self, order: tuple[int, ...]) -> Layout:
        """A copy with another dimension order."""
        return replace(self, minor_to_major=order)

    def suffix(self) -> str:
        """What stands after the colon, the empty string where everything is the default."""
        out: list[str] = []
        if self.tiles:
            out.append("T" + "".join("(" + ",".join(_tile_dim(d) for d in tile) + ")" for tile in self.tiles))
        if self.tail_padding_alignment_in_elements != 1:
            out.append(f"L({self.tail_padding_alignment_in_elements})")
        if self.index_primitive_type is not None:
            out.append(f"#({self.index_primitive_type})")
        if self.pointer_primitive_type is not None:
            out.append(f"*({self.pointer_primitive_type})")
        if self.element_size_in_bits:
            out.append(f"E({self.element_size_in_bits})")
        if self.memory_space:
            out.append(f"S({self.memory_space})")
        if self.split_configs:
            out.append("SC" + "".join(f"({d}:{','.join(map(str, at))})" for d, at in self.split_configs))
        if self.physical_shape is not None:
            out.append(f"P({self.physical_shape})")
        if self.dynamic_shape_metadata_prefix_bytes:
            out.append(f"M({self.dynamic_shape_metadata_prefix_bytes})")
        return "".join(out)

    def __str__(self) -> str:
        suffix = self.suffix()
        order = ",".join(map(str, self.minor_to_major))
        return "{" + order + (":" + suffix if suffix else "") + "}"

    @staticmethod
    def parse(text: str) -> Layout:
        """Read ``{1,0:T(8,128)}`` (the braces may be left out). Raises ParseError on anything else."""
        body = text.strip()
        if body.startswith("{") and body.endswith("}"):
            body = body[1:-1]
        order, _, suffix = body.partition(":")
        try:
            minor_to_major = tuple(int(part) for part in order.split(",") if part.strip())
        except ValueError:
            raise ParseError(f"expected a layout such as {{1,0}}, got {text!r}") from None
        suffix = _BLANKS.sub("", suffix)
        if not suffix:
            return Layout(minor_to_major)
        found = _ITEMS.match(suffix)
        if found is None:
            raise ParseError(
                f"unknown layout item in {text!r}; the order is D T L # * E S SC P M",
            )
        try:
            tiles = tuple(
                tuple(COMBINE if part == "*" else int(part) for part in tile.split(",") if part)
                for tile in re.findall(r"\(([^)]*)\)", found["T"])
            )
        except ValueError:
            raise ParseError(f"expected tile sizes, got {found['T']!r}") from None
        splits = tuple(
            (int(dim), tuple(int(p) for p in at.split(",")))
            for dim, at in re.findall(r"\((\d+):([\d,]+)\)", found["SC"])
        )
        return Layout(
            minor_to_major,
            tiles,
            int(found["L"] or 1),
            found["I"],
            found["P"],
            int(found["E"] or 0),
            int(found["S"] or 0),
            splits,
            found["PS"],
            int(found["M"] or 0),
        )


def _tile_dim(dim: int) -> str:
    return "*" if dim == COMBINE else str(dim)
