"""Instruction attributes: for each name, how its text is read into a value and printed back.

The text is the truth: an instruction keeps ``name -> text`` in order, and a typed value is read from it on first use.
A name that this table does not know stays text. Values are frozen. Source: ``openxla/xla:xla/hlo/parser/hlo_parser.cc``
(AttrTy), ``xla/window_util.cc#ToString``, ``xla/hlo/ir/hlo_instruction.cc#ConvolutionDimensionNumbersToString``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hloscope.core.errors import ParseError
from hloscope.core.hlo.replica_groups import parse_replica_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# ---------------------------------------------------------------- value types
@dataclass(frozen=True, slots=True)
class WindowDimension:
    """One dimension of a window, in elements."""

    size: int
    stride: int = 1
    padding_low: int = 0
    padding_high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1
    window_reversal: bool = False

    @property
    def trivial(self) -> bool:
        """A window of one element that moves by one."""
        return self == WindowDimension(1)


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a convolution, reduce-window or select-and-scatter: one entry per spatial dimension."""

    dimensions: tuple[WindowDimension, ...]

    def __str__(self) -> str:
        dims = self.dimensions

        def row(key: str, values: list[str], default: str) -> str:
            return "" if all(v == default for v in values) else f" {key}=" + "x".join(values)

        text = "size=" + "x".join(str(d.size) for d in dims)
        text += row("stride", [str(d.stride) for d in dims], "1")
        text += row("pad", [f"{d.padding_low}_{d.padding_high}" for d in dims], "0_0")
        text += row("lhs_dilate", [str(d.base_dilation) for d in dims], "1")
        text += row("rhs_dilate", [str(d.window_dilation) for d in dims], "1")
        text += row("rhs_reversal", [str(int(d.window_reversal)) for d in dims], "0")
        return "{" + text + "}" if dims else "{}"


@dataclass(frozen=True, slots=True)
class PaddingDimension:
    """Padding of one dimension in elements; negative edges cut."""

    low: int
    high: int
    interior: int = 0


@dataclass(frozen=True, slots=True)
class SliceDimension:
    """``[start:limit:stride]`` of one dimension."""

    start: int
    limit: int
    stride: int = 1


@dataclass(frozen=True, slots=True)
class ConvolutionDimensionNumbers:
    """Where batch, feature and spatial dimensions lie in input, kernel and output."""

    input_batch: int
    input_feature: int
    input_spatial: tuple[int, ...]
    kernel_input_feature: int
    kernel_output_feature: int
    kernel_spatial: tuple[int, ...]
    output_batch: int
    output_feature: int
    output_spatial: tuple[int, ...]

    def __str__(self) -> str:
        def labels(first: tuple[str, int], second: tuple[str, int], spatial: tuple[int, ...]) -> str:
            out = ["?"] * max([first[1], second[1], *spatial], default=0)
            out.append("?")
            out[first[1]], out[second[1]] = first[0], second[0]
            for i, dim in enumerate(spatial):
                out[dim] = str(i)
            return "".join(out)

        lhs = labels(("b", self.input_batch), ("f", self.input_feature), self.input_spatial)
        rhs = labels(("i", self.kernel_input_feature), ("o", self.kernel_output_feature), self.kernel_spatial)
        out = labels(("b", self.output_batch), ("f", self.output_feature), self.output_spatial)
        return f"{lhs}_{rhs}->{out}"


@dataclass(frozen=True, slots=True)
class OpMetadata:
    """Where an instruction comes from."""

    op_type: str = ""
    op_name: str = ""
    source_file: str = ""
    source_line: int = 0
    stack_frame_id: int = 0
    """1-based row of the module's stack frame table; 0 means none."""
    scheduling_name: str = ""
    deduplicated_name: str = ""
    other: tuple[tuple[str, str], ...] = ()
    """Items that this class has no field for, verbatim and in order."""

    def __str__(self) -> str:
        parts: list[str] = []
        for key in ("op_type", "op_name", "source_file"):
            if value := getattr(self, key):
                parts.append(f"{key}={quote(value)}")
        if self.source_line:
            parts.append(f"source_line={self.source_line}")
        parts.extend(f"{key}={value}" for key, value in self.other)
        for key in ("deduplicated_name", "scheduling_name"):
            if value := getattr(self, key):
                parts.append(f"{key}={quote(value)}")
        if self.stack_frame_id:
            parts.append(f"stack_frame_id={self.stack_frame_id}")
        return "{" + " ".join(parts) + "}"


