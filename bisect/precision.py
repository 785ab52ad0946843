"""Whether an executable's results differ only as rounding may make them: elsewhere, or in wider values than written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import HloscopeError
from hloscope.core.runtime.compare import Rules, Sensitivity, compare
from hloscope.core.runtime.evaluator import EvaluationOptions, Token, evaluate
from hloscope.core.runtime.verdicts import NOISY_RUNS
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value

DIGITS = 1e-2
"""Rounding is no excuse for a difference of more than this part of a result's largest element: no digit is left."""

_NARROW = re.compile(r"\b(?:f16|bf16|f8\w+)\[")


def moves(module: HloModule, args: Sequence[Value]) -> tuple[Sensitivity, ...]:
    """How far rounding errors move each of a module's results; empty where it cannot be evaluated."""
    try:
        runs = [
            [one for one in evaluate(module, args, options=options) if not isinstance(one, Token)]
            for options in (EvaluationOptions(), *(EvaluationOptions(noise=number) for number in range(NOISY_RUNS)))
        ]
    except HloscopeError:
        return ()
    return tuple(Sensitivity.of(one, [run[at] for run in runs[1:]]) for at, one in enumerate(runs[0]))


def difference(
    expected: Sequence[Array], results: Sequence[Array], rules: Rules, moved: Sequence[Sensitivity] = ()
) -> tuple[bool, str]:
    """Whether results are right, and how they differ: out of bounds, or within what rounding was seen to do alone.

    With `moved` an element may be as far off as rounding errors move it, as long as digits of its result agree.
    """
    if len(results) != len(expected):
        return False, f"{len(results)} outputs where {len(expected)} are expected"
    excused = ""
    for number, (want, have) in enumerate(zip(expected, results, strict=True)):
        one = compare(want, have, rules)
        if one.within:
            continue
        said = f"output {number}: {one}"
        if len(moved) != len(expected) or one.mismatch or not compare(want, have, rules, moved[number]).within:
            return False, said
        largest = max(_largest(want), _largest(have))
        if not one.max_abs <= DIGITS * largest:
            return False, f"{said}; rounding errors move it as far, but no digit is left"
        excused = excused or f"{said}; rounding errors were seen to move it by {moved[number].farthest:g}"
    return True, excused


def _largest(array: Array) -> float:
    with np.errstate(all="ignore"):
        wide = np.abs(array.astype(np.complex128))
    return float(np.max(wide, initial=0, where=np.isfinite(wide)))


def excess_precision(
    text: str, inputs: Sequence[Array], expected: Sequence[Array], results: Sequence[Array]
) -> str | None:
    """What says that results are those of wider intermediate values, in one sentence; None where they are not.

    The module is evaluated once more with every f16, bf16 and f8 as f32. An executable that keeps some values wide and
    rounds others lies no farther from what is expected than that by about once (bound: twice that distance, and one
    rounding). ``xla_allow_excess_precision``, which is on unless it is switched off, permits it.
    """
    if _NARROW.search(text) is None:
        return None
    try:
        module = load_module(_NARROW.sub("f32[", text))
        given = [one.astype(np.float32) if _narrow(one) else one for one in inputs]
        wide = [one for one in evaluate(module, given) if not isinstance(one, Token)]
    except (HloscopeError, ValueError):
        return None
    if not len(wide) == len(expected) == len(results):
        return None
    farthest = moved = 0.0
    for want, free, have in zip(expected, wide, results, strict=True):
        if not (want.shape == free.shape == have.shape):
            return None
        if not _narrow(want):
            if want.dtype.kind not in "fc" and not np.array_equal(want, have):
                return None
        with np.errstate(all="ignore"):
            a, b, c = (one.astype(np.complex128) for one in (want, free, have))
            allowed = 2 * np.abs(b - a) + np.abs(b) * _epsilon(want)
            off = np.abs(c - a)
            fine = (off <= allowed) | (np.isnan(a) & np.isnan(c)) | ~np.isfinite(allowed) | (a == c)
        if not fine.all():
            return None
        farthest = max(farthest, float(np.max(off, initial=0, where=np.isfinite(off))))
        moved = max(moved, float(np.max(np.abs(b - a), initial=0, where=np.isfinite(b - a))))
    return (
        f"the results are those of wider intermediate values: all in f32, the module gives up to {moved:g} other "
        f"results, and XLA:CPU's are off by at most {farthest:g}, within twice that everywhere "
        "(xla_allow_excess_precision permits it)"
    )


def _narrow(array: Array) -> bool:
    return array.dtype.name in ("float16", "bfloat16") or array.dtype.name.startswith("float8")


def _epsilon(array: Array) -> float:
    if array.dtype.kind not in "fcV":
        return 0.0
    import ml_dtypes

    return float(ml_dtypes.finfo(array.dtype).eps)


_PRODUCT = re.compile(r"^\s*(%[\w.]+) = fmul ", re.M)
_SUM = re.compile(r"^\s*%[\w.]+ = f(?:add|sub) [^%\n]*(%[\w.]+), (%[\w.]+)?", re.M)


def fused_products(folder: str) -> str | None:
    """What a dump's LLVM code shows of products that feed sums: code generation may round both at once.

    None where there is no such code or no such pair. XLA:CPU lets LLVM's back end contract (``AllowFPOpFusion``), which
    neither the HLO nor the LLVM code says.
    """
    found = 0
    names: list[str] = []
    for path in sorted(Path(folder).rglob("*.ir-with-opt.ll")):
        for function in path.read_text("utf-8", "replace").split("\ndefine ")[1:]:
            products = set(_PRODUCT.findall(function))
            pairs = sum(bool(products & {one[1], one[2]}) for one in _SUM.finditer(function))
            if pairs:
                found += pairs
                names.append(path.name)
    if not found:
        return None
    return (
        f"in {names[0]} {found} sum{'s' if found > 1 else ''} of a product: code generation may do both with one "
        "rounding (fused multiply-add), which no stage says"
    )
