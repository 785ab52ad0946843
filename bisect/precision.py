"""Whether results differ only because values of a narrow type were kept in a wider one, as XLA may."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import HloscopeError
from hloscope.core.runtime.evaluator import Token, evaluate
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from hloscope.core.runtime.evaluator import Array

_NARROW = re.compile(r"\b(?:f16|bf16|f8\w+)\[")


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
