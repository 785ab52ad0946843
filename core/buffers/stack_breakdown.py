"""The end of the live range report: bytes at the peak as a tree of computations and operation names.

Source: ``openxla/xla:xla/hlo/utils/hlo_stack_trace.cc#FormatStackTraceBreakdown``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule

_NAME = re.compile(r"[a-zA-Z_]\w*", re.ASCII)
_KEY = re.compile(r"\['([^']+)'\]")
_ATTRIBUTE = re.compile(r"\.(\w+)", re.ASCII)


@dataclass(slots=True)
class StackNode:
    """One frame of the tree."""

    name: str
    own: int = 0
    """Bytes of values that end here."""
    total: int = 0
    """Own bytes and those below."""
    children: dict[str, StackNode] = field(default_factory=dict[str, "StackNode"])

    def add_up(self) -> int:
        """Fill in the totals."""
        self.total = self.own + sum(child.add_up() for child in self.children.values())
        return self.total

    def by_size(self) -> list[StackNode]:
        """Children that hold something, largest first."""
        return sorted((one for one in self.children.values() if one.total), key=lambda one: (-one.total, one.name))


def stack_tree(module: HloModule, alive: Sequence[tuple[int, HloValue]]) -> StackNode:
    """The tree of (bytes, value) pairs; a value in a computation with several callers is divided over them."""
    order = {node: number for number, node in enumerate(module.instructions())}
    root = StackNode("")
    for size, value in alive:
        traces = list(_traces(value.instruction, order))
        each, rest = divmod(size, len(traces))
        for number, trace in enumerate(traces):
            if value.index:
                trace[-1] += "{" + ",".join(map(str, value.index)) + "}"
            node = root
            for part in trace:
                node = node.children.setdefault(part, StackNode(part))
            node.own += each + (number < rest)
    root.add_up()
    return root


def breakdown_lines(module: HloModule, alive: Sequence[tuple[int, HloValue]]) -> Iterator[str]:
    """The lines of the report."""
    root = stack_tree(module, alive)
    total = sum(size for size, _ in alive)
    yield f"  Stack trace breakdown for peak usage: {_spaced(total)} bytes"
    left = [total]
    yield from _lines(root, total, left, "  ", last=True)


def _lines(node: StackNode, total: int, left: list[int], prefix: str, *, last: bool) -> Iterator[str]:
    if node.name:
        left[0] -= node.own
        mark = "  " if prefix == "  " else "└── " if last else "├── "
        share = 100.0 * node.total / total if total > 0 else 0.0
        yield (
            f"{prefix}{mark}{node.name} ({share:.1f}%, total: {_spaced(node.total)} bytes, current: {_spaced(node.own)}"
            f" bytes, remaining: {_spaced(left[0])} bytes)"
        )
    children = node.by_size()
    inner = prefix + ("" if not node.name else "    " if last else "│   ")
    for number, child in enumerate(children, 1):
        yield from _lines(child, total, left, inner, last=number == len(children))


def _traces(node: HloInstruction, order: dict[HloInstruction, int]) -> Iterator[list[str]]:
    """Every way from the entry down to an instruction: computations and operation names by turns."""
    own = [node.parent.name, *operation_parts(node.metadata.op_name or node.name)]
    callers = sorted(node.parent.callers, key=lambda one: order[one])
    if not callers:
        yield own
    for caller in callers:
        for path in _traces(caller, order):
            yield [*path, *own]


def operation_parts(name: str) -> list[str]:
    """``params['layer/fc'].w`` as its parts; any other name as it is."""
    found = _NAME.match(name)
    if found is None:
        return [name]
    parts, at, keyed = [found[0]], found.end(), False
    while at < len(name):
        if (key := _KEY.match(name, at)) is not None:
            keyed = True
            parts.extend(key[1].split("/"))
            at = key.end()
        elif (attribute := _ATTRIBUTE.match(name, at)) is not None:
            parts.append(attribute[1])
            at = attribute.end()
        else:
            return [name]
    return parts if keyed else [name]


def _spaced(count: int) -> str:
    return f"{count:,}".replace(",", " ")
