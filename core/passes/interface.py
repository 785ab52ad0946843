"""What a pass is: a name and ``run(module, ctx) -> changed``.

A pass is a frozen dataclass whose fields are its options; it holds no state of a run. It reports exactly whether the
module changed, asks the gate before every optional rewrite, and knows nothing of tools. One that changes names or
metadata alone, which no hash covers, says so with a class variable ``text_only = True``.
Source: ``openxla/xla:xla/hlo/pass/hlo_pass_interface.h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


class HloPass(Protocol):
    """A pass or a pipeline."""

    @property
    def name(self) -> str:
        """XLA's name of the pass."""
        ...

    @property
    def is_pipeline(self) -> bool:
        """True for pipelines and for fixed points around one."""
        ...

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Change the module in place and say whether it changed."""
        ...
