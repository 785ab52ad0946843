"""A structural hash: equal for modules that compute the same thing in the same way, whatever the names.

Change reports of passes are checked with it, and evaluations are cached by it. Computations hash by their
instructions in post order: opcode, shape, operand positions, control edges, attributes, literals and the hashes of
called computations. Names and metadata do not count. Source of the idea: ``openxla/xla:xla/hlo/ir/hlo_module.h``
(AbslHashValue).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from hloscope.core.hlo.attributes import CONTROL

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule

IGNORED = frozenset({"metadata", "origin", "original_value"})
"""Attributes that say where an instruction comes from, not what it does."""


def computation_hash(computation: HloComputation, done: dict[HloComputation, bytes], *, layouts: bool = True) -> bytes:
    """Hash of one computation (16 bytes); called computations must be in `done`, and the result is put there."""
    known = done.get(computation)
    if known is not None:
        return known
    state = blake2b(digest_size=16)
    number = {}
    order = computation.post_order()
    for i, node in enumerate(order):
        number[node] = i
        parts: list[str] = [node.opcode, node.shape.to_text(layout=layouts, index_comments=False)]
        parts.extend(str(number[o]) for o in node.operands)
        if node.payload is not None:
            parts.append("=" + node.payload)
        for key in sorted(node.raw_attrs):
            text = node.raw_attrs[key]
            if text is not None and key not in IGNORED:
                parts.append(f"{key}:{text}")
            elif key == CONTROL:
                parts.append("after:" + ",".join(sorted(str(number[p]) for p in node.control_predecessors)))
        for key in sorted(node.called):
            for callee in node.called[key]:
                parts.append(key + ":" + computation_hash(callee, done, layouts=layouts).hex())
        state.update("\x1f".join(parts).encode("utf-8", "surrogateescape"))
        state.update(b"\x1e")
    state.update(f"root:{number[computation.root]}".encode())
    digest = state.digest()
    done[computation] = digest
    return digest


def structural_hash(module: HloModule, *, layouts: bool = True, order: bool = False) -> str:
    """Hash of a module as hexadecimal text.

    With `layouts` False layouts do not count, those of the header neither. With `order` True the list order of a
    scheduled module counts too.
    """
    done: dict[HloComputation, bytes] = {}
    state = blake2b(digest_size=16)
    for computation in module.post_order():
        state.update(computation_hash(computation, done, layouts=layouts))
        if order and module.is_scheduled:
            place = {node: i for i, node in enumerate(computation.post_order())}
            state.update(",".join(str(place[node]) for node in computation).encode())
    state.update(done[module.entry])
    for key, text in module.attrs.items():
        if key == "entry_computation_layout" and not layouts:
            continue  # its shapes are those of the parameters and the root
        state.update(f"{key}={text}".encode("utf-8", "surrogateescape"))
    return state.hexdigest()
