"""What the tests of the real compiler share; each of its processes takes a second or more, so there are few."""

from __future__ import annotations

from pathlib import Path

import pytest

PROGRAM = """
import sys
import jax, jax.numpy as jnp

def step(x=jax.ShapeDtypeStruct((8, 16), jnp.float32), w=jnp.ones((16, 4))):
    return jnp.tanh(x @ w).sum()

def shapeless(x, y=jnp.ones(3)):
    return x + y

if __name__ == "__main__":
    print(jax.jit(step)(jnp.ones((8, 16)), jnp.ones((16, 4))))
    print("to stderr", file=sys.stderr)
    sys.exit(3)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A small jax program that prints on both streams and ends with status 3."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the user's cache of flag probes out of the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
