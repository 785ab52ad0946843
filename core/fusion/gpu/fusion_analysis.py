"""Which emitter runs a fusion, and around which instruction (its *hero*) the kernel is built.

Source: ``openxla/xla:xla/service/gpu/hlo_fusion_analysis.cc``, ``xla/codegen/ir_emission_utils.cc#FindHero``,
``xla/service/gpu/ir_emission_utils.cc#FindNonTrivialHero``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from hloscope.core.analysis.elementwise import (
    elements,
    is_elementwise,
    reshape_is_bitcast,
    same_layout_and_dimensions,
    transpose_is_bitcast,
)
from hloscope.core.fusion.gpu.fusion_view import FusionView
from hloscope.core.fusion.gpu.shapes import (
    TiledTranspose,
    element_bits,
    is_real_reduction,
    reduction_shape,
    tiled_transpose,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

EmitterKind = Literal["loop", "custom", "triton", "cudnn", "reduction", "transpose", "scatter", "sort", "concatenate"]

TRITON = "__triton"
"""Backend kind of a fusion that the generic Triton emitter runs."""
_BACKEND_KINDS: dict[str, EmitterKind] = {
    "__custom_fusion": "custom",
    TRITON: "triton",
    "__triton_gemm": "triton",
    "__triton_nested_gemm_fusion": "triton",
    "__triton_collective": "triton",
    "__cudnn$fusion": "cudnn",
}
FUSION_KIND: dict[EmitterKind, str] = {
    "loop": "kLoop",
    "triton": "kCustom",
    "custom": "kCustom",
    "cudnn": "kCustom",
    "sort": "kCustom",
    "concatenate": "kInput",
    "reduction": "kInput",
    "transpose": "kInput",
    "scatter": "kInput",
}
"""The kind that a fusion instruction gets by its emitter."""
_MAX_CONCATENATE_OPERANDS = 4


def backend_config(instruction: HloInstruction) -> dict[str, Any]:
    """The backend config as a mapping, empty where there is none or it is no JSON object."""
    value = instruction.attr("backend_config")
    return value if isinstance(value, dict) else {}


def backend_fusion_kind(instruction: HloInstruction) -> str:
    """The kind in the fusion backend config, empty where there is none."""
    fusion = backend_config(instruction).get("fusion_backend_config")
    kind = fusion.get("kind", "") if isinstance(fusion, dict) else ""
    return kind if isinstance(kind, str) else ""


def is_triton_fusion(instruction: HloInstruction) -> bool:
    """Whether an instruction is a fusion for the generic Triton emitter."""
    return (
        instruction.opcode == "fusion"
        and instruction.attr("kind") == "kCustom"
        and backend_fusion_kind(instruction) == TRITON
    )


def is_intermediate(instruction: HloInstruction, operand_limit: int) -> bool:
    """Whether an instruction only passes elements on in place: elementwise, or a bitcast in one of its spellings."""
    if not 1 <= instruction.operand_count <= operand_limit:
        return False
    if is_elementwise(instruction):
        if instruction.opcode != "copy":
            return True
        operand = instruction.operand(0).shape
        return operand.element_type == instruction.shape.element_type and same_layout_and_dimensions(
            operand, instruction.shape
        )
    if instruction.opcode == "bitcast":
        return True
    if instruction.opcode == "reshape":
        return reshape_is_bitcast(instruction.operand(0).shape, instruction.shape)
    if instruction.opcode == "transpose":
        return transpose_is_bitcast(instruction.operand(0).shape, instruction.shape, instruction.dimensions)
    return False


def find_hero(
    root: HloInstruction, view: FusionView, wanted: Callable[[HloInstruction], bool]
) -> HloInstruction | None:
    """The one wanted instruction that is reached from the root through intermediate steps; None for none or several."""
    found: list[HloInstruction] = []

    def visit(node: HloInstruction) -> bool | None:
        if wanted(node):
            found.append(node)
            return None if len(found) > 1 else False
        return is_intermediate(node, 3)

    view.walk([root], visit, up=True)
    if len(found) != 1:
        return None
    blocked: list[HloInstruction] = []

    def check(node: HloInstruction) -> bool | None:
        if node.opcode not in ("tuple", "parameter") and not is_intermediate(node, 3):
            blocked.append(node)
            return None
        return True

    view.walk(view.users(found[0]), check, up=False)
    return None if blocked else found[0]


def non_trivial_hero(root: HloInstruction, view: FusionView) -> HloInstruction:
    """The transpose, concatenate or reduce that the root's kernel is built around, else the root."""
    hero = root
    while is_intermediate(hero, 1):
        above = view.resolve(hero.operand(0))
        if not view.contains(above):
            break
        hero = above
    found = None
    if "transpose" in view.opcodes:
        found = find_hero(hero, view, lambda node: tiled_transpose(node) is not None)
    if found is None and "concatenate" in view.opcodes:
        found = find_hero(hero, view, lambda node: node.opcode == "concatenate")
    if found is not None:
        return found
    return hero if hero.opcode == "reduce" else root


