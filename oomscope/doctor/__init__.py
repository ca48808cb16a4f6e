"""What of this machine oomscope can use: one check a part, each with what is missing without it and what to do."""
