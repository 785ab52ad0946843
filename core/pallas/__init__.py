"""Pallas kernels under instruments: blocks and grids, calls, static findings, and interpreters that look for races.

jax traces the user's function in a child process (``tracing``); everything after that is arithmetic over the plain
description which the child wrote down. Start at ``tracing.trace_file``, ``grid.walk``, ``checks.registry`` and
``interpret``.
"""
