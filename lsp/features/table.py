"""Every feature of the server, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lsprotocol import types

from hloscope.lsp.features import (
    call_hierarchy,
    code_actions,
    code_lens,
    completion,
    definition,
    diagnostics,
    document_links,
    folding,
    formatting,
    highlight,
    hover,
    inlay_hints,
    linked_editing,
    outline,
    references,
    rename,
    selection,
    semantic_tokens,
    signature,
    stages,
    workspace_symbols,
)
from hloscope.lsp.features.feature import Feature, WorkspaceFeature

FEATURES: tuple[Feature, ...] = (
    hover.FEATURE,
    definition.FEATURE,
    definition.DECLARATION,
    definition.IMPLEMENTATION,
    references.FEATURE,
    highlight.FEATURE,
    outline.FEATURE,
    folding.FEATURE,
    rename.PREPARE,
    rename.FEATURE,
    semantic_tokens.RANGE,
    completion.FEATURE,
    signature.FEATURE,
    inlay_hints.FEATURE,
    code_lens.FEATURE,
    code_actions.FEATURE,
    call_hierarchy.PREPARE,
    selection.FEATURE,
    linked_editing.FEATURE,
    formatting.FEATURE,
    formatting.RANGE,
    document_links.FEATURE,
)

ITEM_FEATURES: tuple[Feature, ...] = (call_hierarchy.INCOMING, call_hierarchy.OUTGOING)
"""Requests about an item that the server gave out, whose address tells the text."""


def _jump(which: stages.Which) -> Callable[[str, str], list[tuple[str, types.Location]]]:
    def find(uri: str, name: str) -> list[tuple[str, types.Location]]:
        found = stages.in_stage(uri, name, which)
        return [] if found is None else [(name, found)]

    return find


COMMANDS: Mapping[str, Callable[[str, str], list[tuple[str, types.Location]]]] = {
    "hloscope.previousStage": _jump("previous"),
    "hloscope.nextStage": _jump("next"),
    "hloscope.firstStage": _jump("first"),
    "hloscope.lastStage": _jump("last"),
    "hloscope.openFusion": stages.fusions_of,
}
"""Commands that a client may run: (address, instruction) -> the places to show, with names to choose by."""

WORKSPACE_FEATURES: tuple[WorkspaceFeature, ...] = (workspace_symbols.FEATURE,)


def features_of_a_client() -> tuple[Feature, ...]:
    """`FEATURES`, and those that remember what they have answered."""
    return (*FEATURES, *semantic_tokens.remembering())


LARGE = "; ".join(
    [*(feature.large for feature in FEATURES if feature.large is not None), semantic_tokens.LARGE, diagnostics.LARGE]
)
"""What is different on large texts, for the message shown when one is opened."""
