"""Mixture of experts: router, token dispatcher, experts."""
