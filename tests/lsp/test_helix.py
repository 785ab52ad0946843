"""A real Helix in a terminal, set up as docs/editors/helix.md says: opens a stage, hovers, jumps, shows findings."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.lsp.editors import editor_scene

SECONDS = 90.0


class Terminal:
    """Helix in a tmux server of its own."""

    def __init__(self, folder: Path, environment: dict[str, str], stage: str) -> None:
        self._tmux = ["tmux", "-f", "/dev/null", "-S", str(folder / "tmux")]
        self._environment = environment
        self._run("new-session", "-d", "-x", "180", "-y", "50", "hx", stage)

    def _run(self, *words: str) -> str:
        command = [*self._tmux, *words]
        return subprocess.run(command, env=self._environment, check=True, capture_output=True, text=True).stdout

    def keys(self, *keys: str) -> None:
        """Type keys, each a word of tmux's; a pause lets Helix end one before the next."""
        for key in keys:
            self._run("send-keys", key)
            time.sleep(0.1)

    def screen(self) -> str:
        """What is on the screen."""
        return self._run("capture-pane", "-p")

    def wait(self, ready: Callable[[str], bool], *again: str) -> str:
        """The screen once it is ready; ``again`` is typed anew until then."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            self.keys(*again)
            time.sleep(0.5)
            seen = self.screen()
            if ready(seen):
                return seen
        raise AssertionError(f"not on the screen:\n{self.screen()}")

    def close(self) -> None:
        """End Helix and its server."""
        self._run("kill-server")


def _is_helix() -> bool:
    if shutil.which("hx") is None or shutil.which("tmux") is None:
        return False
    said = subprocess.run(["hx", "--version"], capture_output=True, text=True, timeout=60).stdout
    return said.startswith("helix ")


@pytest.fixture
def helix(tmp_path: Path, root: Path) -> Iterator[Terminal]:
    if not _is_helix():
        pytest.skip("no Helix and tmux here")
    (tmp_path / "helix").mkdir()
    scene = editor_scene(tmp_path, root, "helix.md", "toml", "helix/languages.toml")
    environment = {
        **scene.environment, "XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path),
        "TERM": "xterm-256color", "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    terminal = Terminal(tmp_path, environment, scene.environment["STAGE"])
    yield terminal
    terminal.close()


def test_helix_hovers_jumps_and_shows_findings(helix: Terminal) -> None:
    helix.wait(lambda seen: "HloModule jit_layout_heavy" in seen)
    # The server has answered once hover does: on the first operand of the dot.
    helix.keys("54gg", "46l")
    hover = helix.wait(lambda seen: "an argument of the computation" in seen, "Escape", " ", "k")
    assert "f32[7,17,13]{2,1,0} · layout {2,1,0} · 6,188 bytes" in hover
    helix.keys("Escape", "gd")
    helix.wait(lambda seen: " 52:" in seen.splitlines()[-2])
    # The first finding: a layout copy, told beside its line.
    helix.keys("gg", "]d")
    assert "a layout copy: 20,020 bytes" in helix.wait(lambda seen: " 66:" in seen.splitlines()[-2] and "copy:" in seen)
    helix.keys("53gg", "O%é中𝔸 = oops", "Escape")
    helix.wait(lambda seen: " 53:" in seen.splitlines()[-2] and "expected" in seen, "gg", "]d")
