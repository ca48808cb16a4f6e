"""Reports for the terminal: one file a command, and the layout that they share."""
