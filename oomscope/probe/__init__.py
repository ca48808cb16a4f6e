"""One measurement in a fresh process, on a virtual card or on a real one."""
