"""Tries other configurations: advice on what fits, and sweeps over a grid."""
