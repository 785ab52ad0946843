"""What takes seconds, in a process of its own: ``python -m hloscope.lsp.child facts DIR MODULE``.

The server's threads share one interpreter: a replay of layout assignment in one of them would slow down every answer.
Here it cannot, and the server can end it at any time. The answer is one JSON object on stdout.

``python -m hloscope.lsp.child texts`` stays: it reads texts from stdin, each after its number of bytes (eight, the
lowest first), and answers each with the reader's and the verifier's findings, one line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hloscope.core.errors import HloscopeError, UsageError
from hloscope.core.views.run import load

if TYPE_CHECKING:
    from hloscope.core.views.run import Run

MOST_ROWS = 2_000
MOST_FINDINGS = 1_000
MOST_COMPARED_BYTES = 2 << 20
"""Text of a stage up to which all stages are compared for renames: some 10,000 instructions."""
_OPERAND = re.compile(r"\(operand (\d+)\)")
_INDEX = re.compile(r"(?:%[\w.\-]+|result)\{([\d,]*)\}")


def facts(run: Run) -> dict[str, Any]:
    """Copies with their causes, fusion decisions, places in memory, hazards and renames: each a list, empty where
    unknown."""
    out: dict[str, Any] = {"target": run.source.target, "notes": []}
    parts = {"copies": _copies, "fusion": _fusion, "buffers": _buffers, "hazards": _hazards, "renamed": _renamed}
    for key, ask in parts.items():
        try:
            out[key] = ask(run)[:MOST_ROWS]
        except HloscopeError as error:
            out[key] = []
            out["notes"].append(f"{key}: {error.message}")
        except Exception as error:
            # One part that fails must not hide what the others know; the command line shows the fault.
            out[key] = []
            out["notes"].append(f"{key}: {type(error).__name__}: {error}")
    return out


def _copies(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "names": [row.copy, *row.also],
            "bytes": row.bytes,
            "times": row.times,
            "from": row.from_layout,
            "to": row.to_layout,
            "kind": row.cause.kind,
            "sentence": row.cause.sentence,
            "instruction": row.cause.instruction,
            "operand": row.operand,
            "pass": row.cause.pass_name,
            "remedy": None if row.remedy is None else row.remedy.change,
        }
        for row in run.copies.rows
        if not row.free
    ]


def _fusion(run: Run) -> list[dict[str, Any]]:
    # A pass that asks again writes again; priorities are no verdicts.
    rows = {
        (row.producer, row.consumers, row.verdict, row.code, row.made): row
        for row in run.fusion.rows
        if row.verdict != "priority"
    }.values()
    return [
        {
            "producer": row.producer,
            "consumers": list(row.consumers),
            "verdict": row.verdict,
            "code": row.code,
            "reason": row.reason,
            "bytes": row.bytes,
            "us": [row.us_fused, row.us_unfused],
            "origin": row.origin,
            "made": row.made,
        }
        for row in sorted(rows, key=lambda row: (row.verdict == "fused", -(row.bytes or 0)))
    ]


def _buffers(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "name": value.name,
            "index": value.shape_index,
            "allocation": one.index,
            "kind": one.kind,
            "offset": value.offset,
            "size": value.size,
            "live": value.live,
        }
        for one in run.buffers.map(largest=0).allocations
        for value in one.values
    ]


def _hazards(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "code": one.code,
            "error": one.severity == "error",
            "instruction": one.instruction,
            "other": one.other_instruction,
            "message": one.message,
        }
        for one in run.buffers.hazards()
    ]


def _renamed(run: Run) -> list[dict[str, Any]]:
    """Names that instructions got from passes, the latest stages first; none of a dump too large to compare quickly."""
    out: list[dict[str, Any]] = []
    if max(len(run.stage_bytes(0)), len(run.stage_bytes(-1))) > MOST_COMPARED_BYTES:
        return out
    for number, row in enumerate(run.outline):
        if not number or not row.own_snapshot or row.changed is False:
            continue
        found = run.diff(number)
        out += [
            {"name": one.name, "old": one.old_name, "pass": row.pass_name}
            for one in (*found.renamed, *found.modified)
            if one.old_name is not None and "opcode" not in one.what
        ]
    return out[::-1]


def remedy(run: Run, copy: str) -> dict[str, Any]:
    """The module before layout assignment with the change made that removes a copy. Raises UsageError without one."""
    from hloscope.core.hlo.layout import Layout
    from hloscope.core.layout.remedies import Change, apply_change
    from hloscope.core.text import load_module, print_module

    row = next((one for one in run.copies.rows if copy in (one.copy, *one.also)), None)
    if row is None or row.remedy is None:
        raise UsageError(f"no change is known that removes the copy {copy}")
    found = row.remedy
    stage = max(0, row.cause.stage - 1) if len(run) > 1 else 0
    module = load_module(run.stage_text(stage), path=run.source.path)
    inner, operand = _INDEX.search(found.change), _OPERAND.search(found.change)
    index = tuple(int(one) for one in inner[1].split(",") if one) if inner is not None else ()
    number = int(operand[1]) if operand is not None else 0
    if found.kind == "parameter":
        number = next(k for k, one in enumerate(module.entry.parameters) if one.name == found.name)
    layout = None if found.layout is None else Layout.parse(found.layout)
    apply_change(module, Change(found.kind, found.name, number, index, layout))
    return {"text": print_module(module), "change": found.change}


def texts() -> int:
    """Findings of one text after the other, until stdin ends."""
    import struct

    from hloscope.core.views.findings import findings_of_text

    source = sys.stdin.buffer
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    while len(head := source.read(8)) == 8:
        data = source.read(struct.unpack("<Q", head)[0])
        try:
            found = findings_of_text(data.decode("utf-8", "surrogatepass"))
        except Exception as error:
            # A fault of ours in one text must not end the looks at others.
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out, flush=True)
            continue
        reader = [
            [one.message, one.severity, one.code, one.offset, one.end_offset, one.related]
            for one in found.reader[:MOST_FINDINGS]
        ]
        broken = [[one.code, one.message, one.computation, one.instruction] for one in found.broken[:MOST_FINDINGS]]
        print(json.dumps({"reader": reader, "broken": broken}), file=out, flush=True)
    return 0


def part(run: Run, computation: str, instruction: str) -> dict[str, Any]:
    """A computation, or with an instruction what computes that one's value, as a module of its own."""
    from hloscope.core.text import load_module, print_module
    from hloscope.core.views.extract import extract_computation, extract_result

    module = load_module(run.stage_text(0), path=run.source.path)
    if instruction:
        found = extract_result(module, computation or None, instruction)
    else:
        found = extract_computation(module, computation)
    return {"text": print_module(found)}


QUESTIONS: dict[str, Callable[..., dict[str, Any]]] = {"facts": facts, "remedy": remedy, "part": part}


def main(arguments: list[str]) -> int:
    """The answer on stdout; 2 with one line on stderr where there is none."""
    if arguments == ["texts"]:
        return texts()
    question, path, module, *rest = arguments
    stdout = os.dup(1)
    os.dup2(2, 1)  # whatever else prints must not stand in the answer
    try:
        with load(path, int(module) if module else None) as run:
            answer = QUESTIONS[question](run, *rest)
    except HloscopeError as error:
        print(error.message, file=sys.stderr)
        return 2
    with os.fdopen(stdout, "w") as out:
        json.dump(answer, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
