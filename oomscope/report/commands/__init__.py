"""The report of each command: its lines, tables and sentences, for terminal and page alike."""
