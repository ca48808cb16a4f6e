"""Activation recomputation and offload."""
