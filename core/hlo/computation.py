"""HloComputation: an ordered set of instructions with parameters and a root.

Source: ``openxla/xla:xla/hlo/ir/hlo_computation.cc`` (AddInstruction, RemoveInstruction, ReplaceInstruction,
MakeInstructionPostOrder).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import InternalError
from hloscope.core.hlo.instruction import HloInstruction, metadata_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hloscope.core.hlo.module import HloModule


class HloComputation:
    """A computation of a module. Instructions keep the order in which they were added (or read)."""

    __slots__ = (
        "_callers", "_instructions", "_module", "_name", "_order", "_parameters", "_read_version", "_root",
        "execution_thread", "synthetic", "version",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self._name = name
        self._instructions: dict[HloInstruction, None] = {}
        self._parameters: list[HloInstruction] = []
        self._root: HloInstruction | None = None
        self._module: HloModule | None = None
        self._callers: dict[HloInstruction, int] = {}
        self._order: tuple[int, list[HloInstruction]] | None = None  # version and post order
        self.execution_thread: str = ""
        """Name of the thread that runs it; empty for the main one."""
        self._read_version = -1
        self.synthetic = False
        """Made by the reader for an asynchronous instruction in the sugared form; not in the text."""
        self.version = 0
        """Grows with every change, so that readers can keep what they worked out."""

    def __repr__(self) -> str:
        return f"<computation %{self._name}, {len(self._instructions)} instructions>"

    def __iter__(self) -> Iterator[HloInstruction]:
        return iter(tuple(self._instructions))

    def __len__(self) -> int:
        return len(self._instructions)

    def __contains__(self, instruction: object) -> bool:
        return instruction in self._instructions

    # ---------------------------------------------------------------- facts
    @property
    def name(self) -> str:
        """Name without ``%``."""
        return self._name

    @property
    def module(self) -> HloModule:
        """The module it is in. Raises InternalError while it is in none."""
        if self._module is None:
            raise InternalError(f"computation {self._name} is in no module")
        return self._module

    @property
    def module_or_none(self) -> HloModule | None:
        """The module, None while it is in none."""
        return self._module

    @property
    def instructions(self) -> tuple[HloInstruction, ...]:
        """Instructions in list order."""
        return tuple(self._instructions)

    def instruction_names(self) -> list[str]:
        """Names of all instructions, in list order."""
        return [instruction.name for instruction in self._instructions]

    @property
    def root(self) -> HloInstruction:
        """The instruction whose value is the result. Raises InternalError while none is set."""
        if self._root is None:
            raise InternalError(f"computation {self._name} has no root")
        return self._root

    @property
    def root_or_none(self) -> HloInstruction | None:
        """The root, None while none is set."""
        return self._root

    @property
    def has_root(self) -> bool:
        """Whether a root is set."""
        return self._root is not None

    @property
    def parameters(self) -> tuple[HloInstruction, ...]:
        """Parameters by number."""
        return tuple(self._parameters)

    @property
    def callers(self) -> tuple[HloInstruction, ...]:
        """Instructions (in computations) that call this one, each once."""
        return tuple(c for c in self._callers if c.in_computation)

    @property
    def is_entry(self) -> bool:
        """True for the module's entry computation."""
        return self._module is not None and self._module.has_entry and self._module.entry is self

    @property
    def is_fusion(self) -> bool:
        """True where a fusion instruction calls it."""
        return any(c.opcode == "fusion" for c in self._callers)

    def reaches(self, callee: HloComputation) -> bool:
        """Whether this computation calls another one, or calls one that does."""
        stack: list[HloComputation] = [self]
        seen: set[HloComputation] = {self}
        while stack:
            for node in stack.pop():
                for one in node.called_computations:
                    if one is callee:
                        return True
                    if one not in seen:
                        seen.add(one)
                        stack.append(one)
        return False

    # ---------------------------------------------------------------- edits
    def add(self, instruction: HloInstruction, *, keep_name: bool = False) -> HloInstruction:
        """Add a node at the end and return it; its name is made unique in the module unless `keep_name`."""
        if instruction.in_computation:
            raise InternalError(f"{instruction!r} is in a computation already")
        names = self._module.instruction_names if self._module is not None else None
        instruction.attach(self)
        self._instructions[instruction] = None
        if names is not None:
            if keep_name:
                names.reserve(instruction.name)
            else:
                instruction.set_name_unchecked(names.unique(instruction.name))
        if instruction.opcode == "parameter":
            self._place_parameter(instruction)
        self.version += 1
        return instruction

    def load(self, instructions: Iterable[HloInstruction]) -> bool:
        """Take over all nodes of an empty computation that has just been read; they name it as their parent already.

        Returns whether the parameters stand in the order of their numbers, without holes.
        """
        self._instructions = dict.fromkeys(instructions)
        self._parameters = [node for node in self._instructions if node.opcode == "parameter"]
        numbers = [node.payload for node in self._parameters]
        in_order = numbers == [str(i) for i in range(len(numbers))]
        if not in_order:
            self._parameters.sort(key=lambda node: node.parameter_number)
        self.version += 1
        return in_order

    def mark_read(self) -> None:
        """Note that this is what the text holds, each operand before its users."""
        self._read_version = self.version

    @property
    def is_as_read(self) -> bool:
        """Whether nothing has changed since a text was read that defines every operand before its users."""
        return self._read_version == self.version

    def _place_parameter(self, instruction: HloInstruction) -> None:
        number = instruction.parameter_number
        at = len(self._parameters)
        while at > 0 and self._parameters[at - 1].parameter_number > number:
            at -= 1
        self._parameters.insert(at, instruction)

    def set_root(self, instruction: HloInstruction) -> None:
        """Make an instruction of this computation its root."""
        if instruction not in self._instructions:
            raise InternalError(f"{instruction!r} is not in computation {self._name}")
        if self._root is not None:
            self._root.line_cache = self._root.source_line = None
        self._root = instruction
        instruction.line_cache = instruction.source_line = None
        self.version += 1

    def remove(self, instruction: HloInstruction) -> None:
        """Remove a dead node: no users, not the root, no control edges. Raises InternalError otherwise."""
        if instruction.user_count:
            raise InternalError(f"{instruction!r} still has users")
        if instruction is self._root:
            raise InternalError(f"{instruction!r} is the root of {self._name}")
        if instruction.control_predecessors or instruction.control_successors:
            raise InternalError(f"{instruction!r} has control edges")
        names = self._module.instruction_names if self._module is not None else None
        if instruction.opcode == "parameter":
            self._parameters.remove(instruction)
        instruction.detach_operands()
        del self._instructions[instruction]
        for computation in instruction.called_computations:
            computation.drop_caller(instruction)
        instruction.attach(None)
        if names is not None:
            names.release(instruction.name)
        self.version += 1

    def remove_with_dead_operands(self, instruction: HloInstruction) -> int:
        """Remove a dead node and then every operand that this leaves dead; the number removed is returned.

        Parameters, side effects and nodes with control edges stay. Source: ``RemoveInstructionAndUnusedOperands``.
        """
        removed = 0
        worklist = [instruction]
        while worklist:
            node = worklist.pop()
            if not node.in_computation or not self.is_removable(node) or node.user_count or node is self._root:
                continue
            operands = dict.fromkeys(node.operands)
            self.remove(node)
            removed += 1
            worklist.extend(operands)
        return removed

    def is_removable(self, instruction: HloInstruction) -> bool:
        """Whether a node may go once it is dead: no side effect, no control edge, no parameter."""
        if instruction.control_predecessors or instruction.control_successors:
            return False
        return instruction.opcode != "parameter" and not instruction.has_side_effect

    def replace(self, old: HloInstruction, new: HloInstruction, *, relay_control: bool = False) -> HloInstruction:
        """Put `new` in place of `old`: users and root move over, `old` and operands that became dead are removed.

        `new` is added if it is in no computation yet. It takes `old`'s metadata, frontend attributes and sharding where
        it has none, and its name where both have one opcode. Shapes must be compatible apart from layout.
        Raises InternalError where they are not, or where control edges would be lost.
        """
        if not old.shape.compatible(new.shape):
            raise InternalError(f"replacing {old!r} by {new!r} changes the shape")
        fresh = not new.in_computation
        if fresh:
            self.add(new)
        if relay_control:
            for before in old.control_predecessors:
                before.add_control_dependency(new)
            for after in old.control_successors:
                new.add_control_dependency(after)
            old.drop_all_control_dependencies()
        elif old.control_predecessors or old.control_successors:
            raise InternalError(f"replacing {old!r} would lose control edges")
        metadata = metadata_of(old)
        if metadata is not None and new.raw_attrs.get("metadata") is None and new.opcode != "parameter":
            new.set_attr("metadata", metadata)
        for key in ("frontend_attributes", "sharding"):
            text = old.raw_attrs.get(key)
            if text is not None and new.raw_attrs.get(key) is None and fresh:
                new.set_attr(key, text)
        take_name = fresh and old.opcode == new.opcode
        old.replace_all_uses_with(new)
        name = old.name
        if self.is_removable(old):
            self.remove_with_dead_operands(old)
            if take_name and not old.in_computation:
                new.rename(name)
        return new

    # ---------------------------------------------------------------- order
    def post_order(self) -> list[HloInstruction]:
        """Operands before users, in XLA's observable order.

        From each instruction without users, in list order, a depth-first walk that takes operand 0 first and control
        predecessors before operands. It is kept until the next change. Raises InternalError on a cycle. Source:
        ``MakeInstructionPostOrder``.
        """
        if self._order is None or self._order[0] != self.version:
            self._order = (self.version, self._make_post_order())
        return self._order[1].copy()

    def _make_post_order(self) -> list[HloInstruction]:
        order: list[HloInstruction] = []
        state: dict[HloInstruction, bool] = {}  # False: being visited, True: done
        for start in self._instructions:
            if start.user_count:
                continue
            stack = [start]
            while stack:
                node = stack[-1]
                done = state.get(node)
                if done is True:
                    stack.pop()
                    continue
                if done is False:
                    stack.pop()
                    state[node] = True
                    order.append(node)
                    continue
                state[node] = False
                for operand in reversed(node.operands):
                    self._push(stack, state, operand)
                for before in node.control_predecessors:
                    self._push(stack, state, before)
        if len(order) != len(self._instructions):
            raise InternalError(f"computation {self._name} has a cycle")
        return order

    def _push(self, stack: list[HloInstruction], state: dict[HloInstruction, bool], node: HloInstruction) -> None:
        seen = state.get(node)
        if seen is False:
            raise InternalError(f"computation {self._name} has a cycle through %{node.name}")
        if seen is None:
            stack.append(node)

    def reorder(self, order: list[HloInstruction]) -> None:
        """Set the list order; `order` must hold exactly the instructions."""
        if len(order) != len(self._instructions) or any(i not in self._instructions for i in order):
            raise InternalError(f"the new order of {self._name} is not a permutation")
        self._instructions = dict.fromkeys(order)
        self.version += 1

    # ---------------------------------------------------------------- for the module and instructions only
    def attach(self, module: HloModule | None) -> None:
        """Set the module; called by `HloModule` alone."""
        self._module = module

    def rename(self, name: str) -> None:
        """Give it another name (made unique in the module); printed lines of callers are dropped."""
        if self._module is not None:
            self._module.computation_names.release(self._name)
            name = self._module.computation_names.unique(name)
        self._name = name
        for caller in self._callers:
            caller.touch()
        self.version += 1

    def set_name_unchecked(self, name: str) -> None:
        """Set the name without asking the module."""
        self._name = name

    def add_caller(self, instruction: HloInstruction) -> None:
        """Note a caller."""
        self._callers[instruction] = self._callers.get(instruction, 0) + 1

    def drop_caller(self, instruction: HloInstruction) -> None:
        """Forget a caller."""
        count = self._callers.get(instruction, 0) - 1
        if count > 0:
            self._callers[instruction] = count
        else:
            self._callers.pop(instruction, None)

    def clone_into(self, target: HloComputation, callees: dict[HloComputation, HloComputation]) -> None:
        """Copy all instructions, names kept, into an empty computation; `callees` maps called computations."""
        made: dict[HloInstruction, HloInstruction] = {}
        for node in self._in_definition_order():
            copy = node.clone_with(operands=[made[o] for o in node.operands])
            for key, group in node.called.items():
                copy.set_called(key, tuple(callees.get(c, c) for c in group))
            made[node] = copy
        for node in self._instructions:
            target.add(made[node], keep_name=True)
        for node, copy in made.items():
            for before in node.control_predecessors:
                made[before].add_control_dependency(copy)
            copy.line_cache, copy.source_line = node.line_cache, node.source_line
        if self._root is not None:
            target.set_root(made[self._root])
            made[self._root].line_cache = self._root.line_cache
            made[self._root].source_line = self._root.source_line
        target.execution_thread = self.execution_thread
        target.synthetic = self.synthetic
        if self.is_as_read:
            target.mark_read()

    def _in_definition_order(self) -> list[HloInstruction]:
        seen: set[HloInstruction] = set()
        for node in self._instructions:
            if any(o not in seen for o in node.operands):
                return self.post_order()
            seen.add(node)
        return list(self._instructions)
