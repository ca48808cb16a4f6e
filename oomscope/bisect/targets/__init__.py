"""What of a commit is measured, and how its checkout is made ready."""
