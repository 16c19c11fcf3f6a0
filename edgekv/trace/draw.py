"""A log's picture as a file, in the format that the file's name asks for."""

from __future__ import annotations

from pathlib import Path

from edgekv.errors import TraceError
from edgekv.trace.html import page_html
from edgekv.trace.reader import TraceLog
from edgekv.trace.timeline import build_timeline
from edgekv.trace.view import make_view
from edgekv.trace.words import Words, describe

FORMATS = (".html", ".png")


def draw(log: TraceLog, output: Path) -> Words:
    """Write the picture and give back its text. Raises ValueError for a name that is neither
    ``.html`` nor ``.png``, TraceError for a damaged log or a file that cannot be written."""
    if output.suffix.lower() not in FORMATS:
        raise ValueError(f"the picture must be named {' or '.join(FORMATS)}, got {output.name}")
    view = make_view(build_timeline(log))
    words = describe(log, view)
    if output.suffix.lower() == ".png":
        from edgekv.trace.png import picture_png  # Pillow is imported for pictures only

        data = picture_png(view, words)
    else:
        data = page_html(view, words).encode()
    try:
        output.write_bytes(data)
    except OSError as error:
        raise TraceError(f"cannot write {output}: {error.strerror}") from None
    return words
