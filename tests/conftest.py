"""What every test may ask for: the repository's root, the small fixtures, and the corpus of real dumps where it is."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

# A test run in the background may have been started with Ctrl-C ignored, and its children would ignore it as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of tests start hloscope anew; where compiled modules may not be kept, each start compiles all of them again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The small real inputs that are kept with the code."""
    return ROOT / "fixtures"


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The large corpus of real dumps: ``HLOSCOPE_CORPUS``, else ``../shared/corpus``; without it the test skips."""
    named = os.environ.get("HLOSCOPE_CORPUS")
    path = Path(named) if named else ROOT.parent / "shared" / "corpus"
    if not path.is_dir():
        pytest.skip("no corpus; set HLOSCOPE_CORPUS")
    return path
