"""Two stages compared where they differ: for modules that are too large to be evaluated whole.

Instructions that stand in both stages with the same text, and operands of the same names, are the common ground: each
has one value, drawn at random, on both sides. What lies between them is evaluated, and every changed value that the
common ground reads, and the root, must come out alike. Random values may break what the whole program guarantees (two
borders that are really equal, an index in range), so on a disagreement the borders are computed too, a level at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import EvaluationError, UnsupportedError
from hloscope.core.hlo.hashing import IGNORED, computation_hash
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.runtime.compare import Comparison, Rules, Sensitivity, compare, join_rules, rules_for
from hloscope.core.runtime.evaluator import TOKEN, EvaluationOptions, Evaluator, evaluate_instruction, leaves
from hloscope.core.runtime.evaluator.custom_calls import KERNELS
from hloscope.core.runtime.evaluator.memory import available_memory, in_words
from hloscope.core.runtime.evaluator.noise import disturbance
from hloscope.core.runtime.evaluator.sharding import parse_sharding
from hloscope.core.runtime.evaluator.values import TooLargeError
from hloscope.core.runtime.inputs import random_inputs
from hloscope.core.runtime.mesh import SimulatedMesh, needs_mesh

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value

WIDENINGS = 4
"""How many levels of borders are computed before a disagreement counts."""
NOISY_RUNS = 2
FIRM_RUNS = 6
"""The same where borders have values of a real run, and every single element counts."""
_OWN = frozenset({"while", "conditional", "call"})
"""Callers whose computations are compared on their own where both sides have them under one name."""

_COMPUTING = frozenset({"fusion", "call", "while", "conditional", "custom-call", "get-tuple-element"})
"""Opcodes that do not round, but whose value was computed inside others."""

Pair = tuple["HloInstruction", "HloInstruction"]


@dataclass(slots=True)
class RegionVerdict:
    """What came of comparing two stages by region."""

    computed: int = 0
    """Instructions evaluated, both sides together."""
    borders: int = 0
    """Values that both sides share."""
    widened: int = 0
    """Levels of borders that had to be computed."""
    within: bool = True
    """Whether all outputs of all regions agree."""
    firm: bool = True
    """False where some agree only within what rounding errors were seen to do."""
    notes: list[str] = field(default_factory=list)
    """What could not be done, one sentence each."""
    comparisons: list[tuple[str, Comparison]] = field(default_factory=list)
    """What was compared, by instruction name."""


@dataclass(slots=True)
class _Region:
    """The changed part of one computation."""

    before: HloComputation
    after: HloComputation
    common: dict[str, Pair]
    outputs: list[Pair]
    kernels: dict[HloInstruction, str]
    """Calls of kernels that cannot be computed, of both sides: what draws their results."""


# ---------------------------------------------------------------- what changed
def changed_regions(before: HloModule, after: HloModule, targets: frozenset[str] = KERNELS) -> list[_Region]:
    """The parts in which two modules differ, computation by computation, those that agree left out."""
    hashes: tuple[dict[HloComputation, bytes], dict[HloComputation, bytes]] = ({}, {})
    for module, done in zip((before, after), hashes, strict=True):
        for computation in module.post_order():
            computation_hash(computation, done, layouts=False)
    out: list[_Region] = []
    seen: set[tuple[HloComputation, HloComputation]] = set()
    stack = [(before.entry, after.entry)]
    while stack:
        pair = stack.pop()
        if pair in seen:
            continue
        seen.add(pair)
        if hashes[0][pair[0]] == hashes[1][pair[1]]:
            continue
        region, inner = _region(pair[0], pair[1], hashes, targets)
        stack.extend(inner)
        if region.outputs:
            out.append(region)
    return out


def _region(
    before: HloComputation,
    after: HloComputation,
    hashes: tuple[dict[HloComputation, bytes], dict[HloComputation, bytes]],
    targets: frozenset[str],
) -> tuple[_Region, list[tuple[HloComputation, HloComputation]]]:
    # What nobody reads is no common ground: a side that does read it would be cut off there.
    reached = _reached(after)
    kept = _reached(before)
    earlier = {_place(node): node for node in before if node in kept}
    common: dict[str, Pair] = {}
    inner: list[tuple[HloComputation, HloComputation]] = []
    for node in after:
        twin = earlier.get(_place(node))
        if twin is None or node not in reached or _line(twin) != _line(node):
            continue
        callees = list(zip(twin.called_computations, node.called_computations, strict=False))
        if len(twin.called_computations) != len(node.called_computations):
            continue
        if all(hashes[0][a] == hashes[1][b] for a, b in callees):
            common[_place(node)] = (twin, node)
        elif node.opcode in _OWN and all(_same_form(a, b) for a, b in callees):
            common[_place(node)] = (twin, node)
            inner += callees
    outputs: dict[tuple[int, int], Pair] = {}
    for a, b in common.values():
        for left, right in zip(a.operands, b.operands, strict=True):
            if _place(right) not in common:
                outputs[(id(left), id(right))] = (left, right)
    kernels: dict[HloInstruction, str] = {}
    for turn, (a, b) in enumerate(_kernel_pairs(before, after, kept, reached, targets)):
        kernels[a] = kernels[b] = f"kernel {turn} {a.shape.to_text(layout=False)}"
        if _place(b) not in common:
            outputs.update({(id(x), id(y)): (x, y) for x, y in zip(a.operands, b.operands, strict=True)})
    if _place(after.root) not in common or common[_place(after.root)] != (before.root, after.root):
        outputs[(id(before.root), id(after.root))] = (before.root, after.root)
    return _Region(before, after, common, list(outputs.values()), kernels), inner


def _kernel_pairs(
    before: HloComputation,
    after: HloComputation,
    kept: set[HloInstruction],
    reached: set[HloInstruction],
    targets: frozenset[str],
) -> list[Pair]:
    """The calls of opaque kernels in the order of the texts, where both sides have the same ones."""

    def calls(computation: HloComputation, live: set[HloInstruction]) -> list[HloInstruction]:
        nodes = [n for n in computation if n.opcode == "custom-call" and n in live]
        return [n for n in nodes if n.attr("custom_call_target") in targets]

    def form(node: HloInstruction) -> tuple[object, ...]:
        shapes = [x.shape.to_text(layout=False) for x in (node, *node.operands)]
        return (node.attr("custom_call_target"), *shapes)

    first, second = calls(before, kept), calls(after, reached)
    return list(zip(first, second, strict=True)) if [*map(form, first)] == [*map(form, second)] else []


def _place(node: HloInstruction) -> str:
    """What an instruction is known by: a parameter by its number, others by name."""
    return f"parameter {node.parameter_number}" if node.opcode == "parameter" else node.name


def _line(node: HloInstruction) -> tuple[object, ...]:
    attributes = tuple(sorted((k, v) for k, v in node.raw_attrs.items() if v is not None and k not in IGNORED))
    payload = node.payload if node.opcode in ("constant", "parameter") else None
    return (
        node.opcode,
        node.shape.to_text(layout=node.opcode == "bitcast"),
        tuple((_place(o), o.shape.to_text(layout=node.opcode == "bitcast")) for o in node.operands),
        payload,
        () if node.opcode == "parameter" else attributes,
    )


def _same_form(a: HloComputation, b: HloComputation) -> bool:
    shapes = [[p.shape.to_text(layout=False) for p in c.parameters] for c in (a, b)]
    return (
        a.name == b.name
        and shapes[0] == shapes[1]
        and a.root.shape.to_text(layout=False) == b.root.shape.to_text(layout=False)
    )


def _reached(computation: HloComputation) -> set[HloInstruction]:
    out: set[HloInstruction] = set()
    stack = [computation.root]
    while stack:
        node = stack.pop()
        if node not in out:
            out.add(node)
            stack.extend(node.operands)
    return out


# ---------------------------------------------------------------- evaluating
class _Side:
    """One side of a region."""

    def __init__(
        self,
        region: _Region,
        number: int,
        inside: set[str],
        elided: Mapping[str, Array],
        seed: int,
        noise: int | None,
        mesh: SimulatedMesh | None,
        given: Given | None = None,
    ) -> None:
        self._given = given
        self._region = region
        self._number = number
        self._inside = inside
        self._seed = seed
        self._elided = elided
        self._options = EvaluationOptions(seed=seed, elided=lambda node: elided[node.name], noise=noise, mesh=mesh)
        self._noise_number = noise
        self._noise = None if noise is None else np.random.default_rng([seed, noise])
        self._values: dict[HloInstruction, Value] = {}
        self.computed = 0
        self.used: set[str] = set()
        """Borders that were drawn."""

    def value(self, root: HloInstruction) -> Value:
        """An instruction's value. Raises UnsupportedError, EvaluationError."""
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if node in self._values:
                continue
            if self._is_border(node):
                self._values[node] = self._drawn(node)
            elif ready or not node.operands:
                value = self._computed(node)
                self._values[node] = value
            else:
                stack.append((node, True))
                stack.extend((operand, False) for operand in node.operands)
        return self._values[root]

    def _is_border(self, node: HloInstruction) -> bool:
        if node.opcode == "parameter" or node in self._region.kernels:
            return True
        place = _place(node)
        pair = self._region.common.get(place)
        if pair is None or pair[self._number] is not node or node.opcode in ("constant", "iota"):
            return False
        return place not in self._inside

    def _drawn(self, node: HloInstruction) -> Value:
        name = self._region.kernels.get(node) or _place(node)
        if node not in self._region.kernels:
            self.used.add(name)
            if self._given is not None:
                return self._disturbed(node, name, self._given.value(self._region, node, self._number))
        device = 0 if self._options.mesh is None else self._copy(node, self._options.mesh.device)
        seed = (self._seed ^ zlib.crc32(name.encode())) + (device << 32)
        (value,) = random_inputs([node.shape.static()], seed)
        return value

    def _disturbed(self, node: HloInstruction, name: str, value: Value) -> Value:
        """A border's own rounding error, the same on both sides: one may go back to what it was computed from."""
        if self._noise_number is None or node.opcode == "parameter":
            return value
        opcode = "add" if node.opcode in _COMPUTING else node.opcode
        source = np.random.default_rng([self._seed, self._noise_number, zlib.crc32(name.encode())])
        disturb = disturbance(opcode, node.shape, source)
        return value if disturb is None else disturb(value)

    @staticmethod
    def _copy(node: HloInstruction, device: int) -> int:
        """Devices that hold the same block of a parameter get the same values for it."""
        text = node.raw_attrs.get("sharding") if node.opcode == "parameter" else None
        sharding = parse_sharding(text) if text and not text.startswith("{{") else None
        if sharding is None:
            return device
        return sharding.block_of.index(sharding.block_of[device]) if sharding.block_of else 0

    def _computed(self, node: HloInstruction) -> Value:
        self.computed += 1
        if node.opcode == "constant":
            return self._constant(node)
        operands = [self._values[o] for o in node.operands]
        value = evaluate_instruction(node, operands, options=self._options)
        if self._noise is not None:
            disturb = disturbance(node.opcode, node.shape, self._noise)
            value = value if disturb is None else disturb(value)
        return value

    def _constant(self, node: HloInstruction) -> Value:
        if node.shape.is_array and not node.literal.is_elided:
            return node.literal.array()
        if node.shape.is_array and node.name in self._elided:
            return self._elided[node.name]
        raise UnsupportedError(f"the values of the constant %{node.name} are not known")


