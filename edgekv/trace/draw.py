"""A log's picture as a file, in the format that the file's name asks for."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from edgekv.errors import TraceError
from edgekv.regular_file import open_regular
from edgekv.trace.codec import MAGIC
from edgekv.trace.html import page_html
from edgekv.trace.reader import TraceLog
from edgekv.trace.timeline import build_timeline
from edgekv.trace.view import make_view
from edgekv.trace.words import Words, describe

FORMATS = (".html", ".png")


def draw(log: TraceLog, output: Path) -> Words:
    """Write the picture and give back its text. Raises ValueError for a name that is neither
    ``.html`` nor ``.png``, TraceError for a damaged log and for a file that
    cannot be written or holds a log itself."""
    if output.suffix.lower() not in FORMATS:
        raise ValueError(f"the picture must be named {' or '.join(FORMATS)}, got {output.name}")
    if _is_log(output):
        raise TraceError(f"{output} holds a log and is not replaced by a picture")
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


def _is_log(path: Path) -> bool:
    with suppress(OSError), open_regular(path) as file:
        return file.read(len(MAGIC)) == MAGIC
    return False
