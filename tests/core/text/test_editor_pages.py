"""The Helix and Zed sections of docs/editors-treesitter.md, as far as they can be tried without the editors: their
files are well formed, their shell lines run, and the queries that come of them load and capture names the editors know.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tree_sitter import Parser, Query, QueryCursor

from hloscope.core.text.highlight import grammar

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "editors-treesitter.md"
QUERIES = ROOT / "core" / "text" / "queries"

# Scopes of Helix (https://docs.helix-editor.com/themes.html#scopes) and captures of Zed
# (https://zed.dev/docs/extensions/languages#syntax-highlighting): the first words, which both fall back to.
HELIX = set(
    "attribute type constructor constant string comment variable label punctuation keyword operator function tag"
    " namespace special markup diff error".split()
)
ZED = set(
    "attribute boolean comment constant constructor embedded emphasis enum function hint keyword label link_text"
    " link_uri module number operator predictive preproc primary property punctuation string tag text title type"
    " variable variant error".split()
)


def _section(name: str) -> str:
    return PAGE.read_text("utf-8").partition(f"## {name}")[2].partition("\n## ")[0]


def _blocks(section: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", section, re.S)


def _captures(source: str, text: bytes) -> set[str]:
    known = grammar()
    if known is None:
        pytest.skip("the grammar's extension is not built")
    root = Parser(known.language).parse(text).root_node
    return set(QueryCursor(Query(known.language, source)).captures(root))


@pytest.fixture
def sample(fixtures: Path) -> bytes:
    return (fixtures / "stages" / "gpu_cse.after.txt").read_bytes()


def test_helix(tmp_path: Path, sample: bytes) -> None:
    section = _section("Helix")
    (configuration,) = map(tomllib.loads, _blocks(section, "toml"))
    (language,) = configuration["language"]
    (source,) = configuration["grammar"]
    assert language["name"] == source["name"] == "hlo" and language["file-types"] == ["hlo"]
    folder = Path(source["source"]["path"].replace("/path/to/hloscope", str(ROOT)))
    assert (folder / "src" / "parser.c").is_file() and (folder / "src" / "scanner.c").is_file()
    (lines,) = _blocks(section, "sh")
    (tmp_path / "hloscope").symlink_to(ROOT)
    lines = lines.replace("hx --grammar build", "true").replace("~", str(tmp_path))
    subprocess.run(["sh", "-e", "-c", lines], check=True, capture_output=True)
    made = tmp_path / ".config" / "helix" / "runtime" / "queries" / "hlo"
    highlights = _captures((made / "highlights.scm").read_text(), sample)
    assert {name.split(".")[0] for name in highlights} <= HELIX
    assert {"constant.numeric", "variable.other.member", "namespace", "function.builtin"} <= highlights
    assert "local.reference" in _captures((made / "locals.scm").read_text(), sample)
    assert {"indent", "outdent"} <= _captures((made / "indents.scm").read_text(), sample)


def test_helix_finds_the_server_for_hlo_and_for_dumps() -> None:
    (block,) = _blocks((ROOT / "docs" / "editors" / "helix.md").read_text("utf-8"), "toml")
    configuration = tomllib.loads(block)
    (language,) = configuration["language"]
    (server,) = language["language-servers"]
    assert configuration["language-server"][server] == {
        "command": "hloscope", "args": ["lsp"], "timeout": 60, "config": {"refusedFusionBytes": 1048576},
    }  # fmt: skip
    globs = [one["glob"] for one in language["file-types"] if isinstance(one, dict)]
    assert "hlo" in language["file-types"]
    for name in ("module_0001.jit_f.0002.p.after_a.before_b.txt", "module_0001.jit_f.cpu_after_optimizations.txt"):
        assert any(fnmatch(name, glob) for glob in globs), name


def test_zed(sample: bytes) -> None:
    section = _section("Zed")
    extension, language = map(tomllib.loads, _blocks(section, "toml"))
    assert (ROOT / extension["grammars"]["hlo"]["path"] / "grammar.js").is_file()
    assert language["grammar"] in extension["grammars"]
    assert re.match(language["first_line_pattern"], sample.decode())
    highlights = _captures((QUERIES / "highlights.scm").read_text(), sample)
    assert {name.split(".")[0] for name in highlights} <= ZED
    assert {"name", "item"} <= _captures((QUERIES / "outline.scm").read_text(), sample)
