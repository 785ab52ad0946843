"""One stage of a compile, evaluated on the inputs of the whole program.

Before partitioning a stage takes and gives whole arrays; afterwards each device takes and gives its block. Both are run
here on the same whole arrays: blocks are cut and joined by the shardings of the parameters and results. Kernels that
nobody can look into draw their results from the seed, the same in every stage, and what they were given is compared
instead.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import EvaluationError, HloscopeError, UnsupportedError
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.runtime.evaluator.custom_calls import KERNELS
from hloscope.core.runtime.evaluator.sharding import REPLICATED, Sharding, parse_shardings, same_bits
from hloscope.core.runtime.evaluator.values import TOKEN, Array, EvaluationOptions, Token, Value, pack
from hloscope.core.runtime.inputs import random_array
from hloscope.core.runtime.kernels import calls
from hloscope.core.runtime.mesh import evaluate_on_mesh, is_border, needs_mesh, on_every_device
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.runtime.evaluator.values import Kernel, Machine, Prepare


@dataclass(frozen=True)
class Program:
    """What all stages of a compile share: the whole arrays going in and coming out. Plain data, to be sent around."""

    inputs: tuple[Array, ...]
    """The parameters' leaves of the first stage."""
    input_shardings: tuple[Sharding | None, ...]
    """How each leaf is spread once the program is partitioned, as far as some stage says."""
    output_shapes: tuple[tuple[int, ...], ...] = ()
    """Dimensions of the whole results; empty while the first stage has not run."""
    output_shardings: tuple[Sharding | None, ...] = ()
    """How each result is spread, as far as some stage says."""


@dataclass(slots=True)
class StageRun:
    """What a stage gave."""

    outputs: list[Array] = field(default_factory=list)
    """Whole results, in order."""
    kernels: dict[str, list[Array]] = field(default_factory=dict)
    """What each call of an opaque kernel was given, by target, result shape and turn."""
    notes: list[str] = field(default_factory=list)
    """What was assumed, one sentence each."""
    devices: int = 1
    """Simulated devices that it ran on."""


# ---------------------------------------------------------------- facts of a module
def parameter_leaves(module: HloModule) -> list[Shape]:
    """The leaves of the entry parameters in order; tokens too."""
    return [leaf for p in module.entry.parameters for _, leaf in p.shape.leaves()]


def parameter_shardings(module: HloModule) -> list[Sharding | None]:
    """The shardings that the entry parameters carry, leaf by leaf; None where the text does not say."""
    out: list[Sharding | None] = []
    for parameter in module.entry.parameters:
        count = sum(1 for _ in parameter.shape.leaves())
        out += _spread_over(parameter.raw_attrs.get("sharding"), count)
    return out


def result_shardings(module: HloModule) -> list[Sharding | None]:
    """The shardings that the root carries, leaf by leaf; a tuple's elements are asked where it does not say."""
    root = module.entry.root
    count = sum(1 for _ in root.shape.leaves())
    found = _spread_over(root.raw_attrs.get("sharding"), count)
    if any(found) or root.opcode != "tuple":
        return found
    out: list[Sharding | None] = []
    for operand in root.operands:
        out += _spread_over(operand.raw_attrs.get("sharding"), sum(1 for _ in operand.shape.leaves()))
    return out


def _spread_over(text: str | None, count: int) -> list[Sharding | None]:
    if not text:
        return [None] * count
    try:
        found = parse_shardings(text)
    except HloscopeError:
        return [None] * count
    return found if len(found) == count else found * count if len(found) == 1 else [None] * count


def runs_on_mesh(module: HloModule) -> bool:
    """Whether the module is for several devices and can tell them apart."""
    return module.num_partitions * module.replica_count > 1 and needs_mesh(module)


def holds_whole_arrays(module: HloModule) -> bool:
    """Whether values are whole arrays, blocks only between the marks of regions that each device runs for itself."""
    return module.num_partitions == 1 or any(is_border(node) for node in module.instructions())


def whole_parameters(module: HloModule) -> list[Shape]:
    """The entry parameters as the whole program has them: blocks times the number of blocks, where shardings say.

    A program that never asks which device it is on takes what it says.
    """
    if not runs_on_mesh(module) or holds_whole_arrays(module):
        return [p.shape for p in module.entry.parameters]
    return _joined_parameters(module)


