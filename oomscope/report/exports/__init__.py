"""What a report is in the files of other tools: traces, folded stacks, dataframes, notebooks, summaries."""
