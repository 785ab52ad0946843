"""The ladder of reasons for which XLA:CPU does not fuse a producer into a consumer, in its order.

Source: ``openxla/xla:xla/service/cpu/cpu_instruction_fusion.cc#ShouldFuse``,
``xla/service/instruction_fusion.cc#ShouldFuse``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hloscope.core.fusion.cpu.in_place import in_place_refusal
from hloscope.core.fusion.cpu.predicates import (
    is_always_duplicable,
    is_effective_scalar,
    is_expensive,
    is_loop_fusible,
    is_matrix_vector_dot,
    is_output_fusible,
    is_slow_concatenate,
    is_thin_dot_side,
)
from hloscope.core.fusion.cpu.reuse import MAX_EMITTED, DuplicationEstimate, ReusedOperands

if TYPE_CHECKING:
    from hloscope.core.analysis.alias_info import AliasInfo
    from hloscope.core.hlo.instruction import HloInstruction

MAX_REDUCES = 5
"""A fusion that holds more reductions than this takes no further one."""


class Refusal(NamedTuple):
    """Why an edge is not fused."""

    gate: int
    """Position in the ladder."""
    code: str
    reason: str
    """XLA's own words."""
    numbers: str = ""
    """The figures behind it, in words."""


GATES: tuple[tuple[str, str], ...] = (
    ("banned", "operand can not be duplicated"),
    ("custom", "Don't fuse instructions from custom fusions/calls"),
    ("constant", "Don't fuse non-scalar constants."),
    ("output_fusion", ""),
    ("output_fusible_producer", "Bailing because producer can be output-fused into some operand."),
    ("not_loop_fusible", "Producer is not loop-fusible."),
    ("concatenate", "Concatenate fusion is inefficient."),
    ("not_profitable", "Fusion is not profitable."),
    ("root", "not fusing into the output of the root instruction"),
    ("expensive_duplicated", "expensive producer would be duplicated"),
    ("in_place", ""),
    ("reductions", "Too many reductions inside single fusion."),
    ("lone_constant", "Not fusing: insufficient non-constant nodes."),
    ("fusion_producer", "Not fusing: producer is itself a fusion node."),
    ("code_duplication", "Code duplication too high"),
    ("thin_dot", ""),
    ("loop_fusion", ""),
    ("loop_fusible", ""),
    ("no_case", "Not fusing: not found a fusible case"),
)
"""Code and XLA's words of every gate in order; a gate without words lets the edge pass, or has words of its own."""
_NUMBER = {code: number for number, (code, _) in enumerate(GATES)}

STAYS = frozenset("banned constant not_loop_fusible not_profitable".split())
"""Refusals that a fusion repeats however it grows, since they ask of the producer alone, or whether the fusion reads it
more than once."""

MEANING = {
    "banned": "some other user must keep it, so fusing would read its big inputs again",
    "custom": "the consumer is a library call, which takes nothing in",
    "constant": "only single-element constants are written into a loop",
    "output_fusible_producer": "the producer is an add that takes a dot into its own kernel",
    "not_loop_fusible": "the producer has a kernel or a library call of its own",
    "concatenate": "each element would choose among the operands",
    "not_profitable": "an expensive value would be computed anew for every element that reads it",
    "root": "the producer is the result of the computation",
    "expensive_duplicated": "other users need it too, and computing it twice costs more than reading it",
    "reductions": "the fusion holds as many reductions as it may",
    "lone_constant": "a constant alone makes no fusion",
    "fusion_producer": "the producer is a fusion already",
    "code_duplication": "the loop's code would hold too many copies of it",
    "no_case": "the consumer has a kernel or a library call of its own",
}
"""Code -> the refusal in plain words."""


class _Producer(NamedTuple):
    """What the ladder asks of a producer alone. It stays as long as the producer waits, since its operands wait too."""

    refusal: Refusal | None
    """The first gate that stops it in every consumer."""
    is_vector_dot: bool
    """An add may take it into its own kernel, before any other gate."""
    adds_vector_dot: bool
    """An add that may take in a dot itself."""
    is_expensive: bool


