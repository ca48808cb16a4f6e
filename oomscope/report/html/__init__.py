"""Reports as one offline HTML page each: one file a command, its template beside it."""
