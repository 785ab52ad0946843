"""What a real editor needs to open a stage with the set-up of its page in docs/editors."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Scene:
    """Where an editor's script finds things."""

    environment: dict[str, str]
    """With STAGE (the file to open), RESULT, and `hloscope` on the path."""
    result: Path
    """Where the script leaves what it saw, as JSON."""


def editor_scene(folder: Path, root: Path, page: str, language: str, settings: str) -> Scene:
    """Write the page's first block of `language` as `settings`, and put a stage and a launcher beside it."""
    block = re.search(rf"```{language}\n(.*?)```", (root / "docs" / "editors" / page).read_text(), re.S)
    assert block is not None
    (folder / settings).write_text(block[1])
    stage = folder / "module_0000.jit_layout_heavy.cpu_after_optimizations.txt"
    shutil.copy(root / "tests" / "lsp" / "data" / stage.name, stage)
    binaries = folder / "bin"
    binaries.mkdir()
    launcher = binaries / "hloscope"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m hloscope.core.cli.main "$@"\n')
    launcher.chmod(0o755)
    result = folder / "result.json"
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    return Scene({**os.environ, "PATH": path, "STAGE": str(stage), "RESULT": str(result)}, result)
