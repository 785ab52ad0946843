"""Environments of released compilers: one folder for each version, installed when it is first asked for, and kept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

from hloscope.bisect.journal import cache_folder
from hloscope.core.errors import CompileError, UsageError
from hloscope.core.spelling import did_you_mean

INSTALL_SECONDS = 900.0
_PART = ".part-"
_RANGE = re.compile(r"([A-Za-z][\w-]*)=([0-9][\w.]*)\.\.([0-9][\w.]*)$")
_SINGLE = re.compile(r"([A-Za-z][\w-]*)=([0-9][\w.]*(?:,[0-9][\w.]*)*)$")
FIRST_WITH_NUMPY_2 = (0, 4, 26)
"""Releases before it were built for numpy 1."""


def version_key(text: str) -> tuple[int, ...]:
    """Orders release numbers; what is no number ends the key."""
    found: list[int] = []
    for part in text.split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)


def versions_between(spec: str) -> list[str]:
    """The releases that ``jaxlib=A..B`` or ``jaxlib=A,B,C`` names, oldest first; the installer says which there are.

    Raises UsageError for another form, another package, a release that there is not, and fewer than two.
    """
    exact = _SINGLE.match(spec)
    if exact is not None and exact[1] == "jaxlib" and "," in exact[2]:
        named = sorted(set(exact[2].split(",")), key=version_key)
        if len(named) < 2:
            raise UsageError(f"--over {spec}: one release is nothing to search")
        missing = [one for one in named if not _whole(one).exists()]
        released = _released() if missing else []
        for one in missing:
            if one not in released:
                hint = did_you_mean(one, released)
                raise UsageError(f"--over {spec}: no release {one} of jaxlib for this Python", hint=hint)
        return named
    match = _RANGE.match(spec)
    if match is None or match[1] != "jaxlib":
        raise UsageError(f"--over {spec}: expected jaxlib=FIRST..LAST or jaxlib=A,B,C")
    low, high = version_key(match[2]), version_key(match[3])
    if low > high:
        raise UsageError(f"--over {spec}: the first version is newer than the last")
    found = [one for one in _released() if low <= version_key(one) <= high]
    if len(found) < 2:
        raise UsageError(f"--over {spec}: {len(found)} release of jaxlib for this Python lies in the range")
    return sorted(found, key=version_key)


def _released() -> list[str]:
    command = [sys.executable, "-m", "pip", "index", "versions", "jaxlib", "--disable-pip-version-check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"pip does not say which releases of jaxlib there are: {error}") from None
    for line in done.stdout.splitlines():
        label, _, rest = line.partition(":")
        if label.strip() == "Available versions":
            return [one.strip() for one in rest.split(",") if one.strip()]
    said = done.stderr.strip().rsplit("\n", 1)[-1][:200]
    raise UsageError(f"pip does not say which releases of jaxlib there are: {said}")


def environment(version: str) -> str:
    """The Python of an environment with a release of jaxlib, installed now if it is not there.

    Raises CompileError where it cannot be installed: the version then has no answer.
    """
    folder = environments() / f"jaxlib-{version}"
    python = folder / "bin" / "python"
    if _whole(version).exists() and python.exists():
        return str(python)
    environments().mkdir(parents=True, exist_ok=True)
    _forget_old()
    # Elsewhere first: an installer outlives this process where it is killed, and would write into the next try's.
    place = Path(mkdtemp(prefix=f"{_PART}{version}-", dir=environments()))
    made = place / "environment"
    numpy = "numpy<2" if version_key(version) < FIRST_WITH_NUMPY_2 else "numpy"
    pip = [str(made / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    try:
        _run([sys.executable, "-m", "venv", str(made)], version)
        try:
            _run([*pip, f"jaxlib=={version}", f"jax=={version}", numpy], version)
        except CompileError:
            # The two packages are not always released under one number.
            _run([*pip, f"jaxlib=={version}", f"jax<={version}", numpy], version)
        (made / "whole").touch()
        if not _whole(version).exists():
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return str(python)


def _forget_old() -> None:
    """Remove what killed installations have left."""
    for one in environments().glob(f"{_PART}*"):
        if time.time() - one.stat().st_mtime > 2 * INSTALL_SECONDS:
            shutil.rmtree(one, ignore_errors=True)


def _whole(version: str) -> Path:
    """Stands in an environment that was installed to its end."""
    return environments() / f"jaxlib-{version}" / "whole"


def _run(command: list[str], version: str) -> None:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"jaxlib {version} cannot be installed: {error}") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
        raise CompileError(f"jaxlib {version} cannot be installed: {' '.join(lines)[:300]}")


def environments() -> Path:
    """Where they are kept."""
    return cache_folder() / "environments"
