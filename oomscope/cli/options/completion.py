"""What the shell completes."""

from __future__ import annotations

COMPLETE_VARIABLE = "_OOMSCOPE_COMPLETE"
"""Set by the completion script: what is to be completed, and for which shell."""
