"""What ``oomscope demo`` walks: a small training program, its git history, and the harness that drives it."""
