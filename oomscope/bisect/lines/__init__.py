"""Searches along lines of commits."""