def check_regions(
    before: HloModule,
    after: HloModule,
    *,
    seed: int = 0,
    factor: float = 1.0,
    opaque: frozenset[str] = frozenset(),
    elided: tuple[Mapping[str, Array], Mapping[str, Array]] = ({}, {}),
    given: Given | None = None,
) -> RegionVerdict:
    """Compare two stages of one program where they differ.

    With `given`, borders have the values that they have in a run of the first of the two. Then nothing but the change
    itself can make a difference: no few elements are excused, and integers are only where rounding errors move them.

    Raises UnsupportedError where a region is too large or has an instruction that is not evaluated, EvaluationError
    where what is to be compared has other shapes, as it has once the program is partitioned.
    """
    shapes = [[p.shape.to_text(layout=False) for p in module.entry.parameters] for module in (before, after)]
    if shapes[0] != shapes[1]:
        raise EvaluationError("the program has other parameters before and after: only whole stages can be compared")
    verdict = RegionVerdict()
    rules = join_rules(rules_for(before, factor), rules_for(after, factor))
    if given is not None:
        rules = replace(rules, integer_slack=0)
    for region in changed_regions(before, after, KERNELS | opaque):
        _check(_Case(region, rules, seed, elided, given), verdict)
    return verdict


class Given:
    """The values that the borders of regions have in a run of the first of two stages, collected by its observer."""

    def __init__(self, before: HloModule, after: HloModule, inputs: Sequence[Value], targets: frozenset[str]) -> None:
        self._entry = before.entry
        self._inputs = inputs
        self._values: dict[HloInstruction, Value] = {}
        self._callers: dict[HloComputation, list[Value | HloInstruction]] = {}
        regions = changed_regions(before, after, targets)
        inner = {region.before for region in regions} - {before.entry}
        self._wanted = {a for region in regions for a, _ in region.common.values()}
        for node in before.instructions():
            if node.opcode not in _OWN:
                continue
            for place, computation in enumerate(node.called_computations):
                if computation in inner and computation not in self._callers:
                    own = [node.operand(place + 1)] if node.opcode == "conditional" else list(node.operands)
                    self._callers[computation] = [*own]
                    self._wanted.update(own)

    def observe(self, node: HloInstruction, value: Value) -> None:
        """Takes the first value of an instruction; of a loop's body, that of the first iteration."""
        if node in self._wanted and node not in self._values:
            self._values[node] = value

    def value(self, region: _Region, node: HloInstruction, side: int) -> Value:
        """A border's value. Raises UnsupportedError where the run did not come by it."""
        if node.opcode == "parameter":
            return self._parameter(region.before, node.parameter_number)
        twin = region.common[_place(node)][0]
        if twin not in self._values:
            raise UnsupportedError(f"%{node.name} has no value in this run")
        return self._values[twin]

    def _parameter(self, computation: HloComputation, number: int) -> Value:
        if computation is self._entry:
            return self._inputs[number]
        caller = self._callers.get(computation, [])
        source = caller[number] if number < len(caller) else None
        if not isinstance(source, HloInstruction):
            raise UnsupportedError(f"parameter {number} of {computation.name} has no value in this run")
        if source.opcode == "parameter":
            return self._parameter(source.parent, source.parameter_number)
        if source.opcode == "constant" and source.shape.is_array and not source.literal.is_elided:
            return source.literal.array()
        if source not in self._values:
            raise UnsupportedError(f"%{source.name} has no value in this run")
        return self._values[source]


