"""git: repositories, commits, ranges, disposable checkouts, patches."""
