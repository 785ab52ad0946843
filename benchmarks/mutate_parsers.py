"""Breaks HLO texts at random and compares the reader's strict verdict with that of the parser in the installed jaxlib.

    python benchmarks/mutate_parsers.py DIR [--unit token] [--count 2000] [--seed 0] [--largest 40000] [--keep DIR]

Each round takes a text below DIR and changes one token, byte or line: it is deleted, doubled, swapped with the next, or
replaced by one that stands elsewhere or, a token or byte, by one from a list of likely mistakes. Counted are the texts
on which the two disagree, either way, and those on which the reader raises. With ``--keep`` such texts are written to
a folder. jaxlib runs in a child process, because some texts abort it; an abort counts as a refusal.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare_parsers import Jaxlib

from hloscope.core.text.reader import read_text

_TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*\"|/\*.*?\*/|//[^\n]*|[A-Za-z_][\w.\-]*|-?\d+(?:\.\d+)?(?:[eE]-?\d+)?|->|<=|\S")
_LIKELY = (
    "{", "}", "(", ")", "[", "]", ",", ":", "=", "%", "*", "#", "->", "?", "-1", "0", "1", "99999999999", "1e5", "nan",
    "inf", "true", "x", "ROOT", "ENTRY", "f32", "s4", "pred[]", "()", "{}", '""', '"a"', "/*c*/", "// c\n", "é", "...",
    "99999999999999999999999", "parameter", "constant", "add", "tuple", "metadata", "sharding", "replicated", "\x00",
    "'", '"', "/*", "2147483648", "-2147483649", "\ufeff", "%a", "3x3", "1_1", "b01f_01io->b01f", "_", ".5", "5.", "~",
)  # fmt: skip


_UNITS = {"token": _TOKEN, "byte": re.compile(r"[\s\S]"), "line": re.compile(r"[^\n]*\n")}
_BYTES = (*"{}()[],:=%*#?-+/\\\"'.~_ 0159xabZ\n\t\r\v\f\x00\x7f", "\u00e9", "\u2028")


def mutate(text: str, random_: random.Random, unit: str = "token") -> str:
    """The text with one token, byte or line changed."""
    if unit == "mixed":
        unit = random_.choice(tuple(_UNITS))
    likely = {"token": _LIKELY, "byte": _BYTES}.get(unit)
    tokens = [found.span() for found in _UNITS[unit].finditer(text)]
    if len(tokens) < 2:
        return text + "x"
    at = random_.randrange(len(tokens) - 1)
    start, end = tokens[at]
    following, last = tokens[at + 1]
    word = text[start:end]
    kind = random_.randrange(4 if likely is None else 6)
    if kind == 0:
        return text[:start] + text[end:]
    if kind == 1:
        return text[:end] + (random_.choice(("", " ")) if unit == "token" else "") + word + text[end:]
    if kind == 2:
        return text[:start] + text[following:last] + text[end:following] + word + text[last:]
    if kind == 3 or likely is None:
        begin, stop = random_.choice(tokens)
        return text[:start] + text[begin:stop] + text[end:]
    if kind == 4:
        return text[:start] + random_.choice(likely) + text[end:]
    return text[:start] + random_.choice(likely) + random_.choice(("", " ")) + text[start:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000, help="rounds")
    parser.add_argument("--unit", choices=(*_UNITS, "mixed"), default="token")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--largest", type=int, default=40_000, help="bytes of the largest text that is taken")
    parser.add_argument("--keep", type=Path, help="folder for the texts on which the two disagree")
    parser.add_argument("--details", action="store_true", help="say where they disagree")
    given = parser.parse_args()
    paths = sorted(p for p in given.folder.rglob("*") if p.suffix in (".hlo", ".txt") and p.is_file())
    paths = [p for p in paths if p.stat().st_size <= given.largest]
    random_ = random.Random(given.seed)
    jaxlib = Jaxlib()
    counts: Counter[str] = Counter()
    rounds = 0
    while rounds < given.count:
        path = random_.choice(paths)
        text = path.read_text(errors="surrogateescape")
        if "HloModule" not in text:
            continue
        broken = mutate(text, random_, given.unit)
        rounds += 1
        theirs = jaxlib.read(broken)
        try:
            ours = read_text(broken, check=True)
        except Exception as error:  # the reader promises not to raise
            kind, why = "the reader raised", repr(error)
        else:
            refused = ours.xla_would_reject
            if refused != theirs["ok"]:
                counts["both accept" if theirs["ok"] else "both refuse"] += 1
                continue
            found = sorted(
                [*(d for d in ours.diagnostics if d.severity == "error"), *ours.objections], key=lambda d: d.offset
            )
            kind = "refused here, accepted by jaxlib" if refused else "accepted here, refused by jaxlib"
            why = f"{found[0].line}:{found[0].column}: {found[0].message}" if found else ""
            why = why if refused else " ".join(str(theirs.get("error", "")).split())[-300:]
        counts[kind] += 1
        if given.keep is not None:
            given.keep.mkdir(parents=True, exist_ok=True)
            name = f"{given.seed}_{rounds}.hlo"
            (given.keep / name).write_text(broken, errors="surrogateescape")
            if given.details:
                print(f"{kind}: {given.keep / name} ({path.name}): {why}", flush=True)
        elif given.details:
            print(f"{kind}: {path}: {why}", flush=True)
    jaxlib.close()
    print(f"{rounds} texts, {jaxlib.deaths} aborts of jaxlib")
    for kind, count in sorted(counts.items()):
        print(f"{count:7} {kind}")


if __name__ == "__main__":
    main()
