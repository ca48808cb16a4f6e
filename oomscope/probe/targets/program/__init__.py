"""A program as the target of a probe: started as it is, recorded from inside by what its environment brings along.

``run`` and ``answer`` are the side of the probe: they start the program, wait for it, and read what it left. All else
runs inside the program's own processes, which pay for nothing before they import torch.
"""
