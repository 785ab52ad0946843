"""Every feature of the server, in one table."""

from __future__ import annotations

from hloscope.lsp.documents import Check
from hloscope.lsp.features import diagnostics, folding
from hloscope.lsp.features.feature import Feature, WorkspaceFeature

FEATURES: tuple[Feature, ...] = (
    folding.FEATURE,
)

WORKSPACE_FEATURES: tuple[WorkspaceFeature, ...] = ()

CHECKS: tuple[Check, ...] = diagnostics.CHECKS
"""In the order in which their findings are published; each replaces what the one before published."""

LARGE = "; ".join([diagnostics.LARGE, *(feature.large for feature in FEATURES if feature.large is not None)])
"""What is different on large texts, for the message shown when one is opened."""
