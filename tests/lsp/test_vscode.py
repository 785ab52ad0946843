"""The VS Code extension: its file names are the server's, its settings are read, its code type-checks, its package
builds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from hloscope.core.pallas.chips import TARGETS
from hloscope.lsp.documents import looks_like_hlo
from hloscope.lsp.settings import Settings


@pytest.fixture
def extension(root: Path) -> Path:
    return root / "editors" / "vscode"


def test_the_names_that_it_claims_are_those_of_the_server(extension: Path, fixtures: Path) -> None:
    [language] = json.loads((extension / "package.json").read_text())["contributes"]["languages"]
    names = [line.split()[-1] for line in (fixtures / "dumps" / "names.txt").read_text().splitlines() if line.strip()]
    stages = [name for name in names if looks_like_hlo(f"file:///dump/{name}", "", "")]
    assert len(stages) > 20
    for name in names:
        claimed = any(fnmatch(name, one) for one in language["filenamePatterns"])
        # The few stages with other names begin with the word that `firstLine` looks for.
        assert claimed == (name in stages) or not claimed, name
    assert sum(any(fnmatch(name, one) for one in language["filenamePatterns"]) for name in stages) > 0.9 * len(stages)
    assert re.match(language["firstLine"], "HloModule jit_f, is_scheduled=true")


def test_its_settings_are_those_of_the_server(extension: Path) -> None:
    properties = json.loads((extension / "package.json").read_text())["contributes"]["configuration"]["properties"]
    given = {key.removeprefix("hloscope."): one["default"] for key, one in properties.items()}
    assert Settings().changed({"hloscope": given}) == Settings()
    other = {
        "advice": False, "dumpFacts": False, "refusedFusionBytes": 7, "reduceOptions": ["--engine", "xla"],
        "bisectOptions": ["--seed", "1"], "pallasTarget": "v5e",
    }  # fmt: skip
    assert set(other) < set(given)
    [target] = [one for key, one in properties.items() if key.endswith("pallasTarget")]
    assert target["enum"] == ["", *TARGETS]
    changed = Settings(False, False, 7, ("--engine", "xla"), ("--seed", "1"), "v5e")
    assert Settings().changed({"hloscope": other}) == changed
    wrong = {"advice": "no", "refusedFusionBytes": -1, "reduceOptions": [1], "pallasTarget": "x", "y": 1}
    assert Settings().changed(wrong) == Settings()


def test_its_grammar_compiles_and_knows_an_instruction(extension: Path) -> None:
    grammar = json.loads((extension / "syntaxes" / "hlo.tmLanguage.json").read_text())
    line = '  ROOT %add.1 = f32[8,4]{1,0} add(%a, %b), metadata={op_name="x"}'
    head = re.match(grammar["repository"]["instruction"]["match"], line)
    assert head is not None and head[2] == "%add.1"
    values = [re.compile(one["match"]) for one in grammar["repository"]["value"]["patterns"] if "match" in one]
    found = {match[1] for pattern in values if pattern.groups for match in [pattern.search(line)] if match is not None}
    assert {"f32", "add", "metadata"} <= found
    assert re.match(grammar["repository"]["computation"]["match"], "ENTRY %main (x: f32[8]) -> f32[8] {") is not None


def test_its_code_type_checks(extension: Path) -> None:
    compiler = extension / "node_modules" / ".bin" / "tsc"
    if shutil.which("node") is None or not compiler.exists():
        pytest.skip("needs node and 'npm ci' in editors/vscode")
    done = subprocess.run([compiler, "--noEmit"], cwd=extension, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_its_package_builds(extension: Path, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("no npm here")
    copy = tmp_path / "vscode"
    shutil.copytree(extension, copy, ignore=shutil.ignore_patterns("node_modules", "out", "*.vsix"))
    installed = subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=copy, capture_output=True, timeout=400)
    if installed.returncode:
        pytest.skip("npm ci cannot reach its registry")
    subprocess.run(["npm", "run", "package"], cwd=copy, check=True, capture_output=True, timeout=300)
    assert list(copy.glob("*.vsix"))
