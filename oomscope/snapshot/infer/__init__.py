"""What the program was doing at each event, and what its blocks are for, inferred by evidence."""
