"""Reads untrusted snapshot files into traces, bounded and checked, in a light child process; nothing in them is run."""
