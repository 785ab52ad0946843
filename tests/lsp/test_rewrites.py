"""Inline and outline, and hovers that decode attributes: what comes out still computes the same."""

from __future__ import annotations

from typing import Any

import pytest

from hloscope.core.hlo.verifier.verify import verify
from hloscope.core.text import load_module
from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.views.advice import advise
from hloscope.core.views.attribute_words import attribute_words
from hloscope.core.views.cost_facts import cost_facts
from hloscope.core.views.mesh_advice import misfits

TEXT = """HloModule m, num_partitions=4

%body (p: f32[4], q: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %q = f32[4]{0} parameter(1)
  %t = f32[4]{0} add(%p, %q)
  ROOT %n = f32[4]{0} negate(%t)
}

ENTRY %main (a: f32[4], b: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %b = f32[4]{0} parameter(1)
  %t = f32[4]{0} multiply(%a, %b)
  %f = f32[4]{0} fusion(%t, %a), kind=kLoop, calls=%body
  %u = f32[4]{0} add(%f, %b)
  %v = f32[4]{0} subtract(%u, %f)
  ROOT %w = f32[4]{0} tanh(%v)
}
"""


def applied(text: str, action: dict[str, Any], uri: str) -> str:
    edits = action["edit"]["changes"][uri]
    lines = text.split("\n")

    def offset(place: dict[str, int]) -> int:
        return sum(len(line) + 1 for line in lines[: place["line"]]) + place["character"]

    for edit in sorted(edits, key=lambda one: -offset(one["range"]["start"])):
        text = text[: offset(edit["range"]["start"])] + edit["newText"] + text[offset(edit["range"]["end"]) :]
    return text


def action(
    client: Any, uri: str, title: str, first: str, last: str | None = None, text: str = TEXT
) -> dict[str, Any] | None:
    lines = text.split("\n")
    begin = next(k for k, line in enumerate(lines) if first in line)
    end = begin if last is None else next(k for k, line in enumerate(lines) if last in line)
    where = {
        "start": {"line": begin, "character": 3},
        "end": {"line": end, "character": 3 if last is None else len(lines[end])},
    }
    params = {"textDocument": {"uri": uri}, "range": where, "context": {"diagnostics": []}}
    found = client.request("textDocument/codeAction", params)
    return next((one for one in found if one["title"].startswith(title)), None)


def test_a_fusion_is_laid_open_in_its_place(shared: Any) -> None:
    client, uri = shared.client, "file:///inline.hlo"
    client.open(uri, TEXT)
    found = action(client, uri, "Inline", "%f = ")
    assert found is not None
    text = applied(TEXT, found, uri)
    # The body's %t is not the caller's: it gets a name of its own. Nothing else calls the body, which goes.
    assert "  %t.1 = f32[4]{0} add(%t, %a)\n  %f = f32[4]{0} negate(%t.1)\n  %u = " in text
    assert "%body" not in text and "\n\n\n" not in text
    assert load_module(text).entry.root is not None and not ModuleIndex.from_text(text).errors
    assert action(client, uri, "Inline", "%u = ") is None


def test_instructions_are_put_into_a_computation(shared: Any) -> None:
    client, uri = shared.client, "file:///outline.hlo"
    client.open(uri, TEXT)
    found = action(client, uri, "Outline 2", "%u = ", "%v = ")
    assert found is not None
    text = applied(TEXT, found, uri)
    module = load_module(text)
    assert module.find_computation("outlined") is not None
    assert "  %v = f32[4]{0} call(%f, %b), to_apply=%outlined\n" in text
    # names are unique within the module: inside, the result has another than the call
    assert "ROOT %v.1 = f32[4]{0} subtract(%u, %p0)" in text
    assert {one.instruction for one in verify(module)} == {"t"}  # as before
    # %f is used behind the selection as well: two results are no computation's.
    assert action(client, uri, "Outline", "%f = ", "%u = ") is None


ORDERED = """HloModule m

%body (q: f32[6]) -> f32[6] {
  %q = f32[6]{0} parameter(0)
  %n1 = f32[6]{0} cosine(%q)
  %n3 = f32[6]{0} sine(%q)
  ROOT %n2 = f32[6]{0} divide(%n3, %q), control-predecessors={%n1}
}

ENTRY %main (x: f32[6]) -> (f32[6], f32[6]) {
  %x = f32[6]{0} parameter(0)
  %n1 = f32[6]{0} negate(%x)
  %k = f32[6]{0} call(%x), to_apply=%body
  ROOT %o = (f32[6]{0}, f32[6]{0}) tuple(%n1, %k)
}
"""


