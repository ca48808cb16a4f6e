"""What people and other programs get to see of results: text, pages, pictures, files."""
