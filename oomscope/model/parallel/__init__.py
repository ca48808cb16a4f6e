"""A rank's place in the world, tensor and context parallelism, and the pipeline schedules."""
