"""The event log of a cache: written while it runs, read, replayed and drawn afterwards.

``writer`` observes a cache and writes, ``reader`` reads what ``docs/trace_format.md`` describes,
``replay`` runs it again, ``timeline`` says which page held what and when, ``view`` reduces that to
a picture's resolution, ``html`` and ``png`` draw it.
"""

from edgekv.trace.reader import TraceLog, read_log
from edgekv.trace.writer import TraceWriter

__all__ = ["TraceLog", "TraceWriter", "read_log"]
