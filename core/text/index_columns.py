"""The arrays of a ModuleIndex and what was found wrong while they were filled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from hloscope.core.errors import Severity
    from hloscope.core.text.instruction_text import Span


@dataclass(slots=True)
class Finding:
    """Something that is wrong in a text, by offsets."""

    code: str
    message: str
    start: int
    end: int
    severity: Severity = "error"
    related: tuple[tuple[int, int, str], ...] = ()


@dataclass(slots=True)
class Columns:
    """One entry an instruction or computation; offsets are characters of the text."""

    starts: np.ndarray
    """First character, ROOT included."""
    ends: np.ndarray
    names: np.ndarray
    name_ends: np.ndarray
    shapes: np.ndarray
    """Start of the shape; -1 where the text has none."""
    opcode_starts: np.ndarray
    operand_starts: np.ndarray
    """Inside of the parentheses."""
    operand_ends: np.ndarray
    shape_ids: np.ndarray
    opcode_ids: np.ndarray
    roots: np.ndarray
    """Marked ROOT."""
    operand_rows: np.ndarray
    """CSR pointers into `operands`, one more than there are instructions."""
    operands: np.ndarray
    """Instruction numbers; -1 for a name that the computation does not define."""
    call_rows: np.ndarray
    """CSR pointers into `calls`."""
    calls: np.ndarray
    """Computation numbers; -1 for a name that the text does not define."""
    computation_begins: np.ndarray
    computation_ends: np.ndarray
    computation_starts: np.ndarray
    computation_stops: np.ndarray
    computation_names: np.ndarray
    computation_name_ends: np.ndarray
    computation_bodies: np.ndarray
    """Offset after the opening brace."""
    entry: int
    """Number of the entry computation; -1 where there is none."""
    shape_texts: list[str]
    opcode_names: list[str]
    header: Span
    module_name: Span
    attributes: list[tuple[str, int, int]]
    """Attributes of the module header: key, and the value's start and end."""
    tables: dict[str, Span]
    """Rows of the stack frame tables, by the table's word."""
    findings: list[Finding]
    truncated: bool
    """The text ends in the middle of something."""
