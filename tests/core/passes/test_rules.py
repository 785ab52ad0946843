"""Every rule of the algebraic simplifier: a module where it applies, keeps the value and ends as said, and one where it
must not apply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tests.core.recorded import Recorded

from hloscope.core.hlo.module import HloModule
from hloscope.core.ledger.events import RewriteDecision
from hloscope.core.passes.algsimp import AlgebraicSimplifier
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.invariants import findings
from hloscope.core.passes.rules import ALGSIMP_RULES, Rule
from hloscope.core.runtime.compare import compare_all, join_rules, rules_for
from hloscope.core.runtime.evaluator import Array, Value, evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module, print_instruction, print_module


@dataclass(frozen=True)
class Case:
    rule: str
    fires: str
    """Entry computation; the last line is the root."""
    becomes: str
    """The root afterwards, when only this rule runs once: ``opcode(operand names)``."""
    refuses: str
    """Entry computation in which the rule must not apply."""
    code: str | None = None
    """Code of the recorded refusal, where that is more than a pattern that does not match."""
    extremes: bool = True
    """Whether the value stays for infinities and NaN as well."""


def splat(value: str, kind: str = "f32", name: str = "k") -> str:
    return f"c{name} = {kind}[] constant({value}); {name} = {kind}[4]{{0}} broadcast(c{name}), dimensions={{}}; "


def _read(table: str) -> list[Case]:
    """Cases of the file: blocks of three lines, continued by lines that are indented.

    A line ``rule = root afterwards`` (nothing where any form will do; ``~`` in front of a rule that is not meant for
    infinities and NaN), a line ``+`` with a module where the rule applies, and a line ``-`` with one where it must not,
    followed by ``!code`` where the refusal is recorded.
    """
    cases: list[Case] = []
    joined = table.replace("\n    ", " ")
    blocks = [block for block in joined.strip().split("\n\n") if block.strip()]
    for block in blocks:
        head, fires, refuses = block.strip().split("\n")
        name, _, becomes = head.partition("=")
        extremes = not name.startswith("~")
        body, mark, code = refuses.partition("!")
        fires, body = (_words(text[1:].strip()) for text in (fires, body))
        cases.append(Case(name.strip("~ "), fires, becomes.strip(), body, code.strip() if mark else None, extremes))
    return cases


_SHORT = {
    "F4": "a = f32[4]{0} parameter(0); b = f32[4]{0} parameter(1);",
    "S4": "a = s32[4]{0} parameter(0); b = s32[4]{0} parameter(1);",
    "U4": "a = u32[4]{0} parameter(0); b = u32[4]{0} parameter(1);",
    "P4": "p = pred[4]{0} parameter(0); q = pred[4]{0} parameter(1);",
    "M23": "m = f32[2,3]{1,0} parameter(0);",
    "IJ": "i = s32[] parameter(1); j = s32[] parameter(2);",
}


def _words(text: str) -> str:
    """``$F4`` and the like written out; ``#NAME:VALUE[:TYPE]`` is a broadcast constant."""
    out: list[str] = []
    for word in text.split(" "):
        if word.startswith("$"):
            out.append(_SHORT[word[1:]])
        elif word.startswith("#"):
            name, value, *kind = word[1:].rstrip(";").split(":")
            out.append(splat(value, kind[0] if kind else "f32", name).strip())
        else:
            out.append(word)
    return " ".join(out)


F = "a = f32[4]{0} parameter(0); b = f32[4]{0} parameter(1); "
U = "a = u32[4]{0} parameter(0); b = u32[4]{0} parameter(1); "
S = "a = s32[4]{0} parameter(0); b = s32[4]{0} parameter(1); "
P = "p = pred[4]{0} parameter(0); q = pred[4]{0} parameter(1); "
M = "m = f32[2,3]{1,0} parameter(0); "


TRUE, FALSE = splat("true", "pred", "t"), splat("false", "pred", "f")
SUM = "reducer=add;"

