"""Runs the probes of a search: scheduler, runners, cache, identity of a result."""
