"""What the readers show, as plain data: passes, stages, diffs, symbols, hover facts, summaries. No IR node leaves."""
