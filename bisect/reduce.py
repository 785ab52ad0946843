"""Shrinking a module that shows a fault, with the fault kept at every step.

The reducer knows HLO: what it tries is always a module that the verifier accepts, so that no probe is spent on rubbish.
It knows nothing of the fault: `shows` says whether a candidate still has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.bisect.journal import digest
from hloscope.bisect.putback import lay_open
from hloscope.bisect.search import Outcome
from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.stack_frames import StackFrames
from hloscope.core.passes.call_inliner import CallInliner
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.dce import HloDce
from hloscope.core.passes.invariants import findings
from hloscope.core.text import load_module, print_module

if TYPE_CHECKING:
    from hloscope.bisect.journal import Journal
    from hloscope.core.hlo.module import HloModule

Shows = Callable[["HloModule"], bool]
_LEAVES = ("parameter", "constant", "iota", "partition-id", "replica-id")
_ADORNMENTS = ("metadata", "frontend_attributes", "backend_config", "sharding", "statistics", "origin")


@dataclass(slots=True)
class Reduced:
    """The end of a reduction."""

    module: HloModule
    before: int
    """Instructions at the start."""
    probes: int = 0
    """Candidates that were asked about."""
    steps: list[str] = field(default_factory=list[str])
    """What helped, in order."""

    @property
    def after(self) -> int:
        """Instructions now."""
        return self.module.instruction_count


def remembered(shows: Shows, journal: Journal) -> Shows:
    """The same, with what a journal knows of a candidate not asked again."""

    def known(candidate: HloModule) -> bool:
        key = digest("shows", print_module(candidate))
        found = journal.get(key)
        if found is None:
            found = Outcome("wrong" if shows(candidate) else "right")
            journal.put(key, found)
        return found.kind == "wrong"

    return known


def reduce_module(
    module: HloModule, shows: Shows, *, budget: int = 400, watch: Callable[[Reduced, str], None] | None = None
) -> Reduced:
    """The smallest module found that still shows the fault; `module` itself is left as it is.

    Raises InternalError where the module does not show it to begin with; stops after `budget` probes.
    """
    if not shows(module):
        raise InternalError("the module does not show the fault")
    return _Reducer(module.clone(), shows, budget, watch).run()


class _Reducer:
    def __init__(
        self, module: HloModule, shows: Shows, budget: int, watch: Callable[[Reduced, str], None] | None
    ) -> None:
        self._found = Reduced(module, module.instruction_count, 1)
        self._shows = shows
        self._budget = budget
        self._watch = watch
        self._asked: set[str] = set()

    def run(self) -> Reduced:
        found = self._found
        rounds = (
            self._plain, self._result, self._cut, self._bypass, self._open, self._inline, self._sizes, self._numbers,
            self._types, self._merge, self._unused,
        )  # fmt: skip
        while found.probes < self._budget:
            before = self._size()
            for one in rounds:
                one()
            if self._size() >= before:
                break
        return found

    def _size(self) -> tuple[int, int]:
        module = self._found.module
        elements = sum(leaf.element_count for one in module.instructions() for _, leaf in one.shape.leaves())
        return module.instruction_count, elements

    # ---------------------------------------------------------------- one candidate
    def _try(self, what: str, edit: Callable[[HloModule], bool]) -> bool:
        """Make an edit on a copy; keep it where the copy is a valid module, a new one, and shows the fault."""
        found = self._found
        if found.probes >= self._budget:
            return False
        candidate = found.module.clone()
        try:
            if not edit(candidate):
                return False
            _tidy(candidate)
            text = print_module(candidate)
            if text in self._asked or next(iter(findings(candidate)), None) is not None:
                return False
            candidate = load_module(text)
        except (HloscopeError, InternalError):
            return False
        self._asked.add(text)
        found.probes += 1
        if not self._shows(candidate):
            return False
        found.module = candidate
        found.steps.append(what)
        if self._watch is not None:
            self._watch(found, what)
        return True

    def _chunks(self, what: str, names: Sequence[str], edit: Callable[[HloModule, set[str]], bool]) -> None:
        """Try an edit on all of a list, then on halves, quarters and single ones, going on with what helped."""
        size = len(names)
        left = list(names)
        while size and left:
            at = 0
            while at < len(left):
                chunk = set(left[at : at + size])
                if self._try(what, lambda module, chunk=chunk: edit(module, chunk)):
                    del left[at : at + size]
                else:
                    at += size
            size = size // 2 if size > 1 else 0

    # ---------------------------------------------------------------- what is tried
    def _plain(self) -> None:
        for key in _ADORNMENTS:

            def strip(module: HloModule, key: str = key) -> bool:
                hit = False
                for one in module.instructions():
                    if key in one.raw_attrs:
                        one.set_attr(key, None)
                        hit = True
                return hit

            self._try(f"without {key}", strip)

    def _result(self) -> None:
        """Fewer results, then an earlier one."""
        root = self._found.module.entry.root
        if root.opcode == "tuple" and root.operand_count > 1:
            self._chunks("fewer results", [str(at) for at in range(root.operand_count)], _drop_results)
        while True:
            root = self._found.module.entry.root
            names = list(dict.fromkeys(one.name for one in root.operands if one.opcode not in _LEAVES))
            if not any(self._try("an earlier result", lambda m, name=name: _set_root(m, name)) for name in names):
                return

    def _cut(self) -> None:
        """Instructions become parameters, in large groups first."""
        names = [one.name for one in self._found.module.entry.post_order() if _can_cut(one)]
        self._chunks("cut to a parameter", names, _to_parameters)

    def _bypass(self) -> None:
        """An instruction gives way to an operand of its shape."""
        module = self._found.module
        nodes = (one for computation in module.computations for one in computation.post_order())
        self._chunks("left out", [_key(one) for one in nodes if _bypassed(one) is not None], _bypass)

    def _open(self) -> None:
        if any(one.opcode == "fusion" for one in self._found.module.instructions()):

            def opened(module: HloModule) -> bool:
                names = [c.name for c in module.computations if not c.is_fusion]
                flat = lay_open(module).module
                for name in names:
                    _take_over(module, flat, name)
                return True

            self._try("fusions laid open", opened)

    def _sizes(self) -> None:
        """Smaller dimensions: every size that the module has, everywhere at once."""
        for size in sorted(_all_sizes(self._found.module), reverse=True):
            for smaller in dict.fromkeys((1, 2, 3, 4, size // 8, size // 4, size // 2, size - 1)):
                if 0 < smaller < size and self._resize(size, smaller):
                    break

    def _resize(self, size: int, smaller: int) -> bool:
        return self._rewrite(f"{size} → {smaller}", _resized(print_module(self._found.module), size, smaller))

    def _rewrite(self, what: str, text: str | None) -> bool:
        """Try the module that another text of the same computations is."""
        if text is None:
            return False

        def edit(module: HloModule) -> bool:
            other = load_module(text)
            for name in [one.name for one in module.computations]:
                _take_over(module, other, name)
            module.attrs = other.attrs
            return True

        return self._try(what, edit)

    def _numbers(self) -> None:
        """Trip counts and other whole numbers become 1: each that stands as a constant."""
        for number in sorted({int(found[2]) for found in _COUNT.finditer(print_module(self._found.module))}):
            if number > 1:
                text = print_module(self._found.module)
                self._rewrite(
                    f"constant {number} → 1",
                    _COUNT.sub(lambda one, n=number: f"{one[1]}1{one[3]}" if int(one[2]) == n else one[0], text),
                )

    def _types(self) -> None:
        """Rarer element types give way to f32 and s32, everywhere at once."""
        for rare, plain in _PLAIN_TYPES:
            text = print_module(self._found.module)
            changed = re.sub(rf"\b{rare}\[", f"{plain}[", text)
            if changed != text:
                self._rewrite(f"{rare} → {plain}", changed)

    def _inline(self) -> None:
        if any(one.opcode == "call" for one in self._found.module.instructions()):
            self._try("calls inlined", lambda module: CallInliner().run(module, PassContext()))

    def _merge(self) -> None:
        """One parameter stands for all of its shape."""
        self._chunks("one parameter for several", [one.name for one in self._found.module.entry.parameters], _share)

    def _unused(self) -> None:
        self._try("without unused parameters", _drop_parameters)


# ---------------------------------------------------------------- edits
def _tidy(module: HloModule) -> None:
    """Dead code and unused parameters go; the header follows the entry."""
    HloDce().run(module, PassContext())
    _drop_parameters(module)
    module.attrs.pop("entry_computation_layout", None)
    if not any("metadata" in one.raw_attrs for one in module.instructions()):
        module.stack_frames = StackFrames()
        module.tables_present = False
    for key in ("input_output_alias", "buffer_donor"):
        module.attrs.pop(key, None)


def _drop_parameters(module: HloModule) -> bool:
    entry = module.entry
    unused = [one for one in entry.parameters if not one.user_count and not one.is_root]
    for one in unused:
        one.drop_all_control_dependencies()
        entry.remove(one)
    for number, one in enumerate(entry.parameters):
        one.set_parameter_number(number)
    return bool(unused)


def _share(module: HloModule, names: set[str]) -> bool:
    """Parameters of those names give way to the first of their shape."""
    hit = False
    for one in module.entry.parameters:
        first = next(other for other in module.entry.parameters if other.shape == one.shape)
        if one.name in names and first is not one and one.user_count:
            one.replace_all_uses_with(first)
            hit = True
    return hit


def _drop_results(module: HloModule, chunk: set[str]) -> bool:
    root = module.entry.root
    kept = [one for at, one in enumerate(root.operands) if str(at) not in chunk]
    if root.opcode != "tuple" or not kept or len(kept) == root.operand_count:
        return False
    if len(kept) == 1:
        module.entry.set_root(kept[0])
        return True
    new = HloInstruction("tuple", type(root.shape).tuple_(one.shape for one in kept), kept, name=root.name)
    module.entry.set_root(module.entry.add(new))
    return True


def _set_root(module: HloModule, name: str) -> bool:
    found = _named(module, {name})
    if not found or found[0].is_root:
        return False
    module.entry.set_root(found[0])
    return True


def _named(module: HloModule, names: set[str]) -> list[HloInstruction]:
    return [one for one in module.entry.post_order() if one.name in names]


def _can_cut(one: HloInstruction) -> bool:
    return one.opcode not in _LEAVES and not one.is_root and all(leaf.is_array for _, leaf in one.shape.leaves())


def _to_parameters(module: HloModule, names: set[str]) -> bool:
    entry = module.entry
    hit = False
    for one in _named(module, names):
        if _can_cut(one):
            number = len(entry.parameters)
            new = entry.add(HloInstruction("parameter", one.shape, name=f"p.{one.name}", payload=str(number)))
            one.drop_all_control_dependencies()
            one.replace_all_uses_with(new)
            hit = True
    return hit


def _bypassed(one: HloInstruction) -> HloInstruction | None:
    """The first operand of its own shape."""
    if one.opcode in _LEAVES or one.opcode == "tuple":
        return None
    return next((operand for operand in one.operands if operand.shape == one.shape), None)


def _key(one: HloInstruction) -> str:
    """A name for an instruction of any computation."""
    return f"{one.parent.name} {one.name}"


def _bypass(module: HloModule, keys: set[str]) -> bool:
    hit = False
    for one in [one for computation in module.computations for one in computation.post_order()]:
        operand = _bypassed(one) if _key(one) in keys else None
        if operand is not None:
            one.drop_all_control_dependencies()
            one.replace_all_uses_with(operand)
            hit = True
    return hit


def _take_over(module: HloModule, other: HloModule, name: str) -> None:
    """Put another module's computation of that name in place of this one's."""
    mine, theirs = module.find_computation(name), other.find_computation(name)
    if mine is None or theirs is None:
        raise InternalError(f"no computation {name} on both sides")
    callees = {one: module.find_computation(one.name) or one for one in other.computations}
    old = mine.instructions
    made: dict[HloInstruction, HloInstruction] = {}
    for one in theirs.post_order():
        copy = one.clone_with(operands=[made[operand] for operand in one.operands])
        for key, group in one.called.items():
            copy.set_called(key, tuple(callees[callee] for callee in group))
        made[one] = mine.add(copy)
    mine.set_root(made[theirs.root])
    for one in reversed(old):
        one.drop_all_control_dependencies()
    for one in reversed(_order(old)):
        mine.remove(one)


def _order(nodes: Iterable[HloInstruction]) -> list[HloInstruction]:
    """Operands before users, among the given ones."""
    wanted = dict.fromkeys(nodes)
    done: dict[HloInstruction, None] = {}
    for start in wanted:
        stack = [(start, iter(start.operands))]
        while stack:
            one, rest = stack[-1]
            following = next((operand for operand in rest if operand in wanted and operand not in done), None)
            if following is None:
                done[one] = None
                stack.pop()
            else:
                stack.append((following, iter(following.operands)))
    return list(done)


# ---------------------------------------------------------------- sizes
_COUNT = re.compile(r"([su](?:8|16|32|64)\[\](?:\{\})? constant\()(\d+)(\))")
_PLAIN_TYPES = (
    ("f64", "f32"), ("bf16", "f32"), ("f16", "f32"), ("s64", "s32"), ("s16", "s32"), ("s8", "s32"), ("u64", "u32"),
    ("u16", "u32"), ("u8", "u32"),
)  # fmt: skip
"""A type, and what is tried in its place."""
_SHAPE = re.compile(r"\b((?:pred|token|[suf]\d+\w*|bf16|c64|c128)\[)([\d,<=\s]+)(\])")
_BOUNDS = re.compile(r"\b(slice=\{|dynamic_slice_sizes=\{|slice_sizes=\{|size=|padding=)([^}\s]*\}?)")
_NUMBER = re.compile(r"\d+")


def _all_sizes(module: HloModule) -> set[int]:
    return {
        size
        for one in module.instructions()
        for _, leaf in one.shape.leaves()
        if leaf.is_array
        for size in leaf.dimensions
        if size > 1
    }


def _resized(text: str, size: int, smaller: int) -> str | None:
    """The text with a size changed in shapes and in the attributes that bound them; None where it is nowhere."""

    def numbers(part: str) -> str:
        return _NUMBER.sub(lambda found: str(smaller) if int(found[0]) == size else found[0], part)

    changed = _SHAPE.sub(lambda found: found[1] + numbers(found[2]) + found[3], text)
    changed = _BOUNDS.sub(lambda found: found[1] + numbers(found[2]), changed)
    return changed if changed != text else None
