"""What the evaluator computes with: values, the options of a run, and what kernels may ask of the machine.

An array value is a numpy array of the element type's dtype (``ml_dtypes`` for the types that numpy lacks), in logical
order whatever its layout; a tuple is a Python tuple; a token is `TOKEN`. Values are never written to once made, so that
one may be a view of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from hloscope.core.errors import EvaluationError, UnsupportedError
from hloscope.core.hlo.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Token:
    """A token: it carries an order and no data."""


TOKEN = Token()

Value: TypeAlias = "Array | tuple[Value, ...] | Token"

Kernel: TypeAlias = Callable[..., Value]
"""What an instruction does to its operands' values, with everything about the instruction worked out beforehand."""

Observer: TypeAlias = "Callable[[HloInstruction, Value], None]"
ElidedSource: TypeAlias = "Callable[[HloInstruction], Array]"
KernelReader: TypeAlias = Callable[[str, bytes], Mapping[str, object]]
"""From a dialect (``mosaic``, ``triton``) and a kernel's MLIR to plain data: see `hloscope.core.runtime.kernels`."""


class Mesh(Protocol):
    """The devices that run one program together, as an instruction of it sees them."""

    @property
    def replicas(self) -> int:
        """Replicas of the program."""
        ...

    @property
    def partitions(self) -> int:
        """Partitions of each replica."""
        ...

    @property
    def device(self) -> int:
        """The device on which the caller runs, ``replica * partitions + partition``."""
        ...

    def exchange(self, instruction: HloInstruction, members: tuple[int, ...], value: Value) -> list[Value]:
        """Give a value to the members of a group and get theirs, in the order of `members`; waits for all of them.

        Raises EvaluationError where the devices wait for each other in a circle.
        """
        ...

    def post(self, key: tuple[object, ...], target: int, value: Value) -> None:
        """Leave a message for a device."""
        ...

    def fetch(self, instruction: HloInstruction, key: tuple[object, ...]) -> Value:
        """Take the oldest message that was left for the caller's device under a key; waits for it."""
        ...


class Host(Protocol):
    """What stands at the other end of infeed, outfeed and host transfers."""

    def infeed(self, shape: Shape, config: str, device: int) -> Value:
        """The next value for a device. Raises EvaluationError where there is none."""
        ...

    def outfeed(self, shape: Shape, value: Value, config: str, device: int) -> None:
        """Takes a value from a device."""
        ...


@dataclass(frozen=True)
class EvaluationOptions:
    """How to evaluate."""

    step_limit: int = 1_000_000
    """Iterations of all while loops together before the run is given up."""
    memory_limit: int | None = None
    """Bytes that live values may take; None is four fifths of what the machine has free."""
    flush_subnormals: bool = False
    """Treat subnormal operands and results of f32, f64 and bf16 arithmetic as zeros, as XLA:CPU's kernels do."""
    elided: str | ElidedSource = "error"
    """Where the values of a constant printed ``{...}`` come from: ``error``, ``random`` (by seed and name) or a
    function of the instruction."""
    seed: int = 0
    """Seed of everything that is drawn at random."""
    opaque: frozenset[str] = frozenset()
    """Custom-call targets whose results are drawn at random instead of computed."""
    custom_calls: Mapping[str, Prepare] = field(default_factory=lambda: MappingProxyType({}))
    """Further custom-call targets, looked up before the built-in ones."""
    kernels: KernelReader | None = None
    """Reads the kernels that custom calls carry; None leaves them uncomputed."""
    mesh: Mesh | None = None
    """The devices that run the program; None for a program that one device runs alone."""
    host: Host | None = None
    """Answers infeed and takes outfeed; None refuses both."""
    noise: int | None = None
    """Seed of a random error of one rounding that every arithmetic result gets, to see what rounding alone can do to
    the outcome; None computes as exactly as the types allow."""
    substitute: Callable[[HloInstruction, Value], Value] | None = None
    """Gives what takes the place of every instruction's value, parameters and constants left out."""
    observer: Observer | None = None
    """Called with every instruction that runs and its value, in order; inside loops once per iteration."""


class Machine(Protocol):
    """What a kernel may use while it is prepared and while it runs."""

    @property
    def options(self) -> EvaluationOptions:
        """The options of the run."""
        ...

    def function(self, computation: HloComputation) -> Kernel:
        """The computation as a function of its parameters' values."""
        ...

    def elementwise(self, computation: HloComputation) -> Kernel:
        """A computation on scalars as a function of arrays that broadcast together; result leaves have their shape."""
        ...

    def count_step(self, instruction: HloInstruction) -> None:
        """Count one loop iteration. Raises EvaluationError past the limit."""
        ...


Prepare: TypeAlias = "Callable[[HloInstruction, Machine], Kernel]"
"""Works out everything that does not depend on operand values and returns the kernel.

Raises UnsupportedError where this version cannot compute the instruction.
"""


class InstructionUnsupported(UnsupportedError):
    """An instruction that the evaluator does not compute."""

    def __init__(self, instruction: HloInstruction, reason: str = "") -> None:
        text = f"cannot evaluate %{instruction.name}: {instruction.opcode}"
        super().__init__(f"{text} {reason}" if reason else f"{text} is not supported")
        self.instruction_name = instruction.name
        """Name without ``%``, so that a caller that has the text can find the line."""


class TooLargeError(UnsupportedError):
    """A program that takes more memory than there is."""


class InstructionFailed(EvaluationError):
    """An instruction whose operands or attributes make no sense together, or that ran into a limit."""

    def __init__(self, instruction: HloInstruction, reason: str) -> None:
        super().__init__(f"%{instruction.name} ({instruction.opcode}): {reason}")
        self.instruction_name = instruction.name
        """Name without ``%``."""


def elided_error(node: HloInstruction) -> EvaluationError:
    """A constant whose values the text leaves out, where nobody knows them."""
    return EvaluationError(
        f"the values of constant %{node.name} {node.shape.to_text(layout=False)} are elided ({{...}}) in this text",
        hint="dump with xla_dump_large_constants, or ask for random ones",
    )


def leaves(value: Value) -> Iterator[Array | Token]:
    """The non-tuple parts of a value in order."""
    if isinstance(value, tuple):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def pack(shape: Shape, parts: Iterator[Value]) -> Value:
    """A value of `shape` from its leaves in order (the reverse of `leaves`)."""
    if shape.is_tuple:
        return tuple(pack(s, parts) for s in shape.tuple_shapes)
    return next(parts)


def zeros(shape: Shape) -> Value:
    """Zeros of a shape, as broadcast views that take no memory."""
    if shape.is_tuple:
        return tuple(zeros(s) for s in shape.tuple_shapes)
    if not shape.is_array:
        return TOKEN
    return np.broadcast_to(np.zeros((), shape.type.dtype), shape.dimensions)


def describe(value: Value) -> str:
    """``float32[2,3]`` for messages."""
    if isinstance(value, tuple):
        return "(" + ", ".join(describe(v) for v in value) + ")"
    if isinstance(value, Token):
        return "token"
    return f"{value.dtype.name}[{','.join(map(str, value.shape))}]"


def as_array(value: Value) -> Array:
    """The value as an array. Raises EvaluationError for a tuple or token."""
    if isinstance(value, (tuple, Token)):
        raise EvaluationError(f"expected an array, got {describe(value)}")
    return value


def normal_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """The dimensions of `rank` that are not among `axes`, in order."""
    taken = set(axes)
    return tuple(d for d in range(rank) if d not in taken)
