"""The HLO compiler core: IR, text, ledger, passes, evaluator, dump readers, and the plain views that the tools show.

In Python: ``from hloscope.core import capture, load``. ``load(PATH)`` opens a dump directory, an archive of one, a
ledger, or an HLO text file; ``capture(jitted, *args, target="cpu")`` compiles with dumps on and returns the same kind
of run. Both are imported on first use, so that ``import hloscope.core`` stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hloscope.core.views.capture import capture as capture
    from hloscope.core.views.run import load as load

__all__ = ["capture", "load"]

_LAZY = {"capture": "hloscope.core.views.capture", "load": "hloscope.core.views.run"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
