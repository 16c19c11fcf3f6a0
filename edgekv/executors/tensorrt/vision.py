"""vision.onnx as a TensorRT engine, one picture at a time.

Owns: the batch as one call for each picture. Does not know how pictures are preprocessed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.executors.tensorrt.fixed import FixedEngine


class TensorRTVision:
    """See ``VisionExecutor``."""

    def __init__(self, engine: FixedEngine) -> None:
        self._engine = engine

    def encode(self, pixel_values: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, 3, height, width) -> (n, tokens_per_image, hidden)."""
        one = self._engine.output_shape(names.IMAGE_EMBEDS)[1:]
        result = np.empty((len(pixel_values), *one), np.float32)
        for index in range(len(pixel_values)):
            picture = pixel_values[index : index + 1]
            (result[index],) = self._engine.run({names.PIXEL_VALUES: picture})[names.IMAGE_EMBEDS]
        return result

    def close(self) -> None:
        """Give buffers and engine back."""
        self._engine.close()
