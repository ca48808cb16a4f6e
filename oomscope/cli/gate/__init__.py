"""``oomscope gate`` and its subcommands: one file a command."""
