"""The switches of a compile, under XLA's names. A value: pipelines see the flags as they were when the compile began.

Source: ``openxla/xla:xla/debug_options_flags.cc``, ``xla/xla.proto#DebugOptions``.
"""

from __future__ import annotations

import shlex
from dataclasses import Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from hloscope.core.errors import UsageError
from hloscope.core.passes.filters import HloPassFilter
from hloscope.core.passes.spelling import unknown

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class PassFlags:
    """Flags of the pass machinery; names that do not start with ``xla_`` are our own."""

    xla_disable_all_hlo_passes: bool = False
    """Every pipeline returns at once."""
    xla_disable_hlo_passes: tuple[str, ...] = ()
    """Runs to skip; see `hloscope.core.passes.filters`."""
    xla_enable_hlo_passes_only: tuple[str, ...] = ()
    """The only runs not to skip; pipelines are always entered."""
    xla_run_hlo_passes_starting_from: str = ""
    """Passes before the first of this name do nothing."""
    xla_unsupported_crash_on_hlo_pass_silent_hlo_change: bool = False
    """A pass that changes the module and reports that it did not ends the compile."""
    xla_unsupported_crash_on_hlo_pass_noop_change: bool = False
    """A pass that reports a change and made none ends the compile."""
    xla_unsupported_crash_on_hlo_pass_fix_max_iterations: bool = False
    """A fixed point that is not reached within its limit ends the compile."""
    xla_hlo_pass_fix_detect_cycles: bool = False
    """A fixed point notes when it sees a module twice."""
    xla_enable_dumping: bool = True
    xla_dump_hlo_module_re: str = ""
    """Modules to dump, partial match; empty means all where a dump directory is given."""
    xla_dump_hlo_pass_re: str = ""
    """Passes around which to dump, partial match on either side; empty means none, ``.*`` only those that change."""
    xla_dump_hlo_pipeline_re: str = ""
    """Pipelines whose passes are dumped, partial match; empty means all."""
    xla_dump_max_hlo_modules: int = -1
    """Modules to dump at most; no limit where it is not above 0."""
    xla_dump_include_timestamp: bool = False
    """File names begin with the microsecond of the module's first dump."""
    xla_dump_module_metadata: bool = False
    """Write every pass run with its times at the end of the compile."""
    xla_gpu_force_conv_nchw: bool = False
    """Layout assignment gives every cuDNN convolution the order NCHW."""
    xla_gpu_force_conv_nhwc: bool = False
    """Layout assignment gives every cuDNN convolution the order NHWC."""
    xla_gpu_experimental_enable_conv_fusion: bool = False
    """Layout assignment constrains plain convolutions, too."""
    xla_gpu_experimental_pack_dot_operands_along_k_dimension: bool = True
    """Operands of dots that come from elements smaller than a byte have their contracted dimension fastest."""
    check_reports: bool = False
    """Compare every pass's report with hashes and record what does not fit, without ending the compile."""
    compat_rev_a: bool = False
    """Filter as compilers before the four-shape filter did: by exact name, before the loop, without ledger rows."""

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

    def parse(self, text: str | Iterable[str]) -> PassFlags:
        """A copy with flags from ``--name=value`` words (one text, as in ``XLA_FLAGS``, or several words).

        Raises UsageError for a word of another form, a name that does not exist, or a value of the wrong type.
        """
        known: dict[str, Field[Any]] = {one.name: one for one in fields(self)}
        changes: dict[str, Any] = {}
        for word in shlex.split(text) if isinstance(text, str) else text:
            if not word.startswith("--"):
                raise UsageError(f"a flag is written --name=value, got {word!r}")
            name, equals, value = word[2:].partition("=")
            if name not in known:
                raise unknown("flag", name, known)
            changes[name] = _value(name, getattr(self, name), value if equals else None)
        return replace(self, **changes)


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
