"""What grew from one snapshot to another, in lines that are found again where they moved."""
