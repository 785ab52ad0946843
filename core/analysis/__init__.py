"""What several deciders need: agreement with a real dump, alias and dataflow, live ranges, cost, device facts."""
