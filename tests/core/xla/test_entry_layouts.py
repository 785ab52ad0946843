"""The entry's layouts of StableHLO: the headers are those that jaxlib's own dumps have (XLA:CPU and XLA:GPU agree)."""

from __future__ import annotations

import pytest

from hloscope.core.errors import ParseError
from hloscope.core.xla.entry_layouts import Asked, with_entry_layouts

HOST = Asked(memory_kind="pinned_host")


def header(parameters: str, result: str) -> str:
    return f"HloModule f, a={{ {{1}}: (1, {{}}) }}, entry_computation_layout={{({parameters})->{result}}}, b={{c}}"


@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [
        (("f32[8,16]{1,0}", "f32[16,8]{0,1}"), ([], []), ("f32[8,16]{1,0}", "f32[16,8]{1,0}")),
        (("f32[8,16]{1,0}", "f32[8,16]{1,0}"), ([Asked("{0, 1}")], [Asked("{0,1:T(8,128)}")]),
         ("f32[8,16]{0,1}", "f32[8,16]{0,1:T(8,128)}")),
        (("f32[8,16]{1,0}, s32[], f32[2]{0}", "(f32[8,16]{1,0}, s32[])"),
         ([Asked("auto"), Asked("default"), Asked()], [Asked("auto"), Asked("auto")]),
         ("f32[8,16], s32[], f32[2]{0}", "(f32[8,16], s32[])")),
        (("f32[8,16]{1,0}, s32[], f32[2]{0}, f32[3]{0}", "(f32[8,16]{1,0})"),
         ([Asked("{0,1:S(1)}", "pinned_host"), HOST, Asked("auto", "unpinned_host"), Asked("auto", "pinned_host")],
          [Asked("{0,1}", "device")]),
         ("f32[8,16]{0,1:S(5)}, s32[]{:S(5)}, f32[2], f32[3]{0:S(5)}", "(f32[8,16]{0,1})")),
        (("token[], f32[<=8,16]{1,0}", "(token[], (f32[16,8]{0,1}, f32[2]{0}))"), ([Asked(), Asked("{0,1}")], []),
         ("token[], f32[<=8,16]{0,1}", "(token[], (f32[16,8]{1,0}, f32[2]{0}))")),
        (("f32[1,2]{1,0}, /*index=1*/f32[1,2]{1,0}", "()"), ([Asked(), Asked("{0,1}")], []),
         ("f32[1,2]{1,0}, /*index=1*/f32[1,2]{0,1}", "()")),
        (("", "f32[]"), ([], []), ("", "f32[]")),
    ],
)  # fmt: skip
def test_the_entry_gets_what_is_asked_for(
    before: tuple[str, str], asked: tuple[list[Asked], list[Asked]], after: tuple[str, str]
) -> None:
    assert with_entry_layouts(header(*before), *asked) == header(*after)


def test_a_header_without_layouts_stays() -> None:
    assert with_entry_layouts("HloModule f", [Asked("{0,1}")], []) == "HloModule f"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Asked("nonsense"), "argument 1 is neither default nor auto nor a layout: 'nonsense'"),
        (Asked("{0,1,2}"), r"argument 1: {0,1,2} is no order of the dimensions of f32\[8,16\]"),
        (Asked("{0,0}"), "no order"),
        (Asked("{0,1:Q}"), "argument 1: unknown layout item"),
        (Asked(memory_kind="tape"), "memory_kind of argument 1 is unknown: 'tape'"),
    ],
)
def test_what_xla_refuses_is_refused(asked: Asked, says: str) -> None:
    with pytest.raises(ParseError, match=says):
        with_entry_layouts(header("f32[2]{0}, f32[8,16]{1,0}", "f32[2]{0}"), [Asked(), asked], [])
    with pytest.raises(ParseError, match="a tuple"):
        with_entry_layouts(header("(f32[2]{0})", "f32[2]{0}"), [Asked("{0}")], [])
