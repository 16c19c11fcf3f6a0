"""The demo: drawn video, questions on it with true answers, and a built-in clip.

Owns everything that the demo model was trained and is measured on. Needs NumPy only. Does not know
the model nor how it is run.
"""

from edgekv.demo.evaluation import (
    HELD_OUT_SEEDS,
    MAX_FRAMES,
    EvaluationStream,
    Sample,
    evaluation_set,
)
from edgekv.demo.questions import KINDS, YES_NO_KINDS, Kind, Question, Window, ask, ask_window
from edgekv.demo.render import COLOURS, FRAME_SIZE, SHAPES
from edgekv.demo.scenes import NUM_IDENTITIES, Clip, Scene, draw_clip, identity_name

__all__ = [
    "COLOURS",
    "FRAME_SIZE",
    "HELD_OUT_SEEDS",
    "KINDS",
    "MAX_FRAMES",
    "NUM_IDENTITIES",
    "SHAPES",
    "YES_NO_KINDS",
    "Clip",
    "EvaluationStream",
    "Kind",
    "Question",
    "Sample",
    "Scene",
    "Window",
    "ask",
    "ask_window",
    "draw_clip",
    "evaluation_set",
    "identity_name",
]
