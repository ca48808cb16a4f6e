"""What a snapshot says: iterations, categories by evidence, what pins segments, and all of it as one explanation."""
