"""Names as XLA's parser gives them to a module that it has read: unique over all computations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.names import NameUniquer

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule


def as_xla_names(module: HloModule) -> HloModule:
    """A copy in which no two instructions share a name, renamed in the order in which XLA adds computations."""
    copy = module.clone()
    names = NameUniquer()
    for computation in copy.computations:
        for node in computation:
            node.set_name_unchecked(names.unique(node.name))
    return copy
