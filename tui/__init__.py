"""The terminal dashboard: a Textual application over a run (``hloscope.core.views``). It computes no compiler facts."""
