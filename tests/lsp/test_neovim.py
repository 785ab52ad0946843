"""A real Neovim, set up as docs/editors/neovim.md says, opens a real dump stage, shows its errors, hovers and jumps."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
local out = {}
local function finish()
  local file = io.open(os.getenv("RESULT"), "w")
  file:write(vim.fn.json_encode(out))
  file:close()
  vim.cmd("qa!")
end
local function wait(what, ready)
  if not vim.wait(30000, ready, 20) then
    out.failed = what
    finish()
  end
end
vim.cmd("edit " .. vim.fn.fnameescape(os.getenv("STAGE")))
wait("client", function() return #vim.tbl_values(vim.lsp.buf_get_clients(0)) > 0 end)
local client = vim.tbl_values(vim.lsp.buf_get_clients(0))[1]
wait("initialize", function() return client.initialized or client.server_capabilities ~= nil end)
out.name = client.name
-- A definition, by the key that users press.
vim.api.nvim_win_set_cursor(0, { 54, 46 })
vim.lsp.buf.definition()
wait("definition", function() return vim.api.nvim_win_get_cursor(0)[1] == 52 end)
out.definition = vim.api.nvim_win_get_cursor(0)
-- A hover, in its floating window.
vim.lsp.buf.hover()
local function float()
  for _, window in ipairs(vim.api.nvim_list_wins()) do
    if vim.api.nvim_win_get_config(window).relative ~= "" then return window end
  end
end
wait("hover", function() return float() ~= nil end)
out.hover = table.concat(vim.api.nvim_buf_get_lines(vim.api.nvim_win_get_buf(float()), 0, -1, false), "\\n")
-- An error, typed behind non-ASCII text, then taken back.
vim.api.nvim_buf_set_lines(0, 52, 52, false, { "  %é中𝔸 = oops" })
wait("diagnostics", function() return #vim.diagnostic.get(0, { severity = vim.diagnostic.severity.ERROR }) > 0 end)
local found = vim.diagnostic.get(0, { severity = vim.diagnostic.severity.ERROR })[1]
out.diagnostic = { line = found.lnum, message = found.message, source = found.source }
vim.api.nvim_buf_set_lines(0, 52, 53, false, {})
wait("no diagnostics", function() return #vim.diagnostic.get(0, { severity = vim.diagnostic.severity.ERROR }) == 0 end)
finish()
"""


@pytest.mark.skipif(shutil.which("nvim") is None, reason="no Neovim here")
def test_neovim_opens_hovers_jumps_and_shows_errors(tmp_path: Path, root: Path) -> None:
    page = (root / "docs" / "editors" / "neovim.md").read_text()
    block = re.search(r"```lua\n(.*?)```", page, re.S)
    assert block is not None
    (tmp_path / "init.lua").write_text(block[1])
    (tmp_path / "script.lua").write_text(SCRIPT)
    stage = tmp_path / "module_0000.jit_layout_heavy.cpu_after_optimizations.txt"
    shutil.copy(root / "tests" / "lsp" / "data" / stage.name, stage)
    binaries = tmp_path / "bin"
    binaries.mkdir()
    launcher = binaries / "hloscope"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m hloscope.core.cli.main "$@"\n')
    launcher.chmod(0o755)
    result = tmp_path / "result.json"
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "STAGE": str(stage),
        "RESULT": str(result),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = ["nvim", "--headless", "-n", "-u", str(tmp_path / "init.lua"), "-c", f"luafile {tmp_path / 'script.lua'}"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert result.exists(), done.stderr
    out = json.loads(result.read_text())
    assert "failed" not in out, (out, done.stderr)
    assert out["name"] == "hloscope"
    assert out["definition"] == [52, 3]
    assert "f32[7,17,13]" in out["hover"] and "parameter" in out["hover"]
    assert out["diagnostic"]["line"] == 52 and out["diagnostic"]["source"] == "hloscope"
