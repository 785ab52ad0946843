"""Passes between copy insertion and scheduling: small loops as calls, names of calls in what they call, names of
constants.

Source: ``openxla/xla:xla/service/cpu/small_while_loop_hoisting_pass.cc``,
``xla/hlo/transforms/propagate_call_metadata.cc``, ``xla/backends/gpu/transforms/sanitize_constant_names.cc``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_NO_CALL = frozenset("custom-call infeed outfeed scatter sort fft partition-id replica-id".split())
_COLLECTIVE = re.compile(r"(all-|collective-|reduce-scatter|ragged-all-to-all|send|recv)")
_FREE = frozenset("parameter constant tuple get-tuple-element bitcast after-all".split())
_SLICES = frozenset(("slice", "dynamic-slice", "gather"))


@dataclass(frozen=True)
class SmallWhileLoopHoisting:
    """Loops of few bytes a turn run as one call, so that their kernels are not launched one by one."""

    name = "small-while-loop-hoisting"
    is_pipeline = False
    bytes: int = 1024
    """Loops that touch fewer bytes in a turn are moved. XLA: ``xla_cpu_small_while_loop_byte_threshold``."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every loop that can run inside a kernel, inner ones first."""
        loops = [one for c in module.post_order() for one in c.instructions if one.opcode == "while"]
        known: dict[HloInstruction, bool] = {}
        changed = False
        for loop in loops:
            if _is_hoisted(loop):
                continue
            touched = _bytes(loop)
            if _unavailable(loop, known):
                ctx.refuse("hoist-loop", loop, "needs_a_kernel_of_its_own")
                continue
            if touched >= self.bytes:
                ctx.refuse("hoist-loop", loop, "bytes", f"{touched} of {self.bytes}")
                continue
            step = ctx.gate("hoist-loop", loop)
            if step:
                step.done(_as_call(module, loop), detail=f"{touched} bytes")
                changed = True
        return changed


def _is_hoisted(loop: HloInstruction) -> bool:
    """Whether a computation of its own, made by this pass, holds the loop."""
    home = loop.parent
    marks = [one.raw_attrs.get("frontend_attributes") or "" for one in home.callers]
    return loop.is_root and len(home) == 2 and bool(marks) and all("xla_cpu_small_call" in mark for mark in marks)


def _as_call(module: HloModule, loop: HloInstruction) -> HloInstruction:
    init = loop.operand(0)
    body = module.add_computation(HloComputation(f"{loop.name}_computation"))
    given = body.add(HloInstruction("parameter", init.shape, name=init.name, payload="0"))
    body.set_root(body.add(loop.clone_with(operands=[given])))
    call = HloInstruction("call", loop.shape, [init], called={"to_apply": body})
    metadata = loop.raw_attrs.get("metadata")
    if metadata is not None:
        call.set_attr("metadata", metadata)
    call.load_attr("frontend_attributes", '{xla_cpu_small_call="true"}')
    home = loop.parent
    home.add(call)
    loop.replace_all_uses_with(call)
    loop.drop_all_control_dependencies()
    home.remove(loop)
    return call


def _unavailable(node: HloInstruction, known: dict[HloInstruction, bool]) -> bool:
    found = known.get(node)
    if found is None:
        found = (
            node.opcode in _NO_CALL
            or _COLLECTIVE.match(node.opcode) is not None
            or (node.opcode == "fusion" and node.attr("kind") == "kCustom")
            or any(_unavailable(one, known) for callee in node.called_computations for one in callee.instructions)
        )
        known[node] = found
    return found


def _bytes(node: HloInstruction) -> int:
    """Bytes that an instruction reads and writes; of a loop in one turn."""
    if node.opcode in ("while", "conditional", "call"):
        return sum(_bytes(one) for callee in node.called_computations for one in callee.instructions)
    if node.opcode in _FREE:
        return 0
    if node.opcode == "fusion":
        body = node.callee()
        read = sum(_read(one) for one in body.parameters)
        root = body.root
        if root.opcode == "dynamic-update-slice":
            return read + root.operand(1).shape.byte_size
        return read + node.shape.byte_size
    if node.opcode in _SLICES:
        return 2 * node.shape.byte_size + sum(one.shape.byte_size for one in node.operands[1:])
    if node.opcode == "dynamic-update-slice":
        return 2 * node.operand(1).shape.byte_size + sum(one.shape.byte_size for one in node.operands[2:])
    return node.shape.byte_size + sum(one.shape.byte_size for one in node.operands)


