"""``oomscope bisect`` and its subcommands: one file a command."""
