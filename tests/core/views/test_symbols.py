"""Outline, definitions, references and hover facts, on real stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.views.hover import hover, instruction_facts
from hloscope.core.views.symbols import definition, document_symbols, references

STAGES = Path(__file__).resolve().parents[3] / "fixtures" / "stages"


def load(name: str) -> ModuleIndex:
    return ModuleIndex.from_text((STAGES / name).read_text())


@pytest.mark.parametrize("name", ["tpu_codegen.txt", "tpu_short.txt", "gpu_cse.before.txt"])
def test_outline_holds_everything_and_spans_nest(name: str) -> None:
    ix = load(name)
    (module,) = document_symbols(ix)
    assert module.name == ix.module_name and module.kind == "module"
    assert [c.name for c in module.children] == [c.name for c in ix.computations]
    assert [i.name for c in module.children for i in c.children] == ix.names
    assert sum("ENTRY" in c.detail for c in module.children) == 1
    for outer in (module, *module.children):
        assert outer.span.start <= outer.selection.start <= outer.selection.end <= outer.span.end
        assert ix.source[outer.selection.start : outer.selection.end] == outer.name
        last = outer.span.start
        for inner in outer.children:
            assert last <= inner.span.start and inner.span.end <= outer.span.end
            last = inner.span.end


def test_outline_without_a_header() -> None:
    symbols = document_symbols(ModuleIndex.from_text("f {\n  ROOT p = f32[] parameter(0)\n}\n"))
    assert [(s.name, s.kind) for s in symbols] == [("f", "computation")] and document_symbols(
        ModuleIndex.from_text("")
    ) == []


@pytest.mark.parametrize("name", ["tpu_codegen.txt", "tpu_short.txt"])
def test_every_reference_leads_to_its_definition_and_back(name: str) -> None:
    ix = load(name)
    for i in range(0, ix.instruction_count, 5):
        places = references(ix, ix.name_span(i)[0])
        assert all(ix.source[p.span.start : p.span.end] == ix.name(i) for p in places)
        assert [p.kind for p in places].count("definition") == 1
        assert {ix.instruction_at(p.span.start) for p in places if p.kind == "use"} >= set(ix.users(i))
        for place in places:
            found = definition(ix, place.span.start)
            assert found is not None and (found.start, found.end) == ix.name_span(i)
    assert references(ix, 2) == [] and definition(ix, 2) is None


def test_parameters_are_found_in_the_signature() -> None:
    ix = load("tpu_codegen.txt")
    c = next(c for c in ix.computations if len(ix.signature_names(c.number)) == 2)
    places = references(ix, ix.name_span(c.begin)[0])
    signature = [p for p in places if p.kind == "signature"]
    assert len(signature) == 1 and c.header[0] < signature[0].span.start < c.header[1]


def test_references_of_a_computation() -> None:
    ix = load("tpu_codegen.txt")
    for c in ix.computations:
        places = references(ix, c.name_span[0], include_definition=False)
        assert sorted({ix.instruction_at(p.span.start) for p in places}, key=str) == sorted(
            ix.callers(c.number), key=str
        )
        assert c.is_entry == (places == [])


def test_control_predecessors_and_undefined_names_are_references() -> None:
    text = (
        "ENTRY e {\n  p = f32[] parameter(0)\n  a = f32[] negate(gone)\n"
        "  b = f32[] add(gone, p), control-predecessors={p}\n  ROOT c = f32[] add(a, b)\n}\n"
    )
    ix = ModuleIndex.from_text(text)
    assert [p.kind for p in references(ix, text.index("p = "))] == ["definition", "use", "use"]
    at = text.index("={p}") + 2
    found = definition(ix, at)
    assert found is not None and found.start == text.index("p = ")
    assert len(references(ix, text.index("gone"))) == 2 and definition(ix, text.index("gone")) is None


def test_hover_facts() -> None:
    ix = load("tpu_codegen.txt")
    i = ix.find("log_add_fusion")
    assert i is not None
    facts = hover(ix, ix.name_span(i)[0])
    assert facts is not None and facts == instruction_facts(ix, i)
    assert (facts.name, facts.opcode, facts.bytes, facts.layout) == ("log_add_fusion", "fusion", 4000, "{0:T(1024)}")
    assert facts.operands == ("get-tuple-element", "reduce") and facts.users == ("tuple.1",)
    assert facts.meaning and facts.computation == "main.7" and not facts.is_root
    assert facts.source[0].line == 321 and facts.source[-1].function == "<module>"
    assert facts.op_name == "jit(softmax_layernorm)/add"
    operand = ix.operands(i)[0]
    on_operand = hover(ix, ix.source.index("%get-tuple-element,", ix.span(i)[0]) + 3)
    assert on_operand is not None and on_operand.name == ix.name(operand)
    assert ix.source[on_operand.span.start : on_operand.span.end] == "get-tuple-element"
    assert on_operand.span.start > ix.span(i)[0], "the span marks the word under the cursor"
    on_call = hover(ix, ix.source.index("calls=", ix.span(i)[0]) + 8)
    assert on_call is not None and on_call.is_root and on_call.computation == ix.computation(ix.called(i)[0]).name
    assert hover(ix, 0) is None


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("(f32[2]{0}, s32[])", 12),
        ("s4[8]{0:E(4)}", 4),
        ("pred[]", 1),
        ("token[]", 0),
        ("f32[?]{0}", None),
        ("q7[2]{0}", None),
    ],
)
def test_bytes_of_shapes(shape: str, size: int | None) -> None:
    ix = ModuleIndex.from_text(f"ENTRY e {{\n  ROOT p = {shape} parameter(0)\n}}\n")
    facts = instruction_facts(ix, 0)
    assert facts.bytes == size and facts.shape == shape and facts.signature == f"p = {shape} parameter(0)"
