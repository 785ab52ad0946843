"""A spliced index equals the one made from the whole text, whatever was edited."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.text.reindex import reindexed

PIECES = ("", "", "x", "%", "{", "}", '"', "\n", "(", ")", ",", "ROOT ", "//", " = ", "1", "\r\n", "é")


@pytest.fixture(scope="module")
def texts(root: Path) -> list[str]:
    stage = next((root / "tests" / "lsp" / "data").glob("*.txt")).read_text()
    return [stage, (root / "fixtures" / "stages" / "cpu_layout.after.txt").read_text()]


def facts(index: ModuleIndex) -> dict[str, Any]:
    """All that an index says, apart from how it numbers words."""
    c = index.columns
    out: dict[str, Any] = {
        key: value.tolist()
        for key in c.__slots__
        if isinstance(value := getattr(c, key), np.ndarray) and key not in ("shape_ids", "opcode_ids")
    }
    out["shapes of rows"] = [c.shape_texts[i] for i in c.shape_ids.tolist()]
    out["opcodes of rows"] = [c.opcode_names[i] for i in c.opcode_ids.tolist()]
    out["module"] = (c.entry, c.header, c.module_name, c.attributes, c.tables, c.truncated)
    out["findings"] = sorted({(d.offset, d.end_offset, d.code, d.message, d.related) for d in index.diagnostics})
    out["lines"] = index.line_starts.tolist()
    out["users"] = [index.users(i) for i in range(index.instruction_count)]
    return out


def edit(rng: random.Random, text: str, original: str) -> tuple[int, int, str]:
    at, mode = rng.randrange(len(text) + 1), rng.random()
    if mode < 0.1 and (marks := [found.start() for found in re.finditer(r"[{}\"]|^ENTRY|^%", text, re.M)]):
        # What holds a text together: braces, headers, quotes.
        at = rng.choice(marks)
        return at, at + rng.randrange(2), rng.choice(["", "", "}\n", "{", "\n}\n\n", "%q (x: f32[]) -> f32[] {\n"])
    if mode < 0.4:
        return at, min(len(text), at + rng.choice([0, 0, 1, 1, 2, 5])), rng.choice(PIECES)
    if mode < 0.7:
        start = text.rfind("\n", 0, at) + 1
        end = text.find("\n", start) + 1 or len(text)
        line = text[start:end]
        return (
            start,
            end,
            rng.choice(["", line + line, line[: len(line) // 2], "  %new = f32[8]{0} add(%x, %y)\n" + line]),
        )
    if mode < 0.85:
        word = re.compile(r"[A-Za-z_][\w.\-]+").search(text, at)
        if word is not None:
            return *word.span(), rng.choice([word[0] + "1", word[0][:-1], "x"])
    other = rng.randrange(len(original))
    return at, min(len(text), at + rng.choice([10, 100, 800])), original[other : other + rng.choice([0, 20, 200])]


def check(original: str, seed: int, edits: int) -> int:
    rng = random.Random(seed)
    text, index, spliced = original, ModuleIndex.from_text(original), 0
    for _ in range(edits):
        start, end, new = edit(rng, text, original)
        changed = text[:start] + new + text[end:]
        found, whole = reindexed(index, changed, start, end), ModuleIndex.from_text(changed)
        if found is not None:
            spliced += 1
            assert facts(found) == facts(whole), (seed, start, text[start:end], new)
        text, index = changed, found if found is not None else whole
        if rng.random() < 0.1:
            text, index = original, ModuleIndex.from_text(original)
    return spliced


def test_random_edits(texts: list[str]) -> None:
    assert sum(check(text, seed, 60) for seed, text in enumerate(texts)) > 50


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(2, 7), range(7, 12)], ids=["first", "second"])
def test_many_random_edits(texts: list[str], seeds: range) -> None:
    assert sum(check(text, seed, 300) for seed in seeds for text in texts) > 1_000


@pytest.mark.parametrize("broken", ["}\n\n", " {\n", " (", "(%", '"', "\n  ROOT", "cut"])
def test_a_computation_that_breaks_is_read_on_its_own(texts: list[str], broken: str) -> None:
    """And what is typed in it afterwards, and what mends it."""
    text = texts[1]
    index, at = ModuleIndex.from_text(text), text.index("{\n", text.index("\n%region_0.")) + 2
    if broken == "cut":
        start, old, new = at, "", "}\n"
    else:
        start = text.index(broken, at) if broken not in (" {\n", " (") else text.rindex(broken, 0, at)
        old, new = broken, ""
    for first, last, put in ((start, start + len(old), new), (start, start, "x"), (start, start + 1 + len(new), old)):
        changed = text[:first] + put + text[last:]
        found = reindexed(index, changed, first, last)
        assert found is not None and facts(found) == facts(ModuleIndex.from_text(changed)), (broken, put)
        text, index = changed, found
    assert text == texts[1] and not index.diagnostics


def test_what_an_edit_means_elsewhere(texts: list[str]) -> None:
    """Renaming a definition, defining a name again earlier, renaming a computation: the uses follow."""
    text = """HloModule m

%f (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%p)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %y = f32[8]{0} negate(%x)
  %z = f32[8]{0} add(%y, %q)
  ROOT %c = f32[8]{0} fusion(%z), kind=kLoop, calls=%f
}
"""
    index = ModuleIndex.from_text(text)
    for old, new in (
        ("%y = ", "%q = "),
        ("%x = f32[8]{0} par", "%q = f32[8]{0} negate(%x)\n  %x = f32[8]{0} par"),
        ("%f (p", "%g (p"),
        ("calls=%f", "calls=%g"),
        ("%g (p", "%gg (p"),
        ("HloModule m", "HloModule mm, is_scheduled=true"),
        ("ENTRY ", ""),
    ):
        start = text.index(old)
        changed = text[:start] + new + text[start + len(old) :]
        found = reindexed(index, changed, start, start + len(old))
        assert found is not None and facts(found) == facts(ModuleIndex.from_text(changed)), (old, new)
        text, index = changed, found
