"""What a probe is asked to measure: schema, files and overrides, validation rules, presets."""
