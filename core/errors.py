"""The error tree: what a user can put right (``HloscopeError``) apart from our own bugs (``InternalError``).

A user error prints as one line, ``FILE:LINE:COLUMN: what is wrong``, and carries the exit code of the command that
meets it. Lines and columns are 1-based, as compilers print them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "information", "hint"]


class HloscopeError(Exception):
    """Something the user gave cannot be used; ``str(error)`` is the whole line to show."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        line: int | None = None,
        column: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        """What is wrong, without the position."""
        self.path = path
        """The file as the user named it, or None where there is none."""
        self.line = line
        """1-based line, or None."""
        self.column = column
        """1-based column in characters, or None."""
        self.hint = hint
        """What would put it right, shown after the message."""

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)
        text = f"{where}: {self.message}" if where else self.message
        return f"{text} ({self.hint})" if self.hint else text


class UsageError(HloscopeError):
    """An option, name or combination that the command does not have."""


class ParseError(HloscopeError):
    """Text that is not HLO where HLO is expected."""


class VerifyError(HloscopeError):
    """A module that breaks an invariant of the IR."""


class EvaluationError(HloscopeError):
    """A module or argument that the evaluator cannot compute."""


class CompileError(HloscopeError):
    """The real compiler refused, crashed or hung."""


class LedgerError(HloscopeError):
    """A ledger that cannot be written, read or understood."""


class DumpError(HloscopeError):
    """A path that holds no usable dump."""


class UnsupportedError(HloscopeError):
    """A valid request that this version does not handle; the message says what exactly."""


class InternalError(Exception):
    """A bug of hloscope's own: an invariant that the code itself should keep."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A finding about a text, with its span; what the reader and the verifier return instead of raising."""

    message: str
    """One sentence."""
    line: int
    """1-based line of the start."""
    column: int
    """1-based column of the start, in characters."""
    end_line: int
    """1-based line of the end."""
    end_column: int
    """1-based column one past the end."""
    severity: Severity = "error"
    """``error`` loses or contradicts something; the others only inform."""
    code: str = "syntax"
    """Stable key of the kind of finding."""
    offset: int = 0
    """0-based character offset of the start in the text."""
    end_offset: int = 0
    """0-based character offset one past the end."""
    related: tuple[tuple[int, int, str], ...] = ()
    """Other places that belong to it: (start offset, end offset, what is there)."""

    def error(self, path: str | None = None) -> ParseError:
        """The diagnostic as a raisable error."""
        return ParseError(self.message, path=path, line=self.line, column=self.column)
