"""What commands print and write: results, progress, files, hints and failures."""
