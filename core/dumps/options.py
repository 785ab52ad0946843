"""What a dump says about the compile itself: flags, the build of the compiler, the backend.

``*.debug_options`` holds the flags that differ from their defaults, one text-proto field a line. The build is said by
the topology file on TPU (``cl/…``), by the file names' ``cl_`` tag, and by the note that ``hloscope capture`` leaves;
XLA writes it nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hloscope.core.dumps.directory import Dump, Module
from hloscope.core.dumps.filenames import CAPTURE_FILE, FileKind
from hloscope.core.dumps.proto_content import content_digest
from hloscope.core.dumps.textproto import parse_textproto
from hloscope.core.errors import HloscopeError, ParseError

_BUILD_LINE = re.compile(r"cl/([0-9]+)")
_PLATFORM = re.compile(rb'platform_name: "([a-z]+)"')

COMPILE_INPUTS = (FileKind.COMPILE_OPTIONS, FileKind.TOPOLOGY)
"""Files beside the flags that decide what a compile gives."""


@dataclass(frozen=True, slots=True)
class CompileFacts:
    """What the dump says about one module's compile."""

    flags: Mapping[str, str]
    """Flags that differ from their defaults; a repeated flag's values are joined by commas."""
    xla_build: str | None
    """The compiler build (``jaxlib 0.10.2``, ``libtpu cl/933746096``); None where the dump does not say."""
    target: str | None
    """``cpu``, ``gpu`` or ``tpu``."""
    every_change_dumped: bool | None
    """Whether every pass that said it changed something was to be dumped (``xla_dump_hlo_pass_re=.*``)."""


def compile_facts(module: Module) -> CompileFacts:
    """Reads the small files of a module that say how it was compiled; never raises, a damaged file says nothing."""
    flags = module_flags(module)
    pattern = flags.get("xla_dump_hlo_pass_re")
    return CompileFacts(
        flags=flags,
        xla_build=xla_build(module),
        target=module.target or _platform(module),
        every_change_dumped=pattern in (".*", ".+") if pattern is not None else None,
    )


def input_digests(module: Module) -> dict[str, str]:
    """Digest of what each file of ``COMPILE_INPUTS`` that a module has says, by the kind's value."""
    found: dict[str, str] = {}
    for kind in COMPILE_INPUTS:
        for file in module.files_of(kind)[:1]:
            try:
                found[kind.value] = content_digest(module.dump.read_file(file), file.path)
            except HloscopeError:
                continue
    return found


def module_flags(module: Module) -> dict[str, str]:
    """The flags of a module that differ from their defaults; empty where the dump has none or they cannot be read."""
    for file in module.files_of(FileKind.DEBUG_OPTIONS):
        try:
            return parse_debug_options(module.dump.read_file(file).decode("utf-8", "replace"), path=file.path)
        except HloscopeError:
            continue
    return {}


def parse_debug_options(text: str, *, path: str | None = None) -> dict[str, str]:
    """Flags of a ``debug_options`` file. Raises ``ParseError`` with the position of the first fault."""
    flags: dict[str, str] = {}
    for name, value in parse_textproto(text, path=path).fields:
        shown = value if isinstance(value, str) else value.to_text()
        flags[name] = f"{flags[name]},{shown}" if name in flags else shown
    return flags


def xla_build(module: Module) -> str | None:
    """The compiler build that wrote a module's dump, as far as the dump says it."""
    captured = capture_note(module.dump).get("jaxlib")
    if captured:
        return f"jaxlib {captured}"
    if module.build is not None:
        return f"libtpu cl/{module.build}"
    for file in module.files_of(FileKind.TOPOLOGY):
        if not file.path.endswith(".textproto"):
            continue
        try:
            version = parse_textproto(module.dump.read_file(file).decode("utf-8", "replace")).text("platform_version")
        except HloscopeError:
            continue
        if version and (match := _BUILD_LINE.search(version)):
            return f"libtpu cl/{match.group(1)}"
    return None


def capture_note(dump: Dump) -> dict[str, str]:
    """What ``hloscope capture`` noted beside the dump it made (versions, command); empty for other dumps."""
    for file in dump.shared_files:
        if file.path.endswith(CAPTURE_FILE):
            try:
                loaded: object = json.loads(dump.read_file(file))
            except (HloscopeError, ValueError):
                return {}
            if isinstance(loaded, dict):
                return {str(key): str(value) for key, value in loaded.items()}
    return {}


def _platform(module: Module) -> str | None:
    for file in module.files_of(FileKind.TOPOLOGY):
        try:
            match = _PLATFORM.search(module.dump.read_file(file, 4096))
        except (HloscopeError, ParseError):
            continue
        if match is not None:
            name = match.group(1).decode()
            return {"cpu": "cpu", "tpu": "tpu", "cuda": "gpu", "rocm": "gpu", "gpu": "gpu"}.get(name)
    return None
