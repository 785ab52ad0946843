"""Facts of one stage's text that a listing needs, found by scanning bytes: no parse, no graph.

The scan costs milliseconds a megabyte. It tells modules apart (a fingerprint that ignores names and metadata), says
what differs between two modules of one name, and notices text that breaks off.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_PIECE = 1 << 18
"""Bytes that are searched at once: a search lets no other thread run."""
_INSTRUCTION = re.compile(rb"\n[ \t]++(?:ROOT )?%?[^\s=]++ = ")
_OPCODE = re.compile(rb"\n[ \t]++(?:ROOT )?%?[^\s=]++ = (?:\([^\n]*?\)|[^\s(]\S*+) ([a-z][a-z0-9-]*+)\(")
_TABLE = re.compile(rb"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:[0-9]+ .*\n)*\n?", re.MULTILINE)
_METADATA = re.compile(rb', metadata=\{(?:[^"{}]++|"(?:[^"\\]++|\\.)*+"|\{[^{}]*+\})*+\}')
_CONSTANT = re.compile(rb" constant\(.*?\)(?=,|$)", re.MULTILINE)
_ENTRY = re.compile(rb"(?<![^\s}])ENTRY\s")
_BLANKS = re.compile(rb"(?:\s++|//[^\n]*+|/\*(?s:.*?)\*/)*+")
_NO_CODE = re.compile(rb'"(?:[^"\\]++|\\.)*+"|//[^\n]*|/\*.*?\*/', re.DOTALL)
"""Strings and comments."""
_SHARDING = re.compile(rb"parameter\(([0-9]+)\).*?, sharding=(\{(?:[^{}]|\{[^{}]*\})*\})")
_BESIDE = ("is_scheduled", "frontend_attributes")
"""Attributes of a header that say nothing of the program."""
_OF_OPTIONS = frozenset(
    (
        "allow_spmd_sharding_propagation_to_parameters", "allow_spmd_sharding_propagation_to_output", "num_partitions",
        "replica_count",
    )
)  # fmt: skip
"""Attributes of a header that are printed from the compile's options."""
_FRAME = re.compile(rb" ?stack_frame_id=[0-9]++")
_FILE_NAME = re.compile(rb'^([0-9]+) "(.*)"$', re.MULTILINE)
_FILE_LOCATION = re.compile(rb"^[0-9]+ \{file_name_id=([0-9]+) .*?\bline=([0-9]+)", re.MULTILINE)
_SOURCE = re.compile(rb'(?:source_file="((?:[^"\\]++|\\.)*+)" )?source_line=([0-9]+)')
_INDEX_COMMENT = re.compile(r"/\*index=[0-9]+\*/")
_STRUCTURE = re.compile(r"[({\[<]|->|[)}\]>]|,|\"(?:[^\"\\]++|\\.)*+\"?")
_LAYOUT = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class TextFacts:
    """What a scan of one stage's text says."""

    instructions: int
    fingerprint: str
    """Digest of the text without the module's name, metadata and source tables: equal for equal programs."""
    skeleton: str
    """The same without the values of constants and the header."""
    parameters: tuple[str, ...]
    """Shapes with layouts of the entry's parameters."""
    result: str
    header: tuple[tuple[str, str], ...]
    """The other attributes of the ``HloModule`` line, in order."""
    shardings: tuple[tuple[int, str], ...]
    """(parameter, sharding) of the entry, where annotated."""
    whole: bytes = b""
    """Digest of all of the text."""


def count_instructions(text: bytes) -> int:
    """Instructions of all computations of a module's text."""
    return sum(len(_INSTRUCTION.findall(text, begin, end)) for begin, end in _pieces(text))


def has_instruction(text: bytes) -> bool:
    """Whether a line of it begins with an instruction."""
    return any(_INSTRUCTION.search(text, begin, end) for begin, end in _pieces(text))


