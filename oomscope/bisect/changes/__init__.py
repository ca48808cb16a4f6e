"""Changes that are not commits: keys, variables, packages, hunks; and the search among them."""
