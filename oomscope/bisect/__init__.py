"""Finds the change at fault: over the commits of a git repository, or between two configurations or environments.

The entry points are the modules of this folder. Below them, each folder importing only from those after it: ``lines``
and ``changes`` (what a search walks), ``journal``, ``requests``, ``targets`` (what of a commit is measured), ``run``
(how probes are run), ``results``, ``vcs`` (git) and ``search`` (pure: the next question, nothing else).
"""
