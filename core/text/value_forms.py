"""What each attribute's value may be, and its one form: for every name a function from text to XLA's text.

`canonical_value` reads a value as XLA's parser does, raises ParseError where that refuses it, and gives the text that
XLA prints for it. Sources: ``openxla/xla:xla/hlo/parser/hlo_parser.cc#ParseAttributeHelper`` for reading,
``xla/hlo/ir/hlo_instructions.cc`` (PrintExtraAttributesImpl) for printing.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.errors import ParseError
from hloscope.core.hlo.literal import parse_literal
from hloscope.core.hlo.shape import Shape, scan_shape
from hloscope.core.text.metadata_form import is_usual, metadata_form
from hloscope.core.text.origin_forms import origin
from hloscope.core.text.reading import without_comments
from hloscope.core.text.scan import brace_end, match_bracket
from hloscope.core.text.shape_form import walk_shape
from hloscope.core.text.sharding_forms import replica_groups_form, sharding_form
from hloscope.core.text.tokens import Cursor, escape, lexes_as_json, raw_bytes
from hloscope.core.text.window_forms import dim_labels_form, padding_form, slice_form, window_form

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# ---------------------------------------------------------------- small values
def _integer(at: Cursor) -> str:
    return str(at.integer())


def _integer32(at: Cursor) -> str:
    start = at.start
    number = at.integer()
    if not -(2**31) <= number < 2**31:
        raise ParseError(f"{number} does not fit in 32 bits", column=start + 1)
    return str(number)


def _boolean(at: Cursor) -> str:
    if at.kind != "word" or at.value not in ("true", "false"):
        at.fail(f"expected true or false, got {at.glance()}")
    word = at.value
    at.advance()
    return word


def number(at: Cursor) -> float:
    """A float, an integer or ``inf``."""
    if at.kind in ("decimal", "int", "negative_inf") or (at.kind == "word" and at.value == "inf"):
        word = re.sub(r"\(.*", "", at.value)
        at.advance()
        return float(word)
    at.fail(f"expected a number, got {at.glance()}")


def _six_digits(value: float) -> str:
    text = f"{value:.6g}"
    return text


def _float(at: Cursor) -> str:
    start = at.start
    value = number(at)
    if abs(value) > 3.4028234663852886e38 and value not in (float("inf"), float("-inf")):
        raise ParseError(f"{value} is out of range for f32", column=start + 1)
    return _six_digits(value)


def _string(at: Cursor) -> str:
    return f'"{at.string()}"'


def _integers(at: Cursor) -> str:
    return "{" + ",".join(map(str, at.integers())) + "}"


def _integer_lists(at: Cursor) -> str:
    return "{" + ",".join(at.items("{", "}", lambda: _integers(at))) + "}"


def _pairs(at: Cursor) -> str:
    def pair() -> str:
        values = at.integers()
        if len(values) != 2:
            at.fail("expected pairs {source,target}")
        return f"{{{values[0]},{values[1]}}}"

    return "{" + ",".join(at.items("{", "}", pair)) + "}"


def _words(*allowed: str) -> Callable[[Cursor], str]:
    def read(at: Cursor) -> str:
        if at.kind != "word" or at.value not in allowed:
            at.fail(f"expected one of {', '.join(allowed)}, got {at.glance()}")
        word = at.value
        at.advance()
        return word

    return read


def _word_list(*allowed: str) -> Callable[[Cursor], str]:
    choose = _words(*allowed)

    def one(at: Cursor) -> str:
        at.lower()
        return choose(at)

    def read(at: Cursor) -> str:
        return "{" + ",".join(at.items("{", "}", lambda: one(at))) + "}"

    return read


def _booleans(at: Cursor) -> str:
    return "{" + ",".join(at.items("{", "}", lambda: _boolean(at))) + "}"


def booleans_or_one(at: Cursor) -> str:
    """``true`` or ``{true,false}``, always printed as a list."""
    return _booleans(at) if at.kind == "{" else "{" + _boolean(at) + "}"


# ---------------------------------------------------------------- shapes and indices
def shape(at: Cursor) -> Shape:
    """A shape, with the default layout where it gives none."""
    start = at.start
    walk_shape(at)
    try:
        found, _ = scan_shape(without_comments(at.text) if "/" in at.text else at.text, start)
    except ParseError as bad:
        raise ParseError(bad.message, column=bad.column or start + 1) from None
    return found.with_default_layout()


def _shape(at: Cursor) -> str:
    return str(shape(at))


def _shapes(at: Cursor) -> str:
    return "{" + ", ".join(at.items("{", "}", lambda: _shape(at))) + "}"


def _aliasing(at: Cursor) -> str:
    return "{" + ", ".join(_loose(at, lambda: _alias(at))) + "}"


def _loose(at: Cursor, item: Callable[[], str]) -> list[str]:
    # Here XLA lets the last item be followed by a comma.
    at.expect("{")
    out: list[str] = []
    while at.kind != "}":
        out.append(item())
        if not at.accept(","):
            break
    at.expect("}")
    return out


def _alias(at: Cursor) -> str:
    out = at.index()
    at.expect(":")
    at.expect("(")
    operand = at.integer("an operand number")
    at.expect(",")
    inner = at.index()
    at.expect(")")
    return f"{out}: ({operand}, {inner})"


def input_output_alias(at: Cursor) -> str:
    """``{ {0}: (1, {}, may-alias) }`` of a module's header; sorted by output index."""

    found: dict[tuple[int, ...], str] = {}

    def one() -> str:
        index = at.integers(loose=True)
        at.expect(":")
        at.expect("(")
        parameter = at.integer("a parameter number")
        at.expect(",")
        inner = at.index()
        kind = "may-alias"
        if at.accept(","):
            kind = _words("may-alias", "must-alias")(at)
        at.expect(")")
        found.setdefault(tuple(index), f"{{{','.join(map(str, index))}}}: ({parameter}, {inner}, {kind})")
        return ""

    _loose(at, one)
    return "{ " + ", ".join(found[key] for key in sorted(found)) + " }" if found else ""


