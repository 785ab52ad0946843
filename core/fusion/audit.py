"""Agreement of our fusion deciders with a dump's: the section ``fusion`` of ``hloscope audit``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hloscope.core.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.analysis.agreement import Section
    from hloscope.core.analysis.real_compile import RealCompile

_BY_TARGET = {
    "cpu": "hloscope.core.fusion.cpu.audit:audit_cpu",
    "gpu": "hloscope.core.fusion.gpu.audit:audit_gpu",
}


def audit(compile_: RealCompile) -> Section:
    """Compare with the target's decider. Raises DumpError without the stages, UnsupportedError for another target."""
    where = _BY_TARGET.get(compile_.target or "")
    if where is None:
        what = "an unknown target" if compile_.target is None else f"the target {compile_.target}"
        raise UnsupportedError(f"fusion of {what} is not modelled, only that of cpu and gpu")
    module, _, name = where.partition(":")
    auditor: Callable[[RealCompile], Section] = getattr(import_module(module), name)
    return auditor(compile_)
