"""Probes of XLA:CPU in forks of one child: each a process of its own, with flags of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hloscope.bisect.warm import WarmChildren

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def test_a_fork_has_its_own_flags_and_may_die_or_hang(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    script, said = tmp_path / "script.py", tmp_path / "said"
    script.write_text(
        "import os, sys, time\n"
        "how = sys.argv[1]\n"
        "print(os.environ['XLA_FLAGS'], 'jax' in sys.modules, os.getpid(), flush=True)\n"
        "if how == 'die': os.abort()\n"
        "if how == 'hang': time.sleep(60)\n"
        "sys.exit(int(how))\n"
    )
    children = WarmChildren()
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}

    def run(how: str, flags: str, timeout: float = 30.0) -> int:
        with said.open("ab") as out:
            command = [sys.executable, "-P", str(script), how]
            return children.start(command, {**env, "XLA_FLAGS": flags}, out, timeout)

    try:
        assert (run("0", "--a"), run("3", "--b"), run("die", "--c")) == (0, 3, -6)
        with pytest.raises(subprocess.TimeoutExpired):
            run("hang", "--d", 0.1)
        assert run("0", "--e") == 0
    finally:
        children.close()
    lines = [line.split() for line in said.read_text().splitlines() if line.startswith("--")]
    assert [line[0] for line in lines] == ["--a", "--b", "--c", "--d", "--e"]
    assert {line[1] for line in lines} == {"True"} and len({line[2] for line in lines}) == len(lines)


def test_without_a_child_each_probe_is_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.exit(4)")
    with (tmp_path / "said").open("wb") as out:
        assert WarmChildren().start([sys.executable, "-P", str(script)], dict(os.environ), out, 30.0) == 4
