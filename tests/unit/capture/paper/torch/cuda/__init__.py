from . import memory

_queued = []
_initialised = False


def is_available():
    return True


def is_initialized():
    return _initialised


def _lazy_call(call):
    _queued.append(call)


def init():
    global _initialised
    for call in _queued:
        call()
    _initialised = True


def mem_get_info(index):
    return 1, 2


def get_device_name(index):
    return "Paper"


def get_per_process_memory_fraction(index):
    return 1.0


def fail():
    import torch

    for observer in memory.observers:
        observer(0, 1024, 4096, 512)
    raise torch.OutOfMemoryError("CUDA out of memory")
