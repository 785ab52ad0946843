"""The language of ``--filter``: comparisons of columns, joined by ``and``, ``or``, ``not`` and parentheses.

    verdict=refused and bytes>1MB and name~"attn"      not changed      ns=null or ns>=2ms

- ``= != < <= > >=`` compare; ``~`` and ``!~`` search a regular expression. A column alone asks whether it is set.
- A value is a quoted string (always text), a number with an optional unit (kB KB MB GB KiB MiB GiB; ns us ms s),
  ``null``, ``true``, ``false``, another column's name, or any other bare word (text).
- A time is converted to the unit of its column. A missing value is unequal to everything but ``null``.
- A column that holds a list matches when one of its elements does.
- Passes and pipelines are found by the names that XLA gives them (``layout assignment``) and by those that stand in
  names of files (``layout_assignment``) alike.

An expression is compiled once against the declared columns, so a misspelt name is an error even where no row exists.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from hloscope.core.errors import UsageError
from hloscope.core.spelling import did_you_mean

Row = Mapping[str, object]
Predicate = Callable[[Row], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<paren>[()])
        |(?P<op>!=|!~|<=|>=|==|=|<|>|~)
        |(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
        |(?P<word>[^\s"'()=<>!~]+)
        |(?P<bad>\S))""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?P<unit>[A-Za-z]*)")
_SIZES = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
}  # fmt: skip
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
"""Nanoseconds a unit."""
_IN_FILE_NAMES = frozenset({"pipeline", "pass", "next_pass"})
"""Columns whose values a dump spells as its files do, where a blank is an underscore."""
_CONSTANTS: Mapping[str, bool | None] = {"null": None, "true": True, "false": False}
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def compile_filter(
    expression: str, columns: Sequence[str], titles: Mapping[str, str] = MappingProxyType({})
) -> Predicate:
    """A function that says whether a row passes.

    Raises UsageError, with the 1-based column of the fault, for a bad expression and for a name not in ``columns``;
    `titles` maps headings to the names behind them.
    """
    return _Parser(expression, columns, titles).parse()


def unknown_column(option: str, name: str, columns: Iterable[str], position: int | None = None) -> UsageError:
    """The error for a name that no column has, with the nearest ones."""
    known = list(columns)
    hint = did_you_mean(name, known) or f"the columns are {', '.join(known)}"
    at = f" at column {position}" if position is not None else ""
    return UsageError(f"{option}: no column {name!r}{at}", hint=hint)


def time_unit(column: str) -> str | None:
    """The unit of time that a column's name states (``ns``, ``us_fused``, ``compile_ms``), None for other columns."""
    return next((part for part in column.split("_") if part in _TIMES), None)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int
    """0-based offset in the expression."""


@dataclass(frozen=True, slots=True)
class _Value:
    """The right-hand side of a comparison."""

    text: str
    """As written, without quotes; what a text column is compared with."""
    number: float | int | None = None
    """The number in the column's unit, None for text."""
    constant: bool = False
    """``null``, ``true`` or ``false``."""
    column: str | None = None
    """The column whose value is meant."""
    bare: bool = False
    """A word that is none of these, without quotes."""


