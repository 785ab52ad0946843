"""Sound modules have no finding, and their shapes are those that follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.hlo.infer_shape import NEEDS_SHAPE, compatible, infer_instruction_shape
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.hlo.verifier import VerifierOptions, options_for, verify
from hloscope.core.text import load_module, parse_module

SOUND = (
    (Path(__file__).resolve().parents[4] / "fixtures" / "verifier" / "sound.txt").read_text().split("\n//// ok\n")[1:]
)


@pytest.mark.parametrize("text", SOUND, ids=[str(i) for i in range(len(SOUND))])
def test_nothing_is_found(text: str) -> None:
    module = load_module(text)
    assert verify(module, VerifierOptions(verify_unique_names=False)) == [], text
    for instruction in module.instructions():
        assert compatible(infer_instruction_shape(instruction), instruction.shape), (instruction, text)


def test_every_opcode_is_used() -> None:
    used = {instruction.opcode for text in SOUND for instruction in load_module(text).instructions()}
    assert set(OPCODES) - used == set()


def test_the_reader_infers_what_the_text_leaves_out() -> None:
    inferred = 0
    for text in SOUND:
        for instruction in load_module(text).entry:
            shape = instruction.shape.to_text(index_comments=False)
            head = f"  ROOT {instruction.name} = " if instruction.is_root else f"  {instruction.name} = "
            lines = [line for line in text.splitlines() if line.startswith(head)]
            if (
                instruction.opcode in NEEDS_SHAPE
                or len(lines) != 1
                or instruction.opcode in ("broadcast", "dot", "scaled-dot")
            ):
                continue
            bare = head + lines[0][lines[0].index(f" {instruction.opcode}(") + 1 :]
            again, diagnostics = parse_module(text.replace(lines[0], bare))
            assert not diagnostics, (diagnostics, bare)
            assert again is not None
            found = next(one for one in again.entry if one.name == instruction.name)
            assert compatible(found.shape, instruction.shape), (found, shape)
            inferred += 1
    assert inferred > 100


def test_the_corpus_is_sound(corpus: Path) -> None:
    files = sorted(corpus.glob("*/*/dump/**/*.txt"))[::60]
    seen = 0
    for path in files:
        text = path.read_text(errors="surrogateescape")
        if not text.startswith("HloModule") or len(text) > 1_500_000:
            continue
        module = load_module(text, str(path))
        assert verify(module) == [], path
        mixed = options_for(module).allow_mixed_precision
        for instruction in module.instructions():
            follows = infer_instruction_shape(instruction) if not mixed else instruction.shape
            assert compatible(follows, instruction.shape), (path, instruction)
        seen += 1
    assert seen > 20
