"""Hover: what the thing under the cursor is, in Markdown. Facts come from the core; here is only how they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsprotocol import types

from hloscope.core.hlo.attributes import ATTRIBUTES, CALLED, CONTROL
from hloscope.core.hlo.opcodes import OPCODES, Opcode
from hloscope.core.text.module_index import ModuleIndex, Target
from hloscope.core.views.attribute_words import attribute_words
from hloscope.core.views.cost_facts import cost_facts
from hloscope.core.views.data import HoverFacts, SourceFrame
from hloscope.core.views.hover import instruction_facts
from hloscope.lsp.companion import Companion
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.dump_findings import cause_of, copy_here
from hloscope.lsp.features.feature import Feature
from hloscope.lsp.features.markdown import block, shortened, span, spans
from hloscope.lsp.features.memory import memory

_NAMES = 8
"""Operands, users or callers that are named."""
_SIGNATURE = 2_000
_VALUE = 1_000
_FRAMES = 6
_VERDICTS = 6
_PLACES = 4
_TILES_WITHIN = 1 << 20
"""Characters within which a TPU's text has a tiled shape, if it has any."""
_SEMANTICS = "https://openxla.org/xla/operation_semantics"
_NO_CHAPTER = frozenset({"fusion", "bitcast", "copy", "constant", "domain", "add-dependency", "get-dimension-size"})


def hover(reading: Reading, params: types.HoverParams) -> types.Hover | None:
    """On a name: that instruction or computation; on an opcode, a shape or an attribute: what it means."""
    index = reading.index
    target = index.at_offset(reading.offset(params.position))
    text = describe(index, target, reading.companion)
    if text is None:
        return None
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), reading.range(*target.span))


def describe(index: ModuleIndex, target: Target, companion: Companion | None = None) -> str | None:
    """The Markdown for what is under the cursor; None where there is nothing to say."""
    match target.kind:
        case "instruction" | "operand" | "control" | "parameter" | "computation" | "computation-reference" if (
            target.refers_to < 0
        ):
            return f"{span(target.name)} is not defined here"
        case "instruction" | "operand" | "control" | "parameter" | "shape":
            i = target.refers_to
            lines = instruction(
                instruction_facts(index, i), cost(index, i, companion), of_dump(companion, index, index.name(i))
            )
            return lines + memory(index, i)
        case "computation" | "computation-reference":
            return computation(index, target.refers_to)
        case "opcode":
            return opcode(target.name)
        case "attribute":
            return attribute(target.name, index.source[slice(*target.span)])
        case "header":
            return f"{span(target.name)}: attribute of the module\n\n{_value(index.source[slice(*target.span)])}"
        case "none":
            return None


def instruction(facts: HoverFacts, costs: str = "", known: tuple[str, ...] = ()) -> str:
    """Signature, meaning, size, cost, neighbours, source of one instruction, and what its dump knows of it."""
    size = [f"shape {span(facts.shape)}"]
    if facts.layout is not None:
        size.append(f"layout {span(facts.layout)}")
    if facts.bytes is not None:
        size.append(amount(facts.bytes))
    lines = [
        block(shortened(facts.signature, _SIGNATURE)),
        f"{link(facts.opcode)}: {facts.meaning}" if facts.meaning else f"**{facts.opcode}**",
        " · ".join(size),
        costs,
        _neighbours("operand", facts.operands),
        _neighbours("user", facts.users) + (" · root" if facts.is_root else ""),
        f"in {span(facts.computation)}" if facts.computation else "",
        f"op_name {span(shortened(facts.op_name, _VALUE))}" if facts.op_name else "",
        _source(facts.source),
        *known,
    ]
    return "\n\n".join(line for line in lines if line)


def computation(index: ModuleIndex, number: int) -> str:
    """Signature, size, root and callers of one computation."""
    one = index.computation(number)
    callers = [index.name(i) for i in index.callers(number)]
    root = ""
    if one.root >= 0:
        root = f"root {span(index.name(one.root))}, {span(shortened(index.shape_text(one.root), _VALUE))}"
    called = f"{_count(len(callers), 'caller')}: {spans(callers, _NAMES)}" if callers else "called by nothing"
    lines = [
        block(shortened(index.source[slice(*one.header)].rstrip("{ \r\n"), _SIGNATURE)),
        f"{'entry computation' if one.is_entry else 'computation'} · {_count(len(one), 'instruction')}",
        root,
        "" if one.is_entry and not callers else called,
    ]
    return "\n\n".join(line for line in lines if line)


def opcode(name: str) -> str | None:
    """Meaning, arity and properties of an opcode; None for one that the table does not know."""
    known = OPCODES.get(name)
    if known is None:
        return f"{span(name)}: not an opcode that this version knows"
    arity = "any number of operands" if known.arity is None else _count(known.arity, "operand")
    return "\n\n".join((f"{link(known.name)}: {known.meaning}", " · ".join((arity, *_properties(known)))))


def attribute(key: str, text: str) -> str:
    """Meaning and value of an instruction's attribute, whose text is ``key=value``."""
    known = ATTRIBUTES.get(key)
    if known is not None:
        meaning = known.meaning
    elif key in CALLED:
        meaning = "the computation that the instruction calls"
    elif key == "sharding":
        meaning = "how the value is spread over the devices"
    elif key == CONTROL:
        meaning = "instructions that must run before this one"
    else:
        meaning = "attribute"
    value = text.partition("=")[2].strip()
    words = attribute_words(key, value)
    shown = _value(value) if words is None else block(words, "json" if words[:1] in "{[" else "text")
    return f"**{key}**: {meaning}\n\n{shown}"