def buffer_donor(at: Cursor) -> str:
    """``{ (0, {}), (1, {0}) }`` of a module's header; sorted."""
    found: set[tuple[int, tuple[int, ...]]] = set()

    def one() -> str:
        at.expect("(")
        parameter = at.integer("a parameter number")
        at.expect(",")
        found.add((parameter, tuple(at.integers(loose=True))))
        at.expect(")")
        return ""

    _loose(at, one)
    parts = [f"({p}, {{{','.join(map(str, i))}}})" for p, i in sorted(found)]
    return "{ " + ", ".join(parts) + " }" if parts else ""


def computation_layout(at: Cursor) -> str:
    """``{(f32[2]{0})->f32[]}`` of a module's header."""
    at.expect("{")
    parameters: list[str] = []
    at.expect("(")
    while at.kind != ")":  # here XLA lets the last shape be followed by a comma
        parameters.append(_shape(at))
        if not at.accept(","):
            break
    at.expect(")")
    at.expect("arrow", "'->'")
    result = _shape(at)
    at.expect("}")
    listed = ", ".join((f"/*index={i}*/" if i and i % 5 == 0 else "") + p for i, p in enumerate(parameters))
    return "{(" + listed + ")->" + result + "}"


# ---------------------------------------------------------------- dictionaries and strings
def _json_or_string(at: Cursor) -> str:
    """A string or a raw brace group, printed raw where XLA's lexer takes it for one."""
    if at.kind == "string":
        body = at.string_bytes()
        at.advance()
        text = body.decode("utf-8", "surrogateescape")
        return text if lexes_as_json(text) else f'"{escape(body)}"'
    if at.kind != "{":
        at.fail(f"expected a string or a brace group, got {at.glance()}")
    end = brace_end(at.text, at.start)
    if end < 0:
        at.fail("the brace group is not closed")
    text = at.text[at.start : end]
    if "\\\n" in text and any("\\\n" in one.replace("\\\\", "") for one in _QUOTED.findall(text)):
        at.fail("a line ends in a backslash inside a string")
    at.jump(end)
    return text


