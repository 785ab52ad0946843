"""Ctrl-C ends a query that would never end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from hloscope.core.ledger.record import LedgerWriter

ENDLESS = "with recursive t(x) as (select 1 union all select x+1 from t) select count(*) from t"


def test_ctrl_c_ends_an_endless_query(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    with LedgerWriter(path) as writer:
        writer.begin_module("m")
    command = [sys.executable, "-m", "hloscope.core.cli.main", "sql", str(path), ENDLESS]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(100):  # the signal is for the query, not for the start of Python
            time.sleep(0.1)
            if process.poll() is not None:
                break
            if _running_query(process.pid):
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, said) == (130, "hloscope: interrupted\n")


def _running_query(pid: int) -> bool:
    """Whether the process has used enough time to be past its imports."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) > 100
