"""Finds the change at fault: over the commits of any git repository, or between two configurations or environments.

``search``, ``step_search``, ``deltas``, ``steps``, ``growth`` and ``predicate`` are pure and know nothing of git,
processes or screens; ``commits``, ``checkouts``, ``rooms``, ``cache`` and ``prober`` hold the effects;
``commit_bisect``, ``config_bisect``, ``surroundings`` and ``square_bisect`` bring them together. What can be mixed is a
``mixture``: keys, variables, packages, the hunks of a commit.
"""