# ---------------------------------------------------------------- strings
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.S)


def quote(value: str) -> str:
    """A double-quoted string with C escapes for quotes, backslashes and control characters."""
    out: list[str] = []
    for ch in value:
        if ch in '"\\':
            out.append("\\" + ch)
        elif ch == "\n":
            out.append("\\n")
        elif ch == "\t":
            out.append("\\t")
        elif ch == "\r":
            out.append("\\r")
        else:
            out.append(ch)
    return '"' + "".join(out) + '"'


def unquote(text: str) -> str:
    """The value of a quoted string (double or single quotes); text without quotes is returned as it is."""
    if len(text) < 2 or text[0] not in "\"'" or text[-1] != text[0]:
        return text

    def undo(found: re.Match[str]) -> str:
        body = found[1]
        if body[0] == "x" and len(body) > 1:
            return chr(int(body[1:], 16))
        if body[0].isdigit():
            return chr(int(body, 8))
        return _ESCAPES.get(body, body)

    return _ESCAPE.sub(undo, text[1:-1])


def split_top(text: str, separators: str = ",") -> list[str]:
    """Split at separators outside brackets and quotes; parts are stripped, an empty text gives no part."""
    parts: list[str] = []
    depth, start, i, n = 0, 0, 0, len(text)
    while i < n:
        ch = text[i]
        if ch in "\"'" and (ch == '"' or depth == 0):
            i = skip_string(text, i)
            continue
        if ch in "{[(":
            depth += 1
        elif ch in "}])":
            depth -= 1
        elif depth == 0 and ch in separators:
            parts.append(text[start:i].strip())
            start = i + 1
        i += 1
    last = text[start:].strip()
    if last or parts:
        parts.append(last)
    return [part for part in parts if part] if separators == " " else parts


def skip_string(text: str, pos: int) -> int:
    """The position after the quoted string that starts at `pos` (the end of the text where it is not closed)."""
    mark, i, n = text[pos], pos + 1, len(text)
    while i < n:
        j = text.find(mark, i)
        if j < 0:
            return n
        backslashes = 0
        while text[j - 1 - backslashes] == "\\" and j - 1 - backslashes > pos:
            backslashes += 1
        i = j + 1
        if backslashes % 2 == 0:
            return i
    return n


def braced(text: str) -> str:
    """The inside of ``{…}``; text without braces is returned as it is."""
    body = text.strip()
    return body[1:-1].strip() if body.startswith("{") and body.endswith("}") else body


# ---------------------------------------------------------------- readers and printers
def parse_ints(text: str) -> tuple[int, ...]:
    """``{1,2}`` as a tuple; a single number without braces too."""
    body = re.sub(r"/\*.*?\*/", "", braced(text))
    try:
        return tuple(int(part) for part in body.split(",") if part.strip())
    except ValueError:
        raise ParseError(f"expected a list of integers, got {text!r}") from None


def format_ints(value: Any) -> str:
    """A tuple as ``{1,2}``."""
    return "{" + ",".join(str(int(v)) for v in value) + "}"


def parse_int(text: str) -> int:
    """An integer."""
    try:
        return int(text)
    except ValueError:
        raise ParseError(f"expected an integer, got {text!r}") from None


def parse_bool(text: str) -> bool:
    """``true`` or ``false`` (``1`` and ``0`` in older text)."""
    word = text.strip()
    if word in ("true", "1"):
        return True
    if word in ("false", "0"):
        return False
    raise ParseError(f"expected true or false, got {text!r}")


def parse_words(text: str) -> tuple[str, ...]:
    """``{highest,default}`` as a tuple of words."""
    return tuple(part.strip() for part in braced(text).split(",") if part.strip())


def parse_pairs(text: str) -> tuple[tuple[int, ...], ...]:
    """``{{0,1},{2,3}}`` as a tuple of tuples."""
    return tuple(parse_ints(part) for part in split_top(braced(text)))


def format_pairs(value: Any) -> str:
    """A tuple of tuples as ``{{0,1},{2,3}}``."""
    return "{" + ",".join(format_ints(v) for v in value) + "}"


