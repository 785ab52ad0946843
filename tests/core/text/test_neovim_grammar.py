"""Neovim colours HLO with the grammar as docs/editors-treesitter.md sets it up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "editors-treesitter.md"

PROBE = """
local parser = vim.treesitter.get_parser(0, "hlo")
local root = parser:parse()[1]:root()
local get = vim.treesitter.query and vim.treesitter.query.get or require("vim.treesitter.query").get_query
local seen = {}
for _, name in ipairs({ "highlights", "folds", "locals", "indents" }) do
  local query = get("hlo", name)
  for id in query:iter_captures(root, 0, 0, -1) do
    seen[name .. ":" .. query.captures[id]] = true
  end
end
local active = vim.treesitter.highlighter.active[vim.api.nvim_get_current_buf()] ~= nil
local names = vim.tbl_keys(seen)
table.sort(names)
io.stdout:write(root:type(), " ", tostring(root:has_error()), " ", tostring(active), "\\n")
io.stdout:write(table.concat(names, "\\n"), "\\n")
"""


@pytest.mark.skipif(shutil.which("nvim") is None or shutil.which("cc") is None, reason="needs nvim and a C compiler")
def test_the_page_sets_neovim_up(tmp_path: Path, fixtures: Path) -> None:
    section = PAGE.read_text("utf-8").partition("## Neovim")[2].partition("\n## ")[0]
    blocks = {kind: body for kind, body in re.findall(r"```(\w+)\n(.*?)```", section, re.S)}
    (tmp_path / "hloscope").symlink_to(ROOT)
    env = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    env.update({f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("DATA", "STATE", "CACHE")})
    subprocess.run(["sh", "-e", "-c", blocks["sh"]], env=env, check=True, capture_output=True)
    plugin = tmp_path / ".config" / "nvim" / "plugin" / "hlo.lua"
    plugin.parent.mkdir()
    plugin.write_text(blocks["lua"], "utf-8")
    probe = tmp_path / "probe.lua"
    probe.write_text(PROBE, "utf-8")
    text = fixtures / "stages" / "gpu_cse.after.txt"
    done = subprocess.run(
        ["nvim", "--headless", "-n", str(text), "-c", f"luafile {probe}", "-c", "qa!"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    first, *captures = done.stdout.splitlines()
    assert (first, done.stderr.strip()) == ("source_file false true", "")
    assert {"highlights:type", "highlights:function.builtin", "folds:fold", "locals:local.reference"} <= set(captures)
