"""XLA:GPU's fusion: what may be fused, in which order, and which emitter runs the result."""
