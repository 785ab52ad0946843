"""Searches keep their journals in a folder of the test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what is kept between commands."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HLOSCOPE_CACHE_DIR", str(folder))
    return folder
