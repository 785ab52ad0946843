"""What a client may turn off or down, in ``initializationOptions`` or by ``workspace/didChangeConfiguration``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hloscope.core.pallas.chips import TARGETS

REFUSED_FUSION_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one client."""

    advice: bool = True
    """Hints and information on texts in which nothing is wrong."""
    dump_facts: bool = True
    """Whether a child process works out what the dump around an open stage knows."""
    refused_fusion_bytes: int = REFUSED_FUSION_BYTES
    """Refused fusions that cost fewer bytes of memory traffic are not shown."""

    reduce_options: tuple[str, ...] = ()
    """More arguments of ``hloscope reduce``: which compiler has the fault, how it is told."""
    bisect_options: tuple[str, ...] = ()
    """More arguments of ``hloscope bisect``."""
    pallas_target: str | None = None
    """The chip whose rules and budgets the kernels of Python files are checked for."""

    def changed(self, given: Any) -> Settings:
        """With what a client sent: its own section or the whole; what is not understood stays as it was."""
        options = _plain(given)
        if isinstance(options.get("hloscope"), dict):
            options = options["hloscope"]
        out = self
        for key, field in (("advice", "advice"), ("dumpFacts", "dump_facts")):
            if isinstance(options.get(key), bool):
                out = replace(out, **{field: options[key]})
        size = options.get("refusedFusionBytes")
        if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
            out = replace(out, refused_fusion_bytes=size)
        target = options.get("pallasTarget")
        if target == "" or target in TARGETS:
            out = replace(out, pallas_target=target or None)
        for key, field in OPTIONS.items():
            words = options.get(key)
            if isinstance(words, list | tuple) and all(isinstance(one, str) for one in words):
                out = replace(out, **{field: tuple(words)})
        return out

    def options(self, key: str | None) -> tuple[str, ...]:
        """The arguments that a key of `OPTIONS` adds; none for None."""
        return () if key is None else getattr(self, OPTIONS[key])


OPTIONS = MappingProxyType({"reduceOptions": "reduce_options", "bisectOptions": "bisect_options"})
"""Lists of command line arguments, by the client's word."""


def _plain(given: Any) -> dict[str, Any]:
    """A JSON object as a dictionary: pygls hands some out as named tuples."""
    if isinstance(given, dict):
        return {str(key): _inner(value) for key, value in given.items()}
    if hasattr(given, "_asdict"):
        return {key: _inner(value) for key, value in given._asdict().items()}
    return {}


def _inner(value: Any) -> Any:
    return _plain(value) if isinstance(value, dict) or hasattr(value, "_asdict") else value
