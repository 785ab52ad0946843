"""Arrays on disk: ``in_000…`` and ``out_000…`` in an ``.npz``, and ``dtypes``, a JSON object of true element types.

numpy's file format knows no bfloat16 and no floats below 16 bits; those are stored as bit patterns in unsigned integers
of their width. Files that lack ``dtypes``, or give numpy's names there, are read too.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.core.errors import EvaluationError
from hloscope.core.hlo.element_types import ELEMENT_TYPES, from_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.element_types import ElementType
    from hloscope.core.runtime.evaluator.values import Array


@dataclass(frozen=True)
class Arrays:
    """The contents of one file, arrays with their true dtypes."""

    inputs: list[Array]
    outputs: list[Array]


def read(path: str | Path) -> Arrays:
    """Read a file. Raises EvaluationError, with the path, where it is not one of this form."""
    name = str(path)
    try:
        if Path(path).exists() and not zipfile.is_zipfile(path):
            raise EvaluationError("expected an .npz archive of arrays in_000, in_001, …", path=name)
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise EvaluationError("expected an .npz archive of arrays in_000, in_001, …", path=name)
            stored: dict[str, Array] = {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise EvaluationError("no such file", path=name) from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise EvaluationError(f"not a readable .npz file: {' '.join(str(error).split())}", path=name) from None
    types = _types(stored.pop("dtypes", None), name)
    return Arrays(_series(stored, "in", types, name), _series(stored, "out", types, name))


def write(path: str | Path, *, inputs: Sequence[Array] = (), outputs: Sequence[Array] = ()) -> None:
    """Write a file whole or not at all: a failure leaves what was there. Raises EvaluationError."""
    arrays: dict[str, Array] = {}
    types: dict[str, str] = {}
    for prefix, group in (("in", inputs), ("out", outputs)):
        for i, array in enumerate(group):
            key = f"{prefix}_{i:03d}"
            element = from_dtype(array.dtype)
            types[key] = element.name
            arrays[key] = to_storage(array, element)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays, dtypes=np.asarray(json.dumps(types)))
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(buffer.getbuffer())  # a device or a pipe: a file put in its place would end it
            return
        part.write_bytes(buffer.getbuffer())
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise EvaluationError(f"cannot be written: {error.strerror or error}", path=str(path)) from None


def to_storage(array: Array, element: ElementType) -> Array:
    """The array as numpy's own types can hold it."""
    if _is_native(element):
        return np.ascontiguousarray(array).reshape(array.shape)
    if element.is_integral:  # sub-byte integers: their values
        return array.astype(np.int8 if element.kind == "int" else np.uint8)
    return np.ascontiguousarray(array).reshape(array.shape).view(np.dtype(f"u{array.dtype.itemsize}"))


def from_storage(array: Array, element: ElementType) -> Array:
    """The reverse of `to_storage`. Raises ValueError where the stored width does not fit."""
    if array.dtype == element.dtype:
        return array
    if element.is_integral or element.kind == "pred":
        return array.astype(element.dtype)
    if array.dtype.itemsize != element.dtype.itemsize:
        raise ValueError(f"{array.dtype} cannot hold bit patterns of {element.name}")
    return array.view(element.dtype)


def _is_native(element: ElementType) -> bool:
    return element.numpy_name is not None and not element.numpy_name.startswith("ml_dtypes.")


def _types(stored: Array | None, path: str) -> dict[str, ElementType]:
    if stored is None:
        return {}
    try:
        given: Any = json.loads(str(stored.item() if stored.ndim == 0 else stored.reshape(-1)[0]))
        return {str(key): _element(str(value)) for key, value in given.items()}
    except (ValueError, AttributeError, IndexError) as error:
        raise EvaluationError(f"its dtypes entry is not understood: {error}", path=path) from None


def _element(name: str) -> ElementType:
    """By the word of HLO text, or numpy's or ml_dtypes' name."""
    if name in ELEMENT_TYPES and ELEMENT_TYPES[name].numpy_name is not None:
        return ELEMENT_TYPES[name]
    for element in ELEMENT_TYPES.values():
        if element.numpy_name is not None and element.numpy_name.removeprefix("ml_dtypes.") == name:
            return element
    raise ValueError(f"unknown element type {name!r}")


def _series(stored: dict[str, Array], prefix: str, types: dict[str, ElementType], path: str) -> list[Array]:
    keys = sorted(
        (key for key in stored if key.startswith(f"{prefix}_") and key[len(prefix) + 1 :].isdigit()),
        key=lambda key: int(key[len(prefix) + 1 :]),
    )
    out: list[Array] = []
    for place, key in enumerate(keys):
        if int(key[len(prefix) + 1 :]) != place:
            raise EvaluationError(f"holds {key} and no {prefix}_{place:03d}", path=path)
        array = stored[key]
        try:
            out.append(from_storage(array, types[key]) if key in types else array)
        except ValueError as error:
            raise EvaluationError(f"{key}: {error}", path=path) from None
    return out
