"""Other people's configurations: one module a dialect, a table of their names and what oomscope calls them.

:mod:`~oomscope.config.importers.importer` is the way in. What a table does not know is listed, never dropped.
"""
