"""Advice on one text, found from its index."""

from __future__ import annotations

import pytest

from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.views.advice import advise


@pytest.mark.parametrize(
    ("given", "between", "wide", "narrow", "lost"),
    [
        ("bf16", "slice({}), slice={{[0:4]}}", "f32", "bf16", False),
        ("bf16", "negate({})", "f32", "bf16", False),
        ("f8e4m3fn", "copy({})", "bf16", "bf16", False),  # no narrower type between
        ("f8e4m3fn", "copy({})", "f32", "bf16", False),
        ("s8", "reverse({}), dimensions={{0}}", "f32", "bf16", False),
        ("s16", "reverse({}), dimensions={{0}}", "f32", "bf16", True),
        ("f16", "copy({})", "f32", "bf16", True),
        ("bf16", "copy({})", "f32", "f16", True),
        ("bf16", "multiply({0}, {0})", "f32", "bf16", True),
        ("f64", "copy({})", "f32", "bf16", True),  # rounded before to a type that does not fit
    ],
)
def test_a_round_trip_loses_nothing_that_was_not_there(
    given: str, between: str, wide: str, narrow: str, lost: bool
) -> None:
    text = f"""HloModule m

%body (q: {given}[4]) -> {wide}[4] {{
  %q = {given}[4]{{0}} parameter(0)
  ROOT %w = {wide}[4]{{0}} convert(%q)
}}

%reader (r: {wide}[4]) -> {wide}[4] {{
  %r = {wide}[4]{{0}} parameter(0)
  %moved = {wide}[4]{{0}} {between.format("%r")}
  %there = {narrow}[4]{{0}} convert(%moved)
  ROOT %back = {wide}[4]{{0}} convert(%there)
}}

ENTRY %main (p: {given}[4]) -> {wide}[4] {{
  %p = {given}[4]{{0}} parameter(0)
  %first = {wide}[4]{{0}} fusion(%p), kind=kLoop, calls=%body
  ROOT %last = {wide}[4]{{0}} fusion(%first), kind=kLoop, calls=%reader
}}
"""
    found = [one.message for one in advise(ModuleIndex.from_text(text)) if one.code == "convert-round-trip"]
    assert found == ([f"{wide} goes through {narrow} and back: {16 if narrow == 'bf16' else 13} bits are lost"] * lost)


def test_padding_is_of_arrays_that_have_a_buffer() -> None:
    tiled = "f32[64,8,1]{2,1,0:T(8,128)}"
    text = f"""HloModule m

%fused (p: f32[64,8,1]) -> f32[64,8,1] {{
  %p = {tiled} parameter(0)
  %inner = {tiled} negate(%p)
  ROOT %r = {tiled} negate(%inner)
}}

ENTRY %e (a: f32[64,8,1]) -> f32[64,8,1] {{
  %a = {tiled} parameter(0)
  ROOT %f = {tiled} fusion(%a), kind=kLoop, calls=%fused
}}
"""
    index = ModuleIndex.from_text(text)
    said = {one.message for one in advise(index) if one.code == "padding"}
    assert said == {"260,096 of its 262,144 bytes are padding of tile {2,1,0:T(8,128)}"}
    assert sum(one.code == "padding" for one in advise(index)) == 2