def parse_window(text: str) -> Window:
    """``{size=3x3 stride=2x2 pad=1_1x1_1 lhs_dilate=… rhs_dilate=… rhs_reversal=…}``."""
    items: dict[str, list[str]] = {}
    for part in braced(text).split():
        key, eq, value = part.partition("=")
        if not eq:
            raise ParseError(f"expected key=value in a window, got {part!r}")
        items[key] = value.split("x")
    rank = len(items.get("size", next(iter(items.values()), [])))
    dims = [WindowDimension(1)] * rank
    for key, values in items.items():
        if len(values) != rank:
            raise ParseError(f"window {key} has {len(values)} entries, size has {rank}")
        for i, value in enumerate(values):
            if key == "pad":
                low, _, high = value.partition("_")
                dims[i] = replace(dims[i], padding_low=int(low), padding_high=int(high))
            elif key == "rhs_reversal":
                dims[i] = replace(dims[i], window_reversal=value == "1")
            elif key in _WINDOW_KEYS:
                dims[i] = replace(dims[i], **{_WINDOW_KEYS[key]: int(value)})
            else:
                raise ParseError(f"unknown window item {key!r}")
    return Window(tuple(dims))


_WINDOW_KEYS = {"size": "size", "stride": "stride", "lhs_dilate": "base_dilation", "rhs_dilate": "window_dilation"}


def parse_padding(text: str) -> tuple[PaddingDimension, ...]:
    """``0_1x-1_2_0``: low, high and interior per dimension."""
    out: list[PaddingDimension] = []
    for part in text.strip().split("x") if text.strip() else []:
        numbers = [int(p) for p in part.split("_")]
        if len(numbers) not in (2, 3):
            raise ParseError(f"expected low_high or low_high_interior, got {part!r}")
        out.append(PaddingDimension(*numbers))
    return tuple(out)


def format_padding(value: Any) -> str:
    """Padding as XLA prints it: the interior part only where some dimension has one."""
    interior = any(d.interior for d in value)
    return "x".join(f"{d.low}_{d.high}" + (f"_{d.interior}" if interior else "") for d in value)


_SLICE = re.compile(r"\[\s*(\d+)\s*:\s*(\d+)\s*(?::\s*(\d+)\s*)?\]")


def parse_slice(text: str) -> tuple[SliceDimension, ...]:
    """``{[0:2], [0:8:2]}``."""
    out: list[SliceDimension] = []
    for part in split_top(braced(text)):
        found = _SLICE.fullmatch(part)
        if found is None:
            raise ParseError(f"expected [start:limit] or [start:limit:stride], got {part!r}")
        out.append(SliceDimension(int(found[1]), int(found[2]), int(found[3] or 1)))
    return tuple(out)


def format_slice(value: Any) -> str:
    """Slice bounds, the stride only where some dimension has one."""
    strided = any(d.stride != 1 for d in value)
    return "{" + ", ".join(f"[{d.start}:{d.limit}" + (f":{d.stride}]" if strided else "]") for d in value) + "}"


def parse_dim_labels(text: str) -> ConvolutionDimensionNumbers:
    """``b01f_01io->b01f``."""
    found = re.fullmatch(r"([^_]*)_([^-]*)->(.*)", text.strip())
    if found is None:
        raise ParseError(f"expected dim labels such as b01f_01io->b01f, got {text!r}")

    def places(labels: str, first: str, second: str) -> tuple[int, int, tuple[int, ...]]:
        spatial = sorted((int(ch), i) for i, ch in enumerate(labels) if ch.isdigit())
        if first not in labels or second not in labels:
            raise ParseError(f"dim labels {labels!r} lack {first!r} or {second!r}")
        return labels.index(first), labels.index(second), tuple(i for _, i in spatial)

    return ConvolutionDimensionNumbers(
        *places(found[1], "b", "f"), *places(found[2], "i", "o"), *places(found[3], "b", "f")
    )


_METADATA_ITEM = re.compile(r'[\s,]*([a-z_]+)=("(?:[^"\\]|\\.)*"|\{[^}]*\}|[^\s,"{}]+)', re.S)


def parse_metadata(text: str) -> OpMetadata:
    """``{op_name="…" stack_frame_id=3}``; items are separated by blanks, commas or nothing."""
    known: dict[str, Any] = {}
    other: list[tuple[str, str]] = []
    for key, value in _METADATA_ITEM.findall(braced(text)):
        if key in ("op_type", "op_name", "source_file", "scheduling_name", "deduplicated_name"):
            known[key] = unquote(value)
        elif key in ("source_line", "stack_frame_id"):
            known[key] = parse_int(value)
        else:
            other.append((key, value))
    return OpMetadata(**known, other=tuple(other))


