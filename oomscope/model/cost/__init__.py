"""Closed forms: parameters, floating-point operations, and the estimate of a step's time."""
