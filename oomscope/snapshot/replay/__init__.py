"""A trace's requests put to the emulated allocator: from the state they began in, under its own settings or others."""
