"""HLO protos (``.hlo.pb``, plain or gzip) as text, through the installed jaxlib in a child process."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from hloscope.core.dumps.wire import read_fields
from hloscope.core.errors import CompileError, DumpError, HloscopeError
from hloscope.core.xla.child import clean_environment, run_child

SECONDS = 300.0
"""Longest time of one call of the child."""


def proto_file_to_text(path: str | os.PathLike[str]) -> str:
    """The text of a proto file. Raises ``DumpError`` where it is no HLO proto."""
    name = os.fspath(path)
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise DumpError((error.strerror or str(error)).lower(), path=name) from None
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DumpError(f"damaged gzip data: {error}", path=name) from None
    try:
        return protos_to_text([data])[0]
    except DumpError as error:
        raise DumpError(error.message, path=name) from None


def protos_to_text(protos: Sequence[bytes]) -> list[str]:
    """The texts of serialized ``HloProto``s or ``HloModuleProto``s, all by one child where none of them aborts it.

    Raises ``DumpError`` for the first that is no HLO proto, ``CompileError`` where the child cannot run.
    """
    modules = [module_proto(data) for data in protos]
    with tempfile.TemporaryDirectory(prefix="hloscope-") as folder:
        sources = [os.path.join(folder, f"{number}.pb") for number in range(len(modules))]
        texts = [os.path.join(folder, f"{number}.txt") for number in range(len(modules))]
        for source, data in zip(sources, modules, strict=True):
            Path(source).write_bytes(data)
        try:
            run_child(
                "child_proto.py",
                {"protos": sources, "texts": texts},
                env=clean_environment({"JAX_PLATFORMS": "cpu"}),
                timeout=SECONDS,
                what="reading the proto",
            )
        except CompileError as error:
            failed = next((number for number, text in enumerate(texts) if not os.path.exists(text)), None)
            if failed is None or not modules[failed]:
                raise
            raise DumpError(f"not a readable HLO proto: {error.message}") from None
        shown: list[str] = []
        for text in texts:
            if os.path.exists(text + ".error"):
                raise DumpError(f"not a readable HLO proto: {Path(text + '.error').read_text('utf-8')}")
            shown.append(Path(text).read_text("utf-8"))
        return shown


def module_proto(data: bytes) -> bytes:
    """The serialized ``HloModuleProto`` in an ``HloProto``, a snapshot of one, or alone.

    Raises ``DumpError`` where the bytes are no protobuf of these. Source: ``openxla/xla:xla/service/hlo.proto``.
    """
    fields = dict[int, bytes]()
    try:
        for number, value in read_fields(data):
            if isinstance(value, bytes):
                fields.setdefault(number, value)
    except (IndexError, ValueError):
        raise DumpError("not a protocol buffer, or one that breaks off") from None
    name, entry = fields.get(1), fields.get(2)
    if name is None:
        raise DumpError("a protocol buffer, but not of an HLO module")
    if entry is not None and _is_name(name) and _is_name(entry):
        return data
    if _looks_like_module(name):
        return name
    inner = name
    try:
        nested = dict(read_fields(inner))
    except (IndexError, ValueError):
        raise DumpError("a protocol buffer, but not of an HLO module") from None
    module = nested.get(1)
    if isinstance(module, bytes) and _looks_like_module(module):
        return module
    raise DumpError("a protocol buffer, but not of an HLO module")


def _looks_like_module(data: bytes) -> bool:
    try:
        first = {number: value for number, value in read_fields(data[: 1 << 16], partial=True) if number in (1, 2)}
    except (IndexError, ValueError):
        return False
    name, entry = first.get(1), first.get(2)
    return isinstance(name, bytes) and isinstance(entry, bytes) and _is_name(name) and _is_name(entry)


def _is_name(data: bytes) -> bool:
    return 0 < len(data) < 4096 and all(32 <= byte < 127 for byte in data)


def proto_reader(protos: Sequence[bytes]) -> list[str]:
    """``protos_to_text`` for ``open_dump(…, proto_reader=…)``: a child's failure is a ``DumpError``."""
    try:
        return protos_to_text(protos)
    except DumpError:
        raise
    except HloscopeError as error:
        raise DumpError(error.message) from None