_CASES = [
    Case("add-zero", F + splat("0") + "r = f32[4]{0} add(k, a)", "a", F + splat("1") + "r = f32[4]{0} add(a, k)"),
    Case(
        "add-constant-right", F + "c = f32[4]{0} constant({1, 2, 3, 4}); r = f32[4]{0} add(c, a)", "add(a, c)",
        "c = f32[4]{0} constant({1, 2, 3, 4}); r = f32[4]{0} add(c, c)",
    ),
    Case(
        "add-add-constants",
        S + splat("3", "s32") + splat("4", "s32", "l") + "x = s32[4]{0} add(a, k); r = s32[4]{0} add(x, l)",
        "add(a, broadcast)",
        F + splat("3") + "l = f32[4]{0} constant({1, 2, 3, 4}); x = f32[4]{0} add(a, k); r = f32[4]{0} add(x, l)",
    ),
    Case("subtract-zero", F + splat("0") + "r = f32[4]{0} subtract(a, k)", "a",
         F + splat("0") + "r = f32[4]{0} subtract(k, a)"),
    Case("subtract-self", S + "r = s32[4]{0} subtract(a, a)", "broadcast(constant)", F + "r = f32[4]{0} subtract(a, a)",
         "nan_semantics"),
    Case("subtract-constant", F + splat("3") + "r = f32[4]{0} subtract(a, k)", "add(a, broadcast)",
         F + "r = f32[4]{0} subtract(a, b)"),
    Case("multiply-one", F + splat("1") + "r = f32[4]{0} multiply(k, a)", "a",
         F + splat("2") + "r = f32[4]{0} multiply(a, k)"),
    Case("multiply-zero", S + splat("0", "s32") + "r = s32[4]{0} multiply(a, k)", "k",
         F + splat("0") + "r = f32[4]{0} multiply(a, k)", "nan_semantics"),
    Case("multiply-negated", F + "x = f32[4]{0} negate(a); y = f32[4]{0} negate(b); r = f32[4]{0} multiply(x, y)",
         "multiply(a, b)", F + "x = f32[4]{0} negate(a); r = f32[4]{0} multiply(x, b)"),
    Case("multiply-absolute", F + "x = f32[4]{0} abs(a); r = f32[4]{0} multiply(x, x)", "multiply(a, a)",
         "a = c64[4]{0} parameter(0); x = f32[4]{0} abs(a); r = f32[4]{0} multiply(x, x)"),
    Case("divide-one", F + splat("1") + "r = f32[4]{0} divide(a, k)", "a",
         F + splat("1") + "r = f32[4]{0} divide(k, a)"),
    Case("divide-unsigned-power-of-two", U + splat("8", "u32") + "r = u32[4]{0} divide(a, k)",
         "shift-right-logical(a, broadcast)", S + splat("8", "s32") + "r = s32[4]{0} divide(a, k)"),
    Case("divide-constant", F + splat("3") + "r = f32[4]{0} divide(a, k)", "multiply(a, broadcast)",
         F + splat("1e-39") + "r = f32[4]{0} divide(a, k)", "reciprocal"),
    Case("remainder-unsigned-power-of-two", U + splat("8", "u32") + "r = u32[4]{0} remainder(a, k)",
         "and(a, broadcast)", U + splat("6", "u32") + "r = u32[4]{0} remainder(a, k)"),
    Case("power-zero", F + splat("0") + "r = f32[4]{0} power(a, k)", "broadcast(constant)",
         F + splat("0") + "r = f32[4]{0} power(k, a)"),
    Case("power-one", F + splat("1") + "r = f32[4]{0} power(a, k)", "a",
         F + splat("1") + "r = f32[4]{0} power(k, a)"),
    Case("power-two", F + splat("2") + "r = f32[4]{0} power(a, k)", "multiply(a, a)",
         F + splat("2.5") + "r = f32[4]{0} power(a, k)"),
    Case("power-three", F + splat("3") + "r = f32[4]{0} power(a, k)", "multiply(a, multiply)",
         F + splat("4") + "r = f32[4]{0} power(a, k)"),
    Case("power-minus-one", F + splat("-1") + "r = f32[4]{0} power(a, k)", "divide(broadcast, a)",
         S + splat("-1", "s32") + "r = s32[4]{0} power(a, k)"),
    Case("negate-negate", F + "x = f32[4]{0} negate(a); r = f32[4]{0} negate(x)", "a", F + "r = f32[4]{0} negate(a)"),
    Case("abs-nonnegative", F + "x = f32[4]{0} exponential(a); r = f32[4]{0} abs(x)", "x",
         F + "x = f32[4]{0} negate(a); r = f32[4]{0} abs(x)"),
    Case("complex-of-parts",
         "z = c64[4]{0} parameter(0); x = f32[4]{0} real(z); y = f32[4]{0} imag(z); r = c64[4]{0} complex(x, y)", "z",
         "z = c64[4]{0} parameter(0); x = f32[4]{0} real(z); y = f32[4]{0} imag(z); r = c64[4]{0} complex(y, x)"),
    Case("real-of-complex", F + "z = c64[4]{0} complex(a, b); r = f32[4]{0} real(z)", "a",
         "z = c64[4]{0} parameter(0); r = f32[4]{0} real(z)"),
    Case("imag-of-complex", F + "z = c64[4]{0} complex(a, b); r = f32[4]{0} imag(z)", "b",
         "z = c64[4]{0} parameter(0); r = f32[4]{0} imag(z)"),
    Case("not-not", P + "x = pred[4]{0} not(p); r = pred[4]{0} not(x)", "p", P + "r = pred[4]{0} not(p)"),
    Case("and-identity", P + TRUE + "r = pred[4]{0} and(t, p)", "p",
         S + splat("1", "s32") + "r = s32[4]{0} and(a, k)"),
    Case("and-zero", S + splat("0", "s32") + "r = s32[4]{0} and(a, k)", "k", P + TRUE + "r = pred[4]{0} and(p, t)"),
    Case("or-identity", P + FALSE + "r = pred[4]{0} or(f, p)", "p", P + TRUE + "r = pred[4]{0} or(t, p)"),
    Case("or-true", P + TRUE + "r = pred[4]{0} or(p, t)", "t", S + splat("1", "s32") + "r = s32[4]{0} or(a, k)"),
    Case("xor-self", U + "r = u32[4]{0} xor(a, a)", "broadcast(constant)", U + "r = u32[4]{0} xor(a, b)"),
    Case("xor-zero", U + splat("0", "u32") + "r = u32[4]{0} xor(a, k)", "a",
         U + splat("1", "u32") + "r = u32[4]{0} xor(a, k)"),
    Case("compare-self", S + "r = pred[4]{0} compare(a, a), direction=LE", "broadcast(constant)",
         F + "r = pred[4]{0} compare(a, a), direction=EQ", "nan_semantics"),
    Case("compare-unsigned-zero", U + splat("0", "u32") + "r = pred[4]{0} compare(a, k), direction=LT",
         "broadcast(constant)", S + splat("0", "s32") + "r = pred[4]{0} compare(a, k), direction=LT"),
    Case("compare-pred-constant", P + TRUE + "r = pred[4]{0} compare(p, t), direction=EQ", "p",
         P + TRUE + "r = pred[4]{0} compare(p, t), direction=NE"),
    Case("select-same", P + "a = f32[4]{0} parameter(2); r = f32[4]{0} select(p, a, a)", "a",
         P + "a = f32[4]{0} parameter(2); b = f32[4]{0} parameter(3); r = f32[4]{0} select(p, a, b)"),
    Case("select-constant", F + FALSE + "r = f32[4]{0} select(f, a, b)", "b",
         F + "p = pred[4]{0} constant({1, 0, 1, 1}); r = f32[4]{0} select(p, a, b)"),
    Case("select-not", F + "p = pred[4]{0} parameter(2); n = pred[4]{0} not(p); r = f32[4]{0} select(n, a, b)",
         "select(p, b, a)", F + "p = pred[4]{0} parameter(2); r = f32[4]{0} select(p, a, b)"),
    Case("select-pred", P + TRUE + FALSE + "r = pred[4]{0} select(p, f, t)", "not(p)",
         "p = pred[] parameter(0); " + TRUE + FALSE + "r = pred[4]{0} select(p, t, f)"),
    Case("minmax-same", F + "r = f32[4]{0} maximum(a, a)", "a", F + "r = f32[4]{0} maximum(a, b)"),
    Case("minmax-bound", F + splat("-inf") + "r = f32[4]{0} maximum(a, k)", "a",
         F + splat("-3.40282347e+38") + "r = f32[4]{0} maximum(a, k)"),
    Case("minmax-nested", F + "x = f32[4]{0} minimum(a, b); r = f32[4]{0} minimum(a, x)", "x",
         F + "x = f32[4]{0} maximum(a, b); r = f32[4]{0} minimum(a, x)"),
    Case("minmax-to-clamp",
         F + splat("-1") + splat("2", name="h") + "x = f32[4]{0} minimum(h, a); r = f32[4]{0} maximum(x, k)",
         "clamp(k, a, h)",
         F + splat("3") + splat("2", name="h") + "x = f32[4]{0} minimum(h, a); r = f32[4]{0} maximum(x, k)"),
    Case("clamp-clamp", F + "c = f32[4]{0} parameter(2); x = f32[4]{0} clamp(a, c, b); r = f32[4]{0} clamp(a, x, b)",
         "x", F + "c = f32[4]{0} parameter(2); x = f32[4]{0} clamp(a, c, b); r = f32[4]{0} clamp(b, x, a)"),
    Case("element-of-tuple",
         F + "t = (f32[4]{0}, f32[4]{0}) tuple(a, b); r = f32[4]{0} get-tuple-element(t), index=1", "b",
         "t = (f32[4]{0}, f32[4]{0}) parameter(0); r = f32[4]{0} get-tuple-element(t), index=1"),
    Case("constant-splat", "r = f32[4]{0} constant({2, 2, 2, 2})", "broadcast(constant)",
         "r = f32[2]{0} constant({0, -0})"),
    Case("convert-same", F + "r = f32[4]{0} convert(a)", "a", F + "r = f16[4]{0} convert(a)"),
    Case("convert-round-trip", "a = bf16[4]{0} parameter(0); x = f32[4]{0} convert(a); r = bf16[4]{0} convert(x)", "a",
         F + "x = bf16[4]{0} convert(a); r = f32[4]{0} convert(x)"),
    Case("bitcast-convert-chain", F + "x = u32[4]{0} bitcast-convert(a); r = s32[4]{0} bitcast-convert(x)",
         "bitcast-convert(a)",
         "a = f32[2]{0} parameter(0); x = u16[2,2]{1,0} bitcast-convert(a); r = f16[2,2]{1,0} bitcast-convert(x)"),
    Case("copy-same-layout", F + "r = f32[4]{0} copy(a)", "a", M + "r = f32[2,3]{0,1} copy(m)"),
    Case("copy-copy", M + "x = f32[2,3]{0,1} copy(m); r = f32[2,3]{1,0} copy(x)", "copy(m)",
         M + "r = f32[2,3]{0,1} copy(m)"),
    Case("iota-trivial", "r = s32[1,3]{1,0} iota(), iota_dimension=0", "broadcast(constant)",
         "r = s32[1,3]{1,0} iota(), iota_dimension=1"),
    Case("reduce-nothing",
         SUM + "m = f32[1,3]{1,0} parameter(0); z = f32[] constant(0);"
         " r = f32[3]{0} reduce(m, z), dimensions={0}, to_apply=red", "reshape(m)",
         SUM + M + "z = f32[] constant(0); r = f32[3]{0} reduce(m, z), dimensions={0}, to_apply=red"),
    Case("reduce-empty",
         SUM + "m = f32[0,3]{1,0} parameter(0); z = f32[] constant(5);"
         " r = f32[3]{0} reduce(m, z), dimensions={0}, to_apply=red", "broadcast(z)",
         SUM + M + "z = f32[] constant(0); r = f32[3]{0} reduce(m, z), dimensions={0}, to_apply=red"),
    Case("reduce-of-reduce",
         "reducer=maximum; m = f32[2,3]{1,0} parameter(0); z = f32[] constant(-inf);"
         " x = f32[3]{0} reduce(m, z), dimensions={0}, to_apply=red;"
         " r = f32[] reduce(x, z), dimensions={0}, to_apply=red", "reduce(m, z)",
         SUM + M + "z = f32[] constant(0); y = f32[] constant(1); x = f32[3]{0} reduce(m, z), dimensions={0},"
         " to_apply=red; r = f32[] reduce(x, y), dimensions={0}, to_apply=red"),
    Case("sort-trivial", "reducer=less; a = f32[1,3]{1,0} parameter(0); r = f32[1,3]{1,0} sort(a), dimensions={0},"
         " to_apply=red", "a", "reducer=less; a = f32[4]{0} parameter(0); r = f32[4]{0} sort(a), dimensions={0},"
         " to_apply=red"),
    Case("broadcast-nothing", M + "r = f32[2,1,3]{2,1,0} broadcast(m), dimensions={0,2}", "reshape(m)",
         M + "r = f32[2,2,3]{2,1,0} broadcast(m), dimensions={0,2}"),
    Case("broadcast-broadcast",
         F + "x = f32[2,4]{1,0} broadcast(a), dimensions={1}; r = f32[4,3,2]{2,1,0} broadcast(x), dimensions={2,0}",
         "broadcast(a)", M + "r = f32[2,3,5]{2,1,0} broadcast(m), dimensions={0,1}"),
    Case("broadcast-iota", "i = s32[4]{0} iota(), iota_dimension=0; r = s32[3,4]{1,0} broadcast(i), dimensions={1}",
         "iota()", S + "r = s32[3,4]{1,0} broadcast(a), dimensions={1}"),
    Case("broadcast-reshape",
         F + "x = f32[1,4,1]{2,1,0} reshape(a); r = f32[1,3,4,1]{3,2,1,0} broadcast(x), dimensions={0,2,3}",
         "broadcast(a)",
         F + "x = f32[2,2]{1,0} reshape(a); r = f32[2,3,2]{2,1,0} broadcast(x), dimensions={0,2}"),
    Case("sink-broadcast",
         F + splat("2") + "x = f32[3,4]{1,0} broadcast(a), dimensions={1}; ks = f32[] constant(2);"
         " l = f32[3,4]{1,0} broadcast(ks), dimensions={}; r = f32[3,4]{1,0} multiply(x, l)", "broadcast(r)",
         F + "x = f32[4,4]{1,0} broadcast(a), dimensions={1}; y = f32[4,4]{1,0} broadcast(b), dimensions={0};"
         " r = f32[4,4]{1,0} multiply(x, y)"),
    Case("reshape-same", M + "r = f32[2,3]{1,0} reshape(m)", "m", M + "r = f32[3,2]{1,0} reshape(m)"),
    Case("reshape-reshape", M + "x = f32[6]{0} reshape(m); r = f32[3,2]{1,0} reshape(x)", "reshape(m)",
         M + "x = f32[3,2]{1,0} transpose(m), dimensions={1,0}; r = f32[6]{0} reshape(x)"),
    Case("reshape-broadcast", "s = f32[] parameter(0); x = f32[4]{0} broadcast(s), dimensions={};"
         " r = f32[2,2]{1,0} reshape(x)", "broadcast(s)",
         F + "x = f32[3,4]{1,0} broadcast(a), dimensions={1}; r = f32[12]{0} reshape(x)"),
    Case("transpose-same", M + "r = f32[2,3]{1,0} transpose(m), dimensions={0,1}", "m",
         "m = f32[2,2]{1,0} parameter(0); r = f32[2,2]{1,0} transpose(m), dimensions={1,0}"),
    Case("transpose-transpose",
         "t = f32[2,3,4]{2,1,0} parameter(0); x = f32[3,4,2]{2,1,0} transpose(t), dimensions={1,2,0};"
         " r = f32[4,3,2]{2,1,0} transpose(x), dimensions={1,0,2}", "transpose(t)",
         M + "r = f32[3,2]{1,0} transpose(m), dimensions={1,0}"),
    Case("transpose-broadcast", "s = f32[] parameter(0); x = f32[2,3]{1,0} broadcast(s), dimensions={};"
         " r = f32[3,2]{1,0} transpose(x), dimensions={1,0}", "broadcast(s)",
         F + "x = f32[3,4]{1,0} broadcast(a), dimensions={1}; r = f32[4,3]{1,0} transpose(x), dimensions={1,0}"),
    Case("transpose-degenerate",
         "m = f32[2,1,3]{2,1,0} parameter(0); r = f32[1,2,3]{2,1,0} transpose(m), dimensions={1,0,2}", "reshape(m)",
         M + "r = f32[3,2]{1,0} transpose(m), dimensions={1,0}"),
    Case("reverse-degenerate", "m = f32[1,3]{1,0} parameter(0); r = f32[1,3]{1,0} reverse(m), dimensions={0}", "m",
         M + "r = f32[2,3]{1,0} reverse(m), dimensions={0}"),
    Case("reverse-reverse", M + "x = f32[2,3]{1,0} reverse(m), dimensions={0,1};"
         " r = f32[2,3]{1,0} reverse(x), dimensions={1}", "reverse(m)",
         M + "r = f32[2,3]{1,0} reverse(m), dimensions={1}"),
    Case("slice-full", F + "r = f32[4]{0} slice(a), slice={[0:4]}", "a", F + "r = f32[3]{0} slice(a), slice={[0:3]}"),
    Case("slice-slice", F + "x = f32[3]{0} slice(a), slice={[1:4]}; r = f32[1]{0} slice(x), slice={[1:2]}", "slice(a)",
         F + "x = f32[2]{0} slice(a), slice={[0:4:2]}; r = f32[1]{0} slice(x), slice={[1:2]}"),
    Case("slice-broadcast", "s = f32[] parameter(0); x = f32[4]{0} broadcast(s), dimensions={};"
         " r = f32[2]{0} slice(x), slice={[1:3]}", "broadcast(s)",
         F + "x = f32[3,4]{1,0} broadcast(a), dimensions={1}; r = f32[3,2]{1,0} slice(x), slice={[0:3], [1:3]}"),
    Case("slice-concatenate", F + "x = f32[8]{0} concatenate(a, b), dimensions={0};"
         " r = f32[2]{0} slice(x), slice={[5:7]}", "slice(b)",
         F + "x = f32[8]{0} concatenate(a, b), dimensions={0}; r = f32[2]{0} slice(x), slice={[3:5]}"),
    Case("concatenate-one", F + "e = f32[0]{0} constant({}); r = f32[4]{0} concatenate(e, a), dimensions={0}", "a",
         F + "r = f32[8]{0} concatenate(a, b), dimensions={0}"),
    Case("concatenate-nested", F + "x = f32[8]{0} concatenate(a, b), dimensions={0};"
         " r = f32[12]{0} concatenate(b, x), dimensions={0}", "concatenate(b, a, b)",
         F + "x = f32[8]{0} concatenate(a, b), dimensions={0}; y = f32[12]{0} concatenate(x, a), dimensions={0};"
         " r = (f32[8]{0}, f32[12]{0}) tuple(x, y)"),
    Case("pad-nothing", F + "z = f32[] constant(0); r = f32[4]{0} pad(a, z), padding=0_0", "a",
         F + "z = f32[] constant(0); r = f32[4]{0} pad(a, z), padding=1_-1"),
    Case("pad-empty", "e = f32[0]{0} parameter(0); z = f32[] constant(3); r = f32[3]{0} pad(e, z), padding=1_2",
         "broadcast(z)", F + "z = f32[] constant(0); r = f32[5]{0} pad(a, z), padding=1_0"),
    Case("dynamic-slice-full", F + "i = s32[] parameter(2); r = f32[4]{0} dynamic-slice(a, i), dynamic_slice_sizes={4}",
         "a", F + "i = s32[] parameter(2); r = f32[3]{0} dynamic-slice(a, i), dynamic_slice_sizes={3}"),
    Case("dynamic-slice-constant",
         F + "i = s32[] constant(7); r = f32[3]{0} dynamic-slice(a, i), dynamic_slice_sizes={3}", "slice(a)",
         F + "i = s32[] parameter(2); r = f32[3]{0} dynamic-slice(a, i), dynamic_slice_sizes={3}"),
    Case("dynamic-slice-broadcast", "s = f32[] parameter(0); i = s32[] parameter(1); x = f32[4]{0} broadcast(s),"
         " dimensions={}; r = f32[2]{0} dynamic-slice(x, i), dynamic_slice_sizes={2}", "broadcast(s)",
         F + "i = s32[] parameter(2); r = f32[2]{0} dynamic-slice(a, i), dynamic_slice_sizes={2}"),
    Case("dynamic-index-zero", M + "i = s32[] parameter(1); j = s32[] parameter(2);"
         " r = f32[1,3]{1,0} dynamic-slice(m, i, j), dynamic_slice_sizes={1,3}", "dynamic-slice(m, i, constant)",
         M + "i = s32[] parameter(1); j = s32[] constant(0);"
         " r = f32[1,3]{1,0} dynamic-slice(m, i, j), dynamic_slice_sizes={1,3}"),
    Case("dynamic-update-slice-full", F + "i = s32[] parameter(2); r = f32[4]{0} dynamic-update-slice(a, b, i)", "b",
         F + "u = f32[2]{0} parameter(2); i = s32[] parameter(3); r = f32[4]{0} dynamic-update-slice(a, u, i)"),
    Case("dynamic-update-slice-empty",
         F + "u = f32[0]{0} parameter(2); i = s32[] parameter(3); r = f32[4]{0} dynamic-update-slice(a, u, i)", "a",
         F + "u = f32[2]{0} parameter(2); i = s32[] parameter(3); r = f32[4]{0} dynamic-update-slice(a, u, i)"),
]  # fmt: skip

