"""What every option does to memory and what it costs: the rows of ``docs/options.md``, a file a topic."""
