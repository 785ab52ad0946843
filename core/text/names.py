"""A module as XLA's parser makes it of a text: names unique over all computations, threads on what they run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.hlo.attributes import unquote
from hloscope.core.hlo.names import sanitize
from hloscope.core.hlo.stack_frames import StackFrame, StackFrames
from hloscope.core.text.async_sugar import COPIED, wrapped_computation
from hloscope.core.text.made_shapes import made_shape

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule


class XlaNames:
    """Hands out names with numbers exactly as XLA does. Source: ``openxla/xla:xla/service/name_uniquer.cc``."""

    def __init__(self) -> None:
        self._used: dict[str, set[int]] = {}
        self._next: dict[str, int] = {}

    def unique(self, wanted: str) -> str:
        """`wanted` where its number is free for its root, else the root with the next free number."""
        root = sanitize(wanted)
        number, numbered = 0, False
        at = root.rfind(".")
        if 0 < at < len(root) - 1 and root[at + 1 :].isdigit() and len(root) - at < 19:
            number, numbered = int(root[at + 1 :]), True
            root = root[:at]
        used = self._used.setdefault(root, set())
        if number in used:
            number = self._next.get(root, 0)
            while number in used:
                number += 1
            self._next[root] = number + 1
        used.add(number)
        return f"{root}.{number}" if number or numbered else root


def as_xla_reads(module: HloModule) -> HloModule:
    """A copy with the names and threads that the module has once XLA's parser has read it.

    A module whose computations call each other in a cycle comes back as it is.
    """
    try:
        copy = module.clone()
    except InternalError:  # computations that call each other: nothing that XLA would read
        return module
    _number_frames(copy)
    names, computations = XlaNames(), XlaNames()
    for computation in copy.computations:
        computation.set_name_unchecked(computations.unique(computation.name))
        for node in computation:
            made = computation.synthetic and node.is_root  # XLA names it by its opcode
            node.set_name_unchecked(names.unique(node.opcode if made else node.name))
            _as_made(node)
            if node.opcode.startswith("async-"):
                _share_with_wrapped(node)
    return copy


def _as_made(node: HloInstruction) -> None:
    """Give an instruction the shape that XLA makes from its parts, whatever the text says."""
    shape = node.shape
    try:
        wanted = made_shape(node)
    except (HloscopeError, ValueError):  # an attribute that cannot be read
        wanted = None
    if node.opcode == "constant" and shape.layout is not None and shape.layout.element_size_in_bits:
        wanted = shape.with_layout(replace(shape.layout, element_size_in_bits=0))
    if wanted is not None and wanted != shape:
        node.shape = wanted
    if node.opcode == "constant" and node.payload is not None and ("-0" in node.payload or "nan" in node.payload):
        _as_lexed(node)


_NEGATIVE_ZERO = re.compile(r"(?<![\w.])-0(?![\w.])")
_PAIR = re.compile(r"\(\s*(-?nan(?:\(0x[0-9a-fA-F]+\))?)\s*,[^,]*?\)(?=\s*[,}]|\s*$)")


def _as_lexed(node: HloInstruction) -> None:
    """Values that XLA's parser does not keep: a negative zero without a point, the part beside a NaN of a complex."""
    before = node.payload or ""
    after = _NEGATIVE_ZERO.sub("0", before)
    if node.shape.element_type in ("c64", "c128"):
        after = _PAIR.sub(lambda found: f"({found[1]}, {found[1]})", after)
    if after != before:
        node.load_payload(after)


def _number_frames(module: HloModule) -> None:
    """Keep the stack frames that instructions name, numbered in the order in which they are met, callers first.

    An id that the tables do not have, or whose callers make a cycle, is dropped. Source:
    ``openxla/xla:xla/hlo/ir/hlo_module.cc#CanonicalizeStackFrameIds``.
    """
    old, new = module.stack_frames, StackFrames()
    known: dict[int, int] = {}
    interned: dict[object, int] = {}

    def intern(table: list[Any], row: Any) -> int:
        key = (id(table), row)
        if key not in interned:
            table.append(row)
            interned[key] = len(table)
        return interned[key]

    def moved(frame: int) -> int:
        """The new number of a frame, 0 where it is lost."""
        way: list[int] = []
        while frame and frame not in known:
            if not 0 < frame <= len(old.stack_frames) or frame in way:
                return 0
            way.append(frame)
            frame = old.stack_frames[frame - 1].parent_frame_id
        caller = known[frame] if frame else 0
        for one in reversed(way):
            place = old.stack_frames[one - 1].file_location_id
            at = old.file_locations[place - 1] if 0 < place <= len(old.file_locations) else None
            if at is None or not (
                0 < at.file_name_id <= len(old.file_names) and 0 < at.function_name_id <= len(old.function_names)
            ):
                return 0
            file = intern(new.file_names, old.file_names[at.file_name_id - 1])
            function = intern(new.function_names, old.function_names[at.function_name_id - 1])
            location = replace(at, file_name_id=file, function_name_id=function)
            caller = intern(new.stack_frames, StackFrame(intern(new.file_locations, location), caller))
            known[one] = caller
        return caller

    for computation in module.computations:
        for node in computation:
            text = node.raw_attrs.get("metadata")
            if text is not None and "stack_frame_id" in text:
                try:
                    number = node.metadata.stack_frame_id
                except HloscopeError:  # it cannot be read, and prints as it stands
                    continue
                if number and (wanted := moved(number)) != number:
                    node.set_attr("metadata", replace(node.metadata, stack_frame_id=wanted))
    module.stack_frames = new


def _share_with_wrapped(node: HloInstruction) -> None:
    """What XLA's parser copies from an asynchronous instruction onto the one that it wraps."""
    computation = wrapped_computation(node)
    if computation is None or not computation.has_root:
        return
    for key in COPIED:
        text = node.raw_attrs.get(key)
        if text is not None:
            computation.root.set_attr(key, text)
    thread = node.raw_attrs.get("async_execution_thread")
    if node.opcode == "async-start":
        for callee in node.called_computations:
            _run_on(callee, unquote(thread) if thread is not None else "main")


def _run_on(computation: HloComputation, thread: str) -> None:
    seen: set[HloComputation] = set()
    waiting = [computation]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        one.execution_thread = "" if thread == "main" else thread
        for node in one:
            if not node.opcode.startswith("async-"):
                waiting.extend(node.called_computations)