def parameters_for(module: HloModule, given: Sequence[Array]) -> list[Shape]:
    """`whole_parameters`, for those arrays: a program that may be partitioned or not is what they fit."""
    whole = whole_parameters(module)
    if runs_on_mesh(module) or module.num_partitions == 1 or holds_whole_arrays(module):
        return whole
    joined = _joined_parameters(module)
    sizes = [leaf.dimensions for shape in joined for _, leaf in shape.leaves() if leaf.is_array]
    return joined if sizes == [array.shape for array in given] else whole


def _joined_parameters(module: HloModule) -> list[Shape]:
    from hloscope.core.hlo.shape import Shape

    shardings = iter(parameter_shardings(module))

    def whole(shape: Shape) -> Shape:
        if shape.is_tuple:
            return Shape.tuple_([whole(s) for s in shape.tuple_shapes])
        sharding = next(shardings)
        if not shape.is_array or sharding is None or sharding.replicated or len(sharding.tiles) != shape.rank:
            return shape
        sizes = tuple(n * count for n, count in zip(shape.dimensions, sharding.tiles, strict=True))
        return Shape.array(shape.element_type, sizes)

    return [whole(p.shape) for p in module.entry.parameters]


# ---------------------------------------------------------------- opaque kernels
class KernelBook:
    """What kernels were given, and results for those that cannot be computed. One for each run of a stage."""

    def __init__(self, seed: int, targets: frozenset[str], opaque: frozenset[str] = frozenset()) -> None:
        self._seed = seed
        self._opaque = opaque
        self._turns: dict[tuple[str, int], int] = {}
        self.given: dict[str, list[Array]] = {}
        self.uncomputed: dict[str, str] = {}
        """Why a target's results are drawn although its kernel is there."""
        self.targets: Mapping[str, Prepare] = MappingProxyType(dict.fromkeys(targets, self._prepare))

    def _prepare(self, instruction: HloInstruction, machine: Machine) -> Kernel:
        target = str(instruction.attr("custom_call_target"))
        name = f"{target} {instruction.shape.to_text(layout=False)}"
        mesh = machine.options.mesh
        computed = self._computed(instruction, machine)
        if computed is not None:
            return computed

        def kernel(*operands: Value) -> Value:
            device = 0 if mesh is None else mesh.device
            turn = self._turns.get((name, device), 0)
            self._turns[(name, device)] = turn + 1
            arrays = [x for x in operands if isinstance(x, np.ndarray)]
            self.given[f"{name} #{turn}" + (f" on device {device}" if device else "")] = arrays
            source = np.random.default_rng([self._seed, zlib.crc32(f"{name}\0{turn}".encode()), device])
            drawn: Iterator[Value] = iter(
                [random_array(leaf, source) if leaf.is_array else TOKEN for _, leaf in instruction.shape.leaves()]
            )
            return pack(instruction.shape, drawn)

        return kernel

    def _computed(self, instruction: HloInstruction, machine: Machine) -> Kernel | None:
        """The call computed from the kernel that it carries, where that can be read and is understood."""
        target = str(instruction.attr("custom_call_target"))
        if machine.options.kernels is None or target in self._opaque or target not in calls.TARGETS:
            return None
        try:
            return calls.prepare(instruction, machine)
        except UnsupportedError as error:
            self.uncomputed.setdefault(target, str(error))
            return None


# ---------------------------------------------------------------- running
def run_stage(
    module: HloModule,
    program: Program,
    *,
    options: EvaluationOptions | None = None,
    reference: Sequence[Array] | None = None,
    kernels: frozenset[str] = KERNELS,
) -> StageRun:
    """Evaluate a stage on the program's inputs; the results of `kernels` and of opaque targets are drawn.

    `reference` are the whole results of an earlier stage: where no text tells how results are spread over devices, the
    spread that fits them best is taken, and the run says so. Raises EvaluationError where the stage's parameters are
    not the program's, and whatever `evaluate` raises.
    """
    options = options or EvaluationOptions()
    book = KernelBook(options.seed, kernels | options.opaque, options.opaque)
    options = replace(options, opaque=frozenset(), custom_calls={**book.targets, **options.custom_calls})
    leaves = parameter_leaves(module)
    arrays = list(program.inputs)
    if len(arrays) != sum(leaf.is_array for leaf in leaves):
        raise EvaluationError(f"the stage has {len(leaves)} parameters, the first stage {len(arrays)}")
    run = StageRun()
    whole = all(leaf.dimensions == x.shape for leaf, x in zip((s for s in leaves if s.is_array), arrays, strict=True))
    devices = module.num_partitions * module.replica_count
    if devices == 1 or (whole and not needs_mesh(module)):
        found = evaluate(module, _with_tokens(leaves, arrays), options=options)
        run.outputs = [x for x in found if not isinstance(x, Token)]
    else:
        run.devices = devices
        _run_on_devices(module, program, options, reference, leaves, whole, run)
    run.kernels = book.given
    run.notes += [f"its result is drawn: {why}" for why in book.uncomputed.values()]
    return run


