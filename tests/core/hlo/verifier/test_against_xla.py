"""The verifier beside the real XLA: what jaxlib's parser or compiler refuses has a finding, what it takes has none.

jaxlib reads text without verifying it, and refuses (or aborts on) what it cannot build. Its verifier runs when a module
is compiled; on the way there the module goes through StableHLO, which checks shapes once more by rules of its own and
drops what it cannot say (fusions, layouts, the entry layout).
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hloscope.core.hlo.verifier import VerifierOptions, verify
from hloscope.core.text import parse_module

FIXTURES = Path(__file__).resolve().parents[4] / "fixtures" / "verifier"
CHILD = r"""
import json, sys
from jaxlib import _hlo
texts, start, full = json.load(open(sys.argv[1])), int(sys.argv[2]), sys.argv[3] == "compile"
if full:
    import jax
    from jaxlib._jax import mlir
    from jax._src.lib import xla_client
    devices = jax.local_devices(backend="cpu")[:1]
def say(*what): print(json.dumps(what), flush=True)
for i in range(start, len(texts)):
    say(i, "begin")
    try:
        module = _hlo.hlo_module_from_text(texts[i])
        if full:
            program = mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
            options, where = xla_client.CompileOptions(), xla_client.DeviceList(tuple(devices))
            devices[0].client.compile_and_load(program, where, options)
    except Exception as error:
        say(i, "refused", str(error)[:400])
        continue
    say(i, "taken")
"""


def judge(texts: list[str], folder: Path, *, compiled: bool = False) -> list[str | None]:
    """Why XLA refuses each text, None where it takes it. A text that aborts it costs one child process."""
    out: list[str | None] = [None] * len(texts)
    path = folder / "texts.json"
    path.write_text(json.dumps(texts))
    start = 0
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    while start < len(texts):
        mode = "compile" if compiled else "parse"
        command = [sys.executable, "-c", CHILD, str(path), str(start), mode]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert rows, done.stderr[-2000:]
        for number, verdict, *why in rows:
            out[number] = {"begin": "it aborts", "refused": why[0] if why else "", "taken": None}[verdict]
        start = rows[-1][0] + 1
    return out


def refused_here(text: str) -> bool:
    """Whether reading or verifying finds something."""
    module, diagnostics = parse_module(text)
    if module is None or any(one.severity == "error" for one in diagnostics):
        return True
    return bool(verify(module, VerifierOptions(verify_unique_names=False)))


def sound() -> list[str]:
    return (FIXTURES / "sound.txt").read_text().split("\n//// ok\n")[1:]


def malformed() -> list[tuple[str, bool, str]]:
    """Code, whether the rule needs an option, and text."""
    parts = [part.partition("\n") for part in (FIXTURES / "malformed.txt").read_text().split("\n//// ")[1:]]
    return [(head.split()[0], " " in head, text) for head, _, text in parts]


def mutated(rng: random.Random, text: str) -> str:
    """The text with one number, element type or attribute of the entry changed."""
    spots = [
        found.span()
        for found in re.finditer(r"\d+|\b(?:f32|s32|pred|f16|u32|c64)\b|, [a-z_]+=[^,\n]+(?=[,\n])", text)
        if text.count("\n", 0, found.start()) > 1
    ]
    start, end = rng.choice(spots)
    word = text[start:end]
    if word.isdigit():
        # A digit of an element type would make a type that nobody knows, which is kept here and refused there.
        if text[start - 1].isalpha():
            return text
        new = str(max(0, int(word) + rng.choice([-1, 1, 2])))
    elif word.startswith(","):
        new = ""
    else:
        new = rng.choice([one for one in ("f32", "s32", "pred", "f16", "u8") if one != word])
    return text[:start] + new + text[end:]


def test_xla_reads_the_sound_modules(tmp_path: Path) -> None:
    texts = sound()
    assert [(why, text) for why, text in zip(judge(texts, tmp_path), texts, strict=True) if why is not None] == []


def test_what_the_parser_of_xla_refuses_is_refused_here(tmp_path: Path) -> None:
    rng = random.Random(11)
    texts = list(dict.fromkeys(mutated(rng, rng.choice(sound())) for _ in range(120)))
    refused = [text for why, text in zip(judge(texts, tmp_path), texts, strict=True) if why is not None]
    assert len(refused) > 8
    assert [text for text in refused if not refused_here(text)] == []


@pytest.mark.slow
def test_the_compiler_of_xla_refuses_the_malformed_modules(tmp_path: Path) -> None:
    cases = [case for case in malformed()[::5] if not case[1]]
    verdicts = judge([text for _, _, text in cases], tmp_path, compiled=True)
    taken = [code for (code, _, _), why in zip(cases, verdicts, strict=True) if why is None]
    # What StableHLO cannot say is lost before XLA's verifier runs.
    lost = {
        "comparison-type", "shape-of-convolution", "fusion-shape", "fusion-body", "operand-aliasing", "replica-groups",
        "channel-id", "source-target-pairs", "all-reduce-layout", "outfeed-shape", "entry-result", "entry-parameters",
        "buffer-donor", "sharding", "sharding-agrees", "thread", "duplicate-name",
    }  # fmt: skip
    assert set(taken) <= lost
    assert len(taken) < len(cases) / 4
