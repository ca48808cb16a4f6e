"""The suite: what is measured, by which metrics and within which bands."""
