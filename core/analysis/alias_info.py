"""Which operand a result must share memory with, and which it may: the back ends' own knowledge of instructions.

`AliasInfo` is what holds everywhere (and all there is on CPU). `GpuAliasInfo` adds NVIDIA's hints.
Source: ``openxla/xla:xla/hlo/analysis/alias_info.cc``, ``xla/service/gpu/alias_info.cc``,
``xla/service/gpu/nvptx_alias_info.cc``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from hloscope.core.analysis.dataflow_values import has_index
from hloscope.core.text.async_sugar import async_start_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape, ShapeIndex


class InPlacePair(NamedTuple):
    """An operand part and the result part that is written over it."""

    operand: int
    operand_index: ShapeIndex
    output_index: ShapeIndex


class Hint(NamedTuple):
    """A back end's answer to whether a user may take over an operand's buffer, and its reason."""

    allowed: bool
    code: str


class AliasInfo:
    """The rules that every back end has."""

    no_ops: frozenset[str] = frozenset({"bitcast"})
    """Opcodes that are looked through between a fusion's parameter and its root."""

    def __init__(self) -> None:
        self._pairs: dict[HloInstruction, tuple[int, Sequence[InPlacePair]]] = {}

    def in_place_pairs(self, node: HloInstruction) -> Sequence[InPlacePair]:
        """The operand parts that `node` overwrites with its result."""
        if node.opcode not in _MAY_BE_IN_PLACE:
            return ()
        version = node.parent.version if node.in_computation else -1
        known = self._pairs.get(node)
        if known is None or known[0] != version:
            known = self._pairs[node] = (version, tuple(self._find(node)))
        return known[1]

    def may_alias(
        self, operand: HloInstruction, operand_index: ShapeIndex, user: HloInstruction, user_index: ShapeIndex
    ) -> Hint | None:
        """The back end's own decision on sharing; None where the general rules decide."""
        del operand, operand_index, user, user_index
        return None

    # ---------------------------------------------------------------- in-place pairs
    def _find(self, node: HloInstruction) -> Iterator[InPlacePair]:
        opcode = node.opcode
        if opcode == "fusion":
            yield from self.fusion_pairs(node)
            yield from _declared(node)
        elif opcode == "dynamic-update-slice":
            yield InPlacePair(0, (), ())
        elif opcode in ("scatter", "all-reduce-start"):
            count = (node.operand_count - 1) // 2 if opcode == "scatter" else node.operand_count
            if count == 1:
                yield InPlacePair(0, (), ())
            else:
                yield from (InPlacePair(i, (), (i,)) for i in range(count))
        elif opcode in ("collective-permute", "collective-permute-start"):
            if node.operand_count == 4 and _writes_in_place(node):
                prefix: ShapeIndex = () if opcode == "collective-permute" else (1,)
                yield InPlacePair(1, (), prefix)
                target = node.operand(1).shape
                if target.is_tuple:
                    yield from (InPlacePair(1, (i,), (*prefix, i)) for i in range(len(target.tuple_shapes)))
        elif opcode == "custom-call":
            yield from _declared(node)
        elif opcode in ("async-start", "async-update"):
            for pair in _declared(node):
                if pair.operand < node.operand_count and has_index(node.shape, pair.output_index):
                    yield pair
        elif opcode == "async-done":
            start = async_start_of(node)
            for pair in _declared(start) if start is not None else ():
                if pair.output_index[:1] == (1,) and has_index(node.shape, pair.output_index[1:]):
                    yield InPlacePair(0, (0, pair.operand, *pair.operand_index), pair.output_index[1:])
        elif opcode == "set-dimension-size":
            yield InPlacePair(0, (), ())
        elif opcode == "ragged-all-to-all":
            yield InPlacePair(1, (), ())

    def fusion_pairs(self, fusion: HloInstruction) -> Iterator[InPlacePair]:
        """The pairs that a fusion's body shows: a root that is written in place over a parameter."""
        body = fusion.callee("calls")
        for leaf, _ in fusion.shape.leaves():
            source, index = self._follow(body.root, leaf)
            pairs = self.fusion_pairs(source) if source.opcode == "fusion" else self.in_place_pairs(source)
            for pair in pairs:
                if pair.output_index != index:
                    continue
                found, found_index = self._follow(source.operand(pair.operand), pair.operand_index)
                if found.opcode == "fusion":
                    for inner in self.in_place_pairs(found):
                        if inner.output_index == found_index:
                            found, found_index = self._follow(found.operand(inner.operand), inner.operand_index)
                            break
                if found.opcode == "parameter":
                    yield InPlacePair(found.parameter_number, found_index, leaf)

    def _follow(self, node: HloInstruction, index: ShapeIndex) -> tuple[HloInstruction, ShapeIndex]:
        """The instruction behind tuples, then their elements, then no-ops."""
        while node.opcode == "tuple" and index:
            node, index = node.operand(index[0]), index[1:]
        while node.opcode == "get-tuple-element":
            node, index = node.operand(0), (int(node.attr("index")), *index)
        while not index and node.opcode in self.no_ops:
            node = node.operand(0)
        return node, index


