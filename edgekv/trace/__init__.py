"""The event log of a cache: written while it runs, read, replayed and drawn afterwards.

``writer`` observes a cache (``observed``) and writes a file (``log_file``) of ``records``;
``reader`` and ``unpack`` read it. ``replay`` runs it again, with the rules' part in ``choices`` and
cross-attention's in ``input_replay``. ``timeline`` says which page held what and when
(``contexts``, ``holders``, ``input_lives``), counts ``frames``, and remembers it (``lives``);
``view`` reduces that to a picture's resolution (``page_map``, ``bars``); ``words``, ``accounts``
and ``labels`` say what is seen, and ``html`` and ``png`` draw it.
"""

from edgekv.trace.reader import TraceLog, read_log
from edgekv.trace.writer import TraceWriter

__all__ = ["TraceLog", "TraceWriter", "read_log"]