def _read(parameter: HloInstruction) -> int:
    """Bytes of a fusion's operand that are read: slices read what they give, an update in place nothing."""
    total = 0
    for user in parameter.users:
        if user.opcode in _SLICES and user.operand(0) is parameter:
            total += user.shape.byte_size
        elif user.opcode == "dynamic-update-slice" and user.operand(0) is parameter:
            continue
        else:
            return parameter.shape.byte_size
    return min(total, parameter.shape.byte_size)


# ---------------------------------------------------------------- propagate-call-metadata
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_MAX_NAME = 4096


@dataclass(frozen=True)
class PropagateCallMetadata:
    """Operation names of calls stand before those of what they call. Stack frames stay as they are."""

    name = "propagate-call-metadata"
    is_pipeline = False
    text_only = True

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Callers before callees."""
        changed = False
        for computation in reversed(module.post_order()):
            if computation.is_fusion:
                continue
            for call in computation.post_order():
                if call.opcode != "call":
                    continue
                prefix = _op_name(call).removesuffix("/")
                if prefix:
                    wanted: dict[HloInstruction, str] = {}
                    for callee in call.called_computations:
                        _collect(callee, prefix, wanted)
                    if wanted and (step := ctx.gate("propagate-name", call)):
                        for node, name in wanted.items():
                            _set_op_name(node, name)
                        step.done(detail=f"{len(wanted)} names")
                        changed = True
        return changed


def _op_name(node: HloInstruction) -> str:
    found = _OP_NAME.search(node.raw_attrs.get("metadata") or "")
    return found[1] if found else ""


def _collect(computation: HloComputation, prefix: str, wanted: dict[HloInstruction, str]) -> None:
    """The names that a computation's instructions, and those that they run, are to have under a prefix."""
    for node in computation.post_order():
        name = _op_name(node).strip("/")
        if not name.startswith(prefix) and len(prefix) + len(name) < _MAX_NAME:
            wanted[node] = f"{prefix}/{name}" if name else prefix
        if node.opcode in ("while", "conditional", "async-start"):
            for callee in node.called_computations:
                _collect(callee, prefix, wanted)


def _set_op_name(node: HloInstruction, name: str) -> None:
    text = node.raw_attrs.get("metadata") or "{}"
    field = f'op_name="{name}"'
    if _OP_NAME.search(text):
        node.set_attr("metadata", _OP_NAME.sub(lambda _: field, text, count=1))
    else:
        inside = text.strip()[1:-1].strip()
        at = re.match(r'(op_type="[^"]*"\s*)?', inside)
        end = at.end() if at else 0
        node.set_attr(
            "metadata", "{" + " ".join(part for part in (inside[:end].strip(), field, inside[end:]) if part) + "}"
        )


# ---------------------------------------------------------------- sanitize-constant-names
@dataclass(frozen=True)
class SanitizeConstantNames:
    """Constants get names that a linker takes: underscores in place of dots and dashes."""

    name = "sanitize-constant-names"
    is_pipeline = False
    text_only = True

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every constant; it reports a change where there is one constant, as XLA's does."""
        taken = {one.name for one in module.instructions() if one.opcode != "constant"}
        changed = False
        for computation in module.computations:
            for one in computation.instructions:
                if one.opcode != "constant":
                    continue
                plain = re.sub(r"[-.]", "_", one.name)
                wanted, number = plain, 0
                while wanted in taken:
                    number += 1
                    wanted = f"{re.sub(r'_[0-9]+$', '', plain)}_{number}"
                if wanted == one.name:
                    taken.add(wanted)
                    continue
                step = ctx.gate("sanitize-name", one)
                if not step:
                    taken.add(one.name)
                    continue
                taken.add(wanted)
                # Later decisions name the constant as it came, whether or not this one was refused.
                ctx.lineage.derive(one, one.name)
                one.rename(wanted)
                step.done(one)
                changed = True
        return changed