def _pieces(text: bytes) -> Iterator[tuple[int, int]]:
    """Ranges that end where a line does, small enough that other threads need not wait for one."""
    begin = 0
    while begin < len(text):
        end = text.rfind(b"\n", begin + 1, begin + _PIECE) if begin + _PIECE < len(text) else len(text)
        if end < 0:
            end = text.find(b"\n", begin + _PIECE)
            end = end if end >= 0 else len(text)
        yield begin, end
        begin = end


def opcode_counts(text: bytes) -> Counter[str]:
    """How often each opcode occurs in a module's text."""
    return Counter(name.decode("ascii", "replace") for name in _OPCODE.findall(text))


def content(text: bytes) -> bytes:
    """The text without source tables (``FileNames`` … ``StackFrames``), the part that a pass can change."""
    first_body = text.find(b"{\n")
    tables = text.find(b"\nFileNames\n")
    if tables < 0 or (0 <= first_body < tables):
        return text
    end = tables + 1
    while (match := _TABLE.match(text, end)) is not None:
        end = match.end()
    return text[: tables + 1] + text[end:]


def content_digest(text: bytes) -> bytes:
    """Digest of ``content``: equal for two snapshots between which nothing changed."""
    return hashlib.blake2b(content(text).strip(), digest_size=16).digest()


def told_by_both(text: bytes) -> bytes:
    """What a module's text dumped by XLA and the text made of its proto both tell.

    A proto has no compile options, so the attributes that XLA's printer takes from them are gone; the frames of its
    source are numbered anew; and all values of large constants are there, which XLA's own text leaves out.
    Source: ``openxla/xla:xla/hlo/ir/hlo_module.cc#HloModule::Print``.
    """
    body = content(text).strip()
    end = body.find(b"\n")
    end = end if end >= 0 else len(body)
    name, *attributes = split_top_level(body[:end].decode("utf-8", "replace"))
    kept = [part for part in attributes if part.strip().partition("=")[0] not in _OF_OPTIONS]
    rest = _CONSTANT.sub(b" constant(?)", _FRAME.sub(b"", body[end:]))
    return ",".join([name, *kept]).encode("utf-8", "replace") + rest


def same_program(a: bytes, b: bytes) -> bool:
    """Whether two texts that differ hold the same program: instructions and header are equal, but for what a header
    says beside the program, the order of computations and, where not both are schedules, the order of the lines."""
    (head_a, body_a), (head_b, body_b) = _cut(content(a).strip()), _cut(content(b).strip())
    if [one for one in head_a if one[0] not in _BESIDE] != [one for one in head_b if one[0] not in _BESIDE]:
        return False
    if body_a == body_b:
        return True
    # Computations of printed text end in a brace alone on its line.
    end = b"\n}" if all(("is_scheduled", "true") in head for head in (head_a, head_b)) else b"\n"
    return sorted(part.strip() for part in body_a.split(end)) == sorted(part.strip() for part in body_b.split(end))


def _cut(text: bytes) -> tuple[list[tuple[str, str]], bytes]:
    end = text.find(b"\n")
    end = end if end >= 0 else len(text)
    return header_attributes(text[:end].decode("utf-8", "replace")), text[end:]


def scan(text: bytes) -> TextFacts:
    """The facts of one stage's text; never fails, a text that is not HLO has no parameters and zero instructions."""
    end = text.find(b"\n")
    head = text[: end if end >= 0 else len(text)].decode("utf-8", "replace")
    body = b"\n" + _METADATA.sub(b"", content(text[end:] if end >= 0 else b"")).strip()
    attributes = dict(header_attributes(head))
    layout = attributes.pop("entry_computation_layout", "")
    parameters, result = entry_layout(layout)
    entry = body.rfind(b"\nENTRY ")
    tail = body[max(entry, 0) :]
    skeleton = hashlib.blake2b(_CONSTANT.sub(b" constant(?)", body), digest_size=16).hexdigest()
    whole = hashlib.blake2b(body, digest_size=16)
    whole.update(repr(sorted(attributes.items())).encode("utf-8", "replace"))
    whole.update(layout.encode("utf-8", "replace"))
    shardings = tuple(
        (int(number), value.decode("utf-8", "replace"))
        for line in tail.split(b"\n")
        if b"sharding=" in line and (match := _SHARDING.search(line)) is not None
        for number, value in [match.groups()]
    )
    return TextFacts(
        instructions=count_instructions(text),
        fingerprint=whole.hexdigest(),
        skeleton=skeleton,
        parameters=parameters,
        result=result,
        header=tuple(attributes.items()),
        shardings=shardings,
        whole=hashlib.blake2b(text, digest_size=16).digest(),
    )


