"""A real Neovim, set up as docs/editors/neovim.md says, opens a real dump stage, shows its errors, hovers and jumps."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.lsp.editors import editor_scene

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
    scene = editor_scene(tmp_path, root, "neovim.md", "lua", "init.lua")
    (tmp_path / "script.lua").write_text(SCRIPT)
    places = {f"XDG_{place.upper()}_HOME": str(tmp_path / place) for place in ("config", "data", "state", "cache")}
    environment = {**scene.environment, **places}
    command = ["nvim", "--headless", "-n", "-u", str(tmp_path / "init.lua"), "-c", f"luafile {tmp_path / 'script.lua'}"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert scene.result.exists(), done.stderr
    out = json.loads(scene.result.read_text())
    assert "failed" not in out, (out, done.stderr)
    assert out["name"] == "hloscope"
    assert out["definition"] == [52, 3]
    assert "f32[7,17,13]" in out["hover"] and "parameter" in out["hover"]
    assert out["diagnostic"]["line"] == 52 and out["diagnostic"]["source"] == "hloscope"
