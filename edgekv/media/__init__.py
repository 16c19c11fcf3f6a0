"""Video in, pixels out: sources of frames, and pictures made ready for a vision graph.

Owns: opening a source by one string, when its frames are due, and what its pictures look like.
Guarantees: importing this package imports neither OpenCV nor pillow.
Does not know: models, sessions, tokens.
"""

from edgekv.media.capture import backends
from edgekv.media.open import check_source, open_video
from edgekv.media.source import SourceStats, VideoSource

__all__ = ["SourceStats", "VideoSource", "backends", "check_source", "open_video"]
