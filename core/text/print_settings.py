"""The printer's options under the names that jaxlib's ``HloPrintOptions`` has for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from hloscope.core.errors import UsageError
from hloscope.core.text.printer import PrintOptions

STYLES: Mapping[str, Callable[[], PrintOptions]] = MappingProxyType({
    "dump": PrintOptions,
    "short": PrintOptions.short,
    "long": PrintOptions.long,
    "xla": PrintOptions.xla,
    "short_parsable": PrintOptions.short_parsable,
    "canonical": PrintOptions.canonical,
    "fingerprint": PrintOptions.fingerprint,
})  # fmt: skip
"""Styles by name. The last four are ``HloPrintOptions()`` and its static methods."""

SETTINGS: Mapping[str, str] = MappingProxyType({
    "print_large_constants": "large_constants",
    "print_metadata": "metadata",
    "print_backend_config": "backend_config",
    "print_operand_shape": "operand_shapes",
    "print_operand_names": "operand_names",
    "print_program_shape": "signatures",
    "print_result_shape": "result_shapes",
    "print_percent": "percent",
    "print_control_dependencies": "control_edges",
    "print_extra_attributes": "attributes",
    "print_ids": "ids",
    "include_layout_in_shapes": "layouts",
    "compact_operands": "compact",
    "canonicalize_instruction_names": "canonical_names",
    "canonicalize_computations": "in_text_order",
    "indent_amount": "indent",
})  # fmt: skip
"""jaxlib's name of each option, and the field of `PrintOptions` that it is."""

_WORDS = {"true": True, "false": False, "1": True, "0": False}


def with_settings(options: PrintOptions, settings: Iterable[str]) -> PrintOptions:
    """Options changed by texts such as ``print_metadata=false``. Raises UsageError for what is no such setting."""
    changes: dict[str, bool | int] = {}
    for text in settings:
        name, equals, word = text.partition("=")
        field = SETTINGS.get(name.strip())
        if field is None or not equals:
            raise UsageError(f"expected NAME=VALUE with NAME one of {', '.join(SETTINGS)}, got {text!r}")
        word = word.strip().lower()
        if field == "indent":
            if not word.isdigit() or len(word) > 3:
                raise UsageError(f"expected a number of levels below 1000, got {text!r}")
            changes[field] = int(word)
        elif word in _WORDS:
            changes[field] = _WORDS[word]
        else:
            raise UsageError(f"expected true or false, got {text!r}")
    return replace(options, **changes)  # type: ignore[arg-type]
