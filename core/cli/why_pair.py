"""``hloscope why PATH A B``: why A is, or is not, fused into B."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from hloscope.core.cli.opening import opened
from hloscope.core.cli.output import emit_object
from hloscope.core.views.fusion import PairFacts, why_pair

_SHOWN_FLIPS = 8


def why_pair_command(
    path: str, producer: str, consumer: str, *, target: str | None, prove: bool, module: str | None, as_json: bool
) -> None:
    """Print why a producer is, or is not, fused into a consumer. Raises UsageError where they are not such a pair."""
    with opened(path, module) as run:
        facts = why_pair(run, producer, consumer, target=target, prove=prove)
        emit_object(_keys(facts), as_json, "\n".join(_lines(facts)) + "\n", source=run.source)


def _keys(facts: PairFacts) -> dict[str, object]:
    return {
        "producer": facts.producer,
        "consumer": facts.consumer,
        "verdict": facts.verdict,
        "code": facts.code,
        "reason": facts.reason,
        "numbers": dict(facts.numbers),
        "flips": [dataclasses.asdict(one) for one in facts.flips],
        "origin": facts.origin,
        "change": facts.change or None,
        "refused_by": facts.refused_by,
        "core": None if facts.core is None else {"verdict": facts.core.verdict, "code": facts.core.code},
        "notes": list(facts.notes),
    }


def _lines(facts: PairFacts) -> Iterator[str]:
    words = {
        "fused": "is fused into",
        "refused": "is not fused into",
        "ineligible": "is not fused at all, so not into",
    }
    yield f"%{facts.producer} {words.get(facts.verdict, facts.verdict)} %{facts.consumer}  ({facts.origin})"
    if facts.reason:
        by = f" (asked for %{facts.refused_by})" if facts.refused_by else ""
        yield f"  because       {facts.reason}{by}"
    if facts.change:
        yield f"  needed        {facts.change}"
    yield from _numbers(facts.numbers)
    if facts.flips:
        yield ""
        yield "Edits after which it is fused (tried):"
        for flip in facts.flips[:_SHOWN_FLIPS]:
            proof = " and by the real compiler" if "xla" in flip.proven_by else ""
            saved = f", saves {flip.us_saved:.3f} us" if flip.us_saved is not None else ""
            yield f"  {flip.change}: fused by hloscope's own pass{proof}{saved}"
        if len(facts.flips) > _SHOWN_FLIPS:
            yield f"  and {len(facts.flips) - _SHOWN_FLIPS} more (--json has them with their HLO)"
    for note in facts.notes:
        yield f"Note: {note}."


def _numbers(numbers: Mapping[str, object]) -> Iterator[str]:
    plain = {key: value for key, value in numbers.items() if not isinstance(value, Mapping) and value is not None}
    for key, value in plain.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.5g}" if isinstance(value, float) else str(value)
        yield f"  {key:<14}{shown}"
    for key in ("producer", "consumer", "fused"):
        time = numbers.get(key)
        if isinstance(time, Mapping):
            yield (
                f"  {key:<14}{time['us']:.5g} us, {time['bound_by']} bound: read {time['bytes_read']:,} bytes in "
                f"{time['read_us']:.4g} us, write {time['bytes_written']:,} in {time['write_us']:.4g} us, "
                f"{time['flops']:,} flops in {time['compute_us']:.4g} us, grid {time['blocks']:,} x {time['threads']}"
            )