def header_attributes(line: str) -> list[tuple[str, str]]:
    """The ``key=value`` attributes of an ``HloModule`` line, in order; empty for any other line."""
    if not line.startswith("HloModule "):
        return []
    attributes: list[tuple[str, str]] = []
    for part in split_top_level(line[len("HloModule ") :])[1:]:
        key, equals, value = part.strip().partition("=")
        attributes.append((key, value if equals else ""))
    return attributes


def entry_layout(value: str) -> tuple[tuple[str, ...], str]:
    """Parameter shapes and result shape of an ``entry_computation_layout`` value."""
    text = value.strip()
    if not (text.startswith("{(") and text.endswith("}")):
        return (), ""
    text = text[1:-1]
    depth = 0
    for match in _STRUCTURE.finditer(text):
        mark = match[0]
        if mark in _OPENING:
            depth += 1
        elif mark in _CLOSING:
            depth -= 1
            if depth == 0:
                parameters = _INDEX_COMMENT.sub("", text[1 : match.start()])
                parts = tuple(part.strip() for part in split_top_level(parameters)) if parameters.strip() else ()
                return parts, _INDEX_COMMENT.sub("", text[match.end() :].removeprefix("->"))
    return (), ""


def split_top_level(text: str) -> list[str]:
    """The parts of a text between commas that no bracket or string encloses."""
    parts: list[str] = []
    depth = start = 0
    for match in _STRUCTURE.finditer(text):
        mark = match[0]
        if mark in _OPENING:
            depth += 1
        elif mark in _CLOSING:
            depth -= 1
        elif mark == "," and depth <= 0:
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    return parts


_OPENING = frozenset("({[<")
_CLOSING = frozenset(")}]>")


def broken(text: bytes) -> str | None:
    """Why a stage's text is not whole, in one sentence; None for a whole one.

    XLA prints the entry computation last, so a whole text has an ENTRY and ends in the brace that closes it.
    """
    begin = _BLANKS.match(text)
    start = begin.end() if begin is not None else 0
    if start == len(text):
        return "the file is empty"
    if not text.startswith(b"HloModule", start):
        return "the file does not start with HloModule: not HLO text"
    if b"\0" in text[:4096]:
        return "the file holds binary data: not HLO text"
    entry = text.rfind(b"\nENTRY ")
    if entry >= 0 and text[-4096:].rstrip().rsplit(b"\n", 1)[-1].strip() == b"}":
        return None  # as XLA prints it; people put braces elsewhere
    for match in _ENTRY.finditer(text):
        entry = match.start()
    if entry < 0:
        return "the text breaks off before the ENTRY computation"
    rest = _NO_CODE.sub(b"", text[entry:])
    if not 0 < rest.count(b"{") == rest.count(b"}"):
        return "the text breaks off inside the ENTRY computation: its closing brace is missing"
    return None


def unfinished(text: bytes) -> str | None:
    """The same for a computation or an instruction without a module around it, which need not have an ENTRY."""
    code = _NO_CODE.sub(b"", text)
    return "the text breaks off: a brace is not closed" if code.count(b"{") > code.count(b"}") else None