CASES = [*_CASES, *_read(Path(__file__).with_name("rule_cases.txt").read_text("utf-8"))]
"""One for every rule."""

OPTIONS = {
    "divide-broadcast": ("executing_on_cpu",),
    "sqrt-of-square": ("enable_fast_math",),
    "hoist-transpose": ("enable_hoist_transpose_of_reshape",),
    "transpose-scatter": ("enable_fold_transpose_into_scatter",),
    "reduce-precision-nothing": ("enable_remove_no_op_reduce_precision",),
    "conditional-on-pred": ("enable_conditional_simplification",),
}
"""Options that a rule needs."""

RULES = {rule.name: rule for rule in ALGSIMP_RULES}


def module_of(text: str) -> HloModule:
    """A module from ``a = …; b = …``; ``reducer=OP[:TYPE];`` in front gives a computation `red`, ``body=… &`` any."""
    before = ""
    if text.startswith("reducer="):
        word, text = text.removeprefix("reducer=").split(";", 1)
        text = text.strip()
        opcode, _, named = word.partition(":")
        kind = f"{named or 'f32'}[]"
        root = "pred[] compare(x, y), direction=LT" if opcode == "less" else f"{kind} {opcode}(x, y)"
        before = f"red {{\n  x = {kind} parameter(0)\n  y = {kind} parameter(1)\n  ROOT o = {root}\n}}\n\n"
    text = text.strip()
    while text.startswith("body="):
        body, text = text.removeprefix("body=").split("&", 1)
        before += computation("", body)
        text = text.strip()
    return load_module(f"HloModule m\n\n{before}{computation('ENTRY ', 'main:' + text)}")


