"""The journal of a search: its lines, its files, resuming and exporting."""
