"""Passes that write opcodes out in simpler ones, or bring them into the one form that later passes expect."""
