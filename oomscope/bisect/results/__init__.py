"""What a search answers, and what it tells while it runs."""