def arguments_of(module: HloModule, program: Program) -> list[Value]:
    """The values of a stage's entry parameters, for one that takes whole arrays."""
    parts: Iterator[Value] = iter(_with_tokens(parameter_leaves(module), program.inputs))
    return [pack(p.shape, parts) for p in module.entry.parameters]


def _with_tokens(leaves: Sequence[Shape], arrays: Sequence[Array]) -> list[Value]:
    rest = iter(arrays)
    return [next(rest) if leaf.is_array else TOKEN for leaf in leaves]


def _run_on_devices(
    module: HloModule,
    program: Program,
    options: EvaluationOptions,
    reference: Sequence[Array] | None,
    leaves: Sequence[Shape],
    whole: bool,
    run: StageRun,
) -> None:
    devices = module.num_partitions * module.replica_count
    arguments = on_every_device(_with_tokens(leaves, program.inputs), devices)
    if not whole:
        shardings = parameter_shardings(module)
        number = -1
        for place, leaf in enumerate(leaves):
            if not leaf.is_array:
                continue
            number += 1
            array = program.inputs[number]
            if leaf.dimensions == array.shape:
                continue
            sharding = shardings[place] or program.input_shardings[number]
            if sharding is None:
                raise EvaluationError(f"parameter {place} is a block of {list(array.shape)}; no stage says which")
            if sharding.block_shape(array.shape) != leaf.dimensions:
                raise EvaluationError(
                    f"parameter {place} is {leaf.to_text(layout=False)}; its sharding makes "
                    f"{list(sharding.block_shape(array.shape))} of {list(array.shape)}"
                )
            for device in range(devices):
                arguments[device][place] = sharding.cut(array, device % module.num_partitions)
    results = evaluate_on_mesh(module, arguments, options=options)
    # Where values are whole, the root's sharding says how the partitioner is going to cut it.
    uncut = whole and holds_whole_arrays(module)
    spread = [REPLICATED] * len(results[0]) if uncut else result_shardings(module)
    number = -1
    for place, first in enumerate(results[0]):
        if isinstance(first, Token):
            continue
        number += 1
        blocks = [np.asarray(device[place]) for device in results]
        shape = program.output_shapes[number] if number < len(program.output_shapes) else blocks[0].shape
        known = spread[place] if place < len(spread) else None
        given = program.output_shardings[number] if number < len(program.output_shardings) else None
        run.outputs.append(_joined(blocks, shape, known or given, reference, number, run))


def output_shardings(first: HloModule, later: Iterable[Callable[[], str]]) -> list[Sharding | None]:
    """How results are spread once the program is partitioned: what the last unpartitioned stage says of its root, for
    that is where propagation has been. None where no stage says; `later` are the texts after the first one."""
    count = sum(leaf.is_array for _, leaf in first.entry.root.shape.leaves())
    if first.num_partitions == 1:
        return [None] * count
    found = result_shardings(first)
    layout = [p.shape.dimensions for p in first.entry.parameters if p.shape.is_array]
    for read in later:
        text = read()
        if "sharding=" not in text:
            continue
        try:
            module = load_module(text)
        except HloscopeError:
            continue
        if [p.shape.dimensions for p in module.entry.parameters if p.shape.is_array] != layout:
            break
        said = result_shardings(module)
        if len(said) == count and all(said):
            found = said
    return found if len(found) == count else [None] * count


def whole_results(module: HloModule) -> tuple[tuple[int, ...], ...]:
    """Dimensions of the results' leaves."""
    return tuple(leaf.dimensions for _, leaf in module.entry.root.shape.leaves() if leaf.is_array)


_WHOLE = "a stage of a whole dump is joined by what its other stages say"


