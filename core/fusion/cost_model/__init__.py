"""Run times of instructions and of pairs fused, as XLA:GPU estimates them, with every step of the sum."""
