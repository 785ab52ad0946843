"""Which rewrites of XLA's algebraic simplifier exist here, and why the others do not.

``python -m hloscope.core.passes.rules.catalogue`` prints the table as Markdown; a page of the documentation holds it.
Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc``, handler by handler.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One rewrite of XLA's."""

    handler: str
    """The opcode that it looks at."""
    form: str
    """What becomes what."""
    rules: tuple[str, ...]
    """Rules here that do it; empty where none does."""
    reason: str
    """Why none does, or how ours differs."""


_TABLE = """
abs: |x| of a value that is never negative = abs-nonnegative
add: x + 0 = add-zero
add: constants to the right = add-constant-right
add: (x + c1) + c2 = add-add-constants
add: (c1 - x) + c2 = add-subtract-constants
add: x + (y - x) = add-difference
add: x + dus(0, u, i) = add-update
add: a·c + b·c = add-common-factor
add: two scatters joined = - rare, and needs proof that indices do not overlap
add: x + scatter(o, i, u) = add-scatter
add: conv + bias + bias (GPU) = - needs a target's convolution library
subtract: x - x = subtract-self
subtract: x - 0 = subtract-zero
subtract: x - c = subtract-constant
subtract: x - (x ± y), (x + y) - x = subtract-sum
multiply: x · 1 = multiply-one
multiply: x · 0 = multiply-zero
multiply: (-a)·(-b) = multiply-negated
multiply: |a|·|a| = multiply-absolute
multiply: x · convert(pred) = multiply-pred
multiply: (a·c1)·(b·c2), (a·c1)·c2 = multiply-gather-constants
multiply: (a·c)·broadcast(b) = multiply-scalar-factors
multiply: exp(a)·exp(b) = multiply-powers
multiply: sqrt(x)·sqrt(x), rsqrt(x)·rsqrt(x) = multiply-roots
multiply: (conv + bias)·c (GPU) = - needs a target's convolution library
divide: x / 1 = divide-one
divide: x / 2^k of integers = divide-unsigned-power-of-two divide-signed-power-of-two
divide: exp(a)/exp(b), a/exp(b) = divide-by-exponential
divide: a / b^c = divide-by-power
divide: a / sqrt(b), a / rsqrt(b) = divide-by-root
divide: a / c = divide-constant: refuses where 1/c is no normal number
divide: a / broadcast(b) (CPU) = divide-broadcast
divide: quotients of quotients = divide-quotients
divide: convert(pred) / broadcast(y) = divide-pred
remainder: (a % b) % b = remainder-twice
remainder: a % 2^k = remainder-unsigned-power-of-two remainder-signed-power-of-two
remainder: iota % c, (iota + c) % c = remainder-iota
power: x^0, x^1 = power-zero power-one
power: exp(a)^b = power-of-exponential
power: x², x³ = power-two power-three
power: x^-1 = power-minus-one
power: x^0.5 = power-half
negate, not: twice = negate-negate not-not
exponential: exp(0) = exponential-zero
log: log(exp(a)) = log-of-exponential
log: log(a^b) = log-of-power: no complex numbers
log: log(sqrt(a)), log(rsqrt(a)) = log-of-root
sqrt: sqrt(a·a) = sqrt-of-square: with fast math
rsqrt: rsqrt(a^-2), rsqrt(1/a) = rsqrt-of-inverse
maximum, minimum: max(x, x) = minmax-same
maximum, minimum: against the lowest or highest value = minmax-bound
maximum, minimum: nested = minmax-nested minmax-swapped
maximum, minimum: to clamp = minmax-to-clamp
maximum: max(lo, clamp(lo, x, hi)) = maximum-of-clamp: constant bounds in order
maximum: max(f(x), f(y)) of a monotone f = maximum-monotone
clamp: clamp of clamp = clamp-clamp
clamp: of a device id = clamp-device-id
and: with true, 0 = and-identity and-zero
and: (x < a) and (x < b) = and-two-bounds
or: with true, 0 = or-true or-identity
xor: x ^ x, x ^ 0 = xor-self xor-zero: one instruction twice, not two equal ones
compare: unsigned against 0 = compare-unsigned-zero
compare: never negative against 0 = compare-nonnegative-zero
compare: x with itself = compare-self
compare: pred against a constant = compare-pred-constant
compare: select(p, 1, 0) ≠ 0 = compare-select
compare: max(a, b) > b and so on = compare-extreme
select: equal branches, constant pred = select-same select-constant
select: of not = select-not
select: of pred constants, of a compare of preds = select-pred select-compare
select: between xs and dus(xs, x, i) = select-update
convert: to the same type = convert-same
convert: there and back = convert-round-trip
convert: of a constant (option) = - off in every pipeline
convert: narrow arithmetic = convert-narrow-arithmetic
complex, real, imag: of parts = complex-of-parts real-of-complex imag-of-complex
reduce-precision: that rounds nothing (option) = reduce-precision-nothing
iota: along a size of 1 = iota-trivial
constant: tuples = - the text has no such constants before layout assignment
constant: splat = constant-splat
constant: 0, 1, 2, …, 0, k, 2k, … = constant-iota: bits of at least 8
get-tuple-element: of tuple = element-of-tuple
opt-barrier: unused elements = barrier-unused
conditional: on convert(pred) (GPU) = conditional-on-pred
map: identity, constant, one operation = map-trivial map-elementwise
custom-call: SliceToDynamic(PadToStatic) = - made by the dynamic padder's library calls, which are not made here
custom-call: LayoutConstraint = - after layout assignment
all-gather, all-to-all: of a constant = collective-of-broadcast
all-reduce, reduce-scatter: of a constant = reduce-of-equal
sort: of nothing = sort-trivial
scatter: of nothing = scatter-empty
scatter: as a map = - an operand, an update and no indices: never seen
bitcast: of bitcast and others = - after layout assignment
bitcast-convert: chains = bitcast-convert-chain: of one width
bitcast-convert: of concatenate = bitcast-convert-concatenate
broadcast: that adds nothing = broadcast-nothing
broadcast: of a reshape that inserts sizes of 1 = broadcast-reshape
broadcast: sunk below elementwise operations = sink-broadcast
broadcast: scalar through reshape, transpose, reverse = reshape-broadcast transpose-broadcast reverse-scalar-broadcast
broadcast: scalar through slices = slice-broadcast dynamic-slice-broadcast
broadcast: of iota, of broadcast = broadcast-iota broadcast-broadcast
broadcast: sizes of 1 dropped = broadcast-degenerate
reshape: of nothing = reshape-empty
reshape: same shape, of reshape = reshape-same reshape-reshape
reshape, transpose: chains that undo themselves = rearrangement-chain
reshape: below a transpose (GPU) = hoist-transpose
reshape: of a broadcast = reshape-of-broadcast
reshape: of iota = reshape-iota
reshape: of dynamic-update-slice = reshape-update
reshape: to bitcast, past copy = - after layout assignment
reshape: that moves part of a dimension = depth-to-space
copy: of copy, same layout = copy-copy copy-same-layout
copy: to bitcast, past reshape = - after layout assignment
transpose: of nothing, of transpose = transpose-same transpose-transpose
transpose: of scatter (GPU) = transpose-scatter
transpose: of dot = transpose-dot
transpose: of sizes of 1 = transpose-degenerate
transpose: of a sorted broadcast = transpose-sorted-broadcast
transpose: of rng = - numbers of another order
reverse: of sizes of 1, of reverse = reverse-degenerate reverse-reverse
reverse: of op(x, scalar) = reverse-binary
reverse: of reshape = reverse-reshape
slice: of everything = slice-full
slice: of pad = slice-pad
slice: of slice = slice-slice
slice: of broadcast = slice-of-broadcast
slice: of concatenate = slice-concatenate slice-some-operands
slice: the end of a running reduction = slice-last-window
slice: of reshape = slice-reshape
slice: of reverse = slice-reverse
slice: a stride of one step = slice-one-step
slice: of dot (option) = - off in every pipeline
concatenate: of one = concatenate-one
concatenate: nested = concatenate-nested
concatenate: of slices side by side = concatenate-slices
concatenate: with a scalar broadcast = concatenate-scalar-broadcast
concatenate: of one value = concatenate-same
pad: of nothing, by nothing = pad-empty pad-nothing
pad: interior of a size of 1 = pad-interior-one
pad: of broadcast = pad-broadcast
pad: negative = pad-negative
dynamic-slice: of everything = dynamic-slice-full
dynamic-slice, dynamic-update-slice: whole dimensions = dynamic-index-zero
dynamic-slice: of broadcast = dynamic-slice-of-broadcast
dynamic-slice: of reshape = dynamic-slice-reshape
dynamic-slice: of transpose = dynamic-slice-transpose
dynamic-slice: at constants = dynamic-slice-constant
dynamic-slice: of iota = dynamic-slice-iota
dynamic-slice: of dynamic-slice = dynamic-slice-twice
dynamic-update-slice: into a broadcast = update-to-pad
dynamic-update-slice: of everything, of nothing = dynamic-update-slice-full dynamic-update-slice-empty
dynamic-update-slice: of dynamic-update-slice = update-twice
gather: from nothing, from one element = gather-empty
gather: from at most 4 elements = gather-few
gather: of pad = - newer than the compiler that is compared against
dot: of nothing = dot-empty
dot: without contraction = dot-outer
dot: nested, associative reordering (option) = - off in every pipeline
dot: strength reduction = dot-strength
dot: of reshape(transpose), constant = - shapes of one known program
dot: of concatenate, constant = dot-of-concatenate
dot: of dynamic-slice of a constant = dot-of-row
dot: sizes of 1 = dot-degenerate
dot: of two transposes = dot-of-transposes
dot: parameter to the right (option) = - off in every pipeline
convolution: scalar multiply motion (option) = - off in every pipeline
convolution: of nothing = dot-empty
convolution: of pad = convolution-pad
convolution: kernel padding = convolution-kernel-pad
convolution: operands swapped = - needs a target's cost of convolutions
convolution: to dot = - after layout assignment
convolution: depthwise to multiply = - needs a target's cost of convolutions
reduce: of nothing = reduce-empty
reduce: a tuple of one = reduce-one-tuple
reduce: over sizes of 1 = reduce-nothing
reduce: Σ -x = reduce-negated
reduce: argmax of equal values = arg-extreme-constant
reduce: of transpose = reduce-transpose
reduce: of reduce = reduce-of-reduce
reduce: of reshape = reduce-reshape
reduce: of concatenate = reduce-concatenate
reduce: of dot (option) = - off in every pipeline
reduce: beside an argmax = reduce-beside-argument
reduce: of copies of a scalar = reduce-scalar-broadcast
reduce: of broadcast = reduce-broadcast sum-broadcast
reduce-window: of nothing, of a scalar = window-empty window-scalar
reduce-window: running sum of a constant = cumulative-constant: integers
reduce-window: of one element = window-of-one
reduce-window: whole dimensions = window-whole
reduce-window: of pad = window-pad: not through a conversion
"""
"""``handler: form = rule rule: how ours differs``, or ``= - why there is none``."""


def _read(line: str) -> Entry:
    what, _, ours = line.partition(" = ")
    handler, _, form = what.partition(": ")
    if ours.startswith("- "):
        return Entry(handler, form, (), ours[2:])
    names, _, reason = ours.partition(": ")
    return Entry(handler, form, tuple(names.split()), reason)


CATALOGUE: tuple[Entry, ...] = tuple(_read(line) for line in _TABLE.strip().splitlines())
"""XLA's rewrites in the order of its handlers."""


def markdown() -> str:
    """The table of rules, with what each does, and of what is left out."""
    from hloscope.core.passes.rules import ALGSIMP_RULES

    known = {one.name: one for one in ALGSIMP_RULES}
    lines = ["| XLA's handler | form | here | what it does |", "|---|---|---|---|"]
    for entry in CATALOGUE:
        if not entry.rules:
            lines.append(f"| {entry.handler} | {_cell(entry.form)} | none | {_cell(entry.reason)} |")
        for number, name in enumerate(entry.rules):
            note = f" ({entry.reason})" if entry.reason and not number else ""
            what = _cell(known[name].summary + note)
            lines.append(f"| {entry.handler} | {_cell(entry.form)} | `{name}` | {what} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(markdown(), end="")
