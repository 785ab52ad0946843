"""``python -m hloscope.core.hlo.verifier.doc``: the list of finding codes as Markdown, kept in ``docs/verifier.md``."""

from __future__ import annotations

from hloscope.core.hlo.verifier.findings import RULES

_HEAD = """# What `hloscope verify` checks

The checks are those of XLA's own verifier (`HloVerifier`, which XLA runs before and between its passes), in its order,
and the messages are XLA's. XLA stops at the first fault; `hloscope verify` goes on behind it with the next instruction
(`--first` stops too). A module whose edges are wrong is not looked into further.

Layouts are compared in a module that is scheduled. XLA's pipelines verify without layouts until layout assignment has
run and with layouts after it; text does not say which side it is from, but a schedule is only made on the far side.
`--layout-sensitive` and `--no-layout-sensitive` decide otherwise. Tiled layouts (`T(8,128)`) are those of a backend
that pads to tiles and mixes bf16 with f32 inside fusions: there, mixed precision passes (`--no-mixed-precision` refuses
it) and sizes of bitcasts are not compared.

Names need not be unique over the whole text: XLA's reader renames what is called alike in two computations. In Python,
`verify(module)` demands it.

What XLA's installed parser says can differ: it reads without verifying, and refuses (or aborts on) only what it cannot
build. `hloscope parse --strict` is about the text, `hloscope verify` about the module.

Below, the codes, grouped by the step that finds them, steps in order. This list is written by
`python -m hloscope.core.hlo.verifier.doc`.
"""


def markdown() -> str:
    """The whole page."""
    lines = [_HEAD]
    shown: set[str] = set()
    for rule in RULES.values():
        if rule.phase not in shown:
            shown.add(rule.phase)
            lines.append(f"\n## {rule.phase}\n\n| code | what must hold |\n| --- | --- |")
        if rule.code.startswith("shape-of-"):
            continue
        lines.append(f"| `{rule.code}` | {rule.meaning} |")
        if rule.code == "inplace-permute":
            lines.append(
                "| `shape-of-OPCODE` | operands and attributes of that opcode fit each other (one code an opcode) |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
