"""Running modules: the reference evaluator, its inputs and outputs, and the comparison of results."""
