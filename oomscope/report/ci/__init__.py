"""A night of the gate for CI systems: JUnit, GitHub, Markdown.

Which option writes which file is said in ``RENDERERS`` of ``oomscope/cli/gate/outputs.py``.
"""
