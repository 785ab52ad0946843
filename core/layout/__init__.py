"""Layout assignment as XLA does it: constraints, their propagation, the copies they cost, and the causes of each."""
