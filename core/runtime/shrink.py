"""Two stages of a program with smaller dimensions, the same ones in both, for what does not fit into memory.

Every large number of a shape, a window, a pad or a slice becomes a small one, the same everywhere, so that all rules of
the instructions hold (`size_rules`): numbers are taken in ascending order, and each becomes what the rules leave when
the others are known, or a small number of its own, which is put off where one taken later then finds no place. Whether
the result is a program shape inference says; where it is not, there is no smaller program. What depends on a size in
another way stays as it is, in both stages; where that may make a difference, `Shrunk.moved` says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.verifier import verify
from hloscope.core.runtime.size_rules import SizeRule, size_rules
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.core.hlo.module import HloModule

LARGE = 64
"""Numbers from here on are replaced."""
_NEW = (6, 10, 14, 15, 21, 22, 26, 33, 34, 35, 38, 39, 46, 51, 55, 57, 58, 62)
"""What they become where no rule says more, the smallest first."""
_SCALES = (0, 64, 32, 16, 8, 4, 2)
"""Tried in turn: numbers from `_NEW`, or the old ones divided, which keeps more ratios."""
_LIMIT = 1 << 14
"""No number above it is tried."""
_RESTARTS = 64
"""How often the order of numbers is changed."""
_SHAPE = re.compile(r"\b((?:pred|token|bf16|[sufc]\d+\w*)\[)([\d,]+)(\])")
_BOUNDS = re.compile(r"(\bslice=\{)([^}]*)(\})")
_SIZES = re.compile(r"(\b(?:dynamic_slice_sizes|slice_sizes|fft_length)=\{)([\d,]*)(\})")
_WINDOW = re.compile(r"(\bwindow=\{)([^}]*)(\})")
_PADDING = re.compile(r"(\bpadding=)([-\d_x]+)(\b)")
_COUNT = re.compile(r"(\b(?:feature_group_count|batch_group_count|k)=)(\d+)(\b)")
_PATTERNS = (_SHAPE, _BOUNDS, _SIZES, _WINDOW, _PADDING, _COUNT)
_CONSTANT = re.compile(r"(\b[su]\d+\[[\d,]*\](?:\{[^}]*\})? constant\()([^)]*)(\))")
"""Integers may be positions: those that are also sizes become what the sizes become."""
_NUMBER = re.compile(r"\d+")
_PADS = re.compile(r"(\bpad(?:ding)?=)([-\d_x]+)(\b)")
_START = re.compile(r"\[(\d+):")
_BY_POSITION = re.compile(r"\b(?:dynamic-slice|dynamic-update-slice|gather|scatter)\(")


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A smaller pair of stages."""

    before: HloModule
    after: HloModule
    sizes: Mapping[int, int]
    """What became of which number."""
    moved: bool
    """Whether positions (of pads, of slices next to indices computed at run time, in constants that only one stage has)
    moved in a way that no rule fixes.

    A disagreement of the small stages then says nothing about the large ones.
    """

    def __str__(self) -> str:
        return ", ".join(f"{old} to {new}" for old, new in self.sizes.items())


def shrink(before: str, after: str) -> Shrunk | None:
    """Both texts with smaller dimensions; None where the instructions do not allow it."""
    texts = tuple(_without_metadata(text) for text in (before, after))
    try:
        modules = [load_module(text) for text in texts]
        rules = [rule for module in modules for rule in size_rules(module)]
        before_faults = [_faults(module) for module in modules]
    except HloscopeError:
        return None
    numbers = {n for text in texts for n in _numbers(text, _PATTERNS)}
    shapes = {n for text in texts for n in _numbers(text, (_SHAPE,))}
    tied = {n for rule in rules if rule.exact for n in _tied(rule, shapes)}
    tried: list[Mapping[int, int]] = []
    for scale in _SCALES:
        sizes, chosen = smaller_sizes(numbers, rules, scale)
        if not sizes or sizes in tried:
            continue
        tried.append(sizes)
        try:
            small = [load_module(_replaced(text, sizes)) for text in texts]
            if [_faults(module) for module in small] == before_faults:
                return Shrunk(small[0], small[1], sizes, _moved(texts, chosen - tied, sizes))
        except HloscopeError:
            continue
    return None


