"""A program as the target of a probe: started as it is, recorded from inside by what its environment brings along.

``runs`` and ``results`` are the side of the probe: they start the program, wait for it, choose the process that
represents it, and read what that left. All else runs inside the program's own processes, which pay for nothing before
they import torch.
"""
