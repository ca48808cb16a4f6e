"""Charts: each is described once as a :class:`~oomscope.report.charts.plot.Plot` and drawn as HTML or as PNG."""
