"""What a trace tells by counting: the life of each block, bytes at every event, and what they belong to."""
