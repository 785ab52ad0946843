"""What a PATH on the command line is, judged by its first bytes: a dump, an archive, a ledger, HLO text, a proto.

Nothing beyond the front of a file is read until its kind is known, so that a rubbish file of any size is refused at
once. ``read_hlo_text`` gives the text of a single HLO file whatever its form, StableHLO too.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import zlib
from dataclasses import dataclass
from enum import Enum

from hloscope.core.errors import DumpError, HloscopeError, ParseError, UnsupportedError
from hloscope.core.memory import available_memory, in_words

SNIFFED_BYTES = 64 << 10
"""Bytes at the front of a file that decide what it is."""
MAX_TEXT_BYTES = 4 << 30
"""Largest single HLO file that is read into memory."""
MAX_ONE_LINE_BYTES = 16 << 20
"""Largest text that is searched for instructions that begin no line: a whole module on one line, say."""
_UNPACKED_AT_ONCE = 4 << 20
LEDGER_MAGIC = b"SQLite format 3\0"
_GZIP = b"\x1f\x8b"
_ARCHIVES = (b"PK\x03\x04", b"PK\x05\x06", b"\x28\xb5\x2f\xfd")
_TAR_MARK_AT, _TAR_MARK = 257, b"ustar"

# Where HLO text may begin, after blanks and comments: a module, or a bare computation as XLA's parser takes it.
_BLANKS = r"(?:\s|/\*.*?\*/|//[^\n]*(?:\n|\Z))*"
_COMMENTS = re.compile(rf"{_BLANKS}(?:/\*.*)?", re.S)
_MODULE = re.compile(rf"{_BLANKS}HloModule\b", re.S)
_COMPUTATION = re.compile(rf"{_BLANKS}(?:ENTRY\s+)?%?[\w.$-]+\s*(?:\([^\n]*?\)\s*->[^\n]*?)?\{{\s*(?:\n|ROOT|%)", re.S)
_INSTRUCTION = re.compile(
    rf"{_BLANKS}(?:(?:ROOT\s+)?%?[\w.$-]+\s*=\s*(?:\(|[a-z][a-z0-9]*\[|token|opaque|[a-z][a-z0-9-]*\()"
    r"|[a-z][a-z0-9]*\[[\d,<=?\s]*\](?:\{[^{}\n]*\})?\s*[a-z][a-z0-9-]*\(|\([a-z][a-z0-9]*\[[^\n]*\)\s*[a-z][a-z0-9-]*\()",
    re.S,
)
_FURTHER_DOWN = re.compile(r"^(?:[IWEF]\d{4} [^\n\]]{0,200}\] ?)?HloModule [\w.%-]", re.M)
# MLIR begins with a module, a function, or the alias of an attribute, type or location (which may take several lines).
_MLIR = re.compile(
    r"(?:\s|//[^\n]*(?:\n|\Z))*"
    r"(?:module\b[^\n]*(?:\{|attributes)|builtin\.module\b|\"(?:builtin\.module|func\.func)\"|[#!][\w.$-]+\s*=\s*\S)"
)
# `module {` alone is MLIR if an operation of a dialect follows, and a computation of that name if an instruction does.
_MLIR_BODY = re.compile(
    r"(?:\s|//[^\n]*(?:\n|\Z))*module\s*\{(?:\s|//[^\n]*\n)*"
    r"(?:\"|[#!}]|[a-z_]\w*\.[\w.]+\s+[^=\s]|%[\w$.-]+(?::\d+)?\s*=\s*\"?[a-z_]\w*\.[a-z_])"
)
_FUNC = re.compile(r"^\s*(?:func\.func|stablehlo\.|\"stablehlo)", re.M)
_MLIR_BYTECODE = b"ML\xefR"


class InputKind(Enum):
    """The forms of PATH."""

    DIRECTORY = "directory"
    ARCHIVE = "archive"
    LEDGER = "ledger"
    TEXT = "text"
    PROTO = "proto"
    STABLEHLO = "stablehlo"

    @property
    def phrase(self) -> str:
        """The kind in a sentence, with its article."""
        return {"archive": "an archive", "text": "HLO text", "proto": "an HLO proto", "stablehlo": "StableHLO"}.get(
            self.value, f"a {self.value}"
        )


@dataclass(frozen=True, slots=True)
class Input:
    """A path with what it turned out to be."""

    path: str
    """As the user gave it; ``-`` for standard input."""
    kind: InputKind
    data: bytes | None = None
    """The content where finding the kind took reading all of it (standard input)."""


def classify(path: str) -> Input:
    """What `path` is. Raises ``DumpError`` or ``ParseError``, one line, where it is nothing that can be opened."""
    if path == "-":
        return _of_pipe(path, _read_stdin())
    try:
        info = os.stat(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise DumpError((reason or "not a usable path").lower(), path=path) from None
    if stat.S_ISDIR(info.st_mode):
        return Input(path, InputKind.DIRECTORY)
    if stat.S_ISFIFO(info.st_mode):  # a shell's <(…)
        return _of_pipe(path, _read_all(path))
    if not stat.S_ISREG(info.st_mode):
        raise DumpError("neither a directory nor a file", path=path)
    if info.st_size == 0:
        raise ParseError("the file is empty", path=path)
    head = _head(path)
    if head.startswith(LEDGER_MAGIC):
        return Input(path, InputKind.LEDGER)
    if _is_archive(path):
        return Input(path, InputKind.ARCHIVE)
    return Input(path, _kind_of_bytes(path, head, info.st_size))


def require_hlo_file(given: Input | str) -> Input:
    """The same, classified. Raises ``DumpError`` for what holds many modules."""
    found = classify(given) if isinstance(given, str) else given
    if found.kind not in (InputKind.TEXT, InputKind.PROTO, InputKind.STABLEHLO):
        raise DumpError(f"a single HLO file is needed, not {found.kind.phrase}", path=found.path)
    return found


def read_hlo_text(given: Input | str, *, keep_mark: bool = False) -> str:
    """The HLO text of a single file: text, gzip text, or a proto or StableHLO turned into text by a child process.

    Bytes that are not UTF-8 come as surrogate escapes; the reader says where. A byte order mark is left out unless
    `keep_mark`.

    Raises ``ParseError`` for what is not HLO or StableHLO and for a huge text of which no line begins with an
    instruction, ``UnsupportedError`` for StableHLO that has no HLO form, ``DumpError`` for a proto without a module and
    for a dump or ledger, which hold many, ``CompileError`` where the child process fails.
    """
    found = require_hlo_file(given)
    data = content(found)
    if found.kind is InputKind.STABLEHLO:
        from hloscope.core.xla.stablehlo import stablehlo_to_hlo

        return stablehlo_to_hlo(data, found.path)
    if found.kind is InputKind.PROTO:
        from hloscope.core.xla.protos import protos_to_text

        try:
            return protos_to_text([data])[0]
        except HloscopeError as error:
            error.path = error.path or found.path
            raise
    text = data.decode("utf-8" if keep_mark else "utf-8-sig", "surrogateescape")
    if len(text) > MAX_ONE_LINE_BYTES:
        from hloscope.core.dumps.facts import has_instruction

        if not has_instruction(data):
            raise ParseError(
                f"no line of it begins with an instruction, and {len(text):,} characters are too many to look for them",
                path=found.path,
                hint=f"up to {MAX_ONE_LINE_BYTES:,} are read in one line",
            )
    return text


def content(given: Input) -> bytes:
    """The bytes of a single file, unpacked. Raises ``DumpError`` where it cannot be read, ``ParseError`` where it is
    damaged."""
    return _unpacked(given.data if given.data is not None else _read_all(given.path), given.path)


def looks_like_hlo(head: str) -> bool:
    """Whether a text begins like HLO: a module, a computation or a single instruction."""
    return any(pattern.match(head) is not None for pattern in (_MODULE, _COMPUTATION, _INSTRUCTION))


def _of_pipe(path: str, data: bytes) -> Input:
    """What came through a pipe. Raises DumpError for what is read in places and not from front to end."""
    head = data[:SNIFFED_BYTES]
    front = _gzip_front(head, path) if head.startswith(_GZIP) else head
    for what, found in (
        ("a ledger", head.startswith(LEDGER_MAGIC)),
        ("an archive", head.startswith(_ARCHIVES) or front[_TAR_MARK_AT:].startswith(_TAR_MARK)),
    ):
        if found:
            raise DumpError(f"{what} cannot be read from a pipe; give its path", path=path)
    return Input(path, _kind_of_bytes(path, head, len(data)), data)


def _kind_of_bytes(path: str, head: bytes, size: int) -> InputKind:
    name = path.lower()
    if not head.strip():
        raise ParseError("nothing in it but blanks" if head else "the file is empty", path=path)
    if size > MAX_TEXT_BYTES:
        raise UnsupportedError(f"{size} bytes are more than one HLO file may have", path=path)
    if head.startswith(_GZIP):
        name = name.removesuffix(".gz")
        head = _gzip_front(head, path)
    if head.startswith(_MLIR_BYTECODE):
        return InputKind.STABLEHLO
    text = _as_text(head)
    if text is None:
        if name.endswith(".pb") or _proto_like(head):
            return InputKind.PROTO
        offset = next((i for i, byte in enumerate(head) if byte == 0 or byte > 0x7F), 0)
        raise ParseError(f"binary data (byte 0x{head[offset]:02x} at offset {offset}), not HLO", path=path)
    if _MLIR_BODY.match(text) is not None:
        return InputKind.STABLEHLO
    if looks_like_hlo(text) or (len(head) >= SNIFFED_BYTES and _COMMENTS.fullmatch(text) is not None):
        return InputKind.TEXT  # a comment can be longer than what is looked at
    if name.endswith(".mlir") or _MLIR.match(text) or _FUNC.search(text[:4096]):
        return InputKind.STABLEHLO
    if name.endswith(".pb"):
        return InputKind.PROTO
    if _FURTHER_DOWN.search(text) is not None:
        return InputKind.TEXT  # pasted with what stood around it; the reader passes over that
    line, column = _first_word(text)
    shown = text.split(maxsplit=1)[0][:40]
    raise ParseError(f"not HLO text: it starts with {shown!r}, not with HloModule", path=path, line=line, column=column)


def _first_word(text: str) -> tuple[int, int]:
    start = len(text) - len(text.lstrip())
    return text.count("\n", 0, start) + 1, start - (text.rfind("\n", 0, start) + 1) + 1


def _as_text(head: bytes) -> str | None:
    """The front of a file as text, None where it is binary: text may hold a few stray bytes if it begins like HLO."""
    text = head.decode("utf-8-sig", "surrogateescape")
    # A character that the window cuts in two is no fault.
    stray = sum("\udc80" <= ch <= "\udcff" or ch == "\0" for ch in text[:-3])
    return None if stray and (stray > 8 + len(text) // 50 or not looks_like_hlo(text)) else text


def _proto_like(head: bytes) -> bool:
    """Whether bytes begin like an HloModuleProto (1: name) or an HloProto (1: module that begins with its name)."""
    name, rest = _field_one(head)
    if name is None:
        return False
    if _identifier(name):
        return True
    inner, _ = _field_one(rest)
    return inner is not None and _identifier(inner)


def _field_one(data: bytes) -> tuple[bytes | None, bytes]:
    """The bytes of length-delimited field 1 at the front, cut off where `data` ends, and all that follow its length."""
    if data[:1] != b"\x0a":
        return None, b""
    length = shift = 0
    for position, byte in enumerate(data[1:11], start=2):
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return data[position : position + length], data[position:]
    return None, b""


def _identifier(name: bytes) -> bool:
    return bool(re.fullmatch(rb"[\w.$-]{1,500}", name))


def _is_archive(path: str) -> bool:
    from hloscope.core.dumps.sources import is_archive

    if not is_archive(path):
        return False
    head = _head(path)
    if not head.startswith(_GZIP):
        return True
    # A gzip file may be an archive, one text or one proto: its content decides.
    front = _gzip_front(head, path)
    return front[_TAR_MARK_AT:].startswith(_TAR_MARK)


def _gzip_front(head: bytes, path: str) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(head, SNIFFED_BYTES)
    except zlib.error as error:
        raise ParseError(f"damaged gzip data: {error}", path=path) from None


def _unpacked(data: bytes, path: str) -> bytes:
    if not data.startswith(_GZIP):
        return data
    limit = min(MAX_TEXT_BYTES, available_memory() // 3)  # beside the bytes there will be the text
    parts: list[bytes] = []
    size = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while part := file.read(_UNPACKED_AT_ONCE):
                size += len(part)
                if size > limit:
                    raise UnsupportedError(f"unpacks to more than {in_words(limit)}, which is too much", path=path)
                parts.append(part)
        return b"".join(parts)
    except (OSError, EOFError, zlib.error) as error:
        raise ParseError(f"damaged gzip data: {error}", path=path) from None


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(SNIFFED_BYTES)
    except OSError as error:
        raise DumpError((error.strerror or str(error)).lower(), path=path) from None


def _read_all(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise DumpError((error.strerror or str(error)).lower(), path=path) from None


def _read_stdin() -> bytes:
    data = sys.stdin.buffer.read()
    if not data:
        raise ParseError("standard input is empty", path="-")
    return data
