"""From a recorded run to a result: peaks, sites, failures, and reruns that test the answer."""
