"""What the installed wheels can compile for: the CPU of this machine, and an H100 and a TPU v5e without having one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import MappingProxyType

from hloscope.core.errors import UnsupportedError, UsageError


@dataclass(frozen=True, slots=True)
class Target:
    """One device that can be compiled for."""

    name: str
    """What ``--target`` takes."""
    description: str
    backend: str
    """``cpu``, ``gpu`` or ``tpu``."""
    modules: tuple[str, ...]
    """Python modules that must be installed beside jax."""
    wheels: str
    """What ``pip install`` adds; ``{jax}`` is the installed jax version. Empty where nothing is needed."""
    flags: tuple[str, ...] = ()
    """Flags for ``XLA_FLAGS``."""
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Environment of the child."""
    config: str | None = None
    """The device as a ``GpuTargetConfigProto`` text, where a file gave it."""


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "cpu": Target("cpu", "the CPU of this machine", "cpu", ("jaxlib",), "jax"),
        "h100": Target(
            "h100",
            "one NVIDIA H100 SXM, compiled without a device",
            "gpu",
            ("jax_cuda12_plugin", "jax_plugins.xla_cuda12"),
            '"jax-cuda12-plugin=={jax}" "jax-cuda12-pjrt=={jax}" nvidia-cuda-nvcc-cu12',
            flags=("--xla_gpu_autotune_level=0",),
        ),
        "v5e": Target(
            "v5e",
            "a TPU v5e 2x2, compiled without a device",
            "tpu",
            ("libtpu",),
            '"jax[tpu]=={jax}"',
            variables=MappingProxyType(
                {
                    "TPU_SKIP_MDS_QUERY": "1",
                    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
                    "TPU_WORKER_HOSTNAMES": "localhost",
                    "TPU_WORKER_ID": "0",
                    # No chip is taken, so that others may use libtpu meanwhile: it need not lock them out.
                    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
                }
            ),
        ),
    }
)
"""The devices by the name that ``--target`` takes."""

_CONFIG_BYTES = 1 << 20
"""Longest description of a GPU that is read; real ones have a few thousand bytes."""


def jax_version() -> str | None:
    """The installed jax, None where there is none."""
    return package_version("jax")


def package_version(name: str) -> str | None:
    """The installed version of a package, None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def find_target(name: str) -> Target:
    """The target of that name, or the GPU that a ``GpuTargetConfigProto`` text file describes (its name is ``gpu``).

    Raises ``UsageError`` for an unknown name and for a file that is something else.
    """
    target = TARGETS.get(name)
    if target is not None:
        return target
    if os.sep not in name and not os.path.splitext(name)[1] and not os.path.isfile(name):
        raise UsageError(f"no target {name!r}", hint=f"targets: {', '.join(TARGETS)}, or a GpuTargetConfigProto text")
    return replace(
        TARGETS["h100"], name="gpu", description=f"the GPU of {name}, compiled without a device", config=_config(name)
    )


def _config(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_CONFIG_BYTES + 1)
    except OSError as error:
        raise UsageError((error.strerror or str(error)).lower(), path=path) from None
    text = data.decode("utf-8", "replace")
    if len(data) > _CONFIG_BYTES or re.search(r"^\s*gpu_device_info\s*:?\s*[{<]", text, re.MULTILINE) is None:
        raise UsageError("not the text of a GpuTargetConfigProto: it has no gpu_device_info", path=path)
    return text


def is_available(target: Target) -> bool:
    """Whether the wheels that a target needs are installed; imports none of them."""
    return all(_installed(module) for module in target.modules)


def install_command(target: Target) -> str:
    """The one command that adds a target."""
    return f"pip install {target.wheels.format(jax=jax_version() or '')}"


def backend_of(name: str | None) -> str | None:
    """``cpu``, ``gpu`` or ``tpu`` of a target's name; the name itself where it is none of ``TARGETS``."""
    found = TARGETS.get(name or "")
    return name if found is None else found.backend


def not_public(name: str) -> UnsupportedError:
    """The refusal to compile for a TPU with passes of our own, and what there is instead."""
    here = "" if is_available(TARGETS["v5e"]) else f" once {install_command(TARGETS['v5e'])} was run"
    return UnsupportedError(
        f"no pipeline of our own for {name}: the passes of XLA:TPU are not public",
        hint=f"hloscope compile --engine xla --target v5e compiles for it without a device{here};"
        " hloscope opt --passes runs passes of ours on any module",
    )


def require(name: str) -> Target:
    """The target of that name, if it can be compiled for here. Raises ``UsageError`` or ``UnsupportedError``."""
    target = find_target(name)
    if not is_available(target):
        raise UnsupportedError(
            f"compiling for {name} needs wheels that are not installed", hint=install_command(target)
        )
    return target


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
