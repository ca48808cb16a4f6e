"""Linear layers, weights and recipes in fp8."""
