"""Two stages of a program with smaller dimensions, the same ones in both, for what does not fit into memory.

Sizes are replaced throughout: a product of two other sizes by their new product, so that reshapes stay possible, any
other large size by a small number of its own. Whether the instructions allow it shape inference says: where some shape
does not follow from its operands any more, there is no smaller program. What depends on a size in another way (a
constant that is compared with positions) stays as it is, in both stages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.verifier import verify
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hloscope.core.hlo.module import HloModule

LARGE = 64
"""Sizes from here on are replaced."""
_NEW = (6, 10, 14, 15, 21, 22, 26, 33, 34, 35, 38, 39, 46, 51, 55, 57, 58, 62)
"""What they become, the smallest first."""
_SHAPE = re.compile(r"\b((?:pred|token|bf16|[sufc]\d+\w*)\[)([\d,]+)(\])")
_BOUNDS = re.compile(r"(\bslice=\{)([^}]*)(\})")
_SIZES = re.compile(r"(\b(?:dynamic_slice_sizes|slice_sizes)=\{)([\d,]*)(\})")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A smaller pair of stages."""

    before: HloModule
    after: HloModule
    sizes: Mapping[int, int]
    """What became of which size."""

    def __str__(self) -> str:
        return ", ".join(f"{old} to {new}" for old, new in self.sizes.items())


def shrink(before: str, after: str) -> Shrunk | None:
    """Both texts with smaller dimensions; None where the instructions do not allow it."""
    texts = before, after
    sizes = smaller_sizes(
        {int(n) for text in texts for found in _SHAPE.finditer(text) for n in found[2].split(",") if n}
    )
    if not sizes:
        return None
    try:
        modules = [load_module(_replaced(text, sizes)) for text in texts]
        faults = [_faults(module) for module in modules]
        if any(faults) and faults != [_faults(load_module(text)) for text in texts]:
            return None
    except HloscopeError:
        return None
    return Shrunk(modules[0], modules[1], sizes)


def smaller_sizes(sizes: Iterable[int]) -> dict[int, int]:
    """New sizes for the large ones; empty where there are none, or too many to tell apart."""
    every = sorted(set(sizes))
    new = {size: size for size in every if size < LARGE}
    fresh = iter(_NEW)
    for size in every:
        if size < LARGE:
            continue
        factors = [a for a in every if 1 < a < size and size % a == 0 and size // a in new]
        if factors:
            largest = factors[-1]
            new[size] = new[largest] * new[size // largest]
            continue
        given = next(fresh, None)
        if given is None:
            return {}
        new[size] = given
    return {size: new[size] for size in every if size >= LARGE and new[size] < size}


def _replaced(text: str, sizes: Mapping[int, int]) -> str:
    def numbers(found: re.Match[str]) -> str:
        inner = _NUMBER.sub(lambda n: str(sizes.get(int(n[0]), int(n[0]))), found[2])
        return f"{found[1]}{inner}{found[3]}"

    text = re.sub(r",? metadata=\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\"|\{[^{}]*\})*\}", "", text)
    for pattern in (_SHAPE, _BOUNDS, _SIZES):
        text = pattern.sub(numbers, text)
    return text


def _faults(module: HloModule) -> int:
    return len(verify(module))