_MAY_BE_IN_PLACE = frozenset(
    ("fusion", "dynamic-update-slice", "scatter", "all-reduce-start", "collective-permute", "collective-permute-start",
     "custom-call", "async-start", "async-update", "async-done", "set-dimension-size", "ragged-all-to-all")
)  # fmt: skip


def _declared(node: HloInstruction) -> Iterator[InPlacePair]:
    for one in node.attr("output_to_operand_aliasing") or ():
        yield InPlacePair(one.operand, one.operand_index, one.output_index)


def _writes_in_place(permute: HloInstruction) -> bool:
    """A collective-permute of four operands writes slices of operand 0 into operand 1."""
    return permute.raw_attrs.get("slice_sizes") is not None or permute.operand_count == 4


class GpuAliasInfo(AliasInfo):
    """What XLA:GPU adds for NVIDIA devices."""

    no_ops = frozenset({"bitcast", "reshape"})

    def may_alias(
        self, operand: HloInstruction, operand_index: ShapeIndex, user: HloInstruction, user_index: ShapeIndex
    ) -> Hint | None:
        """`NVPTXAliasInfo::MayAlias`."""
        if user.opcode == "fusion":
            return fusion_hint(operand, user, user_index)
        if user.opcode in ("all-reduce", "collective-broadcast"):
            same = user.operand_count == 1 or (len(user_index) == 1 and user.operand(user_index[0]) is operand)
            return Hint(same, "collective_in_place" if same else "collective_other_operand")
        if user.opcode == "custom-call":
            allowed = _is_matmul_bias(operand, user, user_index)
            return Hint(allowed, "matmul_bias" if allowed else "custom_call")
        return None


def _is_matmul_bias(operand: HloInstruction, call: HloInstruction, index: ShapeIndex) -> bool:
    """Whether cublasLt may write its result over operand 2, which it adds beta times."""
    if (call.raw_attrs.get("custom_call_target") or "").strip('"') != "__cublas$lt$matmul" or call.operand_count < 3:
        return False
    config = call.attr("backend_config")
    gemm = config.get("gemm_backend_config", {}) if isinstance(config, dict) else {}
    beta = gemm.get("beta", 0)
    return bool(beta) and call.operand(2) is operand and operand.use_count(call) == 1 and index == (0,)


