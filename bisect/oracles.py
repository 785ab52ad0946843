"""What tells a right result from a wrong one: the evaluator on the input module, recorded outputs, or a user's command.

An oracle looks at one compiled module and says right, wrong (by how much) or that it cannot say. It never raises for a
module that cannot be evaluated: that is an answer too.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from typing import TYPE_CHECKING, Protocol, cast

from hloscope.bisect.running import run_command
from hloscope.bisect.search import Outcome
from hloscope.core.errors import EvaluationError, HloscopeError, UnsupportedError, UsageError
from hloscope.core.runtime import npz
from hloscope.core.runtime.compare import Comparison, Rules, compare, rules_for
from hloscope.core.runtime.evaluator import EvaluationOptions, evaluate, leaves
from hloscope.core.runtime.evaluator.values import Array, Token, Value
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.runtime.mesh import evaluate_on_mesh, needs_mesh
from hloscope.core.text import print_module
from hloscope.core.xla.kernel_ir import read_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.module import HloModule


class Oracle(Protocol):
    """Judges one module."""

    name: str
    """How the user named it."""
    evaluates: bool
    """Whether it computes values, the same every time; otherwise it may be flaky and may know more than values."""

    def add_arrays(self, files: dict[str, tuple[list[Array], list[Array]]]) -> None:
        """Put the inputs and expected outputs among a bundle's files, where it has them."""
        ...

    def judge(self, module: HloModule) -> Outcome:
        """Whether a compiled module still computes the right thing."""
        ...


class ValueOracle:
    """Evaluates a module on fixed inputs and compares with expected outputs."""

    evaluates = True

    def __init__(self, name: str, args: Sequence[Value], expected: Sequence[Array | Token], rules: Rules) -> None:
        self.name = name
        self._args = args
        self._expected = expected
        self._rules = rules

    @staticmethod
    def reference(module: HloModule, args: Sequence[Value]) -> ValueOracle:
        """Expects what the evaluator makes of the module as it came. Raises what the evaluator raises."""
        return ValueOracle("reference", args, evaluated(module, args), rules_for(module))

    @staticmethod
    def recorded(path: str, module: HloModule, args: Sequence[Value]) -> ValueOracle:
        """Expects the outputs in an ``.npz``. Raises UsageError where it has none."""
        outputs = npz.read(path).outputs
        if not outputs:
            raise UsageError("holds no outputs (out_000, out_001, …)", path=path)
        return ValueOracle(path, args, outputs, rules_for(module))

    def add_arrays(self, files: dict[str, tuple[list[Array], list[Array]]]) -> None:
        """What it compares with."""
        given = [leaf for value in self._args for leaf in leaves(value) if not isinstance(leaf, Token)]
        files.setdefault("inputs.npz", (given, []))
        files.setdefault("expected.npz", ([], [one for one in self._expected if not isinstance(one, Token)]))

    def judge(self, module: HloModule) -> Outcome:
        """Evaluate and compare leaf by leaf."""
        try:
            found = evaluated(module, self._args)
        except UnsupportedError as error:
            return Outcome("unknown", str(error))
        except EvaluationError as error:
            return Outcome("failed", f"the module cannot be evaluated: {error}")
        if len(found) != len(self._expected):
            return Outcome("wrong", f"{len(found)} outputs where {len(self._expected)} are expected")
        worst: tuple[int, Comparison] | None = None
        for number, (want, have) in enumerate(zip(self._expected, found, strict=True)):
            if isinstance(want, Token) or isinstance(have, Token):
                continue
            one = compare(want, have, self._rules)
            if not one.within and (worst is None or one.outside > worst[1].outside):
                worst = (number, one)
        return Outcome("right") if worst is None else Outcome("wrong", f"output {worst[0]}: {worst[1]}")


def evaluated(module: HloModule, args: Sequence[Value]) -> Sequence[Array | Token]:
    """A module's flattened results; of one for several devices those of every device, which all get the same arguments.

    Raises what the evaluator raises.
    """
    devices = module.num_partitions * module.replica_count
    options = EvaluationOptions(kernels=read_kernel)
    if devices == 1 or not needs_mesh(module):
        return evaluate(module, args, options=options)
    every = evaluate_on_mesh(module, [args] * devices, options=options)
    return [cast("Array | Token", leaf) for one in every for leaf in one]


class CommandOracle:
    """Runs a user's command on the compiled module's text; exit codes as ``git bisect run`` reads them.

    The file's path takes the place of ``{}``, or comes last where there is none. 0 is right, 125 no answer, 1 to 124
    wrong, anything else (a signal, a crash) failed.
    """

    evaluates = False

    def __init__(self, command: str, timeout: float = 600) -> None:
        self.name = command
        self._words = shlex.split(command)
        self._timeout = timeout
        if not self._words:
            raise UsageError("the oracle's command is empty")

    def add_arrays(self, files: dict[str, tuple[list[Array], list[Array]]]) -> None:
        """It knows no arrays."""

    def judge(self, module: HloModule) -> Outcome:
        """Run the command on the text of the module."""
        handle, path = tempfile.mkstemp(suffix=".hlo", prefix="hloscope-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as out:
                out.write(print_module(module))
            words = [word.replace("{}", path) for word in self._words]
            if words == self._words:
                words.append(path)
            return run_command(words, timeout=self._timeout)
        finally:
            os.unlink(path)


def make_oracle(text: str, module: HloModule, args_path: str | None, seed: int) -> Oracle:
    """The oracle that ``--oracle`` names: ``reference``, a path to an ``.npz``, or a command.

    Inputs come from the ``.npz`` with arguments, from the oracle's own file where that has inputs, else from the seed.
    Raises a HloscopeError of one line for what cannot be used.
    """
    if text == "unoptimised":
        raise UnsupportedError("--oracle unoptimised needs the real XLA as a subject; 'reference' evaluates the module")
    recorded = text if text.endswith(".npz") else None
    if text != "reference" and recorded is None:
        return CommandOracle(text)
    args: Sequence[Value] = ()
    if args_path is not None:
        args = npz.read(args_path).inputs
    elif recorded is not None:
        args = npz.read(recorded).inputs
    if not args:
        args = inputs_for(module.entry, seed)
    try:
        if recorded is not None:
            return ValueOracle.recorded(recorded, module, args)
        return ValueOracle.reference(module, args)
    except HloscopeError as error:
        error.path = error.path or args_path or recorded
        raise
