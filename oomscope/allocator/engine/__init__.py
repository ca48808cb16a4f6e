"""The allocator's state, one flat sequence of integers, and the rules on it, which numba may compile."""
