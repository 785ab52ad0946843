"""XLA's primitive types: one row each, with number in the protos, width, and the numpy type that carries values.

Source: ``openxla/xla:xla/xla_data.proto#PrimitiveType``. An element type that a newer compiler writes and this table
does not know is kept by name (``lookup`` makes a row of kind ``unknown`` for it), so that its text survives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

Kind = Literal["pred", "int", "uint", "float", "complex", "tuple", "opaque", "token", "buffer", "unknown"]


@dataclass(frozen=True)
class ElementType:
    """One primitive type."""

    name: str
    """The word in HLO text."""
    number: int
    """The number in the protos; -1 for one that the table does not know."""
    kind: Kind
    bits: int
    """Width of one element in bits (8 for pred); 0 where there is none."""
    numpy_name: str | None = None
    """Name in numpy, or in ml_dtypes with an ``ml_dtypes.`` prefix; None where no array carries it."""

    @property
    def byte_size(self) -> int:
        """Bytes of one element in an unpacked buffer: sub-byte types take a whole byte."""
        return (self.bits + 7) // 8

    @property
    def is_floating(self) -> bool:
        """True for every real floating type, the 4- to 8-bit ones included."""
        return self.kind == "float"

    @property
    def is_integral(self) -> bool:
        """True for signed and unsigned integers (pred is not one)."""
        return self.kind in ("int", "uint")

    @property
    def is_array_type(self) -> bool:
        """True where an array shape can have this element type."""
        return self.kind in ("pred", "int", "uint", "float", "complex", "unknown")

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype that carries the values. Raises TypeError for a type that no array carries."""
        import numpy

        if self.numpy_name is None:
            raise TypeError(f"no numpy type carries {self.name}")
        if self.numpy_name.startswith("ml_dtypes."):
            import ml_dtypes

            return numpy.dtype(getattr(ml_dtypes, self.numpy_name.removeprefix("ml_dtypes.")))
        return numpy.dtype(self.numpy_name)


def _table() -> dict[str, ElementType]:
    rows: list[tuple[str, int, Kind, int, str | None]] = [
        ("pred", 1, "pred", 8, "bool"),
        ("s1", 30, "int", 1, "ml_dtypes.int1"),
        ("s2", 26, "int", 2, "ml_dtypes.int2"),
        ("s4", 21, "int", 4, "ml_dtypes.int4"),
        ("s8", 2, "int", 8, "int8"),
        ("s16", 3, "int", 16, "int16"),
        ("s32", 4, "int", 32, "int32"),
        ("s64", 5, "int", 64, "int64"),
        ("u1", 31, "uint", 1, "ml_dtypes.uint1"),
        ("u2", 27, "uint", 2, "ml_dtypes.uint2"),
        ("u4", 22, "uint", 4, "ml_dtypes.uint4"),
        ("u8", 6, "uint", 8, "uint8"),
        ("u16", 7, "uint", 16, "uint16"),
        ("u32", 8, "uint", 32, "uint32"),
        ("u64", 9, "uint", 64, "uint64"),
        ("f16", 10, "float", 16, "float16"),
        ("f32", 11, "float", 32, "float32"),
        ("f64", 12, "float", 64, "float64"),
        ("bf16", 16, "float", 16, "ml_dtypes.bfloat16"),
        ("f8e5m2", 19, "float", 8, "ml_dtypes.float8_e5m2"),
        ("f8e4m3", 28, "float", 8, "ml_dtypes.float8_e4m3"),
        ("f8e4m3fn", 20, "float", 8, "ml_dtypes.float8_e4m3fn"),
        ("f8e4m3b11fnuz", 23, "float", 8, "ml_dtypes.float8_e4m3b11fnuz"),
        ("f8e5m2fnuz", 24, "float", 8, "ml_dtypes.float8_e5m2fnuz"),
        ("f8e4m3fnuz", 25, "float", 8, "ml_dtypes.float8_e4m3fnuz"),
        ("f8e3m4", 29, "float", 8, "ml_dtypes.float8_e3m4"),
        ("f4e2m1fn", 32, "float", 4, "ml_dtypes.float4_e2m1fn"),
        ("f8e8m0fnu", 33, "float", 8, "ml_dtypes.float8_e8m0fnu"),
        ("f6e3m2fn", 35, "float", 6, "ml_dtypes.float6_e3m2fn"),
        ("f6e2m3fn", 36, "float", 6, "ml_dtypes.float6_e2m3fn"),
        ("c64", 15, "complex", 64, "complex64"),
        ("c128", 18, "complex", 128, "complex128"),
        ("tuple", 13, "tuple", 0, None),
        ("opaque", 14, "opaque", 0, None),
        ("token", 17, "token", 0, None),
        ("buffer", 34, "buffer", 0, None),
    ]
    return {name: ElementType(name, number, kind, bits, np_name) for name, number, kind, bits, np_name in rows}


ELEMENT_TYPES: Mapping[str, ElementType] = MappingProxyType(_table())
"""Every primitive type that XLA has, by its word in HLO text."""


def lookup(name: str) -> ElementType:
    """The row of `name`; a row of kind ``unknown`` and width 0 for a word that the table does not have."""
    found = ELEMENT_TYPES.get(name)
    return found if found is not None else ElementType(name, -1, "unknown", 0)


def from_dtype(dtype: np.dtype[Any] | type) -> ElementType:
    """The element type whose values a numpy dtype carries. Raises TypeError where there is none."""
    import numpy

    wanted = numpy.dtype(dtype)
    for row in ELEMENT_TYPES.values():
        if row.numpy_name is None:
            continue
        try:
            if row.dtype == wanted:
                return row
        except AttributeError:  # an older ml_dtypes without this type
            continue
    raise TypeError(f"no element type for numpy dtype {wanted}")
