"""A night of the gate for CI systems: JUnit, GitHub, Markdown."""
