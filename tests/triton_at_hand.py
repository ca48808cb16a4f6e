"""Whether Triton can run here: its wheel is no part of the lock (``make test-triton`` installs it beside)."""

from __future__ import annotations

import importlib.util

import pytest

from oomscope.probe.analysis.failures import absent

_REASON = "no triton here: make test-triton" if importlib.util.find_spec("triton") is None else absent()
needs_triton = pytest.mark.skipif(_REASON is not None, reason=_REASON or "")