def parse_dict(text: str) -> Mapping[str, str]:
    """``{key="value",key2={…}}``: keys and values, quoted values without their quotes."""
    out: dict[str, str] = {}
    for part in split_top(braced(text)):
        key, _, value = part.partition("=")
        out[key.strip()] = unquote(value.strip())
    return MappingProxyType(out)


def format_dict(value: Any) -> str:
    """A mapping as ``{key="value"}``; a value that is a brace group stays raw."""
    return "{" + ",".join(f"{k}={v if v.startswith('{') else quote(v)}" for k, v in value.items()) + "}"


def parse_backend_config(text: str) -> Any:
    """The backend config as JSON where it is that, else its string."""
    body = unquote(text.strip())
    try:
        return json.loads(body)
    except ValueError:
        return body


def format_backend_config(value: Any) -> str:
    """JSON raw, anything else quoted."""
    return quote(value) if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class OperandAlias:
    """An output part that lives in the buffer of a part of an operand."""

    output_index: tuple[int, ...]
    operand: int
    operand_index: tuple[int, ...]

    def __str__(self) -> str:
        index, inner = (",".join(map(str, i)) for i in (self.output_index, self.operand_index))
        return f"{{{index}}}: ({self.operand}, {{{inner}}})"


_ALIAS = re.compile(r"\{([\d,\s]*)\}\s*:\s*\(\s*(-?\d+)\s*,\s*\{([\d,\s]*)\}\s*(?:,\s*[\w-]+\s*)?\)")


def parse_aliasing(text: str) -> tuple[OperandAlias, ...]:
    """``{{0}: (1, {}), {1}: (0, {2})}``: output index, operand number, operand index."""
    out: list[OperandAlias] = []
    for part in split_top(braced(text)):
        found = _ALIAS.fullmatch(part)
        if found is None:
            raise ParseError(f"expected {{index}}: (operand, {{index}}), got {part!r}")
        out.append(OperandAlias(parse_ints(found[1]), int(found[2]), parse_ints(found[3])))
    return tuple(out)


def format_aliasing(value: Any) -> str:
    """Aliases in braces."""
    return "{" + ", ".join(map(str, value)) + "}"


def parse_shape(text: str) -> Any:
    """A `Shape`."""
    from hloscope.core.hlo.shape import Shape

    return Shape.parse(text)


def parse_shapes(text: str) -> tuple[Any, ...]:
    """``{f32[2]{0}, s32[]}`` as shapes."""
    return tuple(parse_shape(part) for part in split_top(braced(text)))


def format_shapes(value: Any) -> str:
    """Shapes in braces."""
    return "{" + ", ".join(map(str, value)) + "}"


def _identity(text: str) -> str:
    return text


# ---------------------------------------------------------------- the table
@dataclass(frozen=True, slots=True)
class AttributeKind:
    """How one attribute is read and printed."""

    parse: Callable[[str], Any]
    format: Callable[[Any], str]
    meaning: str


