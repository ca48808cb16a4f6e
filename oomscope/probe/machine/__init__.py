"""What a probe needs to know of the machine: cards, backends, environment variables, processes."""
