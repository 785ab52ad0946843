"""The switches of a compile, under XLA's names. A value: pipelines see the flags as they were when the compile began.

Source: ``openxla/xla:xla/debug_options_flags.cc``, ``xla/xla.proto#DebugOptions``.
"""

from __future__ import annotations

import shlex
from dataclasses import Field, dataclass, fields, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hloscope.core.errors import UsageError
from hloscope.core.hlo.attributes import quote
from hloscope.core.passes.filters import HloPassFilter
from hloscope.core.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MISSPELT = 0.92
"""How much of two names must agree (``difflib``'s ratio) for one to be the other, misspelt."""
_OTHER_DEFAULTS: Mapping[str, object] = MappingProxyType({"xla_dump_large_constants": False})
"""XLA's defaults, where ours differ: without its constants a dump could not be evaluated."""
_NO_FIELDS = ("xla_fuel", "check_reports", "compat_rev_a", "without_effect")
"""Flags that are no field of XLA's proto."""
_LISTS = ("xla_disable_hlo_passes", "xla_enable_hlo_passes_only")
"""Flags that add to what they were given before; ``xla_fuel`` begins anew."""


@dataclass(frozen=True)
class PassFlags:
    """Flags of the pass machinery, in the order of XLA's proto; names that do not start with ``xla_`` are our own."""

    xla_hlo_pass_fix_detect_cycles: bool = False
    """A fixed point notes when it sees a module twice."""
    xla_unsupported_crash_on_hlo_pass_fix_max_iterations: bool = False
    """A fixed point that is not reached within its limit ends the compile."""
    xla_unsupported_crash_on_hlo_pass_noop_change: bool = False
    """A pass that reports a change and made none ends the compile."""
    xla_unsupported_crash_on_hlo_pass_silent_hlo_change: bool = False
    """A pass that changes the module and reports that it did not ends the compile."""
    xla_gpu_experimental_enable_conv_fusion: bool = False
    """Layout assignment constrains plain convolutions, too."""
    xla_gpu_experimental_pack_dot_operands_along_k_dimension: bool = True
    """Operands of dots that come from elements smaller than a byte have their contracted dimension fastest."""
    xla_gpu_force_conv_nchw: bool = False
    """Layout assignment gives every cuDNN convolution the order NCHW."""
    xla_gpu_force_conv_nhwc: bool = False
    """Layout assignment gives every cuDNN convolution the order NHWC."""
    xla_disable_hlo_passes: tuple[str, ...] = ()
    """Runs to skip; see `hloscope.core.passes.filters`."""
    xla_enable_hlo_passes_only: tuple[str, ...] = ()
    """The only runs not to skip; pipelines are always entered."""
    xla_disable_all_hlo_passes: bool = False
    """Every pipeline returns at once."""
    xla_run_hlo_passes_starting_from: str = ""
    """Passes before the first of this name do nothing."""
    xla_dump_to: str = ""
    """The dump directory."""
    xla_dump_hlo_module_re: str = ""
    """Modules to dump, partial match; empty means all where a dump directory is given."""
    xla_dump_hlo_pass_re: str = ""
    """Passes around which to dump, partial match on either side; empty means none, ``.*`` only those that change."""
    xla_dump_hlo_as_text: bool = False
    """Nothing else is written in any case."""
    xla_dump_include_timestamp: bool = False
    """File names begin with the microsecond of the module's first dump."""
    xla_dump_hlo_to_subfolder: bool = False
    """Dump into a folder of the module's own, and in that one of this process."""
    xla_dump_max_hlo_modules: int = -1
    """Modules to dump at most; no limit where it is not above 0."""
    xla_dump_module_metadata: bool = False
    """Write every pass run with its times at the end of the compile."""
    xla_dump_hlo_as_long_text: bool = True
    """Names with ``%``, and signatures of computations."""
    xla_enable_dumping: bool = True
    xla_dump_disable_metadata: bool = False
    """Dump no metadata of instructions."""
    xla_dump_hlo_pipeline_re: str = ""
    """Pipelines whose passes are dumped, partial match; empty means all."""
    xla_dump_large_constants: bool = True
    """Dump the values of all constants; without it those above ten elements are ``{...}``."""
    xla_fuel: tuple[str, ...] = ()
    """``PASS=N``: see `hloscope.core.passes.fuel`; no field of XLA's proto."""
    check_reports: bool = False
    """Compare every pass's report with hashes and record what does not fit, without ending the compile."""
    compat_rev_a: bool = False
    """Filter as compilers before the four-shape filter did: by exact name, before the loop, without ledger rows."""
    without_effect: tuple[str, ...] = ()
    """XLA's flags that were given and mean nothing here."""

    def __post_init__(self) -> None:
        if self.xla_disable_hlo_passes and self.xla_enable_hlo_passes_only:
            raise UsageError("cannot set both xla_disable_hlo_passes and xla_enable_hlo_passes_only")

    @property
    def crash_on_report(self) -> bool:
        """Either flag that makes a dishonest report fatal."""
        return (
            self.xla_unsupported_crash_on_hlo_pass_silent_hlo_change
            or self.xla_unsupported_crash_on_hlo_pass_noop_change
        )

    @property
    def disable_filter(self) -> HloPassFilter:
        """The parsed disable flag. Raises UsageError."""
        return HloPassFilter.parse(self.xla_disable_hlo_passes)

    @property
    def enable_filter(self) -> HloPassFilter:
        """The parsed enable flag. Raises UsageError."""
        return HloPassFilter.parse(self.xla_enable_hlo_passes_only)

    @property
    def changed(self) -> list[tuple[str, str]]:
        """Name and value of every flag of XLA's proto that is not as XLA has it by default, as its dumps tell them; a
        value of a list is a row."""
        found: list[tuple[str, str]] = []
        for one in fields(self):
            value: Any = getattr(self, one.name)
            if one.name in _NO_FIELDS or value == _OTHER_DEFAULTS.get(one.name, one.default):
                continue
            for part in sorted(value) if isinstance(value, tuple) else (value,):
                if isinstance(part, bool):
                    part = str(part).lower()
                found.append((one.name, quote(part) if isinstance(value, str | tuple) else str(part)))
        return found

    def parse(self, text: str | Iterable[str]) -> PassFlags:
        """A copy with flags from ``--name=value`` words (one text, as in ``XLA_FLAGS``, or several words).

        Other flags of XLA's are listed in ``without_effect``. Raises UsageError for a word of another form, a name that
        is none of XLA's or a misspelt one of these, or a value of the wrong type.
        """
        known: dict[str, Field[Any]] = {one.name: one for one in fields(self) if one.name != "without_effect"}
        changes: dict[str, Any] = {}
        idle = dict.fromkeys(self.without_effect)
        for word in shlex.split(text) if isinstance(text, str) else text:
            if not word.startswith("--"):
                raise UsageError(f"a flag is written --name=value, got {word!r}")
            name, equals, value = word[2:].partition("=")
            if name in known:
                before = changes.get(name, ()) if name in _LISTS else ()
                read = _value(name, getattr(self, name), value if equals else None)
                changes[name] = (*before, *read) if isinstance(read, tuple) else read
            elif name.startswith("xla_") and not get_close_matches(name, known, 1, _MISSPELT):
                idle[name] = None
            else:
                raise UsageError(
                    f"no flag is called {name!r}", hint=did_you_mean(name, known) or "XLA's begin with --xla_"
                )
        return replace(self, **changes, without_effect=tuple(idle))

    def warnings(self) -> tuple[str, ...]:
        """One sentence on the flags without effect, if there are any."""
        if not self.without_effect:
            return ()
        return (f"no effect here: {', '.join(f'--{name}' for name in self.without_effect)}",)


def _value(name: str, current: object, text: str | None) -> object:
    if isinstance(current, bool):
        if text is None or text in ("true", "1", "True"):
            return True
        if text in ("false", "0", "False"):
            return False
        raise UsageError(f"{name} is true or false, got {text!r}")
    if text is None:
        raise UsageError(f"{name} needs a value: --{name}=…")
    if isinstance(current, int):
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"{name} is a whole number, got {text!r}") from None
    return tuple(text.split(",")) if isinstance(current, tuple) else text
