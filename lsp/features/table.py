"""Every feature of the server, in one table."""

from __future__ import annotations

from hloscope.lsp.documents import Check
from hloscope.lsp.features import (
    definition,
    diagnostics,
    folding,
    highlight,
    hover,
    outline,
    references,
    rename,
    semantic_tokens,
    workspace_symbols,
)
from hloscope.lsp.features.feature import Feature, WorkspaceFeature

FEATURES: tuple[Feature, ...] = (
    hover.FEATURE,
    definition.FEATURE,
    references.FEATURE,
    highlight.FEATURE,
    outline.FEATURE,
    folding.FEATURE,
    rename.PREPARE,
    rename.FEATURE,
    semantic_tokens.FULL,
    semantic_tokens.RANGE,
)

WORKSPACE_FEATURES: tuple[WorkspaceFeature, ...] = (workspace_symbols.FEATURE,)

CHECKS: tuple[Check, ...] = diagnostics.CHECKS
"""In the order in which their findings are published; each replaces what the one before published."""

LARGE = "; ".join(feature.large for feature in FEATURES if feature.large is not None)
"""What is different on large texts, for the message shown when one is opened."""