_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)


def _backend_config(at: Cursor) -> str:
    text = _json_or_string(at)
    return "" if text == '""' else text


def frontend_attributes(at: Cursor) -> str:
    """``{key="value",other={…}}``, sorted by key."""
    found: dict[str, str] = {}

    def one() -> str:
        if at.kind != "key":
            at.fail(f"expected key=value, got {at.glance()}")
        key = at.value
        at.advance()
        found[key] = _json_or_string(at)
        return ""

    at.items("{", "}", one)
    return "{" + ",".join(f"{k}={found[k]}" for k in sorted(found, key=raw_bytes)) + "}" if found else ""


def _statistics(at: Cursor) -> str:
    at.expect("{")
    if at.accept("}"):
        return ""
    parts: list[str] = []
    while True:
        if at.kind != "key":
            at.fail(f"expected key=value, got {at.glance()}")
        key = at.value if parts else "visualizing_index"
        at.advance()
        if not parts:
            parts.append(f"{key}={at.integer()}")
        elif at.stands("decimal", "int"):
            parts.append(f"{key}={_six_digits(number(at))}")
        else:
            at.fail(f"expected a number, got {at.glance()}")
        if not at.accept(","):
            break
    at.expect("}")
    return "{" + ",".join(parts) + "}" if len(parts) > 1 else ""


def _result_accuracy(at: Cursor) -> str:
    at.expect("{")
    if at.kind != "key" or at.value not in ("mode", "tolerance"):
        at.fail(f"expected mode= or tolerance=, got {at.glance()}")
    key = at.value
    at.advance()
    if key == "mode":
        mode = _words("default", "highest")(at)
        at.expect("}")
        return "" if mode == "default" else f"{{mode={mode}}}"
    values = {"atol": 0.0, "rtol": 0.0, "ulps": 0.0}

    def one() -> str:
        if at.kind != "key" or at.value not in values:
            at.fail(f"expected atol=, rtol= or ulps=, got {at.glance()}")
        name = at.value
        at.advance()
        values[name] = number(at)
        return ""

    at.items("{", "}", one)
    at.expect("}")
    written = ",".join(f"{k}={int(v) if k == 'ulps' else _six_digits(v)}" for k, v in values.items())
    return "{tolerance={" + written + "}}"


def _domain(at: Cursor) -> str:
    at.expect("{")
    found: dict[str, str] = {}
    while at.kind != "}":
        at.accept(",")
        if at.kind != "key" or at.value not in ("kind", "entry", "exit"):
            at.fail(f"expected kind=, entry= or exit=, got {at.glance()}")
        key = at.value
        if key in found:
            at.fail(f"{key} is given twice")
        at.advance()
        found[key] = at.string() if key == "kind" else sharding_form(at)
    if len(found) != 3:
        at.fail("a domain needs kind, entry and exit")
    if found["kind"] != "sharding":
        at.fail(f"unknown kind of domain {found['kind']!r}")
    at.advance()
    return f'{{kind="sharding", entry={found["entry"]}, exit={found["exit"]}}}'


def _sparsity(at: Cursor) -> str:
    at.expect("{")
    sides: dict[str, str] = {}
    while at.kind != "}":
        if at.kind != "key" or at.value not in ("lhs", "rhs"):
            at.fail(f"expected lhs= or rhs=, got {at.glance()}")
        side = at.value
        at.advance()
        sides[side] = f"{side}={{{_tensor_sparsity(at)}}}"
    at.advance()
    return "{" + " ".join(sides[s] for s in ("lhs", "rhs") if s in sides) + "}"


