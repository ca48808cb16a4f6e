"""Runs a probe in a process of its own: starts it, follows it, ends it with everything that it started."""
