"""HloInstruction: a node of the graph, with operand and user lists that stay right by construction.

Nodes have identity (``is``), not value equality. Everything that changes a node goes through a method here or of its
computation, which keeps both ends of each edge, and drops the cached printed line of the node and of those that name
it. Source: ``openxla/xla:xla/hlo/ir/hlo_instruction.h``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hloscope.core.errors import InternalError
from hloscope.core.hlo.attributes import ATTRIBUTES, CALLED, CONTROL, OpMetadata
from hloscope.core.hlo.literal import Literal, format_scalar, parse_literal
from hloscope.core.hlo.opcodes import Opcode, lookup

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Sequence

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.hlo.stack_frames import Frame


_NONE: dict[str, Any] = {}
"""Stands for no typed values and no called computations, so that most nodes carry no dictionary; never written."""


_SHOWS_OPERANDS = frozenset({"compare", "map", "outfeed"})
"""Opcodes whose printed attributes follow from the shapes of their operands."""

AttributeParts = tuple[Mapping[str, str | None], Mapping[str, str | None]]
"""Attributes as the reader found them: what stands before the metadata and what stands behind it; shared by nodes."""


class HloInstruction:
    """One instruction. Make it, then add it to a computation; until then it has no parent."""

    __slots__ = (
        "_attrs",
        "_called",
        "_control",
        "_literal",
        "_name",
        "_opcode",
        "_operands",
        "_parent",
        "_payload",
        "_read",
        "_shape",
        "_source",
        "_typed",
        "_users",
        "line_cache",
        "succ",
    )

    def __init__(
        self,
        opcode: str,
        shape: Shape,
        operands: Iterable[HloInstruction] = (),
        *,
        name: str = "",
        attrs: Mapping[str, Any] | None = None,
        called: Mapping[str, HloComputation | Sequence[HloComputation]] | None = None,
        payload: str | None = None,
        literal: Literal | None = None,
        metadata: OpMetadata | str | None = None,
    ) -> None:
        self._name = name or opcode
        self._opcode = opcode
        self._shape = shape
        self._operands: list[HloInstruction] = []
        self._users: HloInstruction | dict[HloInstruction, int] | None = None
        self._parent: HloComputation | None = None
        self._attrs: dict[str, str | None] | AttributeParts = {}
        self._read: re.Match[str] | None = None
        self._typed: dict[str, Any] = _NONE
        self._called: dict[str, tuple[HloComputation, ...]] = _NONE
        self._control: list[HloInstruction] | None = None
        self.succ: dict[HloInstruction, None] | None = None
        """Control successors, kept by `add_control_dependency`; read `control_successors`."""
        self._payload = payload
        self._literal = literal
        self.line_cache: str | None = None
        """The printed line, kept by the printer and dropped by every change; nobody else's business."""
        self._source: str | re.Match[str] | None = None
        for operand in operands:
            self._operands.append(operand)
            operand._add_user(self)
        for key, value in (called or {}).items():
            self.set_called(key, value)
        for key, value in (attrs or {}).items():
            self.set_attr(key, value)
        if metadata is not None:
            self.set_attr("metadata", metadata)

    @classmethod
    def loaded(
        cls,
        name: str,
        opcode: str,
        shape: Shape | None,
        operands: list[HloInstruction],
        attrs: dict[str, str | None] | AttributeParts,
        payload: str | None,
        parent: HloComputation,
        read: re.Match[str] | None = None,
    ) -> HloInstruction:
        """A node as the reader makes it: `operands` and a dictionary `attrs` are taken over; nothing is checked.

        It names `parent` already, which must `load` it. A shape that is None must be set before anybody looks. `read`
        has the groups ``line`` and ``metadata``, whose text is taken when somebody asks; it is needed where `attrs` is
        no dictionary.
        """
        node: HloInstruction = cls.__new__(cls)
        node._name = name
        node._opcode = opcode
        node._shape = shape  # type: ignore[assignment]
        node._operands = operands
        node._users = None
        node._parent = parent
        node._attrs = attrs
        node._typed = node._called = _NONE
        node._control = None
        node.succ = None
        node._payload = payload
        node._literal = None
        node.line_cache = None
        node._read = node._source = read
        for operand in operands:
            users = operand._users
            if users is None:
                operand._users = node
            elif isinstance(users, dict):
                users[node] = users[node] + 1 if node in users else 1
            else:
                operand._users = {node: 2} if users is node else {users: 1, node: 1}
        return node

    @property
    def source_line(self) -> str | None:
        """The line as it was read, until something changes it; what snapshots show of an untouched instruction."""
        source = self._source
        if source is None or isinstance(source, str):
            return source
        self._source = line = source["line"]
        return line

    @staticmethod
    def lines_as_read(nodes: Sequence[HloInstruction]) -> list[str | None]:
        """`source_line` of many."""
        return [text if isinstance(text := node._source, str) else node.source_line for node in nodes]

    @source_line.setter
    def source_line(self, line: str | None) -> None:
        self._source = line

    def __repr__(self) -> str:
        return f"<{self._opcode} %{self._name} {self._shape}>"

    # ---------------------------------------------------------------- facts
    @property
    def name(self) -> str:
        """Name without ``%``, unique in its module for those that passes make."""
        return self._name

    @property
    def opcode(self) -> str:
        """The word of the opcode."""
        return self._opcode

    @property
    def info(self) -> Opcode:
        """The opcode's row in the table."""
        return lookup(self._opcode)

    @property
    def shape(self) -> Shape:
        """Shape of the result."""
        return self._shape

    @shape.setter
    def shape(self, shape: Shape) -> None:
        self._shape = shape
        self.touch()
        for user in self.users:
            if user._opcode in _SHOWS_OPERANDS:
                user.touch()

    @property
    def operands(self) -> tuple[HloInstruction, ...]:
        """Operands in order; one may stand there more than once."""
        return tuple(self._operands)

    def operand(self, number: int) -> HloInstruction:
        """Operand `number`. Raises IndexError."""
        return self._operands[number]

    @property
    def operand_count(self) -> int:
        """Number of operands."""
        return len(self._operands)

    @property
    def users(self) -> tuple[HloInstruction, ...]:
        """Instructions that have this one as an operand, each once, in the order in which they became users."""
        users = self._users
        return tuple(users) if isinstance(users, dict) else () if users is None else (users,)

    @property
    def user_count(self) -> int:
        """Number of distinct users."""
        users = self._users
        return len(users) if isinstance(users, dict) else 0 if users is None else 1

    def use_count(self, user: HloInstruction) -> int:
        """How many operand places of `user` this instruction fills."""
        users = self._users
        return users.get(user, 0) if isinstance(users, dict) else 1 if users is user else 0

    @property
    def parent(self) -> HloComputation:
        """The computation it is in. Raises InternalError for a node that was never added or was removed."""
        if self._parent is None:
            raise InternalError(f"%{self._name} is in no computation")
        return self._parent

    @property
    def parent_or_none(self) -> HloComputation | None:
        """The computation it is in, None before it was added and after it was removed."""
        return self._parent

    @property
    def in_computation(self) -> bool:
        """False before it was added and after it was removed."""
        return self._parent is not None

    @property
    def module(self) -> HloModule:
        """The module it is in."""
        return self.parent.module

    @property
    def is_root(self) -> bool:
        """True for the root of its computation."""
        return self._parent is not None and self._parent.root_or_none is self

    # ---------------------------------------------------------------- constants and parameters
    @property
    def payload(self) -> str | None:
        """What stands in the parentheses where no operands do: a literal's text, a parameter's number."""
        if self._payload is None and self._literal is not None:
            literal = self._literal
            if literal.shape.is_scalar and literal.values is not None:
                self._payload = format_scalar(literal.values[()], literal.shape.type)
            else:
                self._payload = literal.to_text()
        return self._payload

    @property
    def parameter_number(self) -> int:
        """Number of a parameter. Raises InternalError for other opcodes."""
        if self._opcode != "parameter" or self._payload is None:
            raise InternalError(f"%{self._name} is no parameter")
        return int(self._payload)

    def set_parameter_number(self, number: int) -> None:
        """Renumber a parameter; the computation's numbering is the caller's to keep."""
        self._payload = str(number)
        self.touch()

    @property
    def literal(self) -> Literal:
        """Value of a constant, read on first use. Raises ParseError where its text does not fit the shape."""
        if self._literal is None:
            if self._opcode != "constant" or self._payload is None:
                raise InternalError(f"%{self._name} is no constant")
            self._literal = parse_literal(self._payload, self._shape)
        return self._literal

    def is_constant_scalar(self, value: float | int | bool | None = None) -> bool:
        """True for a scalar constant whose value is known (and equals `value`, where one is given)."""
        if self._opcode != "constant" or not self._shape.is_scalar or self.literal.values is None:
            return False
        return value is None or bool(self.literal.values[()] == value)

    # ---------------------------------------------------------------- attributes
    @property
    def raw_attrs(self) -> dict[str, str | None]:
        """Attributes as text in printing order; None for those that the graph holds (called, control). Do not write."""
        attrs = self._attrs
        if isinstance(attrs, dict):
            return attrs
        joined = dict(attrs[0])
        metadata = self._read["metadata"] if self._read is not None else None
        if metadata is not None:
            joined["metadata"] = metadata
        joined.update(attrs[1])
        self._attrs, self._read = joined, None
        return joined

    def attr(self, name: str) -> Any:
        """Typed value of an attribute (text for a name without a type), None where it is absent.

        Raises ParseError where the text cannot be read as that attribute.
        """
        if name in self._typed:
            return self._typed[name]
        text = self.raw_attrs.get(name)
        if text is None:
            return None
        kind = ATTRIBUTES.get(name)
        value = text if kind is None else kind.parse(text)
        self._keep_typed(name, value)
        return value

    def _keep_typed(self, name: str, value: Any) -> None:
        if self._typed is _NONE:
            self._typed = {}
        self._typed[name] = value

    def set_attr(self, name: str, value: Any) -> None:
        """Set an attribute: a string is its text as printed, any other value is formatted; None removes it."""
        if self._typed is not _NONE:
            self._typed.pop(name, None)
        if value is None:
            self.raw_attrs.pop(name, None)
        elif isinstance(value, str):
            self.raw_attrs[name] = value
        else:
            kind = ATTRIBUTES.get(name)
            self.raw_attrs[name] = str(value) if kind is None else kind.format(value)
            if kind is not None:
                self._keep_typed(name, value)
        self.touch()

    def load_attr(self, name: str, text: str) -> None:
        """Set an attribute's text as it was read, without dropping caches (the reader's way in)."""
        self.raw_attrs[name] = text

    def load_payload(self, text: str) -> None:
        """Set what stands in the parentheses, as it was read (the reader's way in): operands that nobody defines."""
        self._payload, self._literal = text, None
        self.line_cache = self._source = None

    @property
    def parts(self) -> tuple[str, str, Shape, list[str], str | None, dict[str, str | None]]:
        """Name, opcode, shape, names of operands, payload and `raw_attrs` in one, for printers of many instructions."""
        attrs = self._attrs
        payload = self._payload if self._literal is None else self.payload
        return (
            self._name, self._opcode, self._shape, [operand._name for operand in self._operands], payload,
            attrs if isinstance(attrs, dict) else self.raw_attrs,
        )  # fmt: skip

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The ``dimensions`` attribute, empty where it is absent."""
        return self.attr("dimensions") or ()

    @property
    def metadata(self) -> OpMetadata:
        """The metadata; an empty one where there is none."""
        return self.attr("metadata") or OpMetadata()

    @property
    def source_frames(self) -> tuple[Frame, ...]:
        """The Python stack of the instruction, innermost first, from the module's tables."""
        metadata = self.metadata
        if self._parent is not None and metadata.stack_frame_id:
            return self.module.stack_frames.resolve(metadata.stack_frame_id)
        if metadata.source_file:
            from hloscope.core.hlo.stack_frames import Frame

            line = metadata.source_line
            return (Frame(metadata.source_file, "", line, 0, line, 0),)
        return ()

    # ---------------------------------------------------------------- called computations
    @property
    def called(self) -> Mapping[str, tuple[HloComputation, ...]]:
        """Called computations by attribute name."""
        return self._called

    @property
    def called_computations(self) -> tuple[HloComputation, ...]:
        """All called computations in attribute order."""
        if not self._called:
            return ()
        return tuple(c for group in self._called.values() for c in group)

    def callee(self, name: str | None = None) -> HloComputation:
        """The one computation under attribute `name` (or the only one at all). Raises InternalError if none is."""
        group = self.called_computations if name is None else self._called.get(name, ())
        if len(group) != 1:
            raise InternalError(f"%{self._name} has {len(group)} computations under {name or 'its attributes'}")
        return group[0]

    def set_called(self, name: str, value: HloComputation | Sequence[HloComputation]) -> None:
        """Set the computation(s) of an attribute; callers of both old and new ones are kept."""
        new = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        for old in self._called.get(name, ()):
            old.drop_caller(self)
        if self._called is _NONE:
            self._called = {}
        self._called[name] = new  # type: ignore[assignment]
        self.raw_attrs[name] = None
        for computation in self._called[name]:
            computation.add_caller(self)
        self.touch()

    def drop_called(self, name: str) -> None:
        """Remove an attribute that names computations."""
        for old in self._called.pop(name, ()) if self._called else ():
            old.drop_caller(self)
        self.raw_attrs.pop(name, None)
        self.touch()

    @property
    def calls_as_list(self) -> frozenset[str]:
        """Attribute names whose computations print as a list in braces."""
        return frozenset(n for n, group in self._called.items() if CALLED.get(n, False) or len(group) != 1)

    # ---------------------------------------------------------------- control edges
    @property
    def control_predecessors(self) -> tuple[HloInstruction, ...]:
        """Instructions that must run before this one."""
        return tuple(self._control or ())

    @property
    def control_successors(self) -> tuple[HloInstruction, ...]:
        """Instructions that must run after this one."""
        return tuple(self.succ or ())

    def add_control_dependency(self, successor: HloInstruction) -> None:
        """Order this instruction before `successor`; once is enough."""
        if successor._control is None:
            successor._control = []
        if self in successor._control:
            return
        successor._control.append(self)
        successor.raw_attrs.setdefault(CONTROL, None)
        if self.succ is None:
            self.succ = {}
        self.succ[successor] = None
        successor.touch()

    def drop_control_dependency(self, successor: HloInstruction) -> None:
        """Remove the edge to `successor` where there is one."""
        if successor._control and self in successor._control:
            successor._control.remove(self)
            if not successor._control:
                successor.raw_attrs.pop(CONTROL, None)
            if self.succ is not None:
                self.succ.pop(successor, None)
            successor.touch()

    def drop_all_control_dependencies(self) -> None:
        """Remove every control edge at this instruction."""
        for before in self.control_predecessors:
            before.drop_control_dependency(self)
        for after in self.control_successors:
            self.drop_control_dependency(after)

    # ---------------------------------------------------------------- edits
    def replace_operand(self, number: int, new: HloInstruction) -> None:
        """Put `new` in operand place `number`."""
        old = self._operands[number]
        if old is new:
            return
        self._operands[number] = new
        old._drop_user(self)
        new._add_user(self)
        self.touch()

    def replace_use_with(self, user: HloInstruction, new: HloInstruction) -> None:
        """Put `new` in every operand place of `user` that this instruction fills."""
        for i, operand in enumerate(user._operands):
            if operand is self:
                user.replace_operand(i, new)

    def replace_all_uses_with(self, new: HloInstruction) -> None:
        """Redirect every user to `new` (a user that is `new` itself stays); the root moves to `new` as well."""
        for user in self.users:
            if user is not new:
                self.replace_use_with(user, new)
        if self._parent is not None and self._parent.root is self and new is not self:
            self._parent.set_root(new)

    def append_operand(self, operand: HloInstruction) -> None:
        """Add an operand at the end."""
        self._operands.append(operand)
        operand._add_user(self)
        self.touch()

    def remove_operand(self, number: int) -> None:
        """Take one operand away; later ones close up."""
        self._operands.pop(number)._drop_user(self)
        self.touch()

    def detach_operands(self) -> None:
        """Drop all operands (the first half of removing a node)."""
        for operand in self._operands:
            operand._drop_user(self)
        self._operands = []
        self.touch()

    def rename(self, name: str) -> None:
        """Give it another name (made unique in the module); printed lines that mention it are dropped."""
        if self._parent is not None:
            module = self._parent.module_or_none
            if module is not None:
                module.instruction_names.release(self._name)
                name = module.instruction_names.unique(name)
        self._name = name
        self.touch()
        for user in self.users:
            user.touch()
        for after in self.succ or ():
            after.touch()

    def touch(self) -> None:
        """Note a change: cached text is dropped here and the computation's version moves on."""
        self.line_cache = self._source = None
        if self._parent is not None:
            self._parent.version += 1

    # ---------------------------------------------------------------- for the computation only
    def attach(self, parent: HloComputation | None) -> None:
        """Set the parent; called by `HloComputation` alone."""
        self._parent = parent

    def become(self, opcode: str) -> None:
        """Change the opcode; for the reader, which writes sugared forms out."""
        self._opcode = opcode
        self.touch()

    def set_name_unchecked(self, name: str) -> None:
        """Set the name without asking the module; for readers and clones that know it is free."""
        self._name = name
        self.line_cache = self._source = None

    def _add_user(self, user: HloInstruction) -> None:
        users = self._users
        if isinstance(users, dict):
            users[user] = users.get(user, 0) + 1
        elif users is None:
            self._users = user
        else:
            self._users = {user: 2} if users is user else {users: 1, user: 1}

    def _drop_user(self, user: HloInstruction) -> None:
        users = self._users
        if not isinstance(users, dict):
            self._users = None
        elif users[user] > 1:
            users[user] -= 1
        else:
            del users[user]

    # ---------------------------------------------------------------- copies
    def clone_with(
        self, shape: Shape | None = None, operands: Iterable[HloInstruction] | None = None, *, name: str | None = None
    ) -> HloInstruction:
        """A new node with the same opcode, attributes, called computations and payload, not yet in a computation.

        Control edges are not copied.
        """
        node = HloInstruction(
            self._opcode,
            self._shape if shape is None else shape,
            self._operands if operands is None else operands,
            name=self._name if name is None else name,
            payload=self._payload,
            literal=self._literal,
        )
        node._attrs = {k: v for k, v in self.raw_attrs.items() if k != CONTROL}
        if self._typed:
            node._typed = dict(self._typed)
        if self._called:
            node._called = dict(self._called)
        for group in node._called.values():
            for computation in group:
                computation.add_caller(node)
        return node

    @property
    def has_side_effect(self) -> bool:
        """True where removing it would change more than its value; called computations are looked into.

        Source: ``openxla/xla:xla/hlo/ir/hlo_instruction.cc#HasSideEffect``.
        """
        if self.info.side_effect:
            return True
        if self._opcode in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"):
            if self.attr("constrain_layout"):
                return True
        elif self._opcode == "custom-call" and self.attr("custom_call_has_side_effect"):
            return True
        return any(i.has_side_effect for c in self.called_computations for i in c)

    def same_attributes(self, other: HloInstruction, ignore: frozenset[str] = frozenset({"metadata"})) -> bool:
        """Equal opcode, shape, payload, attributes and called computations; operands are not compared."""
        if self._opcode != other._opcode or self._shape != other._shape:
            return False
        if self._opcode == "constant":
            if self._payload != other._payload or self._payload is None:
                if not self.literal.same(other.literal):
                    return False
        elif self._payload != other._payload:
            return False
        mine = {k: v for k, v in self.raw_attrs.items() if k not in ignore and k != CONTROL}
        theirs = {k: v for k, v in other.raw_attrs.items() if k not in ignore and k != CONTROL}
        return mine == theirs and self._called == other._called


def metadata_of(*sources: HloInstruction) -> str | None:
    """The metadata text of the first of several instructions that has any; what a rewrite gives its product."""
    for source in sources:
        text = source.raw_attrs.get("metadata")
        if text is not None:
            return text
    return None