@dataclass(slots=True)
class _Outcome:
    """What one side of a region gave."""

    arrays: list[Array]
    """The outputs' leaves; with several devices, stacked over them."""
    computed: int
    used: set[str]


def _outcome(case: _Case, number: int, inside: set[str], noise: int | None) -> _Outcome:
    """One side evaluated; on every device of the program, where its instructions can tell devices apart."""
    region = case.region
    nodes = [pair[number] for pair in region.outputs]
    module = region.after.module
    if module.num_partitions * module.replica_count == 1 or not needs_mesh(module):
        side = _Side(region, number, inside, case.elided[number], case.seed, noise, None, case.given)
        with np.errstate(all="ignore"):
            arrays = [x for node in nodes for x in leaves(side.value(node)) if isinstance(x, np.ndarray)]
        return _Outcome(arrays, side.computed, side.used)
    mesh = SimulatedMesh(module.replica_count, module.num_partitions)
    sides = [_Side(region, number, inside, case.elided[number], case.seed, noise, mesh) for _ in range(mesh.size)]
    results = mesh.run(lambda device: [x for node in nodes for x in leaves(sides[device].value(node))])
    stacked = [np.stack([np.asarray(x) for x in row]) for row in zip(*results, strict=True) if row[0] is not TOKEN]
    return _Outcome(stacked, sides[0].computed, sides[0].used)


