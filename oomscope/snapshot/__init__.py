"""Memory traces: what one is, and rooms that read, replay, judge, explain and compare them. No torch here.

``trace`` holds the columns, ``lifetimes`` and ``timeline`` what they mean, ``attribution`` and ``sites`` whose the
bytes are, ``builder`` and ``write`` make them. Above that, each room on those before it: ``reading`` (files of
anybody), ``replaying`` (the same requests under other settings), ``judging`` (the verdict), ``explaining`` (one
snapshot), ``comparing`` (two).
"""
