"""Dump directories made for one test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MODULE = """HloModule {name}, entry_computation_layout={{({shape})->{shape}}}{attributes}

ENTRY %main.1 (x.1: {bare}) -> {bare} {{
  %x.1 = {shape} parameter(0){sharding}, metadata={{op_name="x" source_line={line}}}
  %constant.2 = f32[] constant({constant})
  %broadcast.3 = {shape} broadcast(%constant.2), dimensions={{}}
  ROOT %{opcode}.4 = {shape} {opcode}(%x.1, %broadcast.3)
}}
"""

HloText = Callable[..., str]
WriteDump = Callable[[dict[str, str | bytes]], Path]


@pytest.fixture
def hlo() -> HloText:
    """Text of a module of four instructions, with parts that can be changed."""

    def make(
        *,
        name: str = "jit_f",
        bare: str = "f32[8]",
        layout: str = "{0}",
        opcode: str = "add",
        constant: str = "2",
        attributes: str = "",
        sharding: str = "",
        line: int = 1,
    ) -> str:
        return MODULE.format(
            name=name, bare=bare, shape=bare + layout, opcode=opcode, constant=constant, attributes=attributes,
            sharding=sharding, line=line,
        )  # fmt: skip

    return make


@pytest.fixture
def write_dump(tmp_path: Path) -> WriteDump:
    """Writes files into a fresh directory and returns it."""

    def write(files: dict[str, str | bytes]) -> Path:
        folder = tmp_path / "dump"
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        folder.mkdir(exist_ok=True)
        return folder

    return write