def test_edits_keep_the_order_that_control_edges_ask_for(shared: Any) -> None:
    client, uri = shared.client, "file:///ordered.hlo"
    client.open(uri, ORDERED)
    found = action(client, uri, "Inline", "%k = ", text=ORDERED)
    assert found is not None
    text = applied(ORDERED, found, uri)
    # The caller has an %n1 of its own, which is another instruction.
    assert "%n1.1 = f32[6]{0} cosine(%x)" in text and "%n1 = f32[6]{0} negate(%x)" in text
    assert "%k = f32[6]{0} divide(%n3, %x), control-predecessors={%n1.1}" in text
    assert load_module(text).entry.root is not None
    # Nothing reads %n1, but %n2 has to wait for it: it neither goes nor moves away.
    assert action(client, uri, "Remove", "%n1 = ", text=ORDERED) is None
    assert action(client, uri, "Outline", "%n1 = ", "%n3 = ", text=ORDERED) is None
    index = ModuleIndex.from_text(ORDERED)
    assert [index.name(i) for i in index.control_predecessors] == ["n1"]
    assert not advise(index)
    assert len(advise(ModuleIndex.from_text(ORDERED.replace(", control-predecessors={%n1}", "")))) == 1


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("replica_groups", "[2,4]<=[4,2]T(1,0)", "group 1: 1, 3, 5, 7"),
        ("replica_groups", "{{0,1},{2,3}}", "2 groups, 2 each"),
        ("replica_groups", "mesh['x'=2,'y'=3] {'x'}", "group 2: 2, 5"),
        ("replica_groups", "mesh['x'=8,'y'=1] {'x'}", "group 0: 0, 1, 2, 3, 4, 5, 6, 7"),
        ("replica_groups", "{}", "one group of all devices"),
        ("sharding", "{devices=[2,1,2]<=[4]}", "│ 2 │ 3 │"),
        ("sharding", "{devices=[2,2]<=[4] last_tile_dim_replicate}", "│ 2,3 │"),
        ("sharding", "{{replicated}, {maximal device=3}}", "part 1: one device holds the array: 3"),
        ("window", "{size=3x1 stride=2x1 pad=1_0x0_0}", "size 3, moves by 2, 1 padded before and 0 after"),
        ("dim_labels", "b01f_01io->b01f", "kernel: spatial 0, spatial 1, input features, output features"),
        ("padding", "0_1x2_3_1", "dimension 1: 2 before, 3 after, 1 between elements"),
        ("source_target_pairs", "{{0,1},{1,0}}", "1 → 0"),
        ("backend_config", '{"a":{"b":[1]}}', '"b": ['),
    ],
)
def test_attributes_in_words(key: str, value: str, words: str) -> None:
    found = attribute_words(key, value)
    assert found is not None and words in found


def test_what_cannot_be_decoded_has_no_words() -> None:
    for key, value in (
        ("replica_groups", "[2,4]<=[9]"),
        ("replica_groups", "mesh['x'=2] {'z'}"),
        ("sharding", "{devices=[2"),
        ("window", "{size="),
        ("x", "1"),
    ):
        assert attribute_words(key, value) is None


def test_cost_of_one_line() -> None:
    text = TEXT.replace("%w = f32[4]{0} tanh(%v)", "%w = f32[4,4]{1,0} dot(%v, %v), lhs_contracting_dims={}")
    index = ModuleIndex.from_text(text)
    place = index.find("u")
    assert place is not None
    found = cost_facts(index, place)
    assert found is not None and (found.bytes_read, found.bytes_written) == (32, 16) and found.bound_by == "memory"
    dot = cost_facts(index, index.find("w") or 0)
    assert dot is not None and dot.flops == 2 * 16
    assert cost_facts(index, index.find("a") or 0) is None


def test_collectives_that_do_not_fit_the_devices() -> None:
    flags = "channel_id=1, replica_groups=GROUPS, use_global_device_ids=true, to_apply=%body"
    line = f"  %u = f32[4]{{0}} all-reduce(%f), {flags}"

    def said(groups: str) -> list[str]:
        text = TEXT.replace("  %u = f32[4]{0} add(%f, %b)", line.replace("GROUPS", groups))
        return [message for _, message, _ in misfits(ModuleIndex.from_text(text))]

    assert said("{{0,1},{2,3}}") == []
    assert said("{{0,1},{2,7}}") == ["device 7 takes part, but there are 4 devices"]
    assert said("{{0,1}}") == ["its groups hold 2 of 4 devices: the others would wait for ever"]


def test_a_half_typed_attribute_has_no_cost() -> None:
    text = """HloModule m

ENTRY %main (x: f32[8,4]) -> f32[8] {
  %x = f32[8,4]{1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %r = f32[8]{0} reduce(%x, %zero), dimensions={1, to_apply=%region
}
"""
    index = ModuleIndex.from_text(text)
    number = index.find("r")
    assert number is not None and cost_facts(index, number) is None
