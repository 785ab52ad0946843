"""``optimize_input_output_buffer_alias``: buffer donors that fit an output become that output's memory.

A donor is a parameter that the caller gives away without saying for which output; the largest are matched first, by
size alone. Source: ``openxla/xla:xla/hlo/transforms/simplifiers/optimize_input_output_buffer_alias.cc``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape, ShapeIndex
    from hloscope.core.passes.context import PassContext

_DONOR = re.compile(r"\(\s*([0-9]+)\s*,\s*\{([0-9,\s]*)\}\s*\)")
_ALIAS = re.compile(r"\{([0-9,\s]*)\}\s*:\s*\(\s*([0-9]+)\s*,\s*\{([0-9,\s]*)\}")
_DONORS = "buffer_donor"
_ALIASES = "input_output_alias"


@dataclass(frozen=True)
class OptimizeInputOutputBufferAlias:
    """The pass."""

    name = "optimize_input_output_buffer_alias"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Match donors and outputs of equal size. Without donors nothing happens."""
        donors = [(int(one[1]), _index(one[2])) for one in _DONOR.finditer(module.attrs.get(_DONORS) or "")]
        layout = module.entry_layout()
        if not donors or layout is None or layout[1].is_dynamic:
            return False
        parameters, result = layout
        aliases = [
            (_index(one[1]), int(one[2]), _index(one[3])) for one in _ALIAS.finditer(module.attrs.get(_ALIASES) or "")
        ]
        given = {(number, index) for _, number, index in aliases}
        taken = {index for index, _, _ in aliases}
        # By memory space, in the order of parameters and of the output's parts.
        free: dict[int, list[tuple[int, ShapeIndex, int]]] = {}
        for number, shape in enumerate(parameters):
            for index, part in shape.leaves():
                donated = (number, index) in donors and (number, index) not in given
                if donated and part.is_array and not part.is_dynamic:
                    free.setdefault(_space(part), []).append((number, index, part.byte_size))
        changed = False
        for space, mine in free.items():
            wanting = [
                (index, part.byte_size)
                for index, part in result.leaves()
                if part.is_array and index not in taken and _space(part) == space
            ]
            for output, number, index in _matched(mine, wanting):
                step = ctx.gate("donate", module.entry.parameters[number])
                if not step:
                    continue
                aliases.append((output, number, index))
                donors.remove((number, index))
                step.done(detail=f"parameter {number}{_braces(index)} is output {_braces(output)}")
                changed = True
        if changed:
            _write(module, aliases, donors)
        return changed


def _matched(
    donors: list[tuple[int, ShapeIndex, int]], outputs: list[tuple[ShapeIndex, int]]
) -> list[tuple[ShapeIndex, int, ShapeIndex]]:
    donors = sorted(donors, key=lambda one: -one[2])
    outputs = sorted(outputs, key=lambda one: -one[1])
    found: list[tuple[ShapeIndex, int, ShapeIndex]] = []
    a = b = 0
    while a < len(donors) and b < len(outputs):
        (number, index, size), (output, wanted) = donors[a], outputs[b]
        a += size >= wanted
        b += size <= wanted
        if size == wanted:
            found.append((output, number, index))
    return found


def _write(
    module: HloModule, aliases: list[tuple[ShapeIndex, int, ShapeIndex]], donors: list[tuple[int, ShapeIndex]]
) -> None:
    kinds = dict(
        re.findall(r"\{([0-9,\s]*)\}\s*:\s*\([^()]*?(may-alias|must-alias)\)", module.attrs.get(_ALIASES) or "")
    )
    known = {_index(index): kind for index, kind in kinds.items()}
    lines = [
        f"{_braces(output)}: ({number}, {_braces(index)}, {known.get(output, 'may-alias')})"
        for output, number, index in sorted(aliases)
    ]
    rest = dict(module.attrs)
    rest[_ALIASES] = "{ " + ", ".join(lines) + " }"
    if donors:
        rest[_DONORS] = "{ " + ", ".join(f"({number}, {_braces(index)})" for number, index in sorted(donors)) + " }"
    else:
        rest.pop(_DONORS, None)
    order = ("is_scheduled", _ALIASES, _DONORS)
    module.attrs = {
        **{key: rest[key] for key in order if key in rest},
        **{key: text for key, text in rest.items() if key not in order},
    }


def _index(text: str) -> ShapeIndex:
    return tuple(int(one) for one in text.replace(" ", "").split(",") if one)


def _braces(index: ShapeIndex) -> str:
    return "{" + ", ".join(map(str, index)) + "}"


def _space(shape: Shape) -> int:
    return shape.layout.memory_space if shape.layout is not None else 0
