"""Where values came from: ``origin`` of an instruction and ``origin_recovery_table`` of a module, in XLA's form.

Sources: ``openxla/xla:xla/hlo/parser/hlo_parser.cc`` (ParseOriginalValueImpl, ParseOriginalValueRecoveryTable),
``xla/hlo/ir/hlo_original_value.cc``, ``xla/hlo/ir/hlo_module.cc#OriginalValueRecoveryTable::ToString``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import ParseError

if TYPE_CHECKING:
    from hloscope.core.text.tokens import Cursor


def origin(at: Cursor) -> str:
    """``{({"a" {0}}, {"b"})}`` or ``{[synthetic_call]}``."""
    at.expect("{")
    if at.accept("["):
        if at.kind != "word" or at.value != "synthetic_call":
            at.fail(f"expected synthetic_call, got {at.glance()}")
        at.advance()
        at.expect("]")
        at.expect("}")
        return "{[synthetic_call]}"
    text = "" if at.kind == "}" else _origin_tree(at)
    at.expect("}")
    return "{" + text + "}"


def _origin_tree(at: Cursor) -> str:
    out: list[str] = []
    depth = 0
    while True:
        if at.accept("("):
            depth += 1
            out.append("(")
        elif at.kind == ")" and depth:
            at.advance()
            depth -= 1
            out.append(")")
        elif at.kind == "," and depth:
            at.advance()
            out.append(", ")
        elif at.kind == "{":
            out.append(original_array(at))
        elif at.kind == "}":  # XLA does not mind parentheses that stay open
            return "".join(out) + ")" * depth
        else:
            at.fail(f"expected an original value, got {at.glance()}")


def original_array(at: Cursor) -> str:
    """``{"name" {0}}``."""
    at.expect("{")
    text = ""
    if at.kind == "string":
        name = at.string_bytes().decode("utf-8", "surrogateescape")
        at.advance()
        index = at.index() if at.stands("{") else "{}"
        text = (f'"{name}"' + (f" {index}" if index != "{}" else "")) if name else ""
    at.expect("}")
    return "{" + text + "}"


# ---------------------------------------------------------------- the recovery table
def recovery_table(at: Cursor) -> str:
    """``{ {"old"} : {"new"}, "HloModule …" }``: entries sorted, the modules in them printed as XLA prints them.

    XLA does not escape the quotes of a module that it prints here, so its parser cannot read back every table.
    """
    at.expect("{")
    entries: dict[tuple[str, tuple[int, ...]], str] = {}
    while at.kind != "}":
        old = _key(at)
        at.expect(":")
        name, index = _key(at)
        module = ""
        if at.accept(","):
            if at.kind != "string":
                at.fail(f"expected a module in quotes, got {at.glance()}")
            start = at.start
            text = at.string_bytes().decode("utf-8", "surrogateescape")
            at.advance()
            module = ',\n  "\n' + _printed(text, start) + '\n  "'
        entries.setdefault(old, f"  {_named(*old)} : {_named(name, index)}{module}\n")
    at.expect("}")
    return "{\n" + "".join(entries[key] for key in sorted(entries)) + "}"


def _key(at: Cursor) -> tuple[str, tuple[int, ...]]:
    at.expect("{")
    name, index = "", ()
    if at.kind == "string":
        name = at.string_bytes().decode("utf-8", "surrogateescape")
        at.advance()
        index = tuple(at.integers(loose=True)) if at.stands("{") else ()
    at.expect("}")
    return name, index


def _named(name: str, index: tuple[int, ...]) -> str:
    return '{"' + name + '"' + (f" {{{','.join(map(str, index))}}}" if index else "") + "}"


def _printed(text: str, start: int) -> str:
    # Modules may hold tables of their own, so reader and printer use this file.
    from hloscope.core.text.names import as_xla_reads
    from hloscope.core.text.printer import PrintOptions, print_module
    from hloscope.core.text.reader import read_text

    result = read_text(text, check=True)
    if result.module is None or result.xla_would_reject:
        found = next((d for d in (*result.diagnostics, *result.objections) if d.severity == "error"), None)
        why = f": {found.line}:{found.column}: {found.message}" if found is not None else ""
        raise ParseError(f"the module in the table cannot be read{why}", column=start + 1)
    lines = print_module(as_xla_reads(result.module), PrintOptions.xla()).rstrip("\n").split("\n")
    return "\n".join([f"    {line}" if line else "" for line in lines]) + "\n\n"
