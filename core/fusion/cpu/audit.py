"""Agreement of our CPU fusion with a dump's: the stage before ``fusion``, fused by us, against the stage after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.agreement import Agreement, Section
from hloscope.core.analysis.real_compile import stages_around
from hloscope.core.errors import DumpError
from hloscope.core.fusion.cpu.instruction_fusion import CpuInstructionFusion
from hloscope.core.fusion.cpu.wrapper import CpuFusionWrapper
from hloscope.core.hlo.hashing import computation_hash
from hloscope.core.passes.context import PassContext

if TYPE_CHECKING:
    from hloscope.core.analysis.real_compile import PassPair, RealCompile
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.interface import HloPass


def audit_cpu(compile_: RealCompile) -> Section:
    """Figures ``groups`` (a fusion with its kind, operands and body), ``bodies`` whatever their names, and ``wrapped``.

    Raises DumpError where the dump does not show the module before and after ``fusion``.
    """
    groups, bodies, wrapped = Agreement(), Agreement(), Agreement()
    notes: list[str] = []
    for pair in stages_around(compile_, "fusion"):
        ours, real = _run(compile_, pair, CpuInstructionFusion())
        _compare_bodies(ours, real, bodies)
        order = _order(compile_.module(pair.before.index), real)
        if order != _order(compile_.module(pair.before.index), ours):
            notes.append(f"{compile_.label}: groups: the order of computations, which numbers names, is the dump's")
            ours, real = _run(compile_, pair, CpuInstructionFusion(order))
        _compare_names(ours, real, groups)
    try:
        pairs = stages_around(compile_, "fusion-wrapper")
    except DumpError as error:
        notes.append(error.message)
        return Section({"groups": groups, "bodies": bodies}, tuple(notes))
    for pair in pairs:
        ours, real = _run(compile_, pair, CpuFusionWrapper())
        _compare_bodies(ours, real, wrapped)
    return Section({"groups": groups, "bodies": bodies, "wrapped": wrapped}, tuple(notes))


def _run(compile_: RealCompile, pair: PassPair, one: HloPass) -> tuple[HloModule, HloModule]:
    ours, real = compile_.module(pair.before.index), compile_.module(pair.after.index)
    one.run(ours, PassContext())
    return ours, real


def _order(before: HloModule, after: HloModule) -> tuple[str, ...]:
    """Computations in the order in which the pass fused in them, by the numbers of the bodies that it made."""
    old = {one.name for one in _fusions(before)}
    made = [(_number(one.callee("calls").name), one.parent.name) for one in _fusions(after) if one.name not in old]
    return tuple(dict.fromkeys(name for _, name in sorted(made)))


def _number(name: str) -> int:
    suffix = name.rpartition(".")[2]
    return int(suffix) if suffix.isdigit() else -1


def _fusions(module: HloModule) -> list[HloInstruction]:
    return [one for one in module.instructions() if one.opcode == "fusion"]


def _compare_names(ours: HloModule, real: HloModule, figure: Agreement) -> None:
    mine, theirs = ({one.name: _facts(one) for one in _fusions(module)} for module in (ours, real))
    for name in {**theirs, **mine}:
        a, b = mine.get(name), theirs.get(name)
        if a is not None and b is not None:
            figure.add(name, _difference(a, b), "", equal=a == b)
        else:
            figure.add(name, "no such fusion" if a is None else "fused", "fused" if a is None else "no such fusion")


def _facts(fusion: HloInstruction) -> tuple[object, ...]:
    body = fusion.callee("calls")
    return (
        fusion.attr("kind"),
        tuple(one.name for one in fusion.operands),
        _hash(body).hex(),
    )


def _difference(ours: tuple[object, ...], real: tuple[object, ...]) -> str:
    words = ("kind", "operands", "body")
    return "other " + ", ".join(word for word, a, b in zip(words, ours, real, strict=True) if a != b)


def _compare_bodies(ours: HloModule, real: HloModule, figure: Agreement) -> None:
    """The fusions of each computation as a multiset, for where only the numbers in names differ."""
    mine, theirs = _by_home(ours), _by_home(real)
    for home in {**theirs, **mine}:
        left = list(mine.get(home, ()))
        for kind, digest, name in theirs.get(home, ()):
            match = next((one for one in left if one[:2] == (kind, digest)), None)
            if match is not None:
                left.remove(match)
            figure.add(name, "no such fusion" if match is None else "fused", "fused")
        for _, _, name in left:
            figure.add(name, "fused", "no such fusion")


def _by_home(module: HloModule) -> dict[str, list[tuple[str, bytes, str]]]:
    found: dict[str, list[tuple[str, bytes, str]]] = {}
    for one in _fusions(module):
        entry = (str(one.attr("kind")), _hash(one.callee("calls")), one.name)
        found.setdefault(one.parent.name, []).append(entry)
    return found


def _hash(body: HloComputation) -> bytes:
    """Structure of a body and of what it calls."""
    done: dict[HloComputation, bytes] = {}
    for one in body.module.post_order():
        if one is body:
            break
        if not one.is_entry:
            computation_hash(one, done)
    return computation_hash(body, done)
