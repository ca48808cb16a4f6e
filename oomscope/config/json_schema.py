"""The JSON Schema of a configuration file, for editors that complete and check YAML as it is typed."""

from __future__ import annotations

from typing import Any

from oomscope.config.presets import preset_names
from oomscope.config.schema import Config


def json_schema() -> dict[str, Any]:
    """Return the schema of a file (draft 2020-12): the sections, and ``preset`` as the base that they are laid upon.

    Upon a preset every key is optional; without one ``model`` and its required keys must be there.
    """
    schema = Config.model_json_schema()
    model = schema["$defs"]["ModelConfig"]
    needed = model.pop("required")
    schema.pop("required")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "oomscope configuration",
        "description": "What oomscope probes: a transformer, its parallelism, its batch, and the device.",
        "properties": {
            "preset": {
                "title": "Preset",
                "description": "A configuration that comes with oomscope, on which this file is laid.",
                "enum": list(preset_names()),
            },
            **schema["properties"],
        },
        "anyOf": [
            {"required": ["preset"]},
            {"required": ["model"], "properties": {"model": {"required": needed}}},
        ],
    }
