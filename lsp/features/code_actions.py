"""Code actions: extract a computation to a file that runs alone, remove what nothing uses, jump across passes."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from lsprotocol import types

from hloscope.core.views.advice import ADVICE
from hloscope.core.views.extract import extracted_text
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS, Feature
from hloscope.lsp.features.rewrite import inline, outline
from hloscope.lsp.features.stages import dump_of, local_path

if TYPE_CHECKING:
    from collections.abc import Iterator

_CROSS = (
    ("Go to this instruction in the previous stage", "hloscope.previousStage"),
    ("Go to this instruction in the next stage", "hloscope.nextStage"),
    ("Go to the first stage that has this instruction", "hloscope.firstStage"),
    ("Go to the last stage that has this instruction", "hloscope.lastStage"),
)
_FUSED = (("Open the fusion that this instruction ended up in", "hloscope.openFusion"),)
_WHOLE = (
    ("Show the buffer map", "hloscope.showBufferMap"),
    ("Show layout copies and their causes", "hloscope.showCopies"),
    ("Open the dashboard here", "hloscope.openDashboard"),
    ("Reduce this module to a small one with the same fault", "hloscope.reduce"),
    ("Find the pass after which the result is wrong", "hloscope.bisect"),
)
_STAGE = (
    ("Show what the pass before this stage changed", "hloscope.peekDiff"),
    ("Find the pass behind this stage after which the result is wrong", "hloscope.bisectFromHere"),
)
_USERS = 3
_EXTRACTED_AT_ONCE = 1_000
"""Instructions; an editor asks for actions whenever the cursor moves."""
_NEVER_FUSED = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "while", "conditional", "call"})
"""Of these nobody asks why they are not fused."""
_NOT_REDUCED = frozenset({"parameter", "constant"})


def actions(reading: Reading, params: types.CodeActionParams) -> list[types.CodeAction]:
    """What can be done with the thing under the cursor, or with the instructions selected."""
    index = reading.index
    start, end = reading.offset(params.range.start), reading.offset(params.range.end)
    target = index.at_offset(start)
    out: list[types.CodeAction] = []
    in_dump = dump_of(reading.uri) is not None
    if target.instruction >= 0:
        name = index.name(target.instruction)
        out.extend(
            types.CodeAction(title, command=types.Command(title, command, arguments=[reading.uri, name, 0]))
            for title, command in (*(_CROSS if in_dump else ()), *_FUSED)
        )
        out.extend(_explanations(reading, target.instruction))
        inlined = inline(reading, target.instruction)
        if inlined is not None:
            out.append(inlined)
    if end > start and (outlined := outline(reading, start, end)) is not None:
        out.append(outlined)
    out.extend(_reductions(reading, target.computation, target.refers_to, target.kind, target.instruction))
    for title, command in (*_WHOLE, *(_STAGE if in_dump else ())):
        out.append(types.CodeAction(title, command=types.Command(title, command, arguments=[reading.uri])))
    wanted = _computation(reading, target.kind, target.refers_to, target.instruction, target.computation)
    if wanted is not None:
        out.extend(_extract(reading, wanted))
    if index.instruction_count <= FULL_INSTRUCTIONS:
        out.extend(_remove_dead(reading))
    return out


def _reductions(
    reading: Reading, inside: int, refers_to: int, kind: str, instruction: int
) -> Iterator[types.CodeAction]:
    """Reducing no more than what is under the cursor."""
    index = reading.index
    asked: list[tuple[str, list[str]]] = []
    if instruction >= 0 and not index.is_root(instruction) and index.opcode(instruction) not in _NOT_REDUCED:
        name = index.name(instruction)
        home = index.computation(index.computation_of(instruction)).name
        asked.append((f"Reduce from here: a small module in which %{name} has the same fault", [home, name]))
    number = refers_to if kind in ("computation", "computation-reference") and refers_to >= 0 else inside
    if number >= 0 and not (one := index.computation(number)).is_entry and one.name:
        asked.append((f"Reduce %{one.name} to a small module with the same fault", [one.name]))
    for title, names in asked:
        command = types.Command(title, "hloscope.reduce", arguments=[reading.uri, *names])
        yield types.CodeAction(title, command=command)


def _explanations(reading: Reading, i: int) -> Iterator[types.CodeAction]:
    """Questions about one instruction, and the change that removes it where it is a copy."""
    index = reading.index
    name = index.name(i)
    asked: list[tuple[str, str, list[str]]] = [(f"Tell all that is known of %{name}", "hloscope.why", [name])]
    fusible = () if index.opcode(i) in _NEVER_FUSED else index.users(i)
    for user in [one for one in fusible if index.opcode(one) not in _NEVER_FUSED][:_USERS]:
        other = index.name(user)
        asked.append((f"Explain why %{name} is not fused into %{other}", "hloscope.whyNotFused", [name, other]))
    facts = None if reading.companion is None else reading.companion.facts
    copied = None if facts is None else facts.copies.get(name)
    if copied is not None and copied["remedy"] is not None:
        title = f"Apply the change that removes this copy: {copied['remedy']}"
        asked.append((title, "hloscope.applyRemedy", [copied["names"][0]]))
    for title, command, names in asked:
        yield types.CodeAction(title, command=types.Command(title, command, arguments=[reading.uri, *names]))


def _computation(reading: Reading, kind: str, refers_to: int, instruction: int, inside: int) -> int | None:
    """The computation that an action on this place is about: the one named, the one called, else the one around."""
    if kind in ("computation", "computation-reference") and refers_to >= 0:
        return refers_to
    if instruction >= 0:
        called = [one for one in reading.index.called(instruction) if one >= 0]
        if called:
            return called[0]
    return inside if inside >= 0 else None


def _extract(reading: Reading, number: int) -> Iterator[types.CodeAction]:
    one = reading.index.computation(number)
    path = local_path(reading.uri)
    if path is None or one.is_entry or not one.name:
        return
    title = f"Extract %{one.name} to a module of its own"
    text = extracted_text(reading.index, number, _EXTRACTED_AT_ONCE)
    if text is None:
        # Another process does it, and says what is wrong where it cannot.
        command = types.Command(title, "hloscope.extract", arguments=[reading.uri, one.name])
        yield types.CodeAction(title, kind=types.CodeActionKind.RefactorExtract, command=command)
        return
    stem = path.removesuffix(".txt").removesuffix(".hlo")
    numbered = (f"{stem}.{one.name}{f'.{n}' if n else ''}.hlo" for n in itertools.count())
    uri = Path(next(file for file in numbered if not os.path.lexists(file))).as_uri()
    start = types.Range(types.Position(0, 0), types.Position(0, 0))
    yield types.CodeAction(
        title,
        kind=types.CodeActionKind.RefactorExtract,
        edit=types.WorkspaceEdit(
            document_changes=[
                types.CreateFile(uri, options=types.CreateFileOptions(overwrite=False, ignore_if_exists=False)),
                types.TextDocumentEdit(
                    types.OptionalVersionedTextDocumentIdentifier(uri), [types.TextEdit(start, text)]
                ),
            ]
        ),
    )


def _remove_dead(reading: Reading) -> Iterator[types.CodeAction]:
    index = reading.index
    dead = [i for i, _, _ in ADVICE[0].find(index, range(index.instruction_count))]
    if not dead:
        return
    edits: list[types.TextEdit] = []
    for i in dead:
        start = reading.text.rfind("\n", 0, index.span(i)[0]) + 1
        end = reading.text.find("\n", index.span(i)[1])
        if reading.text[start : index.span(i)[0]].strip() == "" and end >= 0:
            edits.append(types.TextEdit(reading.range(start, end + 1), ""))
    if edits:
        yield types.CodeAction(
            f"Remove {len(edits)} instruction{'s'[: len(edits) != 1]} that nothing uses",
            kind=types.CodeActionKind.QuickFix,
            edit=types.WorkspaceEdit(changes={reading.uri: edits}),
        )


FEATURE = Feature(
    types.TEXT_DOCUMENT_CODE_ACTION,
    actions,
    heavy=True,
    options=types.CodeActionOptions(
        code_action_kinds=[
            types.CodeActionKind.QuickFix,
            types.CodeActionKind.RefactorExtract,
            types.CodeActionKind.RefactorInline,
        ]
    ),
)
