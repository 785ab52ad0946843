"""The four source tables of a module: file names, function names, file locations, stack frames.

All rows are numbered from 1. A frame's ``parent_frame_id`` is printed as the parent's id plus one, so that 1 means "no
parent" (``openxla/xla:xla/hlo/ir/hlo_module.cc#HloModule::Print`` and the reader in ``hlo_parser.cc``); the tables here
hold the true id, 0 for none.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FileLocation:
    """A range in a Python file."""

    file_name_id: int
    function_name_id: int
    line: int
    """1-based."""
    end_line: int
    column: int
    end_column: int


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A location and the frame that called it."""

    file_location_id: int
    parent_frame_id: int
    """Row of the caller, 0 for none."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One resolved frame."""

    file: str
    function: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(slots=True)
class StackFrames:
    """The tables of one module."""

    file_names: list[str] = field(default_factory=list[str])
    function_names: list[str] = field(default_factory=list[str])
    file_locations: list[FileLocation] = field(default_factory=list[FileLocation])
    stack_frames: list[StackFrame] = field(default_factory=list[StackFrame])

    def __bool__(self) -> bool:
        return bool(self.file_names or self.function_names or self.file_locations or self.stack_frames)

    def resolve(self, frame_id: int) -> tuple[Frame, ...]:
        """The stack of a frame, innermost first; empty for 0 or an id past the table; a cycle ends the stack."""
        out: list[Frame] = []
        seen: set[int] = set()
        while 0 < frame_id <= len(self.stack_frames) and frame_id not in seen:
            seen.add(frame_id)
            row = self.stack_frames[frame_id - 1]
            if not 0 < row.file_location_id <= len(self.file_locations):
                break
            at = self.file_locations[row.file_location_id - 1]
            out.append(
                Frame(
                    _pick(self.file_names, at.file_name_id),
                    _pick(self.function_names, at.function_name_id),
                    at.line,
                    at.column,
                    at.end_line,
                    at.end_column,
                )
            )
            frame_id = row.parent_frame_id
        return tuple(out)

    def copy(self) -> StackFrames:
        """A copy that shares the frozen rows."""
        return StackFrames(
            list(self.file_names), list(self.function_names), list(self.file_locations), list(self.stack_frames)
        )


def _pick(table: list[str], row: int) -> str:
    return table[row - 1] if 0 < row <= len(table) else ""
