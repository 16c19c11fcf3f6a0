"""What the operating system says about memory: what this process holds, what is still to be had.

``MemAvailable`` is the right figure on unified memory: it counts cache that can be reclaimed.
"""

from __future__ import annotations

from pathlib import Path

_KIB = 1024


def anonymous_bytes() -> int | None:
    """Anonymous memory of this process, resident and swapped (RssAnon + VmSwap); None off Linux."""
    fields = _fields(Path("/proc/self/status"))
    if "RssAnon" not in fields:
        return None
    return fields["RssAnon"] + fields.get("VmSwap", 0)


def available_bytes() -> int | None:
    """Memory that can be taken without swapping (MemAvailable); None off Linux."""
    return _fields(Path("/proc/meminfo")).get("MemAvailable")


def total_bytes() -> int | None:
    """Memory of the machine; None off Linux."""
    return _fields(Path("/proc/meminfo")).get("MemTotal")


def _fields(path: Path) -> dict[str, int]:
    """The ``Name:  123 kB`` lines of a proc file, in bytes; empty when there is no such file."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    rows = (line.split() for line in text.splitlines())
    return {
        row[0].rstrip(":"): int(row[1]) * _KIB for row in rows if len(row) == 3 and row[2] == "kB"
    }
