"""What ``opt`` and ``compile`` make of the options that say how our own passes run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hloscope.core.errors import UsageError

if TYPE_CHECKING:
    from hloscope.core.passes.flags import PassFlags
    from hloscope.core.passes.fuel import Fuel

_STANDARD_OUTPUT = "-"


def pass_flags(text: str | None, disable: str | None, enable: str | None, dump_to: str | None) -> PassFlags:
    """The flags of a compile; ``xla_dump_to`` is where a dump goes, empty where there is none.

    ``--dump-to`` dumps around every pass that changes something, the flag alone only before and after all, as in XLA.
    Raises UsageError.
    """
    from hloscope.core.passes.flags import PassFlags

    flags = PassFlags(xla_dump_hlo_pass_re=".*" if dump_to is not None else "")
    if text is not None:
        flags = flags.parse(text)
    if dump_to is not None:
        flags = replace(flags, xla_dump_to=dump_to)
    elif flags.xla_dump_to == _STANDARD_OUTPUT:
        raise UsageError("xla_dump_to names a folder: a dump is not written to standard output")
    if disable is not None:
        flags = replace(flags, xla_disable_hlo_passes=(*flags.xla_disable_hlo_passes, *disable.split(",")))
    if enable is not None:
        flags = replace(flags, xla_enable_hlo_passes_only=(*flags.xla_enable_hlo_passes_only, *enable.split(",")))
    return flags


def fuel_of(flags: PassFlags, fuel: Iterable[str]) -> Fuel:
    """What ``--fuel`` says, and ``xla_fuel`` of passes that it does not name. Raises UsageError."""
    from hloscope.core.passes.fuel import Fuel

    given = ",".join(flags.xla_fuel)
    return Fuel.parse([*([given] if given else []), *fuel])


def warn(sentences: Iterable[str]) -> None:
    """Writes warnings to stderr, one a line."""
    for sentence in sentences:
        print(f"hloscope: warning: {sentence}", file=sys.stderr)
