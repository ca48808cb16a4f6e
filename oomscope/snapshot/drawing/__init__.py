"""What pictures of a snapshot show: timelines in bins, and maps of segments."""
