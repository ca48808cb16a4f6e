"""A night: every case measured, compared with its baseline, and confirmed."""
