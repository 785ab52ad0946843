"""The graph of phi values, and how needless ones are found.

A phi stands where control flow joins: a loop's parameter holds the initial value or what the body gave back. One whose
inputs are all the same value is that value, and so is a closed ring of phis that only one other value enters.
Source: ``openxla/xla:xla/service/hlo_phi_graph.cc``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.analysis.dataflow_values import HloValue


class _Node:
    """A value in the graph."""

    __slots__ = ("aliases", "dead", "operands", "phi", "users", "value")

    def __init__(self, value: HloValue) -> None:
        self.value = value
        self.operands: list[_Node] = []
        self.users: list[_Node] = []
        self.aliases: list[HloValue] = [value]
        """The values that this node stands for by now."""
        self.phi = False
        self.dead = False


class PhiGraph:
    """Phis and their inputs."""

    def __init__(self) -> None:
        self._nodes: dict[HloValue, _Node] = {}
        self._order: list[_Node] = []

    def register(self, phi: HloValue, inputs: Sequence[HloValue]) -> None:
        """Note a phi, or give it other inputs."""
        node = self._node(phi)
        node.phi = True
        node.operands = [self._node(one) for one in inputs]

    def has_inputs(self, phi: HloValue, inputs: Sequence[HloValue]) -> bool:
        """Whether a registered phi has these inputs, as a set."""
        return {one.value for one in self._nodes[phi].operands} == set(inputs)

    def replacement(self, phi: HloValue) -> HloValue:
        """The value that stands for a phi after `optimize`; the phi itself where it is needed."""
        return self._nodes[phi].value

    def optimize(self) -> None:
        """Replace needless phis until none is left."""
        for node in self._order:
            for operand in node.operands:
                operand.users.append(node)
        changed = True
        while changed:
            changed = False
            checked: set[_Node] = set()
            for node in self._order:
                if not node.phi or node.dead or not node.operands:
                    continue
                node.operands = [one for one in node.operands if one is not node]
                node.users = [one for one in node.users if one is not node]
                if not node.operands:
                    continue
                if all(one is node.operands[0] for one in node.operands):
                    self._replace(node, node.operands[0])
                    changed = True
                elif node not in checked:
                    changed |= self._close(node, checked)

    def _node(self, value: HloValue) -> _Node:
        node = self._nodes.get(value)
        if node is None:
            node = self._nodes[value] = _Node(value)
            self._order.append(node)
        return node

    def _close(self, start: _Node, checked: set[_Node]) -> bool:
        """Replace the phis that `start` is made of, where a single value enters them."""
        work, seen, source = deque([start]), dict[_Node, None](), None
        while work:
            node = work.popleft()
            if node in seen:
                continue
            seen[node] = None
            checked.add(node)
            work.extend(node.operands)
            if not node.phi:
                if source is not None and source is not node:
                    return False
                source = node
        if source is None:
            return False
        for node in seen:
            if node.phi:
                self._replace(node, source)
        return True

    def _replace(self, node: _Node, by: _Node) -> None:
        if node.dead:
            return
        while by.dead:
            by = self._nodes[by.value]
        for user in node.users:
            user.operands = [by if one is node else one for one in user.operands]
        for operand in node.operands:
            operand.users = [by if one is node else one for one in operand.users]
        for value in node.aliases:
            self._nodes[value] = by
        by.aliases.extend(node.aliases)
        node.aliases = []
        node.dead = True
