"""A command as the target of a probe: it measures by itself, and its answer is read from what it leaves."""
