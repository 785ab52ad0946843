"""Findings, the table of rules that they come from, and how a rule reports one."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NoReturn

from hloscope.core.errors import InternalError
from hloscope.core.hlo.opcodes import OPCODES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction

Phase = Literal[
    "module", "structure", "async", "channels", "names", "shape", "instruction", "buffers", "entry-layout", "schedule",
    "aliasing", "late",
]  # fmt: skip
"""The step of the verifier that finds it, in the order in which XLA takes the steps."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that can be wrong."""

    code: str
    phase: Phase
    meaning: str
    """What must hold, in one line."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    code: str
    """Code of the rule in `RULES`."""
    message: str
    """XLA's sentence where it has one."""
    computation: str | None = None
    """Name of the computation, None for a fault of the module."""
    instruction: str | None = None
    """Name of the instruction, None for a fault of the computation or module."""
    line: int | None = None
    """1-based line in the text, where a resolver was given and knows it; that of the header for the module."""


def _rules() -> dict[str, Rule]:
    table: dict[str, Rule] = {}

    def add(phase: Phase, code: str, meaning: str) -> None:
        if code in table:
            raise InternalError(f"rule {code} is listed twice")
        table[code] = Rule(code, phase, meaning)

    add("module", "module-name", "a module has a name")
    add("module", "no-entry", "a module has an entry computation")
    add("module", "entry-is-fusion", "the entry computation is not fused")
    add("structure", "computation-parent", "a computation belongs to the module that lists it")
    add("structure", "instruction-parent", "an instruction belongs to the computation that lists it")
    add("structure", "operand-computation", "operands are in their user's computation")
    add("structure", "callee-module", "called computations are in the module")
    add("structure", "no-root", "a computation has a root of its own")
    add("structure", "parameter-numbers", "parameters are numbered 0, 1, 2, …")
    add("structure", "use-lists", "operand and user lists, and both ends of control edges, agree")
    add("structure", "cycle", "operands and control edges make no cycle")
    add("structure", "use-before-definition", "the text defines a name before it uses it, as XLA's parser demands")
    add("structure", "recursion", "no computation calls itself")
    add("async", "async-user", "the value of an async-start or -update goes to its update, done or control flow only")
    add("async", "single-user", "the start of a pair has one user, of a fitting opcode")
    add("async", "single-operand", "the done of a pair has one operand, of a fitting opcode")
    add("async", "async-chain", "every async-done goes back to one async-start, and every start has one done")
    add("channels", "channel-pair", "a send or recv and its done share channel and host-transfer flag")
    add("channels", "host-transfer", "host transfers on one channel are identical but for their operands")
    add("names", "name-unchanged", "an instruction keeps the name recorded for scheduling")
    add("shape", "caller", "only opcodes that may call have called computations")
    add("shape", "operand-count", "an opcode with a fixed number of operands has that many")
    add("shape", "unbounded-dynamism", "results have bounds")
    add("shape", "layout-rank", "a layout orders as many dimensions as the shape has")
    add("shape", "layout-invalid", "layouts are valid for their shapes")
    add("shape", "missing-attribute", "attributes that the opcode needs are there")
    add("shape", "unreadable-attribute", "attributes can be read")
    add("shape", "literal", "a constant's values fit its shape and element type")
    add("shape", "operand-shape", "a shape written before an operand is the operand's")
    add("shape", "missing-computation", "computations that the opcode needs are there")
    add("shape", "mixed-precision", "operands of an operation share one floating type")
    add("shape", "shape-mismatch", "the result's shape is the one that follows from the operands")
    add("shape", "parameter-count", "a called computation has the right number of parameters")
    add("shape", "operand-parameter", "an operand has its parameter's shape")
    add("shape", "element-types", "operands have the element types of the applied computation's parameters")
    add("shape", "while-condition", "a while's condition gives a pred scalar")
    add("shape", "conditional-index", "a conditional's operand 0 is a pred with two branches or an s32")
    add("shape", "comparator", "a sort's comparator takes two scalars for each operand and gives a pred")
    add("shape", "sort-dimension", "a sort's dimension is below the rank")
    add("shape", "fusion-shape", "a fusion has one computation, with its root's and parameters' shapes")
    add("shape", "operand-aliasing", "aliased output and operand parts exist and are of one shape")
    add("shape", "composite", "a composite call names itself")
    add("shape", "layout-constraint", "operand layout constraints fit operands and have layouts")
    add("shape", "bitcast-size", "a bitcast keeps the number of bytes")
    add("shape", "bitcast-memory-space", "a bitcast does not move between host and device memory")
    add("shape", "copy-done", "both buffers of a copy-done are of one shape")
    add("shape", "outfeed-shape", "an outfeed sends what it says")
    add("shape", "token", "a token stands where one is needed")
    add("shape", "scan", "a scan's operands, carries and results fit its computation")
    add("shape", "scales", "scales of a scaled-dot divide their operands")
    add("shape", "async-shape", "shapes of async operations fit operands and wrapped computation")
    add("shape", "async-thread", "an async operation and its computation name one thread")
    add("shape", "replica-groups", "replica groups hold each id once and fit replica and partition counts")
    add("shape", "group-mode", "channel and global ids go together")
    add("shape", "shard-count", "gathered and scattered sizes fit the size of a group")
    add("shape", "source-target-pairs", "sources and targets are in range and appear once")
    add("shape", "inplace-permute", "buffers and offsets of a permute in place fit")
    for opcode in sorted(OPCODES):
        add("shape", f"shape-of-{opcode}", f"operands and attributes of {opcode} fit each other")
    add("instruction", "duplicate-name", "instruction names are unique in the module")
    add("instruction", "sharding", "a sharding fits shape and device count")
    add("instruction", "thread", "caller and callee run on one thread")
    add("instruction", "fusion-body", "a fused computation has one owner, no dead interior and contiguous parameters")
    add("instruction", "broadcast-order", "dimensions of a broadcast ascend")
    add("instruction", "sharding-agrees", "shardings of control flow and its computations agree")
    add("instruction", "call-aliasing", "a call has no output aliasing")
    add("instruction", "result-accuracy", "only opcodes with several accuracies ask for one")
    add("instruction", "implicit-broadcast", "operands of elementwise operations have the result's dimensions")
    add("instruction", "comparison-type", "a comparison's type fits the operands")
    add("instruction", "reshape-is-bitcast", "a reshape moves nothing")
    add("instruction", "channel-id", "channel ids of all-reduces are positive")
    add("instruction", "get-rng-seed", "GetRngSeed gives a u64 scalar of nothing")
    add("instruction", "host-memory-space", "no layout is in host memory")
    add("instruction", "layout-change", "an operation that cannot change layouts does not")
    add("instruction", "memory-space-change", "an operation that cannot change memory spaces does not")
    add("instruction", "async-computation", "an async computation holds parameters and root only")
    add("buffers", "buffers-not-allowed", "only some operations touch buffers")
    add("buffers", "buffer-writers", "a buffer value has at most one writer")
    add("buffers", "pin", "Pin, CreateBuffer and Unpin have the right operands, result and aliasing")
    add("buffers", "buffer-aliasing", "each buffer of a custom call is in one alias pair")
    add("entry-layout", "entry-result", "the entry layout's result is the root's shape")
    add("entry-layout", "entry-parameters", "the entry layout's parameters are the entry computation's")
    add("entry-layout", "entry-alias", "must-aliases are of one shape and memory space")
    add("schedule", "schedule-order", "a schedule runs operands and control predecessors first")
    add("schedule", "collective-deadlock", "sends and recvs come in an order that does not deadlock")
    add("aliasing", "alias-config", "input-output aliases name existing arrays of one size, each input once")
    add("aliasing", "buffer-donor", "donated buffers name existing arrays that are not aliased")
    add("late", "all-reduce-layout", "all all-reduces agree on constrained layouts")
    add("late", "original-value", "original values have the shape's structure")
    return table


RULES: Mapping[str, Rule] = MappingProxyType(_rules())
"""Every rule, by code, in the order of the verifier's steps."""


class Broken(Exception):
    """A rule is broken; carries what the finding will say."""

    def __init__(
        self,
        code: str,
        message: str,
        instruction: HloInstruction | None = None,
        computation: HloComputation | None = None,
    ) -> None:
        super().__init__(message)
        if code not in RULES:
            raise InternalError(f"no rule {code}")
        self.code = code
        self.message = message
        self.instruction = instruction
        self.computation = computation
        """Where there is no instruction to name, the computation; None where it is the module."""


def broken(code: str, message: str, instruction: HloInstruction | None = None) -> NoReturn:
    """Report that a rule is broken."""
    raise Broken(code, message, instruction)


def describe(instruction: HloInstruction) -> str:
    """An instruction in one short line."""
    operands = ", ".join(f"%{operand.name}" for operand in instruction.operands[:6])
    more = ", …" if instruction.operand_count > 6 else ""
    shape = instruction.shape.to_text(index_comments=False)
    if len(shape) > 120:
        shape = shape[:117] + "…"
    return f"%{instruction.name} = {shape} {instruction.opcode}({operands}{more})"