def computation(prefix: str, text: str) -> str:
    """``NAME: a = …; b = …`` as a computation whose last instruction is the root."""
    name, _, rest = text.partition(":")
    lines = [line.strip() for line in rest.split(";")]
    lines[-1] = f"ROOT {lines[-1]}"
    return f"{prefix}{name.strip()} {{\n  " + "\n  ".join(lines) + "\n}\n\n"


def simplify(module: HloModule, rule: str, *, fuel: int | None = None) -> tuple[bool, list[RewriteDecision]]:
    ledger = Recorded()
    ctx = PassContext(ledger, None if fuel is None else Fuel({"": fuel}))
    simplifier = AlgebraicSimplifier(rules=(RULES[rule],))
    changed = replace(simplifier, **dict.fromkeys(OPTIONS.get(rule, ()), True)).run(module, ctx)
    assert list(findings(module)) == []
    return changed, ledger.decisions


def special_inputs(module: HloModule, extremes: bool = True) -> list[Value]:
    """Inputs that hold infinities, NaN, zeros and extremes, or plain ones."""
    out: list[Value] = []
    for number, value in enumerate(inputs_for(module.entry, 7)):
        if extremes and isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size >= 4:
            found = value.copy()
            found.reshape(-1)[:4] = [np.inf, np.nan, -2.5, 3.0] if number == 0 else [-np.inf, 1.0, np.nan, 0.5]
            out.append(found)
        else:
            out.append(value)
    return out


