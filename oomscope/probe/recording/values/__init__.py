"""Values that a virtual card does not compute, but that the host can compute or assume for control flow."""
