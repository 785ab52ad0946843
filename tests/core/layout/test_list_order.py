"""The order in which instructions were made, as far as earlier stages, names or a proto tell it."""

from __future__ import annotations

from hloscope.core.layout.list_order import ListOrder
from hloscope.core.text import load_module


def entry(*lines: str) -> str:
    body = "\n".join("  " + line for line in lines)
    return f"HloModule m, entry_computation_layout={{(f32[4]{{0}})->f32[4]{{0}}}}\n\nENTRY %e {{\n{body}\n}}\n"


def restored(order: ListOrder, text: str, places: dict[str, dict[str, int]] | None = None) -> list[str]:
    module = load_module(text)
    order.restore(module, places)
    return [one.name for one in module.entry.instructions]


def named(op: str) -> str:
    return f'metadata={{op_name="jit(f)/{op}"}}'


PARAMETER = "%a.1 = f32[4]{0} parameter(0)"


def test_another_scalar_operand_does_not_make_an_instruction_anew() -> None:
    first = entry(
        PARAMETER, "%n.1 = s32[] constant(1)", "%m.1 = s32[] negate(%n.1)",
        "%d.1 = f32[2]{0} dynamic-slice(%a.1, %m.1), dynamic_slice_sizes={2}",
        "ROOT %r.1 = f32[4]{0} concatenate(%d.1, %d.1), dimensions={0}",
    )  # fmt: skip
    then = first.replace("%m.1 = s32[] negate(%n.1)", "%k = s32[] not(%n.1)").replace("(%a.1, %m.1)", "(%a.1, %k)")
    assert restored(ListOrder([first, then]), then) == ["a.1", "n.1", "d.1", "r.1", "k"]


def test_a_broadcast_over_merged_reshapes_is_new() -> None:
    first = entry(
        PARAMETER, "%s.1 = f32[1,4]{1,0} reshape(%a.1)", "%t.1 = f32[4]{0} reshape(%s.1)",
        "%b.1 = f32[3,4]{1,0} broadcast(%t.1), dimensions={1}", "%u.1 = f32[12]{0} reshape(%b.1)",
        "ROOT %r.1 = f32[4]{0} slice(%u.1), slice={[0:4]}",
    )  # fmt: skip
    then = entry(
        PARAMETER, "%c = f32[4]{0} abs(%a.1)", "%b.1 = f32[3,4]{1,0} broadcast(%c), dimensions={1}",
        "%u.1 = f32[12]{0} reshape(%b.1)", "ROOT %r.1 = f32[4]{0} slice(%u.1), slice={[0:4]}",
    )  # fmt: skip
    assert restored(ListOrder([first, then]), then) == ["a.1", "u.1", "r.1", "c", "b.1"]
    stays = first.replace("%t.1 = f32[4]{0} reshape(%s.1)", "%t.1 = f32[4]{0} abs(%a.1)")
    then = stays.replace("%t.1 = f32[4]{0} abs(%a.1)", "%c = f32[4]{0} sine(%a.1)").replace("(%t.1)", "(%c)")
    assert restored(ListOrder([stays, then]), then) == ["a.1", "s.1", "b.1", "u.1", "r.1", "c"]


def test_of_a_single_late_stage_names_tell_what_passes_made() -> None:
    text = entry(
        PARAMETER,
        f"%reshape.3 = f32[2,2]{{1,0}} reshape(%a.1), {named('rsqrt')}",
        f"%reshape.4 = f32[4]{{0}} reshape(%reshape.3), {named('reshape')}",
        "%negate = f32[4]{0} negate(%reshape.4)",
        f"ROOT %mul.1 = f32[4]{{0}} multiply(%negate, %negate), {named('mul')}",
    )
    assert restored(ListOrder([text], late=True), text) == ["a.1", "reshape.4", "mul.1", "reshape.3", "negate"]
    assert restored(ListOrder([text]), text) == ["a.1", "reshape.3", "reshape.4", "negate", "mul.1"]


def test_simplified_gathers_come_of_a_pass() -> None:
    text = """HloModule m

ENTRY %e {
  %a.1 = f32[8,3]{1,0} parameter(0)
  %i.1 = s32[2,1]{1,0} parameter(1)
  %gather.4 = f32[2,1,3]{2,1,0} gather(%a.1, %i.1), offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}, metadata={op_name="jit(f)/gather"}
  ROOT %neg.1 = f32[2,1,3]{2,1,0} negate(%gather.4), metadata={op_name="jit(f)/neg"}
}
"""  # noqa: E501
    assert restored(ListOrder([text], late=True), text) == ["a.1", "i.1", "neg.1", "gather.4"]
    kept = text.replace("f32[2,1,3]{2,1,0}", "f32[2,3]{1,0}").replace(
        "={1,2}, collapsed_slice_dims={}", "={1}, collapsed_slice_dims={0}"
    )  # noqa: E501
    assert restored(ListOrder([kept], late=True), kept) == ["a.1", "i.1", "gather.4", "neg.1"]


def test_a_protos_order_is_taken_where_it_is_whole() -> None:
    text = entry(PARAMETER, "%n.1 = f32[4]{0} negate(%a.1)", "ROOT %r.1 = f32[4]{0} abs(%n.1)")
    order = ListOrder([text])
    assert restored(order, text, {"e": {"a.1": 9, "n.1": 4, "r.1": 2}}) == ["r.1", "n.1", "a.1"]
    assert restored(order, text, {"e": {"a.1": 9, "n.1": 4}}) == ["a.1", "n.1", "r.1"]
