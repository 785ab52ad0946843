"""What a pass that stumbles says: a malformed module is the user's, anything else is a bug.

The passes here trust the module, as XLA's do. The verifier costs more than they do, so it is asked only when one of
them failed.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from hloscope.core.hlo.module import HloModule


@contextmanager
def told_by_the_verifier(module: HloModule) -> Generator[None, None, None]:
    """Run a pass: where it fails and the verifier finds a fault, that fault is raised, as VerifyError."""
    try:
        yield
    except HloscopeError:
        raise
    except Exception as error:
        fault = first_fault(module)
        if fault is None:
            raise
        raise VerifyError(fault) from error


def first_fault(module: HloModule) -> str | None:
    """The first thing that is wrong with a module, in a sentence that names where."""
    from hloscope.core.hlo.verifier import VerifierOptions, verify

    try:
        found = verify(module, VerifierOptions(allow_mixed_precision=True), first_only=True)
    except HloscopeError as error:
        return error.message
    if not found:
        return _without_callee(module)
    one = found[0]
    where = f"%{one.instruction}: " if one.instruction else f"%{one.computation}: " if one.computation else ""
    return f"{where}{' '.join(one.message.split())}"


CALLEES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "call": ("to_apply",),
        "conditional": ("true_computation", "branch_computations"),
        "fusion": ("calls",),
        "reduce": ("to_apply",),
        "sort": ("to_apply",),
        "while": ("body",),
    }
)
"""Opcode -> attributes of which one must name a computation."""


def _without_callee(module: HloModule) -> str | None:
    """A call without its computation, or with other operands than it takes: the verifier leaves that to the reader."""
    for one in module.instructions():
        wanted = CALLEES.get(one.opcode)
        if wanted is not None and not any(one.called.get(name) for name in wanted):
            return f"%{one.name}: a {one.opcode} needs {' or '.join(wanted)}"
        if one.opcode in ("call", "fusion"):
            taken = len(one.called_computations[0].parameters)
            if taken != one.operand_count:
                return f"%{one.name}: the computation takes {taken} operands, the {one.opcode} has {one.operand_count}"
    return None
