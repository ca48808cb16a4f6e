"""Memory traces: read, infer, replay, judge, explain and compare them. No torch here.

``trace`` holds the columns, ``lifetimes`` and ``timeline`` what they mean, ``attribution`` and ``sites`` whose bytes
they are, ``write`` puts them into a file. The folders import from those before them only: ``read`` (untrusted
files) and ``infer`` (phases and categories), ``replay`` (the same requests under other settings) and ``compare`` (two
snapshots), ``judge`` (the verdict), ``explain`` (one snapshot or a folder of ranks).
"""
