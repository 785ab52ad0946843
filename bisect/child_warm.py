"""Child script: has imported jax once, and runs each script that it is asked for in a fork of itself.

Most of a probe of XLA:CPU is the import of jax. No backend is made here, so there are no threads when it forks, and
every fork reads XLA's flags for itself. Requests come as lines of JSON, each is answered by a line with the status of
the fork: its exit status, minus the signal that ended it, or null where it took too long. Imports nothing of hloscope.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

NEEDED = ("numpy", "ml_dtypes", "jax", "jax._src.lib", "jax._src.sharding_impls", "jaxlib._hlo", "jaxlib._jax")
POLL_SECONDS = 0.005


def main() -> None:
    """Answers until there is nobody who asks any more."""
    for name in NEEDED:
        importlib.import_module(name)
    say = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    print(json.dumps({"ready": len(os.listdir("/proc/self/task"))}), file=say, flush=True)
    for line in sys.stdin:
        print(json.dumps({"status": status(json.loads(line))}), file=say, flush=True)


def status(request: dict[str, Any]) -> int | None:
    """How a fork that runs a script ends."""
    child = os.fork()
    if child == 0:
        perform(request)
    ends = time.monotonic() + float(request["timeout"])
    while True:
        ended, how = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(how)
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(POLL_SECONDS)


def perform(request: dict[str, Any]) -> NoReturn:
    """Runs the script as a process of its own would, and ends."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(request["env"])
        nothing, said = os.open(os.devnull, os.O_RDONLY), os.open(request["said"], os.O_WRONLY | os.O_APPEND)
        for source, target in ((nothing, 0), (said, 1), (said, 2)):
            os.dup2(source, target)
        sys.argv = request["argv"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


main()