@dataclass(frozen=True, slots=True)
class _Case:
    region: _Region
    rules: Rules
    seed: int
    elided: tuple[Mapping[str, Array], Mapping[str, Array]]
    given: Given | None = None

    @property
    def noisy_runs(self) -> int:
        """Runs with rounding errors that show how firm an output is."""
        return NOISY_RUNS if self.given is None else FIRM_RUNS


def _check(case: _Case, verdict: RegionVerdict) -> None:
    inside: set[str] = set()
    level = 0
    left, right, names, found, firm = _level(case, inside)
    while case.given is None and not all(c.within for c in found) and level <= WIDENINGS:
        grows = {place for place in left.used | right.used if not place.startswith("parameter ")}
        if level == WIDENINGS:
            # Duplicates that a pass made one may be alike for any number of levels.
            grows = _computable(case) - inside
        if not grows:
            break
        inside |= grows
        try:
            left, right, names, found, firm = _level(case, inside)
        except UnsupportedError as error:
            verdict.notes.append(f"where its borders come from could not be looked at: {error}")
            break
        level += 1
    used = left.used | right.used
    verdict.computed += left.computed + right.computed
    verdict.borders += len(used)
    verdict.widened = max(verdict.widened, level)
    verdict.firm &= firm
    verdict.within &= all(c.within for c in found)
    verdict.comparisons += list(zip(names, found, strict=True))


