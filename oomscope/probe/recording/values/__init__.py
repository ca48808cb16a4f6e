"""Values on a virtual card that can be known without a computation, or assumed; on them control flow depends."""
