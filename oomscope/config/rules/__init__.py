"""Which values may be combined with which, by topic."""
