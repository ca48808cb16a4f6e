"""Memory traces: read, write, replay, attribute, judge. No torch here."""
