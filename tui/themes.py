"""Themes of our own. `SAFE` tells its colours apart for readers who do not see red and green as different."""

from __future__ import annotations

from textual.theme import Theme

SAFE = Theme(
    name="hloscope-safe",
    primary="#56B4E9",
    secondary="#CC79A7",
    accent="#F0E442",
    warning="#E69F00",
    error="#D55E00",
    success="#0072B2",
    foreground="#E8E8E8",
    background="#101418",
    surface="#161B21",
    panel="#1E252D",
    dark=True,
    variables={"text-success": "#6CB8F0", "text-error": "#FF8A3D", "text-warning": "#F3C14B"},
)
"""The colours of Okabe and Ito: what was added is blue, what was removed orange."""