def _computable(case: _Case) -> set[str]:
    """All of the common ground that the evaluator knows how to compute."""
    machine = Evaluator(EvaluationOptions(elided="random"))
    out: set[str] = set()
    for place, pair in case.region.common.items():
        try:
            for node in pair:
                machine.prepare(node)
        except (UnsupportedError, EvaluationError):
            continue
        out.add(place)
    return out


def _level(case: _Case, inside: set[str]) -> tuple[_Outcome, _Outcome, list[str], list[Comparison], bool]:
    """Both sides and how they compare, and whether that took no widening of bounds."""
    _fits_memory(case.region, inside)
    left, right = (_outcome(case, number, inside, None) for number in (0, 1))
    names = [b.name for _, b in case.region.outputs for _, leaf in b.shape.leaves() if leaf.is_array]
    _same_shapes(names, left.arrays, right.arrays)
    found = [compare(x, y, case.rules) for x, y in zip(left.arrays, right.arrays, strict=True)]
    firm = all(c.within for c in found)
    if not firm:
        moved = [_moves(case, n, inside, exact.arrays) for n, exact in ((0, left), (1, right))]
        found = [
            compare(x, y, case.rules, first.joined(second))
            for x, y, first, second in zip(left.arrays, right.arrays, *moved, strict=True)
        ]
    return left, right, names, found, firm


def _same_shapes(names: Sequence[str], left: Sequence[Array], right: Sequence[Array]) -> None:
    """Raises EvaluationError where outputs have other shapes or types on the two sides."""
    if len(left) != len(right):
        raise EvaluationError("the region has other outputs before and after: they cannot be compared")
    for name, x, y in zip(names, left, right, strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            raise EvaluationError(f"%{name} has another shape before and after: the region cannot be compared")


def _moves(case: _Case, number: int, inside: set[str], exact: Sequence[Array]) -> list[Sensitivity]:
    """How far rounding errors move the outputs of one side."""
    runs = [_outcome(case, number, inside, noise).arrays for noise in range(case.noisy_runs)]
    found = [Sensitivity.of(x, [run[i] for run in runs]) for i, x in enumerate(exact)]
    return found if case.given is None else [replace(one, outliers=0) for one in found]


def _fits_memory(region: _Region, inside: set[str]) -> None:
    """Raises UnsupportedError where the values of the changed instructions and their borders take too much."""
    total = 0
    for number in (0, 1):
        seen: set[HloInstruction] = set()
        stack = [pair[number] for pair in region.outputs]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            place = _place(node)
            if place not in region.common or place in inside:
                stack.extend(node.operands)
        total += sum(
            leaf.element_count * leaf.type.dtype.itemsize
            for node in seen
            for _, leaf in node.shape.leaves()
            if leaf.is_array and leaf.type.numpy_name is not None
        )
    limit = available_memory() // 2
    if total > limit:
        raise TooLargeError(f"the changed region takes about {in_words(total)}, {in_words(limit)} are to spare")
