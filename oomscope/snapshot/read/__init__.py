"""Files of anybody to traces: bounded, checked, without running anything of theirs. The child must stay light."""
