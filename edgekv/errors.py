"""Every error a caller of edgekv can meet, one line each: what is wrong, what was expected."""

_MAX_CHARS = 2000


class EdgeKVError(Exception):
    """Base of all errors edgekv raises on purpose (wrong argument values raise ValueError).

    The message is one line and not endless, whatever names of files or values it holds.
    """

    def __init__(self, message: str) -> None:
        line = " ".join(message.splitlines())
        super().__init__(line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 1]}…")


class OutOfPagesError(EdgeKVError):
    """The pool has fewer free pages than the operation needs; nothing was changed."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"need {needed} pages, {free} free")
        self.needed = needed
        self.free = free


class CacheError(EdgeKVError):
    """A page, sequence or step is used in a state that does not allow it; nothing was changed."""


class BudgetError(EdgeKVError):
    """Model, pool or pinned start do not fit the budget; the message says what would fit."""


class BundleError(EdgeKVError):
    """A bundle is missing, broken, tampered with or of a format this version does not read."""


class ContextError(EdgeKVError):
    """A prompt or frame cannot be placed in the context; the message says what would fit."""


class ExecutorError(EdgeKVError):
    """A graph cannot be loaded or run here; the message names the executor and the reason."""


class SourceError(EdgeKVError):
    """A video source cannot be opened or holds no frame that can be read."""


class SessionFileError(EdgeKVError):
    """A saved session is missing, broken, of another model or format, or cannot be written."""


class SessionError(EdgeKVError):
    """A session is closed, or is being used by another thread."""


class ModelError(EdgeKVError):
    """A model is closed."""


class TraceError(EdgeKVError):
    """A trace file cannot be written, or is broken or of a format this version does not read."""


class MetricsError(EdgeKVError):
    """Metrics cannot be served: the port is taken, or the library for it is not installed."""


class TierError(EdgeKVError):
    """A tier file cannot be made, is broken, of another model or used by another session."""
