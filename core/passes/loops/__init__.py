"""Passes on while loops, and the questions that they ask of a loop: its state, its trip count, what it leaves alone."""
