"""The reducer beside plain delta debugging, on final size and on probes: ``python benchmarks/bench_reduce.py``.

Plain ddmin knows nothing of HLO but that a removed instruction leaves a parameter: it keeps a smallest set of the
entry's instructions. Both ask the same question and accept only modules that the verifier accepts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from runpy import run_path
from typing import Any

from hloscope.bisect.reduce import reduce_module
from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.module import HloModule
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.dce import HloDce
from hloscope.core.passes.invariants import findings
from hloscope.core.text import load_module, print_module

CASES: dict[str, Any] = run_path(
    str(Path(__file__).resolve().parents[1] / "fixtures" / "faults" / "reducible.py")
)["CASES"]  # fmt: skip


def keep_only(module: HloModule, names: set[str]) -> HloModule | None:
    """The module with the entry's other instructions as parameters; None where that is no module."""
    candidate = module.clone()
    entry = candidate.entry
    try:
        for one in list(entry.post_order()):
            if one.name in names or one.opcode in ("parameter", "constant") or one.is_root:
                continue
            new = HloInstruction("parameter", one.shape, name=f"p.{one.name}", payload=str(len(entry.parameters)))
            one.drop_all_control_dependencies()
            one.replace_all_uses_with(entry.add(new))
        HloDce().run(candidate, PassContext())
        unused = [one for one in entry.parameters if not one.user_count and not one.is_root]
        for one in unused:
            entry.remove(one)
        for number, one in enumerate(entry.parameters):
            one.set_parameter_number(number)
        candidate.attrs.pop("entry_computation_layout", None)
        if next(iter(findings(candidate)), None) is not None:
            return None
        return load_module(print_module(candidate))
    except (HloscopeError, InternalError):
        return None


def ddmin(module: HloModule, shows: Callable[[HloModule], bool]) -> tuple[HloModule, int]:
    """Zeller and Hildebrandt's ddmin over the entry's instructions; the module it ends with, and its probes."""
    names = [one.name for one in module.entry.post_order() if one.opcode not in ("parameter", "constant")]
    best, probes, parts = module, 0, 2

    def test(kept: Sequence[str]) -> HloModule | None:
        nonlocal probes
        candidate = keep_only(module, set(kept))
        if candidate is None:
            return None
        probes += 1
        return candidate if shows(candidate) else None

    while len(names) > 1:
        size = max(1, len(names) // parts)
        chunks = [names[at : at + size] for at in range(0, len(names), size)]
        found = None
        for chunk in chunks:
            found = test(chunk)
            if found is not None:
                names, parts, best = chunk, 2, found
                break
        else:
            for chunk in chunks:
                rest = [one for one in names if one not in chunk]
                found = test(rest) if len(chunks) > 2 else None
                if found is not None:
                    names, parts, best = rest, max(parts - 1, 2), found
                    break
        if found is None:
            if parts >= len(names):
                break
            parts = min(len(names), 2 * parts)
    return best, probes


def main() -> None:
    print(f"{'case':28} {'start':>5} {'hand':>5} {'ours':>5} {'probes':>6} {'s':>6} {'ddmin':>6} {'probes':>6}")
    for name, case in CASES.items():
        module = load_module(case.text)
        by_hand = load_module(case.by_hand)
        assert case.shows(module) and case.shows(by_hand), name
        started = time.process_time()
        found = reduce_module(module, case.shows, budget=400)
        seconds = time.process_time() - started
        plain, probes = ddmin(module, case.shows)
        print(
            f"{name:28} {found.before:5} {by_hand.instruction_count:5} {found.after:5} {found.probes:6} {seconds:6.2f} "
            f"{plain.instruction_count:6} {probes:6}"
        )


if __name__ == "__main__":
    main()
