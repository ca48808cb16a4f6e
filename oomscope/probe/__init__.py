"""One measurement in a fresh process, on the simulated device or on CUDA."""
