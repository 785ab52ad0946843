"""What XLA's own parser refuses although the reader takes it: names, attributes, values, counts, literals.

The reference is the parser that jaxlib 0.10.2 carries. Findings go to `Reading.objections`; nothing here changes what
was read. Where XLA's process aborts instead of refusing, that is an objection too. Source:
``openxla/xla:xla/hlo/parser/hlo_parser.cc``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError, ParseError
from hloscope.core.hlo.attributes import CALLED, unquote
from hloscope.core.hlo.names import sanitize
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.text.async_sugar import async_start_of
from hloscope.core.text.header_forms import HEADER_FORMS
from hloscope.core.text.literal_form import literal_objection
from hloscope.core.text.opcode_syntax import ONE_DIMENSION, syntax_of
from hloscope.core.text.shape_form import walk_shape
from hloscope.core.text.strict_syntax import KEYWORDS
from hloscope.core.text.tokens import Cursor
from hloscope.core.text.value_forms import FORMS, canonical_value, is_usual_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.text.reading import Reading

_COUNTS = {"convolution": 2, "dot": 2, "ragged-dot": 3}
_REDUCTION = re.compile(r"unreduced\s*=\s*(?:sum|max|min)\b")
_ON_ASYNC = ("async_execution_thread", "calls", "output_to_operand_aliasing")
_NO_COUNT = frozenset({"constant", "parameter", "ragged-all-to-all", "async-done"})


# ---------------------------------------------------------------- header and shapes
def check_module_attribute(reading: Reading, key: str, value: str, at: int) -> None:
    """The value of a header attribute."""
    if key == "debug_attributes":
        reading.object("the parser of jaxlib 0.10.2 does not know debug_attributes yet", at, at + 1, code="xla-unknown")
    form = HEADER_FORMS.get(key)
    if form is not None:
        _check_value(reading, key, value, at, form)


def shape_objection(text: str) -> tuple[str, int] | None:
    """What XLA refuses in a shape, with the offset in its text; None where it takes it."""
    at = Cursor(text)
    try:
        walk_shape(at)
        if at.kind != "end":
            at.fail(f"expected the end of a shape, got {at.glance()}")
    except ParseError as bad:
        return bad.message, (bad.column or 1) - 1
    return None


# ---------------------------------------------------------------- names
def check_name(reading: Reading, name: str, percent: bool, at: int) -> None:
    """A name that XLA would have to change, or that its lexer does not take for one."""
    if sanitize(name) != name:
        reading.object(f"illegal instruction name {name}; XLA suggests {sanitize(name)}", at, at + len(name))
    elif not percent and name in KEYWORDS:
        reading.object(f"{name} is a keyword, not a name", at, at + len(name))


# ---------------------------------------------------------------- instructions
def check_instruction(
    reading: Reading, node: HloInstruction, start: int, name: str, places: dict[str, int], *, linked: bool
) -> None:
    """Everything that XLA's parser asks of one instruction; `places` says where each attribute's value stands, and
    under ``(`` where the operands or the literal begin.

    One that is not `linked` has no operands yet, because they stand further down.
    """
    percent = reading.text[start : start + 12].removeprefix("ROOT").lstrip().startswith("%")
    if not name.endswith(".anon"):
        check_name(reading, name, percent, start)
    if node.opcode not in OPCODES:
        return
    target = node
    wrapped = node.called.get("calls") if node.opcode == "async-start" else None
    if wrapped and wrapped[0].synthetic:
        target = wrapped[0].root
    _check_attributes(reading, node, target, start, places)
    if not linked:
        return
    try:
        _check_shape_of(reading, node, start)
        _check_operands(reading, target, start)
        _check_opcode(reading, target, start)
        if node.opcode == "constant":
            _check_literal(reading, node, places.get("(", start))
        if target is not node:
            _check_opcode(reading, node, start)
    except (HloscopeError, ValueError) as error:
        reading.object(getattr(error, "message", str(error)), start)


def _check_value(
    reading: Reading, key: str, value: str, at: int, form: Callable[[Cursor], str] | None = None
) -> str | None:
    try:
        return canonical_value(key, value, form)
    except ParseError as bad:
        reading.object(f"{key}: {bad.message}", at + (bad.column or 1) - 1, code="xla-attribute")
    except (ValueError, IndexError, RecursionError):
        reading.object(f"{key}: XLA cannot read this value", at, code="xla-attribute")
    return None


def _check_attributes(
    reading: Reading, node: HloInstruction, target: HloInstruction, start: int, places: dict[str, int]
) -> None:
    syntax = syntax_of(target.opcode)
    for key in {**node.raw_attrs, **(target.raw_attrs if target is not node else {})}:
        at = places.get(key, start)
        if target is node and key not in syntax.rank:
            continue  # noted as unknown already
        allowed = syntax.allows(key) or (target is not node and key in _ON_ASYNC)
        if not allowed:
            newer = key in syntax.newer
            why = " yet" if newer else ""
            reading.object(
                f"{target.opcode} takes no attribute {key}{why}", at, at + len(key), code="xla-unexpected-attribute"
            )
            continue
        value = node.raw_attrs.get(key)
        if value is None and target is not node:
            value = target.raw_attrs.get(key)
        if value is not None and key in FORMS and not is_usual_value(key, value):
            _check_value(reading, key, value, at)
    sharding = node.raw_attrs.get("sharding")
    if sharding is not None and _REDUCTION.search(sharding):
        at = places.get("sharding", start)
        reading.object("the parser of jaxlib 0.10.2 does not know unreduced=max{…} yet", at, code="xla-attribute")
    present = target.raw_attrs
    for key in syntax.required:
        if key not in present:
            reading.object(f"{target.opcode} needs the attribute {key}", start, code="xla-missing-attribute")
    for key in places:
        if key in CALLED and not CALLED[key] and reading.text.startswith("{", places[key]):
            group = target.called.get(key, ())
            if not any(c in reading.inline for c in group):
                reading.object(f"{key} is one computation, not a list", places[key], code="xla-attribute")


def _check_shape_of(reading: Reading, node: HloInstruction, start: int) -> None:
    replication = node.raw_attrs.get("parameter_replication")
    if replication is not None:
        leaves = sum(1 for _ in node.shape.leaves())
        if replication.count("true") + replication.count("false") != leaves:
            reading.object(f"parameter_replication needs one word for each of the {leaves} leaves", start)


def _check_operands(reading: Reading, node: HloInstruction, start: int) -> None:
    opcode, count = node.opcode, node.operand_count
    if opcode in _NO_COUNT:
        return
    wanted = OPCODES[opcode].arity
    if opcode in _COUNTS:
        wanted = _COUNTS[opcode]
    if opcode == "tuple" and node.shape.is_tuple:
        wanted = len(node.shape.tuple_shapes)
    if wanted is not None and wanted != count:
        reading.object(f"{opcode} takes {wanted} operands, not {count}", start, code="xla-operand-count")


def _check_literal(reading: Reading, node: HloInstruction, at: int) -> None:
    payload = node.payload or ""
    found = literal_objection(payload, node.shape)
    if found is not None:
        begin = reading.text.find(payload, at)  # blanks before it are not kept
        reading.object(found[0], max(begin, at) + found[1], code="xla-literal")


def _check_opcode(reading: Reading, node: HloInstruction, start: int) -> None:
    check = _CHECKS.get(node.opcode)
    message = check(node) if check is not None else None
    if message is None and node.opcode in ONE_DIMENSION:
        dims = node.raw_attrs.get("dimensions")
        if dims is not None and len(node.attr("dimensions")) != 1:
            message = f"{node.opcode} takes exactly one dimension"
    if message is not None:
        reading.object(message, start, code="xla-instruction")


# Each gives what is wrong with a node of its opcode, None where nothing is.
def _even(node: HloInstruction) -> str | None:
    return f"{node.opcode} takes an even number of operands" if node.operand_count % 2 else None


def _reduce_window(node: HloInstruction) -> str | None:
    return "reduce-window takes at least one operand" if not node.operand_count else _even(node)


def _odd(node: HloInstruction) -> str | None:
    return None if node.operand_count % 2 else f"{node.opcode} takes an odd number of operands"


def _tuple_shape(node: HloInstruction) -> str | None:
    if node.shape.is_tuple and node.shape.tuple_shapes:
        return None
    return f"{node.opcode} has a non-empty tuple shape"


def _tuple(node: HloInstruction) -> str | None:
    return None if node.shape.is_tuple else "tuple has a tuple shape"


def _same_channel(node: HloInstruction) -> str | None:
    if not node.operand_count:
        return None
    before = node.operand(0)
    channels = before.opcode in ("send", "recv", "send-done", "recv-done")
    if channels and before.attr("channel_id") != node.attr("channel_id"):
        return f"{node.opcode} and its {before.opcode} differ in channel_id"
    return None


def _element_count(node: HloInstruction) -> str | None:
    if not node.operand_count:
        return None
    operand = node.operand(0).shape
    if not node.shape.is_array or not operand.is_array:
        return f"{node.opcode} is of arrays"
    if operand.is_unbounded or node.shape.is_unbounded:
        return None
    if node.shape.element_count != operand.element_count:
        return f"{node.opcode} of {operand.element_count} elements into {node.shape.element_count}"
    return None


def _dynamic_reshape(node: HloInstruction) -> str | None:
    if not node.operand_count:
        return "dynamic-reshape takes at least one operand"
    return _element_count(node) or (
        None if node.operand_count - 1 == node.shape.rank else "dynamic-reshape takes one size for each dimension"
    )


def _dynamic_slice(node: HloInstruction) -> str | None:
    return _indices(node, 1)


def _dynamic_update_slice(node: HloInstruction) -> str | None:
    return _indices(node, 2)


def _indices(node: HloInstruction, first: int) -> str | None:
    count = node.operand_count
    if count < first:
        return f"{node.opcode} takes at least {first} operands"
    listed = count == first + 1 and node.operand(first).shape.rank == 1
    if not listed and count != first + node.operand(0).shape.rank:
        return f"{node.opcode} has the wrong number of operands"
    return None


def _conditional(node: HloInstruction) -> str | None:
    if not node.operand_count:
        return "conditional takes at least one operand"
    shape = node.operand(0).shape
    if not shape.is_scalar:
        return "the first operand of a conditional is a scalar"
    if shape.element_type == "pred":
        wanted, other = ("true_computation", "false_computation"), ("branch_computations",)
    elif shape.element_type == "s32":
        wanted, other = ("branch_computations",), ("true_computation", "false_computation")
    else:
        return "the first operand of a conditional is a scalar of pred or s32"
    for key in wanted:
        if key not in node.raw_attrs:
            return f"this conditional needs the attribute {key}"
    for key in other:
        if key in node.raw_attrs:
            return f"this conditional takes no attribute {key}"
    branches = len(node.called_computations)
    if branches and node.operand_count != branches + 1:
        return f"a conditional of {branches} branches takes {branches + 1} operands"
    return None


def _broadcast(node: HloInstruction) -> str | None:
    if "dimensions" in node.raw_attrs or not node.operand_count or node.operand(0).shape.is_scalar:
        return None
    return "broadcast needs the attribute dimensions"


def _global_ids(node: HloInstruction) -> str | None:
    if node.attr("use_global_device_ids") and "channel_id" not in node.raw_attrs:
        return "use_global_device_ids without channel_id"
    return None


def _collective_permute(node: HloInstruction) -> str | None:
    if "slice_sizes" in node.raw_attrs and node.operand_count != 4:
        return f"{node.opcode} with slice_sizes takes four operands"
    return None


def _custom_call(node: HloInstruction) -> str | None:
    constraints = node.raw_attrs.get("operand_layout_constraints")
    if "to_apply" in node.raw_attrs and "called_computations" in node.raw_attrs:
        return "both to_apply and called_computations"
    if constraints is None:
        return None
    shapes = node.attr("operand_layout_constraints")
    if len(shapes) != node.operand_count:
        return f"{len(shapes)} operand layout constraints for {node.operand_count} operands"
    for i, (shape, operand) in enumerate(zip(shapes, node.operands, strict=True)):
        if not shape.compatible(operand.shape):
            return f"the layout constraint {shape} does not fit operand {i} of shape {operand.shape}"
    return None


def _scan(node: HloInstruction) -> str | None:
    group = node.called.get("to_apply", ())
    if group and len(group[0].parameters) != node.operand_count:
        return "scan takes as many operands as its computation has parameters"
    carries = node.attr("num_carries")
    if carries is not None and node.operand_count < carries:
        return "scan has fewer operands than carries"
    return None


def _async_start(node: HloInstruction) -> str | None:
    shapes = node.shape.tuple_shapes
    if not node.shape.is_tuple or len(shapes) < 2 or not shapes[0].is_tuple:
        return "async-start has a shape ((operands), result, …)"
    group = node.called.get("calls", ())
    if group and not group[0].synthetic:
        others = [c for c in group[0].callers if c is not node and c.opcode == "async-start"]
        if others:
            return f"computation %{group[0].name} is called by more than one async-start"
    return None


def _async_chain(node: HloInstruction) -> str | None:
    if node.operand_count != 1 or node.operand(0).opcode not in ("async-start", "async-update"):
        return f"{node.opcode} takes the asynchronous instruction before it as its one operand"
    before = node.operand(0)
    if node.opcode == "async-update" and before.shape != node.shape:
        return "async-update has the shape of its operand"
    start = async_start_of(node)
    if start is None:
        return None
    thread = node.raw_attrs.get("async_execution_thread")
    wanted = unquote(start.raw_attrs.get("async_execution_thread") or '"main"')
    if thread is not None and unquote(thread) != wanted:
        return f"async_execution_thread is {wanted} where the chain begins"
    mine, theirs = node.called.get("calls"), start.called.get("calls")
    if mine and theirs and mine != theirs:
        return f"the chain begins with %{theirs[0].name}, not with %{mine[0].name}"
    return None


_CHECKS: dict[str, Callable[[HloInstruction], str | None]] = {
    "reduce": _even,
    "reduce-window": _reduce_window,
    "scatter": _odd,
    "tuple": _tuple,
    "recv": _tuple_shape,
    "infeed": _tuple_shape,
    "send-done": _same_channel,
    "recv-done": _same_channel,
    "reshape": _element_count,
    "dynamic-reshape": _dynamic_reshape,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "conditional": _conditional,
    "broadcast": _broadcast,
    "all-reduce": _global_ids,
    "all-reduce-start": _global_ids,
    "reduce-scatter": _global_ids,
    "collective-permute": _collective_permute,
    "collective-permute-start": _collective_permute,
    "custom-call": _custom_call,
    "scan": _scan,
    "async-start": _async_start,
    "async-update": _async_chain,
    "async-done": _async_chain,
}


# ---------------------------------------------------------------- computations and the module
def check_computation(reading: Reading, computation: HloComputation, at: int) -> None:
    """What XLA asks of a whole computation: parameter numbers without holes or repetitions."""
    numbers = [p.parameter_number for p in computation.parameters]
    if numbers != list(range(len(numbers))):
        reading.object("parameter numbers are not 0, 1, 2, …", at, code="xla-parameters")


def check_module(reading: Reading) -> None:
    """What XLA asks of the whole: aliases within the shapes, asynchronous computations called by one start."""
    module = reading.module
    if not module.has_entry:
        return
    for key in ("input_output_alias", "buffer_donor"):
        text = module.attrs.get(key)
        if text is None:
            continue
        at = max(reading.text.find(key), 0)
        message = _alias_message(module.entry, text)
        if message is not None and key == "input_output_alias":
            reading.object(message, at, at + len(key), code="xla-alias")


_ALIAS = re.compile(r"\{([\d,\s]*)\}\s*:\s*\(\s*(\d+)\s*,\s*\{([\d,\s]*)\}")


def _alias_message(entry: HloComputation, text: str) -> str | None:
    seen: set[str] = set()
    for found in _ALIAS.finditer(text):
        index = tuple(int(p) for p in found[1].split(",") if p.strip())
        try:
            entry.root.shape.sub(index)
        except IndexError:
            return f"the result has no part {{{found[1]}}}"
        if found[1] in seen:
            return f"two aliases for the part {{{found[1]}}} of the result"
        seen.add(found[1])
    return None
