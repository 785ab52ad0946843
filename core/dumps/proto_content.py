"""What a proto says, whatever the order in which its maps were written.

Protocol buffers write the entries of a map in an order that differs from one message to the next, so that two files of
equal content seldom have equal bytes. No schema is needed: a repeated field whose elements are messages of a key and
a value, with no key twice, is a map.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from hashlib import blake2b

from hloscope.core.dumps.textproto import Message, parse_textproto
from hloscope.core.dumps.wire import read_fields
from hloscope.core.errors import HloscopeError

_MAX_DEPTH = 32


def content_digest(data: bytes, path: str) -> str:
    """Digest of the content of a proto in a file, text or binary by the name; of its bytes where it is none."""
    try:
        found = _text(parse_textproto(data.decode("utf-8"), path=path)) if path.endswith("proto") else _wire(data, 0)
    except (HloscopeError, ValueError, IndexError):
        found = data
    return blake2b(repr(found).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


_Content = str | bytes | int | tuple["_Content", ...]


def _wire(data: bytes, depth: int) -> _Content:
    """Raises ValueError or IndexError for what is no message."""
    return _fields([(str(number), _wire_value(value, depth)) for number, value in read_fields(data, fixed=True)], "12")


@lru_cache(maxsize=1 << 14)  # the modules of a dump say mostly the same
def _wire_value(value: bytes | int, depth: int) -> _Content:
    # A short text may read as a message, too: then two equal ones still have equal content.
    if isinstance(value, int) or not value or depth >= _MAX_DEPTH:
        return value
    try:
        return _wire(value, depth + 1)
    except (ValueError, IndexError):
        return value


def _text(message: Message) -> _Content:
    fields = [(name, value if isinstance(value, str) else _text(value)) for name, value in message.fields]
    return _fields(fields, ("key", "value"))


def _fields(fields: list[tuple[str, _Content]], names: str | tuple[str, str]) -> _Content:
    """The fields by their names, in order of a name the values: sorted for a map, else as they came."""
    found: defaultdict[str, list[_Content]] = defaultdict(list)
    for name, value in fields:
        found[name].append(value)
    return tuple(
        (name, *(sorted(values, key=repr) if _is_map(values, names) else values))
        for name, values in sorted(found.items())
    )


def _is_map(values: list[_Content], names: str | tuple[str, str]) -> bool:
    keys: set[_Content] = set()
    for value in values:
        if not isinstance(value, tuple):
            return False
        entry = {str(one[0]): one[1:] for one in value if isinstance(one, tuple)}
        if not entry or not entry.keys() <= set(names) or any(len(one) > 1 for one in entry.values()):
            return False
        keys.add(entry.get(names[0], ()))
    return len(keys) == len(values) > 1