def _kinds() -> dict[str, AttributeKind]:
    table: dict[str, AttributeKind] = {}

    def add(names: str, parse: Callable[[str], Any], form: Callable[[Any], str], meaning: str) -> None:
        for name in names.split():
            table[name] = AttributeKind(parse, form, meaning)

    def form_bool(value: Any) -> str:
        return "true" if value else "false"

    def form_words(value: Any) -> str:
        return "{" + ",".join(value) + "}"

    add("dimensions", parse_ints, format_ints, "dimensions that the opcode works on")
    add("lhs_contracting_dims rhs_contracting_dims", parse_ints, format_ints, "dimensions that a dot sums over")
    add("lhs_batch_dims rhs_batch_dims", parse_ints, format_ints, "dimensions that both sides of a dot share")
    add("lhs_ragged_dims rhs_group_dims", parse_ints, format_ints, "group dimensions of a ragged dot")
    add("dynamic_slice_sizes slice_sizes", parse_ints, format_ints, "sizes of the slice taken")
    add("offset_dims collapsed_slice_dims start_index_map", parse_ints, format_ints, "dimension numbers of a gather")
    add("operand_batching_dims start_indices_batching_dims", parse_ints, format_ints, "batching of a gather")
    add("update_window_dims inserted_window_dims", parse_ints, format_ints, "dimension numbers of a scatter")
    add("scatter_dims_to_operand_dims", parse_ints, format_ints, "dimension numbers of a scatter")
    add("input_batching_dims scatter_indices_batching_dims", parse_ints, format_ints, "batching of a scatter")
    add("fft_length", parse_ints, format_ints, "length of each transformed dimension")
    add("index", parse_int, str, "which element of the tuple")
    add("iota_dimension", parse_int, str, "the dimension that counts")
    add("index_vector_dim", parse_int, str, "the dimension of the indices that holds one index vector")
    add("feature_group_count batch_group_count", parse_int, str, "groups of a convolution")
    add("channel_id", parse_int, str, "the channel that pairs the members of a collective")
    add("exponent_bits mantissa_bits", parse_int, str, "bits kept by reduce-precision")
    add("feature_index", parse_int, str, "the feature dimension of a batch norm")
    add("epsilon", float, lambda v: f"{v:g}", "added to the variance")
    add("k", parse_int, str, "how many elements top-k keeps")
    add("delta", parse_int, str, "how far the state advances")
    add("is_stable indices_are_sorted unique_indices", parse_bool, form_bool, "a promise or demand on order")
    add("lower left_side unit_diagonal largest", parse_bool, form_bool, "form of a linear solve, or of top-k")
    add("use_global_device_ids constrain_layout", parse_bool, form_bool, "form of a collective")
    add("is_host_transfer custom_call_has_side_effect", parse_bool, form_bool, "an effect outside the module")
    add("is_associative is_reverse", parse_bool, form_bool, "form of a scan")
    add("is_composite has_dynamic_root", parse_bool, form_bool, "form of a call, or of a collective broadcast")
    add("num_carries", parse_int, str, "how many of a scan's operands are carried along")
    add("inferred_dimension", parse_int, str, "which output dimension of a reshape is dynamic")
    add("async_execution_thread", unquote, quote, "the thread that an asynchronous computation runs on")
    add("output_to_operand_aliasing", parse_aliasing, format_aliasing, "output parts that live in operands' buffers")
    add("operand_layout_constraints", parse_shapes, format_shapes, "operand shapes, with the layouts that a call needs")
    add("outfeed_shape", parse_shape, str, "shape of the data sent to the host")
    add("direction", _identity, str, "the comparison: EQ NE LT LE GT GE")
    add("type", _identity, str, "the comparison's type: FLOAT TOTALORDER SIGNED UNSIGNED")
    add("fft_type", _identity, str, "FFT IFFT RFFT IRFFT")
    add("distribution", _identity, str, "rng_uniform or rng_normal")
    add("algorithm", _identity, str, "the random or dot algorithm")
    add("transpose_a", _identity, str, "how operand 0 is used: NO_TRANSPOSE TRANSPOSE ADJOINT")
    add("kind", _identity, str, "fusion kind: kLoop kInput kOutput kCustom")
    add("api_version", _identity, str, "calling convention of the custom call")
    add("custom_call_target", unquote, quote, "the name that the runtime looks up")
    add("outfeed_config infeed_config opaque", unquote, quote, "a string for the runtime")
    add("operand_precision", parse_words, form_words, "precision of each operand: default high highest")
    add("slice", parse_slice, format_slice, "bounds and strides per dimension")
    add("padding", parse_padding, format_padding, "low_high_interior per dimension")
    add("window", parse_window, str, "the moving window")
    add("dim_labels", parse_dim_labels, str, "batch, feature and spatial dimensions of a convolution")
    add("replica_groups", parse_replica_groups, format_pairs, "the devices that take part together")
    add("source_target_pairs", parse_pairs, format_pairs, "who sends to whom")
    add("metadata", parse_metadata, str, "where the instruction comes from")
    add("frontend_attributes", parse_dict, format_dict, "attributes that the framework set")
    add("backend_config", parse_backend_config, format_backend_config, "what the backend noted on the instruction")
    return table


ATTRIBUTES: Mapping[str, AttributeKind] = MappingProxyType(_kinds())
"""Attributes with a typed value, by name."""

CALLED: Mapping[str, bool] = MappingProxyType(
    {
        "to_apply": False,
        "calls": False,
        "condition": False,
        "body": False,
        "true_computation": False,
        "false_computation": False,
        "select": False,
        "scatter": False,
        "comparator": False,
        "branch_computations": True,
        "called_computations": True,
    }
)
"""Attributes that name computations; the value says whether they are printed as a list in braces."""

CONTROL = "control-predecessors"
"""The attribute that names instructions to wait for."""
