"""Questions about memory put to the real compiler: the program with and without the change, without a device."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hloscope.core.dumps.buffer_reports import read_buffer_assignment
from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import CompileError, UsageError
from hloscope.core.text import load_module


@dataclass(frozen=True, slots=True)
class Proof:
    """Bytes that the real compiler allocates, before and after."""

    change: str
    compiler: str
    total_before: int
    total_after: int


def prove_donation(text: str, number: int, target: str | None, *, path: str | None = None) -> Proof:
    """Compile a program as it was written, and with parameter `number` donated to the first free output of its shape.

    Raises UsageError where no output fits, CompileError where the compiler refuses or forgets the donation.
    """
    from hloscope.core.xla.compile import compile_hlo_text

    module = load_module(text, path=path)
    entry = module.entry
    if number >= len(entry.parameters):
        raise UsageError(f"there is no parameter {number}: the entry has {len(entry.parameters)}")
    shape = entry.parameters[number].shape.without_layout()
    inside = (module.attrs.get("input_output_alias") or "{}").strip()[1:-1].strip()
    taken = set(re.findall(r"\{([\d, ]*)\}\s*:\s*\(", inside))
    place = next(
        (
            ",".join(map(str, index))
            for index, part in entry.root.shape.leaves()
            if part.without_layout() == shape and ",".join(map(str, index)) not in taken
        ),
        None,
    )
    if place is None:
        raise UsageError(f"no output can take parameter {number}: none that is free has shape {shape}")
    alias = f"input_output_alias={{ {inside + ', ' if inside else ''}{{{place}}}: ({number}, {{}}, must-alias) }}"
    head, comma, rest = text.partition(", entry_computation_layout")
    if not comma:
        line, newline, rest = text.partition("\n")
        head, comma = line, newline
    head = re.sub(r", input_output_alias=\{(?:[^{}]|\{[^{}]*\})*\}", "", head)
    changed = f"{head}, {alias}{comma}{rest}"
    device = target if target in ("cpu", "h100", "v5e") else "h100" if target == "gpu" else "cpu"
    totals: list[int] = []
    compiler = device
    for program in (text, changed):
        with tempfile.TemporaryDirectory(prefix="hloscope-") as folder:
            dump = str(Path(folder) / "dump")
            result = compile_hlo_text(program, dump_to=dump, target=device, pass_re="^$")
            compiler = f"jaxlib {result.jaxlib} for {device}"
            totals.append(_total(dump, want_alias=program is changed, number=number))
    return Proof(f"donate:{number}", compiler, totals[0], totals[1])


def _total(dump: str, *, want_alias: bool, number: int) -> int:
    with open_dump(dump) as opened:
        chosen, _ = opened.select(None)
        for file in chosen.files_of(FileKind.BUFFER_ASSIGNMENT):
            report = read_buffer_assignment(opened.read_file(file).decode("utf-8", "replace"), path=file.path)
            if want_alias and not any(one.parameter == number and one.live_out for one in report):
                raise CompileError(f"the compiler did not keep the donation of parameter {number}")
            return sum(one.size for one in report)
    raise CompileError("the compiler wrote no buffer report")
