"""Optimizers of the fp32 master weights, and what surrounds their step."""
