"""Runs pyright and fails on any error, and also when it looked at fewer files than there are.

Pyright follows the links under typings/ only where each is named, and reports "0 errors" when it found nothing; a
check that can pass on nothing is no check.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("core", "lsp", "tui", "bisect", "tests")


def main() -> int:
    expected = sum(1 for folder in FOLDERS for _ in (ROOT / folder).rglob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        print(done.stdout + done.stderr, file=sys.stderr)
        return 1
    errors = [found for found in report["generalDiagnostics"] if found["severity"] == "error"]
    for found in errors:
        start = found["range"]["start"]
        path = Path(found["file"]).resolve().relative_to(ROOT)
        where = f"{path}:{start['line'] + 1}:{start['character'] + 1}"
        print(f"{where}: {found['message']} ({found.get('rule', 'syntax')})")
    analysed = report["summary"]["filesAnalyzed"]
    print(f"pyright: {len(errors)} errors, {analysed} files analysed of {expected}")
    return 1 if errors or analysed < expected or not expected else 0


if __name__ == "__main__":
    sys.exit(main())
