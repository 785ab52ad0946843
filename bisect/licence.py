"""What the flags of a compile permit it to do to values, and whether a difference is no more than that.

XLA:CPU hands its fast-math flags to LLVM, where a NaN or an infinity that need not be honoured may become anything, and
so may what is computed from it. A difference is permitted where the same compile without the permission is right, and
every element that is off is one that such a value reaches. Which ones that are is seen by evaluating the module with
other values in their place. Source: ``openxla/xla:xla/service/llvm_ir/llvm_util.cc#GetCpuFastMathFlags``,
``xla/debug_options_flags.cc#DefaultDebugOptionsIgnoringFlags``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import HloscopeError
from hloscope.core.runtime.compare import Rules, Sensitivity, compare
from hloscope.core.runtime.evaluator import EvaluationOptions, Token, evaluate

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value

_RUNS = 3
"""Evaluations with other values in the place of those that need not be honoured."""
_FAST = "xla_cpu_enable_fast_math"
_DEFAULTS: Mapping[str, bool] = {
    _FAST: False,
    "xla_cpu_fast_math_honor_nans": True,
    "xla_cpu_fast_math_honor_infs": True,
    "xla_cpu_enable_fast_min_max": True,
}
"""What XLA does where nothing is given."""


@dataclass(frozen=True, slots=True)
class Licence:
    """One permission."""

    flag: str
    """The setting that gives it."""
    withdrawn: str
    """The setting that takes it back."""
    meaning: str
    nan: bool = False
    """NaN may become anything."""
    inf: bool = False
    """Infinities may become anything."""
    regroups: bool = False
    """Ordinary values may differ by rounding, too."""

    @property
    def values(self) -> str:
        """What may become anything, in words."""
        return " or ".join([*(["NaN"] if self.nan else []), *(["infinity"] if self.inf else [])])


def licences(flags: Sequence[str]) -> list[Licence]:
    """The permissions that flags give, the narrower ones first; of a flag given twice the later one counts."""
    on = dict(_DEFAULTS)
    for flag in flags:
        name, _, value = flag.removeprefix("--").partition("=")
        if name in on:
            on[name] = value.strip("'\"").lower() not in ("false", "0")
    nans, infs, fewer = "xla_cpu_fast_math_honor_nans", "xla_cpu_fast_math_honor_infs", "xla_cpu_enable_fast_min_max"
    found: list[Licence] = []
    if on[_FAST] and not on[nans]:
        found.append(Licence(f"--{nans}=false", f"--{nans}=true", "NaN need not be honoured", nan=True))
    if on[_FAST] and not on[infs]:
        found.append(Licence(f"--{infs}=false", f"--{infs}=true", "infinities need not be honoured", inf=True))
    if on[fewer]:
        found.append(Licence(f"--{fewer}=true", f"--{fewer}=false", "min and max need not pass NaN on", nan=True))
    if on[_FAST]:
        said = "sums and products may be regrouped, so that what overflows may not, and zeros may lose their sign"
        found.append(Licence(f"--{_FAST}=true", f"--{_FAST}=false", said, nan=True, inf=True, regroups=True))
    return found


def permitted(
    flags: Sequence[str],
    right_with: Callable[[Sequence[str]], bool],
    module: HloModule,
    args: Sequence[Value],
    expected: Sequence[Array],
    results: Sequence[Array],
    rules: Rules,
    moved: Sequence[Sensitivity] = (),
) -> tuple[bool, str]:
    """Whether flags permit the difference of results from what is expected, and what says so.

    `right_with` tells whether the same compile with further flags is right; `moved` is how far rounding errors move
    the results. The text is empty where no permission has to do with it.
    """
    if [a.shape for a in expected] != [b.shape for b in results]:
        return False, ""
    for one in licences(flags):
        try:
            reached = _reached(module, args, one)
        except HloscopeError:
            return False, ""  # then the stages cannot be evaluated either, and that is told
        # Where no NaN or infinity is, leave to change them is no reason.
        if (one.regroups or any(each.any() for each in reached)) and right_with([one.withdrawn]):
            return _within(one, reached, expected, results, rules, moved)
    return False, ""


def _within(
    one: Licence,
    reached: Sequence[Array],
    expected: Sequence[Array],
    results: Sequence[Array],
    rules: Rules,
    moved: Sequence[Sensitivity],
) -> tuple[bool, str]:
    """Whether nothing is off but what may be, and what says so."""
    start = f"{one.flag} ({one.meaning}) makes the difference: with {one.withdrawn} the results are right"
    off = 0
    for number, (want, have, free) in enumerate(zip(expected, results, reached, strict=True)):
        mended = np.where(free, want, have)
        more = (moved[number],) if len(moved) == len(expected) else ()
        one_off = compare(want, mended, rules)
        if not one_off.within and not (more and compare(want, mended, rules, *more).within):
            return False, f"{start}; but elements that no {one.values} reaches are off: output {number}: {one_off}"
        off += int(np.count_nonzero(free & _differ(want, have)))
    total = sum(free.size for free in reached)
    free_ones = sum(int(np.count_nonzero(free)) for free in reached)
    if off == 0:
        bound = max((each.farthest for each in moved), default=0.0)
        return True, f"{start}; every element is within what rounding errors move it (bound: {bound:g} at most)"
    return True, (
        f"{start}; bound: the {free_ones} of {total} elements that {one.values} reaches may have any value ({off} do "
        "differ), the others are within rounding"
    )


def _reached(module: HloModule, args: Sequence[Value], licence: Licence) -> list[Array]:
    """Of every result the elements that depend on values that need not be honoured. Raises what evaluating raises."""

    def outputs(options: EvaluationOptions, given: Sequence[Value]) -> list[Array]:
        return [one for one in evaluate(module, given, options=options) if not isinstance(one, Token)]

    plain = outputs(EvaluationOptions(), args)
    found = [np.zeros(one.shape, bool) for one in plain]
    for seed in range(_RUNS):
        source = np.random.default_rng(seed)

        def instead(value: Value, source: np.random.Generator = source) -> Value:
            if isinstance(value, tuple):
                return tuple(instead(part) for part in value)
            return value if isinstance(value, Token) else _without(value, licence, source)

        def at(_: HloInstruction, value: Value, instead: Callable[[Value], Value] = instead) -> Value:
            return instead(value)

        other = outputs(EvaluationOptions(substitute=at), [instead(one) for one in args])
        for number, (one, two) in enumerate(zip(plain, other, strict=True)):
            found[number] |= _differ(one, two)
    return found


def _without(array: Array, licence: Licence, source: np.random.Generator) -> Array:
    """An array with ordinary numbers where values need not be honoured; the same one where there are none."""
    if array.dtype.kind in "biu":
        return array
    wide = array.astype(np.complex128)
    free = (np.isnan(wide) & licence.nan) | (np.isinf(wide) & licence.inf)
    if not free.any():
        return array
    return np.where(free, source.uniform(0.5, 2.0, array.shape).astype(array.dtype), array)


def _differ(one: Array, two: Array) -> Array:
    with np.errstate(all="ignore"):
        a, b = one.astype(np.complex128), two.astype(np.complex128)
        return (a != b) & ~(np.isnan(a) & np.isnan(b))