def link(opcode: str) -> str:
    """The opcode's name, linked to its chapter where it has one."""
    known = OPCODES.get(opcode)
    if known is None or opcode in _NO_CHAPTER or known.asynchronous:
        return f"**{opcode}**"
    return f"[**{opcode}**]({_SEMANTICS}#{opcode.replace('-', '')})"


def cost(index: ModuleIndex, i: int, companion: Companion | None = None) -> str:
    """Flops, bytes and the roofline on a GPU; empty where there is no cost.

    Only flops and bytes of another backend's instructions: no rates are known of CPUs and TPUs.
    """
    tiled = ":T(" in index.shape_text(i) or index.source.find(":T(", 0, _TILES_WITHIN) >= 0
    device = None if companion is None else companion.device(tiled=tiled)
    found = cost_facts(index, i, device)
    if found is None:
        return ""
    read_written = f"{found.bytes_read:,} bytes read, {found.bytes_written:,} written"
    apart = f", {_count(found.transcendentals, 'transcendental')}" if found.transcendentals else ""
    unit = "operations" if apart else "flops"
    line = f"cost {found.flops:,} flops{apart} · {read_written} · {found.intensity:.3g} {unit} a byte"
    if companion is not None and device is None:
        return line
    longest = max(found.compute_ns, found.memory_ns)
    time = f"{longest / 1000:.3g} µs" if longest >= 1000 else f"{longest:.3g} ns"
    assumed = "" if companion is not None and companion.in_dump else ", taken for want of a dump"
    return f"{line} · roofline {time} on {found.device}{assumed}, {found.bound_by} bound"


def of_dump(companion: Companion | None, index: ModuleIndex, name: str) -> tuple[str, ...]:
    """Paragraphs on the pass that made it, its copy's cause, its fusion verdicts and its memory."""
    if companion is None:
        return ()
    out: list[str] = []
    birth = companion.born(name)
    if birth is not None:
        out.append(birth)
    facts = companion.facts
    if facts is None:
        return tuple(out)
    copied = facts.copies.get(name)
    here = None if copied is None else copy_here(index, copied)
    if copied is not None and here is not None:
        out.append(f"copied because {copied['sentence']}" if here.told else f"copied: {cause_of(copied, here)}")
        if copied["remedy"] is not None:
            out.append(f"to remove the copy: {copied['remedy']}")
    verdicts = [_verdict(row, name) for row in facts.fusion.get(name, ())[:_VERDICTS]]
    if verdicts:
        out.append("  \n".join(verdicts))
    places = facts.buffers.get(name, ())
    for row in places[:_PLACES]:
        live = "" if row["live"] is None else f", alive from step {row['live'][0]} to {row['live'][1]}"
        part = "" if row["index"] == "{}" else f" {row['index']}"
        line = f"lives{part} in allocation {row['allocation']} ({row['kind']}) at byte {row['offset']:,}, "
        others = [one for one in facts.at.get((row["allocation"], row["offset"]), ()) if one != name]
        shared = f"; the same bytes hold {spans(others, 4)} at other times" if others else ""
        out.append(f"{line}{row['size']:,} bytes{live}{shared}")
    return tuple(out)


def _verdict(row: Mapping[str, Any], name: str) -> str:
    others = [one for one in row["consumers"] if one != name]
    edge = f"into {spans(others, 3) if others else 'its users'}"
    if row["producer"] != name:
        edge = f"of {span(row['producer'])} into it"
    likely = "likely " if row["origin"] == "inferred" and row["verdict"] != "fused" else ""
    made = f", as {span(row['made'])}" if row["made"] and row["made"] != name else ""
    reason = "" if row["reason"] is None else f": {row['reason']}"
    return f"fusion {edge}: {likely}{row['verdict']}{made}{reason}"


def amount(count: int) -> str:
    """Bytes, and in a larger unit where there is one."""
    exact = _count(count, "byte")
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{exact} ({count / size:.4g} {unit})"
    return exact


def _properties(known: Opcode) -> list[str]:
    out = [
        word
        for word, holds in (
            ("elementwise", known.elementwise),
            ("commutative", known.commutative),
            ("has an effect", known.side_effect),
            ("collective", known.collective),
        )
        if holds
    ]
    if known.calls != "none":
        out.append("calls computations as control flow" if known.calls == "control-flow" else "calls a computation")
    if known.asynchronous:
        out.append(f"{known.asynchronous} of an asynchronous pair")
    return out


def _neighbours(what: str, names: tuple[str, ...]) -> str:
    return f"{_count(len(names), what)}: {spans(names, _NAMES)}" if names else f"no {what}s"


def _source(frames: tuple[SourceFrame, ...]) -> str:
    """Where it comes from, innermost frame first, one line each."""
    lines = [
        span(f"{frame.file}:{frame.line}") + (f" in {span(frame.function)}" if frame.function else "")
        for frame in frames[:_FRAMES]
    ]
    if len(frames) > _FRAMES:
        lines.append(f"and {len(frames) - _FRAMES} more frames")
    return "  \n".join(["from " + lines[0], *lines[1:]]) if lines else ""


def _value(text: str) -> str:
    return block(shortened(text, _VALUE), "text") if text else ""


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


FEATURE = Feature(types.TEXT_DOCUMENT_HOVER, hover, heavy=True)
