"""Probes as jobs of a cluster: submitted, waited for, tried again where the cluster lost them, and never left behind.

:mod:`~oomscope.bisect.cluster.runner` is the near end, :mod:`~oomscope.bisect.cluster.node` the far one.
"""