@dataclass(frozen=True)
class FusionAnalysis:
    """The emitter of one body."""

    device: DeviceDescription
    view: FusionView
    kind: EmitterKind
    roots: tuple[HloInstruction, ...]
    heroes: tuple[HloInstruction, ...]
    """One for each root."""
    transpose: TiledTranspose | None

    @cached_property
    def smallest_input_bits(self) -> int | None:
        """Width of the narrowest parameter's elements; None without array parameters."""
        return _smallest([one.shape for one in self.view.parameters()])

    @cached_property
    def smallest_output_bits(self) -> int | None:
        """Width of the narrowest output's elements."""
        return _smallest([one.shape for one in self.roots])

    @property
    def reduction_hero(self) -> HloInstruction | None:
        """The reduce that decides the grid of a reduction kernel."""
        for root, hero in zip(self.roots, self.heroes, strict=True):
            if self.kind == "reduction" and is_real_reduction(root, hero, self.device):
                return hero
        return None


def analyze(device: DeviceDescription, *parts: HloInstruction) -> FusionAnalysis:
    """The emitter of an instruction, or of a producer and its consumer as one fusion."""
    view = FusionView(*parts)
    roots = view.roots()
    heroes = [non_trivial_hero(root, view) for root in roots]
    transpose = _consistent_transpose(roots, heroes)
    kind = _kind(_config_kind(parts), device, roots, heroes, transpose)
    if kind == "loop":
        heroes, transpose = roots, None
    return FusionAnalysis(device, view, kind, tuple(roots), tuple(heroes), transpose)


def _config_kind(parts: tuple[HloInstruction, ...]) -> str:
    for part in reversed(parts):
        if "backend_config" in part.raw_attrs:
            return backend_fusion_kind(part)
    return ""


def _kind(
    config: str,
    device: DeviceDescription,
    roots: list[HloInstruction],
    heroes: list[HloInstruction],
    transpose: TiledTranspose | None,
) -> EmitterKind:
    if config in _BACKEND_KINDS:
        return _BACKEND_KINDS[config]
    if _is_reduction(device, roots, heroes):
        return "reduction"
    if transpose is not None:
        return "transpose"
    if len(roots) > 1:
        return "loop"
    if roots[0].opcode == "scatter":
        return "scatter"
    if roots[0].opcode == "sort":
        return "sort"
    hero = heroes[0]
    if hero.opcode == "concatenate" and not roots[0].shape.is_tuple:
        return "concatenate" if hero.operand_count <= _MAX_CONCATENATE_OPERANDS else "loop"
    return "loop"


def _is_reduction(device: DeviceDescription, roots: list[HloInstruction], heroes: list[HloInstruction]) -> bool:
    pairs = list(zip(roots, heroes, strict=True))
    first = next((hero for root, hero in pairs if is_real_reduction(root, hero, device)), None)
    if first is None:
        return False
    for root, hero in pairs:
        if root is first:
            continue
        if not is_real_reduction(root, hero, device):
            if elements(root.shape) != elements(first.operand(0).shape):
                return False
        elif reduction_shape(hero) != reduction_shape(first):
            return False
    return True


def _consistent_transpose(roots: list[HloInstruction], heroes: list[HloInstruction]) -> TiledTranspose | None:
    found: TiledTranspose | None = None
    source: HloInstruction | None = None
    others: list[HloInstruction] = []
    for root, hero in zip(roots, heroes, strict=True):
        transpose = tiled_transpose(hero)
        if transpose is None:
            others.append(root)
        elif found is None:
            found, source = transpose, hero
        elif (found.dims, found.permutation) != (transpose.dims, transpose.permutation):
            return None
    if found is None or source is None:
        return None
    if any(elements(root.shape) != elements(source.operand(0).shape) for root in others):
        return None
    return found


def _smallest(shapes: list[Shape]) -> int | None:
    return min((element_bits(shape) for shape in shapes if shape.is_array), default=None)
