"""Run as a program of its own: imports torch, and prints what it is built for and what it sees as one line of JSON.

Nothing is allocated on a device: to count devices makes no context, and the process ends afterwards.
"""

from __future__ import annotations

import json
import sys
import warnings


def report() -> dict[str, object]:
    """Return what torch says of itself; ``warnings`` is what it complained of when asked for devices.

    A CUDA build without NVIDIA's libraries is imported on the virtual card, which is no device of the machine's.
    """
    from oomscope.virtual import is_loaded
    from oomscope.virtual.loading import load_where_needed

    load_where_needed()
    import torch

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        if is_loaded():
            devices = 0
            warnings.warn("NVIDIA's libraries are not installed", stacklevel=1)
        else:
            devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        backend = torch.cuda.get_allocator_backend() if torch.version.cuda or torch.version.hip else None
    return {
        "version": torch.__version__,
        "path": str(torch.__file__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "devices": devices,
        "allocator_backend": backend,
        "warnings": [" ".join(str(warning.message).split()) for warning in heard],
    }


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(report())}\n")