class _Parser:
    """Recursive descent: or < and < not < comparison."""

    def __init__(self, expression: str, columns: Sequence[str], titles: Mapping[str, str]) -> None:
        self.expression = expression
        self.columns = columns
        self.titles = titles
        self.tokens = list(self._tokens())
        self.next = 0

    def _tokens(self) -> Iterable[_Token]:
        end = len(self.expression.rstrip())
        at = 0
        while at < end:
            match = _TOKEN.match(self.expression, at)
            assert match is not None and match.lastgroup is not None  # the last branch takes any character
            kind = match.lastgroup
            start = match.start(kind)
            if kind == "bad":
                what = "an unclosed quote" if match[kind] in "\"'" else f"an unexpected {match[kind]!r}"
                raise self.error(what, start)
            yield _Token(kind, match[kind], start)
            at = match.end()

    def error(self, what: str, position: int) -> UsageError:
        return UsageError(f"--filter: {what} at column {position + 1} of {self.expression!r}")

    def peek(self) -> _Token:
        return self.tokens[self.next] if self.next < len(self.tokens) else _Token("end", "", len(self.expression))

    def take(self) -> _Token:
        token = self.peek()
        self.next += 1
        return token

    def keyword(self, word: str) -> bool:
        token = self.peek()
        if token.kind == "word" and token.text.lower() == word:
            self.next += 1
            return True
        return False

    def parse(self) -> Predicate:
        predicate = self.any_of()
        token = self.peek()
        if token.kind != "end":
            raise self.error(f"expected 'and', 'or' or the end, not {token.text!r},", token.position)
        return predicate

    def any_of(self) -> Predicate:
        parts = [self.all_of()]
        while self.keyword("or"):
            parts.append(self.all_of())
        return parts[0] if len(parts) == 1 else lambda row: any(part(row) for part in parts)

    def all_of(self) -> Predicate:
        parts = [self.negation()]
        while self.keyword("and"):
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else lambda row: all(part(row) for part in parts)

    def negation(self) -> Predicate:
        if self.keyword("not"):
            inner = self.negation()
            return lambda row: not inner(row)
        return self.comparison()

    def comparison(self) -> Predicate:
        token = self.take()
        if token.text == "(" and token.kind == "paren":
            inner = self.any_of()
            closing = self.take()
            if closing.text != ")" or closing.kind != "paren":
                raise self.error("expected ')'", closing.position)
            return inner
        if token.kind != "word" or token.text.lower() in ("and", "or", "not"):
            raise self.error(f"expected a column name, not {token.text!r}," if token.text else "expected a column name",
                             token.position)  # fmt: skip
        name = token.text
        name = self.titles.get(name, name)
        if name not in self.columns:
            raise unknown_column("--filter", name, self.columns, token.position + 1)
        if self.peek().kind != "op":
            return lambda row: bool(row.get(name))
        op = self.take().text
        return self.compare(name, "=" if op == "==" else op, self.take())

    def compare(self, name: str, op: str, token: _Token) -> Predicate:
        if token.kind not in ("word", "quoted"):
            raise self.error(f"expected a value after {op!r}", token.position)
        text = _unquote(token.text) if token.kind == "quoted" else token.text
        if op in ("~", "!~"):
            try:
                pattern = re.compile(text)
            except re.error as error:
                raise self.error(f"bad regular expression ({error})", token.position) from None
            spellings = _spellings if name in _IN_FILE_NAMES else _elements
            return _negated(op == "!~", lambda row: _searches(pattern, spellings(row.get(name))))
        value = self.value(name, op, token, text)
        if name in _IN_FILE_NAMES and op in ("=", "!=") and not value.constant and value.column is None:
            wanted = _in_file_name(text)
            return _negated(op == "!=", lambda row: wanted in map(_in_file_name, _elements(row.get(name))))
        return _negated(op == "!=", lambda row: _holds("=" if op == "!=" else op, row.get(name), value, row))

    def value(self, name: str, op: str, token: _Token, text: str) -> _Value:
        if token.kind == "quoted":
            return _Value(text)
        if text in _CONSTANTS:
            return _Value(text, constant=True)
        if text in self.columns:
            return _Value(text, column=text)
        match = _NUMBER.fullmatch(text)
        if match is None:
            return _Value(text, bare=True)
        literal, unit = match["number"], match["unit"]
        number = int(literal) if literal.lstrip("+-").isdigit() else float(literal)
        own = time_unit(name)
        if not unit:
            return _Value(text, number)
        if unit in _SIZES and own is None:
            return _Value(text, number * _SIZES[unit])
        if unit in _TIMES and own is not None:
            return _Value(text, number * _TIMES[unit] / _TIMES[own])
        if unit in _TIMES or unit in _SIZES:
            kind = f"in {own}" if own else "not a time"
            raise self.error(f"{text!r} does not fit {name}, which is {kind},", token.position)
        if op in _ORDER:
            units = ", ".join(_SIZES if own is None else _TIMES)
            raise self.error(f"no unit {unit!r} in {text!r} (there are {units}; text is quoted)", token.position)
        return _Value(text)


def _unquote(text: str) -> str:
    """The string inside the quotes: a backslash protects a quote or a backslash, and stays before anything else, so
    that regular expressions need no doubling."""
    return re.sub(r"\\([\"'\\])", r"\1", text[1:-1])


def _negated(negate: bool, predicate: Predicate) -> Predicate:
    return (lambda row: not predicate(row)) if negate else predicate


def _elements(value: object) -> Iterable[object]:
    return cast("Iterable[object]", value) if isinstance(value, list | tuple | set | frozenset) else (value,)


def _in_file_name(value: object) -> str | None:
    from hloscope.core.dumps.passlog import sanitized

    return None if value is None else sanitized(_text(value))


def _spellings(value: object) -> Iterable[object]:
    """A name as the row has it, as in a file's name, and with the blanks that an underscore there may stand for."""
    for item in _elements(value):
        if item is not None:
            yield from (item, _in_file_name(item), _text(item).replace("_", " "))


def _searches(pattern: re.Pattern[str], items: Iterable[object]) -> bool:
    return any(item is not None and pattern.search(_text(item)) is not None for item in items)


def _holds(op: str, left: object, value: _Value, row: Row) -> bool:
    if value.column is not None:
        return any(_ordered(op, item, row.get(value.column)) for item in _elements(left))
    return any(_matches(op, item, value) for item in _elements(left))


def _matches(op: str, left: object, value: _Value) -> bool:
    if value.constant and not isinstance(left, str):
        return op == "=" and left is _CONSTANTS[value.text]
    if left is None:
        return False
    if op in _ORDER and value.bare and isinstance(left, int | float) and not isinstance(left, bool):
        raise UsageError(f"--filter: {value.text!r} is neither a number nor a column (text is quoted)")
    if isinstance(left, bool | int | float) and value.number is not None:
        return _ordered(op, left, value.number)
    return _ordered(op, _text(left), value.text)


def _ordered(op: str, left: object, right: object) -> bool:
    if op == "=":
        return left == right
    if left is None or right is None:
        return False
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        left, right = _text(left), _text(right)
    return _ORDER[op](left, right)


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