def _tensor_sparsity(at: Cursor) -> str:
    at.expect("{")
    items: list[str] = []
    while at.kind != "}":
        if at.kind != "key" or at.value not in ("sparsity", "dimension", "stride", "idx"):
            at.fail(f"expected sparsity=, dimension=, stride= or idx=, got {at.glance()}")
        key = at.value
        at.advance()
        items.append(f"{key}={at.expect('dxd', '2x4') if key == 'sparsity' else at.integer()}")
    at.advance()
    return " ".join(items)


def _literal(at: Cursor) -> str:
    if at.kind == "(":
        try:
            scan_shape(at.text, at.start)
        except ParseError:  # a tuple whose elements have their own shapes
            return "( " + ", ".join(at.items("(", ")", lambda: _literal(at))) + " )"
    wanted = shape(at)
    end = match_bracket(at.text, at.start) if at.kind in ("{", "(") else at.end
    try:
        literal = parse_literal(at.text[at.start : end], wanted)
    except ParseError as bad:
        raise ParseError(bad.message, column=at.start + 1) from None
    at.jump(end)
    return f"{wanted} {re.sub(r'/[*].*?[*]/', '', literal.to_text())}"


def _metadata(at: Cursor) -> str:
    text = metadata_form(at)
    return "" if text == "{}" else text


_ALGORITHMS = (
    "dot_any_f8_any_f8_f32", "dot_any_f8_any_f8_f32_fast_accum", "dot_any_f8_any_f8_any",
    "dot_any_f8_any_f8_any_fast_accum", "dot_f16_f16_f16", "dot_f16_f16_f32", "dot_bf16_bf16_bf16",
    "dot_bf16_bf16_f32", "dot_bf16_bf16_f32_x3", "dot_bf16_bf16_f32_x6", "dot_bf16_bf16_f32_x9",
    "dot_tf32_tf32_f32", "dot_tf32_tf32_f32_x3", "dot_f32_f32_f32", "dot_f64_f64_f64", "unset",
)  # fmt: skip

PRECISIONS = ("default", "high", "highest", "packed_nibble")
WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "direction": ("EQ", "NE", "GE", "GT", "LE", "LT"),
        "type": ("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"),
        "fft_type": ("FFT", "IFFT", "RFFT", "IRFFT"),
        "distribution": ("rng_uniform", "rng_normal"),
        "algorithm": ("rng_default", "rng_three_fry", "rng_philox", *_ALGORITHMS),
        "kind": ("kLoop", "kInput", "kOutput", "kCustom"),
        "padding_type": ("PADDING_INVALID", "PADDING_VALID", "PADDING_SAME"),
        "schedule": ("SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST"),
        "api_version": (
            "API_VERSION_ORIGINAL", "API_VERSION_STATUS_RETURNING", "API_VERSION_STATUS_RETURNING_UNIFIED",
            "API_VERSION_TYPED_FFI",
        ),
        "transpose_a": ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT", "TRANSPOSE_INVALID"),
        "convolution_kind": ("fprop", "wgrad", "dgrad", "unset"),
        "mode": ("cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_id"),
    }
)  # fmt: skip
"""The words that attributes of one word may have."""


def words_of(opcode: str, key: str) -> tuple[str, ...]:
    """The words that may stand in an attribute of an opcode; none where it holds something else."""
    if FORMS.get(key) is _boolean:
        return ("true", "false")
    if key == "operand_precision":
        return PRECISIONS
    words = WORDS.get(key, ())
    if key == "algorithm":
        random = opcode == "rng-bit-generator"
        return tuple(one for one in words if one.startswith("rng_") == random)
    return tuple(one for one in words if not one.endswith(("INVALID", "unset")))