def _joined(
    blocks: list[Array],
    shape: tuple[int, ...],
    sharding: Sharding | None,
    reference: Sequence[Array] | None,
    number: int,
    run: StageRun,
) -> Array:
    if blocks[0].shape == shape and (reference is not None or sharding is None or sharding.replicated):
        if reference is None and any(not same_bits(blocks[0], other) for other in blocks[1:]):
            run.notes.append(f"result {number} is not the same on all devices: their values are stacked ({_WHOLE})")
            return np.stack(blocks)
        sharding = REPLICATED
    elif reference is None and sharding is not None:
        shape = tuple(n * count for n, count in zip(blocks[0].shape, sharding.tiles, strict=True))
    elif sharding is None or sharding.block_shape(shape) != blocks[0].shape:
        if reference is None:
            run.notes.append(
                f"the text does not say how result {number} is spread: the devices' blocks are stacked ({_WHOLE})"
            )
            return np.stack(blocks)
        sharding = _best_fit(blocks, shape, reference[number])
        run.notes.append(f"how result {number} is spread over devices is taken from its values")
    out, unequal = sharding.join(blocks, shape)
    if unequal:
        # Copies of one block that differ are a fault of their own: the worst copy must be what is compared.
        run.notes.append(f"result {number}: {unequal} devices hold other values than their copies do")
        if reference is not None:
            out = _worst_copy(blocks, sharding, shape, reference[number])
    return out


def _worst_copy(blocks: list[Array], sharding: Sharding, shape: tuple[int, ...], expected: Array) -> Array:
    """Of each block's copies the one farthest from what is expected."""

    def distance(device: int) -> float:
        wanted = sharding.cut(expected, device)
        with np.errstate(all="ignore"):
            far = np.abs(blocks[device].astype(np.complex128) - wanted.astype(np.complex128))
        return float(np.nan_to_num(far, nan=np.inf).max(initial=0.0))

    places = sharding.block_of or tuple(() for _ in blocks)
    chosen: dict[tuple[int, ...], int] = {}
    for device in sorted(range(len(blocks)), key=distance):
        chosen[places[device]] = device
    picked = [blocks[chosen[place]] for place in places]
    return sharding.join(picked, shape)[0]


def _best_fit(blocks: list[Array], shape: tuple[int, ...], expected: Array) -> Sharding:
    """The spread, by a grid of devices in some axis order, whose blocks come nearest to what is expected.

    Raises EvaluationError where the sizes make no grid.
    """
    tiles = tuple(-(-whole // block) if block else 1 for whole, block in zip(shape, blocks[0].shape, strict=True))
    count, devices = prod(tiles), len(blocks)
    if devices % count:
        raise EvaluationError(f"{devices} devices cannot hold {count} blocks of {list(shape)}")
    best: tuple[float, Sharding] | None = None
    for candidate in _spreads(tiles, devices):
        far = 0.0
        for device, block in enumerate(blocks):
            wanted = candidate.cut(expected, device)
            with np.errstate(all="ignore"):
                difference = np.abs(block.astype(np.complex128) - wanted.astype(np.complex128))
            far += float(np.nan_to_num(difference, nan=0.0).sum())
        if best is None or far < best[0]:
            best = (far, candidate)
    if best is None:
        raise EvaluationError(f"no spread of {list(shape)} over {devices} devices")
    return best[1]


def _spreads(tiles: tuple[int, ...], devices: int) -> Iterator[Sharding]:
    """Assignments of blocks to devices: the device grid's axes (dimensions and copies) in every order."""
    sizes = [*tiles, devices // prod(tiles)]
    axes = [d for d, n in enumerate(sizes) if n > 1]
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for order in permutations(axes):
        grid = np.arange(devices).reshape([sizes[d] for d in order])
        block_of: list[tuple[int, ...]] = [()] * devices
        for place, device in np.ndenumerate(grid):
            at = dict(zip(order, place, strict=True))
            block_of[int(device)] = tuple(int(at.get(d, 0)) for d in range(len(tiles)))
        key = tuple(block_of)
        if key not in seen:
            seen.add(key)
            yield Sharding(tiles, key)


def check_outputs(first: Sequence[Array], run: StageRun) -> None:
    """Raises UnsupportedError where a stage has other results than the first one, so that none can be compared."""
    if len(first) != len(run.outputs):
        raise UnsupportedError(f"the stage has {len(run.outputs)} results, the first stage {len(first)}")
