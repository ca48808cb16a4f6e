"""The probe on a card: PyTorch's own allocator, recorded by PyTorch itself, on a real card or on a virtual one."""
