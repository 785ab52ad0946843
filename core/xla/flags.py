"""``XLA_FLAGS`` and the other variables by which a program is made to dump.

The user's own flags stay in front; of a flag given twice XLA takes the later one. XLA aborts a process that names a
flag its build does not know, so flags that are not in every build are tried in a child first, once for each jaxlib
version.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hloscope.core.dumps.passlog import LOG_MODULES

OPTIONAL_FLAGS = ("--xla_dump_module_metadata", "--xla_dump_hlo_to_subfolder")
"""Dump flags that only newer builds know: pass times on GPU, and a folder for each process."""
_PROBE = """
import sys
from importlib.metadata import version
if len(sys.argv) > 1:
    print(version("jaxlib"))
else:
    from jaxlib import xla_client
    xla_client.make_cpu_client()
"""
_PROBE_SECONDS = 60.0


def dump_flags(dump_to: str, *, pass_re: str = ".*", proto: bool = True, extra: Sequence[str] = ()) -> list[str]:
    """The flags that make XLA write text (and protos) of every pass that matches ``pass_re`` to a folder."""
    flags = [f"--xla_dump_to={dump_to}", "--xla_dump_hlo_as_text", f"--xla_dump_hlo_pass_re={pass_re}"]
    if proto:
        flags.append("--xla_dump_hlo_as_proto")
    return [*flags, *extra]


def joined_flags(user: str | None, ours: Sequence[str]) -> str:
    """A value for ``XLA_FLAGS``: the user's (a list of flags, or the path of a file of them), then ours."""
    given = (user or "").strip()
    if given and not given.startswith("-"):
        # A value that is no flag names a file of flags; XLA then reads no flag from the variable itself.
        try:
            given = " ".join(line.strip() for line in Path(given).read_text("utf-8").splitlines() if line.strip())
        except OSError:
            given = ""
    return " ".join([part for part in (given, *map(quoted, ours)) if part])


def quoted(flag: str) -> str:
    """A flag as XLA's reader of the variable splits it: a value with blanks in quotes."""
    name, equals, value = flag.partition("=")
    if not equals or not any(char.isspace() or char in "'\"" for char in value):
        return flag
    mark = "'" if '"' in value else '"'
    return f"{name}={mark}{value}{mark}"


def user_dump_folder(flags: str | None) -> str | None:
    """The folder that the user's own flags dump to, None where they name none."""
    try:
        parts = shlex.split(flags or "")
    except ValueError:
        parts = (flags or "").split()
    folders = [part.partition("=")[2] for part in parts if part.startswith("--xla_dump_to=")]
    return folders[-1] if folders else None


def capture_environment(base: Mapping[str, str], ours: Sequence[str]) -> dict[str, str]:
    """The environment of a program whose compiles are captured: its own, dumps on, pass times in the log.

    JAX's compilation cache is off in it, because a program taken from the cache is not compiled.
    """
    env = dict(base)
    env["XLA_FLAGS"] = joined_flags(base.get("XLA_FLAGS"), ours)
    env |= log_environment(base)
    env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    return env


def log_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Variables that make XLA log its passes to stderr, beside what the user has logged."""
    modules = base.get("TF_CPP_VMODULE")
    return {
        "TF_CPP_VMODULE": f"{modules},{LOG_MODULES}" if modules else LOG_MODULES,
        "TF_CPP_MIN_LOG_LEVEL": "0",
    }


def supported_flags(python: str, candidates: Sequence[str] = OPTIONAL_FLAGS) -> list[str]:
    """Those of the flags that the jaxlib of a Python interpreter knows; none where it has no jaxlib."""
    build = _output([python, "-c", _PROBE, "version"], None)
    if build is None:
        return []
    known = _remembered()
    fresh: dict[str, bool] = {}
    for flag in candidates:
        key = f"{build} {flag}"
        if key not in known:
            fresh[key] = known[key] = _output([python, "-c", _PROBE], flag) is not None
    if fresh:
        _remember(known)
    return [flag for flag in candidates if known.get(f"{build} {flag}")]


def _output(command: list[str], flag: str | None) -> str | None:
    """Standard output of a probe, None where it fails."""
    env = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "TF_CPP_VMODULE")}
    if flag is not None:
        env["XLA_FLAGS"] = flag
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def _cache_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "hloscope", "xla_flags.json")


def _remembered() -> dict[str, bool]:
    try:
        loaded: object = json.loads(_cache_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(loaded, dict):
        return {}
    return {str(key): value for key, value in loaded.items() if isinstance(value, bool)}


def _remember(known: Mapping[str, bool]) -> None:
    """Keeps the answers for the next time; a cache that cannot be written costs only that time."""
    path = _cache_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(dict(known), file, indent=1, sort_keys=True)
        os.replace(file.name, path)
    except OSError:
        return
