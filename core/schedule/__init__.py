"""Schedules: the order in which the instructions of each computation run."""
