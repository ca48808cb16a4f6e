"""Pure searches: they name the next question and know nothing of git, processes or screens."""
