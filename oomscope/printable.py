"""Makes text of other people's harmless to a terminal: control characters are shown as escapes, not obeyed.

Names of files, commit subjects, values of a configuration and messages of a target may hold sequences that recolour,
overwrite or retitle what the user looks at. Everything that oomscope prints passes through here.
"""

from __future__ import annotations

import re

_LINES = "\n\t"
_MISLEADING = (*range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Line and paragraph separators, embeddings, overrides and isolates (Unicode Standard Annex 9), which make a line look
like another."""
_SURROGATES = range(0xD800, 0xE000)
"""Half characters: a text that holds one cannot be encoded."""
_STRAY_BYTES = range(0xDC80, 0xDD00)
"""Bytes that are no UTF-8, as Python keeps them in file names (PEP 383)."""

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in _LINES}
_ESCAPES |= {code: f"\\u{code:04x}" for code in (*_MISLEADING, *_SURROGATES)}
_ESCAPES |= {code: f"\\x{code - 0xDC00:02x}" for code in _STRAY_BYTES}


_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#\[)")
"""Start of a line that is a command to the runner of GitHub Actions, after blanks, and start of one in the older form,
anywhere in a line ("Workflow commands for GitHub Actions"; actions/runner, ActionCommand.cs)."""


def not_obeyed(line: str) -> str:
    """Return ``line`` so that the runner of GitHub Actions prints it, and reads no command in it."""
    return _COMMAND.sub(lambda found: f"{found[1]}\\x3a" if found[0].endswith(":") else "\\x23", line)


def printable(text: str) -> str:
    """Return ``text`` with control characters but newline and tab, misleading characters and stray bytes escaped."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def one_line(text: str) -> str:
    """Return ``text``, such as the name of a file, without what would break a line or a column."""
    return text.replace("\n", "\\n").replace("\t", "\\t")


def quoted(text: str) -> str:
    """Return ``text`` in quotation marks for a sentence, as it was given: a ``repr`` would double backslashes.

    What would break the line is escaped.
    """
    mark = '"' if "'" in text and '"' not in text else "'"
    return f"{mark}{one_line(printable(text))}{mark}"
