"""Probes of the real XLA:CPU without importing jax for each: a child that has imported it forks once a probe.

A probe is a process of its own as before: it may crash or hang, and it reads its flags for itself. Where no such child
can be had (a system without ``fork``, a jax that starts threads when it is imported), each probe is a new process.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

FLAGS = "XLA_FLAGS"
"""What a probe's environment has of its own: read when something is compiled, not when jax is imported."""

ALONE = {"OPENBLAS_NUM_THREADS": "1"}
"""With which numpy starts no threads when it is imported: what has threads cannot fork safely."""


class WarmChild:
    """One child that has imported jax, for probes of one environment."""

    def __init__(self, python: str, env: Mapping[str, str]) -> None:
        """Starts it. Raises OSError where it cannot be started, or has threads of its own."""
        self.owner = os.getpid()
        command = [python, "-P", str(Path(__file__).with_name("child_warm.py"))]
        self._process = subprocess.Popen(
            command, env={**env, **ALONE}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        if self._answer().get("ready") != 1:
            self.close()
            raise OSError("the child cannot fork")

    def run(self, argv: Sequence[str], env: Mapping[str, str], said: str, timeout: float) -> int | None:
        """The status of a script's run, None where it took too long. Raises OSError where the child is gone."""
        assert self._process.stdin is not None
        request = {"argv": list(argv), "env": dict(env), "said": said, "timeout": timeout}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        status = self._answer()["status"]
        return status if isinstance(status, int) else None

    def close(self) -> None:
        """Ends it."""
        if os.getpid() != self.owner:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError("the child has ended")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError("the child says something else")
        return cast("dict[str, object]", answer)


class WarmChildren:
    """The child of this process: another environment has another, and ends the one before."""

    def __init__(self) -> None:
        self._child: WarmChild | None = None
        self._asked: tuple[object, ...] = ()
        """What the child was started for, if only in vain."""
        self._lock = threading.Lock()

    def start(self, command: Sequence[str], env: Mapping[str, str], said: BinaryIO, timeout: float) -> int:
        """``core.xla.child.Start``: a fork of a child that has imported jax, else a new process."""
        with self._lock:
            child = self._for(command[0], env)
            if child is not None:
                argv = command[command.index("-P") + 1 :]
                try:
                    status = child.run(argv, env, os.fspath(said.name), timeout)
                except (OSError, ValueError):
                    self.close()
                else:
                    if status is None:
                        raise subprocess.TimeoutExpired(list(command), timeout)
                    return status
        return subprocess.run(
            command, env=dict(env), stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=timeout, check=False
        ).returncode

    def close(self) -> None:
        """Ends it."""
        if self._child is not None:
            self._child.close()
        self._child, self._asked = None, ()

    def _for(self, python: str, env: Mapping[str, str]) -> WarmChild | None:
        common = {name: value for name, value in env.items() if name != FLAGS}
        asked = (os.getpid(), python, *sorted(common.items()))  # a process that was forked from this one has its own
        if asked != self._asked:
            self.close()
            self._asked = asked
            try:
                self._child = WarmChild(python, common) if hasattr(os, "fork") else None
            except (OSError, ValueError):
                self._child = None
        return self._child


WARM = WarmChildren()
"""Those of this process: what it costs to import jax is paid once, whoever asks."""
atexit.register(WARM.close)
