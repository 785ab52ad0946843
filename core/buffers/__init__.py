"""Buffer assignment: from a scheduled module to addresses, the reasons on the way, and the hazards in the result."""
