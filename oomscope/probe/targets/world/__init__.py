"""Worlds of several ranks on the virtual card: one process that plays a rank, or a process for each rank.

A played rank has no peers. NCCL's stand-in answers as if every rank held what this one holds; here is what PyTorch
needs besides: a store, the groups of the host's tensors, and the names of what only a peer could answer.
"""