def values(module: HloModule, args: list[Value]) -> list[Array]:
    return [np.asarray(one) for one in evaluate(module, args)]


def shape_of_root(module: HloModule) -> str:
    """``opcode(operands)``; operands by opcode where the rewrite made them; the name of a root that was there."""
    root = module.entry.root
    known = {"parameter"}
    if root.opcode in known:
        return root.name
    return f"{root.opcode}({', '.join(operand.name.split('.')[0] for operand in root.operands)})"


def test_every_rule_has_a_case() -> None:
    assert sorted(RULES) == sorted([*(case.rule for case in CASES), "clamp-device-id"])
    assert len(RULES) == len(ALGSIMP_RULES)


def assert_same(before: HloModule, after: HloModule, expected: list[Array], got: list[Array]) -> None:
    """Equal within what rounding may do."""
    for one in compare_all(expected, got, join_rules(rules_for(before), rules_for(after))):
        assert one.within, str(one)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_it_fires_and_keeps_the_value(case: Case) -> None:
    module = module_of(case.fires)
    args = special_inputs(module, case.extremes)
    before = values(module, args)
    changed, decisions = simplify(module, case.rule)
    assert changed
    assert [(d.rule, d.verdict) for d in decisions][0] == (case.rule, "applied")
    if not case.becomes:
        pass
    elif "(" in case.becomes:
        assert shape_of_root(module) == case.becomes
    else:
        assert module.entry.root.name == case.becomes
    assert_same(module_of(case.fires), module, before, values(module, args))
    assert not simplify(module, case.rule)[0], "a second run has nothing to do"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_it_refuses(case: Case) -> None:
    module = module_of(case.refuses)
    text = print_module(module)
    changed, decisions = simplify(module, case.rule)
    assert not changed
    assert print_module(module) == text
    assert [(d.verdict, d.code) for d in decisions] == ([("refused", case.code)] if case.code else [])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_the_gate_can_stop_it(case: Case) -> None:
    module = module_of(case.fires)
    text = print_module(module)
    changed, decisions = simplify(module, case.rule, fuel=0)
    assert not changed
    assert print_module(module) == text
    assert {(d.verdict, d.code) for d in decisions} == {("refused", "fuel_exhausted")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_control_edges_stop_it(case: Case) -> None:
    module = module_of(case.fires)
    root = module.entry.root
    if not module.entry.parameters:
        pytest.skip("nothing to order against")
    module.entry.parameters[0].add_control_dependency(root)
    simplify(module, case.rule)
    assert module.entry.root is root


def test_all_rules_together_reach_a_fixed_point_and_keep_the_value() -> None:
    for case in CASES:
        module = module_of(case.fires)
        args = special_inputs(module, case.extremes)
        before = values(module, args)
        simplifier = replace(AlgebraicSimplifier(), **dict.fromkeys(OPTIONS.get(case.rule, ()), True))
        ctx = PassContext()
        assert simplifier.run(module, ctx), case.rule
        assert not ctx.warnings, (case.rule, ctx.warnings)
        assert list(findings(module)) == []
        assert_same(module_of(case.fires), module, before, values(module, args))
        assert not simplifier.run(module, PassContext()), case.rule


def test_a_device_id_is_at_most_the_number_of_devices() -> None:
    text = """HloModule m, num_partitions=4

ENTRY main {
  z = u32[] constant(0)
  p = u32[] partition-id()
  c = u32[] constant(TOP)
  ROOT r = u32[] clamp(z, p, c)
}
"""
    module = load_module(text.replace("TOP", "3"))
    assert simplify(module, "clamp-device-id")[0] and module.entry.root.opcode == "partition-id"
    changed, decisions = simplify(load_module(text.replace("TOP", "2")), "clamp-device-id")
    assert not changed and [d.code for d in decisions] == ["count"]


def test_after_layout_assignment_layouts_are_kept() -> None:
    module = module_of(M + "x = f32[3,2]{0,1} transpose(m), dimensions={1,0}; r = f32[2,3]{0,1} reshape(x)")
    before = print_module(module)
    assert not AlgebraicSimplifier(is_layout_sensitive=True).run(module, PassContext())
    assert print_module(module) == before
    same = module_of(F + splat("0") + "r = f32[4]{0} add(a, k)")
    assert AlgebraicSimplifier(is_layout_sensitive=True).run(same, PassContext())
    other = module_of(M + "z = f32[] constant(0); k = f32[2,3]{0,1} broadcast(z), dimensions={};"
                      " r = f32[2,3]{0,1} add(m, k)")  # fmt: skip
    assert not AlgebraicSimplifier(is_layout_sensitive=True).run(other, PassContext())


def test_an_unsharded_value_does_not_replace_a_sharded_one() -> None:
    module = module_of(F + splat("0") + "r = f32[4]{0} add(a, k), sharding={devices=[2]0,1}")
    changed, decisions = simplify(module, "add-zero")
    assert not changed
    assert [(d.verdict, d.code) for d in decisions] == [("refused", "sharding_conflict")]


def test_the_product_has_the_name_and_metadata_of_what_it_replaces() -> None:
    module = module_of(M + 'x = f32[6]{0} reshape(m), metadata={op_name="in"};'
                       ' keep = f32[3,2]{1,0} reshape(x), metadata={op_name="out"};'
                       " r = (f32[6]{0}, f32[3,2]{1,0}) tuple(x, keep)")  # fmt: skip
    assert simplify(module, "reshape-reshape")[0]
    kept = module.find_instruction("keep")
    assert kept is not None
    assert print_instruction(kept) == '%keep = f32[3,2]{1,0} reshape(%m), metadata={op_name="out"}'


def test_work_grows_with_the_module_and_not_faster() -> None:
    asked: list[int] = []
    for length in (200, 400, 800):
        lines = ["p = f32[8]{0} parameter(0)", "z = f32[] constant(0)", "k = f32[8]{0} broadcast(z), dimensions={}"]
        lines += [f"n{i} = f32[8]{{0}} add({'p' if i == 0 else f'n{i - 1}'}, k)" for i in range(length)]
        module = module_of("; ".join(lines))
        seen = 0

        def counts(one: object, options: object) -> None:
            nonlocal seen
            seen += 1

        counter = Rule("count", ("add",), "counts visits", counts)
        AlgebraicSimplifier(rules=(counter, RULES["add-zero"])).run(module, PassContext())
        assert module.entry.root.name == "p"
        asked.append(seen)
    assert asked[2] < 4.5 * asked[0] and asked[1] < 2.5 * asked[0]


def test_rules_that_undo_each_other_end() -> None:
    swap = Rule("swap", ("add",), "x + y → y + x", lambda one, options: lambda build: build.clone(
        one, [one.operand(1), one.operand(0)]))  # fmt: skip
    ctx = PassContext()
    assert AlgebraicSimplifier(rules=(swap,)).run(module_of(F + "r = f32[4]{0} add(a, b)"), ctx)
    assert any("fixed point" in warning for warning in ctx.warnings)
