"""One ``pallas_call`` as data: grid, operands and their blocks, kernel, and the three orderings that jax uses.

The primitive takes ``[dynamic grid bounds, scalar prefetch, inputs]`` and gives the outputs; the kernel takes
``[scalar prefetch, inputs, outputs, scratch]``; an index map takes ``[grid indices, scalar prefetch]``. ``Slots``
computes all three for any mix. Source: ``jax-ml/jax:jax/_src/pallas/core.py#GridMapping``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hloscope.core.errors import UsageError
from hloscope.core.pallas.blocks import BlockDim, decode_dim, padded
from hloscope.core.pallas.jaxpr import Array, Aval, Decoder, Jaxpr, Span, decode_array, itemsize_bits


@dataclass(frozen=True, slots=True)
class Slots:
    """How many operands of each sort a call has, and where each stands in the three orderings."""

    grid: int
    """Grid dimensions."""
    dynamic: int
    """Grid dimensions whose bound is an operand."""
    prefetch: int
    inputs: int
    outputs: int
    scratch: int

    @property
    def primitive(self) -> tuple[str, ...]:
        """Operands of the primitive, in order."""
        return (*_named("grid_bound", self.dynamic), *_named("prefetch", self.prefetch), *_named("input", self.inputs))

    @property
    def kernel(self) -> tuple[str, ...]:
        """References that the kernel function takes, in order."""
        return (
            *_named("prefetch", self.prefetch),
            *_named("input", self.inputs),
            *_named("output", self.outputs),
            *_named("scratch", self.scratch),
        )

    @property
    def index_map(self) -> tuple[str, ...]:
        """Arguments of every index map, in order."""
        return (*_named("grid_index", self.grid), *_named("prefetch", self.prefetch))

    def kernel_position(self, kind: str, number: int) -> int:
        """Where an operand stands among the kernel's references. Raises ``UsageError`` where there is none."""
        try:
            return self.kernel.index(f"{kind} {number}")
        except ValueError:
            raise UsageError(f"the call has no {kind} {number}") from None

    def primitive_position_of_input(self, number: int) -> int:
        """Where an input stands among the primitive's operands."""
        return self.dynamic + self.prefetch + number


def _named(kind: str, count: int) -> list[str]:
    return [f"{kind} {number}" for number in range(count)]


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """An input or output of a call, cut into blocks."""

    kind: str
    """``input`` or ``output``."""
    number: int
    """0-based among its kind."""
    name: str
    """What the kernel calls its reference."""
    origin: str
    """What jax calls it, such as ``args[0]`` or ``outputs``."""
    array: Aval
    dims: tuple[BlockDim, ...]
    ref: Aval
    index_map: Jaxpr
    index_tree: tuple[Any, ...]
    """One entry a dimension: the number of the index map's result, or a pair of them."""
    buffers: int | None
    """``pl.Buffered(n)``; None where the pipeline decides (2)."""
    spec_at: Span | None
    """The ``BlockSpec`` of it, where the user wrote one."""
    map_at: Span | None
    """The index map's lambda or ``def``."""
    transformed: bool = False
    """Whether the reference is seen through further transforms, as Mosaic GPU's tilings do."""

    @property
    def space(self) -> str:
        """Memory space of the block's reference, lower case."""
        return self.ref.space or "default"

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Elements that a block spans, squeezed dimensions as 1."""
        return tuple(dim.size for dim in self.dims)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return math.prod(self.block_shape) * itemsize_bits(self.array.dtype) // 8

    @property
    def array_bytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.array.shape) * itemsize_bits(self.array.dtype) // 8

    @property
    def place(self) -> Span | None:
        """Where a finding about its blocks belongs."""
        return self.map_at or self.spec_at

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The array's shape once its last blocks are whole."""
        return tuple(padded(size, dim) for size, dim in zip(self.array.shape, self.dims, strict=True))

    @property
    def is_trivial(self) -> bool:
        """Whether every step sees the whole array: block and array agree and the index map returns zeros.

        Source: ``pallas/core.py#BlockMapping.has_trivial_window``.
        """
        from hloscope.core.pallas.jaxpr import Literal

        if self.block_shape != self.array.shape:
            return False
        return all(isinstance(atom, Literal) and not atom.value.any() for atom in self.index_map.outputs)

    @property
    def title(self) -> str:
        """How a sentence names it."""
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class PallasCall:
    """One traced ``pallas_call``."""

    number: int
    name: str
    at: Span | None
    """The call expression."""
    kernel_at: Span | None
    """The kernel's ``def``."""
    grid: tuple[int | None, ...]
    """Bounds; None where the bound is an operand."""
    vmapped: tuple[int, ...]
    """Grid dimensions that ``vmap`` added; ``program_id`` does not count them."""
    slots: Slots
    operands: tuple[Operand, ...]
    """Inputs, then outputs."""
    aliases: tuple[tuple[int, int], ...]
    """(input among prefetch and inputs, output) pairs that share memory."""
    kernel: Jaxpr
    backend: str | None
    """``tpu``, ``triton`` or ``mosaic_gpu``, where the compiler parameters say."""
    compiler: Mapping[str, Any]
    """Fields of the compiler parameters."""
    mesh: str | None = None
    grid_names: tuple[str, ...] = ()
    """Names of the grid's dimensions, where the user gave some: ``lax.axis_index`` finds them."""

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """Blocked inputs."""
        return self.operands[: self.slots.inputs]

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """Blocked outputs."""
        return self.operands[self.slots.inputs :]

    @property
    def scratch(self) -> tuple[Aval, ...]:
        """Types of the scratch references."""
        count = self.slots.scratch
        return (
            tuple(self.kernel.avals[v] for v in self.kernel.inputs[len(self.kernel.inputs) - count :]) if count else ()
        )

    @property
    def static_grid(self) -> tuple[int, ...] | None:
        """The grid where no bound is an operand."""
        return None if None in self.grid else tuple(bound for bound in self.grid if bound is not None)

    @property
    def semantics(self) -> tuple[str, ...]:
        """``parallel`` or ``arbitrary`` for each grid dimension, where the compiler parameters say; else arbitrary.

        On a TPU the dimensions that ``vmap`` added are parallel.
        Source: ``jax-ml/jax:jax/_src/pallas/mosaic/lowering.py#MosaicGridMapping``.
        """
        words = iter(self.given_semantics)
        added = "parallel" if self.backend in (None, "tpu") else "arbitrary"
        return tuple(added if d in self.vmapped else next(words, "arbitrary") for d in range(len(self.grid)))

    @property
    def given_semantics(self) -> tuple[str, ...]:
        """The words of the compiler parameters, which do not count dimensions that ``vmap`` added."""
        return tuple(_semantics_word(one) for one in self.compiler.get("dimension_semantics") or ())

    def own_point(self, point: Sequence[int]) -> tuple[int, ...]:
        """A grid point without the dimensions that ``vmap`` added: what ``program_id`` counts."""
        return tuple(i for d, i in enumerate(point) if d not in self.vmapped)

    def alias_of_output(self, number: int) -> Operand | None:
        """The input that shares an output's memory."""
        for source, output in self.aliases:
            position = source - self.slots.prefetch
            if output == number and position >= 0:
                return self.inputs[position]
        return None