def _producer(one: HloInstruction) -> _Producer:
    adds = one.opcode == "add" and any(map(is_matrix_vector_dot, one.operands))
    refusal = None
    if one.opcode == "constant" and not is_effective_scalar(one):
        refusal = _stop("constant", f"{one.shape.element_count} elements")
    elif not is_loop_fusible(one):
        refusal = _stop("not_loop_fusible", one.opcode)
    elif is_slow_concatenate(one):
        refusal = _stop("concatenate")
    return _Producer(refusal, is_matrix_vector_dot(one), adds, is_expensive(one))


class Ladder:
    """The gates with what they remember between edges of one computation."""

    def __init__(self, alias: AliasInfo, skip: set[HloInstruction]) -> None:
        self._alias = alias
        self._skip = skip
        self._producers: dict[HloInstruction, _Producer] = {}
        self.banned: set[HloInstruction] = set()
        """Producers that may not be duplicated, and so not fused."""
        self.reused = ReusedOperands()
        self.estimates: dict[HloInstruction, DuplicationEstimate] = {}

    def estimate(self, fusion: HloInstruction) -> DuplicationEstimate:
        """The duplication estimate of a fusion, made at its first need."""
        found = self.estimates.get(fusion)
        if found is None:
            found = self.estimates[fusion] = DuplicationEstimate(fusion)
        return found

    def refusal(self, consumer: HloInstruction, position: int) -> Refusal | None:
        """The first gate that stops an edge; None where it may be fused."""
        if consumer.operand(position) in self.banned:
            return _BANNED
        return self.unbanned(consumer, position)

    def unbanned(self, consumer: HloInstruction, position: int) -> Refusal | None:
        """The same without the ban, which is made with this question's help."""
        if consumer in self._skip:
            return _CUSTOM
        producer = consumer.operand(position)
        known = self._producers.get(producer)
        if known is None:
            known = self._producers[producer] = _producer(producer)
        if known.is_vector_dot and is_output_fusible(consumer, producer):
            return None
        if known.adds_vector_dot and any(is_output_fusible(producer, one) for one in producer.operands):
            return _stop("output_fusible_producer")
        if known.refusal is not None:
            return known.refusal
        if is_slow_concatenate(consumer):
            return _stop("concatenate")
        expensive = known.is_expensive
        if expensive and producer.opcode != "fusion" and producer in self.reused.of(consumer):
            return _stop("not_profitable", f"{producer.opcode} is expensive")
        return self._base(producer, consumer, expensive=expensive) or self._cpu(producer, consumer, position)

    def _base(self, producer: HloInstruction, consumer: HloInstruction, *, expensive: bool) -> Refusal | None:
        if producer.is_root:
            return _stop("root")
        if expensive and not is_always_duplicable(producer) and any(one is not consumer for one in producer.users):
            return _stop("expensive_duplicated", f"{producer.opcode}, {producer.user_count} users")
        conflict = in_place_refusal(producer, consumer, self._alias)
        if conflict is not None:
            return Refusal(_NUMBER["in_place"], conflict.code, conflict.reason)
        return None

    def _cpu(self, producer: HloInstruction, consumer: HloInstruction, position: int) -> Refusal | None:
        is_fusion = consumer.opcode == "fusion"
        if is_fusion and producer.opcode == "reduce":
            held = sum(one.opcode == "reduce" for one in consumer.callee("calls"))
            if held > MAX_REDUCES:
                return _stop("reductions", f"{held} reductions")
        if producer.opcode == "constant" and not is_fusion:
            return _stop("lone_constant")
        if producer.opcode == "fusion":
            return _stop("fusion_producer")
        if is_fusion:
            copies = self.estimate(consumer).too_high(producer)
            if copies is not None:
                return _stop("code_duplication", f"{copies} copies, at most {MAX_EMITTED}")
        if is_thin_dot_side(consumer, producer) and consumer.operand(position) is producer:
            return None
        if is_fusion and consumer.attr("kind") == "kLoop":
            return None
        if is_loop_fusible(consumer):
            return None
        return _stop("no_case", consumer.opcode)


def _stop(code: str, numbers: str = "") -> Refusal:
    number = _NUMBER[code]
    return Refusal(number, code, GATES[number][1], numbers)


_BANNED, _CUSTOM = _stop("banned"), _stop("custom")
