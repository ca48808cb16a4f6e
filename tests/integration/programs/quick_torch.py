"""Imports torch without its compiler and its rules for the meta device, which take seconds and which nothing here uses.

A program imports this first. The compiler would come with torch's first optimizer.
"""

import contextlib
import sys
import types
from unittest import mock

sys.modules["torch._meta_registrations"] = types.ModuleType("torch._meta_registrations")

import torch  # noqa: E402

_ASKED = ("get_optimize_ddp_mode", "LEGACY_MOD_INLINELIST", "get_legacy_mod_inlinelist", "clear_lru_cache")
compiler = types.ModuleType("torch._dynamo")
compiler.disable = lambda function, *_, **__: function
compiler.graph_break = lambda *_: None
compiler.disable_nested_graph_breaks = contextlib.nullcontext
compiler.OptimizedModule = type("OptimizedModule", (), {})
compiler.utils = compiler.trace_rules = mock.Mock(spec=_ASKED)
sys.modules["torch._dynamo"] = torch._dynamo = compiler
