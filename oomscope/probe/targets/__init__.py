"""What a probe measures: the bundled transformer, a harness, an entry, a command, any program."""
