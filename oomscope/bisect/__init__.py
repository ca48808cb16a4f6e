"""Finds the change at fault: over the commits of any git repository, or over the keys of two configuration files.

``search``, ``step_search``, ``deltas``, ``steps``, ``growth`` and ``predicate`` are pure and know nothing of git,
processes or screens; ``commits``, ``checkouts``, ``rooms``, ``cache`` and ``prober`` hold the effects;
``commit_bisect`` and ``config_bisect`` bring them together.
"""
