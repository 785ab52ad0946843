"""What decides layouts beside the module: the GPU, the flags that the pass reads, how the program was partitioned.

A dump says all three (the target's description and the module's configuration lie beside the stages); for our own
compiles the target's name and the flags say them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.analysis.device import DeviceDescription, load_device, parse_device
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.dumps.textproto import parse_textproto
from hloscope.core.errors import HloscopeError
from hloscope.core.layout.gpu import GpuBackend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.core.analysis.real_compile import RealCompile
    from hloscope.core.dumps.textproto import Message
    from hloscope.core.layout.backend import Backend
    from hloscope.core.passes.flags import PassFlags

GENERIC_GPUS = ("gpu", "cuda")
"""Words that name no GPU; the default one is meant."""

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "xla_gpu_force_conv_nchw": "force_conv_nchw",
        "xla_gpu_force_conv_nhwc": "force_conv_nhwc",
        "xla_gpu_experimental_enable_conv_fusion": "conv_fusion",
        "xla_gpu_experimental_pack_dot_operands_along_k_dimension": "pack_along_contracting",
    }
)
"""Flags that the pass reads -> field of `GpuBackend`; the CPU's pass reads none."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """All of it; what is not known is as it usually is (jax partitions by SPMD)."""

    device: DeviceDescription | None = None
    flags: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    """Those of `FLAGS` that were given."""
    spmd: bool = True
    """``use_spmd_partitioning``; without it, all-reduces with a channel keep the layout that they first found."""
    notes: tuple[str, ...] = ()
    """What could not be read."""

    def on(self, backend: Backend) -> Backend:
        """The backend under these conditions."""
        changed = replace(backend, spmd=self.spmd)
        if isinstance(changed, GpuBackend):
            changed = replace(changed, **{FLAGS[name]: value for name, value in self.flags.items()})
            if self.device is not None:
                changed = on_device(changed, self.device)
        return changed


def on_device(backend: GpuBackend, device: DeviceDescription) -> GpuBackend:
    """The backend for one GPU."""
    return replace(backend, capability=device.compute_capability, rocm=device.platform == "rocm")


def gpu_backend(word: str) -> GpuBackend | None:
    """The backend of a GPU by its name or the file that describes it; None for a word that is neither.

    Raises ParseError for a file that describes none.
    """
    from hloscope.core.errors import UsageError

    if word in GENERIC_GPUS:
        return GpuBackend()
    try:
        return on_device(GpuBackend(), load_device(word))
    except UsageError:
        return None


def of_flags(flags: PassFlags) -> Conditions:
    """The conditions of our own compile."""
    return Conditions(flags={name: getattr(flags, name) for name in FLAGS})


def of_compile(compile_: RealCompile) -> Conditions:
    """What a dump (or a ledger) says; a damaged file says nothing, and a note says so."""
    notes: list[str] = []
    device: DeviceDescription | None = None
    config = compile_.report(FileKind.TARGET_CONFIG)
    if config is not None:
        try:
            device = parse_device(config)
        except HloscopeError as error:
            notes.append(f"the GPU's description cannot be read ({error.message}), so an H100 is assumed")
    settings = _message(compile_.report(FileKind.CONFIG), notes)
    flags = _message(compile_.report(FileKind.DEBUG_OPTIONS), notes)
    spmd = True
    if settings is not None and settings.messages("entry_computation_layout"):
        spmd = settings.text("use_spmd_partitioning") == "true"
        flags = next(iter(settings.messages("debug_options")), flags)
    given: dict[str, bool] = {}
    for name in FLAGS if flags is not None else ():
        value = flags.text(name) if flags is not None else None
        if value is not None:
            given[name] = value == "true"
    return Conditions(device, given, spmd, tuple(notes))


def _message(text: str | None, notes: list[str]) -> Message | None:
    if text is None:
        return None
    try:
        return parse_textproto(text)
    except HloscopeError as error:
        notes.append(f"the compile's configuration cannot be read ({error.message}), so default flags are assumed")
        return None
