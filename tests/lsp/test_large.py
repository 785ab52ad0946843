"""A text of 50,000 instructions: said to be large, answered all the same."""

from __future__ import annotations

from typing import Any


def test_a_large_text_is_announced_and_its_outline_is_short(shared: Any) -> None:
    client = shared.client
    lines = ["HloModule m", "", "ENTRY %main (x: f32[8]) -> f32[8] {", "  %x = f32[8]{0} parameter(0)"]
    lines += [f"  %a.{n} = f32[8]{{0}} negate(%x)" for n in range(50_000)]
    client.open("file:///large.hlo", "\n".join([*lines, "  ROOT %z = f32[8]{0} negate(%gone)", "}", ""]))
    [module] = client.about("documentSymbol", "file:///large.hlo")
    assert [one["name"] for one in module["children"]] == ["main"] and "children" not in module["children"][0]
    message = client.wait_for("window/showMessage")["message"]
    assert "50,002 instructions" in message and "no hints" in message and "no lenses" in message
    assert "a.49000 = " in client.at("hover", "file:///large.hlo", 49_004, 5)["contents"]["value"]
    [found] = client.diagnostics("file:///large.hlo", 1)
    assert found["range"]["start"]["line"] == 50_004 and "gone" in found["message"]