def fusion_hint(operand: HloInstruction, fusion: HloInstruction, index: ShapeIndex) -> Hint:
    """Whether a GPU fusion may write an output over an operand: every element must be read before it is written.

    Source: ``openxla/xla:xla/service/gpu/alias_info.cc#FusionCanShareBufferHint``.
    """
    output_shape = fusion.shape.sub(index)
    if operand.shape != output_shape and not _same_bytes_by_element(operand.shape, output_shape):
        return Hint(False, "iteration_space")
    body = fusion.callee("calls")
    hero = reduction_hero(fusion)
    parameter = body.parameters[fusion.operands.index(operand)]
    output = body.root
    for number in index:
        if output.opcode != "tuple":
            break
        output = output.operand(number)
    real_root = output.operand(0) if output.opcode == "bitcast" else output
    work, seen = deque([parameter]), {parameter}
    reached = False
    while work:
        node = work.popleft()
        reached |= node is output
        if node is hero:
            continue
        for user in node.users:
            if user not in seen:
                seen.add(user)
                work.append(user)
            code = _step_refusal(node, user, real_root, hero, index)
            if code is not None:
                return Hint(False, code)
    if body.root.opcode == "tuple":
        roots = body.root.operands
        others = [one for one in roots if one in seen and one is not output]
        if others and not real_root.info.elementwise:
            return Hint(False, "other_output")
        if others and any(_has_transpose_hero(one) for one in roots if one in seen):
            return Hint(False, "transpose_output")
    return Hint(reached, "same_iteration" if reached else "not_on_path")


def _step_refusal(
    node: HloInstruction, user: HloInstruction, root: HloInstruction, hero: HloInstruction | None, index: ShapeIndex
) -> str | None:
    """Why the step from a node to its user breaks the order of reads and writes; None where it keeps it."""
    once = node.use_count(user) == 1
    place = user.operands.index(node)
    if user is root and user.opcode == "scatter" and once and place < (user.operand_count - 1) // 2:
        return None
    if user is root and user.opcode == "sort" and once:
        return None if index == (place,) else "sort_other_output"
    if (
        root.opcode == "dynamic-update-slice"
        and user.opcode == "dynamic-slice"
        and root.operand(0) is user.operand(0)
        and user.shape == root.operand(1).shape
    ):
        if all(size == 1 for size in user.shape.dimensions):
            return None
        same = all(user.operand(i) is root.operand(i + 1) for i in range(1, user.operand_count))
        return None if same else "other_slice"
    if is_elementwise_on(user, place) and user.opcode != "copy":
        return None
    if user.opcode in ("bitcast", "tuple") or user is hero:
        return None
    if user is root and user.opcode == "dynamic-update-slice" and place == 1:
        return None
    return "not_elementwise"


def _same_bytes_by_element(a: Shape, b: Shape) -> bool:
    return a.is_array and b.is_array and a.element_count == b.element_count and a.type.bits == b.type.bits


def reduction_hero(fusion: HloInstruction) -> HloInstruction | None:
    """The reduction that a fusion is emitted around: the first root that is one, behind bitcasts and converts."""
    root = fusion.callee("calls").root
    for one in root.operands if root.opcode == "tuple" else (root,):
        while one.opcode in ("bitcast", "convert") and one.operand_count:
            one = one.operand(0)
        if one.opcode == "reduce":
            return one
    return None


def _has_transpose_hero(root: HloInstruction) -> bool:
    """Whether an output is emitted along the order of a transpose's operand."""
    node = root
    while node.info.elementwise and node.opcode != "copy" and node.operand_count == 1 and node.user_count <= 1:
        node = node.operand(0)
    return node.opcode in ("transpose", "copy")


def is_elementwise_on(node: HloInstruction, place: int) -> bool:
    """Whether result element i depends on element i of operand `place` only.

    A fusion is that where everything that its parameter reaches is. Source:
    ``openxla/xla:xla/hlo/ir/hlo_instruction.cc#IsElementwiseOnOperand``, ``#IsElementwiseImpl``.
    """
    opcode = node.opcode
    if opcode == "fusion":
        return _fused_elementwise(node, place)
    if opcode == "dynamic-update-slice":
        return place == 0
    if opcode == "bitcast-convert":
        return node.shape.type.bits == node.operand(0).shape.type.bits
    if opcode == "map":
        return not node.dimensions or tuple(node.dimensions) == tuple(range(len(node.dimensions)))
    return node.info.elementwise


def _fused_elementwise(fusion: HloInstruction, place: int) -> bool:
    work = [fusion.callee("calls").parameters[place]]
    seen = set(work)
    while work:
        node = work.pop()
        for user in node.users:
            if any(one is node and not is_elementwise_on(user, i) for i, one in enumerate(user.operands)):
                return False
            if user not in seen:
                seen.add(user)
                work.append(user)
    return True
