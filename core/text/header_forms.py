"""The attributes of the HloModule line: order, values, and what XLA leaves out.

Source: ``openxla/xla:xla/hlo/ir/hlo_module.cc`` (Print, PrintConfig), ``xla/hlo/parser/hlo_parser.cc#ParseHloModule``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.text.origin_forms import recovery_table
from hloscope.core.text.value_forms import (
    FORMS,
    booleans_or_one,
    buffer_donor,
    canonical_value,
    computation_layout,
    frontend_attributes,
    input_output_alias,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hloscope.core.text.tokens import Cursor

MODULE_ATTRIBUTES = (
    "is_scheduled", "input_output_alias", "buffer_donor", "alias_passthrough_params", "entry_computation_layout",
    "allow_spmd_sharding_propagation_to_parameters", "allow_spmd_sharding_propagation_to_output", "replica_count",
    "num_partitions", "frontend_attributes", "origin_recovery_table", "debug_attributes",
)  # fmt: skip
"""Attributes that XLA knows, in the order in which it prints them."""

HEADER_ORDER: Mapping[str, int] = MappingProxyType({name: i for i, name in enumerate(MODULE_ATTRIBUTES)})
"""Places in the printed order."""

HEADER_OMITTED: Mapping[str, str] = MappingProxyType(
    {
        "is_scheduled": "false",
        "alias_passthrough_params": "false",
        "replica_count": "1",
        "num_partitions": "1",
        "allow_spmd_sharding_propagation_to_parameters": "{false}",
        "allow_spmd_sharding_propagation_to_output": "{false}",
    }
)
"""Values that are not printed."""

HEADER_FORMS: Mapping[str, Callable[[Cursor], str]] = MappingProxyType(
    {
        "is_scheduled": FORMS["is_stable"],
        "alias_passthrough_params": FORMS["is_stable"],
        "replica_count": FORMS["index"],
        "num_partitions": FORMS["index"],
        "input_output_alias": input_output_alias,
        "buffer_donor": buffer_donor,
        "entry_computation_layout": computation_layout,
        "frontend_attributes": frontend_attributes,
        "origin_recovery_table": recovery_table,
        "allow_spmd_sharding_propagation_to_parameters": booleans_or_one,
        "allow_spmd_sharding_propagation_to_output": booleans_or_one,
    }
)
"""How values are read and written; debug attributes stay text."""


def header_value(key: str, text: str, *, exact: bool = False) -> str:
    """The text that XLA prints for a header attribute; what cannot be read as that attribute stays as it is.

    Without `exact` also what XLA prints in a way that it cannot read again: a table of modules with quotes in them.
    """
    form = HEADER_FORMS.get(key)
    if form is None:
        return text
    try:
        value = canonical_value(key, text, form)
        return value if exact or key != "origin_recovery_table" or "\\" not in text else text
    except (HloscopeError, ValueError, IndexError, RecursionError):
        return text
