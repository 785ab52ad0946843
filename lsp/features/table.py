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

COMMANDS: Mapping[str, Callable[[str, str], types.Location | None]] = {
    "hloscope.previousStage": lambda uri, name: stages.in_stage(uri, name, "previous"),
    "hloscope.nextStage": lambda uri, name: stages.in_stage(uri, name, "next"),
    "hloscope.firstStage": lambda uri, name: stages.in_stage(uri, name, "first"),
    "hloscope.lastStage": lambda uri, name: stages.in_stage(uri, name, "last"),
    "hloscope.openFusion": lambda uri, name: stages.fusion_of(uri, name),
}
"""Commands that a client may run: (address, instruction) -> the place to show."""

WORKSPACE_FEATURES: tuple[WorkspaceFeature, ...] = (workspace_symbols.FEATURE,)


def features_of_a_client() -> tuple[Feature, ...]:
    """`FEATURES`, and those that remember what they have answered."""
    return (*FEATURES, *semantic_tokens.remembering())


LARGE = "; ".join(
    [*(feature.large for feature in FEATURES if feature.large is not None), semantic_tokens.LARGE, diagnostics.LARGE]
)
"""What is different on large texts, for the message shown when one is opened."""
