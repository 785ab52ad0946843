"""Compares the reader and printer with the parser and printer that the installed jaxlib carries, on a folder of texts.

    python benchmarks/compare_parsers.py DIR [--known FILE] [--limit N] [--details]

Each ``*.hlo`` and ``*.txt`` below DIR is one text. Counted are: texts that both accept, and that only one does, in the
ordinary and in the strict mode; of those that both accept, how many print the same module (jaxlib's print of our print
equals its print of the original) and how many print the very text that jaxlib prints. jaxlib runs in a child process,
because some texts abort it. With ``--known`` verdicts are kept in a file and used again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from hloscope.core.text.names import as_xla_reads
from hloscope.core.text.printer import PrintOptions, print_module
from hloscope.core.text.reader import read_text

_CHILD = """
import json, sys
from jaxlib import _hlo
options = _hlo.HloPrintOptions()
for line in sys.stdin:
    try:
        answer = {"ok": True, "print": _hlo.hlo_module_from_text(json.loads(line)).to_string(options)}
    except Exception as error:
        answer = {"ok": False, "error": str(error)}
    print(json.dumps(answer), flush=True)
"""


class Jaxlib:
    """jaxlib's parser and printer in a child that is started again when a text kills it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self.deaths = 0

    def read(self, text: str) -> dict[str, Any]:
        """``{"ok", "print" or "error"}`` of a text."""
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(text) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            self._child.wait()
            self._child = None
            self.deaths += 1
            return {"ok": False, "error": "the parser aborted"}
        return json.loads(answer)

    def close(self) -> None:
        """End the child."""
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
            self._child.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--known", type=Path, help="JSON lines of jaxlib's verdicts, read and written")
    parser.add_argument("--limit", type=int, default=None, help="only the first N texts")
    parser.add_argument("--no-reprint", action="store_true", help="do not let jaxlib read our print")
    parser.add_argument("--details", action="store_true", help="list the texts where the two differ")
    given = parser.parse_args()
    paths = sorted(p for p in given.folder.rglob("*") if p.suffix in (".hlo", ".txt") and p.is_file())[: given.limit]
    known: dict[str, dict[str, Any]] = {}
    if given.known is not None and given.known.exists():
        for line in given.known.read_text().splitlines():
            row = json.loads(line)
            known[row["path"]] = row
    jaxlib = Jaxlib()
    counts: Counter[str] = Counter()
    details: list[str] = []

    def note(kind: str, path: Path, what: str) -> None:
        counts[kind] += 1
        details.append(f"{kind}: {path}: {what}")

    for path in paths:
        text = path.read_text(errors="surrogateescape")
        key = str(path.relative_to(given.folder))
        theirs = known.get(key)
        if theirs is None:
            theirs = known[key] = {"path": key, **jaxlib.read(text)}
        try:
            ours = read_text(text, check=True)
        except Exception as error:  # the reader promises not to raise
            note("raised", path, repr(error))
            continue
        errors = [d for d in ours.diagnostics if d.severity == "error"]
        accepted = ours.module is not None and not errors
        why = errors[0] if errors else ours.objections[0] if ours.objections else None
        said = f"{why.line}:{why.column}: {why.message}" if why is not None else ""
        reason = str(theirs.get("error", theirs.get("err", ""))).replace("\n", " ")[-200:]
        if not theirs["ok"]:
            counts["jaxlib rejects"] += 1
            if not ours.xla_would_reject:
                note("strict accepts what jaxlib rejects", path, reason)
            continue
        counts["jaxlib accepts"] += 1
        if not accepted:
            note("rejected, though jaxlib accepts", path, said)
            continue
        if ours.xla_would_reject:
            note("strict rejects what jaxlib accepts", path, said)
        assert ours.module is not None
        try:
            exact = print_module(as_xla_reads(ours.module), PrintOptions.xla())
        except Exception as error:
            note("raised", path, repr(error))
            continue
        if exact.rstrip("\n") != theirs["print"].rstrip("\n"):
            pairs = zip(theirs["print"].split("\n"), exact.split("\n"), strict=False)
            at = next(((a, b) for a, b in pairs if a != b), ("", ""))
            note("prints another text", path, f"\n    jaxlib {_around(*at)}\n    ours   {_around(at[1], at[0])}")
        if not given.no_reprint:
            again = jaxlib.read(print_module(ours.module))
            if not again["ok"]:
                note("jaxlib rejects our print", path, again["error"].replace("\n", " ")[-200:])
            elif again["print"] != theirs["print"]:
                pairs = zip(theirs["print"].split("\n"), again["print"].split("\n"), strict=False)
                at = next(((a, b) for a, b in pairs if a != b), ("", ""))
                note("prints another module", path, f"\n    theirs {_around(*at)}\n    ours   {_around(at[1], at[0])}")
    jaxlib.close()
    if given.known is not None:
        given.known.write_text("".join(json.dumps(row) + "\n" for row in known.values()))
    if given.details:
        print("\n".join(sorted(details)))
    print(f"{len(paths)} texts, {jaxlib.deaths} aborts of jaxlib")
    for kind, count in sorted(counts.items()):
        print(f"{count:7} {kind}")


def _around(line: str, other: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), min(len(line), len(other)))
    return line[max(0, at - 60) : at + 60]


if __name__ == "__main__":
    main()