def at_point(point: Sequence[int]) -> str:
    """`` at grid point (0, 1)`` for a sentence; nothing where there is no grid."""
    if not point:
        return ""
    return " at grid point (" + ", ".join(map(str, point)) + ("," if len(point) == 1 else "") + ")"


def from_point(point: Sequence[int]) -> str:
    """The same at the start of a sentence, a space after it."""
    return at_point(point)[1:] + " " if point else ""


def _semantics_word(value: object) -> str:
    return str(value).lower().rpartition(".")[2]


def decode_call(decoder: Decoder, number: int, data: Mapping[str, Any]) -> PallasCall:
    """A call of the tracing child's description."""
    kernel = decoder.jaxpr(data["kernel"])
    slots = Slots(
        grid=len(data["grid"]),
        dynamic=sum(bound is None for bound in data["grid"]),
        prefetch=data["index_operands"],
        inputs=data["inputs"],
        outputs=data["outputs"],
        scratch=data["scratch"],
    )
    operands: list[Operand] = []
    for position, block in enumerate(data["blocks"]):
        is_input = position < slots.inputs
        mapped = decoder.jaxpr(block["index_map"])
        operands.append(
            Operand(
                kind="input" if is_input else "output",
                number=position if is_input else position - slots.inputs,
                name=kernel.name_of(slots.prefetch + position),
                origin=block["origin"],
                array=decoder.aval(block["array"]),
                dims=tuple(decode_dim(dim) for dim in block["dims"]),
                ref=decoder.aval(block["ref"]),
                index_map=mapped,
                index_tree=decoder.plain(block["index_tree"]),
                buffers=block["buffers"],
                spec_at=decoder.span(block["spec_at"]),
                map_at=decoder.span(block["map_at"]),
                transformed=bool(block["transforms"]),
            )
        )
    compiler: Mapping[str, Any] = data["compiler"] or {"backend": None, "fields": {}}
    return PallasCall(
        number=number,
        name=data["name"],
        at=decoder.span(data["via"] if data["via"] is not None else data["at"]),
        kernel_at=decoder.span(data["kernel_at"]),
        grid=tuple(data["grid"]),
        vmapped=tuple(data["vmapped"]),
        slots=slots,
        operands=tuple(operands),
        aliases=tuple((source, output) for source, output in data["aliases"]),
        kernel=kernel,
        backend=compiler["backend"],
        compiler={key: decoder.plain(value) for key, value in compiler["fields"].items()},
        mesh=data["mesh"],
        grid_names=tuple(data["grid_names"] or ()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    """An argument of the traced function."""

    shape: tuple[int, ...]
    dtype: str
    value: Array | None
    """What the default holds, where it is an array."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """jax would not trace or lower the function."""

    kind: str
    """Name of the exception."""
    message: str
    at: Span | None


@dataclass(frozen=True, slots=True)
class Lowering:
    """What jax's own lowering for a platform said of a function."""

    platform: str
    refusal: Refusal | None


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One traced function of the user's file."""

    function: str
    jaxpr: Jaxpr | None
    arguments: tuple[Argument, ...]
    refused: Refusal | None
    lowering: Lowering | None


def decode_program(decoder: Decoder, data: Mapping[str, Any]) -> Program:
    """A function of the tracing child's description."""
    lowering = data["lowering"]
    return Program(
        function=data["function"],
        jaxpr=decoder.jaxpr(data["jaxpr"]) if data.get("jaxpr") else None,
        arguments=tuple(
            Argument(tuple(one["shape"]), one["dtype"], decode_array(one)) for one in data.get("arguments", ())
        ),
        refused=_refusal(decoder, data["refused"]),
        lowering=None
        if lowering is None
        else Lowering(lowering["platform"], None if lowering["ok"] else _refusal(decoder, lowering)),
    )


def _refusal(decoder: Decoder, data: Mapping[str, Any] | None) -> Refusal | None:
    return None if data is None else Refusal(data["kind"], data["message"], decoder.span(data["at"]))