def difference(old: TextFacts, new: TextFacts, *, limit: int = 3) -> str:
    """What differs between two compiles of one name, most telling first; empty where the texts do not differ.

    Only causes are named: where shapes differ, the rest of the body follows from them.
    """
    found: list[str] = []
    if len(old.parameters) != len(new.parameters):
        found.append(f"{len(old.parameters)} → {len(new.parameters)} parameters")
    else:
        for number, (was, now) in enumerate(zip(old.parameters, new.parameters, strict=True)):
            if was != now:
                found.append(_shape_difference(f"parameter {number}", was, now))
    if old.result != new.result and not found:
        found.append(_shape_difference("result", old.result, new.result))
    shapes_differ = bool(found)
    was_header, now_header = dict(old.header), dict(new.header)
    for key in sorted(was_header.keys() | now_header.keys()):
        was, now = was_header.get(key), now_header.get(key)
        if was != now and not (shapes_differ and key.startswith("allow_spmd_sharding")):
            found.append(_attribute_difference(key, was, now))
    if old.shardings != new.shardings and old.fingerprint != new.fingerprint:
        found.extend(_sharding_difference(dict(old.shardings), dict(new.shardings)))
    if not found and old.fingerprint != new.fingerprint:
        if old.skeleton == new.skeleton:
            found.append("values of constants")
        elif old.instructions != new.instructions:
            found.append(f"body: {old.instructions} → {new.instructions} instructions")
        else:
            found.append("body")
    if len(found) > limit:
        found = [*found[:limit], f"{len(found) - limit} more"]
    return "; ".join(found)


def source_difference(old: bytes, new: bytes, *, limit: int = 2) -> str:
    """What differs between the texts of two equal programs: the lines that they come from, or else what is said of an
    instruction in its metadata; empty where neither does."""
    was, now = (dict.fromkeys(_places(text)) for text in (old, new))
    pairs = list(zip((one for one in was if one not in now), (one for one in now if one not in was), strict=False))
    if pairs:
        shown = ", ".join(_moved(*pair) for pair in pairs[:limit])
        return f"source: {shown}" + (f" and {len(pairs) - limit} more" if len(pairs) > limit else "")
    for before, after in zip(_METADATA.findall(old), _METADATA.findall(new)):
        one, other = (
            _FRAME.sub(b"", part)[len(b", metadata=") :].decode("utf-8", "replace") for part in (before, after)
        )
        if one != other:
            return f"metadata: {_short(one)} → {_short(other)}"
    return ""


def _places(text: bytes) -> list[tuple[str, str]]:
    """(file, line) of a module's source places, in the order of its text."""
    names = {number: name for number, name in _FILE_NAME.findall(text[: max(text.find(b"\nFunctionNames\n"), 0)])}
    found = [(names.get(number, b""), line) for number, line in _FILE_LOCATION.findall(text)] or _SOURCE.findall(text)
    return [(file.decode("utf-8", "replace"), line.decode()) for file, line in found]


def _moved(was: tuple[str, str], now: tuple[str, str]) -> str:
    shown: list[str] = []
    for file, line in (was, now):
        name = file.rpartition("/")[2] if was[0] == now[0] else file
        shown.append(f"{name}:{line}" if name else f"line {line}")
    return f"{shown[0]} → {shown[1]}"


def _shape_difference(what: str, was: str, now: str) -> str:
    bare_was, bare_now = _LAYOUT.sub("", was), _LAYOUT.sub("", now)
    if bare_was == bare_now:
        return f"layout of {what}: {_short(was)} → {_short(now)}"
    return f"{what}: {_short(bare_was)} → {_short(bare_now)}"


def _attribute_difference(key: str, was: str | None, now: str | None) -> str:
    if was is None:
        return f"{key}={_short(now or '')} is new"
    if now is None:
        return f"{key}={_short(was)} is gone"
    return f"{key}: {_short(was)} → {_short(now)}"


def _sharding_difference(was: dict[int, str], now: dict[int, str]) -> list[str]:
    return [
        f"sharding of parameter {number}: {_short(was.get(number, 'none'))} → {_short(now.get(number, 'none'))}"
        for number in sorted(was.keys() | now.keys())
        if was.get(number) != now.get(number)
    ]


def _short(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
