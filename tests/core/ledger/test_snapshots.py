"""Module texts: byte for byte, each once, and cheap when they resemble what is there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloscope.core.errors import InternalError, LedgerError
from hloscope.core.ledger import LedgerReader, LedgerWriter

QUIRKS = [
    "",
    "\n",
    "\n\n",
    "one line",
    "one line\n",
    "windows\r\nlines\r\n",
    "lone\rreturn\x0b\x0c\x85\u2028 are not line ends\n",
    "no final newline\nhere",
    "nul \0 inside\n",
    "unicode é ∑ 𝔘\n",
]


def store(path: Path, texts: list[str | bytes]) -> list[int]:
    with LedgerWriter(path) as writer:
        return [writer.add_snapshot(text) for text in texts]


def test_odd_texts_come_back_exactly(tmp_path: Path) -> None:
    texts: list[str | bytes] = [*QUIRKS, b"latin \xe9\xff\n\xc3(\n", b"\xff" * 50]
    numbers = store(tmp_path / "run.ledger", texts)
    assert len(set(numbers)) == len(texts)
    with LedgerReader(tmp_path / "run.ledger") as reader:
        for number, text in zip(numbers, texts, strict=True):
            expected = text if isinstance(text, bytes) else text.encode()
            assert reader.snapshots.encoded(number) == expected
            assert reader.snapshots.size(number) == len(expected)
            assert reader.snapshots.line_count(number) == expected.count(b"\n") + 1
        assert len(reader.snapshots) == len(texts)


def test_the_same_text_is_the_same_snapshot(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        first = writer.add_snapshot("a\nb\n")
        other = writer.add_snapshot("a\nc\n")
        assert first != other
        assert writer.add_snapshot(b"a\nb\n") == first
        assert writer.add_snapshot_lines(["a", "b", ""]) == first
        writer.begin_module("next")
        assert writer.add_snapshot_lines(iter(["a", "c", ""])) == other


def test_lines_may_not_hold_newlines(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "run.ledger") as writer, pytest.raises(InternalError):
        writer.add_snapshot_lines(["a\nb"])


known = [f"  %add.{n} = f32[{n}] add(%a, %b)" for n in range(60)] + ["", "}", "ENTRY %m {"]
lines = st.lists(st.sampled_from(known), max_size=300)
Edits = list[tuple[int, int, str]]
edits = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3), st.text(max_size=20)), max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(start=lines, stages=st.lists(edits, max_size=6), flush_after=st.integers(0, 6))
def test_random_edits_round_trip(
    tmp_path_factory: pytest.TempPathFactory, start: list[str], stages: list[Edits], flush_after: int
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "run.ledger"
    current = list(start)
    texts = ["\n".join(current)]
    for stage in stages:
        for place, removed, text in stage:
            at = place % (len(current) + 1)
            current[at : at + removed] = text.split("\n")
        texts.append("\n".join(current))
    with LedgerWriter(path) as writer:
        numbers: list[int] = []
        for index, text in enumerate(texts):
            numbers.append(writer.add_snapshot(text))
            if index >= flush_after:
                writer.flush()
    with LedgerReader(path) as reader:
        ids: dict[str, int] = {}
        for number, text in zip(numbers, texts, strict=True):
            assert reader.snapshots.text(number) == text
            split = text.split("\n")
            found = reader.snapshots.line_ids(number)
            assert len(found) == len(split)
            # Equal numbers mean equal lines, and the other way round.
            for one, line in zip(found, split, strict=True):
                assert ids.setdefault(line, one) == one
        assert len(set(ids.values())) == len(ids)
    by_text = dict(zip(texts, numbers, strict=True))
    assert [by_text[text] for text in texts] == numbers


def instruction(number: int, salt: int) -> str:
    shape = f"f32[{number % 7},{salt % 11},128]{{2,1,0}}"
    return f'  %fusion.{number} = {shape} fusion(%add.{number * 3}, %p.{salt}), metadata={{op_name="jit/{salt:x}"}}'


def test_a_stage_that_changes_a_hundredth_costs_about_a_hundredth(tmp_path: Path) -> None:
    chance = random.Random(1)
    size, stages = 4000, 20
    current = [instruction(number, chance.getrandbits(64)) for number in range(size)]
    paths = [tmp_path / "one.ledger", tmp_path / "all.ledger"]
    with LedgerWriter(paths[0]) as one, LedgerWriter(paths[1]) as many:
        one.add_snapshot("\n".join(current))
        texts: list[str] = []
        for _ in range(stages):
            texts.append("\n".join(current))
            many.add_snapshot(texts[-1])
            for _ in range(size // 100):
                at = chance.randrange(len(current))
                current[at] = instruction(at, chance.getrandbits(64))
            del current[chance.randrange(len(current))]
            current.insert(chance.randrange(len(current)), instruction(1, chance.getrandbits(64)))
    first, total = (path.stat().st_size for path in paths)
    # Twenty stages add 20% of new lines; the chunks around them are listed again.
    assert total < 1.6 * first
    assert total < 0.03 * sum(map(len, texts))
    with LedgerReader(paths[1]) as reader:
        assert [reader.snapshots.text(number + 1) for number in range(stages)] == texts


def test_stages_can_be_compared_by_numbers(tmp_path: Path) -> None:
    before = [instruction(number, number) for number in range(500)]
    after = [*before[:100], "  %new = f32[] add()", *before[101:300], *before[310:]]
    numbers = store(tmp_path / "run.ledger", ["\n".join(before), "\n".join(after)])
    with LedgerReader(tmp_path / "run.ledger") as reader:
        old, new = (reader.snapshots.line_ids(number) for number in numbers)
        added = sorted(set(new) - set(old))
        removed = sorted(set(old) - set(new))
        assert reader.snapshots.lines(added) == ["  %new = f32[] add()"]
        assert sorted(reader.snapshots.lines(removed)) == sorted([before[100], *before[300:310]])


def test_lines_of_megabytes(tmp_path: Path) -> None:
    chance = random.Random(2)
    constant = "  %constant.1 = f32[99]{0} constant({" + ", ".join(str(chance.random()) for _ in range(100_000)) + "})"
    assert len(constant) > 1_500_000
    texts: list[str | bytes] = [
        f"HloModule m\n{constant}\nend {stage}\n{constant}\n{constant[:-2]}\n" for stage in range(5)
    ]
    numbers = store(tmp_path / "run.ledger", texts)
    with LedgerReader(tmp_path / "run.ledger") as reader:
        for number, text in zip(numbers, texts, strict=True):
            assert reader.snapshots.text(number) == text
        ids = reader.snapshots.line_ids(numbers[0])
        assert ids[1] == ids[3] != ids[4]
    assert (tmp_path / "run.ledger").stat().st_size < 2.2 * len(constant)


def test_texts_are_found_while_blocks_are_rewritten(tmp_path: Path) -> None:
    texts = ["\n".join(f"{stage} {line} {'x' * 90}" for line in range(1500)) for stage in range(12)]
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        reader: LedgerReader | None = None
        for stage, text in enumerate(texts):
            number = writer.add_snapshot(text)
            writer.flush()
            reader = reader or LedgerReader(tmp_path / "run.ledger")
            assert reader.snapshots.text(number) == text
            assert reader.snapshots.text(1 + stage // 2) == texts[stage // 2]
        assert reader is not None
        reader.close()
    with LedgerReader(tmp_path / "run.ledger") as again:
        assert [again.snapshots.text(number + 1) for number in range(12)] == texts


def test_the_cache_keeps_to_its_bound(tmp_path: Path) -> None:
    from hloscope.core.ledger import SnapshotReader, open_ledger

    texts: list[str | bytes] = ["\n".join(f"{s} {n} {'y' * 200}" for n in range(4000)) for s in range(4)]
    numbers = store(tmp_path / "run.ledger", texts)
    connection = open_ledger(tmp_path / "run.ledger")
    small = SnapshotReader(connection, cache_bytes=1 << 20)
    for number, text in zip(numbers * 2, texts * 2, strict=True):
        assert small.text(number) == text
    assert small.cached_bytes <= (1 << 20) + (700 << 10)
    connection.close()


def test_a_missing_text_is_one_line(tmp_path: Path) -> None:
    store(tmp_path / "run.ledger", ["x"])
    with LedgerReader(tmp_path / "run.ledger") as reader, pytest.raises(LedgerError, match="no module text number 7"):
        reader.snapshots.text(7)
