"""Capture: what the real allocator does in a process, recorded and kept without disturbing it."""