def smaller_sizes(
    numbers: Iterable[int], rules: Iterable[SizeRule] = (), scale: int = 0
) -> tuple[dict[int, int], frozenset[int]]:
    """New numbers for the large ones, and which of them no rule fixed; none where the rules cannot be met.

    With `scale`, numbers that it divides are divided by it where no rule says more.
    """
    order = sorted({n for n in numbers if n >= LARGE})
    about: dict[int, list[SizeRule]] = {}
    for rule in rules:
        for number in rule.numbers:
            about.setdefault(number, []).append(rule)
    for _ in range(_RESTARTS):
        new, chosen, stuck = _solved(order, about, scale)
        if stuck is None:
            return {old: size for old, size in new.items() if size < old}, frozenset(chosen)
        # One that was free to choose follows from the one that could not be met.
        others = chosen & {n for rule in about.get(stuck, ()) for n in rule.numbers if n in new} - {stuck}
        if not others:
            break
        early = max(others)
        order.remove(early)
        order.insert(order.index(stuck) + 1, early)
    return {}, frozenset()


def _solved(
    order: Iterable[int], about: Mapping[int, list[SizeRule]], scale: int
) -> tuple[dict[int, int], set[int], int | None]:
    """New numbers in this order, those that no rule fixed, and the number for which there is none."""
    new: dict[int, int] = {}
    chosen: set[int] = set()
    taken: set[int] = set()

    def get(number: int) -> int:
        if number < 0:
            return -get(-number)
        return new[number] if number >= LARGE else number

    for number in order:
        new[number] = 0
        due = [rule for rule in about.get(number, ()) if all(n < LARGE or n in new for n in rule.numbers)]
        # Different numbers stay different where they can, so that mixed-up dimensions show.
        for candidate in chain(_candidates(number, scale, taken), _candidates(number, scale, set())):
            new[number] = candidate
            if all(rule.holds(get) for rule in due):
                break
        else:
            return new, chosen, number
        taken.add(new[number])
        if not any(rule.exact for rule in due):
            chosen.add(number)
    return new, chosen, None


def _candidates(number: int, scale: int, taken: set[int]) -> Iterator[int]:
    first = [number // scale] if scale and number % scale == 0 and number // scale > 1 else []
    every = chain(first, (n for n in _NEW if n < number), range(1, min(number, _LIMIT) + 1))
    return (n for n in every if n not in taken)


def _tied(rule: SizeRule, shapes: set[int]) -> frozenset[int]:
    """The large numbers of a rule that one size alone fixes."""
    large = frozenset(n for n in rule.numbers if n >= LARGE)
    return large if len(large) == 2 and large & shapes else frozenset()


def _moved(texts: tuple[str, ...], chosen: frozenset[int], sizes: Mapping[int, int]) -> bool:
    kept = [{n for n in _numbers(text, (_CONSTANT,)) if n >= LARGE and n not in sizes} for text in texts]
    if kept[0] != kept[1]:
        return True
    for text in texts:
        if chosen & set(_numbers(text, (_PADS, _BOUNDS))) - set(_numbers(text, (_SHAPE,))):
            return True
        starts = (int(n) for bounds in _BOUNDS.finditer(text) for n in _START.findall(bounds[2]))
        if _BY_POSITION.search(text) and any(n >= LARGE for n in starts):
            return True
    return False


def _numbers(text: str, patterns: Iterable[re.Pattern[str]]) -> Iterator[int]:
    for pattern in patterns:
        for found in pattern.finditer(text):
            yield from (int(n) for n in _NUMBER.findall(found[2]))


def _without_metadata(text: str) -> str:
    return re.sub(r",? metadata=\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\"|\{[^{}]*\})*\}", "", text)


def _replaced(text: str, sizes: Mapping[int, int]) -> str:
    def numbers(found: re.Match[str]) -> str:
        inner = _NUMBER.sub(lambda n: str(sizes.get(int(n[0]), int(n[0]))), found[2])
        return f"{found[1]}{inner}{found[3]}"

    for pattern in (*_PATTERNS, _CONSTANT):
        text = pattern.sub(numbers, text)
    return text


def _faults(module: HloModule) -> int:
    return len(verify(module))
