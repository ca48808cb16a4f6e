"""A configuration's fingerprint, by which results are cached: equal for equal meaning, however it was written."""

from __future__ import annotations

import hashlib
import json

from oomscope.config.schema import Config

_SETS = (("recompute", "recompute_modules"), ("offload", "offload_modules"))
"""Lists in which neither order nor repetition means anything."""


def config_hash(config: Config) -> str:
    """Return 64 hexadecimal digits (SHA-256) that name ``config``."""
    document = config.model_dump(mode="json")
    for section, key in _SETS:
        if document[section][key] is not None:
            document[section][key] = sorted(set(document[section][key]))
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