def _table() -> dict[str, Callable[[Cursor], str]]:
    table: dict[str, Callable[[Cursor], str]] = {}

    def add(names: str, form: Callable[[Cursor], str]) -> None:
        table.update(dict.fromkeys(names.split(), form))

    add("dimensions slice_dims dynamic_slice_sizes offset_dims collapsed_slice_dims start_index_map", _integers)
    add("operand_batching_dims start_indices_batching_dims update_window_dims inserted_window_dims", _integers)
    add("scatter_dims_to_operand_dims input_batching_dims scatter_indices_batching_dims fft_length", _integers)
    add("lhs_contracting_dims rhs_contracting_dims lhs_batch_dims rhs_batch_dims lhs_ragged_dims", _integers)
    add("rhs_group_dims slice_sizes", _integers)
    add("index channel_id iota_dimension k feature_index exponent_bits mantissa_bits index_vector_dim", _integer)
    add("feature_group_count batch_group_count delta inferred_dimension num_carries", _integer)
    add("cross_program_prefetch_index", _integer32)
    add("constrain_layout use_global_device_ids largest is_stable is_host_transfer is_composite", _boolean)
    add("indices_are_sorted unique_indices custom_call_has_side_effect lower left_side unit_diagonal", _boolean)
    add("is_reverse is_associative has_dynamic_root", _boolean)
    add("parameter_replication", _booleans)
    add("epsilon", _float)
    add("custom_call_target outfeed_config infeed_config async_execution_thread", _string)
    for key, words in WORDS.items():
        add(key, _words(*words))
    add("operand_precision", _word_list(*PRECISIONS))
    add("window", window_form)
    add("dim_labels", dim_labels_form)
    add("slice", slice_form)
    add("padding", padding_form)
    add("source_target_pairs", _pairs)
    add("replica_groups", replica_groups_form)
    add("sharding", sharding_form)
    add("metadata", _metadata)
    add("frontend_attributes", frontend_attributes)
    add("statistics", _statistics)
    add("result_accuracy", _result_accuracy)
    add("origin", origin)
    add("backend_config", _backend_config)
    add("outfeed_shape", _shape)
    add("operand_layout_constraints", _shapes)
    add("output_to_operand_aliasing", _aliasing)
    add("domain", _domain)
    add("sparsity_config", _sparsity)
    add("literal", _literal)
    return table


FORMS: Mapping[str, Callable[[Cursor], str]] = MappingProxyType(_table())
"""How the value of each attribute is read and written, by name; computations and control edges are the graph's."""

_NATURAL = r"(?:0|[1-9]\d{0,17})"
_USUAL: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        name: re.compile(pattern)
        for form, pattern in (
            (_integers, rf"\{{{_NATURAL}(?:,{_NATURAL})*\}}|\{{\}}"),
            (_integer, r"0|-?[1-9]\d{0,17}"),
            (_boolean, "true|false"),
            (_string, r'"[A-Za-z0-9_.$@:/ \-]*"'),
        )
        for name, used in FORMS.items()
        if used is form
    }
)
"""Forms that are XLA's as they stand, for the commonest kinds."""


def is_usual_value(name: str, text: str) -> bool:
    """Whether a value is in XLA's form for certain; False says nothing."""
    if name == "metadata":
        return is_usual(text)
    pattern = _USUAL.get(name)
    return pattern is not None and pattern.fullmatch(text) is not None


def canonical_value(name: str, text: str, form: Callable[[Cursor], str] | None = None) -> str:
    """The text that XLA prints for an attribute's value; the empty string where XLA prints nothing for it.

    Raises ParseError (with `column` in `text`) where XLA's parser refuses the value, and KeyError for a name that has
    no form.
    """
    read = FORMS[name] if form is None else form
    if name == "slice_sizes" and text[1:].lstrip().startswith("{"):
        read = _integer_lists  # one list for each operand of a collective-permute
    if form is None and is_usual_value(name, text):
        return text
    at = Cursor(text)
    value = read(at)
    if at.kind != "end":
        at.fail(f"unexpected {at.glance()} after the value of {name}")
    return value
