"""The nightly memory gate: a suite of cases, measured and compared with a reviewed baseline."""
