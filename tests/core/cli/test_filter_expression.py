"""``--filter``: what an expression selects, and where a bad one is at fault."""

from __future__ import annotations

import pytest

from hloscope.core.cli.filter_expression import compile_filter
from hloscope.core.errors import UsageError

COLUMNS = ("name", "verdict", "bytes", "ns", "us_fused", "changed", "before", "after", "consumers")
ROWS: list[dict[str, object]] = [
    {"name": "attn.1", "verdict": "fused", "bytes": 2_000_000, "ns": 3_000_000, "us_fused": 1.5, "changed": True,
     "before": 4, "after": 3, "consumers": ["add.1", "mul.2"]},
    {"name": "mlp.2", "verdict": "refused", "bytes": 1_000, "ns": None, "us_fused": 2500.0, "changed": False,
     "before": 4, "after": 4, "consumers": []},
    {"name": "attn \"q\"", "verdict": None, "bytes": 1_048_577, "ns": 500, "us_fused": None, "changed": None,
     "before": 2, "after": 5, "consumers": ["mul.2"]},
]  # fmt: skip


def chosen(expression: str) -> list[int]:
    keep = compile_filter(expression, COLUMNS)
    return [index for index, row in enumerate(ROWS) if keep(row)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("verdict=fused", [0]),
        ("verdict==fused", [0]),
        ("verdict!=fused", [1, 2]),
        ("verdict=null", [2]),
        ("verdict!=null", [0, 1]),
        ("ns=null", [1]),
        ("bytes>1MB", [0, 2]),
        ("bytes>1MiB", [0, 2]),
        ("bytes<=1kB", [1]),
        ("bytes>=1.5e6", [0]),
        ("ns>=3ms", [0]),
        ("ns<1us", [2]),
        ("us_fused>2ms", [1]),
        ("us_fused>2", [1]),
        ("changed", [0]),
        ("not changed", [1, 2]),
        ("changed=true", [0]),
        ("changed=false", [1]),
        ("changed=null", [2]),
        ("after<before", [0]),
        ("before=after", [1]),
        ("name~attn", [0, 2]),
        ("name!~attn", [1]),
        (r'name~"^attn\.\d$"', [0]),
        (r'name="attn \"q\""', [2]),
        ("name='attn \"q\"'", [2]),
        ("consumers=mul.2", [0, 2]),
        ("consumers!=mul.2", [1]),
        ("consumers~add", [0]),
        ("verdict=refused or bytes>1MB and after>3", [1, 2]),
        ("(verdict=refused or bytes>1MB) and after>3", [1, 2]),
        ("(verdict=refused or bytes>1MB) and not after>4", [0, 1]),
        ("NOT (changed OR ns=null)", [2]),
        ("name=4", []),
        ("before=four", []),
        ("verdict>a", [0, 1]),
        ("bytes>-1", [0, 1, 2]),
    ],
)
def test_selects(expression: str, expected: list[int]) -> None:
    assert chosen(expression) == expected


@pytest.mark.parametrize(
    ("expression", "column", "words"),
    [
        ("verdict=", 9, "expected a value after '='"),
        ("verdict=fused and", 18, "expected a column name"),
        ("verdict=fused bytes>1", 15, "expected 'and', 'or' or the end"),
        ("(verdict=fused", 15, "expected ')'"),
        ("verdict=fused)", 14, "expected 'and', 'or' or the end"),
        ("name='x", 6, "an unclosed quote"),
        ("name~'['", 6, "bad regular expression"),
        ("name~", 6, "expected a value"),
        ("and", 1, "expected a column name"),
        ("", 1, "expected a column name"),
        ("bytes>3ms", 7, "not a time"),
        ("ns>3MB", 4, "in ns"),
        ("bytes=!", 7, "an unexpected '!'"),
        ("verdct=fused", 1, "did you mean verdict"),
    ],
)
def test_says_what_is_wrong_and_where(expression: str, column: int, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        compile_filter(expression, COLUMNS)
    assert words in str(caught.value)
    assert f"at column {column}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "said"),
    [("bytes>1XB", "no unit 'XB'"), ("us>=2min", "no unit 'min'"), ("bytes>many", "neither a number nor a column")],
)
def test_an_unknown_unit_or_word_is_no_bound(expression: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compile_filter(expression, ["bytes", "us"])({"bytes": 3, "us": 4})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('pipeline="layout assignment"', [0]),
        ("pipeline=layout_assignment", [0]),
        ('pipeline!="layout assignment"', [1, 2]),
        ('pipeline~"t a"', [0]),
        ('pipeline~"t_a"', [0]),
        ('pipeline="part 1"', [1]),
        ("pipeline=part_1", [1]),
        ("pipeline~part_1", [1]),
        ("pipeline=null", [2]),
        ('name="a b"', []),
    ],
)
def test_a_pipeline_is_found_by_its_name_in_xla_and_in_file_names(expression: str, expected: list[int]) -> None:
    rows = [
        {"pipeline": "layout_assignment", "name": "a_b"},
        {"pipeline": "part 1", "name": "a_b"},
        {"pipeline": None, "name": "a_b"},
    ]
    keep = compile_filter(expression, ("pipeline", "name"))
    assert [index for index, row in enumerate(rows) if keep(row)] == expected
