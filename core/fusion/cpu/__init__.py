"""Fusion as XLA:CPU does it: instruction fusion with the CPU's own gates, and the wrapper pass after it."""
